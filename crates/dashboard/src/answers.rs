//! The answers of `/api/` as types. Handlers fill them; the terminal view and the report read their
//! fields; pages and programs read their JSON, which `docs/DASHBOARD.md` explains.
//!
//! A field has the name of its key, and fields stand in the order of the keys. An unknown value is
//! `null` ([`Option`]), never 0; a number that is not finite becomes `null`, too, because JSON has
//! none.
//!
//! `furrow watch` may read a dashboard of another version. It ignores keys that it does not know,
//! so a field can be added. A field that is added is an [`Option`] or has a default: an older
//! dashboard does not send it.

mod device;
mod head;
mod hours;
mod job;
mod learning;
mod live;
mod over_time;
mod overview;
mod rates;
mod refusal;
mod runs;
mod sessions;
#[cfg(test)]
mod tests;
mod trajectories;

pub use device::DeviceKind;
pub(crate) use head::{PageHead, SessionsHead};
pub(crate) use hours::{TimeAccount, TimeLedger, TimeShare};
pub(crate) use job::{JobAnswer, PlanLine, TableTotals, WorkerStatus};
pub(crate) use learning::{LearningAnswer, LearningMetrics, SuiteLine, TaskLine, VersionLine};
pub(crate) use live::{LiveProgress, RunningVersion};
pub(crate) use over_time::{HistorySpan, MinuteSpan, TrajectoriesOverTime};
pub(crate) use overview::{EndCount, OverviewAnswer, OverviewMetrics, Throughput, TokenRates, VersionRange};
pub(crate) use rates::{RateInterval, RateWithInterval, TrajectoryRates};
pub(crate) use refusal::Refusal;
pub(crate) use runs::{
    CompareAnswer, ComparisonAnswer, DifferenceAnswer, RunLine, RunsAnswer, TaskDifferenceLine,
};
pub(crate) use sessions::{RunningSession, SessionStep, SessionsAnswer};
pub(crate) use trajectories::{ChoicesAnswer, TrajectoryAnswer, TrajectoryRow, TrajectoryWindow};
