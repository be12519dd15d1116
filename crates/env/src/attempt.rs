//! One trajectory, from its assignment to its acknowledged end.
//!
//! `played` is the story: start the task, then observe → ask the policy → act → settle → probe → record, step after step, until something
//! ends it. `run` puts it under the worker's signals and its time limit; `close` gathers the evidence and reports the end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::{
    Action, Ancestry, Assignment, Cause, End, Ending, EnvWorker, Evidence, Id, Observation, Outcome,
    OutcomeName, Reply, Task, TimeSplit,
};
use furrow_telemetry::{
    Account, PageCrashed, PageHung, StepAcknowledged, TimeSource, TrajectoryAbandoned,
    TrajectoryAcknowledged, TrajectoryStarted,
};
use furrow_wire::{
    OpaqueStep, Opening, RECORD_BYTES_MAX, SCREENSHOT_BYTES_MAX, encode_ending, encode_opaque_step,
};
use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::coordinator_link::{CallError, CoordinatorLink};
use crate::crash;
use crate::hosts::{AllowList, BadEntry};
use crate::policy_link::{PolicyError, PolicyLines, PolicyLink, PolicyPatience, Turn};
use crate::stage::{Stage, StageError, Stages};

/// What all attempts of a worker share.
pub(crate) struct Desk {
    pub worker: Id<EnvWorker>,
    pub stages: Arc<dyn Stages>,
    pub coordinator: CoordinatorLink,
    pub lines: Arc<PolicyLines>,
    pub patience: PolicyPatience,
    /// As many replies in a row without an action end a trajectory.
    pub unparsable_max: u32,
    pub time: TimeSource,
}

/// A trajectory as the worker hands it to an attempt.
pub(crate) struct Lent {
    pub assignment: Assignment,
    pub signals: Signals,
    /// Where its policy worker is now.
    pub policy_address: watch::Receiver<String>,
    /// It has not loaded its page yet.
    pub booting: Booting,
}

/// A trajectory whose page is not there yet: the memory it will take is still counted as free. Dropped when it is there.
#[derive(Debug)]
pub(crate) struct Booting(Arc<AtomicU32>);

impl Booting {
    /// One more.
    pub fn new(all: &Arc<AtomicU32>) -> Self {
        all.fetch_add(1, Ordering::SeqCst);
        Self(all.clone())
    }
}

impl Drop for Booting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What may be said to an attempt from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signals {
    /// Somebody else holds the trajectory: drop it and say nothing.
    pub lost: CancellationToken,
    /// End it now and report it as cancelled.
    pub hand_back: CancellationToken,
    /// There is no time left even for reporting.
    pub cut: CancellationToken,
}

/// What became of a trajectory here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The coordinator has its end.
    Acknowledged(End),
    /// It was dropped; its slot is tried again by whoever gets it next.
    Abandoned,
}

/// Acts a trajectory out. When this returns, its stage is gone and no task of it is left.
pub(crate) async fn act_out(desk: &Desk, lent: Lent) -> Fate {
    let signals = lent.signals.clone();
    let mut attempt = Attempt::new(desk, lent);
    let closed = tokio::select! {
        biased;
        () = signals.cut.cancelled() => Err("the worker stops".to_owned()),
        closed = attempt.run(&signals) => closed,
    };
    attempt.leave(closed)
}

/// A trajectory in the making.
struct Attempt<'a> {
    desk: &'a Desk,
    assignment: Assignment,
    policy_address: watch::Receiver<String>,
    booting: Option<Booting>,
    account: Account,
    /// The sum of all marks taken from the account.
    life: TimeSplit,
    stage: Option<Box<dyn Stage>>,
    link: Option<PolicyLink>,
    goal: String,
    last_outcome: Option<Outcome>,
    /// Replies in a row that held no action.
    unparsable: u32,
    recorder: Recorder,
}

/// How it is to be closed.
#[derive(Debug)]
enum Closing {
    /// With an end that is reported.
    End(Box<Ended>),
    /// Without a word.
    Abandon(String),
}

