//! One try at a consistent copy of a run directory.
//!
//! The order makes the copy consistent while the run goes on. The spool comes first: a file that is
//! deleted later is in the copy already. Then comes the ledger, as of one moment, which decides
//! what belongs to the copy: of the spool what it does not call committed, of the manifest the
//! commits of shards that it knows. What the run writes after that moment stays out. Whether a
//! start would accept the copy is checked with the code of a start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use furrow_records::{Commit, StoredCommits, Table, WrittenFile};
use furrow_rollout::{Id, Shard, Trajectory};

use super::copy::{Links, copy_file, copy_known, files_below, measure};
use super::error::BackupError;
use super::list::{BackedUpRun, BackupDamage, BackupFile};
use crate::commit::{inspect_copy, read_commits};
use crate::durable::{DurableError, make_durable_dir};
use crate::ledger::{Ledger as _, ShardPhase, SqliteLedger, TrajectoryFate, TrajectoryStanding};

const LEDGER: &str = "ledger.sqlite";

/// A copy, and what a start would say of it.
pub(super) struct RunSnapshot {
    pub run: BackedUpRun,
    pub files: BTreeMap<String, BackupFile>,
    /// What is missing or damaged in the copy: the run changed meanwhile, or it is damaged itself.
    pub flaws: BTreeSet<BackupDamage>,
}

/// Copies a run directory's records to the folder `to`; what is there already is used.
pub(super) fn take_snapshot(run_dir: &Path, to: &Path) -> Result<RunSnapshot, BackupError> {
    let mut copying = SnapshotCopy { run_dir, to, files: BTreeMap::new(), flaws: BTreeSet::new() };
    copying.copy_spool(None)?;
    let mut ledger = copying.copy_ledger()?;
    copying.copy_spool(Some(&mut ledger))?;
    let names = copying.copy_commits(&mut ledger)?;
    names.iter().try_for_each(|file| copying.copy_table_file(file))?;
    let before = ledger.load()?;
    let run = before.run.as_ref().ok_or_else(|| BackupError::NoRun { path: run_dir.to_owned() })?;
    let run = BackedUpRun { run_id: run.run_id.to_string(), opened_at_micros: run.opened_at_micros };
    // A start does without the steps of a failed trajectory; a backup does not.
    for row in before.trajectories.iter().filter(|row| !row.committed && row.shard_id.is_none()) {
        let name = spool_name(&row.start.trajectory_id);
        let has_steps = matches!(&row.standing, TrajectoryStanding::Failed { ended } if ended.steps > 0);
        if has_steps && !copying.files.contains_key(&name) {
            copying.add_flaw(name, "the steps of a failed trajectory are missing");
        }
    }
    drop(ledger);
    for finding in inspect_copy(to).problems() {
        copying.add_flaw(finding.path.display().to_string(), &finding.what);
    }
    Ok(RunSnapshot { run, files: copying.files, flaws: copying.flaws })
}

struct SnapshotCopy<'a> {
    run_dir: &'a Path,
    to: &'a Path,
    files: BTreeMap<String, BackupFile>,
    flaws: BTreeSet<BackupDamage>,
}

