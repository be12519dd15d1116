//! Takes a backup: tries until the copy is consistent, copies the rest, verifies, lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use furrow_telemetry::TimeSource;

use super::copy::{Links, copy_file, files_below, measure, sync_below};
use super::error::BackupError;
use super::list::{BackedUpRun, BackupDamage, BackupFile, BackupList, INCOMPLETE, LIST, RUN};
use super::snapshot::{RunSnapshot, take_snapshot};
use crate::crash;
use crate::durable::{DurableError, make_durable_dir, sync_dir};
use crate::ledger::{Ledger as _, SqliteLedger};
use crate::lock::RunLock;

/// Tries at a consistent copy of a living run. Each copies only what changed since the one before.
const ROUNDS_MAX: u32 = 30;
/// Tries in which the same flaw must be found before it counts as the run's own damage.
const ROUNDS_OF_DAMAGE: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// Most bytes of the file that names the run of an incomplete backup.
const INCOMPLETE_BYTES_MAX: u64 = 4 << 10;

/// What is copied before the records: a log never names what the copy lacks.
const BEFORE: [&str; 2] = ["logs", "metrics.jsonl"];
/// What is copied after them: it is there before the records that need it.
const AFTER: [&str; 5] = ["job.toml", "data/README.md", "data/jobs", "archive", "lost+found"];

/// Counts of what a backup holds, and what of it was damaged already.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BackupSummary {
    pub files: u64,
    pub bytes: u64,
    /// Tries until the copy was consistent.
    pub rounds: u32,
    /// What was damaged in the run directory already; the backup holds it as it was found.
    pub damaged: Vec<BackupDamage>,
    /// Links and special files, which a backup does not hold.
    pub left_out: Vec<PathBuf>,
}

/// Backs a run directory up into a new folder, or continues an incomplete backup of the same run.
/// The run may go on meanwhile. Blocks.
pub fn take_backup(run_dir: &Path, backup: &Path) -> Result<BackupSummary, BackupError> {
    let run = run_of(run_dir)?;
    check_apart(run_dir, backup)?;
    let _lock = prepare(backup, &run)?;
    let to = backup.join(RUN);
    let mut others = OtherFiles::default();
    others.copy(&BEFORE, run_dir, &to)?;
    let (rounds, snapshot) = take_consistent(run_dir, &to)?;
    crash::point("backup.after_snapshot");
    others.copy(&AFTER, run_dir, &to)?;
    let OtherFiles { files, left_out } = others;
    let mut list = BackupList::new(snapshot.run, TimeSource::system().wall_micros());
    list.files = snapshot.files.into_iter().chain(files).collect();
    list.damaged = snapshot.flaws.into_iter().collect();
    remove_unlisted(&to, &list)?;
    verify(&to, &list)?;
    sync_below(backup)?;
    crash::point("backup.before_list");
    finish(backup, &list)?;
    Ok(BackupSummary {
        files: list.files.len() as u64,
        bytes: list.files.values().map(|file| file.bytes).sum(),
        rounds,
        damaged: list.damaged,
        left_out,
    })
}

fn run_of(run_dir: &Path) -> Result<BackedUpRun, BackupError> {
    let path = run_dir.join("ledger.sqlite");
    let none = || BackupError::NoRun { path: run_dir.to_owned() };
    if !path.is_file() {
        return Err(none());
    }
    crate::commit::check_run_dir(run_dir)?;
    let run = SqliteLedger::open_to_read(path)?.load()?.run.ok_or_else(none)?;
    Ok(BackedUpRun { run_id: run.run_id.to_string(), opened_at_micros: run.opened_at_micros })
}

/// A backup inside the run directory would back itself up.
fn check_apart(run_dir: &Path, backup: &Path) -> Result<(), BackupError> {
    let occupied = |what: &str| BackupError::Occupied { path: backup.to_owned(), what: what.to_owned() };
    let absolute = std::path::absolute(backup).map_err(DurableError::on("find", backup))?;
    let there = absolute.ancestors().find(|folder| folder.exists()).unwrap_or(&absolute);
    let there = fs::canonicalize(there).map_err(DurableError::on("find", there))?;
    let run = fs::canonicalize(run_dir).map_err(DurableError::on("find", run_dir))?;
    if there.starts_with(&run) {
        return Err(occupied("is inside the run directory"));
    }
    match backup.symlink_metadata() {
        Ok(found) if !found.is_dir() => Err(occupied("is no folder")),
        _ => Ok(()),
    }
}

