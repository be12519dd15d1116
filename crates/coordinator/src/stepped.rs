//! For simulations: a coordinator whose parts move one at a time, when their driver says so.
//!
//! All parts are those of a served run: core, service, ledger, spool, scorers and committer, on
//! their own threads. But the driver waits for each before it moves the next one, so at any time
//! one of them works, and the same calls in the same order do the same operations on the disk.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use furrow_rollout::{Id, Trajectory};
use furrow_telemetry::TimeSource;
use furrow_wire::v1::coordinator_service_server::CoordinatorService;
use furrow_wire::v1::registration_service_server::RegistrationService;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::commit::{ShardCommitter, SteppedCommitter};
use crate::core::{Decision, Event, JobOutcome, RunProgress};
use crate::error::CoordinatorError;
use crate::inbox::QueuedEvent;
use crate::lease_secret::SecretSource;
use crate::lock::RunLock;
use crate::open::{Coordinator, CoordinatorJob};
use crate::run::{CoordinatorParts, SharedDamage, event_of, lock_damage};
use crate::service::CoordinatorServer;
use crate::shell::{EffectPerformer, EventLoop, FirstFailure, PendingCallers, now};

/// A coordinator that moves when it is told to. Dropping it is a kill, as far as a process can kill
/// its own parts: what was not asked for does not happen.
pub struct SteppedCoordinator {
    events: EventLoop,
    callers: PendingCallers,
    performer: EffectPerformer,
    committer: SteppedCommitter,
    service: CoordinatorServer,
    scorings: TaskTracker,
    failure: FirstFailure,
    damage: SharedDamage,
    runtime: Arc<Runtime>,
    _lock: RunLock,
}

/// A call of a worker that may wait for its answer.
pub struct PendingCall<T> {
    call: Pin<Box<dyn Future<Output = T> + Send>>,
    woken: Arc<WakeFlag>,
}

/// Remembers that a waker was called, and wakes the driver.
struct WakeFlag {
    is_set: AtomicBool,
    driver: Thread,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::Release);
        self.driver.unpark();
    }
}

impl WakeFlag {
    fn new() -> Arc<Self> {
        Arc::new(Self { is_set: AtomicBool::new(true), driver: std::thread::current() })
    }

    fn take(&self) -> bool {
        self.is_set.swap(false, Ordering::AcqRel)
    }
}

impl<T> PendingCall<T> {
    pub fn new(call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { call: Box::pin(call), woken: WakeFlag::new() }
    }

    /// Whether its answer may be there.
    pub fn is_woken(&self) -> bool {
        self.woken.is_set.load(Ordering::Acquire)
    }
}

impl SteppedCoordinator {
    /// A runtime for any number of coordinators, one after another.
    pub fn runtime() -> io::Result<Arc<Runtime>> {
        Builder::new_current_thread().enable_time().build().map(Arc::new)
    }

    /// Opens a run directory as a start does. `time` is the clock of this coordinator.
    pub fn open(
        mut job: CoordinatorJob,
        time: TimeSource,
        runtime: &Arc<Runtime>,
    ) -> Result<Self, CoordinatorError> {
        job.limits.ledger.full_retry = Duration::ZERO;
        let coordinator = Coordinator::open(job)?;
        // The same calls to the same start get the same secrets; another start gives others.
        let secrets = SecretSource::seeded(coordinator.epoch());
        let parts = CoordinatorParts::assemble(coordinator, time, secrets, ShardCommitter::start_stepped)?;
        let CoordinatorParts { core, start, inbox, decided, over, time, service, performer, .. } = parts;
        let CoordinatorParts { reports: committer, failure, damage, side_work, lock, .. } = parts;
        let stop = CancellationToken::new();
        let farewell = Duration::ZERO;
        let events = EventLoop { core, inbox, decided, over, time, failure: failure.clone(), stop, farewell };
        let mut opened = Self {
            events,
            callers: PendingCallers::new(),
            performer,
            committer,
            service,
            scorings: side_work,
            failure,
            damage,
            runtime: Arc::clone(runtime),
            _lock: lock,
        };
        opened.follow(start);
        Ok(opened)
    }

    /// The service that workers call. Its calls move only by [`poll`](Self::poll).
    pub fn service(&self) -> impl CoordinatorService + RegistrationService + Clone {
        self.service.clone()
    }