impl SnapshotCopy<'_> {
    fn add_flaw(&mut self, path: impl Into<String>, why: &str) {
        self.flaws.insert(BackupDamage { path: path.into(), why: why.to_owned() });
    }

    fn copy(&mut self, name: &str) -> Result<bool, BackupError> {
        let copied = copy_file(&self.run_dir.join(name), &self.to.join(name), Links::Refused)?;
        let is_there = copied.is_some();
        self.files.extend(copied.map(|file| (name.to_owned(), file)));
        Ok(is_there)
    }

    /// Copies spool files: all of them, or what the ledger knows and does not call committed; then
    /// copies of others are removed.
    fn copy_spool(&mut self, mut ledger: Option<&mut SqliteLedger>) -> Result<(), BackupError> {
        let mut names = BTreeSet::new();
        for folder in [self.run_dir, self.to] {
            let (files, _) = files_below(&folder.join("spool"))?;
            names.extend(files);
        }
        for name in names {
            let id = name.to_str().and_then(|name| name.strip_suffix(".spool"));
            let Some(id) = id.and_then(|id| Id::<Trajectory>::new(id).ok()) else { continue };
            let name = spool_name(&id);
            let fate = ledger.as_mut().map(|ledger| ledger.fate(&id)).transpose()?;
            if matches!(fate, Some(None | Some(TrajectoryFate::Committed))) {
                self.files.remove(&name);
                remove(&self.to.join(&name))?;
                continue;
            }
            // A file that was deleted since stays as it was copied: its rows were committed after
            // the ledger's moment.
            if !self.copy(&name)? {
                self.files.extend(measure(&self.to.join(&name))?.map(|file| (name, file)));
            }
        }
        Ok(())
    }

    fn copy_ledger(&mut self) -> Result<SqliteLedger, BackupError> {
        let to = self.to.join(LEDGER);
        let part = self.to.join(format!(".{LEDGER}.part"));
        make_durable_dir(self.to)?;
        remove(&part)?;
        SqliteLedger::open_to_read(self.run_dir.join(LEDGER))?.copy_to(&part)?;
        let file = fs::File::open(&part).and_then(|file| file.sync_all());
        file.map_err(DurableError::on("sync", &part))?;
        fs::rename(&part, &to).map_err(DurableError::on("rename to", &to))?;
        self.files.extend(measure(&to)?.map(|file| (LEDGER.to_owned(), file)));
        Ok(SqliteLedger::open_to_read(to)?)
    }

    /// Copies the commits of shards that the ledger knows, and of scorings between them. Returns
    /// the files that belong to the data set by these commits and by the ledger's record.
    fn copy_commits(&mut self, ledger: &mut SqliteLedger) -> Result<Vec<WrittenFile>, BackupError> {
        let stored = read_commits(&self.run_dir.join("data"))?;
        let mut files = BTreeMap::new();
        let mut removed = BTreeSet::new();
        let mut later = None;
        for (version, commit) in stored.iter() {
            if let Ok(commit) = commit {
                if is_later(ledger, commit)? {
                    later = Some(commit);
                    break;
                }
                files.extend(commit.files.iter().map(|file| (file.path.clone(), file.clone())));
                removed.extend(commit.removed.iter().cloned());
            }
            self.copy(&format!("data/{}", StoredCommits::file_name(version)))?;
        }
        if let Some(later) = later {
            self.check_later(later)?;
        }
        for shard in ledger.committed_shards(0)? {
            files.extend(shard.files.into_iter().map(|file| (file.path.clone(), file)));
            removed.extend(shard.replaces);
        }
        for written in ledger.load()?.shards.into_iter().filter_map(|shard| shard.files) {
            files.extend(written.into_iter().map(|file| (file.path.clone(), file)));
        }
        let kept = files.into_iter().filter(|(path, _)| !removed.contains(path));
        Ok(kept.map(|(_, file)| file).collect())
    }

    /// A commit that the ledger's copy does not know must be one that the ledger learned of since.
    fn check_later(&self, commit: &Commit) -> Result<(), BackupError> {
        let mut now = SqliteLedger::open_to_read(self.run_dir.join(LEDGER))?;
        if !is_later(&mut now, commit)? {
            return Ok(());
        }
        let shard_id = commit.txn.shard_id.clone();
        Err(BackupError::LedgerBehind { version: commit.version, shard_id })
    }

    /// A merge may move a file meanwhile.
    fn copy_table_file(&mut self, file: &WrittenFile) -> Result<(), BackupError> {
        let name = format!("data/{}", file.path);
        let known = BackupFile { bytes: file.bytes, sha256: file.sha256.clone() };
        let to = self.to.join(&name);
        for folder in ["data", "data/replaced", "data"] {
            let from = self.run_dir.join(folder).join(&file.path);
            let Some(copied) = copy_known(&from, &to, &known)? else { continue };
            if copied != known {
                self.add_flaw(
                    &name,
                    &format!("damaged, with {} rows: its hash is not the recorded one", file.rows),
                );
            }
            self.files.insert(name, copied);
            return Ok(());
        }
        self.add_flaw(&name, &format!("missing, with {} rows", file.rows));
        Ok(())
    }
}

/// Whether a commit names a shard that the ledger does not call written or committed. Commits of
/// scorings are not in the ledger.
fn is_later(ledger: &mut SqliteLedger, commit: &Commit) -> Result<bool, BackupError> {
    if commit.files.iter().all(|file| file.table == Table::Scores) && commit.removed.is_empty() {
        return Ok(false);
    }
    let Ok(shard_id) = Id::<Shard>::new(&commit.txn.shard_id) else { return Ok(true) };
    let phase = ledger.shard_phase(&shard_id)?;
    Ok(!matches!(phase, Some(ShardPhase::Written | ShardPhase::Committed { .. })))
}

fn spool_name(id: &Id<Trajectory>) -> String {
    format!("spool/{id}.spool")
}

fn remove(path: &PathBuf) -> Result<(), DurableError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DurableError::on("remove", path)(error))
        }
        _ => Ok(()),
    }
}
