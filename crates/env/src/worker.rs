//! The environment worker: leases trajectories, runs as many at once as it has slots, keeps its
//! leases alive, and drains when it is stopped.
//!
//! It consists of two loops and a set of attempts. `lease_loop` requests work while there are free
//! slots; `heartbeat_loop` sends heartbeats, renews the leases and learns which are lost; each
//! attempt (`attempt.rs`) is a task of the tracker and uses one slot.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use furrow_rollout::{Assignment, EnvWorker, Id, Run};
use furrow_telemetry::{
    IdleCause, MemoryEased, MemoryShort, ProcessDrained, ProcessDraining, Role, TimeSource, WorkerAccount,
};
use furrow_wire::v1::EnvWorkerInfo;
use furrow_wire::{Code, Connector, PeerRole, RefusalKind, describe_status, refusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::{
    AttemptAssignment, AttemptContext, AttemptOutcome, AttemptSignals, BootingGuard, run_attempt,
};
use crate::coordinator_link::{CallError, CoordinatorLink, LeaseReply, RegistrationReply};
use crate::environment::{Capacity, EnvironmentFactory};
use crate::leases::WorkerLeases;
use crate::policy_link::{PolicyChannels, PolicyTimeouts};
use crate::retry::RetryPolicy;

/// Time between two checks of free memory: a small part of the time in which a trajectory ends and
/// frees its memory.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Time after which a coordinator that does not answer the registration is reported: the retry
/// timeout is minutes, and a mistyped address shows at once.
const SILENCE_NOTICE: Duration = Duration::from_secs(2);

/// Settings of a worker. [`crate::EnvFile::check`] creates them from a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    pub sessions_max: u32,
    /// Time for which the coordinator may delay its answer while it has no work.
    pub lease_wait: Duration,
    /// Deadline of every other call to the coordinator.
    pub call_deadline: Duration,
    /// Retries of calls to the coordinator; after their timeout the worker gives up.
    pub coordinator_retry: RetryPolicy,
    /// Deadline of one reply of the policy, and of opening a session.
    pub policy_deadline: Duration,
    /// Retries of a session whose stream broke; after their timeout the trajectory ends as
    /// `policy_fault`.
    pub policy_retry: RetryPolicy,
    /// Number of consecutive replies without an action that ends a trajectory.
    pub unparsable_max: u32,
    /// Time after `stop` for trajectories to end by themselves before their leases are returned.
    pub drain_grace: Duration,
}

/// Counters over a worker's lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerSummary {
    /// Trajectories whose end the coordinator acknowledged.
    pub acknowledged: u64,
    /// Trajectories dropped without an acknowledged end.
    pub abandoned: u64,
    /// Dropped trajectories that were aborted because even returning their leases took too long.
    pub cut_off: u64,
}

/// Why a worker ends without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The coordinator's address is invalid.
    #[error("{address:?} is not an address of a coordinator; use host:port")]
    Address {
        address: String,
        /// Why it is invalid.
        source: tonic::transport::Error,
    },
    /// The coordinator refused this worker.
    #[error("the coordinator at {address} refused this environment worker: {why}")]
    Refused {
        /// Address of the coordinator.
        address: String,
        why: String,
    },
    /// The coordinator did not answer within the retry timeout.
    #[error("no coordinator at {address} for {} s; the last problem: {last}", timeout.as_secs())]
    CoordinatorGone {
        /// Address of the coordinator.
        address: String,
        /// Duration of the retries.
        timeout: Duration,
        last: String,
    },
}

/// Runs until `stop` is cancelled or the run is over, then drains. All environments and tasks are
/// closed when this returns.
pub async fn run(
    config: WorkerConfig,
    worker: Id<EnvWorker>,
    environments: Arc<dyn EnvironmentFactory>,
    connect: Arc<dyn Connector>,
    coordinator: &str,
    stop: CancellationToken,
) -> Result<WorkerSummary, WorkerError> {
    let outcome = match WorkerLoop::new(config, worker, environments.clone(), connect, coordinator) {
        Ok(worker) => worker.run_until_drained(&stop).await,
        Err(error) => Err(error),
    };
    environments.close().await;
    outcome
}

