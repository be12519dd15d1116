//! Performs what the core decides: one loop owns the core, one task behind it makes its decisions durable and then carries them out.
//!
//! ```text
//! handlers, scorers, publisher ─inbox─▶ loop: apply ─decisions─▶ performer: commit, then reply, score, publish
//! ```
//! Both queues are bounded. A decision that waits for the disk shares its transaction with those that come meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use furrow_telemetry::TimeSource;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::core::{Answer, Call, Core, Decision, Effect, Event, Now, Outgoing, Over, Progress};
use crate::crash;
use crate::ledger::{LedgerHandle, Mutation};
use crate::open::CoordinatorError;
use crate::plan::{JobPlan, UnknownTask};
use crate::publish::{PublishHandle, TrajectoryFacts};
use crate::scoring::Scorers;

/// Leases are looked at this often: a tenth of the shortest one that makes sense.
const TICK: Duration = Duration::from_millis(100);

/// Every place of this module and of the service where a test can kill the process.
pub const SERVICE_FAIL_POINTS: &[&str] = &[
    "coordinator.before_spool_step",
    "coordinator.before_ack_step",
    "coordinator.before_spool_ending",
    "coordinator.before_ack_finish",
    "coordinator.after_assign",
    "coordinator.before_score",
    "coordinator.after_score",
    "coordinator.before_publish",
    "coordinator.before_close_group",
    "coordinator.before_ack_publish",
];

/// Where events are handed in. Clones hand in at the same place.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    inbox: mpsc::Sender<Input>,
    calls: Arc<AtomicU64>,
}

/// An event, and who waits for its answer.
#[derive(Debug)]
pub(crate) struct Input {
    event: Event,
    caller: Option<(Call, oneshot::Sender<Answer>)>,
}

/// The first thing that went wrong for good; whoever finds it stops the coordinator.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure {
    first: Arc<Mutex<Option<CoordinatorError>>>,
    pub(crate) stop: CancellationToken,
}

/// Owns the core: no other code calls it.
pub(crate) struct Shell {
    pub(crate) core: Core,
    pub(crate) inbox: mpsc::Receiver<Input>,
    pub(crate) decided: mpsc::Sender<Decided>,
    pub(crate) over: watch::Receiver<Option<Over>>,
    pub(crate) time: TimeSource,
    pub(crate) failure: Failure,
    /// Asks for draining.
    pub(crate) stop: CancellationToken,
    /// How long the end is announced to workers.
    pub(crate) farewell: Duration,
}

/// The performer has ended and has said why.
struct Ended;

/// Who waits for which answer.
type Callers = BTreeMap<Call, oneshot::Sender<Answer>>;

/// A decision on its way to the disk, its callers found.
#[derive(Debug)]
pub(crate) struct Decided {
    commit: Vec<Mutation>,
    then: Vec<Deed>,
}

#[derive(Debug)]
enum Deed {
    Answer(Answer, oneshot::Sender<Answer>),
    Effect(Effect),
}

/// Makes decisions durable and carries them out, in their order.
pub(crate) struct Performer {
    pub(crate) decided: mpsc::Receiver<Decided>,
    pub(crate) commits_max: usize,
    pub(crate) ledger: LedgerHandle,
    pub(crate) publisher: PublishHandle,
    pub(crate) scorers: Scorers,
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) desk: Desk,
    pub(crate) over: watch::Sender<Option<Over>>,
}

impl Desk {
    /// A desk, and where its events come out.
    pub fn new(calls_max: usize) -> (Self, mpsc::Receiver<Input>) {
        let (inbox, events) = mpsc::channel(calls_max);
        (Self { inbox, calls: Arc::default() }, events)
    }

