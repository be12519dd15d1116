//! Opens a Hugging Face directory: `config.json` and safetensors shards. Checks every name and
//! shape before it is used.
//!
//! `config.rs` reads the configuration, `header.rs` and `shards.rs` the files. `wanted.rs`,
//! `names.rs` and `layout.rs` find each tensor of the model in them, under any of the names that
//! writers use. An opened checkpoint can be loaded
//! ([`ModelWeights::load`](crate::weights::ModelWeights::load)), hashed or [inspected](inspect). A
//! checkpoint that cannot be trusted is refused with an error that names the problem.
//!
//! Later weights of the same model may consist of changes only: a delta (`delta.rs`) or a LoRA
//! adapter (`adapter.rs`), applied to a checkpoint.

mod adapter;
mod delta;
mod displayed;
mod error;
mod header;
mod inspect;
mod layout;
mod map;
mod mismatch;
mod names;
mod shards;
mod tensor;
mod update;
mod wanted;

use std::path::Path;

use sha2::{Digest, Sha256};

pub use self::adapter::ADAPTER_WEIGHTS;
pub use self::delta::{DeltaFile, DeltaFormat, DeltaManifest};
use self::displayed::{displayed_name, hex};
pub use self::error::CheckpointError;
pub use self::header::{HEADER_MAX, HeaderError};
pub use self::inspect::{
    CheckpointInspection, FileFacts, LayerCounts, ModelFacts, ParameterCounts, SessionState, chain, inspect,
};
use self::layout::{LocatedTensor, TensorLayout};
pub use self::mismatch::{TensorMismatch, TensorMismatches};
pub(crate) use self::names::TOWER;
pub use self::shards::ShardError;
use self::shards::WeightFiles;
pub use self::tensor::{StoredNumbers, Tensor};
pub use self::update::{ADAPTER_CONFIG, DELTA_MANIFEST, UpdateError, UpdateForm};
pub use self::wanted::{ModelPart, RequiredTensor, required_tensors};
use crate::config::Config;
use crate::kernels::ThreadPool;

/// A checkpoint that has every tensor in the right shape. Its files stay mapped; no weights are
/// loaded yet.
#[derive(Debug)]
pub struct Checkpoint {
    config: Config,
    shards: WeightFiles,
    layout: TensorLayout,
}

impl Checkpoint {
    /// Opens a directory and checks everything except the values of the weights.
    ///
    /// The files stay mapped while the checkpoint is open and must not change meanwhile: write new
    /// weights under a new name. Whether one was cut, [`Checkpoint::check_uncut`] tells.
    ///
    /// # Errors
    /// If the configuration is refused, a file is missing or invalid, or tensors do not match the
    /// configuration. The error names every mismatch.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let config = Config::read(dir)?;
        let shards = WeightFiles::open(dir)?;
        let (layout, mismatches) = layout::locate(&config, &shards);
        match mismatches.0.is_empty() {
            true => Ok(Self { config, shards, layout }),
            false => Err(CheckpointError::Mismatches { dir: dir.into(), mismatches }),
        }
    }

    /// Refuses what was read so far if a file lost bytes under its map. Call it after reading
    /// weights and before using them.
    ///
    /// # Errors
    /// If a file was truncated, or could not be read, where weights were read.
    pub fn check_uncut(&self) -> Result<(), CheckpointError> {
        Ok(self.shards.check_uncut()?)
    }

    /// Configuration of the model that the weights belong to.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Names in the files that belong to no part of this model.
    pub fn ignored(&self) -> &[String] {
        &self.layout.ignored
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> u64 {
        self.layout
            .tensors
            .values()
            .flat_map(|tensor| &tensor.pieces)
            .map(|piece| piece.bytes.len() as u64)
            .sum()
    }

    /// Looks up a tensor by its published name, without the outer `language_model.`.
    ///
    /// # Errors
    /// If the model has no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let located = self.layout.tensors.get(name);
        Ok(self.view(located.ok_or_else(|| CheckpointError::NoTensor { name: displayed_name(name) })?))
    }

    fn view(&self, located: &LocatedTensor) -> Tensor<'_> {
        let pieces = located.pieces.iter().map(|piece| {
            let file = &self.shards.files[piece.shard];
            let name = file.entries[piece.entry].name.as_str();
            tensor::TensorRows {
                file: &file.name,
                name,
                dtype: piece.dtype,
                bytes: &file.map[piece.bytes.clone()],
            }
        });
        Tensor::new(located.shape.clone(), pieces.collect())
    }

    /// The hash that identifies these weights, in hexadecimal. It does not depend on how they are
    /// split into files or on the naming they are stored in.
    ///
    /// It is the SHA-256 of one line per tensor,
    /// `{published name} {type} {rows}x{columns} {SHA-256 of its bytes}\n`, sorted by the bytes of
    /// the names; the published name is without the outer `language_model.`.
    pub fn weights_sha256(&self, team: &ThreadPool) -> String {
        self.hashes(team).weights
    }

    /// That hash, and the hash of the lines of the vision encoder alone: features of tiles are
    /// equal if equal encoders made them.
    pub fn hashes(&self, team: &ThreadPool) -> WeightHashes {
        let mut tensors: Vec<(&String, &LocatedTensor)> = self.layout.tensors.iter().collect();
        tensors.sort_by_key(|(name, _)| *name);
        let mut lines: Vec<String> = vec![String::new(); tensors.len()];
        team.pieces(&mut lines, 1, |index, line| {
            let (name, located) = tensors[index];
            line[0] = format!("{name} {}\n", self.view(located).summary());
        });
        let of_vision = |line: &&String| line.starts_with("vision_model.") || line.starts_with("mlp1.");
        let vision: String = lines.iter().filter(of_vision).map(String::as_str).collect();
        WeightHashes { weights: hex(&Sha256::digest(lines.concat())), vision: Sha256::digest(vision).into() }
    }
}

/// Hashes that identify weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightHashes {
    /// Hash of all weights, in hexadecimal: see [`Checkpoint::weights_sha256`].
    pub weights: String,
    /// Hash of the weights of the vision encoder.
    pub vision: [u8; 32],
}
