//! The data of one run for a report, and where each metric is in it.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::follow::{DashboardState, DashboardSubject};
use crate::format::device_of;
use crate::metrics::DeviceKind;

/// The data of one run for a report.
#[derive(Debug, Clone)]
pub struct RunMetrics {
    pub(super) name: String,
    pub(super) overview: Value,
    pub(super) learning: Value,
    pub(super) job: Value,
    /// Tables beside the metrics, supplied by the caller.
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
        Ok(Self { name, overview, learning, job, tables: Vec::new() })
    }

    /// Adds a table below the metrics.
    pub fn with(mut self, table: ReportTable) -> Self {
        self.tables.push(table);
        self
    }

    /// The answers that everything is rendered from.
    pub(super) fn answers(&self) -> Value {
        json!({ "name": self.name, "overview": self.overview, "learning": self.learning })
    }

    pub(super) fn device(&self) -> DeviceKind {
        device_of(&self.overview)
    }

    /// A metric by its JSON pointer in the answers, such as `/overview/throughput/scored`.
    pub(super) fn metric(&self, pointer: &str) -> Option<f64> {
        let (answer, rest) = pointer.trim_start_matches('/').split_once('/')?;
        let answer = if answer == "learning" { &self.learning } else { &self.overview };
        answer.pointer(&format!("/{rest}"))?.as_f64()
    }
}