    /// Hands in an event and waits for its answer. The caller sets the deadline.
    pub async fn ask(&self, event: impl FnOnce(Call) -> Event) -> Result<Answer, Status> {
        let call = Call(self.calls.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        self.hand_in(Input { event: event(call), caller: Some((call, answer)) }).await?;
        answered.await.map_err(|_| gone())
    }

    /// Hands in an event nobody waits for.
    pub async fn tell(&self, event: Event) -> Result<(), Status> {
        self.hand_in(Input { event, caller: None }).await
    }

    /// The same from where nothing may wait: when the desk is full, the event is lost.
    fn mention(&self, event: Event) {
        if self.inbox.try_send(Input { event, caller: None }).is_err() {
            tracing::debug!("the desk is full: undelivered assignments lapse instead of being taken back");
        }
    }

    async fn hand_in(&self, input: Input) -> Result<(), Status> {
        self.inbox.send(input).await.map_err(|_| gone())
    }
}

fn gone() -> Status {
    Status::unavailable("the coordinator is stopping")
}

impl Failure {
    /// Stops the coordinator. Only the first failure counts; what follows from it is noise.
    pub fn report(&self, error: CoordinatorError) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        self.stop.cancel();
    }

    /// What was reported.
    pub fn take(&self) -> Option<CoordinatorError> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Shell {
    /// Runs until all is over and the workers have heard of it. Returns how far the job came.
    pub async fn run(mut self, start: Decision) -> Progress {
        let mut calls = BTreeMap::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut drained, mut over_since) = (false, None);
        let mut decision = start;
        loop {
            if self.carry_out(decision, &mut calls).await.is_err() {
                return self.core.progress();
            }
            if self.over.borrow().is_some() {
                let since = *over_since.get_or_insert_with(Instant::now);
                if self.core.is_alone() || since.elapsed() >= self.farewell {
                    return self.core.progress();
                }
            }
            let event = tokio::select! {
                biased;
                () = self.failure.stop.cancelled() => return self.core.progress(),
                () = self.stop.cancelled(), if !drained => {
                    drained = true;
                    Event::Drain { call: None }
                }
                _ = ticks.tick() => {
                    let gone = self.forget_the_gone(&mut calls);
                    if self.carry_out(gone, &mut calls).await.is_err() {
                        return self.core.progress();
                    }
                    Event::Tick
                }
                input = self.inbox.recv() => match input {
                    Some(Input { event, caller }) => {
                        calls.extend(caller);
                        event
                    }
                    None => return self.core.progress(),
                },
            };
            decision = self.core.apply(event, now(&self.time));
        }
    }

    /// Does what may be done at once and hands the rest on; an error says that the performer has ended.
    async fn carry_out(&mut self, decision: Decision, calls: &mut Callers) -> Result<(), Ended> {
        for effect in decision.at_once {
            match find_caller(effect, calls) {
                Some(Deed::Answer(answer, caller)) => drop(caller.send(answer)),
                Some(Deed::Effect(Effect::Tell(notice))) => notice.emit(),
                Some(Deed::Effect(effect)) => {
                    tracing::error!(?effect, "must not be done before it is durable");
                }
                None => {}
            }
        }
        if decision.commit.is_empty() && decision.then.is_empty() {
            return Ok(());
        }
        let then = decision.then.into_iter().filter_map(|effect| find_caller(effect, calls)).collect();
        self.decided.send(Decided { commit: decision.commit, then }).await.map_err(|_| Ended)
    }

    /// Requests for work are held open for long; whoever hung up must not be given any.
    fn forget_the_gone(&mut self, calls: &mut Callers) -> Decision {
        let is_gone = |(call, caller): (&Call, &oneshot::Sender<Answer>)| caller.is_closed().then_some(*call);
        let gone: Vec<_> = calls.iter().filter_map(is_gone).collect();
        if gone.is_empty() {
            return Decision::default();
        }
        calls.retain(|_, caller| !caller.is_closed());
        self.core.apply(Event::HungUp { calls: gone }, now(&self.time))
    }
}

/// Puts an answer and whoever waits for it together; `None` when nobody does any more.
fn find_caller(effect: Effect, calls: &mut Callers) -> Option<Deed> {
    match effect {
        Effect::Reply { call, answer } => calls.remove(&call).map(|caller| Deed::Answer(answer, caller)),
        effect => Some(Deed::Effect(effect)),
    }
}

