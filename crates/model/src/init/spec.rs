//! What a caller asks for: the settings of a random checkpoint, and reports of its progress.

use super::sizes::ModelSize;
use super::stored_type::StoredType;

/// Settings of a random checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitSpec {
    /// Size of the model.
    pub size: ModelSize,
    /// Seed of its weights.
    pub seed: u64,
    /// Number type of its weights.
    pub dtype: StoredType,
    /// Largest weight file in bytes; a larger checkpoint has shards and an index.
    pub shard_bytes_max: u64,
}

/// Called with the bytes of weights that are written, and the total.
pub type ProgressFn<'a> = dyn Fn(u64, u64) + Sync + 'a;
