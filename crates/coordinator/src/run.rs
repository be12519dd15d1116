//! The coordinator as a service: serves workers until all is over, then winds down in order.

use std::sync::Arc;
use std::time::Duration;

use furrow_rollout::{Id, Run};
use furrow_telemetry::{RunEnded, RunStarted, TimeSource};
use furrow_wire::v1::coordinator_service_server::CoordinatorServiceServer;
use furrow_wire::{MESSAGE_BYTES_MAX, Timeouts, server, with_health_and_reflection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{interval, timeout};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;

use crate::core::{Core, Decision, Event, Over, Progress, ShardNews};
use crate::crash;
use crate::disk::{DiskGate, Room};
use crate::judge::Judge;
use crate::ledger::LedgerError;
use crate::lock::RunLock;
use crate::open::{Coordinator, CoordinatorError, Job};
use crate::publish::{PublishReport, PublishReports, Published, Recovered};
use crate::scoring::Scorers;
use crate::service::Service;
use crate::shell::{Desk, Failure, Performer, Shell, now};

/// How often the disk is looked at.
const DISK_LOOK: Duration = Duration::from_secs(1);

/// Calls in hand when the server stops have this long.
const SERVER_GRACE: Duration = Duration::from_secs(5);

/// Room for what the publisher has not looked at, beyond `limits.backlog_max`: trajectories that end while admission is paused. With
/// it the performer never waits for a shard to be written, and leases go on being renewed meanwhile.
const PUBLISH_QUEUE_SPARE: usize = 4_096;

/// How a job ended, as far as this coordinator saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// How.
    pub over: Over,
    /// How far it came, earlier coordinators of the run included.
    pub progress: Progress,
}

/// All parts of a coordinator, made and connected; nothing runs yet.
struct Office {
    run_id: Id<Run>,
    core: Core,
    start: Decision,
    inbox: mpsc::Receiver<crate::shell::Input>,
    decided: mpsc::Sender<crate::shell::Decided>,
    over: watch::Receiver<Option<Over>>,
    time: TimeSource,
    farewell: Duration,
    service: Service,
    performer: Performer,
    reports: PublishReports,
    disk: DiskGate,
    failure: Failure,
    /// Scorings and other work beside the loop.
    side_work: TaskTracker,
    /// Ends what a judge is being asked.
    judging: CancellationToken,
    lock: RunLock,
}

/// The tasks of a running coordinator, in the order they are wound down.
struct Staff {
    server: JoinHandle<()>,
    server_stop: CancellationToken,
    disk: JoinHandle<()>,
    side_work: TaskTracker,
    judging: CancellationToken,
    performer: JoinHandle<()>,
    reporter: JoinHandle<()>,
}

/// Opens a job's run directory and serves it; see [`Coordinator::serve`].
pub async fn run<I, IO, E>(
    job: Job,
    listener: I,
    stop: CancellationToken,
) -> Result<Summary, CoordinatorError>
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let opening = tokio::task::spawn_blocking(|| Coordinator::open(job));
    let opened = opening.await.map_err(|source| CoordinatorError::Panicked { part: "recovery", source })?;
    opened?.serve(listener, stop).await
}

impl Coordinator {
    /// Serves workers until every planned group is in the data set, or until `stop`: then nothing new is lent, work in hand has its
    /// grace, and what ended is published.
    pub async fn serve<I, IO, E>(
        self,
        listener: I,
        stop: CancellationToken,
    ) -> Result<Summary, CoordinatorError>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let office = Office::furnish(self)?;
        let Office { run_id, failure, over, .. } = &office;
        let (run_id, failure, over) = (run_id.clone(), failure.clone(), over.clone());
        let (shell, start, staff, lock) = office.open(listener, stop);
        let progress = shell.run(start).await;
        staff.wind_down(&failure).await;
        drop(lock); // the directory is ours until the last task has ended
        let over = over.borrow().clone();
        tell_end(&run_id, over.as_ref(), &progress);
        match (failure.take(), over) {
            (Some(error), _) => Err(error),
            (None, Some(over)) => Ok(Summary { over, progress }),
            (None, None) => Err(CoordinatorError::Ledger(LedgerError::Stopped)),
        }
    }
}

impl Office {
    fn furnish(coordinator: Coordinator) -> Result<Self, CoordinatorError> {
        let Coordinator {
            run_id,
            run_dir,
            judge,
            limits,
            disk_reserve_bytes,
            plan,
            spool,
            recovered,
            spooled,
            lock,
        } = coordinator;
        let Recovered { publisher, ledger, mut snapshot, .. } = recovered;
        let run = snapshot.run.take().ok_or(CoordinatorError::Ledger(LedgerError::Stopped))?;
        RunStarted { run_id: &run_id, resumed: run.epoch > 1 }.emit();

        let (time, failure, side_work) = (TimeSource::system(), Failure::default(), TaskTracker::new());
        let mut rules = limits.rules.clone();
        rules.fencing = !crash::planted("bug.no_fencing");
        let fit = MESSAGE_BYTES_MAX / plan.assignment_bytes_max();
        rules.leases_per_call_max = rules.leases_per_call_max.min(fit.max(1) as u32);
        let lease_wait = Duration::from_millis(rules.lease_wait_millis);
        let queue = rules.backlog_max + PUBLISH_QUEUE_SPARE;
        let (core, start) = Core::start(rules, plan.clone(), (run, snapshot), &spooled, now(&time));

        let (desk, inbox) = Desk::new(limits.calls_max);
        let (decided, decisions) = mpsc::channel(limits.commits_max);
        let (over_told, over) = watch::channel(None);
        let (publisher, reports) = publisher.start(queue).map_err(CoordinatorError::Thread)?;
        let judging = CancellationToken::new();
        let scorers = Scorers {
            plan: plan.clone(),
            spool: spool.clone(),
            judge: judge.map(|config| Judge::new(config, judging.clone())),
            desk: desk.clone(),
            tracker: side_work.clone(),
            places: Arc::new(Semaphore::new(limits.scorers_max)),
            deadline: limits.score_deadline,
        };
        let service = Service {
            desk: desk.clone(),
            spool,
            plan: plan.clone(),
            failure: failure.clone(),
            deadline: limits.call_deadline,
            lease_wait,
        };
        let commits_max = limits.commits_max;
        let performer = Performer {
            decided: decisions,
            commits_max,
            ledger,
            publisher,
            scorers,
            plan,
            desk,
            over: over_told,
        };
        let (farewell, disk) = (limits.farewell, DiskGate::new(run_dir, disk_reserve_bytes));
        Ok(Self {
            run_id,
            core,
            start,
            inbox,
            decided,
            over,
            time,
            farewell,
            service,
            performer,
            reports,
            disk,
            failure,
            side_work,
            judging,
            lock,
        })
    }