impl Performer {
    /// Runs until the loop has ended and all it decided is carried out.
    pub async fn run(mut self) -> Result<(), CoordinatorError> {
        let mut waiting = Vec::new();
        while self.decided.recv_many(&mut waiting, self.commits_max).await > 0 {
            let (mut commit, mut then) = (Vec::new(), Vec::new());
            for decided in waiting.drain(..) {
                commit.extend(decided.commit);
                then.extend(decided.then);
            }
            if commit.iter().any(|mutation| matches!(mutation, Mutation::GroupClosed { .. })) {
                crash::point("coordinator.before_close_group");
            }
            if !commit.is_empty() {
                self.ledger.commit(commit).await.map_err(CoordinatorError::Ledger)?;
            }
            for deed in then {
                self.perform(deed).await?;
            }
        }
        Ok(())
    }

    async fn perform(&mut self, deed: Deed) -> Result<(), CoordinatorError> {
        match deed {
            Deed::Answer(answer, caller) => self.answer(answer, caller),
            Deed::Effect(Effect::Score { trajectory, draw, sample_index }) => {
                crash::point("coordinator.before_score");
                self.scorers.score(trajectory, draw, sample_index);
            }
            Deed::Effect(Effect::Publish(outgoing)) => {
                crash::point("coordinator.before_publish");
                let facts = facts(&self.plan, *outgoing).map_err(CoordinatorError::UnknownTask)?;
                self.publisher.trajectory(facts).await.map_err(CoordinatorError::Publish)?;
            }
            Deed::Effect(Effect::PublishGroup { record }) => {
                self.publisher.group(*record).await.map_err(CoordinatorError::Publish)?;
            }
            Deed::Effect(Effect::CloseShards) => {
                self.publisher.flush().await.map_err(CoordinatorError::Publish)?;
            }
            Deed::Effect(Effect::Tell(notice)) => notice.emit(),
            Deed::Effect(Effect::Over(over)) => drop(self.over.send_replace(Some(over))),
            Deed::Effect(Effect::Reply { .. }) => {} // its caller was looked for and is gone
        }
        Ok(())
    }

    fn answer(&self, answer: Answer, caller: oneshot::Sender<Answer>) {
        match &answer {
            Answer::Leased { grants, .. } if !grants.is_empty() => crash::point("coordinator.after_assign"),
            Answer::Finished => crash::point("coordinator.before_ack_finish"),
            _ => {}
        }
        if let Err(Answer::Leased { grants, .. }) = caller.send(answer)
            && !grants.is_empty()
        {
            let trajectories = grants.into_iter().map(|grant| grant.of.trajectory_id).collect();
            self.desk.mention(Event::Undelivered { trajectories });
        }
    }
}

/// What the publisher needs to know of an ended trajectory.
fn facts(plan: &JobPlan, outgoing: Outgoing) -> Result<TrajectoryFacts, UnknownTask> {
    let Outgoing { of, start, ended, verdict, draw } = outgoing;
    let cost_usd = verdict.as_ref().and_then(|verdict| furrow_tasks::judge_cost_usd(&verdict.score));
    Ok(TrajectoryFacts {
        task: plan.task(&draw, of.sample_index)?,
        ancestry: of,
        task_json: draw.task_json.clone(),
        policy_kind: start.policy.kind,
        hashes: start.policy.hashes,
        session: plan.session().clone(),
        group_size: draw.group_size,
        token: start.token,
        env_worker: start.env_worker.to_string(),
        queue_micros: start.queue_micros,
        started_at_micros: start.at_micros,
        ended,
        verdict,
        cost_usd,
    })
}

/// The moment by the shell's clock.
pub(crate) fn now(time: &TimeSource) -> Now {
    Now { millis: time.micros() / 1000, wall_micros: time.wall_micros() }
}
