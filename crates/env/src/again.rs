//! A recorded trajectory acted again: the same inputs on a fresh stage, and what was to be seen this time.
//!
//! It follows `attempt.rs` without a policy and without a coordinator: each recorded reply is carried out as it was then. What comes of
//! it is told step by step; whether that is the same is for whoever asked to say.

use std::time::Duration;

use furrow_rollout::{
    Action, Assignment, Clock, End, EnvironmentFingerprint, Evidence, Observation, Outcome, OutcomeName,
    Reply,
};
use tokio::time::Instant;

use crate::attempt::says_done;
use crate::hosts::AllowList;
use crate::stage::{Stage, StageError, Stages};

/// One step as it was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// What the policy replied.
    pub reply: Reply,
    /// Time to let pass between the look and the action.
    pub pause: Duration,
}

/// A trajectory acted again.
#[derive(Debug, Clone, PartialEq)]
pub struct ActedAgain {
    /// The goal that the page made, if it made one.
    pub goal: Option<String>,
    /// What was seen and what came of it, as far as it went.
    pub steps: Vec<SeenStep>,
    /// How it ended by itself; `None` where every recorded reply was carried out and the page goes on.
    pub end: Option<End>,
    /// What was to be seen at the end, with the answer given.
    pub evidence: Option<Evidence>,
    /// Requests between the last step and the end that an archive had no answer to.
    pub unrecorded: Vec<String>,
    /// Why it stopped before its end, if it did.
    pub stopped: Option<String>,
    /// Where it was acted.
    pub environment: EnvironmentFingerprint,
}

/// One step as it went this time.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenStep {
    /// State before the action.
    pub observation: Observation,
    /// What came of it; `None` where the page failed before it could be acted on.
    pub outcome: Option<Outcome>,
    /// Requests since the step before that an archive had no answer to: method and address.
    pub unrecorded: Vec<String>,
}

/// What a page is waited for to look like: in real time it may be slower today than it was.
pub trait Expectation: Sync {
    /// Whether the page looks as it did before this step.
    fn before_step(&self, step: usize, seen: &Observation) -> bool;

    /// Whether it looks as it did at the end.
    fn at_end(&self, seen: &Evidence) -> bool;
}

/// Acts a trajectory again, in as many steps as there are records. A page that lives in real time and does not look as expected is
/// given so much time to come to it; what it looks like then is what was seen. The stage is gone when this returns.
pub async fn act_again(
    stages: &dyn Stages,
    assignment: &Assignment,
    records: &[Recorded],
    expected: &dyn Expectation,
    patience: Duration,
) -> ActedAgain {
    // Page time in our hand stands still while we wait.
    let patience = if assignment.task.clock == Clock::Real { patience } else { Duration::ZERO };
    let wait = Wait { expected, patience };
    let mut again = ActedAgain {
        goal: None,
        steps: Vec::new(),
        end: None,
        evidence: None,
        unrecorded: Vec::new(),
        stopped: None,
        environment: stages.environment(Some(&assignment.task)),
    };
    let mut stage = match stages.open(assignment).await {
        Ok(stage) => stage,
        Err(error) => {
            again.stopped = Some(format!("no page: {error}"));
            return again;
        }
    };
    match again.act(stage.as_mut(), assignment, records, &wait).await {
        Ok(answer) => again.look_back(stage.as_mut(), answer, &wait).await,
        Err(why) => again.stopped = Some(why),
    }
    again.unrecorded = stage.unrecorded();
    stage.close().await;
    again
}

/// Looks until the page is as expected or patience ends.
struct Wait<'a> {
    expected: &'a dyn Expectation,
    patience: Duration,
}

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

