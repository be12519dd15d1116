//! Repairs a run directory as a start does, without serving anyone.

use std::path::Path;

use furrow_records::RecordsFile;
use furrow_rollout::{Id, Trajectory};
use serde::Serialize;

use super::inspect::{RepairedBy, RunFinding, RunInspection, inspect};
use super::{CommitError, CommitSettings, ShardCommitter, check_run_dir};
use crate::error::CoordinatorError;
use crate::ledger::{Ledger as _, LedgerLimits, SqliteLedger};
use crate::lock::RunLock;
use crate::spool::{Spool, SpoolLimits};

/// What a repair did.
#[derive(Debug, Serialize)]
pub struct RunRepair {
    /// Findings that it repaired, ordinary ones included.
    pub repaired: Vec<RunFinding>,
    /// Trajectories whose record was damaged; they ended as `record_lost`.
    pub records_lost: Vec<String>,
    /// What a second inspection still finds.
    pub left: RunInspection,
}

/// Does what the next start would do with a run directory, and says what it did. Blocks.
///
/// # Errors
/// Why a start would be refused; nothing is changed then. Also when the run is in use.
pub fn repair_run(run_dir: &Path) -> Result<RunRepair, CoordinatorError> {
    let _lock = RunLock::take(run_dir).map_err(CoordinatorError::Lock)?;
    check_run_dir(run_dir).map_err(CoordinatorError::RunDir)?;
    let before = inspect(run_dir, None);
    let records_lost = recover(run_dir)?;
    let left = inspect(run_dir, None);
    let by_start = before.findings.into_iter().filter(|finding| finding.repaired_by == RepairedBy::Start);
    let repaired = by_start.filter(|finding| !left.findings.contains(finding)).collect();
    let records_lost = records_lost.iter().map(ToString::to_string).collect();
    Ok(RunRepair { repaired, records_lost, left })
}

fn recover(run_dir: &Path) -> Result<Vec<Id<Trajectory>>, CoordinatorError> {
    let path = run_dir.join("ledger.sqlite");
    // Opening a ledger that does not exist would create one.
    drop(SqliteLedger::open_to_read(&path).map_err(CoordinatorError::Ledger)?);
    let mut ledger = SqliteLedger::open(path).map_err(CoordinatorError::Ledger)?;
    let run = ledger.load().map_err(CoordinatorError::Ledger)?.run;
    let none = || CommitError::Stopped { why: "the ledger is empty: no run was opened".to_owned() };
    let run_id = run.ok_or_else(none).map_err(CoordinatorError::Commit)?.run_id;
    let opened = Spool::open(run_dir.join("spool"), SpoolLimits::default());
    let (spool, found) = opened.map_err(CoordinatorError::Spool)?;
    let unusable = |problems: Vec<String>| CommitError::Stopped { why: problems.join("; ") };
    let records = RecordsFile::default().check().map_err(unusable).map_err(CoordinatorError::Commit)?;
    let settings = CommitSettings {
        run_dir: run_dir.to_owned(),
        data_dir: run_dir.join("data"),
        run_id,
        // No shard is written here.
        job_toml: String::new(),
        records,
    };
    let recovered = ShardCommitter::recover(settings, ledger, LedgerLimits::default(), spool, found);
    Ok(recovered.map_err(CoordinatorError::Commit)?.lost)
}
