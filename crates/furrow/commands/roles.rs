//! One role alone, for farms of several processes or machines. All of them take the same job file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::Args;
use furrow_coordinator::core::JobOutcome;
use furrow_policy::{PolicyConfig, WorkerListeners};
use furrow_telemetry::Role;
use furrow_wire::PeerRole;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::budget::{self, LocalRoles};
use crate::commands::run::{BeginArgs, check_any_scored, check_undamaged, with_remedy};
use crate::commands::serve_only::{self, ServeOnlyArgs};
use crate::launch::{self, JobArgs, JobLaunch, SignalledWork, SimulatedBrowserArgs};
use crate::peers::{self, IdentityArgs, OutsideArgs, WorkerIdentity};
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
    #[command(flatten)]
    identity: OutsideArgs,
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
    #[command(flatten)]
    identity: IdentityArgs,
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
    #[command(flatten)]
    identity: IdentityArgs,
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
        let identity = args.identity.coordinator(&dir, &launch.job.run_name)?;
        run_dir::write_address(&dir, &local_address(listener.local_addr()?).to_string())?;
        launch::logs(&dir, Role::Coordinator, &telemetry)?;
        output::line(format!("coordinator of {} listens on {}", launch.job.run_name, listener.local_addr()?));
        let stop = launch::stop_on_signal(SignalledWork::Run)?;
        let over = CancellationToken::new();
        let name = launch::process_name("coordinator");
        let metrics = launch::metrics(&launch.job, Role::Coordinator, &name, over.clone())?;
        let job = launch.coordinator(begin == RunStart::Resume, lock, identity)?;
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
        let stop = launch::stop_on_signal(SignalledWork::Run)?;
        let run_dir = &launch.job.run_dir;
        let identity = args.identity.worker(run_dir, PeerRole::Env, args.id.as_deref(), &stop).await?;
        let Some(WorkerIdentity { name, identity }) = identity else { return Ok(()) };
        let stages = launch.environments(&args.simulated).await?;
        let config = launch.job.env.worker.clone();
        let over = CancellationToken::new();
        let metrics = launch::metrics(&launch.job, Role::Env, name.as_str(), over.clone())?;
        let acted =
            furrow_env::run(config, name, stages, peers::connector(identity), &args.coordinator, stop).await;
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
    launch::run_loading(async {
        launch::logs(&launch.job.run_dir, Role::Policy, &launch.job.telemetry)?;
        let config = launch.job.policy.clone();
        let listener = match &args.listen {
            Some(listen) => bind(listen, "--listen").await?,
            None => bind(&config.listen, "policy.listen").await?,
        };
        if args.coordinator.is_some() {
            check_advertised(listener.local_addr()?, &config)?;
        }
        output::line(format!("policy worker listens on {}", listener.local_addr()?));
        let chats = launch::chats(&config).await?;
        let stop = launch::stop_on_signal(SignalledWork::Run)?;
        if args.coordinator.is_none() && args.identity.named().is_none() {
            // No coordinator will: the worker is alone.
            peers::authority(&launch.job.run_dir, &launch.job.run_name)?;
        }
        let run_dir = &launch.job.run_dir;
        let identity = args.identity.worker(run_dir, PeerRole::Policy, args.id.as_deref(), &stop).await?;
        let Some(WorkerIdentity { name, identity }) = identity else { return Ok(()) };
        let listening = WorkerListeners { sessions: listener, chats, link: Some(identity.clone()) };
        let grace = launch.job.env.worker.drain_grace;
        let connect = peers::connector(identity);
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

/// Refuses to register under an address that leads every environment worker to itself.
fn check_advertised(listens_on: SocketAddr, config: &PolicyConfig) -> Result<(), CommandFailure> {
    if config.advertise.is_some() || !listens_on.ip().is_unspecified() {
        return Ok(());
    }
    Err(CommandFailure::Input(vec![format!(
        "policy.advertise: not set, and the worker listens on {listens_on}, which is no address to connect to; set it \
         to the host:port at which environment workers reach this machine"
    )]))
}

/// The address for clients of this machine: a wildcard is none.
fn local_address(listens_on: SocketAddr) -> SocketAddr {
    let ip = match listens_on.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listens_on.port())
}