#[derive(Debug)]
struct Ended {
    end: End,
    reason: String,
    answer: Option<String>,
    /// What the probe said when it said that the task is done.
    probe_json: Option<String>,
    /// What came of the last thing tried, when that was no step.
    last_outcome: Option<Outcome>,
}

/// Why an attempt cannot go on.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("its list of hosts cannot be used: {0}")]
    Hosts(#[from] BadEntry),
    #[error("{0}")]
    Failed(String),
}

impl<'a> Attempt<'a> {
    fn new(desk: &'a Desk, lent: Lent) -> Self {
        let recorder = Recorder {
            link: desk.coordinator.clone(),
            of: lent.assignment.ancestry.clone(),
            token: lent.assignment.token,
            lost: lent.signals.lost,
            calls: JoinSet::new(),
            steps: 0,
            durable: 0,
        };
        Self {
            desk,
            assignment: lent.assignment,
            policy_address: lent.policy_address,
            booting: Some(lent.booting),
            account: Account::open(Cause::Boot, desk.time.micros()),
            life: TimeSplit::default(),
            stage: None,
            link: None,
            goal: String::new(),
            last_outcome: None,
            unparsable: 0,
            recorder,
        }
    }

    /// From the first moment to the acknowledged end; the error is why nothing was reported.
    async fn run(&mut self, signals: &Signals) -> Result<End, String> {
        let limit = Duration::from_millis(self.task().time_limit_millis);
        let out_of_time = tokio::time::sleep(limit);
        // A stage that is half open cannot be closed, so nothing interrupts this; it has deadlines of its own.
        let closing = match self.desk.stages.open(&self.assignment).await {
            Err(error) => self.stopped(error.into()),
            Ok(stage) => {
                self.stage = Some(stage);
                tokio::select! {
                    biased;
                    () = signals.lost.cancelled() => Closing::Abandon("its lease is lost".into()),
                    () = signals.hand_back.cancelled() => Closing::cancelled("the worker is stopping and hands it back".into()),
                    () = out_of_time => Closing::cancelled(format!("its time limit of {} ms passed", limit.as_millis())),
                    closing = self.play() => closing,
                }
            }
        };
        self.close(closing).await
    }

    async fn play(&mut self) -> Closing {
        // A panic is this attempt's end and nobody else's: its stage is closed and its end reported like any other.
        let played = AssertUnwindSafe(self.played()).catch_unwind().await;
        match played
            .unwrap_or_else(|_| Err(Stop::Failed("the attempt panicked; the log has the place".into())))
        {
            Ok(ended) => Closing::End(Box::new(ended)),
            Err(stop) => self.stopped(stop),
        }
    }

    async fn played(&mut self) -> Result<Ended, Stop> {
        let allow = AllowList::new(&self.task().start_url, &self.task().allow_hosts)?;
        self.begin().await?;
        // What booting took belongs to the trajectory, not to its first step.
        let now = self.desk.time.micros();
        self.account.enter(Cause::Observe, now);
        self.life.merge(&self.account.mark(now));
        for step in 0..self.task().max_steps {
            if let Some(ended) = self.step(step, &allow).await? {
                return Ok(ended);
            }
        }
        Ok(Ended::new(End::MaxSteps))
    }

    /// Starts the task in its page and opens the session.
    async fn begin(&mut self) -> Result<(), Stop> {
        let (of, token) = (self.assignment.ancestry.clone(), self.assignment.token);
        let browser = self.stage()?.browser().to_owned();
        TrajectoryStarted { of: &of, token, worker: self.desk.worker.as_str(), browser: &browser }.emit();
        let pages_goal = self.stage()?.begin().await?;
        self.booting = None;
        let goal = self.task().goal.clone().or(pages_goal);
        let goal = goal.ok_or_else(|| Stop::Failed("neither the task nor its page has a goal".into()))?;
        self.goal = cut(&goal, GOAL_CHARS_MAX);
        let opening = Opening {
            ancestry: of,
            token,
            session: self.assignment.session.clone(),
            goal: self.goal.clone(),
            past_steps: 0,
        };
        let (lines, address) = (self.desk.lines.clone(), self.policy_address.clone());
        self.link = Some(PolicyLink::open(lines, opening, address, self.desk.patience).await?);
        Ok(())
    }