impl Wait<'_> {
    async fn before_step(&self, stage: &mut dyn Stage, step: usize) -> Result<Observation, StageError> {
        let until = Instant::now() + self.patience;
        loop {
            let seen = stage.observe().await?;
            if Instant::now() >= until || self.expected.before_step(step, &seen) {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn at_end(&self, stage: &mut dyn Stage) -> Option<Evidence> {
        let until = Instant::now() + self.patience;
        loop {
            let seen = stage.evidence().await?;
            if Instant::now() >= until || self.expected.at_end(&seen) {
                return Some(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What ended a trajectory, beside the last step's outcome.
#[derive(Debug, Default)]
struct Last {
    end: Option<End>,
    answer: Option<String>,
    /// What the probe said when it said that the task is done.
    probe_json: Option<String>,
}

impl ActedAgain {
    async fn act(
        &mut self,
        stage: &mut dyn Stage,
        assignment: &Assignment,
        records: &[Recorded],
        wait: &Wait<'_>,
    ) -> Result<Last, String> {
        let task = &assignment.task;
        let allow = AllowList::new(&task.start_url, &task.allow_hosts).map_err(|bad| bad.to_string())?;
        let made = stage.begin().await.map_err(|error| format!("the start page: {error}"))?;
        self.goal = task.goal.clone().or(made);
        for record in records {
            let at = self.steps.len();
            let seen = wait.before_step(stage, at).await;
            let observation = seen.map_err(|error| format!("step {at}: {error}"))?;
            tokio::time::sleep(record.pause).await;
            let done = answer(stage, &record.reply, &allow).await;
            let unrecorded = stage.unrecorded();
            let (outcome, last) = match done {
                Ok((outcome, last)) => (Some(outcome), last),
                Err(error) => (error.outcome(), Last { end: Some(error.end()), ..Last::default() }),
            };
            self.steps.push(SeenStep { observation, outcome, unrecorded });
            if last.end.is_some() {
                return Ok(last);
            }
        }
        Ok(Last::default())
    }

    async fn look_back(&mut self, stage: &mut dyn Stage, last: Last, wait: &Wait<'_>) {
        self.end = last.end;
        let Some(mut evidence) = wait.at_end(stage).await else { return };
        evidence.answer = last.answer;
        evidence.probe_json = last.probe_json.or(evidence.probe_json);
        self.evidence = Some(evidence);
    }
}

/// Does what was replied.
async fn answer(
    stage: &mut dyn Stage,
    reply: &Reply,
    allow: &AllowList,
) -> Result<(Outcome, Last), StageError> {
    let action = match &reply.action {
        Ok(action) => action,
        Err(why) => return settled(stage, Outcome::told(OutcomeName::InvalidAction, why)).await,
    };
    if let Some(off) =
        action.parts().iter().filter_map(Action::address).find_map(|url| allow.judge(url).err())
    {
        let outcome = Outcome::told(
            OutcomeName::OffList,
            format!("{:?} is not among the addresses of this task", off.host),
        );
        return Ok((outcome, Last { end: Some(End::OffListNavigation), ..Last::default() }));
    }
    let [before @ .., Action::Answer { content }] = action.parts() else { return acted(stage, action).await };
    if let Ok(before) = Action::of_several(before.to_vec()) {
        let (outcome, last) = acted(stage, &before).await?;
        if last.end.is_some() || outcome.name != OutcomeName::Ok {
            return Ok((outcome, last));
        }
    }
    let last = Last { end: Some(End::Answered), answer: Some(content.clone()), probe_json: None };
    Ok((Outcome::named(OutcomeName::Answered), last))
}

async fn acted(stage: &mut dyn Stage, action: &Action) -> Result<(Outcome, Last), StageError> {
    let outcome = stage.act(action).await?;
    settled(stage, outcome).await
}

async fn settled(stage: &mut dyn Stage, outcome: Outcome) -> Result<(Outcome, Last), StageError> {
    let outcome = stage.settle(outcome).await?;
    let probe_json = match stage.probe().await {
        // A policy may have led its tab to a page that knows nothing of the probe.
        Err(StageError::Failed(_)) => None,
        probed => probed?,
    };
    let is_done = probe_json.as_deref().is_some_and(says_done);
    let last = match is_done {
        true => Last { end: Some(End::Done), answer: None, probe_json },
        false => Last::default(),
    };
    Ok((outcome, last))
}
