//! The errors of writing a checkpoint.

use std::io;
use std::path::PathBuf;

use crate::config::ConfigError;
use crate::tokenizer::TokenizerError;

/// Why a checkpoint was not written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{} exists or is not the name of a directory; give a path that does not exist", path.display())]
    Exists { path: PathBuf },
    /// Another process writes it.
    #[error("{} is being written by another process; wait for it or stop it", path.display())]
    Busy { path: PathBuf },
    /// A process that was killed left a part of another checkpoint under this name.
    #[error("{} is part of a checkpoint with other settings ({found}); continue with those settings or remove it", path.display())]
    OtherDraft {
        /// Path of that part.
        path: PathBuf,
        found: String,
    },
    /// The disk is too small for what is still to be written.
    #[error(
        "{} needs {} more on its disk, but {} are free{}; free {}, or give a path on a larger disk",
        path.display(), size(*needed), size(*free), resume_note(*there), size(*needed - *free)
    )]
    DiskFull {
        /// The directory that is to be made.
        path: PathBuf,
        /// Bytes to be written.
        needed: u64,
        /// Bytes of weight files that an earlier start completed.
        there: u64,
        /// Bytes that can be written.
        free: u64,
    },
    /// The operating system refused.
    #[error("cannot {what} {}", path.display())]
    Write {
        what: &'static str,
        /// On which file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The configuration cannot be read back.
    #[error("this size has a configuration that cannot be read")]
    Config(#[from] ConfigError),
    /// The tokenizer cannot be read back.
    #[error("the trained tokenizer cannot be read")]
    Tokenizer(#[from] TokenizerError),
}

/// Describes what an earlier start left, if anything.
fn resume_note(bytes: u64) -> String {
    if bytes > 0 { format!(" (the {} from an earlier start are kept)", size(bytes)) } else { String::new() }
}

/// Bytes in a readable unit.
fn size(bytes: u64) -> String {
    if bytes < 1_000_000_000 {
        format!("{:.1} MB", bytes as f64 / 1e6)
    } else {
        format!("{:.2} GB", bytes as f64 / 1e9)
    }
}
