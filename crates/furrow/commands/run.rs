//! `furrow run`: runs every role in one process over loopback gRPC, the same code path as a
//! cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use furrow_coordinator::ledger::LedgerError;
use furrow_coordinator::{CoordinatorError, RunLock, RunSummary, progress_message};
use furrow_env::EnvironmentFactory;
use furrow_policy::{ChatEndpoint, WorkerListeners};
use furrow_telemetry::Role;
use furrow_wire::v1::ProgressRequest;
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::{Connector, PeerRole, with_deadline};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::budget::{self, LocalRoles};
use crate::commands::view;
use crate::job::Job;
use crate::launch::{self, JobArgs, JobLaunch, SignalledWork, SimulatedBrowserArgs};
use crate::peers;
use crate::preflight::{self, PreflightScope};
use crate::progress::{self, ProgressDisplay};
use crate::run_dir::{self, RunStart};
use crate::{CommandFailure, output};

/// The job and how the run begins.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    begin: BeginArgs,
    #[command(flatten)]
    simulated: SimulatedBrowserArgs,
    /// Print JSON lines: one object per change, the result last
    #[arg(long)]
    json: bool,
}

/// How a run begins in its directory.
#[derive(Debug, Args)]
pub(crate) struct BeginArgs {
    /// Continue where an earlier start of this job stopped, whatever stopped it
    #[arg(long, conflicts_with = "clean")]
    resume: bool,
    /// Remove what an earlier run left in the run directory and start over
    #[arg(long)]
    clean: bool,
}

/// How often progress is requested.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

