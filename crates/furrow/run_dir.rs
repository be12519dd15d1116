//! The run directory: made once, never reused by accident.

use std::fs;
use std::io;
use std::path::Path;

use furrow_coordinator::RunLock;

use crate::Failure;

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// In a directory that holds no run.
    Fresh,
    /// Where an earlier start of the same job stopped.
    Resume,
    /// From nothing: what an earlier run left in the directory is removed.
    Clean,
}

/// What a run puts into its directory. `--clean` removes these and nothing else.
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

/// A job file has at most 1 MiB; with all defaults written out it is no ten times larger.
const RESOLVED_BYTES_MAX: u64 = 16 << 20;

/// Where the coordinator of the run listens, for programs beside it.
const ADDRESS: &str = "coordinator.address";

/// Writes down where the coordinator listens.
pub fn write_address(dir: &Path, address: &str) -> Result<(), Failure> {
    write_whole(&dir.join(ADDRESS), address)
}

/// Where the coordinator of a run listens, or listened when it was last started.
pub fn address(dir: &Path) -> Result<String, Failure> {
    let path = dir.join(ADDRESS);
    let text = fs::read_to_string(&path).map_err(|why| {
        let told = format!(
            "--run: {} cannot be read ({why}); name the directory of a run that was started",
            path.display()
        );
        Failure::Input(vec![told])
    })?;
    Ok(text.trim().chars().take(512).collect())
}

/// Reads the resolved job of a run; `None` where there is none.
///
/// # Errors
/// When it is no regular file, too large, or not UTF-8.
pub fn job_text(dir: &Path) -> io::Result<Option<String>> {
    match furrow_storage::read(&dir.join("job.toml"), RESOLVED_BYTES_MAX) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
        Ok(bytes) => {
            String::from_utf8(bytes).map(Some).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

/// Takes the directory for a run, makes it ready and writes the resolved job into a new one.
///
/// Nothing in it is changed before the lock is held: what is there may be a living run's. The job of a run that is resumed is written
/// by the coordinator, once nothing refuses the start.
pub fn prepare(dir: &Path, begin: Begin, resolved_job: &str) -> Result<RunLock, Failure> {
    check(dir, begin)?;
    fs::create_dir_all(dir).map_err(|why| refused(dir, &format!("cannot be made: {why}")))?;
    let lock = RunLock::take(dir).map_err(|held| Failure::Input(vec![crate::chain(&held.into())]))?;
    // Another may have begun and ended since the first look.
    check(dir, begin)?;
    if begin == Begin::Clean {
        CONTENTS.iter().try_for_each(|name| remove(&dir.join(name)))?;
    }
    if begin != Begin::Resume {
        write_whole(&dir.join("job.toml"), resolved_job)?;
    }
    Ok(lock)
}

/// Whether what lies in the directory is what this start expects.
fn check(dir: &Path, begin: Begin) -> Result<(), Failure> {
    // A link that leads nowhere is no absent ledger: opening it says so.
    let holds_run = dir.join("ledger.sqlite").symlink_metadata().is_ok();
    match begin {
        Begin::Fresh if holds_run => Err(refused(
            dir,
            "holds a run already; go on with it by --resume, start over by --clean, or give run.name another name",
        )),
        Begin::Fresh if !is_empty(dir)? => Err(refused(
            dir,
            "is not empty; name another run.output_dir or run.name, or start over by --clean",
        )),
        Begin::Resume if !holds_run => Err(refused(dir, "holds no run to resume; leave --resume out")),
        _ => Ok(()),
    }
}

fn refused(dir: &Path, why: &str) -> Failure {
    Failure::Input(vec![format!("run directory {}: {why}", dir.display())])
}

/// Empty, absent, or with nothing in it but a lock file and the logs of workers that came first.
/// What workers that were there before the coordinator write.
const BEFORE_A_RUN: [&str; 3] = ["lock", "logs", "metrics.jsonl"];

fn is_empty(dir: &Path) -> Result<bool, Failure> {
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

fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    furrow_storage::replace(path, text.as_bytes())
        .map_err(|why| Failure::Input(vec![format!("cannot write {}: {why}", path.display())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(dir: &Path, begin: Begin, want: &str) {
        let got = match prepare(dir, begin, "x = 1\n") {
            Ok(_lock) => "ready".to_owned(),
            Err(Failure::Input(problems)) => problems.join("; "),
            Err(Failure::Work(error)) => error.to_string(),
        };
        assert!(got.contains(want), "{got} does not say {want:?}");
    }

    #[test]
    fn a_run_directory_is_never_reused_by_accident() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        check(&dir, Begin::Resume, "holds no run to resume");
        fs::create_dir_all(dir.join("logs")).unwrap();
        fs::write(dir.join("metrics.jsonl"), "{}\n").unwrap();
        check(&dir, Begin::Fresh, "ready");
        assert_eq!(fs::read_to_string(dir.join("job.toml")).unwrap(), "x = 1\n");
        check(&dir, Begin::Fresh, "is not empty");
        fs::write(dir.join("ledger.sqlite"), "").unwrap();
        check(&dir, Begin::Fresh, "--resume");
        check(&dir, Begin::Resume, "ready");
        fs::write(dir.join("mine.txt"), "kept").unwrap();
        check(&dir, Begin::Clean, "ready");
        assert!(!dir.join("ledger.sqlite").exists());
        assert!(dir.join("mine.txt").exists(), "--clean removes what a run made, nothing else");
        fs::write(dir.join("ledger.sqlite"), "").unwrap();
        let held = RunLock::take(&dir).unwrap();
        write_address(&dir, "127.0.0.1:1").unwrap();
        for begin in [Begin::Clean, Begin::Resume] {
            let refused = prepare(&dir, begin, "x = 2\n").map(drop);
            let Err(Failure::Input(problems)) = refused else { panic!("{begin:?}: {refused:?}") };
            assert!(problems[0].contains("in use by pid"), "{begin:?}: {problems:?}");
            assert_eq!(fs::read_to_string(dir.join("job.toml")).unwrap(), "x = 1\n", "{begin:?}");
            assert_eq!(address(&dir).unwrap(), "127.0.0.1:1", "{begin:?}");
        }
        drop(held);
    }

    #[test]
    fn a_file_of_the_run_that_is_a_link_is_not_written_through() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, users) = (temp.path().join("run"), temp.path().join("users"));
        fs::create_dir(&dir).unwrap();
        fs::write(&users, "root").unwrap();
        for name in ["lock", "job.toml.tmp", "coordinator.address.tmp"] {
            let link = dir.join(name);
            std::os::unix::fs::symlink(&users, &link).unwrap();
            let outcome = prepare(&dir, Begin::Clean, "x = 1\n").and_then(|_lock| write_address(&dir, "a:1"));
            assert!(outcome.is_err(), "{name}");
            assert_eq!(fs::read_to_string(&users).unwrap(), "root", "{name}");
            fs::remove_file(link).unwrap();
        }
    }
}
