//! One trajectory, from its assignment to its acknowledged end.
//!
//! `run_steps` is the main sequence: start the task, then observe → ask the policy → act → settle →
//! probe → record, step by step, until something ends it. `run` applies the worker's signals and
//! the time limit; `close` gathers the evidence and reports the end.

mod recorder;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use furrow_rollout::{
    Action, ActionHint, Assignment, DownloadReport, EndKind, EnvWorker, Evidence, Id, Observation, Outcome,
    OutcomeName, PolicyReply, Task, TimeCause, TimeSplit, TrajectoryEnding,
};
use furrow_telemetry::{
    PageCrashed, PageHung, SessionAccount, TimeSource, TrajectoryAbandoned, TrajectoryAcknowledged,
    TrajectoryStarted,
};
use furrow_wire::{OpaqueStep, SCREENSHOT_BYTES_MAX, SessionOpening, encode_ending};
use futures::FutureExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::coordinator_link::{CallError, CoordinatorLink};
use crate::crash;
use crate::environment::{Environment, EnvironmentError, EnvironmentFactory};
use crate::first_look::{beside, show_first};
use crate::hosts::{AllowList, BadEntry};
use crate::policy_link::{PolicyChannels, PolicyError, PolicyLink, PolicyTimeouts, PolicyTurn};
use crate::secrets::refused_address;
use crate::time_limit::{TimeLimit, TimeOver, until};
use recorder::StepRecorder;

/// State that all attempts of a worker share.
pub(crate) struct AttemptContext {
    pub worker: Id<EnvWorker>,
    pub environments: Arc<dyn EnvironmentFactory>,
    pub coordinator: CoordinatorLink,
    pub channels: Arc<PolicyChannels>,
    pub timeouts: PolicyTimeouts,
    /// Number of consecutive replies without an action that ends a trajectory.
    pub unparsable_max: u32,
    pub time: TimeSource,
    /// Whether observers look at running trajectories, as the last renewal said.
    pub watched: AtomicBool,
}

/// A trajectory as the worker passes it to an attempt.
pub(crate) struct AttemptAssignment {
    pub assignment: Assignment,
    pub signals: AttemptSignals,
    /// Current address of its policy worker.
    pub policy_address: watch::Receiver<String>,
    /// Present until the page is loaded.
    pub booting: BootingGuard,
}

/// Counts a trajectory whose page is not loaded yet and whose memory therefore still counts as
/// free. Dropped when the page is loaded.
#[derive(Debug)]
pub(crate) struct BootingGuard(Arc<AtomicU32>);

impl BootingGuard {
    pub(crate) fn new(all: &Arc<AtomicU32>) -> Self {
        all.fetch_add(1, Ordering::SeqCst);
        Self(all.clone())
    }
}

impl Drop for BootingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Signals from the worker to an attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttemptSignals {
    /// Another worker has the lease: drop the trajectory without a report.
    pub lost: CancellationToken,
    /// End the trajectory now and report it as cancelled.
    pub hand_back: CancellationToken,
    /// Stop at once: no time is left even for a report.
    pub cut: CancellationToken,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// The coordinator acknowledged this end.
    Acknowledged(EndKind),
    /// The trajectory was dropped; another worker retries its slot.
    Abandoned,
}

/// Runs an attempt. When this returns, its environment is closed and no task of it is left.
pub(crate) async fn run_attempt(context: &AttemptContext, leased: AttemptAssignment) -> AttemptOutcome {
    let signals = leased.signals.clone();
    let mut attempt = Attempt::new(context, leased);
    let closed = tokio::select! {
        biased;
        () = signals.cut.cancelled() => Err("the worker is stopping".to_owned()),
        closed = attempt.run(&signals) => closed,
    };
    attempt.into_outcome(closed)
}

/// A trajectory in progress.
struct Attempt<'a> {
    context: &'a AttemptContext,
    assignment: Assignment,
    policy_address: watch::Receiver<String>,
    booting: Option<BootingGuard>,
    limit: TimeLimit,
    account: SessionAccount,
    /// Sum of all time marks taken so far.
    total_time: TimeSplit,
    environment: Option<Box<dyn Environment>>,
    link: Option<PolicyLink>,
    goal: String,
    last_outcome: Option<Outcome>,
    /// Consecutive replies without an action.
    unparsable: u32,
    recorder: StepRecorder,
}

