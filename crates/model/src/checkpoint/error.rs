//! Why a checkpoint was refused.

use std::path::PathBuf;

use super::mismatch::TensorMismatches;
use super::shards::ShardError;
use crate::config::ConfigError;

/// Why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Its configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its weight files cannot be used.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// Its tensors do not match the configuration.
    #[error("{}: {mismatches}", dir.display())]
    Mismatches { dir: PathBuf, mismatches: TensorMismatches },
    /// A weight that is not finite.
    #[error(
        "{name} in {file} has the value {value} at index {index}; weights must be finite: copy the file again or use an earlier checkpoint"
    )]
    NotFinite {
        file: String,
        /// The tensor's name in it.
        name: String,
        /// Index into its values.
        index: usize,
        value: f32,
    },
    /// A tensor that this model does not have was requested.
    #[error("the model has no tensor {name}")]
    NoTensor { name: String },
}
