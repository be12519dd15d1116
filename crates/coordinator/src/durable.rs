//! The only writer of files that must survive a crash: nothing written counts as durable until it
//! is synced.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::crash;

/// An append-only file.
///
/// In a build with the feature `failpoints`, `FURROW_POWER_CUT=1` holds bytes back in memory until
/// they are synced, so that kill -9 loses what a power cut would lose: no page cache remains. The
/// fail point `fault.sync` makes syncs fail.
#[derive(Debug)]
pub(crate) struct DurableFile {
    path: PathBuf,
    file: File,
    written: u64,
    synced: u64,
    poisoned: bool,
    #[cfg(feature = "failpoints")]
    unsynced: Option<Vec<u8>>,
}

/// A file operation that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot {operation} {path}")]
pub struct DurableError {
    /// The operation that failed.
    pub operation: &'static str,
    /// The path it failed on.
    pub path: PathBuf,
    pub source: Arc<io::Error>,
}

impl DurableFile {
    /// Creates an empty file; fails where the name exists. The name is durable once the directory
    /// is synced.
    pub(crate) fn create(path: impl Into<PathBuf>) -> Result<Self, DurableError> {
        let path = path.into();
        let made = furrow_storage::open(&path, OpenOptions::new().append(true).create_new(true));
        let file = made.map_err(DurableError::on("create", &path))?;
        Ok(Self::new(path, file, 0))
    }

    /// Opens a file and cuts everything after its first `keep` bytes.
    pub(crate) fn open(path: impl Into<PathBuf>, keep: u64) -> Result<Self, DurableError> {
        let path = path.into();
        let opened = furrow_storage::open(&path, OpenOptions::new().append(true));
        let file = opened.map_err(DurableError::on("open", &path))?;
        let length = file.metadata().map_err(DurableError::on("measure", &path))?.len();
        if length != keep {
            file.set_len(keep).map_err(DurableError::on("cut", &path))?;
            file.sync_all().map_err(DurableError::on("sync", &path))?;
        }
        Ok(Self::new(path, file, keep))
    }

    /// Appends the parts in order. When they do not fit, the file stays as it was.
    pub(crate) fn write(&mut self, parts: &[&[u8]]) -> Result<(), DurableError> {
        self.check()?;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        #[cfg(feature = "failpoints")]
        if let Some(unsynced) = &mut self.unsynced {
            parts.iter().for_each(|part| unsynced.extend_from_slice(part));
            self.written += length as u64;
            return Ok(());
        }
        if let Err(error) = write_all(&self.file, parts) {
            // half an entry must not precede the next one
            self.poisoned = self.file.set_len(self.written).is_err();
            return Err(DurableError::on("write to", &self.path)(error));
        }
        self.written += length as u64;
        Ok(())
    }

    /// Makes everything written durable. After a failure the kernel may have dropped the bytes and
    /// marked them clean, so a second sync proves nothing: the file takes no more writes.
    pub(crate) fn sync(&mut self) -> Result<(), DurableError> {
        self.check()?;
        self.poisoned = true;
        if crash::planted("fault.sync") {
            return Err(DurableError::on("sync", &self.path)(rustix::io::Errno::IO.into()));
        }
        #[cfg(feature = "failpoints")]
        if let Some(unsynced) = &mut self.unsynced {
            self.file.write_all(unsynced).map_err(DurableError::on("write to", &self.path))?;
            unsynced.clear();
        }
        self.file.sync_data().map_err(DurableError::on("sync", &self.path))?;
        self.poisoned = false;
        self.synced = self.written;
        Ok(())
    }

    /// Bytes written, synced or not.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Whether written bytes wait for a sync.
    pub(crate) fn is_dirty(&self) -> bool {
        self.written != self.synced
    }

    fn new(path: PathBuf, file: File, length: u64) -> Self {
        Self {
            path,
            file,
            written: length,
            synced: length,
            poisoned: false,
            #[cfg(feature = "failpoints")]
            unsynced: power_cut().then(Vec::new),
        }
    }

    fn check(&self) -> Result<(), DurableError> {
        if !self.poisoned {
            return Ok(());
        }
        let why = io::Error::other("an earlier write or sync of this file failed");
        Err(DurableError::on("continue with", &self.path)(why))
    }
}

impl DurableError {
    /// Wraps an I/O error, for `map_err`.
    pub(crate) fn on(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { operation, path: path.to_owned(), source: Arc::new(source) }
    }

    /// Whether a file could not be opened for want of a descriptor; closing others helps.
    pub fn is_descriptor_shortage(&self) -> bool {
        matches!(self.operation, "open" | "create") && is_descriptor_shortage(&self.source)
    }

    /// Whether the disk was full; freeing space helps.
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

/// Whether an error means that the process or the system has no file descriptor or memory left for
/// one more file. Nothing was opened then.
pub(crate) fn is_descriptor_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| shortages.iter().any(|errno| errno.raw_os_error() == code))
}

/// Whether an error means that a disk, a quota or a limit on file sizes is exhausted.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Makes names added to or removed from a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), DurableError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(DurableError::on("sync directory", path))
}

/// Creates a directory and those above it, where they do not exist, and makes each name durable.
pub(crate) fn make_durable_dir(path: &Path) -> Result<(), DurableError> {
    furrow_storage::create_durable_dir(path).map_err(DurableError::on("create", path))
}

fn write_all(mut file: &File, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0); // drops empty parts at the front
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut rest, count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(feature = "failpoints")]
fn power_cut() -> bool {
    std::env::var_os("FURROW_POWER_CUT").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_a_tail_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = DurableFile::create(&path).unwrap();
        file.write(&[b"", b"one", b"", b"two"]).unwrap();
        assert!(file.is_dirty());
        file.sync().unwrap();
        assert!(!file.is_dirty());
        drop(file);
        let mut file = DurableFile::open(&path, 4).unwrap();
        file.write(&[b"three"]).unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"onetthree");
        assert_eq!(file.written(), 9);
    }

    #[test]
    fn a_file_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        DurableFile::create(&path).unwrap();
        let error = DurableFile::create(&path).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("cannot create"), "{error}");
    }

    #[test]
    fn a_full_disk_is_distinguished_and_a_failed_sync_is_final() {
        // The only device whose writes fail with "no space left"; it can be neither truncated nor
        // synced.
        let file = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let mut file = DurableFile::new("/dev/full".into(), file, 0);
        assert!(file.write(&[b"x"]).unwrap_err().is_full());
        let after = file.sync().unwrap_err();
        assert!(!after.is_full());
        assert!(after.to_string().contains("cannot continue with"), "{after}");
    }
}
