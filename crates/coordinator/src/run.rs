//! Runs the coordinator as a service: serves workers until the job is over, then shuts down in
//! order.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use furrow_identity::Authority;
use furrow_records::WrittenFile;
use furrow_rollout::{Id, Run, Trajectory};
use furrow_telemetry::{RunEnded, RunStarted, TimeSource};
use furrow_wire::v1::coordinator_service_server::CoordinatorServiceServer;
use furrow_wire::{
    Identity, LinkTimeouts, MESSAGE_BYTES_MAX, Revocations, authorized_server, serve,
    with_health_and_reflection,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{interval, timeout};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;

use crate::commit::{CommitHandle, CommitReport, CommitReports, RecoveredRun, ShardCommit, ShardCommitter};
use crate::core::{Core, CoreRules, Decision, Event, JobOutcome, RunProgress, ShardSummary, SpoolProgress};
use crate::crash;
use crate::disk::{DiskCapacity, DiskGate};
use crate::error::CoordinatorError;
use crate::inbox::{EventSender, QueuedEvent};
use crate::judge::JudgeClient;
use crate::lease_secret::SecretSource;
use crate::ledger::{LedgerError, LedgerSnapshot};
use crate::lock::RunLock;
use crate::open::{Coordinator, CoordinatorJob};
use crate::plan::JobPlan;
use crate::scoring::ScorerPool;
use crate::service::CoordinatorServer;
use crate::shell::{EffectPerformer, EventLoop, FirstFailure, PendingDecision, now};

/// How often free disk space is measured.
const DISK_LOOK: Duration = Duration::from_secs(1);

/// How often the revoked identities are read: a revoked peer is refused within two seconds, and a
/// policy worker learns of it with its next heartbeat.
const REVOCATIONS_LOOK: Duration = Duration::from_secs(1);

/// Names of damaged things in one sentence.
const DAMAGE_NAMED_MAX: usize = 20;

/// Grace period for open calls when the server stops.
const SERVER_GRACE: Duration = Duration::from_secs(5);

/// Queue space of the shard committer beyond `limits.backlog_max`, for trajectories that end while
/// admission is paused. With it the performer never waits for a shard to be written, and leases are
/// renewed meanwhile.
const COMMIT_QUEUE_SPARE: usize = 4_096;

/// How a job ended, from this coordinator's view.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    pub over: JobOutcome,
    /// How far it came, including earlier coordinators of the run.
    pub progress: RunProgress,
    /// What this coordinator found damaged.
    pub damage: RunDamage,
}

/// Damage that a coordinator found in its run directory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunDamage {
    /// Acknowledged trajectories whose record could not be read; they ended as `record_lost`.
    pub records_lost: Vec<Id<Trajectory>>,
    /// Files of the data set that are missing or have another length.
    pub files_missing: Vec<WrittenFile>,
}

