//! Random checkpoints of this architecture in the Hugging Face layout: to try the farm, to test it, to measure it.
//!
//! The same size, seed and type give the same bytes. The model knows nothing; it reads and writes like the published ones.

mod disk;
mod sizes;
mod tensors;
mod values;
mod vocabulary;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use sizes::Size;

use crate::config::{Config, ConfigError};
use crate::template::{TEMPLATE_FILE, TemplateFile};
use crate::tokenizer::{TOKENIZER_FILE, TokenizerError};
use tensors::Tensor;
use write::Draft;

/// Largest weight file unless told otherwise, as the published tools write them.
pub const SHARD_BYTES_MAX: u64 = 5_000_000_000;

/// What a checkpoint is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// How large.
    pub size: Size,
    /// Where its weights come from.
    pub seed: u64,
    /// How they are stored.
    pub dtype: StoredType,
    /// Largest weight file; more make shards and an index.
    pub shard_bytes_max: u64,
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredType {
    /// `float32`.
    Float32,
    /// `bfloat16`.
    Bfloat16,
}

/// Bytes of weights that are written, and all there will be.
pub type Told<'a> = dyn Fn(u64, u64) + Sync + 'a;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Values of all tensors.
    pub parameters: u64,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
}

/// Why no checkpoint was written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Something is there already.
    #[error("{} exists or is no name of a directory; give a path where nothing is", path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// Another process is writing it.
    #[error("{} is being written by another process; wait for it, or stop it", path.display())]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// A process that was killed left a part of another checkpoint under this name.
    #[error("{} is a part of a checkpoint of other settings ({found}); go on with those, or remove it", path.display())]
    OtherDraft {
        /// Where it lies.
        path: PathBuf,
        /// Its settings.
        found: String,
    },
    /// The disk does not hold what is still to be written.
    #[error(
        "{} takes {} more on its disk and {} are free{}; free {}, or give a path on a larger disk",
        path.display(), disk::size(*needed), disk::size(*free), left_there(*there), disk::size(*needed - *free)
    )]
    DiskFull {
        /// The directory that is to be made.
        path: PathBuf,
        /// Bytes that are still to be written.
        needed: u64,
        /// Bytes of files of weights that an earlier start left whole.
        there: u64,
        /// Bytes that can be written.
        free: u64,
    },
    /// The operating system refused.
    #[error("cannot {what} {}", path.display())]
    Write {
        /// What was tried.
        what: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The configuration does not pass its own door.
    #[error("this size has a configuration that cannot be read")]
    Config(#[from] ConfigError),
    /// The tokenizer does not pass its own door.
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

/// Writes a checkpoint directory, whole or not at all.
///
/// What a killed process left of the same checkpoint is gone on with at its first missing file of weights.
///
/// # Errors
/// When something is at `dir` already, another process is at it, the disk is too small for what is still to be written, or it refuses.
pub fn init(dir: &Path, init: &Init) -> Result<Summary, InitError> {
    init_told(dir, init, &|_, _| {})
}

/// The same; `told` hears of the bytes of weights that are written, and of how many there will be, from several threads.
pub fn init_told(dir: &Path, init: &Init, told: &Told<'_>) -> Result<Summary, InitError> {
    let shapes = init.size.shapes();
    let config_json = sizes::config_json(shapes, init.dtype);
    let config = Config::parse(config_json.to_string().as_bytes(), Path::new("config.json"))?;
    let tensors = tensors::tensors(&config, shapes.prefix);
    let draft = Draft::begin(dir, init)?;
    draft.check_disk(init, &tensors, disk::other_files(shapes.vocabulary))?;
    let mut bytes = draft.write_weights(init, &tensors, told)?;
    bytes += draft.write(TOKENIZER_FILE, &vocabulary::tokenizer_json(shapes.vocabulary)?)?;
    for (name, value) in [
        ("config.json", config_json),
        ("generation_config.json", generation_config()),
        ("tokenizer_config.json", tokenizer_config(config.text.positions_max)),
        (TEMPLATE_FILE, json!(TemplateFile::default())),
    ] {
        bytes += draft.write(name, &format!("{value:#}\n"))?;
    }
    draft.publish()?;
    let parameters = tensors.iter().map(Tensor::values).sum::<usize>() as u64;
    Ok(Summary { parameters, tensors: tensors.len(), bytes, vocabulary: shapes.vocabulary })
}

/// What an earlier start left, where it left something.
fn left_there(bytes: u64) -> String {
    if bytes > 0 {
        format!(" ({} are there from an earlier start and stay)", disk::size(bytes))
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

/// For programs that render chats: the same layout as the default template.
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
