//! A running job, as a part of other answers.

use serde::{Deserialize, Serialize};

use super::rates::RateWithInterval;

/// A running job, as its coordinator last described it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct LiveProgress {
    pub groups_planned: u32,
    pub groups_closed: u32,
    pub running: u32,
    pub scored: u32,
    pub failed: u32,
    /// Trajectories in committed shards.
    pub published: u32,
    /// Scored trajectories that a trainer discarded.
    pub discarded: u32,
    pub steps: u64,
    pub successes: u32,
    /// Scored trajectories whose scorer decides whether the task is solved, evaluations left out.
    pub judged: u32,
    /// Share of them that solved it.
    pub success_rate: Option<RateWithInterval>,
    /// Trajectories that ended and have no verdict yet.
    pub scoring: u32,
    pub reward_mean: Option<f64>,
    pub env_workers: u32,
    pub policy_workers: u32,
    /// `open`, or the reason for a pause.
    pub admission: String,
    pub run_over: bool,
    /// Trajectories with a reward per hour since this start; `None` of an older coordinator.
    pub trajectories_per_hour: Option<f64>,
    /// Seconds left; `None` before a group closed.
    pub eta_seconds: Option<f64>,
    /// The newest version that a policy worker runs.
    pub version: Option<i32>,
    /// The newest published version.
    pub version_newest: Option<i32>,
    /// The version of each policy worker.
    pub weights: Vec<RunningVersion>,
}

/// The version of the weights that a policy worker runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RunningVersion {
    pub worker: String,
    pub version: i32,
    /// Why it does not run the newest version, where known.
    pub lags: String,
}