struct WorkerLoop {
    config: WorkerConfig,
    coordinator: String,
    info: EnvWorkerInfo,
    context: Arc<AttemptContext>,
    leases: Arc<WorkerLeases>,
    slots: Arc<SlotPool>,
    attempts: TaskTracker,
    summary: Arc<Mutex<WorkerSummary>>,
    /// Trajectories whose memory is not allocated yet.
    booting: Arc<AtomicU32>,
    /// Signals that all attempts receive.
    signals: AttemptSignals,
    /// Cancelled when the coordinator reports that no more work will come.
    run_over: CancellationToken,
}

impl WorkerLoop {
    fn new(
        config: WorkerConfig,
        worker: Id<EnvWorker>,
        environments: Arc<dyn EnvironmentFactory>,
        connect: Arc<dyn Connector>,
        coordinator: &str,
    ) -> Result<Self, WorkerError> {
        let channel = connect
            .channel(PeerRole::Coordinator, coordinator)
            .map_err(|source| WorkerError::Address { address: coordinator.to_owned(), source })?;
        let fingerprint = environments.fingerprint(None);
        let info = EnvWorkerInfo {
            sessions_max: config.sessions_max,
            browser: fingerprint.browser,
            sandbox: fingerprint.sandbox,
        };
        let link =
            CoordinatorLink::new(channel, worker.clone(), config.call_deadline, config.coordinator_retry);
        let time = TimeSource::system();
        let context = AttemptContext {
            worker,
            environments,
            coordinator: link,
            channels: Arc::new(PolicyChannels::new(connect)),
            timeouts: PolicyTimeouts { reply: config.policy_deadline, retry: config.policy_retry },
            unparsable_max: config.unparsable_max,
            time: time.clone(),
            watched: AtomicBool::default(),
        };
        Ok(Self {
            slots: Arc::new(SlotPool::open(config.sessions_max, time)),
            config,
            coordinator: coordinator.to_owned(),
            info,
            context: Arc::new(context),
            leases: Arc::default(),
            attempts: TaskTracker::new(),
            summary: Arc::default(),
            booting: Arc::default(),
            signals: AttemptSignals::default(),
            run_over: CancellationToken::new(),
        })
    }

