//! One role alone, for farms of several processes or machines. All are given the same job file.

use std::sync::Arc;

use clap::Args;
use furrow_coordinator::core::Over;
use furrow_policy::Listening;
use furrow_telemetry::Role;
use furrow_wire::Tcp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::budget::{self, Roles};
use crate::commands::run::{BeginArgs, scored_something};
use crate::launch::{self, AirArgs, Launch};
use crate::run_dir::{self, Begin};
use crate::{Failure, JobArgs, output};

/// A coordinator.
#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    begin: BeginArgs,
    /// Where workers reach it; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7370")]
    listen: String,
}

/// An environment worker.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Coordinator's address, host:port
    #[arg(long)]
    coordinator: String,
    /// Name in logs and records; must be another after each start
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    air: AirArgs,
}

/// A policy worker.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Coordinator's address, host:port; without one the worker only serves
    #[arg(long)]
    coordinator: Option<String>,
    /// Name in logs and records; must be another after each start
    #[arg(long)]
    id: Option<String>,
    /// Where it listens, instead of the job's policy.listen
    #[arg(long)]
    listen: Option<String>,
}

/// Runs a coordinator until its job is over or it is told to stop.
pub fn coordinator(args: &CoordinatorArgs) -> Result<(), Failure> {
    let launch = Launch::read(&args.job)?.with_key()?;
    let begin = args.begin.begin();
    let (dir, telemetry) = (launch.job.run_dir.clone(), launch.job.telemetry.clone());
    launch::runtime()?.block_on(async {
        let listener = bind(&args.listen, "--listen").await?;
        if begin == Begin::Resume {
            launch.check_same_job()?;
        }
        let lock = run_dir::prepare(&dir, begin, &launch.job.resolved)?;
        run_dir::write_address(&dir, &listener.local_addr()?.to_string())?;
        launch::logs(&dir, Role::Coordinator, &telemetry)?;
        output::line(format!("coordinator of {} listens on {}", launch.job.run_name, listener.local_addr()?));
        let stop = launch::stop_on_signal()?;
        let over = CancellationToken::new();
        let name = launch::process_name("coordinator");
        let metrics = launch::metrics(&launch.job, Role::Coordinator, &name, over.clone())?;
        let job = launch.coordinator(begin == Begin::Resume, lock)?;
        let summary = furrow_coordinator::run(job, furrow_wire::accept(listener), stop).await;
        over.cancel();
        metrics.await?;
        let summary = summary?;
        match &summary.over {
            Over::TooManyFailures { detail } => {
                Err(anyhow::anyhow!("the farm failed too often and stopped: {detail}").into())
            }
            Over::Complete => scored_something(&summary, &dir),
            Over::Drained { .. } => Ok(()),
        }
    })
}

/// Runs an environment worker until the run is over or it is told to stop.
pub fn env(args: &WorkerArgs) -> Result<(), Failure> {
    let launch = Launch::read(&args.job)?;
    launch::runtime()?.block_on(async {
        launch::logs(&launch.job.run_dir, Role::Env, &launch.job.telemetry)?;
        let name = launch::worker_name(args.id.as_deref(), "env")?;
        let stop = launch::stop_on_signal()?;
        let stages = launch.stages(&args.air).await?;
        let config = launch.job.env.worker.clone();
        let over = CancellationToken::new();
        let metrics = launch::metrics(&launch.job, Role::Env, name.as_str(), over.clone())?;
        let acted =
            furrow_env::run(config, name, stages, Arc::new(Tcp::default()), &args.coordinator, stop).await;
        over.cancel();
        metrics.await?;
        let summary = acted?;
        output::line(format!(
            "{} trajectories acknowledged, {} abandoned",
            summary.acknowledged, summary.abandoned
        ));
        Ok(())
    })
}

/// Runs a policy worker until the run is over or it is told to stop.
pub fn policy(args: &PolicyArgs) -> Result<(), Failure> {
    let launch = Launch::read(&args.job)?.with_policy_key()?;
    budget::check(&launch, Roles::Policy)?;
    launch::runtime()?.block_on(async {
        launch::logs(&launch.job.run_dir, Role::Policy, &launch.job.telemetry)?;
        let config = launch.job.policy.clone();
        let listener = match &args.listen {
            Some(listen) => bind(listen, "--listen").await?,
            None => bind(&config.listen, "policy.listen").await?,
        };
        output::line(format!("policy worker listens on {}", listener.local_addr()?));
        let listening = Listening { sessions: listener, chats: launch::chats(&config).await? };
        let name = launch::worker_name(args.id.as_deref(), "policy")?;
        let (stop, grace) = (launch::stop_on_signal()?, launch.job.env.worker.drain_grace);
        let connect = Arc::new(Tcp::default());
        let over = CancellationToken::new();
        let metrics = launch::metrics(&launch.job, Role::Policy, name.as_str(), over.clone())?;
        let served =
            furrow_policy::run(config, name, listening, connect, args.coordinator.clone(), grace, stop).await;
        over.cancel();
        metrics.await?;
        let report = served?;
        if report.cut_off > 0 {
            output::complain(&format!(
                "{} sessions outlasted the grace; their workers open them elsewhere",
                report.cut_off
            ));
        }
        if report.chats_cut_off > 0 {
            output::complain(&format!("{} chats outlasted the grace and were cut", report.chats_cut_off));
        }
        Ok(())
    })
}

async fn bind(address: &str, key: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|why| {
        Failure::Input(vec![format!(
            "{key}: {address} cannot be listened on ({why}); take another port, or 0 for a free one"
        )])
    })
}
