//! The answer of `/api/job`.

use serde::{Deserialize, Serialize};

use super::head::PageHead;
use super::hours::TimeLedger;
use super::live::LiveProgress;

/// Data of the page Job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct JobAnswer {
    pub head: PageHead,
    pub dir: Option<String>,
    /// The running job; `None`: no coordinator answers.
    pub live: Option<LiveProgress>,
    /// The registered workers; `None`: no coordinator answers.
    pub workers: Option<Vec<WorkerStatus>>,
    /// Plan against measurement, if the plan and a data set are known.
    pub plan: Option<Vec<PlanLine>>,
    /// The resolved job as TOML, if known.
    pub job: Option<String>,
    pub ledger: TimeLedger,
    /// `None` before the first commit.
    pub tables: Option<Vec<TableTotals>>,
    /// Number of unreadable lines of `metrics.jsonl`.
    pub metrics_lines_unread: u64,
}

/// A worker, as its last heartbeat described it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct WorkerStatus {
    pub worker: String,
    pub role: String,
    pub sessions: u32,
    pub sessions_max: u32,
    /// Seconds since its last heartbeat or call.
    pub heard_seconds: f64,
    /// Resident memory of its process and all child processes.
    pub memory_bytes: Option<u64>,
    /// Free memory of its machine or container.
    pub memory_left_bytes: Option<u64>,
    pub version: Option<i32>,
    /// Why it gets no sessions, if so.
    pub waits: Option<String>,
}

/// What a job planned, beside what was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct PlanLine {
    pub figure: String,
    /// The planned value, or a bound.
    pub planned: Option<f64>,
    pub measured: Option<f64>,
    /// The measured value, divided by the planned one.
    pub share: Option<f64>,
    /// The device whose lower bound the plan is; absent from the other lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// The size of a table of the data set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TableTotals {
    pub table: String,
    pub files: u64,
    pub rows: u64,
    pub bytes: u64,
}
