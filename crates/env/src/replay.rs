//! Replays a recorded trajectory: the same inputs in a fresh environment, with a report of each
//! observation and outcome.
//!
//! The code follows `attempt.rs`, but without a policy and without a coordinator: each recorded
//! reply is executed as it was then. The caller compares the reported outcomes with the recorded
//! ones.

use std::time::Duration;

use furrow_rollout::{
    Action, Assignment, DownloadReport, EndKind, EnvironmentFingerprint, Evidence, Observation, Outcome,
    OutcomeName, PageClock, PolicyReply,
};
use tokio::time::Instant;

use crate::attempt::reports_done;
use crate::environment::{Environment, EnvironmentError, EnvironmentFactory};
use crate::hosts::AllowList;
use crate::secrets::refused_address;

#[derive(Debug, Clone, PartialEq)]
pub struct RecordedReply {
    pub reply: PolicyReply,
    /// Time to wait between the observation and the action.
    pub pause: Duration,
}

/// The report of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayedTrajectory {
    /// The goal that the page generated, if it did.
    pub goal: Option<String>,
    /// Observations and outcomes up to the end of the replay.
    pub steps: Vec<ReplayedStep>,
    /// The end that the replay reached by itself; `None` if every recorded reply was executed and
    /// the page continues.
    pub end: Option<EndKind>,
    /// The final state, with the answer given.
    pub evidence: Option<Evidence>,
    /// Requests between the last step and the end that the archive could not answer.
    pub unrecorded: Vec<String>,
    /// Why the replay stopped before its end, if it did.
    pub stopped: Option<String>,
    /// Whether its browser died, which says nothing about the trajectory.
    pub browser_died: bool,
    /// The environment of the replay.
    pub environment: EnvironmentFingerprint,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReplayedStep {
    /// State before the action.
    pub observation: Observation,
    /// The outcome; `None` if the page failed before the action.
    pub outcome: Option<Outcome>,
    /// Requests since the previous step that the archive could not answer: method and address.
    pub unrecorded: Vec<String>,
}

/// The expected state of a page. In real time a page may be slower than it was when recorded.
pub trait ReplayExpectation: Sync {
    /// Whether the page matches the recording before this step.
    fn matches_before_step(&self, step: usize, observation: &Observation) -> bool;

    /// Whether the final state matches the recording.
    fn matches_at_end(&self, evidence: &Evidence) -> bool;
}

/// Browsers that a replay may lose: a trajectory whose browser dies is replayed again in another
/// one, as the farm repeats an attempt.
const BROWSERS_LOST_MAX: u32 = 2;

/// Replays a trajectory, one step per record. A page on the wall clock that does not match the
/// expectation gets up to `timeout` to reach it; its state after that is the one reported. The
/// environment is closed when this returns.
pub async fn replay_trajectory(
    environments: &dyn EnvironmentFactory,
    assignment: &Assignment,
    records: &[RecordedReply],
    expected: &dyn ReplayExpectation,
    timeout: Duration,
) -> ReplayedTrajectory {
    // Page time that is under control stands still while this waits.
    let timeout = if assignment.task.clock == PageClock::Real { timeout } else { Duration::ZERO };
    let wait = ExpectationWait { expected, timeout };
    for _ in 0..BROWSERS_LOST_MAX {
        let replay = replay_once(environments, assignment, records, &wait).await;
        if !replay.browser_died {
            return replay;
        }
        tracing::warn!(
            trajectory = %assignment.ancestry.trajectory_id,
            "the browser of a replay died; the trajectory is replayed again in another one"
        );
    }
    replay_once(environments, assignment, records, &wait).await
}

async fn replay_once(
    environments: &dyn EnvironmentFactory,
    assignment: &Assignment,
    records: &[RecordedReply],
    wait: &ExpectationWait<'_>,
) -> ReplayedTrajectory {
    let mut replay = ReplayedTrajectory {
        goal: None,
        steps: Vec::new(),
        end: None,
        evidence: None,
        unrecorded: Vec::new(),
        stopped: None,
        browser_died: false,
        environment: environments.fingerprint(Some(&assignment.task)),
    };
    let mut environment = match environments.open(assignment).await {
        Ok(environment) => environment,
        Err(error) => {
            replay.stop("no page", &error);
            return replay;
        }
    };
    match replay.replay_steps(environment.as_mut(), assignment, records, wait).await {
        Ok(answer) => replay.collect_evidence(environment.as_mut(), answer, wait).await,
        Err((at, error)) => replay.stop(&at, &error),
    }
    replay.unrecorded = environment.unrecorded();
    environment.close().await;
    replay
}

/// Observes until the page matches the expectation or the timeout passes.
struct ExpectationWait<'a> {
    expected: &'a dyn ReplayExpectation,
    timeout: Duration,
}

const POLL_INTERVAL: Duration = Duration::from_millis(100);

