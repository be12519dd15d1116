//! Scoring: the evidence of a finished trajectory is read back from the spool and shown to its task's scorer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_rollout::{Ending, Id, Trajectory};
use furrow_tasks::Facts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::core::Event;
use crate::crash;
use crate::ledger::{Draw, Verdict};
use crate::plan::JobPlan;
use crate::shell::Desk;
use crate::spool::{Key, Spool};

/// Shows evidence to scorers, a few at a time. Each trajectory is a task of its own, and the coordinator owns them all.
#[derive(Debug, Clone)]
pub(crate) struct Scorers {
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) spool: Spool,
    pub(crate) desk: Desk,
    pub(crate) tracker: TaskTracker,
    /// Trajectories scored at the same time.
    pub(crate) places: Arc<Semaphore>,
    /// Time for one scoring.
    pub(crate) deadline: Duration,
}

impl Scorers {
    /// Begins to score; [`Event::Judged`] comes to the desk. As many wait here as `limits.backlog_max` lets finish.
    pub fn score(&self, trajectory: Id<Trajectory>, draw: Arc<Draw>) {
        let scorers = self.clone();
        self.tracker.spawn(async move {
            let Ok(place) = scorers.places.clone().acquire_owned().await else { return };
            let verdict = scorers.judge(trajectory.clone(), draw, place).await;
            crash::point("coordinator.after_score");
            // A coordinator that has stopped scores it again when it is resumed.
            scorers.desk.tell(Event::Judged { trajectory, verdict }).await.ok();
        });
    }

    async fn judge(
        &self,
        trajectory: Id<Trajectory>,
        draw: Arc<Draw>,
        place: OwnedSemaphorePermit,
    ) -> Result<Verdict, String> {
        let (plan, spool) = (self.plan.clone(), self.spool.clone());
        let judging = tokio::task::spawn_blocking(move || {
            let _place = place; // a scorer that hangs keeps its place: hung ones cannot pile up
            judge(&plan, &spool, &trajectory, &draw)
        });
        match timeout(self.deadline, judging).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(panic)) => Err(format!("the scorer panicked: {panic}")),
            Err(_) => Err(format!("no verdict within {} ms", self.deadline.as_millis())),
        }
    }
}

fn judge(plan: &JobPlan, spool: &Spool, trajectory: &Id<Trajectory>, draw: &Draw) -> Result<Verdict, String> {
    let began = Instant::now();
    let spec = plan.spec(draw).map_err(|error| error.to_string())?;
    let ending = ending(spool, trajectory)?;
    let evidence = ending.evidence.unwrap_or_default();
    let facts = Facts { end: ending.end, steps: ending.steps, max_steps: spec.task.max_steps };
    let score = spec.scorer.score(&evidence, &facts).map_err(|error| error.to_string())?;
    Ok(Verdict { score, micros: began.elapsed().as_micros() as u64 })
}

fn ending(spool: &Spool, trajectory: &Id<Trajectory>) -> Result<Ending, String> {
    for entry in spool.read(trajectory).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        if entry.key == Key::End {
            return furrow_wire::decode_ending(entry.payload).map_err(|error| error.to_string());
        }
    }
    Err("the spool does not hold its ending".to_owned())
}
