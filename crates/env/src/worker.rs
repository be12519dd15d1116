//! The environment worker: leases trajectories, acts as many at once as it has slots, keeps its leases alive, drains when told.
//!
//! Two loops and a set of attempts. `lease_all` asks for work while there are free slots; `pulse` says that the worker lives, renews what
//! it holds and learns what it has lost; each attempt (`attempt.rs`) is a task of the tracker and holds one slot.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use furrow_rollout::{Assignment, EnvWorker, Id, Run};
use furrow_telemetry::{
    Drained, Draining, IdleCause, MemoryEased, MemoryShort, Role, TimeSource, WorkerAccount,
};
use furrow_wire::v1::EnvWorkerInfo;
use furrow_wire::{Connect, Refusal, refusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::{Booting, Desk, Fate, Lent, Signals, act_out};
use crate::coordinator_link::{CallError, CoordinatorLink, Leased, Registered, told};
use crate::held::Held;
use crate::policy_link::{PolicyLines, PolicyPatience};
use crate::retry::Retry;
use crate::stage::{Room, Stages};

/// Time between two looks at whether memory is free again: a small part of what a trajectory takes to end and free its own.
const MEMORY_LOOK: Duration = Duration::from_millis(250);

/// How a worker works. [`crate::EnvFile::check`] makes one from a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Trajectories at once.
    pub sessions_max: u32,
    /// How long the coordinator may hold back its answer while it has no work.
    pub lease_wait: Duration,
    /// Every other call to the coordinator is answered within this time.
    pub call_deadline: Duration,
    /// How calls to the coordinator are repeated; beyond its patience the worker gives up.
    pub coordinator_retry: Retry,
    /// One reply of the policy, and the opening of a session, come within this time.
    pub policy_deadline: Duration,
    /// How a session whose stream broke is opened again; beyond its patience the trajectory ends as `policy_fault`.
    pub policy_retry: Retry,
    /// As many replies in a row without an action end a trajectory.
    pub unparsable_max: u32,
    /// After `stop`: time for trajectories to end by themselves before they are handed back.
    pub drain_grace: Duration,
}

/// What a worker did in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Trajectories whose end the coordinator acknowledged.
    pub acknowledged: u64,
    /// Trajectories dropped without one.
    pub abandoned: u64,
    /// Of those, trajectories cut off because even handing back took too long.
    pub cut_off: u64,
}

/// Why a worker ends otherwise than by being told.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The coordinator's address is none.
    #[error("{address:?} is no address of a coordinator; use host:port")]
    Address {
        /// What was given.
        address: String,
        /// Why it is none.
        source: tonic::transport::Error,
    },
    /// The coordinator does not want this worker.
    #[error("the coordinator at {address} refused this environment worker: {why}")]
    Refused {
        /// Where it is.
        address: String,
        /// What it said.
        why: String,
    },
    /// Nobody answered for as long as patience lasts.
    #[error("no coordinator at {address} for {} s; the last problem: {last}", patience.as_secs())]
    CoordinatorGone {
        /// Where it should be.
        address: String,
        /// How long it was waited for.
        patience: Duration,
        /// What happened last.
        last: String,
    },
}

/// Works until `stop` is cancelled or the run is over, then drains. Every stage and task of it is gone when this returns.
pub async fn run(
    config: WorkerConfig,
    worker: Id<EnvWorker>,
    stages: Arc<dyn Stages>,
    connect: Arc<dyn Connect>,
    coordinator: &str,
    stop: CancellationToken,
) -> Result<Summary, WorkerError> {
    let outcome = match Worker::new(config, worker, stages.clone(), connect, coordinator) {
        Ok(worker) => worker.work(&stop).await,
        Err(error) => Err(error),
    };
    stages.close().await;
    outcome
}

struct Worker {
    config: WorkerConfig,
    coordinator: String,
    info: EnvWorkerInfo,
    desk: Arc<Desk>,
    held: Arc<Held>,
    slots: Arc<Slots>,
    attempts: TaskTracker,
    summary: Arc<Mutex<Summary>>,
    /// Trajectories whose memory is not taken yet.
    booting: Arc<AtomicU32>,
    /// Heard by all attempts.
    signals: Signals,
    /// The coordinator said that nothing more will come.
    run_over: CancellationToken,
}

impl Worker {
    fn new(
        config: WorkerConfig,
        worker: Id<EnvWorker>,
        stages: Arc<dyn Stages>,
        connect: Arc<dyn Connect>,
        coordinator: &str,
    ) -> Result<Self, WorkerError> {
        let channel = connect
            .channel(coordinator)
            .map_err(|source| WorkerError::Address { address: coordinator.to_owned(), source })?;
        let place = stages.environment(None);
        let info = EnvWorkerInfo {
            sessions_max: config.sessions_max,
            browser: place.browser,
            sandbox: place.sandbox,
        };
        let link =
            CoordinatorLink::new(channel, worker.clone(), config.call_deadline, config.coordinator_retry);
        let time = TimeSource::system();
        let desk = Desk {
            worker,
            stages,
            coordinator: link,
            lines: Arc::new(PolicyLines::new(connect)),
            patience: PolicyPatience { reply: config.policy_deadline, retry: config.policy_retry },
            unparsable_max: config.unparsable_max,
            time: time.clone(),
        };
        Ok(Self {
            slots: Arc::new(Slots::open(config.sessions_max, time)),
            config,
            coordinator: coordinator.to_owned(),
            info,
            desk: Arc::new(desk),
            held: Arc::default(),
            attempts: TaskTracker::new(),
            summary: Arc::default(),
            booting: Arc::default(),
            signals: Signals::default(),
            run_over: CancellationToken::new(),
        })
    }