impl ExpectationWait<'_> {
    async fn observe_before_step(
        &self,
        environment: &mut dyn Environment,
        step: usize,
    ) -> Result<Observation, EnvironmentError> {
        let until = Instant::now() + self.timeout;
        loop {
            let observation = environment.observe().await?;
            if Instant::now() >= until || self.expected.matches_before_step(step, &observation) {
                return Ok(observation);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn evidence_at_end(&self, environment: &mut dyn Environment) -> Option<Evidence> {
        let until = Instant::now() + self.timeout;
        loop {
            let evidence = environment.evidence().await?;
            if Instant::now() >= until || self.expected.matches_at_end(&evidence) {
                return Some(evidence);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// What ended a trajectory, besides the last step's outcome.
#[derive(Debug, Default)]
struct ReplayEnd {
    end: Option<EndKind>,
    answer: Option<String>,
    /// The probe's report that the task is done.
    probe_json: Option<String>,
}

impl ReplayedTrajectory {
    fn stop(&mut self, at: &str, error: &EnvironmentError) {
        self.stopped = Some(format!("{at}: {error}"));
        self.browser_died = *error == EnvironmentError::BrowserDead;
    }

    async fn replay_steps(
        &mut self,
        environment: &mut dyn Environment,
        assignment: &Assignment,
        records: &[RecordedReply],
        wait: &ExpectationWait<'_>,
    ) -> Result<ReplayEnd, (String, EnvironmentError)> {
        let task = &assignment.task;
        let allow = AllowList::new(&task.start_url, &task.allow_hosts)
            .map_err(|bad| ("the task".to_owned(), EnvironmentError::Failed(bad.to_string())))?;
        let made = environment.begin().await.map_err(|error| ("the start page".to_owned(), error))?;
        self.goal = task.goal.clone().or(made);
        for record in records {
            let at = self.steps.len();
            let observed = wait.observe_before_step(environment, at).await;
            let observation = observed.map_err(|error| (format!("step {at}"), error))?;
            tokio::time::sleep(record.pause).await;
            let done = execute_reply(environment, &record.reply, &allow, &assignment.secrets).await;
            let unrecorded = environment.unrecorded();
            let (outcome, last) = match done {
                Ok((outcome, last)) => (Some(outcome), last),
                Err(error) => {
                    self.browser_died |= error == EnvironmentError::BrowserDead;
                    (error.outcome(), ReplayEnd { end: Some(error.end()), ..ReplayEnd::default() })
                }
            };
            self.steps.push(ReplayedStep { observation, outcome, unrecorded });
            if last.end.is_some() {
                return Ok(last);
            }
        }
        Ok(ReplayEnd::default())
    }

    async fn collect_evidence(
        &mut self,
        environment: &mut dyn Environment,
        last: ReplayEnd,
        wait: &ExpectationWait<'_>,
    ) {
        self.end = last.end;
        let Some(mut evidence) = wait.evidence_at_end(environment).await else { return };
        evidence.answer = last.answer;
        let downloads = environment.downloads().await;
        let probe_json = last.probe_json.or(evidence.probe_json);
        evidence.probe_json = DownloadReport::attach(downloads.as_ref(), probe_json);
        self.evidence = Some(evidence);
    }
}

async fn execute_reply(
    environment: &mut dyn Environment,
    reply: &PolicyReply,
    allow: &AllowList,
    secrets: &[String],
) -> Result<(Outcome, ReplayEnd), EnvironmentError> {
    let action = match &reply.action {
        Ok(action) => action,
        Err(why) => {
            return settle_and_probe(environment, Outcome::with_detail(OutcomeName::InvalidAction, why))
                .await;
        }
    };
    if let Some(why) = refused_address(action, secrets) {
        return settle_and_probe(environment, Outcome::with_detail(OutcomeName::InvalidAction, why)).await;
    }
    if let Some(off) =
        action.parts().iter().filter_map(Action::address).find_map(|url| allow.check_url(url).err())
    {
        let outcome = Outcome::with_detail(
            OutcomeName::OffList,
            format!("{:?} is not among the addresses of this task", off.host),
        );
        return Ok((outcome, ReplayEnd { end: Some(EndKind::OffListNavigation), ..ReplayEnd::default() }));
    }
    let [before @ .., Action::Answer { content }] = action.parts() else {
        return execute_action(environment, action).await;
    };
    if let Ok(before) = Action::of_several(before.to_vec()) {
        let (outcome, last) = execute_action(environment, &before).await?;
        if last.end.is_some() || outcome.name != OutcomeName::Ok {
            return Ok((outcome, last));
        }
    }
    let last = ReplayEnd { end: Some(EndKind::Answered), answer: Some(content.clone()), probe_json: None };
    Ok((Outcome::named(OutcomeName::Answered), last))
}

async fn execute_action(
    environment: &mut dyn Environment,
    action: &Action,
) -> Result<(Outcome, ReplayEnd), EnvironmentError> {
    let outcome = environment.act(action).await?;
    settle_and_probe(environment, outcome).await
}

async fn settle_and_probe(
    environment: &mut dyn Environment,
    outcome: Outcome,
) -> Result<(Outcome, ReplayEnd), EnvironmentError> {
    let outcome = environment.settle(outcome).await?;
    let probe_json = match environment.probe().await {
        // A policy may have led its tab to a page that does not implement the probe.
        Err(EnvironmentError::Failed(_)) => None,
        probed => probed?,
    };
    let is_done = probe_json.as_deref().is_some_and(reports_done);
    let last = match is_done {
        true => ReplayEnd { end: Some(EndKind::Done), answer: None, probe_json },
        false => ReplayEnd::default(),
    };
    Ok((outcome, last))
}
