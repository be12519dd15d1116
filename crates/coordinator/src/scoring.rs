//! Scoring: the evidence of a finished trajectory is read back from the spool and shown to its task's scorer, who may ask a judge.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_rollout::{Ending, Id, Trajectory};
use furrow_tasks::{Facts, Finished};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::core::Event;
use crate::crash;
use crate::judge::Judge;
use crate::ledger::{Draw, Verdict};
use crate::plan::JobPlan;
use crate::shell::Desk;
use crate::spool::{Key, Spool};

/// Shows evidence to scorers, a few at a time. Each trajectory is a task of its own, and the coordinator owns them all.
#[derive(Debug, Clone)]
pub(crate) struct Scorers {
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) spool: Spool,
    pub(crate) judge: Option<Judge>,
    pub(crate) desk: Desk,
    pub(crate) tracker: TaskTracker,
    /// Trajectories scored at the same time.
    pub(crate) places: Arc<Semaphore>,
    /// Time for one scoring by rules; a judge has its own beside it.
    pub(crate) deadline: Duration,
}

impl Scorers {
    /// Begins to score; [`Event::Judged`] comes to the desk. As many wait here as `limits.backlog_max` lets finish.
    pub fn score(&self, trajectory: Id<Trajectory>, draw: Arc<Draw>, sample_index: u32) {
        let scorers = self.clone();
        self.tracker.spawn(async move {
            let Ok(place) = scorers.places.clone().acquire_owned().await else { return };
            let verdict = scorers.judge(trajectory.clone(), (draw, sample_index), place).await;
            if let Err(why) = &verdict {
                tracing::warn!(trajectory_id = %trajectory, why, "no verdict");
            }
            crash::point("coordinator.after_score");
            // A coordinator that has stopped scores it again when it is resumed.
            scorers.desk.tell(Event::Judged { trajectory, verdict }).await.ok();
        });
    }

    async fn judge(
        &self,
        trajectory: Id<Trajectory>,
        (draw, sample_index): (Arc<Draw>, u32),
        place: OwnedSemaphorePermit,
    ) -> Result<Verdict, String> {
        let deadline = self.deadline_of(&draw);
        let (plan, spool, judge) = (self.plan.clone(), self.spool.clone(), self.judge.clone());
        let judging = tokio::task::spawn_blocking(move || {
            let _place = place; // a scorer that hangs keeps its place: hung ones cannot pile up
            judged(&plan, &spool, judge.as_ref(), &trajectory, (&draw, sample_index))
        });
        match timeout(deadline, judging).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(panic)) => Err(format!("the scorer panicked: {panic}")),
            Err(_) => Err(format!("no verdict within {} ms", deadline.as_millis())),
        }
    }

    fn deadline_of(&self, draw: &Draw) -> Duration {
        let asks = self.plan.spec(draw).is_ok_and(|spec| spec.scorer.needs_judge());
        let judges = self.judge.as_ref().filter(|_| asks).map(Judge::deadline);
        self.deadline + judges.unwrap_or_default()
    }
}

fn judged(
    plan: &JobPlan,
    spool: &Spool,
    judge: Option<&Judge>,
    trajectory: &Id<Trajectory>,
    (draw, sample_index): (&Draw, u32),
) -> Result<Verdict, String> {
    let began = Instant::now();
    let max_steps = plan.max_steps(draw, sample_index).map_err(|error| error.to_string())?;
    let spec = plan.spec(draw).map_err(|error| error.to_string())?;
    let wanted = judge.map_or(0, |judge| spec.scorer.screenshots(judge.habits()));
    let (ending, earlier) = spooled(spool, trajectory, wanted)?;
    let evidence = ending.evidence.unwrap_or_default();
    let facts = Facts { end: ending.end, steps: ending.steps, max_steps };
    let finished = Finished { evidence: &evidence, facts: &facts, goal: &ending.goal, earlier: &earlier };
    let sitting = judge.map(Judge::sit);
    let asked = sitting.as_ref().map(|sitting| sitting as &dyn furrow_tasks::Judge);
    let score = spec.scorer.score_with(&finished, asked).map_err(|error| error.to_string())?;
    Ok(Verdict { score, micros: began.elapsed().as_micros() as u64 })
}

/// A trajectory's ending, and the screenshots of its last steps, oldest first.
fn spooled(
    spool: &Spool,
    trajectory: &Id<Trajectory>,
    wanted: usize,
) -> Result<(Ending, Vec<Bytes>), String> {
    let mut last = VecDeque::new();
    for entry in spool.read(trajectory).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        match entry.key {
            Key::End => {
                let ending = furrow_wire::decode_ending(entry.payload).map_err(|error| error.to_string())?;
                return Ok((ending, last.into_iter().map(screenshot).collect::<Result<_, _>>()?));
            }
            Key::Step(_) if wanted > 0 => {
                if last.len() == wanted {
                    last.pop_front();
                }
                last.push_back(entry.payload);
            }
            Key::Step(_) => {}
        }
    }
    Err("the spool does not hold its ending".to_owned())
}

fn screenshot(step: Bytes) -> Result<Bytes, String> {
    let record = furrow_wire::decode_step(step).map_err(|error| error.to_string())?;
    Ok(record.observation.screenshot.bytes)
}
