//! The answer of `/api/overview`.

use serde::{Deserialize, Serialize};

use super::device::DeviceKind;
use super::head::PageHead;
use super::hours::TimeShare;
use super::live::LiveProgress;
use super::over_time::{HistorySpan, TrajectoriesOverTime};
use super::rates::TrajectoryRates;

/// Data of the page Overview.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct OverviewAnswer {
    #[serde(flatten)]
    pub metrics: OverviewMetrics,
    pub head: PageHead,
    /// The running job; `None`: no coordinator answers.
    pub live: Option<LiveProgress>,
}

/// The metrics of the page Overview.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct OverviewMetrics {
    /// All trajectories, evaluations included.
    pub counts: TrajectoryRates,
    /// Without evaluations: what a policy learns from.
    pub training: TrajectoryRates,
    /// Evaluations alone (split `eval`).
    pub evaluated: TrajectoryRates,
    pub ends: Vec<EndCount>,
    /// Earliest start, microseconds since the Unix epoch.
    pub started_at: Option<i64>,
    /// Latest end, microseconds since the Unix epoch.
    pub ended_at: Option<i64>,
    pub wall_seconds: Option<f64>,
    pub device: DeviceKind,
    pub throughput: Throughput,
    pub tokens: TokenRates,
    pub device_hours: Option<f64>,
    /// Device time that the trajectories caused.
    pub device_micros_of_trajectories: u64,
    pub device_parts: Option<Vec<TimeShare>>,
    pub slot_parts: Option<Vec<TimeShare>>,
    pub session_parts: Vec<TimeShare>,
    pub cost_usd: Option<f64>,
    pub cost_usd_per_trajectory: Option<f64>,
    pub versions: VersionRange,
    pub over_time: TrajectoriesOverTime,
    pub hours_over_time: Vec<HistorySpan>,
}

/// Trajectories with the same end and status.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct EndCount {
    pub end: String,
    /// `scored` if a scorer received this end, `failed` if the farm caused it.
    pub status: String,
    pub trajectories: u64,
}

/// How many trajectories the run made of its hours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Throughput {
    /// Trajectories with a reward, by the run's history if it is known.
    pub scored: u64,
    pub trajectories_per_device_hour: Option<f64>,
    /// The rate if the device never waited.
    pub ceiling_device_bound: Option<f64>,
    /// The rate if no slot were ever empty.
    pub ceiling_session_bound: Option<f64>,
    pub trajectories_per_slot_hour: Option<f64>,
    /// Per hour of wall clock.
    pub trajectories_per_hour: Option<f64>,
    pub steps_per_second: Option<f64>,
}

/// Tokens by how the model got them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TokenRates {
    pub generated: u64,
    pub prefilled: u64,
    pub reused: u64,
    pub generated_per_second: Option<f64>,
    pub prefilled_per_second: Option<f64>,
    pub reused_per_second: Option<f64>,
    /// Share of reused tokens in the context.
    pub reused_share: Option<f64>,
}

/// The versions that acted, and how many a trajectory was behind when it ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct VersionRange {
    pub oldest: Option<i32>,
    pub newest: Option<i32>,
    pub staleness_mean: Option<f64>,
    pub staleness_max: Option<i32>,
}
