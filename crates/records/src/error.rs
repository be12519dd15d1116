//! What can go wrong with a data set, told to whoever must act.

use std::io;
use std::path::{Path, PathBuf};

use crate::Table;

/// Which operation failed on what. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file system refused.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Parquet or Arrow refused.
    #[error("cannot {doing} {}", path.display())]
    Parquet {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: parquet::errors::ParquetError,
    },
    /// A shard file of this name is there already; a shard id is used once.
    #[error("{} exists already: a shard id is used once, take a new one", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// A noun does not fit its columns.
    #[error("{what} cannot be written: {why}")]
    Unwritable {
        /// Which one.
        what: String,
        /// Why not.
        why: String,
    },
    /// The manifest cannot be trusted.
    #[error("manifest commit {version}: {what}")]
    Manifest {
        /// Which commit.
        version: u64,
        /// What is wrong with it, and what would be right.
        what: String,
    },
    /// The store that holds the manifest refused.
    #[error("cannot {doing} {path}")]
    Store {
        /// What was tried.
        doing: &'static str,
        /// On which object.
        path: String,
        /// Why not.
        source: object_store::Error,
    },
    /// There is no data set here.
    #[error("{} holds no data set: give a run directory or its `data` folder", path.display())]
    NoDataSet {
        /// The place that was named.
        path: PathBuf,
    },
    /// Small files cannot become one.
    #[error("files of {table} cannot be merged: {why}")]
    Unmergeable {
        /// Their table.
        table: Table,
        /// Why not.
        why: String,
    },
}

impl RecordsError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether the disk had no room. Parquet wraps the cause once more, so the whole chain is asked.
    pub fn is_disk_full(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::StorageFull) {
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
