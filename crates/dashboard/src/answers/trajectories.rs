//! The answers of `/api/trajectories`, `/api/choices` and `/api/trajectory/ID`.

use furrow_analysis::view::TrajectoryLine;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::head::PageHead;

/// One window of the table of trajectories.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TrajectoryWindow {
    /// Trajectories in the index.
    pub total: u64,
    /// Trajectories that the query selects.
    pub matched: u64,
    /// Number of selected trajectories before the first row.
    pub offset: u64,
    pub rows: Vec<TrajectoryRow>,
}

/// The columns that the table shows of a trajectory: those of [`TrajectoryLine`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TrajectoryRow {
    pub trajectory_id: String,
    pub task_id: String,
    pub suite: String,
    pub split: String,
    pub policy_kind: String,
    pub status: String,
    pub end: String,
    pub sample_index: i32,
    pub attempt: i16,
    /// As `f64`, so that its digits are those of a reward in Python.
    pub reward: Option<f64>,
    pub success: Option<bool>,
    pub num_steps: i32,
    pub num_prompt_tokens: u32,
    pub num_response_tokens: u32,
    pub num_invalid_actions: i32,
    pub policy_version_min: Option<i32>,
    pub policy_version_max: Option<i32>,
    pub staleness: Option<i32>,
    pub gpu_millis: u32,
    pub life_millis: u32,
    pub ended_at: i64,
}

/// The choices of the filters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct ChoicesAnswer {
    pub suites: Vec<String>,
    pub splits: Vec<String>,
    pub ends: Vec<String>,
    pub policy_kinds: Vec<String>,
    pub head: PageHead,
}

/// One trajectory, its steps, and its siblings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TrajectoryAnswer {
    /// Its row of `trajectories`, with the columns of the file.
    pub trajectory: Value,
    /// Its rows of `steps` or `failed_steps`, with the columns of the file.
    pub steps: Vec<Value>,
    /// The trajectories of its group, itself included.
    pub siblings: Vec<TrajectoryRow>,
    pub head: PageHead,
}

impl From<TrajectoryLine<'_>> for TrajectoryRow {
    fn from(line: TrajectoryLine<'_>) -> Self {
        Self {
            trajectory_id: line.trajectory_id.to_owned(),
            task_id: line.task_id.to_owned(),
            suite: line.suite.to_owned(),
            split: line.split.to_owned(),
            policy_kind: line.policy_kind.to_owned(),
            status: line.status.to_owned(),
            end: line.end.to_owned(),
            sample_index: line.sample_index,
            attempt: line.attempt,
            reward: line.reward.map(f64::from),
            success: line.success,
            num_steps: line.num_steps,
            num_prompt_tokens: line.num_prompt_tokens,
            num_response_tokens: line.num_response_tokens,
            num_invalid_actions: line.num_invalid_actions,
            policy_version_min: line.policy_version_min,
            policy_version_max: line.policy_version_max,
            staleness: line.staleness,
            gpu_millis: line.gpu_millis,
            life_millis: line.life_millis,
            ended_at: line.ended_at,
        }
    }
}
