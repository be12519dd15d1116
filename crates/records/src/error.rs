//! Errors of a data set. `what` and `why` are texts where no caller tells one reason from another.

use std::io;
use std::path::{Path, PathBuf};

use crate::{InvalidCommit, Table};

/// An operation that failed, and on what. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file system reported an error.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or folder it failed on.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// Parquet or Arrow reported an error.
    #[error("cannot {doing} {}", path.display())]
    Parquet {
        /// The operation that failed.
        doing: &'static str,
        /// The file it failed on.
        path: PathBuf,
        /// The error of the Parquet library.
        source: parquet::errors::ParquetError,
    },
    /// A shard file of this name exists; a shard id is used once.
    #[error("{} exists already: use a new shard id", path.display())]
    Exists {
        /// Path of the existing file.
        path: PathBuf,
    },
    /// A file does not have the expected content.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// A value does not fit its columns.
    #[error("{what} cannot be written: {why}")]
    Unwritable {
        /// The record that does not fit.
        what: String,
        /// Why it does not fit.
        why: String,
    },
    /// The manifest is inconsistent.
    #[error("manifest commit {version}: {what}")]
    Manifest {
        /// Number of the commit.
        version: u64,
        /// What is wrong with it.
        what: InvalidCommit,
    },
    /// The store that holds the manifest reported an error.
    #[error("cannot {doing} {path}")]
    Store {
        /// The operation that failed.
        doing: &'static str,
        /// The object it failed on.
        path: String,
        /// The error of the store.
        source: object_store::Error,
    },
    /// The directory holds no data set.
    #[error("{} holds no data set: give a run directory or its `data` folder", path.display())]
    NoDataSet {
        /// The path that was given.
        path: PathBuf,
    },
    /// The rows of a file were removed for good after the reader learned of it.
    #[error(
        "{}: its rows have expired since the data set was opened; raise records.retention_bytes or \
         records.retention_hours, or open the data set again", path.display()
    )]
    Expired {
        /// Path of the file.
        path: PathBuf,
    },
    /// A file left the data set so long ago that the manifest no longer says where its rows are.
    #[error(
        "{}: it left the data set since that was opened, more than records.merge_grace_millis ago: its \
         rows were merged or have expired; open the data set again", path.display()
    )]
    LeftDataSet {
        /// Path of the file.
        path: PathBuf,
    },
    /// Small files cannot be merged.
    #[error("files of {table} cannot be merged: {why}")]
    Unmergeable {
        /// The table of the files.
        table: Table,
        /// Why they cannot be merged.
        why: String,
    },
}

/// Linux: too many open files, in the system and in the process.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

impl RecordsError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether the file left the data set after the reader learned of it.
    pub fn has_left(&self) -> bool {
        matches!(self, Self::Expired { .. } | Self::LeftDataSet { .. })
    }

    /// Whether the disk or a quota was full.
    pub fn is_disk_full(&self) -> bool {
        self.has_cause(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        })
    }

    /// Whether no file descriptor was left, in the process or in the system.
    pub fn is_descriptor_shortage(&self) -> bool {
        self.has_cause(|error| matches!(error.raw_os_error(), Some(EMFILE | ENFILE)))
    }

    /// Parquet wraps the cause once more, so this walks the whole chain.
    fn has_cause(&self, is_it: impl Fn(&io::Error) -> bool) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref::<io::Error>().is_some_and(&is_it) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// An error and its causes on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
