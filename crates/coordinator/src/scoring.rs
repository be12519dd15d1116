//! Scoring: reads the evidence of a finished trajectory back from the spool and passes it to its
//! task's scorer, which may call a judge.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_rollout::{Id, Trajectory, TrajectoryEnding};
use furrow_tasks::{EndFacts, FinishedTrajectory, ScoreError};
use furrow_wire::WireError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::core::Event;
use crate::crash;
use crate::inbox::EventSender;
use crate::judge::JudgeClient;
use crate::ledger::{TaskDraw, TimedScore};
use crate::plan::{JobPlan, UnknownTask};
use crate::spool::{EntryKey, Spool, SpoolError};

/// Passes evidence to scorers, a few at a time. Each trajectory is a task of its own, and the
/// coordinator owns them all.
#[derive(Debug, Clone)]
pub(crate) struct ScorerPool {
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) spool: Spool,
    pub(crate) judge: Option<JudgeClient>,
    pub(crate) events: EventSender,
    pub(crate) tracker: TaskTracker,
    /// Limits the trajectories scored at the same time.
    pub(crate) permits: Arc<Semaphore>,
    /// Time for one scoring by rules; a judge has its own deadline in addition.
    pub(crate) deadline: Duration,
}

/// Why a finished trajectory got no verdict. The core receives the text, as the reason that it
/// records when no attempt is left.
#[derive(Debug, thiserror::Error)]
enum ScoringError {
    /// The job does not have its task any more.
    #[error(transparent)]
    Task(#[from] UnknownTask),
    /// Its steps and its ending cannot be read back.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("the spool does not hold its ending")]
    NoEnding,
    /// A step or the ending is not a valid message.
    #[error(transparent)]
    Message(#[from] WireError),
    /// Its scorer, or the judge, came to no verdict.
    #[error(transparent)]
    Scorer(#[from] ScoreError),
    #[error("the scorer panicked: {0}")]
    Panicked(JoinError),
    #[error("no verdict within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

impl ScorerPool {
    /// Starts scoring; an [`Event::Scored`] follows. At most as many wait here as
    /// `limits.backlog_max` lets finish.
    pub(crate) fn score(&self, trajectory: Id<Trajectory>, draw: Arc<TaskDraw>, sample_index: u32) {
        let scorers = self.clone();
        self.tracker.spawn(async move {
            let Ok(permit) = scorers.permits.clone().acquire_owned().await else { return };
            let verdict = scorers.run_scorer(trajectory.clone(), (draw, sample_index), permit).await;
            let verdict = verdict.map_err(|error| error.to_string());
            if let Err(why) = &verdict {
                tracing::warn!(trajectory_id = %trajectory, why, "scoring gave no verdict");
            }
            crash::point("coordinator.after_score");
            // If this coordinator has stopped, the event is lost and the next one scores the
            // trajectory again.
            scorers.events.send(Event::Scored { trajectory, verdict }).await.ok();
        });
    }

    async fn run_scorer(
        &self,
        trajectory: Id<Trajectory>,
        (draw, sample_index): (Arc<TaskDraw>, u32),
        permit: OwnedSemaphorePermit,
    ) -> Result<TimedScore, ScoringError> {
        let deadline = self.deadline_of(&draw);
        let plan = self.plan.clone();
        let spool = self.spool.clone();
        let judge = self.judge.clone();
        let scoring = tokio::task::spawn_blocking(move || {
            let _permit = permit; // a hung scorer keeps its permit, so that hung ones cannot pile up
            score_trajectory(&plan, &spool, judge.as_ref(), &trajectory, (&draw, sample_index))
        });
        match timeout(deadline, scoring).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(panic)) => Err(ScoringError::Panicked(panic)),
            Err(_) => Err(ScoringError::TimedOut(deadline)),
        }
    }

    fn deadline_of(&self, draw: &TaskDraw) -> Duration {
        let needs_judge = self.plan.spec(draw).is_ok_and(|spec| spec.scorer.needs_judge());
        let judges = self.judge.as_ref().filter(|_| needs_judge).map(JudgeClient::deadline);
        self.deadline + judges.unwrap_or_default()
    }
}

fn score_trajectory(
    plan: &JobPlan,
    spool: &Spool,
    judge: Option<&JudgeClient>,
    trajectory: &Id<Trajectory>,
    (draw, sample_index): (&TaskDraw, u32),
) -> Result<TimedScore, ScoringError> {
    let began = Instant::now();
    let max_steps = plan.max_steps(draw, sample_index)?;
    let spec = plan.spec(draw)?;
    let wanted = judge.map_or(0, |judge| spec.scorer.screenshots(judge.habits()));
    let (ending, earlier) = spooled(spool, trajectory, wanted)?;
    let evidence = ending.evidence.unwrap_or_default();
    let facts = EndFacts { end: ending.end, steps: ending.steps, max_steps };
    let finished =
        FinishedTrajectory { evidence: &evidence, facts: &facts, goal: &ending.goal, earlier: &earlier };
    let sitting = judge.map(JudgeClient::begin_scoring);
    let scoring_judge = sitting.as_ref().map(|sitting| sitting as &dyn furrow_tasks::Judge);
    let score = spec.scorer.score_with(&finished, scoring_judge)?;
    Ok(TimedScore { score, micros: began.elapsed().as_micros() as u64 })
}

/// A trajectory's ending, and the screenshots of its last steps, oldest first.
fn spooled(
    spool: &Spool,
    trajectory: &Id<Trajectory>,
    wanted: usize,
) -> Result<(TrajectoryEnding, Vec<Bytes>), ScoringError> {
    let mut last = VecDeque::new();
    for entry in spool.read(trajectory)? {
        let entry = entry?;
        match entry.key {
            EntryKey::End => {
                let ending = furrow_wire::decode_ending(entry.payload)?;
                return Ok((ending, last.into_iter().map(screenshot).collect::<Result<_, _>>()?));
            }
            EntryKey::Step(_) if wanted > 0 => {
                if last.len() == wanted {
                    last.pop_front();
                }
                last.push_back(entry.payload);
            }
            EntryKey::Step(_) => {}
        }
    }
    Err(ScoringError::NoEnding)
}

fn screenshot(step: Bytes) -> Result<Bytes, WireError> {
    let record = furrow_wire::decode_step(step)?;
    Ok(record.observation.screenshot.bytes)
}
