//! Why an archive cannot be written or read.

use std::io;
use std::path::{Path, PathBuf};

/// Why an archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("archive {path:?}: {what}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        source: io::Error,
    },
    /// A line is not valid in an index.
    #[error("archive {path:?}, line {line}: {what}")]
    Line {
        /// Path of the index.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: usize,
        what: String,
    },
}

pub(super) fn io_error(path: &Path, what: &'static str, source: io::Error) -> ArchiveError {
    ArchiveError::Io { path: path.to_owned(), what, source }
}