impl RunDamage {
    /// What was found, with the first names; `None` without damage.
    pub fn describe(&self) -> Option<String> {
        let records = self.records_lost.iter().map(ToString::to_string).collect();
        let rows: u64 = self.files_missing.iter().map(|file| file.rows).sum();
        let files = self.files_missing.iter().map(|file| file.path.clone()).collect();
        let parts = [
            (self.records_lost.len(), "acknowledged trajectories lost their record".to_owned(), records),
            (
                self.files_missing.len(),
                format!("files of the data set with {rows} rows are missing or cut"),
                files,
            ),
        ];
        let present = parts.into_iter().filter(|(count, ..)| *count > 0);
        let texts: Vec<String> =
            present.map(|(count, what, names)| describe_named(count, &what, names)).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

fn describe_named(count: usize, what: &str, mut names: Vec<String>) -> String {
    names.truncate(DAMAGE_NAMED_MAX);
    let more = if count > names.len() { ", …" } else { "" };
    format!("{count} {what} ({}{more})", names.join(", "))
}

/// The damage found so far.
pub(crate) type SharedDamage = Arc<Mutex<RunDamage>>;

pub(crate) fn lock_damage(damage: &SharedDamage) -> MutexGuard<'_, RunDamage> {
    damage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All parts of a coordinator, created and connected; nothing runs yet.
pub(crate) struct CoordinatorParts<R = CommitReports> {
    run_id: Id<Run>,
    pub(crate) core: Core,
    pub(crate) start: Decision,
    pub(crate) inbox: mpsc::Receiver<QueuedEvent>,
    pub(crate) decided: mpsc::Sender<PendingDecision>,
    pub(crate) over: watch::Receiver<Option<JobOutcome>>,
    pub(crate) time: TimeSource,
    farewell: Duration,
    pub(crate) service: CoordinatorServer,
    pub(crate) performer: EffectPerformer,
    pub(crate) reports: R,
    disk: DiskGate,
    pub(crate) failure: FirstFailure,
    pub(crate) damage: SharedDamage,
    /// Scorings and other tasks beside the loop.
    pub(crate) side_work: TaskTracker,
    /// Cancels running calls to a judge.
    judging: CancellationToken,
    pub(crate) lock: RunLock,
    link: Option<Identity>,
    /// The folder with the run's authority.
    identity_dir: PathBuf,
}

/// The tasks of a running coordinator, in the order they are shut down.
struct CoordinatorTasks {
    server: JoinHandle<()>,
    server_stop: CancellationToken,
    disk: JoinHandle<()>,
    revoking: JoinHandle<()>,
    side_work: TaskTracker,
    judging: CancellationToken,
    performer: JoinHandle<()>,
    reporter: JoinHandle<()>,
}

/// Opens a job's run directory and serves it; see [`Coordinator::serve`].
pub async fn run<I, IO, E>(
    job: CoordinatorJob,
    listener: I,
    stop: CancellationToken,
) -> Result<RunSummary, CoordinatorError>
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let opening = tokio::task::spawn_blocking(|| Coordinator::open(job));
    let opened = opening.await.map_err(|source| CoordinatorError::Panicked { part: "recovery", source })?;
    opened?.serve(listener, stop, TimeSource::system()).await
}

impl Coordinator {
    /// Serves workers until every planned group is in the data set, or until `stop`: then it leases
    /// nothing new, running trajectories get their grace period, and everything that ended is
    /// committed. `time` is the machine's, or that of a simulation.
    pub async fn serve<I, IO, E>(
        self,
        listener: I,
        stop: CancellationToken,
        time: TimeSource,
    ) -> Result<RunSummary, CoordinatorError>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let secrets = match crash::planted("bug.seeded_secrets") {
            true => SecretSource::seeded(self.epoch()),
            false => SecretSource::System,
        };
        let parts = CoordinatorParts::assemble(self, time, secrets, ShardCommitter::start)?;
        let CoordinatorParts { run_id, failure, over, .. } = &parts;
        let run_id = run_id.clone();
        let failure = failure.clone();
        let over = over.clone();
        let damage = Arc::clone(&parts.damage);
        let (shell, start, tasks, lock) = parts.open(listener, stop);
        let progress = shell.run(start).await;
        tasks.wind_down(&failure).await;
        drop(lock); // held until the last task has ended
        let over = over.borrow().clone();
        report_end(&run_id, over.as_ref(), &progress);
        match (failure.take(), over) {
            (Some(error), _) => Err(error),
            (None, Some(over)) => Ok(RunSummary { over, progress, damage: lock_damage(&damage).clone() }),
            (None, None) => Err(CoordinatorError::Ledger(LedgerError::Stopped)),
        }
    }
}

