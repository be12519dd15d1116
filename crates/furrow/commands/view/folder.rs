//! A folder of runs for `furrow view`, listed as `furrow runs` lists it.

use std::path::{Path, PathBuf};

use furrow_dashboard::{DashboardSubject, RunFolder, RunSummary};

use super::subject::subject;
use crate::run_list::{describe, runs_below};

#[derive(Debug)]
pub(super) struct RunsFolder {
    path: PathBuf,
    usd_per_device_hour: Option<f64>,
}

impl RunsFolder {
    /// The folder; `None` where no run is below it.
    pub(super) fn find(path: &Path, usd_per_device_hour: Option<f64>) -> Option<Self> {
        let runs = runs_below(path).ok()?;
        (!runs.is_empty()).then(|| Self { path: path.to_owned(), usd_per_device_hour })
    }
}

impl RunFolder for RunsFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> Vec<RunSummary> {
        let summary = |dir: &PathBuf| {
            let run = describe(dir);
            RunSummary {
                dir: run.dir,
                name: run.name,
                state: run.state.as_str().to_owned(),
                bytes: run.bytes,
                trajectories: run.trajectories,
                started: run.started,
                policy: run.policy,
            }
        };
        runs_below(&self.path).unwrap_or_default().iter().map(summary).collect()
    }

    fn subject(&self, dir: &Path) -> DashboardSubject {
        subject(dir, self.usd_per_device_hour)
    }
}
