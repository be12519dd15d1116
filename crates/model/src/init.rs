//! Random checkpoints of this architecture in the Hugging Face layout, for trials, tests and
//! measurements of the farm.
//!
//! The same size, seed and type give the same bytes. The model knows nothing; its checkpoint has
//! the form of the published ones.

mod disk;
mod error;
mod sizes;
mod spec;
mod stored_type;
mod tensors;
mod values;
mod vocabulary;
mod write;

use std::path::Path;

use serde_json::{Value, json};

pub use error::InitError;
pub use sizes::ModelSize;
pub use spec::{InitSpec, ProgressFn};
pub use stored_type::StoredType;

use crate::config::Config;
use crate::template::{TEMPLATE_FILE, TemplateFile};
use crate::tokenizer::TOKENIZER_FILE;
use tensors::TensorSpec;
use write::DraftDirectory;

/// Default size of the largest weight file, as the published tools write them.
pub const SHARD_BYTES_MAX: u64 = 5_000_000_000;

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