impl<R> CoordinatorParts<R> {
    /// Creates and connects the parts. `start_committer` starts the shard committer with a queue of
    /// this length.
    pub(crate) fn assemble(
        coordinator: Coordinator,
        time: TimeSource,
        secrets: SecretSource,
        start_committer: impl FnOnce(ShardCommitter, usize) -> io::Result<(CommitHandle, R)>,
    ) -> Result<Self, CoordinatorError> {
        let Coordinator { run_id, judge, limits, disk, plan, spool, recovered, spooled, lock, .. } =
            coordinator;
        let RecoveredRun { committer, ledger, snapshot, lost, gone, .. } = recovered;
        let failure = FirstFailure::default();
        let side_work = TaskTracker::new();
        let (core, start) = start_core((&run_id, &limits.rules), &plan, snapshot, &spooled, secrets, &time)?;

        let (events, inbox) = EventSender::new(limits.calls_max);
        let (decided, decisions) = mpsc::channel(limits.commits_max);
        let (over_sender, over) = watch::channel(None);
        let started = start_committer(committer, limits.rules.backlog_max + COMMIT_QUEUE_SPARE);
        let (committer, reports) = started.map_err(CoordinatorError::Thread)?;
        let judging = CancellationToken::new();
        let scorers = ScorerPool {
            plan: plan.clone(),
            spool: spool.clone(),
            judge: judge.map(|config| JudgeClient::new(config, judging.clone())),
            events: events.clone(),
            tracker: side_work.clone(),
            permits: Arc::new(Semaphore::new(limits.scorers_max)),
            deadline: limits.score_deadline,
        };
        let service = CoordinatorServer {
            events: events.clone(),
            spool,
            plan: plan.clone(),
            failure: failure.clone(),
            deadline: limits.call_deadline,
            lease_wait: Duration::from_millis(limits.rules.lease_wait_millis),
            first: Arc::default(),
            weight_roots: coordinator.weight_roots,
            revocations: Revocations::default(),
        };
        let performer = EffectPerformer {
            decided: decisions,
            commits_max: limits.commits_max,
            ledger,
            committer,
            scorers,
            plan,
            events,
            over: over_sender,
        };
        Ok(Self {
            run_id,
            core,
            start,
            inbox,
            decided,
            over,
            time,
            farewell: limits.farewell,
            service,
            performer,
            reports,
            disk,
            failure,
            damage: Arc::new(Mutex::new(RunDamage { records_lost: lost, files_missing: gone })),
            side_work,
            judging,
            lock,
            link: coordinator.link,
            identity_dir: coordinator.identity_dir,
        })
    }
}

impl CoordinatorParts {
    /// Starts everything but the loop.
    fn open<I, IO, E>(
        self,
        listener: I,
        stop: CancellationToken,
    ) -> (EventLoop, Decision, CoordinatorTasks, RunLock)
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let failure = self.failure;
        let events = self.service.events.clone();
        let server_stop = CancellationToken::new();
        let revocations = self.service.revocations.clone();
        let tasks = CoordinatorTasks {
            revoking: tokio::spawn(watch_revocations(self.identity_dir, revocations, events.clone())),
            server: tokio::spawn(answer(
                self.service,
                self.link,
                listener,
                server_stop.clone(),
                failure.clone(),
            )),
            server_stop,
            disk: tokio::spawn(watch_disk(self.disk, events.clone())),
            side_work: self.side_work,
            judging: self.judging,
            performer: tokio::spawn(perform(self.performer, failure.clone())),
            reporter: tokio::spawn(report(self.reports, events, failure.clone(), self.damage)),
        };
        let Self { core, inbox, decided, over, time, farewell, .. } = self;
        let shell = EventLoop { core, inbox, decided, over, time, failure, stop, farewell };
        (shell, self.start, tasks, self.lock)
    }
}

/// The core as recovery left the run, and its first decision.
fn start_core(
    (run_id, rules): (&Id<Run>, &CoreRules),
    plan: &Arc<JobPlan>,
    mut snapshot: LedgerSnapshot,
    spooled: &BTreeMap<Id<Trajectory>, SpoolProgress>,
    secrets: SecretSource,
    time: &TimeSource,
) -> Result<(Core, Decision), CoordinatorError> {
    let run = snapshot.run.take().ok_or(CoordinatorError::Ledger(LedgerError::Stopped))?;
    RunStarted { run_id, resumed: run.epoch > 1 }.emit();
    let mut rules = rules.clone();
    rules.fencing = !crash::planted("bug.no_fencing");
    let fit = MESSAGE_BYTES_MAX.saturating_sub(plan.file_bytes_max()) / plan.assignment_bytes_max();
    rules.leases_per_call_max = rules.leases_per_call_max.min(fit.max(1) as u32);
    Ok(Core::start(rules, plan.clone(), (run, snapshot), spooled, secrets, now(time)))
}

impl CoordinatorTasks {
    /// Stops calls first, then what they started, then pending decisions, then the shard committer.
    async fn wind_down(self, failure: &FirstFailure) {
        self.server_stop.cancel();
        let abort = self.server.abort_handle();
        if timeout(SERVER_GRACE, self.server).await.is_err() {
            abort.abort();
        }
        self.disk.abort();
        self.revoking.abort();
        // Trajectories without a verdict are scored when the run is resumed.
        self.judging.cancel();
        self.side_work.close();
        self.side_work.wait().await;
        report_panic("performer", self.performer.await, failure);
        report_panic("reporter", self.reporter.await, failure);
    }
}

