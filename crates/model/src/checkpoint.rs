//! The door for a Hugging Face directory: `config.json`, safetensors shards, every name and shape checked before it is used.
//!
//! `config.rs` reads the configuration, `header.rs` and `shards.rs` the files, `wanted.rs`, `names.rs` and `layout.rs` find each tensor of
//! the model in them, whatever its writer called it. What comes out can be loaded ([`Weights::load`](crate::weights::Weights::load)), hashed or
//! [inspected](inspect); what cannot be trusted comes out as an error that names it.
//!
//! Later weights of the same model may come as what changed: a delta (`delta.rs`) or a LoRA adapter (`adapter.rs`), laid over a checkpoint.

mod adapter;
mod delta;
mod header;
mod inspect;
mod layout;
mod map;
mod misfit;
mod names;
mod shards;
mod tensor;
mod update;
mod wanted;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use self::adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
pub use self::delta::{DELTA_MANIFEST, Delta, DeltaFile, DeltaFormat};
pub use self::header::{HEADER_MAX, HeaderError};
pub use self::inspect::{
    ByKind, FileFacts, Inspection, ModelFacts, Parameters, SessionState, chain, inspect,
};
use self::layout::{Layout, Located};
pub use self::misfit::{Misfit, Misfits};
pub(crate) use self::names::TOWER;
pub use self::shards::ShardError;
use self::shards::Shards;
pub use self::tensor::{Numbers, Tensor};
pub use self::update::{Form, UpdateError};
pub use self::wanted::{Part, Wanted, wanted};
use crate::config::{Config, ConfigError};
use crate::kernels::Team;

/// Characters of a name from a file that an error repeats.
const NAME_SHOWN_MAX: usize = 120;

/// A checkpoint whose every tensor was found in the right shape. Its files stay mapped; nothing is loaded yet.
#[derive(Debug)]
pub struct Checkpoint {
    config: Config,
    shards: Shards,
    layout: Layout,
}

/// Why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its weight files.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// Its tensors are not those of the configuration.
    #[error("{}: {misfits}", dir.display())]
    Misfits {
        /// The directory.
        dir: PathBuf,
        /// Everything that does not fit.
        misfits: Misfits,
    },
    /// A weight that nothing can be computed with.
    #[error(
        "{name} in {file} holds {value} at index {index}; weights must be finite: copy the file again or take an earlier checkpoint"
    )]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor's name in it.
        name: String,
        /// Index into its values.
        index: usize,
        /// What is there.
        value: f32,
    },
    /// A tensor that this model does not have was asked for.
    #[error("the model has no tensor {name}")]
    NoTensor {
        /// Its name.
        name: String,
    },
}

impl Checkpoint {
    /// Opens a directory and checks everything but the weights' values.
    ///
    /// The files stay mapped as long as the checkpoint is open, so nobody may change or shorten them meanwhile; publish new weights
    /// under a new name.
    ///
    /// # Errors
    /// When the configuration is refused, a file is missing or unsound, or its tensors are not those of the configuration: then all of
    /// them are named.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let config = Config::read(dir)?;
        let shards = Shards::open(dir)?;
        let (layout, misfits) = layout::locate(&config, &shards);
        match misfits.0.is_empty() {
            true => Ok(Self { config, shards, layout }),
            false => Err(CheckpointError::Misfits { dir: dir.into(), misfits }),
        }
    }

    /// What the weights are those of.
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

    /// A tensor by its published name, without the outer `language_model.`.
    ///
    /// # Errors
    /// When the model has none of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let located = self.layout.tensors.get(name);
        Ok(self.view(located.ok_or_else(|| CheckpointError::NoTensor { name: shown(name) })?))
    }

    fn view(&self, located: &Located) -> Tensor<'_> {
        let pieces = located.pieces.iter().map(|piece| {
            let file = &self.shards.files[piece.shard];
            let name = file.entries[piece.entry].name.as_str();
            tensor::Piece {
                file: &file.name,
                name,
                dtype: piece.dtype,
                bytes: &file.map[piece.bytes.clone()],
            }
        });
        Tensor::new(located.shape.clone(), pieces.collect())
    }

    /// The hash that names these weights, in hexadecimal, whatever files they are spread over and whatever naming they are stored in.
    ///
    /// It is the SHA-256 of one line a tensor, `{published name} {type} {rows}x{columns} {SHA-256 of its bytes}\n`, in the order of the names' bytes; the
    /// published name is without the outer `language_model.`.
    pub fn weights_sha256(&self, team: &Team) -> String {
        self.hashes(team).weights
    }

    /// The same, and that of the lines of the vision encoder alone: features of tiles made by equal encoders are equal.
    pub fn hashes(&self, team: &Team) -> WeightHashes {
        let mut tensors: Vec<(&String, &Located)> = self.layout.tensors.iter().collect();
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

/// Names of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightHashes {
    /// Of all of them, in hexadecimal: see [`Checkpoint::weights_sha256`].
    pub weights: String,
    /// Of the vision encoder's.
    pub vision: [u8; 32],
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name from a file as an error shows it: shortened, control characters written out.
fn shown(name: &str) -> String {
    let mut text: String = name.escape_debug().take(NAME_SHOWN_MAX + 1).collect();
    if let Some((end, _)) = text.char_indices().nth(NAME_SHOWN_MAX) {
        text.replace_range(end.., "…");
    }
    text
}
