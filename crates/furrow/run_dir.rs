//! The run directory: created once, never reused by accident.

use std::fs;
use std::io;
use std::path::Path;

use furrow_coordinator::RunLock;

use crate::CommandFailure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunStart {
    /// In a directory without a run.
    Fresh,
    /// Where an earlier start of the same job stopped.
    Resume,
    /// From the beginning, after removing what an earlier run left in the directory.
    Clean,
}

/// What a run writes into its directory. `--clean` removes these entries and nothing else.
const CONTENTS: &[&str] = &[
    "job.toml",
    "ledger.sqlite",
    "ledger.sqlite-wal",
    "ledger.sqlite-shm",
    "spool",
    "data",
    "archive",
    "logs",
    "metrics.jsonl",
    ADDRESS,
];

/// A job file has at most 1 MiB; with all defaults written out it stays below ten times that.
const RESOLVED_BYTES_MAX: u64 = 16 << 20;

/// File with the coordinator's address, for other programs on this machine.
const ADDRESS: &str = "coordinator.address";

/// Writes the coordinator's address into the run directory.
pub(crate) fn write_address(dir: &Path, address: &str) -> Result<(), CommandFailure> {
    write_whole(&dir.join(ADDRESS), address)
}

/// The address at which the coordinator of a run listens, or listened after its last start.
pub(crate) fn address(dir: &Path) -> Result<String, CommandFailure> {
    let path = dir.join(ADDRESS);
    let text = fs::read_to_string(&path).map_err(|why| {
        let message = format!(
            "--run: cannot read {} ({why}); use the directory of a run that was started",
            path.display()
        );
        CommandFailure::Input(vec![message])
    })?;
    Ok(text.trim().chars().take(512).collect())
}

