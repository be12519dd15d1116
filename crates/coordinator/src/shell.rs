//! Performs what the core decides: one loop owns the core; one task behind it makes the core's
//! decisions durable and then carries them out.
//!
//! ```text
//! handlers, scorers, committer ─inbox─▶ loop: decide ─decisions─▶ performer: commit, then effects
//! ```
//! Both queues are bounded. A decision that waits for the disk shares its transaction with the
//! decisions that arrive meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use furrow_telemetry::TimeSource;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::commit::{CommitHandle, TrajectoryFacts};
use crate::core::{
    CallId, CallResponse, Core, Decision, Effect, EndedTrajectory, Event, EventTime, JobOutcome, RunProgress,
};
use crate::crash;
use crate::error::CoordinatorError;
use crate::inbox::{EventSender, QueuedEvent};
use crate::ledger::{LedgerHandle, Mutation};
use crate::plan::{JobPlan, UnknownTask};
use crate::scoring::ScorerPool;

/// Leases are checked this often: a tenth of the shortest useful lease.
const TICK: Duration = Duration::from_millis(100);

/// Every fail point of this module and of the service.
pub(crate) const SERVICE_FAIL_POINTS: &[&str] = &[
    "coordinator.before_spool_step",
    "coordinator.before_ack_step",
    "coordinator.before_spool_ending",
    "coordinator.before_ack_finish",
    "coordinator.after_assign",
    "coordinator.before_score",
    "coordinator.after_score",
    "coordinator.before_commit",
    "coordinator.before_close_group",
    "coordinator.before_ack_publish",
];

/// The first unrecoverable error. Reporting it stops the coordinator.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstFailure {
    first: Arc<Mutex<Option<CoordinatorError>>>,
    pub(crate) stop: CancellationToken,
}

/// Owns the core: no other code calls it.
pub(crate) struct EventLoop {
    pub(crate) core: Core,
    pub(crate) inbox: mpsc::Receiver<QueuedEvent>,
    pub(crate) decided: mpsc::Sender<PendingDecision>,
    pub(crate) over: watch::Receiver<Option<JobOutcome>>,
    pub(crate) time: TimeSource,
    pub(crate) failure: FirstFailure,
    pub(crate) stop: CancellationToken,
    /// How long the coordinator keeps telling workers that the job is over.
    pub(crate) farewell: Duration,
}

/// The performer has ended and has reported why.
#[derive(Debug)]
pub(crate) struct PerformerEnded;

/// Callers by the call they wait for.
pub(crate) type PendingCallers = BTreeMap<CallId, oneshot::Sender<CallResponse>>;

/// A decision on its way to the disk, with its callers resolved.
#[derive(Debug)]
pub(crate) struct PendingDecision {
    commit: Vec<Mutation>,
    then: Vec<PendingEffect>,
}

#[derive(Debug)]
enum PendingEffect {
    Answer(CallResponse, oneshot::Sender<CallResponse>),
    Effect(Effect),
}

/// Makes decisions durable and carries them out, in order.
pub(crate) struct EffectPerformer {
    pub(crate) decided: mpsc::Receiver<PendingDecision>,
    pub(crate) commits_max: usize,
    pub(crate) ledger: LedgerHandle,
    pub(crate) committer: CommitHandle,
    pub(crate) scorers: ScorerPool,
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) events: EventSender,
    pub(crate) over: watch::Sender<Option<JobOutcome>>,
}

impl FirstFailure {
    /// Stops the coordinator. Only the first error counts; later ones follow from it.
    pub(crate) fn report(&self, error: CoordinatorError) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        self.stop.cancel();
    }

    /// Takes the reported error.
    pub(crate) fn take(&self) -> Option<CoordinatorError> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl EventLoop {
    /// Runs until the job is over and the workers know it. Returns how far the job came.
    pub(crate) async fn run(mut self, start: Decision) -> RunProgress {
        let mut calls = BTreeMap::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drained = false;
        let mut over_since = None;
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
                    let gone = self.drop_closed_calls(&mut calls);
                    if self.carry_out(gone, &mut calls).await.is_err() {
                        return self.core.progress();
                    }
                    Event::Tick
                }
                input = self.inbox.recv() => match input {
                    Some(QueuedEvent { event, caller }) => {
                        calls.extend(caller);
                        event
                    }
                    None => return self.core.progress(),
                },
            };
            decision = self.core.apply(event, now(&self.time));
        }
    }

    /// Performs immediate effects and passes the rest on. An error means that the performer has
    /// ended.
    pub(crate) async fn carry_out(
        &mut self,
        decision: Decision,
        calls: &mut PendingCallers,
    ) -> Result<(), PerformerEnded> {
        for effect in decision.at_once {
            match find_caller(effect, calls) {
                Some(PendingEffect::Answer(answer, caller)) => drop(caller.send(answer)),
                Some(PendingEffect::Effect(Effect::Notify(notice))) => notice.emit(),
                Some(PendingEffect::Effect(effect)) => {
                    tracing::error!(?effect, "effect must not be performed before it is durable");
                }
                None => {}
            }
        }
        if decision.commit.is_empty() && decision.then.is_empty() {
            return Ok(());
        }
        let then = decision.then.into_iter().filter_map(|effect| find_caller(effect, calls)).collect();
        self.decided.send(PendingDecision { commit: decision.commit, then }).await.map_err(|_| PerformerEnded)
    }

    /// Requests for work stay open for a long time; a caller that hung up must not be given any.
    fn drop_closed_calls(&mut self, calls: &mut PendingCallers) -> Decision {
        let is_gone =
            |(call, caller): (&CallId, &oneshot::Sender<CallResponse>)| caller.is_closed().then_some(*call);
        let gone: Vec<_> = calls.iter().filter_map(is_gone).collect();
        if gone.is_empty() {
            return Decision::default();
        }
        calls.retain(|_, caller| !caller.is_closed());
        self.core.apply(Event::HungUp { calls: gone }, now(&self.time))
    }
}

