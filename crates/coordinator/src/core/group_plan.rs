//! Where the core gets the tasks of a job from.

use std::collections::BTreeMap;

use furrow_rollout::Split;

use crate::ledger::TaskTally;

/// Supplies the task of each group. The answers do not depend on the order of the calls.
pub trait GroupPlan: Send + Sync {
    /// Groups in the whole job.
    fn groups(&self) -> u64;

    /// Slots of each group, spares included.
    fn group_size(&self) -> u32;

    /// Scored slots with which a group is complete; its other trajectories are then cancelled.
    fn group_needs(&self) -> u32 {
        self.group_size()
    }

    /// The draw of the `index`th group, given the success measured so far.
    fn draw(&self, index: u64, tallies: &TaskTallies) -> SampledTask;

    /// How the job is evaluated while it runs, if it is.
    fn schedule(&self) -> Option<EvaluationSchedule> {
        None
    }

    /// The `index`th problem of every evaluation.
    fn problem(&self, index: u64) -> SampledTask {
        self.draw(index, &TaskTallies::new())
    }
}

/// Measured success of each task, by suite and task id.
pub type TaskTallies = BTreeMap<(String, String), TaskTally>;

/// The task of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledTask {
    /// Suite of the task.
    pub suite: String,
    pub task_id: String,
    pub split: Split,
    /// The seed all slots share.
    pub seed: u64,
    /// The task's line in its file.
    pub task_json: String,
    /// The probability with which it was drawn, where it depends on measured success.
    pub chance: Option<f64>,
}

/// How a job is evaluated while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationSchedule {
    /// Versions from one evaluation to the next.
    pub every_versions: u32,
    /// Problems per evaluation, the same ones every time.
    pub problems: u64,
    /// Trajectories of each problem.
    pub group_size: u32,
    /// How long newer weights wait for an open evaluation, and an open evaluation for a worker that
    /// runs its version.
    pub hold_millis: u64,
}