    /// One step. `Some` ends the trajectory.
    async fn step(&mut self, step: u32, allow: &AllowList) -> Result<Option<Ended>, Stop> {
        self.enter(Cause::Observe);
        let observed_at_micros = self.desk.time.wall_micros();
        let observation = self.stage()?.observe().await?;
        let turn = self.turn(step, &observation).await?;
        if turn.context_full {
            return Ok(Some(Ended::new(End::ContextFull)));
        }
        let (outcome, ended) = self.answer(&turn.reply, allow).await?;
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

    /// Shows the observation to the policy.
    async fn turn(&mut self, step: u32, observation: &Observation) -> Result<Turn, Stop> {
        let goal = self.goal.clone();
        let hint = match self.link()?.wants_hints() {
            true => self.stage()?.hint(&goal, step).await?,
            false => None,
        };
        self.enter(Cause::Policy);
        let last_outcome = self.last_outcome.clone();
        Ok(self.link()?.ask(step, observation, last_outcome.as_ref(), hint.as_ref()).await?)
    }

    /// Does what the policy replied.
    async fn answer(&mut self, reply: &Reply, allow: &AllowList) -> Result<(Outcome, Option<Ended>), Stop> {
        let action = match &reply.action {
            Ok(action) => action,
            Err(why) => return self.no_action(why).await,
        };
        self.unparsable = 0;
        let off_list = |part: &Action| part.address().and_then(|url| allow.judge(url).err());
        if let Some(off) = action.parts().iter().find_map(off_list) {
            let detail = format!("{:?} is not among the addresses of this task", off.host);
            let ended = Ended { reason: detail.clone(), ..Ended::new(End::OffListNavigation) };
            return Ok((Outcome::told(OutcomeName::OffList, detail), Some(ended)));
        }
        match action.parts() {
            [before @ .., Action::Answer { content }] => self.answered(before, content).await,
            _ => self.act(Ok(action)).await,
        }
    }

    /// An answer ends the trajectory, unless something before it in the same reply went otherwise than well: then it was given too early.
    async fn answered(&mut self, before: &[Action], content: &str) -> Result<(Outcome, Option<Ended>), Stop> {
        if let Ok(before) = Action::of_several(before.to_vec()) {
            let (outcome, ended) = self.act(Ok(&before)).await?;
            if ended.is_some() || outcome.name != OutcomeName::Ok {
                return Ok((outcome, ended));
            }
        }
        let ended = Ended { answer: Some(content.to_owned()), ..Ended::new(End::Answered) };
        Ok((Outcome::named(OutcomeName::Answered), Some(ended)))
    }

    /// The page lives on for a step all the same: under virtual time its timers and its pictures wait for that.
    async fn no_action(&mut self, why: &str) -> Result<(Outcome, Option<Ended>), Stop> {
        self.unparsable += 1;
        let reason = format!("{} replies in a row held no action", self.unparsable);
        let unparsable = (self.unparsable >= self.desk.unparsable_max)
            .then(|| Ended { reason, ..Ended::new(End::Unparsable) });
        let (outcome, ended) = self.act(Err(why)).await?;
        Ok((outcome, ended.or(unparsable)))
    }

    /// Acts, or says why there is nothing to do. A page that fails under it makes a step of its own: what failed is its outcome.
    async fn act(&mut self, action: Result<&Action, &str>) -> Result<(Outcome, Option<Ended>), Stop> {
        match self.acted(action).await {
            Ok(done) => Ok(done),
            Err(Stop::Stage(error)) if let Some(outcome) = error.outcome() => {
                let ended = self.failed(&error);
                Ok((outcome, Some(Ended { last_outcome: None, ..ended })))
            }
            Err(stop) => Err(stop),
        }
    }

    async fn acted(&mut self, action: Result<&Action, &str>) -> Result<(Outcome, Option<Ended>), Stop> {
        self.enter(Cause::Act);
        let outcome = match action {
            Ok(action) => self.stage()?.act(action).await?,
            Err(why) => Outcome::told(OutcomeName::InvalidAction, why),
        };
        self.enter(Cause::Settle);
        let outcome = self.stage()?.settle(outcome).await?;
        let probe_json = self.probe().await?;
        let ended = probe_json
            .as_deref()
            .is_some_and(says_done)
            .then(|| Ended { probe_json, ..Ended::new(End::Done) });
        Ok((outcome, ended))
    }

    /// A policy may lead its tab to a page that knows nothing of the probe: then the probe fails, and the task is not done.
    async fn probe(&mut self) -> Result<Option<String>, Stop> {
        match self.stage()?.probe().await {
            Err(StageError::Failed(why)) => {
                tracing::debug!(trajectory_id = %self.assignment.ancestry.trajectory_id, why, "no probe");
                Ok(None)
            }
            probed => Ok(probed?),
        }
    }

    /// Hands a step over for recording. Its acknowledgement may come while the next step is under way; only one is ever outstanding,
    /// so steps reach the coordinator in their order.
    async fn record(&mut self, mut step: OpaqueStep) -> Result<(), Stop> {
        self.enter(Cause::Record);
        self.recorder.settled().await?;
        step.timing = self.mark();
        self.recorder.record(&step)
    }

    /// Gathers the evidence, throws the stage away and reports the end.
    async fn close(&mut self, closing: Closing) -> Result<End, String> {
        self.enter(Cause::Finish);
        let ended = match closing {
            Closing::End(ended) => *ended,
            Closing::Abandon(why) => {
                self.clear().await;
                return Err(why);
            }
        };
        let ended = match self.recorder.settled().await {
            Ok(()) => ended,
            Err(CallError::Refused(why)) => Ended { reason: why, ..Ended::new(End::EnvCrash) },
            Err(error) => {
                self.clear().await;
                return Err(error.to_string());
            }
        };
        let ending = self.ending(ended).await;
        self.enter(Cause::Record);
        self.finish(&ending).await.map_err(|error| error.to_string())
    }

    async fn ending(&mut self, mut ended: Ended) -> Ending {
        let evidence = match needs_evidence(ended.end) {
            true => self.evidence(&mut ended).await,
            false => None,
        };
        if needs_evidence(ended.end) && evidence.is_none() {
            let was = ended.end.as_str();
            ended = Ended {
                reason: format!("nothing was to be seen at the end ({was})"),
                ..Ended::new(End::PageCrash)
            };
        }
        self.clear().await;
        self.mark();
        let mut environment = self.desk.stages.environment(Some(self.task()));
        environment.worker = self.desk.worker.to_string();
        Ending {
            end: ended.end,
            reason: cut(&ended.reason, REASON_CHARS_MAX),
            evidence,
            goal: self.goal.clone(),
            steps: self.recorder.durable,
            last_outcome: ended.last_outcome,
            timing: self.life,
            environment,
        }
    }

    async fn evidence(&mut self, ended: &mut Ended) -> Option<Evidence> {
        let mut evidence = self.stage.as_mut()?.evidence().await?;
        if let Some(screenshot) = &evidence.screenshot
            && screenshot.len() > SCREENSHOT_BYTES_MAX
        {
            return None;
        }
        evidence.answer = ended.answer.take();
        // The probe that said "done" said it of the page as the action left it; a page may look different by now.
        let probe_json = ended.probe_json.take().or(evidence.probe_json.take());
        evidence.probe_json = probe_json.filter(|json| is_object(json));
        evidence.title = evidence.title.map(|title| cut(&title, TITLE_CHARS_MAX));
        evidence.url = evidence.url.map(|url| cut(&url, URL_CHARS_MAX));
        Some(evidence)
    }

    async fn finish(&mut self, ending: &Ending) -> Result<End, CallError> {
        let (of, token) = (self.assignment.ancestry.clone(), self.assignment.token);
        crash::point("env.before_finish");
        self.desk.coordinator.finish(&of, token, encode_ending(ending)).await?;
        crash::point("env.after_finish");
        let report_micros = self.mark().total();
        let (end, steps, timing) = (ending.end, ending.steps, &ending.timing);
        TrajectoryAcknowledged { of: &of, token, end, steps, timing, report_micros }.emit();
        Ok(end)
    }

    /// Throws stage and session away, both at once.
    async fn clear(&mut self) {
        let (stage, link) = (self.stage.take(), self.link.take());
        tokio::join!(
            async {
                if let Some(stage) = stage {
                    stage.close().await;
                }
            },
            async {
                if let Some(link) = link {
                    link.close().await;
                }
            },
        );
    }

    fn leave(self, closed: Result<End, String>) -> Fate {
        let timing = &self.account.close(self.desk.time.micros());
        match closed {
            Ok(end) => Fate::Acknowledged(end),
            Err(reason) => {
                let (of, token) = (&self.assignment.ancestry, self.assignment.token);
                TrajectoryAbandoned { of, token, timing, reason: &reason }.emit();
                Fate::Abandoned
            }
        }
    }

    fn stopped(&self, stop: Stop) -> Closing {
        let ended = match stop {
            Stop::Stage(error) => self.failed(&error),
            Stop::Policy(PolicyError::Stale(why)) => return Closing::Abandon(why),
            Stop::Policy(PolicyError::Fault(reason)) => Ended { reason, ..Ended::new(End::PolicyFault) },
            Stop::Call(CallError::Refused(reason)) => Ended { reason, ..Ended::new(End::EnvCrash) },
            Stop::Call(error) => return Closing::Abandon(error.to_string()),
            other => Ended { reason: other.to_string(), ..Ended::new(End::EnvCrash) },
        };
        Closing::End(Box::new(ended))
    }

    fn failed(&self, error: &StageError) -> Ended {
        let (of, step) = (&self.assignment.ancestry, self.recorder.steps);
        match *error {
            StageError::PageHang { waited_for } => PageHung { of, step, waited_for }.emit(),
            StageError::PageCrash => PageCrashed { of, step }.emit(),
            StageError::BrowserDead | StageError::Blocked(_) | StageError::Failed(_) => {}
        }
        let died = matches!(error, StageError::PageCrash | StageError::BrowserDead);
        let cause = self.stage.as_ref().filter(|_| died).and_then(|stage| stage.cause_of_death());
        let reason = cause.map_or(error.to_string(), |cause| format!("{error}: {cause}"));
        Ended { reason, last_outcome: error.outcome(), ..Ended::new(error.end()) }
    }

    fn task(&self) -> &Task {
        &self.assignment.task
    }

    fn stage(&mut self) -> Result<&mut dyn Stage, Stop> {
        match &mut self.stage {
            Some(stage) => Ok(stage.as_mut()),
            None => Err(Stop::Failed("the stage is gone".into())),
        }
    }

    fn link(&mut self) -> Result<&mut PolicyLink, Stop> {
        self.link.as_mut().ok_or_else(|| Stop::Failed("the session is gone".into()))
    }

    fn enter(&mut self, cause: Cause) {
        self.account.enter(cause, self.desk.time.micros());
    }

    fn mark(&mut self) -> TimeSplit {
        let split = self.account.mark(self.desk.time.micros());
        self.life.merge(&split);
        split
    }
}

/// Sends steps one after the other and says when each is durable.
struct Recorder {
    link: CoordinatorLink,
    of: Ancestry,
    token: u64,
    lost: CancellationToken,
    /// At most one call; it ends with the attempt.
    calls: JoinSet<Result<(), CallError>>,
    /// Steps handed over.
    steps: u32,
    /// Steps the coordinator acknowledged.
    durable: u32,
}

impl Recorder {
    /// Waits until nothing is outstanding.
    async fn settled(&mut self) -> Result<(), CallError> {
        while let Some(joined) = self.calls.join_next().await {
            joined.unwrap_or_else(|error| Err(CallError::Refused(format!("recording failed: {error}"))))?;
            self.durable += 1;
        }
        Ok(())
    }