    /// Starts everything but the loop.
    fn open<I, IO, E>(self, listener: I, stop: CancellationToken) -> (Shell, Decision, Staff, RunLock)
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let (failure, desk, server_stop) =
            (self.failure, self.service.desk.clone(), CancellationToken::new());
        let staff = Staff {
            server: tokio::spawn(answer(self.service, listener, server_stop.clone(), failure.clone())),
            server_stop,
            disk: tokio::spawn(watch_disk(self.disk, desk.clone())),
            side_work: self.side_work,
            judging: self.judging,
            performer: tokio::spawn(perform(self.performer, failure.clone())),
            reporter: tokio::spawn(report(self.reports, desk, failure.clone())),
        };
        let Self { core, inbox, decided, over, time, farewell, .. } = self;
        let shell = Shell { core, inbox, decided, over, time, failure, stop, farewell };
        (shell, self.start, staff, self.lock)
    }
}

impl Staff {
    /// First no more calls, then what they began, then what was decided, then what is published of it.
    async fn wind_down(self, failure: &Failure) {
        self.server_stop.cancel();
        let abort = self.server.abort_handle();
        if timeout(SERVER_GRACE, self.server).await.is_err() {
            abort.abort();
        }
        self.disk.abort();
        // What is not judged yet is judged when the run is resumed.
        self.judging.cancel();
        self.side_work.close();
        self.side_work.wait().await;
        note_panic("performer", self.performer.await, failure);
        note_panic("reporter", self.reporter.await, failure);
    }
}

fn note_panic(part: &'static str, ended: Result<(), JoinError>, failure: &Failure) {
    if let Err(source) = ended {
        failure.report(CoordinatorError::Panicked { part, source });
    }
}

/// Serves calls until told to stop.
async fn answer<I, IO, E>(service: Service, listener: I, stop: CancellationToken, failure: Failure)
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let (coordinator, registration) = service.servers();
    let router = with_health_and_reflection::<CoordinatorServiceServer<Service>>(server(Timeouts::default()));
    let served = match router.await {
        Ok(router) => {
            let router = router.add_service(coordinator).add_service(registration);
            router.serve_with_incoming_shutdown(listener, stop.cancelled()).await.map_err(Into::into)
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = served {
        failure.report(CoordinatorError::Serve(error));
    }
}

async fn perform(performer: Performer, failure: Failure) {
    if let Err(error) = performer.run().await {
        failure.report(error);
    }
}

/// Tells the core what is published, until the publisher ends.
async fn report(mut reports: PublishReports, desk: Desk, failure: Failure) {
    while let Some(news) = reports.next().await {
        match news {
            // A loop that has ended learns of it from the ledger when it is resumed.
            PublishReport::Published(published) => drop(desk.tell(event_of(published)).await),
            PublishReport::Unreadable { trajectory, steps, why } => {
                drop(desk.tell(Event::RecordLost { trajectory, steps, why }).await);
            }
            PublishReport::Failed(error) => failure.report(CoordinatorError::Publish(error)),
        }
    }
}

fn event_of(published: Published) -> Event {
    let Published { shard_id, manifest_version, trajectories, groups, files, .. } = published;
    let bytes = files.iter().map(|file| file.bytes).sum();
    Event::Published { shard: ShardNews { shard_id, version: manifest_version, bytes }, trajectories, groups }
}

/// Tells the core when there is less room than the reserve, and when there is enough again.
async fn watch_disk(mut gate: DiskGate, desk: Desk) {
    let mut looks = interval(DISK_LOOK);
    let mut told = None;
    loop {
        looks.tick().await;
        let low = match gate.look() {
            Ok(Room::Enough { .. }) => None,
            Ok(Room::BelowReserve { resume_bytes, .. }) => Some(format!(
                "the run directory's disk is down to its reserve; free it to {resume_bytes} bytes"
            )),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the disk cannot be looked at");
                continue;
            }
        };
        if told.as_ref() != Some(&low) {
            told = Some(low.clone());
            if desk.tell(Event::Disk { low }).await.is_err() {
                return;
            }
        }
    }
}

fn tell_end(run_id: &Id<Run>, over: Option<&Over>, progress: &Progress) {
    let failed = progress.failed.values().sum();
    RunEnded { run_id, complete: over == Some(&Over::Complete), scored: progress.scored, failed }.emit();
}