    async fn work(self, stop: &CancellationToken) -> Result<Summary, WorkerError> {
        let registered = tokio::select! {
            registered = self.register() => registered?,
            () = stop.cancelled() => return Ok(Summary::default()),
        };
        self.slots.idle_because(IdleCause::NoAssignment);
        let drained = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.run_over.cancelled() => {}
                () = self.lease_all(&registered.run) => {}
            }
            self.drain().await
        };
        // The pulse beats until draining is over: what is still in hand must not lapse meanwhile.
        let outcome = tokio::select! {
            left = drained => Ok(left),
            error = self.pulse(registered.heartbeat) => Err(error),
        };
        match outcome {
            Ok(cut_off) => {
                self.desk.coordinator.leave().await;
                Ok(Summary { cut_off, ..*lock(&self.summary) })
            }
            Err(error) => {
                self.cut().await;
                Err(error)
            }
        }
    }

    async fn register(&self) -> Result<Registered, WorkerError> {
        let address = self.coordinator.clone();
        self.desk.coordinator.register(&self.info).await.map_err(|error| match error {
            CallError::Silent { patience, last } => WorkerError::CoordinatorGone { address, patience, last },
            CallError::Stale(why) | CallError::Refused(why) => WorkerError::Refused { address, why },
        })
    }

    /// Asks for work whenever a slot is free, until the run is over.
    async fn lease_all(&self, run: &Id<Run>) {
        let mut pauses = self.config.coordinator_retry.pauses();
        loop {
            let free = self.slots.free().await.min(self.memory().await);
            let status = match self.desk.coordinator.lease(free, self.config.lease_wait).await {
                Ok(leased) => {
                    pauses = self.config.coordinator_retry.pauses();
                    self.slots.idle_because(IdleCause::NoAssignment);
                    if self.take(leased, free, run) {
                        return;
                    }
                    continue;
                }
                Err(status) => status,
            };
            // A coordinator that started anew does not know this worker yet: the pulse introduces it.
            tracing::debug!(%status, "no lease");
            if refusal(&status) == Refusal::TryAgain {
                self.slots.idle_because(IdleCause::NoCoordinator);
            }
            // When patience ends it ends in the pulse, which speaks for the whole worker.
            let pause = pauses.next().unwrap_or(self.config.coordinator_retry.longest);
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until there is memory for another trajectory and says for how many there is.
    async fn memory(&self) -> u32 {
        let (began, in_hand) = (Instant::now(), self.attempts.len() as u64);
        let (mut waited, mut is_short) = (false, false);
        loop {
            let Room { stages, available_bytes, reserve_bytes } = self.desk.stages.room();
            let booting = self.booting.load(Ordering::SeqCst);
            if stages > booting {
                if waited {
                    self.slots.idle_because(IdleCause::NoAssignment);
                }
                if is_short {
                    MemoryEased { available_bytes, micros: began.elapsed().as_micros() as u64 }.emit();
                }
                return stages - booting;
            }
            if !waited {
                waited = true;
                self.slots.idle_because(IdleCause::Admission);
            }
            // While something boots it is not known yet how much is short, and no warning is due.
            if booting == 0 && !is_short {
                is_short = true;
                MemoryShort { available_bytes, reserve_bytes, in_hand }.emit();
            }
            tokio::time::sleep(MEMORY_LOOK).await;
        }
    }

    /// Starts what was leased. Returns whether the run is over.
    fn take(&self, leased: Leased, free: u32, run: &Id<Run>) -> bool {
        for assignment in leased.assignments.into_iter().take(free as usize) {
            match assignment {
                Ok(assignment) if assignment.ancestry.run_id == *run => self.start(assignment),
                Ok(assignment) => {
                    let of = assignment.ancestry.run_id;
                    tracing::warn!(%of, %run, "an assignment of another run is left to lapse");
                }
                Err(error) => tracing::warn!(%error, "an assignment that cannot be read is left to lapse"),
            }
        }
        leased.run_over
    }

    fn start(&self, assignment: Assignment) {
        let Some(slot) = self.slots.take() else { return };
        let (desk, summary) = (self.desk.clone(), self.summary.clone());
        let hold = self.held.take(&assignment, &self.signals);
        let lent = Lent {
            assignment,
            signals: hold.signals.clone(),
            policy_address: hold.policy_address.clone(),
            booting: Booting::new(&self.booting),
        };
        self.attempts.spawn(async move {
            let fate = act_out(&desk, lent).await;
            drop((hold, slot));
            let mut summary = lock(&summary);
            match fate {
                Fate::Acknowledged(_) => summary.acknowledged += 1,
                Fate::Abandoned => summary.abandoned += 1,
            }
        });
    }

    /// Beats for ever; returns why it cannot.
    async fn pulse(&self, mut heartbeat: Duration) -> WorkerError {
        let mut pauses = self.config.coordinator_retry.pauses();
        loop {
            let interval = self.interval(heartbeat);
            let pause = match self.beat().await {
                Ok(true) => {
                    pauses = self.config.coordinator_retry.pauses();
                    interval
                }
                Ok(false) => match self.register().await {
                    Ok(registered) => {
                        heartbeat = registered.heartbeat;
                        continue;
                    }
                    Err(error) => return error,
                },
                // At most one interval: a coordinator that is back gives each lease one term to be renewed in.
                Err(status) => match pauses.next() {
                    Some(pause) => pause.min(interval),
                    None => return self.gone(&status),
                },
            };
            self.slots.tick();
            tokio::time::sleep(pause).await;
        }
    }

    fn gone(&self, last: &tonic::Status) -> WorkerError {
        WorkerError::CoordinatorGone {
            address: self.coordinator.clone(),
            patience: self.config.coordinator_retry.patience,
            last: told(last),
        }
    }

    /// Says that the worker lives and renews its leases. `false`: the coordinator does not know it.
    async fn beat(&self) -> Result<bool, tonic::Status> {
        let link = &self.desk.coordinator;
        let heartbeat = link.heartbeat(self.attempts.len() as u32).await?;
        if !heartbeat.known {
            return Ok(false);
        }
        let held = self.held.all();
        if !held.is_empty() {
            let renewed = link.renew(held.clone()).await?;
            self.held.lose(&renewed.lost, &held);
            renewed.moves.iter().for_each(|to| self.held.move_policy(&to.trajectory_id, &to.policy_address));
        }
        if heartbeat.run_over {
            self.run_over.cancel();
        }
        Ok(true)
    }

    /// A lease is renewed three times in its term, so that two lost calls lose nothing.
    fn interval(&self, heartbeat: Duration) -> Duration {
        let lease = self.held.shortest_lease().map_or(heartbeat, |lease| lease / 3);
        heartbeat.min(lease).max(Duration::from_millis(10))
    }

    /// Lets the attempts end, then hands back, then cuts off. Returns how many were cut off.
    async fn drain(&self) -> u64 {
        let began = Instant::now();
        Draining { role: Role::Env, in_hand: self.attempts.len() as u64 }.emit();
        self.slots.idle_because(IdleCause::Draining);
        self.attempts.close();
        let mut left = 0;
        if timeout(self.config.drain_grace, self.attempts.wait()).await.is_err() {
            self.signals.hand_back.cancel();
            // Handing back is closing a stage and one call.
            if timeout(2 * self.config.call_deadline, self.attempts.wait()).await.is_err() {
                left = self.attempts.len() as u64;
                self.cut().await;
            }
        }
        Drained { role: Role::Env, left, micros: began.elapsed().as_micros() as u64 }.emit();
        left
    }

    /// Ends every attempt at its next await.
    async fn cut(&self) {
        self.signals.cut.cancel();
        self.attempts.close();
        self.attempts.wait().await;
    }
}

fn lock(summary: &Mutex<Summary>) -> MutexGuard<'_, Summary> {
    // Adding to a number cannot leave it half added.
    summary.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker's slots and where their time goes.
struct Slots {
    places: Arc<Semaphore>,
    account: Arc<Mutex<WorkerAccount>>,
    time: TimeSource,
}

/// One slot in use; dropping it frees it.
struct Slot {
    account: Arc<Mutex<WorkerAccount>>,
    time: TimeSource,
    _place: OwnedSemaphorePermit,
}

impl Slots {
    fn open(count: u32, time: TimeSource) -> Self {
        let account = WorkerAccount::open(count, IdleCause::NoCoordinator, time.micros());
        let places = Arc::new(Semaphore::new(count as usize));
        Self { places, account: Arc::new(Mutex::new(account)), time }
    }

    /// Waits until at least one slot is free and says how many are.
    async fn free(&self) -> u32 {
        // Nobody closes the semaphore, so waiting cannot fail.
        drop(self.places.acquire().await);
        self.places.available_permits().max(1) as u32
    }

    fn take(&self) -> Option<Slot> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        self.account().occupy(self.time.micros());
        Some(Slot { account: self.account.clone(), time: self.time.clone(), _place: place })
    }

    fn idle_because(&self, cause: IdleCause) {
        self.account().idle_because(cause, self.time.micros());
    }

    fn tick(&self) {
        self.account().tick(self.time.micros());
    }

    fn account(&self) -> MutexGuard<'_, WorkerAccount> {
        locked(&self.account)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        locked(&self.account).release(self.time.micros());
    }
}

fn locked(account: &Mutex<WorkerAccount>) -> MutexGuard<'_, WorkerAccount> {
    // It panics before it changes anything.
    account.lock().unwrap_or_else(PoisonError::into_inner)
}
