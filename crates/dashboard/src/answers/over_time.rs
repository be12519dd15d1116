//! Points of the charts over time.

use serde::{Deserialize, Serialize};

use super::rates::RateInterval;

/// Trajectories by the time of their end, in equal spans of whole minutes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TrajectoriesOverTime {
    pub span_minutes: i64,
    pub points: Vec<MinuteSpan>,
}

/// The trajectories that ended in one span of minutes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct MinuteSpan {
    /// Begin of the span, in seconds since the Unix epoch.
    pub at: i64,
    pub scored: u64,
    pub failed: u64,
    pub trajectories_per_hour: f64,
    pub success_rate: Option<f64>,
    /// Wilson's, as if each attempt were at a different task; `None` of an older dashboard.
    pub success_interval: Option<RateInterval>,
}

/// The time between two lines of `metrics.jsonl`, some lines apart.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct HistorySpan {
    /// End of the span, in seconds since the Unix epoch.
    pub at: f64,
    pub trajectories_per_device_hour: Option<f64>,
    pub trajectories_per_hour: Option<f64>,
    pub device_busy_share: Option<f64>,
}
