//! One process per run directory: a lock that the kernel releases whenever its holder dies.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::durable::DurableError;

/// Holds a run directory until dropped. The file stays: removing it would let two processes lock
/// two files of one name.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

/// Why the run directory cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("run directory {run_dir} is in use by {holder}: stop it, or choose another output_dir")]
    InUse {
        run_dir: PathBuf,
        /// What the holder wrote about itself: its pid and how long it has held the lock.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("cannot lock the run directory")]
    File(#[from] DurableError),
}

impl RunLock {
    /// Takes the directory, or fails with its holder.
    pub fn take(run_dir: &Path) -> Result<Self, LockError> {
        let path = run_dir.join("lock");
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let opened = furrow_storage::open(&path, &options);
        let mut file = opened.map_err(DurableError::on("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(run_dir, file)),
            Err(error) => return Err(DurableError::on("lock", &path)(error.into()).into()),
        }
        write_holder(&mut file).map_err(DurableError::on("write to", &path))?;
        Ok(Self { _file: file })
    }

    /// Who has the directory, without taking it; `None` if it is free. For a moment it shares the
    /// lock, so do not ask in a loop.
    pub fn holder(run_dir: &Path) -> Option<String> {
        let options = OpenOptions::new().read(true).clone();
        let file = furrow_storage::open(&run_dir.join("lock"), &options).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Some(holder_of(file)),
            _ => None,
        }
    }
}

fn write_holder(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{} {}", std::process::id(), seconds_now())
}

fn in_use(run_dir: &Path, file: File) -> LockError {
    LockError::InUse { run_dir: run_dir.to_owned(), holder: holder_of(file) }
}

fn holder_of(mut file: File) -> String {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.ok().and_then(|_| describe_holder(&text)).unwrap_or_else(|| "another process".to_owned())
}

/// `1234 1763711111` → `pid 1234, for 35 s`.
fn describe_holder(text: &str) -> Option<String> {
    let (pid, since) = text.trim().split_once(' ')?;
    let pid: u32 = pid.parse().ok()?;
    let seconds = seconds_now().saturating_sub(since.parse().ok()?);
    Some(format!("pid {pid}, for {seconds} s"))
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let lock = RunLock::take(dir.path()).unwrap();
        let refused = RunLock::take(dir.path()).unwrap_err().to_string();
        let pid = format!("in use by pid {}", std::process::id());
        assert!(refused.contains(&pid), "{refused}");
        let holder = RunLock::holder(dir.path()).unwrap();
        assert!(holder.contains(&std::process::id().to_string()), "{holder}");
        drop(lock);
        assert_eq!(RunLock::holder(dir.path()), None);
        RunLock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_dead_holders_file_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), "99999 1").unwrap();
        RunLock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_holder_is_described() {
        assert_eq!(describe_holder(&format!("12 {}\n", seconds_now() + 9)).unwrap(), "pid 12, for 0 s");
        assert_eq!(describe_holder("garbage"), None);
        assert_eq!(describe_holder("x 1"), None);
    }
}
