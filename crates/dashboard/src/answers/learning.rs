//! The answer of `/api/learning`.

use std::collections::BTreeMap;

use furrow_analysis::KeptReport;
use furrow_records::LogprobGap;
use serde::{Deserialize, Serialize};

use super::head::PageHead;
use super::rates::{RateInterval, TrajectoryRates};

/// Data of the page Learning.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct LearningAnswer {
    #[serde(flatten)]
    pub metrics: LearningMetrics,
    /// What a trainer keeps; `None` while it is being computed, and without a data set.
    pub kept: Option<KeptReport>,
    pub head: PageHead,
}

/// The metrics of the page Learning: without evaluations, which have their own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct LearningMetrics {
    pub all: TrajectoryRates,
    pub evaluated: TrajectoryRates,
    /// The lines of the newest versions, the newest one first.
    pub by_version: Vec<VersionLine>,
    /// Number of older versions without a line.
    pub versions_left_out: u64,
    pub by_suite: Vec<SuiteLine>,
    /// The lines of the tasks with the most attempts, the largest number first.
    pub by_task: Vec<TaskLine>,
    /// Number of tasks without a line.
    pub tasks_left_out: u64,
    /// Number of closed groups, by which the next share is divided.
    pub groups: u64,
    /// Share of the groups whose rewards are all equal.
    pub zero_variance_share: Option<f64>,
    /// Steps by the reason why their response ended.
    pub finish_reasons: BTreeMap<String, u64>,
    /// Steps by the outcome of their action.
    pub outcomes: BTreeMap<String, u64>,
    /// Steps by the origin of their state.
    pub state_origins: BTreeMap<String, u64>,
    pub invalid_action_rate: Option<f64>,
    pub response_tokens_per_step: Option<f64>,
    pub entropy_mean: Option<f64>,
    pub logprob_mean: Option<f64>,
    pub prefill_gap: Option<LogprobGap>,
    /// Scored trajectories by the number of versions behind. Pairs, in order: a JSON object would
    /// sort its keys as text.
    pub staleness: Vec<(i32, u64)>,
    /// Scored trajectories by their number of steps, as pairs.
    pub lengths: Vec<(i32, u64)>,
}

/// Rates of one policy version.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct VersionLine {
    #[serde(flatten)]
    pub rates: TrajectoryRates,
    /// The newest version that acted; `None`: the policy has no versions.
    pub version: Option<i32>,
    pub success_interval: Option<RateInterval>,
    pub entropy_mean: Option<f64>,
    pub logprob_mean: Option<f64>,
    pub groups: u64,
    pub zero_variance_share: Option<f64>,
}

/// Rates of one suite.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct SuiteLine {
    #[serde(flatten)]
    pub rates: TrajectoryRates,
    pub suite: String,
}

/// Rates of one task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TaskLine {
    #[serde(flatten)]
    pub rates: TrajectoryRates,
    pub suite: String,
    pub task_id: String,
}