impl BeginArgs {
    /// The same choice, as the run directory takes it.
    pub(crate) fn begin(&self) -> RunStart {
        match (self.resume, self.clean) {
            (true, _) => RunStart::Resume,
            (_, true) => RunStart::Clean,
            _ => RunStart::Fresh,
        }
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<(), CommandFailure> {
    let begin = args.begin.begin();
    let launch = JobLaunch::read_to_begin(&args.job, begin)?.with_key()?.with_policy_key()?;
    if !args.simulated.is_on() {
        let mut found = preflight::run(&launch, PreflightScope::start())?;
        if begin == RunStart::Resume {
            // A run that goes on commits what it has and finishes what it can, whatever is wrong
            // with one of its pages or with the disk.
            found.warnings.append(&mut found.problems);
        } else {
            found.problems.extend(found.low_disk.take());
        }
        found.conclude()?;
    }
    budget::check(&launch, LocalRoles::All)?;
    let dir = launch.job.run_dir.clone();
    launch::run_loading(async {
        // Open browsers and the address of chats first: if they fail, no half-made run directory is
        // left.
        let stages = launch.environments(&args.simulated).await?;
        if begin == RunStart::Resume {
            launch.check_same_job()?;
        }
        let chats = launch::chats(&launch.job.policy).await?;
        let prepared = run_dir::prepare(&dir, begin, &launch.job.resolved).and_then(|lock| {
            launch::logs(&dir, Role::Run, &launch.job.telemetry)?;
            Ok(lock)
        });
        let outcome = match prepared {
            Ok(lock) => farm(launch, stages.clone(), chats, begin, lock, args.json).await,
            Err(failure) => Err(failure),
        };
        stages.close().await;
        conclude(&outcome?, &dir, args.json)
    })
}

async fn farm(
    launch: JobLaunch,
    stages: Arc<dyn EnvironmentFactory>,
    chats: Option<ChatEndpoint>,
    begin: RunStart,
    lock: RunLock,
    as_json: bool,
) -> Result<RunSummary, CommandFailure> {
    let stop = launch::stop_on_signal(SignalledWork::Run)?;
    let over = CancellationToken::new();
    let coordinator = TcpListener::bind("127.0.0.1:0").await?;
    let policy = TcpListener::bind("127.0.0.1:0").await?;
    let address = coordinator.local_addr()?.to_string();
    run_dir::write_address(&launch.job.run_dir, &address)?;
    // Metrics and spans are sent until every service has reported its last.
    let silent = CancellationToken::new();
    let metrics = launch::metrics(&launch.job, Role::Run, &launch::process_name("run"), silent.clone())?;
    let looking = serve_dashboard(&launch.job, over.clone()).await?;
    let run_dir = launch.job.run_dir.clone();
    let authority = peers::authority(&run_dir, &launch.job.run_name)?;
    let coordinator_identity = peers::issue(&authority, PeerRole::Coordinator, "coordinator")?;
    let policy_identity = peers::issue(&authority, PeerRole::Policy, "policy-0")?;
    let env_identity = peers::issue(&authority, PeerRole::Env, "env-0")?;
    let observer = peers::connector(peers::issue(&authority, PeerRole::Observer, "run")?);
    let env_config = launch.job.env.worker.clone();
    let policy_config = launch.job.policy.clone();
    let grace = env_config.drain_grace;
    let job = launch.coordinator(begin == RunStart::Resume, lock, coordinator_identity)?;

    let policy_stop = CancellationToken::new();
    let coordinating = furrow_coordinator::run(job, furrow_wire::accept(coordinator), stop.clone());
    let listening = WorkerListeners { sessions: policy, chats, link: Some(policy_identity.clone()) };
    let policing = furrow_policy::run(
        policy_config,
        launch::worker_name(Some("policy-0"), "policy")?,
        listening,
        peers::connector(policy_identity),
        Some(address.clone()),
        grace,
        policy_stop.clone(),
    );
    let policing = async {
        let policed = policing.await;
        if policed.is_err() {
            // No other policy worker will register: without one the coordinator would wait for
            // ever.
            stop.cancel();
        }
        policed
    };
    let name = launch::worker_name(Some("env-0"), "env")?;
    let acting = async {
        let acted =
            furrow_env::run(env_config, name, stages, peers::connector(env_identity), &address, stop.clone())
                .await;
        // Sessions end before the policy they use; without browsers nothing is left to coordinate.
        policy_stop.cancel();
        stop.cancel();
        acted
    };
    let coordinated = async {
        let summary = coordinating.await;
        over.cancel();
        stop.cancel();
        summary
    };
    let (summary, acted, policed, watched) =
        tokio::join!(coordinated, acting, policing, watch(&*observer, &address, over.clone(), as_json));
    silent.cancel();
    metrics.await?;
    if let Some(looking) = looking {
        looking.await?;
    }
    let summary = summary.map_err(|error| with_remedy(error, &run_dir))?;
    acted?;
    policed?;
    watched?;
    Ok(summary)
}

/// Serves the dashboard until the run is over, if the job enables it.
async fn serve_dashboard(
    job: &Job,
    over: CancellationToken,
) -> Result<Option<JoinHandle<()>>, CommandFailure> {
    if job.dashboard.listen.is_none() {
        return Ok(None);
    }
    let subject = view::subject(&job.run_dir, job.dashboard.usd_per_device_hour);
    // Several runs of one machine: the first takes the configured port, the others free ones.
    let dashboard = view::open(&job.dashboard, true, subject).await?;
    Ok(Some(tokio::spawn(dashboard.serve(over))))
}

/// Shows progress until the run is over.
async fn watch(
    connect: &dyn Connector,
    address: &str,
    over: CancellationToken,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let mut client = CoordinatorServiceClient::new(connect.channel(PeerRole::Coordinator, address)?);
    let mut progress_view = ProgressDisplay::new(as_json);
    while over.run_until_cancelled(tokio::time::sleep(PROGRESS_INTERVAL)).await.is_some() {
        // A coordinator that opens or closes does not answer; the next poll reports.
        if let Ok(now) = with_deadline(PROGRESS_INTERVAL, client.progress(ProgressRequest {})).await {
            progress_view.update(now.get_ref())?;
        }
    }
    progress_view.finish();
    Ok(())
}

fn conclude(summary: &RunSummary, dir: &Path, as_json: bool) -> Result<(), CommandFailure> {
    use furrow_coordinator::core::JobOutcome;
    let now = &summary.progress;
    let failed: u64 = now.failed.values().sum();
    if as_json {
        // Not the last progress that was received: a short run ends before anyone asks.
        let last = progress_message(now.clone());
        let mut figures = progress::with_rate(&progress::progress_json(&last), &last);
        figures["run_dir"] = dir.display().to_string().into();
        output::json_line(&figures)?;
    } else {
        let mean = match now.scored {
            0 => "–".to_owned(),
            scored => format!("{:.2}", now.reward_sum / scored as f64),
        };
        output::line(format!(
            "{} trajectories scored, mean reward {mean}, {} solved their task; {failed} attempts failed by a fault of the farm",
            now.scored, now.successes
        ));
        output::line(format!("data set: {}", dir.join("data").display()));
    }
    match &summary.over {
        JobOutcome::Complete => check_any_scored(summary, dir).and_then(|()| check_undamaged(summary, dir)),
        JobOutcome::Drained { .. } => {
            output::error_line(&format!(
                "stopped before the end: continue with `furrow run … --resume` ({})",
                dir.display()
            ));
            check_undamaged(summary, dir)
        }
        JobOutcome::TooManyFailures { detail } => Err(anyhow::anyhow!(
            "the run stopped because the farm failed too often: {detail}; see {}",
            dir.join("logs").display()
        )
        .into()),
    }
}

/// Adds what helps where the run directory itself is at fault.
pub(crate) fn with_remedy(error: CoordinatorError, dir: &Path) -> CommandFailure {
    let is_of_directory = matches!(
        error,
        CoordinatorError::Ledger(LedgerError::Foreign { .. } | LedgerError::Refused { .. })
            | CoordinatorError::Spool(_)
            | CoordinatorError::Commit(_)
    );
    let error = anyhow::Error::from(error);
    if !is_of_directory {
        return error.into();
    }
    let dir = dir.display();
    anyhow::anyhow!(
        "{}; `furrow doctor --run {dir}` says what is wrong there; to bring back a backup, move {dir} away and \
         `furrow restore BACKUP {dir}`",
        crate::chain(&error)
    )
    .into()
}

/// Fails a run that found damage in its directory: it went on without what was damaged.
pub(crate) fn check_undamaged(summary: &RunSummary, dir: &Path) -> Result<(), CommandFailure> {
    match summary.damage.describe() {
        None => Ok(()),
        Some(damage) => Err(anyhow::anyhow!(
            "{damage}; the run went on without them, see `furrow doctor --run {}`",
            dir.display()
        )
        .into()),
    }
}

/// Fails a run that ends without any reward, so that the shell does not go on: every attempt at
/// every task failed.
pub(crate) fn check_any_scored(summary: &RunSummary, dir: &Path) -> Result<(), CommandFailure> {
    let now = &summary.progress;
    let failed: u64 = now.failed.values().sum();
    if now.scored > 0 || failed == 0 {
        return Ok(());
    }
    let mut ends: Vec<String> =
        now.failed.iter().map(|(end, count)| format!("{count} {}", end.as_str())).collect();
    ends.sort();
    Err(anyhow::anyhow!(
        "nothing was scored: all {failed} attempts failed ({}); the reasons are in {}",
        ends.join(", "),
        dir.join("logs").display()
    )
    .into())
}
