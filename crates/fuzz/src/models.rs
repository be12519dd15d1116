//! A small model's configuration and tokenizer, for targets that need them beside their input.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use furrow_model::config::Config;
use furrow_model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Marks, by name, with their ids. The bytes follow.
const MARKS: [&str; 8] =
    ["<unk>", "<s>", "</s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<img>", "</img>"];
const THINK: &str = "<think>";
const MERGES: [(&str, &str); 6] =
    [("c", "l"), ("i", "c"), ("cl", "ic"), ("clic", "k"), ("Ġ", "click"), ("\"", "}")];
/// Stands for a row of an image.
const IMAGE: u32 = 8;

/// The text of a `config.json` with every kind of layer but experts.
pub(crate) fn config_json() -> Value {
    json!({
        "architectures": ["NemotronH_Nano_VL_V2"],
        "model_type": "NemotronH_Nano_VL_V2",
        "torch_dtype": "bfloat16",
        "force_image_size": 32,
        "patch_size": 16,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "use_thumbnail": true,
        "max_num_tiles": 4,
        "vit_hidden_size": 16,
        "projector_hidden_size": 16,
        "norm_mean": [0.48, 0.46, 0.41],
        "norm_std": [0.27, 0.26, 0.28],
        "img_context_token_id": IMAGE,
        "img_context_token": "<image>",
        "img_start_token": "<img>",
        "img_end_token": "</img>",
        "vision_config": {
            "patch_size": 16,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_resolution": 64,
            "preferred_resolution": [32, 32],
            "args": {"cpe_max_size": 64, "register_multiple": 8, "teachers": [{"name": "a"}]},
        },
        "llm_config": text_json(),
    })
}

/// The language model's section, which is also the whole of a checkpoint without pictures.
pub(crate) fn text_json() -> Value {
    json!({
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-*-",
        "num_hidden_layers": 4,
        "hidden_size": 16,
        "intermediate_size": 32,
        "vocab_size": 280,
        "max_position_embeddings": 4096,
        "layer_norm_epsilon": 1e-5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 2,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "conv_kernel": 4,
        "chunk_size": 16,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "use_conv_bias": true,
        "tie_word_embeddings": false,
    })
}

/// The text of a `tokenizer.json` of single bytes and a few merges.
pub(crate) fn tokenizer_json() -> Value {
    let mut vocab = Map::new();
    for name in MARKS {
        vocab.insert(name.to_owned(), vocab.len().into());
    }
    // The id of the image row, which is no text.
    vocab.insert("<image>".to_owned(), IMAGE.into());
    for char in alphabet().into_values() {
        vocab.insert(char.to_string(), vocab.len().into());
    }
    for (left, right) in MERGES {
        vocab.insert(format!("{left}{right}"), vocab.len().into());
    }
    let mark = |name: &str, id: &Value, special: bool| json!({"id": id, "content": name, "special": special});
    let mut added: Vec<Value> = MARKS.iter().map(|name| mark(name, &vocab[*name], true)).collect();
    added.push(mark("<image>", &IMAGE.into(), true));
    added.push(mark(THINK, &vocab.len().into(), false));
    added.push(mark("</think>", &(vocab.len() + 1).into(), false));
    let split = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+";
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "model": {
            "type": "BPE",
            "ignore_merges": true,
            "vocab": vocab,
            "merges": MERGES.map(|(left, right)| [left, right]),
        },
    })
}

/// The character of each byte in byte-level vocabularies.
fn alphabet() -> BTreeMap<u8, char> {
    let prints = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let itself = (0..=255).filter(prints).map(|byte| (byte, char::from(byte)));
    let others = (0..=255).filter(|byte| !prints(byte)).zip('\u{100}'..);
    itself.chain(others).collect()
}

pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        Config::parse(config_json().to_string().as_bytes(), Path::new("config.json"))
            .expect("the configuration is one of this model's")
    })
}

pub(crate) fn tokenizer() -> &'static Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let text = tokenizer_json().to_string();
        let read = Tokenizer::parse(Path::new("tokenizer.json"), text.as_bytes());
        Arc::new(read.expect("the tokenizer is byte-level BPE"))
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