    fn record(&mut self, step: &OpaqueStep) -> Result<(), Stop> {
        let record = encode_opaque_step(step);
        if record.len() > RECORD_BYTES_MAX {
            let size = record.len();
            return Err(Stop::Failed(format!(
                "step {} has {size} bytes, at most {RECORD_BYTES_MAX} can be recorded",
                step.step
            )));
        }
        self.steps += 1;
        let screenshot_bytes = step.observation.screenshot.bytes.len() as u64;
        self.calls.spawn(recorded(
            self.link.clone(),
            self.of.clone(),
            Receipt {
                token: self.token,
                step: step.step,
                outcome: step.outcome.name,
                began_at_micros: step.observed_at_micros,
                timing: step.timing,
                screenshot_bytes,
            },
            record,
            self.lost.clone(),
        ));
        Ok(())
    }
}

/// What is said of a step once it is durable.
struct Receipt {
    token: u64,
    step: u32,
    outcome: OutcomeName,
    /// A step begins where it is observed.
    began_at_micros: i64,
    timing: TimeSplit,
    screenshot_bytes: u64,
}

async fn recorded(
    link: CoordinatorLink,
    of: Ancestry,
    receipt: Receipt,
    record: Bytes,
    lost: CancellationToken,
) -> Result<(), CallError> {
    let Receipt { token, step, outcome, began_at_micros, timing, screenshot_bytes } = receipt;
    crash::point("env.before_record");
    if let Err(error) = link.record_step(&of, token, step, record).await {
        // The policy may be thinking for a minute yet: a stale token ends the attempt now.
        if matches!(error, CallError::Stale(_)) {
            lost.cancel();
        }
        return Err(error);
    }
    crash::point("env.after_record");
    let (of, timing) = (&of, &timing);
    StepAcknowledged { of, step, token, outcome, began_at_micros, timing, screenshot_bytes }.emit();
    Ok(())
}

impl Closing {
    fn cancelled(reason: String) -> Self {
        Self::End(Box::new(Ended { reason, ..Ended::new(End::Cancelled) }))
    }
}

impl Ended {
    fn new(end: End) -> Self {
        Self { end, reason: String::new(), answer: None, probe_json: None, last_outcome: None }
    }
}

/// Text that comes from a page is cut before it travels: a goal is a paragraph, a title a line, an address what a browser shows.
const GOAL_CHARS_MAX: usize = 16 << 10;
const TITLE_CHARS_MAX: usize = 256;
const URL_CHARS_MAX: usize = 2048;
const REASON_CHARS_MAX: usize = 2000;
/// A probe says a few numbers; the wire refuses what is longer.
const PROBE_BYTES_MAX: usize = 1 << 20;

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// Ends that a scorer may have to judge.
fn needs_evidence(end: End) -> bool {
    end.fault(true) == furrow_rollout::Fault::Policy
}

/// A page can make its probe say anything: whatever is no object with `done: true` says that the task goes on.
pub(crate) fn says_done(json: &str) -> bool {
    object(json).is_some_and(|object| object.get("done") == Some(&serde_json::Value::Bool(true)))
}

fn is_object(json: &str) -> bool {
    object(json).is_some()
}

fn object(json: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
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
            assert_eq!(says_done(json), want, "{json}");
        }
    }

    #[test]
    fn a_scorer_sees_the_policys_own_ends() {
        use End::*;
        let own = [Answered, Done, MaxSteps, ContextFull, Unparsable, OffListNavigation, PageHang];
        for end in End::ALL {
            assert_eq!(needs_evidence(end), own.contains(&end), "{}", end.as_str());
        }
    }
}