/// How a trajectory is closed.
#[derive(Debug)]
enum CloseAction {
    End(Box<AttemptEnd>),
    /// Drop the trajectory without a report.
    Abandon(String),
}

#[derive(Debug)]
struct AttemptEnd {
    end: EndKind,
    reason: String,
    answer: Option<String>,
    /// The probe's report that the task is done.
    probe_json: Option<String>,
    /// Outcome of the last action, if that action was not a step.
    last_outcome: Option<Outcome>,
}

/// Why an attempt cannot continue.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("its list of hosts cannot be used: {0}")]
    Hosts(#[from] BadEntry),
    #[error(transparent)]
    TimeOver(#[from] TimeOver),
    #[error("{0}")]
    Failed(String),
}

impl<'a> Attempt<'a> {
    fn new(context: &'a AttemptContext, leased: AttemptAssignment) -> Self {
        let limit = Duration::from_millis(leased.assignment.task.time_limit_millis);
        let recorder =
            StepRecorder::new(context.coordinator.clone(), &leased.assignment, leased.signals.lost);
        Self {
            context,
            assignment: leased.assignment,
            policy_address: leased.policy_address,
            booting: Some(leased.booting),
            limit: TimeLimit::start(limit),
            account: SessionAccount::open(TimeCause::Boot, context.time.micros()),
            total_time: TimeSplit::default(),
            environment: None,
            link: None,
            goal: String::new(),
            last_outcome: None,
            unparsable: 0,
            recorder,
        }
    }

    /// Runs from the start to the acknowledged end; the error says why nothing was reported.
    async fn run(&mut self, signals: &AttemptSignals) -> Result<EndKind, String> {
        // A half-open environment cannot be closed, so nothing interrupts this call; it has its own
        // deadlines.
        let closing = match self.context.environments.open(&self.assignment).await {
            Err(error) => self.close_for_error(error.into()),
            Ok(environment) => {
                self.environment = Some(environment);
                tokio::select! {
                    biased;
                    () = signals.lost.cancelled() => CloseAction::Abandon("its lease is lost".into()),
                    () = signals.hand_back.cancelled() => CloseAction::cancelled("the worker is stopping and returns the lease".into()),
                    closing = self.run_guarded() => closing,
                }
            }
        };
        self.close(closing).await
    }

    async fn run_guarded(&mut self) -> CloseAction {
        // A panic ends only this attempt: its environment is closed and its end reported like any
        // other.
        let played = AssertUnwindSafe(self.run_steps()).catch_unwind().await;
        match played.unwrap_or_else(|_| Err(AttemptError::Failed("the attempt panicked; see the log".into())))
        {
            Ok(ended) => CloseAction::End(Box::new(ended)),
            Err(stop) => self.close_for_error(stop),
        }
    }

    async fn run_steps(&mut self) -> Result<AttemptEnd, AttemptError> {
        let allow = AllowList::new(&self.task().start_url, &self.task().allow_hosts)?;
        until(self.limit.deadline(), self.begin()).await??;
        // The booting time belongs to the trajectory, not to its first step.
        let now = self.context.time.micros();
        self.account.enter(TimeCause::Observe, now);
        self.total_time.merge(&self.account.mark(now));
        for step in 0..self.task().max_steps {
            if let Some(ended) = self.step(step, &allow).await? {
                return Ok(ended);
            }
        }
        Ok(AttemptEnd::new(EndKind::MaxSteps))
    }

    /// Starts the task in its page and opens the policy session.
    async fn begin(&mut self) -> Result<(), AttemptError> {
        let of = self.assignment.ancestry.clone();
        let token = self.assignment.token;
        let browser = self.environment()?.browser().to_owned();
        TrajectoryStarted { of: &of, token, worker: self.context.worker.as_str(), browser: &browser }.emit();
        let pages_goal = self.environment()?.begin().await?;
        self.booting = None;
        let goal = self.task().goal.clone().or(pages_goal);
        let goal =
            goal.ok_or_else(|| AttemptError::Failed("neither the task nor its page has a goal".into()))?;
        self.goal = cut(&goal, GOAL_CHARS_MAX);
        let opening = SessionOpening {
            ancestry: of,
            token,
            session: self.assignment.session.clone(),
            goal: self.goal.clone(),
            past_steps: 0,
        };
        let lines = self.context.channels.clone();
        let address = self.policy_address.clone();
        self.link = Some(PolicyLink::open(lines, opening, address, self.context.timeouts).await?);
        Ok(())
    }

    /// Runs one step. `Some` ends the trajectory.
    async fn step(&mut self, step: u32, allow: &AllowList) -> Result<Option<AttemptEnd>, AttemptError> {
        self.enter(TimeCause::Observe);
        let observed_at_micros = self.context.time.wall_micros();
        let (observation, hint) = until(self.limit.deadline(), self.observe(step)).await??;
        let is_wanted = step == 0 && self.context.watched.load(Ordering::Relaxed);
        let shown = show_first(is_wanted, &self.context.coordinator, &self.assignment, &observation);
        let sent = Instant::now();
        let turn = beside(self.ask_policy(step, &observation, hint), shown).await?;
        self.limit.exclude(sent.elapsed());
        if turn.context_full {
            return Ok(Some(AttemptEnd::new(EndKind::ContextFull)));
        }
        let (outcome, ended) = self.execute_in_time(&turn.reply, allow).await?;
        self.last_outcome = Some(outcome.clone());
        let record = OpaqueStep {
            step,
            observation,
            reply: turn.reply,
            outcome,
            trace: turn.trace,
            timing: TimeSplit::default(),
            observed_at_micros,
        };
        self.record(record).await?;
        Ok(ended)
    }

    /// What the policy gets: the observation, and the demonstration's action if it follows one.
    async fn observe(&mut self, step: u32) -> Result<(Observation, Option<ActionHint>), AttemptError> {
        let observation = self.environment()?.observe().await?;
        let goal = self.goal.clone();
        let hint = match self.link()?.wants_hints() {
            true => self.environment()?.hint(&goal, step).await?,
            false => None,
        };
        Ok((observation, hint))
    }

    async fn ask_policy(
        &mut self,
        step: u32,
        observation: &Observation,
        hint: Option<ActionHint>,
    ) -> Result<PolicyTurn, AttemptError> {
        self.enter(TimeCause::Policy);
        let last_outcome = self.last_outcome.clone();
        Ok(self.link()?.ask(step, observation, last_outcome.as_ref(), hint.as_ref()).await?)
    }

    /// Executes a reply until the time is over. If that is the policy's doing, the step is recorded
    /// like any other: it is what a trainer must see.
    async fn execute_in_time(
        &mut self,
        reply: &PolicyReply,
        allow: &AllowList,
    ) -> Result<(Outcome, Option<AttemptEnd>), AttemptError> {
        let acted = Instant::now();
        let done = until(self.limit.deadline(), self.execute_reply(reply, allow)).await;
        self.limit.add_action(acted.elapsed());
        let over = match done {
            Ok(done) => return done,
            Err(over) => over,
        };
        let (end, reason) = self.limit.end();
        if end != EndKind::MaxTime {
            return Err(over.into());
        }
        let outcome =
            Outcome::with_detail(OutcomeName::NotSettled, "the time limit passed during the action");
        Ok((outcome, Some(AttemptEnd { reason, ..AttemptEnd::new(end) })))
    }

    async fn execute_reply(
        &mut self,
        reply: &PolicyReply,
        allow: &AllowList,
    ) -> Result<(Outcome, Option<AttemptEnd>), AttemptError> {
        let action = match &reply.action {
            Ok(action) => action,
            Err(why) => return self.handle_unparsable(why).await,
        };
        self.unparsable = 0;
        if let Some(why) = refused_address(action, &self.assignment.secrets) {
            return self.execute_action(Err(&why)).await;
        }
        let off_list = |part: &Action| part.address().and_then(|url| allow.check_url(url).err());
        if let Some(off) = action.parts().iter().find_map(off_list) {
            let detail = format!("{:?} is not among the addresses of this task", off.host);
            let ended = AttemptEnd { reason: detail.clone(), ..AttemptEnd::new(EndKind::OffListNavigation) };
            return Ok((Outcome::with_detail(OutcomeName::OffList, detail), Some(ended)));
        }
        match action.parts() {
            [before @ .., Action::Answer { content }] => self.execute_answer(before, content).await,
            _ => self.execute_action(Ok(action)).await,
        }
    }

    /// An answer ends the trajectory, unless an action before it in the same reply had another
    /// outcome than `ok`: then the answer was premature.
    async fn execute_answer(
        &mut self,
        before: &[Action],
        content: &str,
    ) -> Result<(Outcome, Option<AttemptEnd>), AttemptError> {
        if let Ok(before) = Action::of_several(before.to_vec()) {
            let (outcome, ended) = self.execute_action(Ok(&before)).await?;
            if ended.is_some() || outcome.name != OutcomeName::Ok {
                return Ok((outcome, ended));
            }
        }
        let ended = AttemptEnd { answer: Some(content.to_owned()), ..AttemptEnd::new(EndKind::Answered) };
        Ok((Outcome::named(OutcomeName::Answered), Some(ended)))
    }

    /// The page still gets the time of a step: under virtual time its timers and pictures wait for
    /// it.
    async fn handle_unparsable(&mut self, why: &str) -> Result<(Outcome, Option<AttemptEnd>), AttemptError> {
        self.unparsable += 1;
        let reason = format!("{} replies in a row contained no action", self.unparsable);
        let unparsable = (self.unparsable >= self.context.unparsable_max)
            .then(|| AttemptEnd { reason, ..AttemptEnd::new(EndKind::Unparsable) });
        let (outcome, ended) = self.execute_action(Err(why)).await?;
        Ok((outcome, ended.or(unparsable)))
    }

    /// Executes the action, or reports why there is none. A page that fails during the action makes
    /// a step of its own, whose outcome is the failure.
    async fn execute_action(
        &mut self,
        action: Result<&Action, &str>,
    ) -> Result<(Outcome, Option<AttemptEnd>), AttemptError> {
        match self.act_and_settle(action).await {
            Ok(done) => Ok(done),
            Err(AttemptError::Environment(error)) if let Some(outcome) = error.outcome() => {
                let ended = self.end_for_error(&error);
                Ok((outcome, Some(AttemptEnd { last_outcome: None, ..ended })))
            }
            Err(stop) => Err(stop),
        }
    }

    async fn act_and_settle(
        &mut self,
        action: Result<&Action, &str>,
    ) -> Result<(Outcome, Option<AttemptEnd>), AttemptError> {
        self.enter(TimeCause::Act);
        let outcome = match action {
            Ok(action) => self.environment()?.act(action).await?,
            Err(why) => Outcome::with_detail(OutcomeName::InvalidAction, why),
        };
        self.enter(TimeCause::Settle);
        let outcome = self.environment()?.settle(outcome).await?;
        let probe_json = self.probe().await?;
        let ended = probe_json
            .as_deref()
            .is_some_and(reports_done)
            .then(|| AttemptEnd { probe_json, ..AttemptEnd::new(EndKind::Done) });
        Ok((outcome, ended))
    }

    /// A policy may lead its tab to a page that does not implement the probe: then the probe fails
    /// and the task is not done.
    async fn probe(&mut self) -> Result<Option<String>, AttemptError> {
        match self.environment()?.probe().await {
            Err(EnvironmentError::Failed(why)) => {
                tracing::debug!(trajectory_id = %self.assignment.ancestry.trajectory_id, why, "no probe");
                Ok(None)
            }
            probed => Ok(probed?),
        }
    }

    /// Queues a step for recording. Its acknowledgement may arrive during the next step; only one
    /// is outstanding at any time, so steps reach the coordinator in order.
    async fn record(&mut self, mut step: OpaqueStep) -> Result<(), AttemptError> {
        self.enter(TimeCause::Record);
        self.recorder.wait_acknowledged().await?;
        step.timing = self.mark();
        self.recorder.record(&step).map_err(AttemptError::Failed)
    }

    /// Gathers the evidence, closes the environment and reports the end.
    async fn close(&mut self, closing: CloseAction) -> Result<EndKind, String> {
        self.enter(TimeCause::Finish);
        let ended = match closing {
            CloseAction::End(ended) => *ended,
            CloseAction::Abandon(why) => {
                self.close_environment().await;
                return Err(why);
            }
        };
        let ended = match self.recorder.wait_acknowledged().await {
            Ok(()) => ended,
            Err(CallError::Refused(why)) => AttemptEnd { reason: why, ..AttemptEnd::new(EndKind::EnvCrash) },
            Err(error) => {
                self.close_environment().await;
                return Err(error.to_string());
            }
        };
        let ending = self.build_ending(ended).await;
        self.enter(TimeCause::Record);
        self.report_end(&ending).await.map_err(|error| error.to_string())
    }

    async fn build_ending(&mut self, mut ended: AttemptEnd) -> TrajectoryEnding {
        let evidence = match needs_evidence(ended.end) {
            true => self.collect_evidence(&mut ended).await,
            false => None,
        };
        if needs_evidence(ended.end) && evidence.is_none() {
            let was = ended.end.as_str();
            ended = AttemptEnd {
                reason: format!("the page could not be observed at the end ({was})"),
                ..AttemptEnd::new(EndKind::PageCrash)
            };
        }
        self.close_environment().await;
        self.mark();
        let mut fingerprint = self.context.environments.fingerprint(Some(self.task()));
        fingerprint.worker = self.context.worker.to_string();
        TrajectoryEnding {
            end: ended.end,
            reason: cut(&ended.reason, REASON_CHARS_MAX),
            evidence,
            goal: self.goal.clone(),
            steps: self.recorder.durable,
            last_outcome: ended.last_outcome,
            timing: self.total_time,
            environment: fingerprint,
        }
    }

    async fn collect_evidence(&mut self, ended: &mut AttemptEnd) -> Option<Evidence> {
        let environment = self.environment.as_mut()?;
        if ended.end == EndKind::PageHang && environment.has_looping_script().await {
            ended.end = EndKind::ScriptLoop;
        }
        let mut evidence = environment.evidence().await?;
        if let Some(screenshot) = &evidence.screenshot
            && screenshot.len() > SCREENSHOT_BYTES_MAX
        {
            return None;
        }
        evidence.answer = ended.answer.take();
        // The probe that reported "done" described the page as the action left it; the page may
        // differ by now.
        let probe_json = ended.probe_json.take().or(evidence.probe_json.take());
        let probe_json = probe_json.filter(|json| is_object(json));
        let downloads = self.environment.as_mut()?.downloads().await;
        evidence.probe_json = DownloadReport::attach(downloads.as_ref(), probe_json);
        evidence.title = evidence.title.map(|title| cut(&title, TITLE_CHARS_MAX));
        evidence.url = evidence.url.map(|url| cut(&url, URL_CHARS_MAX));
        Some(evidence)
    }

    async fn report_end(&mut self, ending: &TrajectoryEnding) -> Result<EndKind, CallError> {
        let of = self.assignment.ancestry.clone();
        let token = self.assignment.token;
        crash::point("env.before_finish");
        self.context.coordinator.finish(&self.assignment.proof(), encode_ending(ending)).await?;
        crash::point("env.after_finish");
        let report_micros = self.mark().total();
        let end = ending.end;
        let steps = ending.steps;
        let timing = &ending.timing;
        TrajectoryAcknowledged { of: &of, token, end, steps, timing, report_micros }.emit();
        Ok(end)
    }

    /// Closes the environment and the session concurrently.
    async fn close_environment(&mut self) {
        let environment = self.environment.take();
        let link = self.link.take();
        tokio::join!(
            async {
                if let Some(environment) = environment {
                    environment.close().await;
                }
            },
            async {
                if let Some(link) = link {
                    link.close().await;
                }
            },
        );
    }

    fn into_outcome(self, closed: Result<EndKind, String>) -> AttemptOutcome {
        let timing = &self.account.close(self.context.time.micros());
        match closed {
            Ok(end) => AttemptOutcome::Acknowledged(end),
            Err(reason) => {
                let of = &self.assignment.ancestry;
                let token = self.assignment.token;
                TrajectoryAbandoned { of, token, timing, reason: &reason }.emit();
                AttemptOutcome::Abandoned
            }
        }
    }

    fn close_for_error(&self, stop: AttemptError) -> CloseAction {
        let ended = match stop {
            AttemptError::Environment(error) => self.end_for_error(&error),
            AttemptError::Policy(PolicyError::Stale(why)) => return CloseAction::Abandon(why),
            AttemptError::Policy(PolicyError::Fault(reason)) => {
                AttemptEnd { reason, ..AttemptEnd::new(EndKind::PolicyFault) }
            }
            AttemptError::Call(CallError::Refused(reason)) => {
                AttemptEnd { reason, ..AttemptEnd::new(EndKind::EnvCrash) }
            }
            AttemptError::Call(error) => return CloseAction::Abandon(error.to_string()),
            AttemptError::TimeOver(_) => {
                let (end, reason) = self.limit.end();
                AttemptEnd { reason, ..AttemptEnd::new(end) }
            }
            other => AttemptEnd { reason: other.to_string(), ..AttemptEnd::new(EndKind::EnvCrash) },
        };
        CloseAction::End(Box::new(ended))
    }

    fn end_for_error(&self, error: &EnvironmentError) -> AttemptEnd {
        let of = &self.assignment.ancestry;
        let step = self.recorder.steps;
        match *error {
            EnvironmentError::PageHang { waited_for } => PageHung { of, step, waited_for }.emit(),
            EnvironmentError::PageCrash => PageCrashed { of, step }.emit(),
            EnvironmentError::BrowserDead | EnvironmentError::Blocked(_) | EnvironmentError::Failed(_) => {}
        }
        let died = matches!(error, EnvironmentError::PageCrash | EnvironmentError::BrowserDead);
        let cause =
            self.environment.as_ref().filter(|_| died).and_then(|environment| environment.death_cause());
        let reason = cause.map_or(error.to_string(), |cause| format!("{error}: {cause}"));
        AttemptEnd { reason, last_outcome: error.outcome(), ..AttemptEnd::new(error.end()) }
    }

    fn task(&self) -> &Task {
        &self.assignment.task
    }

    fn environment(&mut self) -> Result<&mut dyn Environment, AttemptError> {
        match &mut self.environment {
            Some(environment) => Ok(environment.as_mut()),
            None => Err(AttemptError::Failed("the environment is closed".into())),
        }
    }

    fn link(&mut self) -> Result<&mut PolicyLink, AttemptError> {
        self.link.as_mut().ok_or_else(|| AttemptError::Failed("the session is closed".into()))
    }

    fn enter(&mut self, cause: TimeCause) {
        self.account.enter(cause, self.context.time.micros());
    }

    fn mark(&mut self) -> TimeSplit {
        let split = self.account.mark(self.context.time.micros());
        self.total_time.merge(&split);
        split
    }
}

impl CloseAction {
    fn cancelled(reason: String) -> Self {
        Self::End(Box::new(AttemptEnd { reason, ..AttemptEnd::new(EndKind::Cancelled) }))
    }
}

impl AttemptEnd {
    fn new(end: EndKind) -> Self {
        Self { end, reason: String::new(), answer: None, probe_json: None, last_outcome: None }
    }
}

/// Text from a page is cut before it is sent: a goal to a paragraph, a title to a line, an address
/// to what a browser shows.
const GOAL_CHARS_MAX: usize = 16 << 10;
const TITLE_CHARS_MAX: usize = 256;
const URL_CHARS_MAX: usize = 2048;
const REASON_CHARS_MAX: usize = 2000;
/// A probe returns a few numbers; a message with more than this is refused.
const PROBE_BYTES_MAX: usize = 1 << 20;

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// Ends that a scorer may have to score.
fn needs_evidence(end: EndKind) -> bool {
    end.fault(true) == furrow_rollout::FaultOwner::Policy
}

/// A page can make its probe return anything: only an object with `done: true` means that the task
/// is over.
pub(crate) fn reports_done(json: &str) -> bool {
    parse_object(json).is_some_and(|object| object.get("done") == Some(&serde_json::Value::Bool(true)))
}

fn is_object(json: &str) -> bool {
    parse_object(json).is_some()
}

fn parse_object(json: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
    (json.len() <= PROBE_BYTES_MAX).then(|| serde_json::from_str(json).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_done_true_is_done() {
        for (json, want) in [
            (r#"{"done":true}"#, true),
            (r#"{"reward":1,"done":true}"#, true),
            (r#"{"done":false}"#, false),
            (r#"{"done":1}"#, false),
            (r#"{"done":"true"}"#, false),
            (r#"[{"done":true}]"#, false),
            ("{}", false),
            ("", false),
            ("true", false),
            (r#"{"done":true"#, false),
        ] {
            assert_eq!(reports_done(json), want, "{json}");
        }
    }

    #[test]
    fn a_scorer_sees_the_policys_own_ends() {
        use EndKind::*;
        let limits = [MaxSteps, ContextFull, MaxTime];
        let own = [Answered, Done, Unparsable, OffListNavigation, ScriptLoop, PageHang];
        for end in EndKind::ALL {
            let scored = limits.contains(&end) || own.contains(&end);
            assert_eq!(needs_evidence(end), scored, "{}", end.as_str());
        }
    }
}