    async fn run_until_drained(self, stop: &CancellationToken) -> Result<WorkerSummary, WorkerError> {
        let registered = tokio::select! {
            registered = self.register() => registered?,
            () = stop.cancelled() => return Ok(WorkerSummary::default()),
        };
        self.slots.idle_because(IdleCause::NoAssignment);
        let drained = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.run_over.cancelled() => {}
                () = self.lease_loop(&registered.run) => {}
            }
            self.drain().await
        };
        // Heartbeats continue until draining is over: the remaining leases must not expire
        // meanwhile.
        let outcome = tokio::select! {
            left = drained => Ok(left),
            error = self.heartbeat_loop(registered.heartbeat) => Err(error),
        };
        match outcome {
            Ok(cut_off) => {
                self.context.coordinator.leave().await;
                Ok(WorkerSummary { cut_off, ..*lock(&self.summary) })
            }
            Err(error) => {
                self.abort_attempts().await;
                Err(error)
            }
        }
    }

    async fn register(&self) -> Result<RegistrationReply, WorkerError> {
        let address = self.coordinator.clone();
        let mut registering = pin!(self.context.coordinator.register(&self.info));
        let answer = match timeout(SILENCE_NOTICE, registering.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                let timeout = self.config.coordinator_retry.timeout;
                tracing::warn!(%address, "the coordinator does not answer; tried again for {timeout:?}");
                registering.await
            }
        };
        answer.map_err(|error| match error {
            CallError::Silent { timeout, last } => WorkerError::CoordinatorGone { address, timeout, last },
            CallError::Stale(why) | CallError::Refused(why) => WorkerError::Refused { address, why },
        })
    }

    /// Requests work whenever a slot is free, until the run is over.
    async fn lease_loop(&self, run: &Id<Run>) {
        let mut pauses = self.config.coordinator_retry.pauses();
        loop {
            let free = self.slots.wait_free().await.min(self.wait_for_memory().await);
            let status = match self.context.coordinator.lease(free, self.config.lease_wait).await {
                Ok(leased) => {
                    pauses = self.config.coordinator_retry.pauses();
                    self.slots.idle_because(IdleCause::NoAssignment);
                    if self.start_leased(leased, free, run) {
                        return;
                    }
                    continue;
                }
                Err(status) => status,
            };
            // A restarted coordinator does not know this worker yet: `heartbeat_loop` registers it.
            tracing::debug!(%status, "the request for leases failed");
            if refusal(&status) == RefusalKind::Retry {
                self.slots.idle_because(IdleCause::NoCoordinator);
            }
            // `heartbeat_loop` decides for the whole worker when the retry timeout has passed.
            let pause = pauses.next().unwrap_or(self.config.coordinator_retry.longest);
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until there is memory for another trajectory and returns for how many.
    async fn wait_for_memory(&self) -> u32 {
        let began = Instant::now();
        let in_hand = self.attempts.len() as u64;
        let mut waited = false;
        let mut is_short = false;
        loop {
            let Capacity { environments, available_bytes, reserve_bytes } =
                self.context.environments.capacity();
            let booting = self.booting.load(Ordering::SeqCst);
            if environments > booting {
                if waited {
                    self.slots.idle_because(IdleCause::NoAssignment);
                }
                if is_short {
                    MemoryEased { available_bytes, micros: began.elapsed().as_micros() as u64 }.emit();
                }
                return environments - booting;
            }
            if !waited {
                waited = true;
                self.slots.idle_because(IdleCause::Admission);
            }
            // While an environment boots, the missing memory is unknown and a warning would be
            // premature.
            if booting == 0 && !is_short {
                is_short = true;
                MemoryShort { available_bytes, reserve_bytes, in_hand }.emit();
            }
            tokio::time::sleep(MEMORY_POLL_INTERVAL).await;
        }
    }

    /// Starts the leased trajectories. Returns whether the run is over.
    fn start_leased(&self, leased: LeaseReply, free: u32, run: &Id<Run>) -> bool {
        for assignment in leased.assignments.into_iter().take(free as usize) {
            match assignment {
                Ok(assignment) if assignment.ancestry.run_id == *run => self.start(assignment),
                Ok(assignment) => {
                    let of = assignment.ancestry.run_id;
                    tracing::warn!(%of, %run, "an assignment of another run is left to expire");
                }
                Err(error) => tracing::warn!(%error, "an invalid assignment is left to expire"),
            }
        }
        leased.run_over
    }

    fn start(&self, assignment: Assignment) {
        let Some(slot) = self.slots.take() else { return };
        let context = self.context.clone();
        let summary = self.summary.clone();
        let hold = self.leases.insert(&assignment, &self.signals);
        let leased = AttemptAssignment {
            assignment,
            signals: hold.signals.clone(),
            policy_address: hold.policy_address.clone(),
            booting: BootingGuard::new(&self.booting),
        };
        self.attempts.spawn(async move {
            let fate = run_attempt(&context, leased).await;
            drop((hold, slot));
            let mut summary = lock(&summary);
            match fate {
                AttemptOutcome::Acknowledged(_) => summary.acknowledged += 1,
                AttemptOutcome::Abandoned => summary.abandoned += 1,
            }
        });
    }

    /// Sends heartbeats for ever; returns why it cannot.
    async fn heartbeat_loop(&self, mut heartbeat: Duration) -> WorkerError {
        let mut pauses = self.config.coordinator_retry.pauses();
        loop {
            let interval = self.heartbeat_interval(heartbeat);
            let pause = match self.send_heartbeat().await {
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
                Err(status) if status.code() == Code::Unauthenticated => return self.refused(&status),
                // The pause is one interval at most: a coordinator that is back gives each lease
                // one term to be renewed in.
                Err(status) => match pauses.next() {
                    Some(pause) => pause.min(interval),
                    None => return self.coordinator_gone(&status),
                },
            };
            self.slots.tick();
            tokio::time::sleep(pause).await;
        }
    }

    fn refused(&self, status: &tonic::Status) -> WorkerError {
        WorkerError::Refused { address: self.coordinator.clone(), why: describe_status(status) }
    }

    fn coordinator_gone(&self, last: &tonic::Status) -> WorkerError {
        WorkerError::CoordinatorGone {
            address: self.coordinator.clone(),
            timeout: self.config.coordinator_retry.timeout,
            last: describe_status(last),
        }
    }

    /// Sends a heartbeat and renews the leases. `false`: the coordinator does not know the worker.
    async fn send_heartbeat(&self) -> Result<bool, tonic::Status> {
        let link = &self.context.coordinator;
        let heartbeat = link.heartbeat(self.attempts.len() as u32).await?;
        if !heartbeat.known {
            return Ok(false);
        }
        let leases = self.leases.all();
        if !leases.is_empty() {
            let renewed = link.renew(&leases).await?;
            self.context.watched.store(renewed.watched, Ordering::Relaxed);
            self.leases.cancel_lost(&renewed.lost, &leases);
            renewed
                .moves
                .iter()
                .for_each(|to| self.leases.move_policy(&to.trajectory_id, &to.policy_address));
        }
        if heartbeat.run_over {
            self.run_over.cancel();
        }
        Ok(true)
    }

    /// A lease is renewed three times in its term, so that two lost calls do no harm.
    fn heartbeat_interval(&self, heartbeat: Duration) -> Duration {
        let lease = self.leases.shortest_lease().map_or(heartbeat, |lease| lease / 3);
        heartbeat.min(lease).max(Duration::from_millis(10))
    }

    /// Lets the attempts end, then returns their leases, then aborts them. Returns how many were
    /// aborted.
    async fn drain(&self) -> u64 {
        let began = Instant::now();
        ProcessDraining { role: Role::Env, in_hand: self.attempts.len() as u64 }.emit();
        self.slots.idle_because(IdleCause::Draining);
        self.attempts.close();
        let mut left = 0;
        if timeout(self.config.drain_grace, self.attempts.wait()).await.is_err() {
            self.signals.hand_back.cancel();
            // Returning a lease takes closing an environment and one call.
            if timeout(2 * self.config.call_deadline, self.attempts.wait()).await.is_err() {
                left = self.attempts.len() as u64;
                self.abort_attempts().await;
            }
        }
        ProcessDrained { role: Role::Env, left, micros: began.elapsed().as_micros() as u64 }.emit();
        left
    }

    /// Ends every attempt at its next await.
    async fn abort_attempts(&self) {
        self.signals.cut.cancel();
        self.attempts.close();
        self.attempts.wait().await;
    }
}

fn lock(summary: &Mutex<WorkerSummary>) -> MutexGuard<'_, WorkerSummary> {
    // A panic cannot leave a counter half updated.
    summary.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker's slots and the causes of their idle time.
struct SlotPool {
    permits: Arc<Semaphore>,
    account: Arc<Mutex<WorkerAccount>>,
    time: TimeSource,
}

/// A slot in use, which is freed when this is dropped.
struct Slot {
    account: Arc<Mutex<WorkerAccount>>,
    time: TimeSource,
    _permit: OwnedSemaphorePermit,
}

impl SlotPool {
    fn open(count: u32, time: TimeSource) -> Self {
        let account = WorkerAccount::open(count, IdleCause::NoCoordinator, time.micros());
        let permits = Arc::new(Semaphore::new(count as usize));
        Self { permits, account: Arc::new(Mutex::new(account)), time }
    }

    /// Waits until at least one slot is free and returns how many are.
    async fn wait_free(&self) -> u32 {
        // The semaphore is never closed, so that waiting cannot fail.
        drop(self.permits.acquire().await);
        self.permits.available_permits().max(1) as u32
    }

    fn take(&self) -> Option<Slot> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        self.account().occupy(self.time.micros());
        Some(Slot { account: self.account.clone(), time: self.time.clone(), _permit: permit })
    }

    fn idle_because(&self, cause: IdleCause) {
        self.account().set_idle_cause(cause, self.time.micros());
    }

    fn tick(&self) {
        self.account().tick(self.time.micros());
    }

    fn account(&self) -> MutexGuard<'_, WorkerAccount> {
        lock_account(&self.account)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock_account(&self.account).release(self.time.micros());
    }
}

fn lock_account(account: &Mutex<WorkerAccount>) -> MutexGuard<'_, WorkerAccount> {
    // A panic would occur before any change.
    account.lock().unwrap_or_else(PoisonError::into_inner)
}
