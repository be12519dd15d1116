//! The data of one run for a report.

use std::path::PathBuf;

use furrow_analysis::RunComparison;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::answers::{ComparisonAnswer, DeviceKind, JobAnswer, LearningAnswer, OverviewAnswer};
use crate::api;
use crate::follow::{DashboardState, DashboardSubject};

/// The data of one run for a report. Serialized, it is the answers that the metrics are from.
#[derive(Debug, Clone, Serialize)]
pub struct RunMetrics {
    pub(super) name: String,
    pub(super) overview: OverviewAnswer,
    pub(super) learning: LearningAnswer,
    /// How it differs from the first run of the report; `None` for that one.
    #[serde(skip)]
    pub(super) comparison: Option<ComparisonAnswer>,
    #[serde(skip)]
    pub(super) job: JobAnswer,
    /// Tables beside the metrics, supplied by the caller.
    #[serde(skip)]
    pub(super) tables: Vec<ReportTable>,
}

/// A table with a heading.
#[derive(Debug, Clone)]
pub struct ReportTable {
    /// Heading of the table.
    pub title: String,
    /// Names of the columns; the first one is left-aligned, the others right-aligned.
    pub header: Vec<String>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[error("{dir}: {why}")]
pub struct ReportError {
    dir: PathBuf,
    why: String,
}

impl RunMetrics {
    /// Reads a whole run or data set. Blocks: a million trajectories take minutes.
    pub fn read(subject: DashboardSubject) -> Result<Self, ReportError> {
        let name = subject.name.clone();
        let dir = subject.dir.clone().unwrap_or_default();
        let refused = |why: String| ReportError { dir: dir.clone(), why };
        let state = DashboardState::new(subject);
        state.read_all(&CancellationToken::new()).map_err(refused)?;
        let learning = api::learning(&state).map_err(|why| refused(why.to_string()))?;
        let overview = api::overview(&state);
        let job = api::job(&state);
        Ok(Self { name, overview, learning, comparison: None, job, tables: Vec::new() })
    }

    /// Adds a table below the metrics.
    pub fn with(mut self, table: ReportTable) -> Self {
        self.tables.push(table);
        self
    }

    /// Sets how it differs from the first run of the report.
    pub fn compared(self, found: &RunComparison) -> Self {
        Self { comparison: Some(found.into()), ..self }
    }

    pub(super) fn device(&self) -> DeviceKind {
        self.overview.head.device
    }
}