/// Takes the folder of the backup, which is new, empty, or an incomplete backup of the same run.
fn prepare(backup: &Path, run: &BackedUpRun) -> Result<RunLock, BackupError> {
    let occupied = |what: &str| BackupError::Occupied { path: backup.to_owned(), what: what.to_owned() };
    let marker = backup.join(INCOMPLETE);
    if backup.join(LIST).symlink_metadata().is_ok() {
        return Err(occupied("holds a complete backup"));
    }
    let marked = match furrow_storage::read(&marker, INCOMPLETE_BYTES_MAX) {
        Ok(text) => Some(serde_json::from_slice::<BackedUpRun>(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(DurableError::on("read", &marker)(error).into()),
    };
    match marked {
        Some(Some(of)) if of == *run => {}
        Some(_) => return Err(occupied("holds an incomplete backup of another run")),
        None => {
            let is_taken =
                |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() != "lock");
            if fs::read_dir(backup).is_ok_and(|mut entries| entries.any(is_taken)) {
                return Err(occupied("is not empty"));
            }
            make_durable_dir(backup)?;
        }
    }
    let lock = RunLock::take(backup)?;
    let text = serde_json::to_vec(run).unwrap_or_default();
    furrow_storage::replace(&marker, &text).map_err(DurableError::on("write", &marker))?;
    // The spool and the ledger are copied anew: they may be of another time.
    for name in ["spool", "data/manifest"] {
        let folder = backup.join(RUN).join(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(DurableError::on("remove", &folder)(error).into());
            }
            _ => {}
        }
    }
    Ok(lock)
}

/// Repeats until the copy has no flaw, or has the same ones again and again.
fn take_consistent(run_dir: &Path, to: &Path) -> Result<(u32, RunSnapshot), BackupError> {
    let mut flaws = BTreeSet::new();
    let mut repeated = 0;
    for round in 1..=ROUNDS_MAX {
        let was_running = RunLock::holder(run_dir).is_some();
        let snapshot = take_snapshot(run_dir, to)?;
        let is_running = was_running || RunLock::holder(run_dir).is_some();
        repeated = if snapshot.flaws == flaws { repeated + 1 } else { 1 };
        if snapshot.flaws.is_empty() || !is_running || repeated >= ROUNDS_OF_DAMAGE {
            return Ok((round, snapshot));
        }
        tracing::info!(round, flaws = snapshot.flaws.len(), "the run went on meanwhile: copying again");
        flaws = snapshot.flaws;
        thread::park_timeout(PAUSE);
    }
    Err(BackupError::TooFast { rounds: ROUNDS_MAX })
}

/// Files of a run that a start does not need.
#[derive(Default)]
struct OtherFiles {
    files: BTreeMap<String, BackupFile>,
    /// What is neither a file nor a folder.
    left_out: Vec<PathBuf>,
}

impl OtherFiles {
    /// Copies files and folders of these names, as far as they exist.
    fn copy(&mut self, names: &[&str], run_dir: &Path, to: &Path) -> Result<(), BackupError> {
        for name in names {
            let from = run_dir.join(name);
            let Ok(found) = from.symlink_metadata() else { continue };
            let mut paths = Vec::new();
            match () {
                () if found.is_file() => paths.push(PathBuf::from(name)),
                () if found.is_dir() => {
                    let (files, others) = files_below(&from)?;
                    self.left_out.extend(others.iter().map(|path| Path::new(name).join(path)));
                    paths.extend(files.iter().map(|path| Path::new(name).join(path)));
                }
                () => self.left_out.push(PathBuf::from(name)),
            }
            for path in paths {
                let Some(name) = path.to_str().map(ToOwned::to_owned) else {
                    self.left_out.push(path);
                    continue;
                };
                let copied = copy_file(&run_dir.join(&path), &to.join(&path), Links::Refused)?;
                self.files.extend(copied.map(|file| (name, file)));
            }
        }
        Ok(())
    }
}

/// Removes what an earlier try copied and the run has no more.
fn remove_unlisted(to: &Path, list: &BackupList) -> Result<(), BackupError> {
    let (files, others) = files_below(to)?;
    for path in files.iter().chain(&others) {
        if !path.to_str().is_some_and(|name| list.files.contains_key(name)) {
            let path = to.join(path);
            fs::remove_file(&path).map_err(DurableError::on("remove", &path))?;
        }
    }
    Ok(())
}

/// Reads every copy again.
fn verify(to: &Path, list: &BackupList) -> Result<(), BackupError> {
    for (name, listed) in &list.files {
        let path = to.join(name);
        if measure(&path)?.as_ref() != Some(listed) {
            let why = "the copy is not what was written; check the disk".to_owned();
            return Err(BackupError::Damaged { path, why });
        }
    }
    Ok(())
}

/// The list makes the backup complete.
fn finish(backup: &Path, list: &BackupList) -> Result<(), BackupError> {
    let path = backup.join(LIST);
    let text = serde_json::to_vec_pretty(list).unwrap_or_default();
    furrow_storage::replace(&path, &text).map_err(DurableError::on("write", &path))?;
    let marker = backup.join(INCOMPLETE);
    fs::remove_file(&marker).map_err(DurableError::on("remove", &marker))?;
    Ok(sync_dir(backup)?)
}
