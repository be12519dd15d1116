//! Counts and rates of trajectories, as parts of other answers.

use serde::{Deserialize, Serialize};

/// Sums over some trajectories, and the rates made of them. Failed trajectories count in no rate of
/// success or reward.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TrajectoryRates {
    pub trajectories: u64,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Trajectories that failed by the farm's fault.
    pub failed: u64,
    /// Scored trajectories whose scorer decides whether the task is solved.
    pub judged: u64,
    /// Those of them that solved it.
    pub successes: u64,
    pub steps: u64,
    pub success_rate: Option<f64>,
    pub reward_mean: Option<f64>,
    pub failure_rate: Option<f64>,
    /// Mean number of steps of a trajectory, failed ones included.
    pub steps_mean: Option<f64>,
    pub response_tokens_per_step: Option<f64>,
    pub invalid_action_rate: Option<f64>,
    pub device_seconds_per_scored: Option<f64>,
}

/// The 95 % interval of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RateInterval {
    pub low: f64,
    pub high: f64,
}

/// A rate and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RateWithInterval {
    pub low: f64,
    pub high: f64,
    pub value: f64,
}