/// Pairs an answer with its caller; `None` when the caller is gone.
fn find_caller(effect: Effect, calls: &mut PendingCallers) -> Option<PendingEffect> {
    match effect {
        Effect::Reply { call, answer } => {
            calls.remove(&call).map(|caller| PendingEffect::Answer(answer, caller))
        }
        effect => Some(PendingEffect::Effect(effect)),
    }
}

impl EffectPerformer {
    /// Runs until the loop has ended and everything it decided is carried out.
    pub(crate) async fn run(mut self) -> Result<(), CoordinatorError> {
        let mut waiting = Vec::new();
        while self.decided.recv_many(&mut waiting, self.commits_max).await > 0 {
            self.carry_out(waiting.drain(..)).await?;
        }
        Ok(())
    }

    /// Makes decisions durable in one transaction and performs their effects.
    pub(crate) async fn carry_out(
        &mut self,
        waiting: impl Iterator<Item = PendingDecision>,
    ) -> Result<(), CoordinatorError> {
        let mut commit = Vec::new();
        let mut then = Vec::new();
        for decided in waiting {
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
        Ok(())
    }

    async fn perform(&mut self, deed: PendingEffect) -> Result<(), CoordinatorError> {
        match deed {
            PendingEffect::Answer(answer, caller) => self.answer(answer, caller),
            PendingEffect::Effect(Effect::Score { trajectory, draw, sample_index }) => {
                crash::point("coordinator.before_score");
                self.scorers.score(trajectory, draw, sample_index);
            }
            PendingEffect::Effect(Effect::CommitTrajectory(outgoing)) => {
                crash::point("coordinator.before_commit");
                let facts = trajectory_facts(&self.plan, *outgoing).map_err(CoordinatorError::UnknownTask)?;
                self.committer.trajectory(facts).await.map_err(CoordinatorError::Commit)?;
            }
            PendingEffect::Effect(Effect::CommitGroup { record }) => {
                self.committer.group(*record).await.map_err(CoordinatorError::Commit)?;
            }
            PendingEffect::Effect(Effect::CloseShards) => {
                self.committer.flush().await.map_err(CoordinatorError::Commit)?;
            }
            PendingEffect::Effect(Effect::Notify(notice)) => notice.emit(),
            PendingEffect::Effect(Effect::Over(over)) => drop(self.over.send_replace(Some(over))),
            PendingEffect::Effect(Effect::Reply { .. }) => {} // find_caller found no caller: it is gone
        }
        Ok(())
    }

    fn answer(&self, answer: CallResponse, caller: oneshot::Sender<CallResponse>) {
        match &answer {
            CallResponse::Leased { grants, .. } if !grants.is_empty() => {
                crash::point("coordinator.after_assign");
            }
            CallResponse::Finished => crash::point("coordinator.before_ack_finish"),
            _ => {}
        }
        if let Err(CallResponse::Leased { grants, .. }) = caller.send(answer)
            && !grants.is_empty()
        {
            let trajectories = grants.into_iter().map(|grant| grant.of.trajectory_id).collect();
            self.events.try_send(Event::Undelivered { trajectories });
        }
    }
}

/// What the shard committer needs to know about an ended trajectory.
fn trajectory_facts(plan: &JobPlan, outgoing: EndedTrajectory) -> Result<TrajectoryFacts, UnknownTask> {
    let EndedTrajectory { of, start, ended, verdict, draw } = outgoing;
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

/// The current time by the loop's clock.
pub(crate) fn now(time: &TimeSource) -> EventTime {
    let wall_micros = time.wall_micros();
    let millis = match crash::planted("bug.wall_clock_lease") {
        true => u64::try_from(wall_micros / 1000).unwrap_or(0),
        false => time.micros() / 1000,
    };
    EventTime { millis, wall_micros }
}
