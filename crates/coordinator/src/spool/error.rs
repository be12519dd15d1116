//! Why a spool operation failed.

use std::io;
use std::path::{Path, PathBuf};

use furrow_rollout::{Id, Trajectory};

use super::entry::{EntryKey, PAYLOAD_BYTES_MAX};
use crate::durable::DurableError;

/// Why a spool operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SpoolError {
    /// Another entry is recorded under this key.
    #[error(
        "{trajectory}: {key} is already recorded with another digest; resend the same bytes, or a later step"
    )]
    Conflict { trajectory: Id<Trajectory>, key: EntryKey },
    /// A step came too early.
    #[error("{trajectory}: step {got} came before step {expected}")]
    Gap {
        trajectory: Id<Trajectory>,
        /// The step that must come next.
        expected: u32,
        /// The step that came.
        got: u32,
    },
    /// The trajectory takes no more entries: it has its ending, or its shard is being written.
    #[error("{trajectory} is over and takes no more entries")]
    Over { trajectory: Id<Trajectory> },
    /// The payload is too large.
    #[error("{trajectory}: {key} has {bytes} bytes; at most {PAYLOAD_BYTES_MAX} are allowed")]
    TooLarge { trajectory: Id<Trajectory>, key: EntryKey, bytes: usize },
    /// The digest does not match the payload.
    #[error("{trajectory}: the digest of {key} does not match its bytes; they were damaged in transit")]
    WrongDigest { trajectory: Id<Trajectory>, key: EntryKey },
    /// The disk is full: nothing was written, and the same append may be retried.
    #[error("no space left for the spool; nothing was acknowledged; free disk space")]
    DiskFull(#[source] DurableError),
    /// No descriptor was left for a file: nothing was written, and the same append may be retried.
    #[error(
        "no file descriptor left for the spool; nothing was acknowledged; raise the limit (`ulimit -n`) or \
         lower limits.spool_open_files_max"
    )]
    NoDescriptor(#[source] DurableError),
    /// The storage failed while opening, reading or deleting.
    #[error("the spool failed")]
    Storage(#[source] DurableError),
    /// A recorded entry cannot be read back.
    #[error("{path}, byte {offset}: {why}")]
    Damaged {
        path: PathBuf,
        /// Where the entry begins.
        offset: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A write or a sync failed: what is durable is unknown until the next start, so nothing more
    /// is acknowledged.
    #[error("the spool stopped: fix the disk, then restart with --resume")]
    Stopped(#[source] Option<DurableError>),
}

impl SpoolError {
    /// Whether a file could not be read for want of a descriptor.
    pub fn is_descriptor_shortage(&self) -> bool {
        match self {
            SpoolError::NoDescriptor(_) => true,
            SpoolError::Storage(error) => error.is_descriptor_shortage(),
            _ => false,
        }
    }

    /// Whether the error concerns one file: its content is not what was written, the disk cannot
    /// read it, it is gone, or a symbolic link, a named pipe or a folder replaced it. A file with a
    /// second name, such as a backup by hard links makes, is whole.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            SpoolError::Damaged { .. } => true,
            SpoolError::Storage(error) => {
                // Without the folder every file is gone, which is not damage to one file.
                let is_gone = || error.path.parent().is_some_and(Path::is_dir);
                match error.source.kind() {
                    io::ErrorKind::InvalidInput => true,
                    io::ErrorKind::NotFound => is_gone(),
                    _ => is_unreadable(&error.source),
                }
            }
            _ => false,
        }
    }
}

pub(super) fn storage(operation: &'static str, path: &Path, error: io::Error) -> SpoolError {
    SpoolError::Storage(DurableError::on(operation, path)(error))
}

/// Whether a disk could not return what was written; it affects one file, not all.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
