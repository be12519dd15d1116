//! Names what is wrong with a run directory, without changing it: links, ledger, manifest, spool,
//! every committed file by its hash.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use furrow_records::{StoredCommits, Table, WrittenFile, check_written};
use serde::Serialize;

use super::error::CommitError;
use super::reconcile::CommitOrigin;
use super::settle::{SpoolSettlement, settle};
use super::survey::{RecoveryPlan, RecoverySurvey, UnfinishedShard, find_spooled, unlisted};
use super::{BlockingRuntime, now_micros};
use crate::ledger::{Ledger as _, LedgerSnapshot, ShardPhase, SqliteLedger, TrajectoryFate};
use crate::lock::RunLock;
use crate::lost_found::{LostFound, PutAside, lost_and_found};
use crate::spool::{self, RecoveredTrajectory};

/// Files that a run writes in its directory itself.
const OWN_FILES: [&str; 8] = [
    "job.toml",
    "job.toml.tmp",
    "ledger.sqlite",
    "ledger.sqlite-wal",
    "ledger.sqlite-shm",
    "lock",
    "metrics.jsonl",
    "coordinator.address",
];

/// What repairs a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairedBy {
    /// The next start, or `furrow doctor --run DIR --repair`.
    Start,
    /// A copy: `furrow restore`, or the file itself.
    Backup,
    /// The user, as the sentence says.
    User,
}

/// Something found in a run directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunFinding {
    /// Below the run directory.
    pub path: PathBuf,
    /// What is wrong, in a sentence.
    pub what: String,
    /// Rows of the data set that are affected.
    pub rows: u64,
    pub repaired_by: RepairedBy,
    /// Whether every crash may leave it so: then it is no damage.
    pub is_ordinary: bool,
}

/// A run directory as it was found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RunInspection {
    /// The process that runs it. Then only what is committed was checked.
    pub holder: Option<String>,
    pub findings: Vec<RunFinding>,
    /// Committed files whose hash was compared, and their bytes.
    pub files_checked: u64,
    pub bytes_checked: u64,
    /// What earlier starts moved to `lost+found/`.
    pub lost_and_found: Vec<PutAside>,
}

impl RunInspection {
    /// Findings that are more than what a crash leaves.
    pub fn problems(&self) -> impl Iterator<Item = &RunFinding> {
        self.findings.iter().filter(|finding| !finding.is_ordinary)
    }
}

/// Inspects a run directory. It may belong to a living run.
pub fn inspect_run(run_dir: &Path) -> RunInspection {
    let holder = RunLock::holder(run_dir);
    inspect(run_dir, holder)
}

/// The same for a caller that has the lock, or knows who has.
pub(super) fn inspect(run_dir: &Path, holder: Option<String>) -> RunInspection {
    let found = RunInspection { holder, ..RunInspection::default() };
    let mut inspector = RunInspector { run_dir, data_dir: run_dir.join("data"), found };
    inspector.check_links();
    if let Err(error) = inspector.compare(true) {
        inspector.refuse(&error);
    }
    match lost_and_found(run_dir) {
        Ok(entries) => inspector.found.lost_and_found = entries,
        Err(error) => inspector.report("lost+found/index.jsonl", error.to_string(), RepairedBy::User),
    }
    inspector.found
}

/// What a start would say of a copy of a run directory whose files were compared already.
pub(crate) fn inspect_copy(run_dir: &Path) -> RunInspection {
    let found = RunInspection::default();
    let mut inspector = RunInspector { run_dir, data_dir: run_dir.join("data"), found };
    if let Err(error) = inspector.compare(false) {
        inspector.refuse(&error);
    }
    inspector.found
}

/// Every commit of a data set.
pub(crate) fn read_commits(data_dir: &Path) -> Result<StoredCommits, CommitError> {
    Ok(BlockingRuntime::new()?.block_on(StoredCommits::read_local(data_dir))?)
}

struct RunInspector<'a> {
    run_dir: &'a Path,
    data_dir: PathBuf,
    found: RunInspection,
}

