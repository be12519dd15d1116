//! Weights that come as what changed: which form a directory has, how it is laid over a checkpoint, and why it is refused.

use std::fmt;
use std::path::{Path, PathBuf};

use super::layout::Layout;
use super::shards::{Shard, ShardError};
use super::{ADAPTER_CONFIG, Checkpoint, CheckpointError, DELTA_MANIFEST, Misfits, shown};
use crate::file::FileError;

/// What a directory of weights holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A whole checkpoint.
    Full,
    /// Full new values of some tensors: see [`super::Delta`].
    Delta,
    /// A LoRA adapter as PEFT saves it.
    Adapter,
}

/// Why weights were not laid over a checkpoint. The checkpoint is as it was.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A weight file.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// The checkpoint's own weights, or the result.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Neither of the three forms.
    #[error(
        "{} holds neither config.json nor {DELTA_MANIFEST} nor {ADAPTER_CONFIG}; give a checkpoint, a delta or a LoRA adapter", dir.display()
    )]
    NoForm {
        /// The directory.
        dir: PathBuf,
    },
    /// A small file that is not what it should be.
    #[error("{} is not the JSON it should be", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Where it stops being it.
        source: serde_json::Error,
    },
    /// A key of a small file has a value that is not taken.
    #[error("{}: {key} is {value}; {right}", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: String,
        /// Its value.
        value: String,
        /// What would be right.
        right: String,
    },
    /// A file is not the one the manifest was written for.
    #[error("{} is not the file that {DELTA_MANIFEST} tells of: its {what} is {found}, not {said}; copy it again", path.display())]
    OtherFile {
        /// Which file.
        path: PathBuf,
        /// `size` or `SHA-256`.
        what: &'static str,
        /// What the manifest says.
        said: String,
        /// What it is.
        found: String,
    },
    /// A weight file that the manifest does not name.
    #[error("{} is not named by {DELTA_MANIFEST}; delete it, or write the manifest again", path.display())]
    Unnamed {
        /// Which file.
        path: PathBuf,
    },
    /// Its tensors are not the model's.
    #[error("{}: {misfits}", dir.display())]
    Misfits {
        /// The directory.
        dir: PathBuf,
        /// Everything that does not fit.
        misfits: Misfits,
    },
    /// A tensor that cannot stand where it should.
    #[error("{}: {} {why}", path.display(), shown(name))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name in it.
        name: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// Nothing in it.
    #[error("{} changes no tensor of this model", dir.display())]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// The whole has another hash than was said.
    #[error("{}: the weights that come of it have the SHA-256 {found}, not {said}", dir.display())]
    OtherWeights {
        /// The directory.
        dir: PathBuf,
        /// What was said.
        said: String,
        /// What it is.
        found: String,
    },
}

impl Form {
    /// Looks at which of the small files a directory holds.
    ///
    /// # Errors
    /// When it holds none of them.
    pub fn of(dir: &Path) -> Result<Self, UpdateError> {
        // An adapter's folder may hold the configuration of the model it is for: PEFT's file decides.
        let forms =
            [(DELTA_MANIFEST, Self::Delta), (ADAPTER_CONFIG, Self::Adapter), ("config.json", Self::Full)];
        let found = forms.into_iter().find(|(name, _)| dir.join(name).is_file());
        found.map(|(_, form)| form).ok_or_else(|| UpdateError::NoForm { dir: dir.into() })
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Delta => "delta",
            Self::Adapter => "adapter",
        }
    }

    /// The form of that word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Full, Self::Delta, Self::Adapter].into_iter().find(|form| form.as_str() == word)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Checkpoint {
    /// Puts tensors in place of its own. Their pieces count `files` from 0.
    pub(super) fn lay_over(&mut self, files: Vec<Shard>, mut layout: Layout) {
        let before = self.shards.files.len();
        self.shards.files.extend(files);
        for (name, mut located) in layout.tensors.drain() {
            located.pieces.iter_mut().for_each(|piece| piece.shard += before);
            self.layout.tensors.insert(name, located);
        }
    }
}