    /// Moves a call as far as it comes: to the core, from there to the spool and through it.
    pub fn poll<T>(&mut self, pending: &mut PendingCall<T>) -> Poll<T> {
        let runtime = Arc::clone(&self.runtime);
        let _context = runtime.enter();
        if !pending.woken.take() {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&pending.woken));
        loop {
            let polled = pending.call.as_mut().poll(&mut Context::from_waker(&waker));
            let has_sent = self.pump();
            if polled.is_ready() || has_sent {
                return polled;
            }
            // It asked the spool, which always answers.
            while !pending.woken.take() {
                std::thread::park();
            }
        }
    }

    /// Lets the core look at the time.
    pub fn tick(&mut self) {
        self.decide(Event::Tick);
    }

    /// Asks for the end of the job, as a signal does.
    pub fn drain(&mut self) {
        self.decide(Event::Drain { call: None });
    }

    /// Makes everything decided durable in one transaction, and carries it out.
    ///
    /// # Errors
    /// What ends a coordinator.
    pub fn make_durable(&mut self) -> Result<(), CoordinatorError> {
        let runtime = Arc::clone(&self.runtime);
        let _context = runtime.enter();
        let mut waiting = Vec::new();
        while let Ok(decided) = self.performer.decided.try_recv() {
            waiting.push(decided);
        }
        wait(self.performer.carry_out(waiting.into_iter()))?;
        self.pump();
        self.check()
    }

    /// Whether decisions wait to be made durable.
    pub fn is_undurable(&self) -> bool {
        !self.performer.decided.is_empty()
    }

    /// Runs the scorings that were asked for, to their end.
    pub fn score(&mut self) {
        self.scorings.close();
        self.runtime.block_on(self.scorings.wait());
        self.scorings.reopen();
        // Their threads may overtake each other.
        let mut verdicts = Vec::new();
        while let Ok(QueuedEvent { event, .. }) = self.events.inbox.try_recv() {
            verdicts.push(event);
        }
        verdicts.sort_by_key(|event| match event {
            Event::Scored { trajectory, .. } => Some(trajectory.clone()),
            _ => None,
        });
        verdicts.into_iter().for_each(|event| self.decide(repeatable(event)));
    }

    /// Commits what ended as one shard, then merges small files.
    ///
    /// # Errors
    /// What ends a coordinator.
    pub fn commit_shards(&mut self) -> Result<(), CoordinatorError> {
        for report in self.committer.commit_all() {
            if let Some(event) = event_of(report, &self.failure, &self.damage) {
                self.decide(event);
            }
        }
        self.check()
    }

    /// How the job ended, once that is durable.
    pub fn over(&self) -> Option<JobOutcome> {
        self.events.over.borrow().clone()
    }

    pub fn progress(&self) -> RunProgress {
        self.events.core.progress()
    }

    /// Acknowledged trajectories whose record this coordinator found unreadable.
    pub fn records_lost(&self) -> Vec<Id<Trajectory>> {
        lock_damage(&self.damage).records_lost.clone()
    }

    /// Fails once any part failed so that a coordinator ends.
    ///
    /// # Errors
    /// What ends a coordinator.
    pub fn check(&self) -> Result<(), CoordinatorError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Gives the core what was sent to it. Returns whether there was something.
    fn pump(&mut self) -> bool {
        let mut has_events = false;
        while let Ok(QueuedEvent { event, caller }) = self.events.inbox.try_recv() {
            has_events = true;
            self.callers.extend(caller);
            self.decide(repeatable(event));
        }
        has_events
    }

    fn decide(&mut self, event: Event) {
        let at = now(&self.events.time);
        let decision = self.events.core.apply(event, at);
        self.follow(decision);
    }

    fn follow(&mut self, decision: Decision) {
        let carried_out = wait(self.events.carry_out(decision, &mut self.callers));
        carried_out.expect("the performer lives as long as this does");
    }
}

/// How long a scorer took is the only measured time that is stored.
fn repeatable(event: Event) -> Event {
    match event {
        Event::Scored { trajectory, verdict: Ok(verdict) } => {
            Event::Scored { trajectory, verdict: Ok(crate::ledger::TimedScore { micros: 1, ..verdict }) }
        }
        event => event,
    }
}

/// Waits for other threads.
fn wait<T>(work: impl Future<Output = T>) -> T {
    let woken = WakeFlag::new();
    let waker = Waker::from(Arc::clone(&woken));
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        while !woken.take() {
            std::thread::park();
        }
    }
}