/// Reads the resolved job of a run; `None` if it has none.
///
/// # Errors
/// If it is not a regular file, too large, or not UTF-8.
pub(crate) fn job_text(dir: &Path) -> io::Result<Option<String>> {
    match furrow_storage::read(&dir.join("job.toml"), RESOLVED_BYTES_MAX) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
        Ok(bytes) => {
            String::from_utf8(bytes).map(Some).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

/// Locks the directory for a run, prepares it and writes the resolved job into a new one.
///
/// Nothing in it changes before the lock is taken: it may belong to a run in progress. The
/// coordinator writes the job of a resumed run, after all checks of the start.
pub(crate) fn prepare(dir: &Path, begin: RunStart, resolved_job: &str) -> Result<RunLock, CommandFailure> {
    check(dir, begin)?;
    furrow_storage::create_durable_dir(dir)
        .and_then(|()| furrow_storage::sync_names_above(dir))
        .map_err(|why| refused(dir, &format!("cannot be created: {why}")))?;
    let lock =
        RunLock::take(dir).map_err(|error| CommandFailure::Input(vec![crate::chain(&error.into())]))?;
    // Another run may have started and ended since the first check.
    check(dir, begin)?;
    if begin == RunStart::Clean {
        CONTENTS.iter().try_for_each(|name| remove(&dir.join(name)))?;
    }
    if begin != RunStart::Resume {
        write_whole(&dir.join("job.toml"), resolved_job)?;
    }
    Ok(lock)
}

/// Whether a directory holds a run.
pub(crate) fn is_run(dir: &Path) -> bool {
    let is_file = |name: &str| dir.join(name).symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    is_file("ledger.sqlite") && is_file("job.toml")
}

/// Locks a run directory in order to remove it.
///
/// # Errors
/// If it is no run directory, a link, or in use.
pub(crate) fn lock_to_remove(dir: &Path) -> Result<RunLock, CommandFailure> {
    let is_link = dir.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    if is_link || !is_run(dir) {
        return Err(refused(
            dir,
            "is no run directory, which holds ledger.sqlite and job.toml; nothing was removed",
        ));
    }
    RunLock::take(dir).map_err(|error| CommandFailure::Input(vec![crate::chain(&error.into())]))
}

/// What was left of a run directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RemovedRun {
    Whole,
    /// It stays with these entries, which no run writes.
    Left(Vec<String>),
}

/// Removes what a run wrote, then the directory if nothing else is in it. The ledger goes last but
/// the job, so that an interrupted removal can be repeated.
pub(crate) fn remove_run(dir: &Path, lock: RunLock) -> Result<RemovedRun, CommandFailure> {
    let last = ["ledger.sqlite", "job.toml"];
    let first = CONTENTS.iter().chain(&BESIDE_A_RUN).filter(|name| !last.contains(name));
    first.chain(&last).try_for_each(|name| remove(&dir.join(name)))?;
    drop(lock);
    remove(&dir.join("lock"))?;
    let left = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut left: Vec<String> = left.collect::<io::Result<_>>()?;
    if left.is_empty() {
        fs::remove_dir(dir)?;
        return Ok(RemovedRun::Whole);
    }
    left.sort();
    Ok(RemovedRun::Left(left))
}

/// Entries of a run that `--clean` keeps: what its starts put aside, a report over it, and its
/// authority, from which other machines have identities.
const BESIDE_A_RUN: [&str; 4] = ["lost+found", "report.html", "report", "identity"];

/// Whether the directory holds what this start expects.
fn check(dir: &Path, begin: RunStart) -> Result<(), CommandFailure> {
    // A dangling link does not count as absent: opening the ledger then reports it.
    let holds_run = dir.join("ledger.sqlite").symlink_metadata().is_ok();
    match begin {
        RunStart::Fresh if holds_run => Err(refused(
            dir,
            "already holds a run; continue it with --resume, start over with --clean, or change run.name",
        )),
        // `--clean` would remove what may be saved.
        RunStart::Fresh | RunStart::Resume if !holds_run && holds_records(dir) => Err(refused(
            dir,
            "holds data of a run and no ledger.sqlite; put the ledger back with its -wal file, or move the \
             directory away and bring back a backup with `furrow restore BACKUP DIR`",
        )),
        RunStart::Fresh if !is_empty(dir)? => Err(refused(
            dir,
            "is not empty and holds no run; change run.output_dir or run.name, or start over with --clean",
        )),
        RunStart::Resume if !holds_run => Err(refused(dir, "holds no run to resume; start without --resume")),
        _ => Ok(()),
    }
}

/// Whether the directory holds committed files, or acknowledged steps.
fn holds_records(dir: &Path) -> bool {
    let has_entries = |name: &str| fs::read_dir(dir.join(name)).is_ok_and(|mut found| found.next().is_some());
    ["data/manifest", "spool"].iter().any(|name| has_entries(name))
}

fn refused(dir: &Path, why: &str) -> CommandFailure {
    CommandFailure::Input(vec![format!("run directory {}: {why}", dir.display())])
}

/// Entries that workers and `furrow identity` may write before the coordinator starts: with only
/// these a directory counts as empty.
const BEFORE_A_RUN: [&str; 4] = ["identity", "lock", "logs", "metrics.jsonl"];

fn is_empty(dir: &Path) -> Result<bool, CommandFailure> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.all(|entry| {
            entry.is_ok_and(|entry| BEFORE_A_RUN.iter().any(|name| entry.file_name() == *name))
        })),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(why) => Err(refused(dir, &format!("cannot be read: {why}"))),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write_whole(path: &Path, text: &str) -> Result<(), CommandFailure> {
    furrow_storage::replace(path, text.as_bytes())
        .map_err(|why| CommandFailure::Input(vec![format!("cannot write {}: {why}", path.display())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(dir: &Path, begin: RunStart, want: &str) {
        let got = match prepare(dir, begin, "x = 1\n") {
            Ok(_lock) => "ready".to_owned(),
            Err(CommandFailure::Input(problems)) => problems.join("; "),
            Err(CommandFailure::Work(error)) => error.to_string(),
        };
        assert!(got.contains(want), "{got} does not contain {want:?}");
    }

    #[test]
    fn a_run_directory_is_never_reused_by_accident() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        check(&dir, RunStart::Resume, "holds no run to resume");
        fs::create_dir_all(dir.join("logs")).unwrap();
        fs::write(dir.join("metrics.jsonl"), "{}\n").unwrap();
        check(&dir, RunStart::Fresh, "ready");
        assert_eq!(fs::read_to_string(dir.join("job.toml")).unwrap(), "x = 1\n");
        check(&dir, RunStart::Fresh, "is not empty");
        fs::write(dir.join("ledger.sqlite"), "").unwrap();
        check(&dir, RunStart::Fresh, "--resume");
        check(&dir, RunStart::Resume, "ready");
        fs::write(dir.join("mine.txt"), "kept").unwrap();
        check(&dir, RunStart::Clean, "ready");
        assert!(!dir.join("ledger.sqlite").exists());
        assert!(dir.join("mine.txt").exists(), "--clean must remove only what a run wrote");
        fs::write(dir.join("ledger.sqlite"), "").unwrap();
        let lock = RunLock::take(&dir).unwrap();
        write_address(&dir, "127.0.0.1:1").unwrap();
        for begin in [RunStart::Clean, RunStart::Resume] {
            let refused = prepare(&dir, begin, "x = 2\n").map(drop);
            let Err(CommandFailure::Input(problems)) = refused else { panic!("{begin:?}: {refused:?}") };
            assert!(problems[0].contains("in use by pid"), "{begin:?}: {problems:?}");
            assert_eq!(fs::read_to_string(dir.join("job.toml")).unwrap(), "x = 1\n", "{begin:?}");
            assert_eq!(address(&dir).unwrap(), "127.0.0.1:1", "{begin:?}");
        }
        drop(lock);
    }

    #[test]
    fn a_run_is_removed_whole_and_nothing_else_is() {
        let temp = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let dir = temp.path().join(name);
            fs::create_dir_all(dir.join("data")).unwrap();
            for file in ["ledger.sqlite", "job.toml", "metrics.jsonl", "data/x", "report.html"] {
                fs::write(dir.join(file), "x").unwrap();
            }
            dir
        };
        let remove_it = |dir: &Path| lock_to_remove(dir).and_then(|lock| remove_run(dir, lock));
        let whole = make("whole");
        assert_eq!(remove_it(&whole).unwrap(), RemovedRun::Whole);
        assert!(!whole.exists());
        let mixed = make("mixed");
        fs::write(mixed.join("notes.txt"), "mine").unwrap();
        assert_eq!(remove_it(&mixed).unwrap(), RemovedRun::Left(vec!["notes.txt".into()]));
        assert_eq!(fs::read_dir(&mixed).unwrap().count(), 1);
        let used = make("used");
        let lock = RunLock::take(&used).unwrap();
        let refusal = |dir: &Path| match remove_it(dir) {
            Err(CommandFailure::Input(problems)) => problems.join("; "),
            other => panic!("{other:?}"),
        };
        assert!(refusal(&used).contains("in use by pid"));
        drop(lock);
        std::os::unix::fs::symlink(&used, temp.path().join("link")).unwrap();
        for no_run in [temp.path().to_owned(), temp.path().join("link"), temp.path().join("none"), mixed] {
            assert!(refusal(&no_run).contains("is no run directory"), "{}", no_run.display());
        }
        assert!(used.join("data/x").exists());
    }

    #[test]
    fn a_file_of_the_run_that_is_a_link_is_not_written_through() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        let users = temp.path().join("users");
        fs::create_dir(&dir).unwrap();
        fs::write(&users, "root").unwrap();
        for name in ["lock", "job.toml.tmp", "coordinator.address.tmp"] {
            let link = dir.join(name);
            std::os::unix::fs::symlink(&users, &link).unwrap();
            let outcome =
                prepare(&dir, RunStart::Clean, "x = 1\n").and_then(|_lock| write_address(&dir, "a:1"));
            assert!(outcome.is_err(), "{name}");
            assert_eq!(fs::read_to_string(&users).unwrap(), "root", "{name}");
            fs::remove_file(link).unwrap();
        }
    }
}
