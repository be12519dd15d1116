//! Weights that consist of changes: which form a directory has, how it is applied to a checkpoint,
//! and why it is refused.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Checkpoint;
use super::displayed::displayed_name;
use super::error::CheckpointError;
use super::layout::TensorLayout;
use super::mismatch::TensorMismatches;
use super::shards::{ShardError, WeightFile};
use crate::file::FileError;

/// Name of the configuration file that PEFT writes.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Name of the manifest.
pub const DELTA_MANIFEST: &str = "delta.json";

/// What a directory of weights holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateForm {
    Full,
    /// Full new values of some tensors: see [`super::DeltaManifest`].
    Delta,
    /// A LoRA adapter in the format of PEFT.
    Adapter,
}

/// Why an update was not applied to a checkpoint. The checkpoint is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// The checkpoint's own weights, or the result, are invalid.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// None of the three forms.
    #[error(
        "{} holds neither config.json nor {DELTA_MANIFEST} nor {ADAPTER_CONFIG}; give a checkpoint, a delta or a LoRA adapter", dir.display()
    )]
    NoForm { dir: PathBuf },
    /// A JSON file does not have the expected form.
    #[error("{} is not valid JSON of the expected form", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// A key of a JSON file has a value that is not accepted.
    #[error("{}: {key} is {value}; {right}", path.display())]
    Key {
        path: PathBuf,
        key: String,
        value: String,
        /// What it must be.
        right: String,
    },
    /// A file differs from what the manifest describes.
    #[error("{} is not the file that {DELTA_MANIFEST} describes: its {what} is {found}, not {expected}; copy it again", path.display())]
    OtherFile {
        path: PathBuf,
        what: &'static str,
        /// Value in the manifest.
        expected: String,
        /// Value of the file.
        found: String,
    },
    /// A weight file that the manifest does not name.
    #[error("{} is not named by {DELTA_MANIFEST}; delete it, or write the manifest again", path.display())]
    Unnamed { path: PathBuf },
    /// Its tensors do not match the model.
    #[error("{}: {mismatches}", dir.display())]
    Mismatches { dir: PathBuf, mismatches: TensorMismatches },
    /// A tensor that cannot be applied.
    #[error("{}: {} {why}", path.display(), displayed_name(name))]
    Tensor {
        path: PathBuf,
        /// The tensor's name in it.
        name: String,
        /// What is wrong, and what is expected.
        why: String,
    },
    /// It holds no tensor of this model.
    #[error("{} changes no tensor of this model", dir.display())]
    Empty { dir: PathBuf },
    /// The weights after the update have another hash than expected.
    #[error("{}: the updated weights have the SHA-256 {found}, not {expected}", dir.display())]
    OtherWeights {
        dir: PathBuf,
        expected: String,
        /// Hash of the result.
        found: String,
    },
}

impl UpdateForm {
    /// Finds out which of the three forms a directory has.
    ///
    /// # Errors
    /// If it has none of them.
    pub fn of(dir: &Path) -> Result<Self, UpdateError> {
        // An adapter's directory may hold the configuration of its base model: PEFT's file decides.
        let forms =
            [(DELTA_MANIFEST, Self::Delta), (ADAPTER_CONFIG, Self::Adapter), ("config.json", Self::Full)];
        let found = forms.into_iter().find(|(name, _)| dir.join(name).is_file());
        found.map(|(_, form)| form).ok_or_else(|| UpdateError::NoForm { dir: dir.into() })
    }

    /// Its name in reports and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Delta => "delta",
            Self::Adapter => "adapter",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Full, Self::Delta, Self::Adapter].into_iter().find(|form| form.as_str() == name)
    }
}

impl fmt::Display for UpdateForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Checkpoint {
    /// Replaces tensors of this checkpoint. Pieces of `layout` count `files` from 0.
    pub(super) fn overlay(&mut self, files: Vec<WeightFile>, mut layout: TensorLayout) {
        let before = self.shards.files.len();
        self.shards.files.extend(files);
        for (name, mut located) in layout.tensors.drain() {
            located.pieces.iter_mut().for_each(|piece| piece.shard += before);
            self.layout.tensors.insert(name, located);
        }
    }
}