fn report_panic(part: &'static str, ended: Result<(), JoinError>, failure: &FirstFailure) {
    if let Err(source) = ended {
        failure.report(CoordinatorError::Panicked { part, source });
    }
}

/// Serves calls until cancelled.
async fn answer<I, IO, E>(
    service: CoordinatorServer,
    link: Option<Identity>,
    listener: I,
    stop: CancellationToken,
    failure: FirstFailure,
) where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let revocations = service.revocations.clone();
    let (coordinator, registration) = service.servers();
    let served = async {
        let server = authorized_server(LinkTimeouts::default(), link.as_ref(), &revocations);
        let router =
            with_health_and_reflection::<CoordinatorServiceServer<CoordinatorServer>>(server).await?;
        let router = router.add_service(coordinator).add_service(registration);
        Ok(serve(router, listener, link, stop.cancelled()).await?)
    };
    if let Err(error) = served.await {
        failure.report(CoordinatorError::Serve(error));
    }
}

async fn perform(performer: EffectPerformer, failure: FirstFailure) {
    if let Err(error) = performer.run().await {
        failure.report(error);
    }
}

/// Reports committed shards to the core, until the committer ends.
async fn report(
    mut reports: CommitReports,
    events: EventSender,
    failure: FirstFailure,
    damage: SharedDamage,
) {
    while let Some(news) = reports.next().await {
        if let Some(event) = event_of(news, &failure, &damage) {
            // A loop that has ended learns of it from the ledger on resume.
            drop(events.send(event).await);
        }
    }
}

/// What the core learns from a report of the committer.
pub(crate) fn event_of(report: CommitReport, failure: &FirstFailure, damage: &SharedDamage) -> Option<Event> {
    match report {
        CommitReport::Committed(committed) => Some(committed_event(committed)),
        CommitReport::Unreadable { trajectory, steps, why } => {
            lock_damage(damage).records_lost.push(trajectory.clone());
            Some(Event::RecordLost { trajectory, steps, why })
        }
        CommitReport::Failed(error) => {
            failure.report(CoordinatorError::Commit(error));
            None
        }
    }
}

fn committed_event(committed: ShardCommit) -> Event {
    let ShardCommit { shard_id, manifest_version, trajectories, groups, files, .. } = committed;
    let bytes = files.iter().map(|file| file.bytes).sum();
    Event::ShardCommitted {
        shard: ShardSummary { shard_id, version: manifest_version, bytes },
        trajectories,
        groups,
    }
}

/// Tells the core when free space falls below the reserve, and when it is enough again.
/// Reads the revoked peers of the run again and again, refuses their calls, and takes their leases
/// away.
async fn watch_revocations(dir: PathBuf, revocations: Revocations, events: EventSender) {
    let mut looks = interval(REVOCATIONS_LOOK);
    let mut failed = false;
    loop {
        looks.tick().await;
        let folder = dir.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || Authority::revoked(&folder)).await else { return };
        match read {
            Ok(peers) => {
                failed = false;
                for peer in revocations.replace(peers) {
                    tracing::warn!(%peer, "an identity was revoked; its calls are refused from now on");
                    if events.send(Event::Revoked { peer }).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the revoked identities cannot be read; those that were read before stay refused"
                    );
                }
            }
        }
    }
}

async fn watch_disk(mut gate: DiskGate, events: EventSender) {
    let mut looks = interval(DISK_LOOK);
    let mut reported = None;
    loop {
        looks.tick().await;
        let low = match gate.measure() {
            Ok(DiskCapacity::Enough { .. }) => None,
            Ok(DiskCapacity::BelowReserve { resume_bytes, .. }) => Some(gate.describe_low(resume_bytes)),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot measure the free disk space"
                );
                continue;
            }
        };
        if reported.as_ref() != Some(&low) {
            reported = Some(low.clone());
            if events.send(Event::Disk { low }).await.is_err() {
                return;
            }
        }
    }
}

fn report_end(run_id: &Id<Run>, over: Option<&JobOutcome>, progress: &RunProgress) {
    let failed = progress.failed.values().sum();
    RunEnded { run_id, complete: over == Some(&JobOutcome::Complete), scored: progress.scored, failed }
        .emit();
}