impl RunInspector<'_> {
    fn report(&mut self, path: impl AsRef<Path>, what: impl Into<String>, repaired_by: RepairedBy) {
        self.add(path, what, repaired_by, false);
    }

    fn add(
        &mut self,
        path: impl AsRef<Path>,
        what: impl Into<String>,
        repaired_by: RepairedBy,
        is_ordinary: bool,
    ) {
        let path = path.as_ref();
        let path = path.strip_prefix(self.run_dir).unwrap_or(path).to_owned();
        self.found.findings.push(RunFinding { path, what: what.into(), rows: 0, repaired_by, is_ordinary });
    }

    /// The start would be refused with this error.
    fn refuse(&mut self, error: &CommitError) {
        let what = format!("a start is refused: {}", furrow_records::chain(error));
        self.report(".", what, RepairedBy::Backup);
    }

    /// Names files and folders of the run that are links or belong to another user.
    fn check_links(&mut self) {
        let own = OWN_FILES.iter().map(|name| self.run_dir.join(name));
        let below = ["spool", "logs"].map(|name| self.run_dir.join(name));
        let inside = below.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        let files: Vec<PathBuf> = own.chain(inside.map(|entry| entry.path())).collect();
        for path in files {
            if let Err(error) = furrow_storage::check_file(&path) {
                self.report(path, error.to_string(), RepairedBy::User);
            }
        }
        let spool = fs::read_dir(self.run_dir.join("spool")).into_iter().flatten().flatten();
        let strangers = spool.map(|entry| entry.path());
        let strangers: Vec<PathBuf> =
            strangers.filter(|path| path.extension().is_none_or(|extension| extension != "spool")).collect();
        for path in strangers {
            self.report(path, "it is no spool file; move it away", RepairedBy::User);
        }
        if let Err(error) = super::check_run_dir(self.run_dir) {
            let path = error.path.clone();
            self.report(path, furrow_records::chain(&error), RepairedBy::User);
        }
    }

    /// Compares ledger, manifest and spool, and the hashes of files where it is asked to.
    fn compare(&mut self, hashes: bool) -> Result<(), CommitError> {
        let path = self.run_dir.join("ledger.sqlite");
        let Some(mut ledger) = self.open_ledger(&path) else { return Ok(()) };
        let before = ledger.load()?;
        // The ledger first: a living run commits to the manifest meanwhile.
        let mut files: Vec<WrittenFile> = committed_files(&mut ledger)?;
        let stored = read_commits(&self.data_dir)?;
        if self.found.holder.is_none() {
            self.compare_stopped(&mut ledger, &before, stored, &mut files);
        }
        if hashes {
            self.check_jobs();
            files.iter().for_each(|file| self.check_file(file));
        }
        Ok(())
    }

    fn open_ledger(&mut self, path: &Path) -> Option<SqliteLedger> {
        if path.symlink_metadata().is_err() {
            self.report(path, "the ledger is missing", RepairedBy::Backup);
            return None;
        }
        let opened = SqliteLedger::open_to_read(path).and_then(|mut ledger| {
            ledger.check_pages()?;
            Ok(ledger)
        });
        opened.map_err(|error| self.report(path, furrow_records::chain(&error), RepairedBy::Backup)).ok()
    }

    /// What a start would do; only while no process writes.
    fn compare_stopped(
        &mut self,
        ledger: &mut SqliteLedger,
        before: &LedgerSnapshot,
        stored: StoredCommits,
        files: &mut Vec<WrittenFile>,
    ) {
        let Some(run) = &before.run else {
            self.report("ledger.sqlite", "the ledger is empty: no run was opened", RepairedBy::Backup);
            return;
        };
        let spooled = match spool::scan(&self.run_dir.join("spool")) {
            Ok(spooled) => spooled,
            Err(error) => {
                self.report("spool", furrow_records::chain(&error), RepairedBy::User);
                return;
            }
        };
        let origin = CommitOrigin { run_id: run.run_id.clone(), epoch: run.epoch, now_micros: now_micros() };
        let lost_found = LostFound::of_start(self.run_dir, run.epoch);
        let survey = RecoverySurvey {
            data_dir: &self.data_dir.clone(),
            ledger,
            origin: &origin,
            lost_found: &lost_found,
        };
        match survey.plan_recovery(before, &spooled, stored) {
            Ok(plan) => {
                *files = Table::ALL.iter().flat_map(|table| plan.manifest.files(*table)).cloned().collect();
                self.report_plan(&plan);
                self.report_unlisted(ledger, &plan);
            }
            Err(error) => self.refuse(&error),
        }
        self.report_spool(ledger, before, &spooled);
    }

    fn report_plan(&mut self, plan: &RecoveryPlan) {
        let path = |version: u64| Path::new("data").join(StoredCommits::file_name(version));
        for version in &plan.repair.damaged {
            self.report(path(*version), "the manifest commit is damaged", RepairedBy::Start);
        }
        for commit in &plan.repair.restored {
            let what = format!(
                "the manifest commit of shard {} is missing; the ledger remembers it",
                commit.txn.shard_id
            );
            self.report(path(commit.version), what, RepairedBy::Start);
        }
        for (shard, planned) in &plan.unfinished {
            let id = &shard.shard_id;
            match planned {
                UnfinishedShard::Commit => {
                    let what = format!("shard {id} is written and not yet in the manifest");
                    self.add("data/manifest", what, RepairedBy::Start, true);
                }
                UnfinishedShard::Rewrite { damaged, error } => {
                    let what = format!(
                        "a file of the written shard {id} is damaged ({}); the spool still has its rows",
                        furrow_records::chain(error)
                    );
                    self.report(damaged, what, RepairedBy::Start);
                }
                UnfinishedShard::Undo { keeps_files } => {
                    let what = format!("shard {id} was being written; its rows go into another shard");
                    self.add("data", what, RepairedBy::Start, !keeps_files);
                }
            }
        }
    }

    /// Files in the tables' folders that no commit names.
    fn report_unlisted(&mut self, ledger: &mut SqliteLedger, plan: &RecoveryPlan) {
        let unfinished: BTreeSet<_> = plan.unfinished.iter().map(|(shard, _)| &shard.shard_id).collect();
        let Ok(files) = unlisted(&plan.manifest, &self.data_dir) else { return };
        for file in files {
            let shard_id = file.shard_id.as_ref();
            if shard_id.is_some_and(|id| unfinished.contains(id)) {
                continue;
            }
            let phase = shard_id.and_then(|id| ledger.shard_phase(id).ok().flatten());
            match phase {
                Some(ShardPhase::Abandoned) => {
                    self.add(file.path, "left of a shard that was abandoned", RepairedBy::Start, true);
                }
                _ => {
                    let what = "it belongs to no shard of this run; a start moves it to lost+found/";
                    self.report(file.path, what, RepairedBy::Start);
                }
            }
        }
    }

    fn report_spool(
        &mut self,
        ledger: &mut SqliteLedger,
        before: &LedgerSnapshot,
        spooled: &[RecoveredTrajectory],
    ) {
        for row in before.trajectories.iter().filter(|row| !row.committed) {
            let id = &row.start.trajectory_id;
            let path = Path::new("spool").join(format!("{id}.spool"));
            match settle(row, find_spooled(spooled, id)) {
                SpoolSettlement::Keep | SpoolSettlement::Absent { .. } => {}
                SpoolSettlement::Cut => {
                    self.add(path, "its last entry was never acknowledged", RepairedBy::Start, true);
                }
                SpoolSettlement::CopyAndCut { why } => self.report(path, why, RepairedBy::Start),
                SpoolSettlement::Lose { why } => {
                    let what = format!("{id} ends as record_lost: {why}");
                    self.report(path, what, RepairedBy::Start);
                }
            }
        }
        for found in spooled {
            let fate = ledger.fate(&found.trajectory_id).ok().flatten();
            if fate == Some(TrajectoryFate::Committed) {
                let path = Path::new("spool").join(format!("{}.spool", found.trajectory_id));
                self.add(path, "its rows are committed", RepairedBy::Start, true);
            }
        }
    }

    /// Whether a living run merged a file since, or let its rows expire.
    fn has_left(&self, file: &WrittenFile) -> bool {
        if self.data_dir.join(&file.path).exists() {
            return false;
        }
        let now = SqliteLedger::open_to_read(self.run_dir.join("ledger.sqlite"));
        let listed = now.map_err(CommitError::from).and_then(|mut ledger| committed_files(&mut ledger));
        // The ledger learns of it last, and the file is gone when its grace is over.
        self.data_dir.join("replaced").join(&file.path).exists()
            || listed.is_ok_and(|listed| listed.iter().all(|now| now.path != file.path))
    }

    /// A job lies under its hash.
    fn check_jobs(&mut self) {
        for path in furrow_records::changed_jobs(&self.data_dir) {
            let what = "it is not the job whose hash is its name; remove it: the next file of the run's job \
                        brings that one back";
            self.report(path, what, RepairedBy::User);
        }
    }

    fn check_file(&mut self, file: &WrittenFile) {
        self.found.files_checked += 1;
        self.found.bytes_checked += file.bytes;
        let Err(error) = check_written(&self.data_dir, file) else { return };
        if self.found.holder.is_some() && self.has_left(file) {
            return;
        }
        self.found.findings.push(RunFinding {
            path: Path::new("data").join(&file.path),
            what: furrow_records::chain(&error),
            rows: file.rows,
            repaired_by: RepairedBy::Backup,
            is_ordinary: false,
        });
    }
}

/// Files that the data set has by the ledger's record.
fn committed_files(ledger: &mut SqliteLedger) -> Result<Vec<WrittenFile>, CommitError> {
    let shards = ledger.committed_shards(0)?;
    let replaced: BTreeSet<String> = shards.iter().flat_map(|shard| shard.replaces.clone()).collect();
    let files = shards.into_iter().flat_map(|shard| shard.files);
    Ok(files.filter(|file| !replaced.contains(&file.path)).collect())
}
