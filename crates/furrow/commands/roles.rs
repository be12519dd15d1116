//! One role alone, for farms of several processes or machines. All of them take the same job file.

use std::sync::Arc;

use clap::Args;
use furrow_coordinator::core::JobOutcome;
use furrow_policy::WorkerListeners;
use furrow_telemetry::Role;
use furrow_wire::TcpConnector;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::budget::{self, LocalRoles};
use crate::commands::run::{BeginArgs, check_any_scored, check_undamaged, with_remedy};
use crate::commands::serve_only::{self, ServeOnlyArgs};
use crate::launch::{self, JobArgs, JobLaunch, SignalledWork, SimulatedBrowserArgs};
use crate::run_dir::{self, RunStart};
use crate::{CommandFailure, output};

#[derive(Debug, Args)]
pub(crate) struct CoordinatorArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    begin: BeginArgs,
    /// Address to listen on for workers, host:port; port 0 takes a free port
    #[arg(long, default_value = "127.0.0.1:7370")]
    listen: String,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Address of the coordinator, host:port
    #[arg(long)]
    coordinator: String,
    /// Name in logs and records, another one at each start [default: made of role, process
    /// and a random tail]
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    simulated: SimulatedBrowserArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    serve_only: ServeOnlyArgs,
    /// Address of the coordinator, host:port; without it the worker only serves chats
    #[arg(long)]
    coordinator: Option<String>,
    /// Name in logs and records, another one at each start [default: made of role, process
    /// and a random tail]
    #[arg(long)]
    id: Option<String>,
    /// Address to listen on, host:port, instead of the job's policy.listen
    #[arg(long)]
    listen: Option<String>,
}

/// Runs a coordinator until its job is over or a signal stops it.
pub(crate) fn coordinator(args: &CoordinatorArgs) -> Result<(), CommandFailure> {
    let begin = args.begin.begin();
    let launch = JobLaunch::read_to_begin(&args.job, begin)?.with_key()?;
    let dir = launch.job.run_dir.clone();
    let telemetry = launch.job.telemetry.clone();
    launch::runtime()?.block_on(async {
        let listener = bind(&args.listen, "--listen").await?;
        if begin == RunStart::Resume {
            launch.check_same_job()?;
        }
        let lock = run_dir::prepare(&dir, begin, &launch.job.resolved)?;
        run_dir::write_address(&dir, &listener.local_addr()?.to_string())?;
        launch::logs(&dir, Role::Coordinator, &telemetry)?;
        output::line(format!("coordinator of {} listens on {}", launch.job.run_name, listener.local_addr()?));
        let stop = launch::stop_on_signal(SignalledWork::Run)?;
        let over = CancellationToken::new();
        let name = launch::process_name("coordinator");
        let metrics = launch::metrics(&launch.job, Role::Coordinator, &name, over.clone())?;
        let job = launch.coordinator(begin == RunStart::Resume, lock)?;
        let summary = furrow_coordinator::run(job, furrow_wire::accept(listener), stop).await;
        over.cancel();
        metrics.await?;
        let summary = summary.map_err(|error| with_remedy(error, &dir))?;
        match &summary.over {
            JobOutcome::TooManyFailures { detail } => {
                Err(anyhow::anyhow!("the run stopped because the farm failed too often: {detail}").into())
            }
            JobOutcome::Complete => {
                check_any_scored(&summary, &dir).and_then(|()| check_undamaged(&summary, &dir))
            }
            JobOutcome::Drained { .. } => check_undamaged(&summary, &dir),
        }
    })
}

/// Runs an environment worker until the run is over or a signal stops it.
pub(crate) fn env(args: &WorkerArgs) -> Result<(), CommandFailure> {
    let launch = JobLaunch::read(&args.job)?;
    launch::runtime()?.block_on(async {
        launch::logs(&launch.job.run_dir, Role::Env, &launch.job.telemetry)?;
        let name = launch::worker_name(args.id.as_deref(), "env")?;
        let stop = launch::stop_on_signal(SignalledWork::Run)?;
        let stages = launch.environments(&args.simulated).await?;
        let config = launch.job.env.worker.clone();
        let over = CancellationToken::new();
        let metrics = launch::metrics(&launch.job, Role::Env, name.as_str(), over.clone())?;
        let acted =
            furrow_env::run(config, name, stages, Arc::new(TcpConnector::default()), &args.coordinator, stop)
                .await;
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

/// Runs a policy worker until the run is over or a signal stops it.
pub(crate) fn policy(args: &PolicyArgs) -> Result<(), CommandFailure> {
    if args.serve_only.serve_only {
        return serve_only::run(&args.serve_only, &args.job);
    }
    let launch = JobLaunch::read(&args.job)?.with_policy_key()?;
    budget::check(&launch, LocalRoles::Policy)?;
    launch::runtime()?.block_on(async {
        launch::logs(&launch.job.run_dir, Role::Policy, &launch.job.telemetry)?;
        let config = launch.job.policy.clone();
        let listener = match &args.listen {
            Some(listen) => bind(listen, "--listen").await?,
            None => bind(&config.listen, "policy.listen").await?,
        };
        output::line(format!("policy worker listens on {}", listener.local_addr()?));
        let listening = WorkerListeners { sessions: listener, chats: launch::chats(&config).await?, link: None };
        let name = launch::worker_name(args.id.as_deref(), "policy")?;
        let stop = launch::stop_on_signal(SignalledWork::Run)?;
        let grace = launch.job.env.worker.drain_grace;
        let connect = Arc::new(TcpConnector::default());
        let over = CancellationToken::new();
        let metrics = launch::metrics(&launch.job, Role::Policy, name.as_str(), over.clone())?;
        let served =
            furrow_policy::run(config, name, listening, connect, args.coordinator.clone(), grace, stop).await;
        over.cancel();
        metrics.await?;
        let report = served?;
        if report.cut_off > 0 {
            output::error_line(&format!(
                "{} sessions did not end within the grace period; their environment workers reopen them on another policy worker",
                report.cut_off
            ));
        }
        serve_only::report_cut_off(report.chats_cut_off);
        Ok(())
    })
}

async fn bind(address: &str, key: &str) -> Result<TcpListener, CommandFailure> {
    TcpListener::bind(address).await.map_err(|why| {
        CommandFailure::Input(vec![format!(
            "{key}: cannot listen on {address} ({why}); use another port, or 0 for a free one"
        )])
    })
}
