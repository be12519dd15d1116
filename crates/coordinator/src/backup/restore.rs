//! Makes a run directory of a backup, as a whole or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::copy::{Links, copy_file, files_below, sync_below};
use super::error::BackupError;
use super::list::{BackupDamage, BackupList, RUN, checked_path};
use crate::crash;
use crate::durable::{DurableError, make_durable_dir, sync_dir};
use crate::lock::RunLock;

/// A restored run directory.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RestoreSummary {
    pub run_id: String,
    pub files: u64,
    pub bytes: u64,
    /// Wall clock of the backup, microseconds since the Unix epoch.
    pub taken_at_micros: i64,
    /// What the backup found damaged; it is restored as it was.
    pub damaged: Vec<BackupDamage>,
}

/// Restores a backup to a folder that does not exist yet, or is empty. Blocks.
///
/// # Errors
/// Fails before the first write where the backup holds a link, a name that leads elsewhere or a
/// file that its list lacks. Fails, and leaves the folder as it was, where a hash is another.
pub fn restore_backup(backup: &Path, run_dir: &Path) -> Result<RestoreSummary, BackupError> {
    let list = BackupList::read(backup)?;
    let from = backup.join(RUN);
    check_contents(&from, &list)?;
    check_free(run_dir)?;
    let unfinished = unfinished_name(run_dir)?;
    furrow_storage::check_dir(&unfinished).map_err(DurableError::on("use", &unfinished))?;
    make_durable_dir(&unfinished)?;
    let lock = RunLock::take(&unfinished)?;
    remove_strangers(&unfinished, &list)?;
    for (name, listed) in &list.files {
        let path = checked_path(name).unwrap_or_default();
        let source = from.join(&path);
        let copied = copy_file(&source, &unfinished.join(&path), Links::Refused)?;
        if copied.as_ref() != Some(listed) {
            let why = "it is not what backup.json says".to_owned();
            return Err(BackupError::Damaged { path: source, why });
        }
    }
    sync_below(&unfinished)?;
    crash::point("restore.before_rename");
    // Of a folder that exists this replaces only an empty one.
    fs::rename(&unfinished, run_dir).map_err(DurableError::on("rename to", run_dir))?;
    sync_dir(&parent_of(run_dir)?)?;
    drop(lock);
    Ok(RestoreSummary {
        run_id: list.run_id,
        files: list.files.len() as u64,
        bytes: list.files.values().map(|file| file.bytes).sum(),
        taken_at_micros: list.taken_at_micros,
        damaged: list.damaged,
    })
}

/// The backup holds the listed files and nothing else: no link, no other file.
fn check_contents(from: &Path, list: &BackupList) -> Result<(), BackupError> {
    let refuse = |path: PathBuf, why: &str| Err(BackupError::Damaged { path, why: why.to_owned() });
    if !from.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return refuse(from.to_owned(), "it is not a folder");
    }
    let (files, others) = files_below(from)?;
    if let Some(other) = others.first() {
        return refuse(from.join(other), "it is a link or a special file");
    }
    let files: BTreeSet<PathBuf> = files.into_iter().collect();
    if let Some(file) =
        files.iter().find(|file| !file.to_str().is_some_and(|name| list.files.contains_key(name)))
    {
        return refuse(from.join(file), "backup.json does not list it");
    }
    match list.files.keys().find(|name| !files.contains(Path::new(name))) {
        Some(name) => refuse(from.join(name), "it is missing"),
        None => Ok(()),
    }
}

fn check_free(run_dir: &Path) -> Result<(), BackupError> {
    let occupied = |what: &str| BackupError::Occupied { path: run_dir.to_owned(), what: what.to_owned() };
    match run_dir.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(DurableError::on("inspect", run_dir)(error).into()),
        Ok(found) if !found.is_dir() => Err(occupied("exists and is no folder")),
        Ok(_) => match fs::read_dir(run_dir).map_err(DurableError::on("list", run_dir))?.next() {
            None => Ok(()),
            Some(_) => Err(occupied("exists and is not empty")),
        },
    }
}

/// What a killed restore left in its folder, and this backup does not hold.
fn remove_strangers(unfinished: &Path, list: &BackupList) -> Result<(), BackupError> {
    let (files, others) = files_below(unfinished)?;
    let is_listed = |path: &&PathBuf| path.to_str().is_some_and(|name| list.files.contains_key(name));
    let files = files.iter().filter(|path| *path != Path::new("lock") && !is_listed(path));
    // A link is none of ours, whatever its name: nothing may be written through it.
    for path in files.chain(&others) {
        let path = unfinished.join(path);
        fs::remove_file(&path).map_err(DurableError::on("remove", &path))?;
    }
    Ok(())
}

/// The folder that becomes the run directory, beside it.
fn unfinished_name(run_dir: &Path) -> Result<PathBuf, BackupError> {
    let absolute = std::path::absolute(run_dir).map_err(DurableError::on("find", run_dir))?;
    let Some(name) = absolute.file_name() else {
        let what = "has no name".to_owned();
        return Err(BackupError::Occupied { path: run_dir.to_owned(), what });
    };
    Ok(absolute.with_file_name(format!(".{}.restoring", name.to_string_lossy())))
}

fn parent_of(run_dir: &Path) -> Result<PathBuf, BackupError> {
    let absolute = std::path::absolute(run_dir).map_err(DurableError::on("find", run_dir))?;
    Ok(absolute.parent().unwrap_or(Path::new("/")).to_owned())
}
