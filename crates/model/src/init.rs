//! Random checkpoints of this architecture in the Hugging Face layout, for trials, tests and
//! measurements of the farm.
//!
//! The same size, seed and type give the same bytes. The model knows nothing; its checkpoint has
//! the form of the published ones.

mod disk;
mod sizes;
mod tensors;
mod values;
mod vocabulary;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use sizes::ModelSize;

use crate::config::{Config, ConfigError};
use crate::template::{TEMPLATE_FILE, TemplateFile};
use crate::tokenizer::{TOKENIZER_FILE, TokenizerError};
use tensors::TensorSpec;
use write::DraftDirectory;

/// Default size of the largest weight file, as the published tools write them.
pub const SHARD_BYTES_MAX: u64 = 5_000_000_000;

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

/// Number type of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredType {
    Float32,
    Bfloat16,
}

/// Called with the bytes of weights that are written, and the total.
pub type ProgressFn<'a> = dyn Fn(u64, u64) + Sync + 'a;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitSummary {
    /// Values of all tensors.
    pub parameters: u64,
    pub tensors: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
}

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
        path.display(), disk::size(*needed), disk::size(*free), resume_note(*there), disk::size(*needed - *free)
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

impl StoredType {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Bfloat16 => 2,
        }
    }

    /// Its name in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        }
    }

    fn safetensors_name(self) -> &'static str {
        match self {
            Self::Float32 => "F32",
            Self::Bfloat16 => "BF16",
        }
    }
}

/// Writes a checkpoint directory, completely or not at all.
///
/// If a killed process left a part of the same checkpoint, continues at its first missing weight
/// file.
///
/// # Errors
/// If `dir` exists, another process writes it, the disk is too small for what is still to be
/// written, or a write fails.
pub fn init(dir: &Path, init: &InitSpec) -> Result<InitSummary, InitError> {
    init_with_progress(dir, init, &|_, _| {})
}

/// As [`init`]; calls `progress` from several threads with the bytes of weights that are written
/// and the total.
pub fn init_with_progress(
    dir: &Path,
    init: &InitSpec,
    progress: &ProgressFn<'_>,
) -> Result<InitSummary, InitError> {
    let shapes = init.size.shapes();
    let config_json = sizes::config_json(shapes, init.dtype);
    let config = Config::parse(config_json.to_string().as_bytes(), Path::new("config.json"))?;
    let tensors = tensors::tensors(&config, shapes.prefix);
    let draft = DraftDirectory::begin(dir, init)?;
    draft.check_disk(init, &tensors, disk::other_files(shapes.vocabulary))?;
    let mut bytes = draft.write_weights(init, &tensors, progress)?;
    bytes += draft.write(TOKENIZER_FILE, &vocabulary::tokenizer_json(shapes.vocabulary)?)?;
    for (name, value) in [
        ("config.json", config_json),
        ("generation_config.json", generation_config()),
        ("tokenizer_config.json", tokenizer_config(config.text.positions_max)),
        (TEMPLATE_FILE, json!(TemplateFile::default())),
    ] {
        bytes += draft.write(name, &format!("{value:#}\n"))?;
    }
    draft.commit()?;
    let parameters = tensors.iter().map(TensorSpec::values).sum::<usize>() as u64;
    Ok(InitSummary { parameters, tensors: tensors.len(), bytes, vocabulary: shapes.vocabulary })
}

/// Describes what an earlier start left, if anything.
fn resume_note(bytes: u64) -> String {
    if bytes > 0 {
        format!(" (the {} from an earlier start are kept)", disk::size(bytes))
    } else {
        String::new()
    }
}

fn generation_config() -> Value {
    json!({
        "bos_token_id": vocabulary::BOS,
        "eos_token_id": [vocabulary::STOP],
        "do_sample": true,
        "temperature": 1.0,
    })
}

/// For programs that render chats: the layout of the default template.
fn tokenizer_config(positions_max: usize) -> Value {
    let chat_template = concat!(
        "<s><SPECIAL_10>System\n",
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}{{ '\\n' }}",
        "{% for message in messages %}",
        "{% if message['role'] == 'user' %}{{ '<SPECIAL_11>User\\n' + message['content'] + '\\n' }}",
        "{% elif message['role'] == 'assistant' %}",
        "{{ '<SPECIAL_11>Assistant\\n<think></think>' + message['content'] + '<SPECIAL_12>\\n\\n' }}",
        "{% endif %}{% endfor %}",
        "{% if add_generation_prompt %}{{ '<SPECIAL_11>Assistant\\n<think></think>' }}{% endif %}",
    );
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions_max,
        "add_bos_token": false,
        "add_eos_token": false,
        "bos_token": "<s>",
        "eos_token": "<SPECIAL_12>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": false,
        "chat_template": chat_template,
    })
}
