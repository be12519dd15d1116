//! Weights of a checkpoint: safetensors headers, an index, deltas and LoRA adapters.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use furrow_model::checkpoint::{Checkpoint, UpdateError, UpdateForm, inspect, required_tensors};
use furrow_model::config::Config;
use furrow_model::kernels::ThreadPool;
use furrow_model::weights::ModelWeights;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{FuzzTarget, Seed, accept, files, models};

pub(super) const SAFETENSORS: FuzzTarget = FuzzTarget {
    name: "safetensors",
    run,
    repair: Some(repair),
    memory_max: |_| 64 << 20,
    bytes_max: 32 << 10,
    catches_panics: false,
    seeds,
};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const DELTA: &str = "delta.json";
const ADAPTER: &str = "adapter_config.json";
const NAMES: [&str; 9] = [
    "config.json",
    WHOLE,
    INDEX,
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    DELTA,
    "delta-00001.safetensors",
    ADAPTER,
    "adapter_model.safetensors",
];
/// Most bytes that a repaired file is filled up to.
const DATA_MAX: u64 = 16 << 10;

/// An update is applied to a whole checkpoint; anything else is opened as a checkpoint, loaded and
/// hashed.
fn run(input: &[u8]) {
    let folder = files::scratch();
    files::write(folder, input, &NAMES);
    if !folder.join("config.json").exists() {
        files::put(folder, "config.json", config_json().to_string().as_bytes());
    }
    let team = ThreadPool::new(1);
    match UpdateForm::of(folder) {
        Ok(UpdateForm::Delta) => updated(&base().with_delta(folder, &team)),
        Ok(UpdateForm::Adapter) => updated(&base().with_adapter(folder, &team)),
        Ok(UpdateForm::Full) | Err(_) => {
            black_box(inspect(folder));
            let Ok(checkpoint) = Checkpoint::open(folder) else { return };
            assert_eq!(checkpoint.weights_sha256(&team).len(), 64, "a hash in hexadecimal");
            if ModelWeights::of(&checkpoint, &team, &mut |_, _| {}).is_ok() {
                accept();
            }
        }
    }
}

fn updated(checkpoint: &Result<Checkpoint, UpdateError>) {
    if black_box(checkpoint).is_ok() {
        accept();
    }
}

/// The checkpoint that updates apply to.
fn base() -> Checkpoint {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = files::beside("base");
        files::put(&folder, "config.json", config_json().to_string().as_bytes());
        files::put(&folder, WHOLE, &whole(&tensors()));
        folder
    });
    Checkpoint::open(folder).expect("a whole checkpoint of this program")
}

/// A text model of a thousand weights.
fn config_json() -> Value {
    let mut config = models::text_json();
    for (key, value) in [
        ("hidden_size", 4),
        ("intermediate_size", 4),
        ("vocab_size", 16),
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
        ("head_dim", 4),
        ("mamba_num_heads", 1),
        ("mamba_head_dim", 4),
        ("ssm_state_size", 2),
    ] {
        config[key] = json!(value);
    }
    config
}

/// Names and shapes of its tensors.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let text = config_json().to_string();
    let config =
        Config::parse(text.as_bytes(), Path::new("config.json")).expect("a configuration of this model");
    required_tensors(&config).into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
}

/// A safetensors file of these tensors, in bfloat16.
fn whole(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let mut header = Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let header = Value::Object(header).to_string();
    let values = (0..at / 2).flat_map(|value| [(value % 251) as u8, 0x3c]);
    let length = (header.len() as u64).to_le_bytes();
    length.into_iter().chain(header.bytes()).chain(values).collect()
}

/// Corrects the lengths of headers and data, and the hashes of a delta's files.
fn repair(input: &[u8]) -> Vec<u8> {
    let split = files::split(input);
    let mut repaired: Vec<(&str, Vec<u8>)> = Vec::new();
    for (name, bytes) in &split {
        let is_weights = name.ends_with(".safetensors");
        repaired.push((name, if is_weights { with_length(bytes) } else { bytes.to_vec() }));
    }
    let hashed: Vec<(&str, u64, String)> = repaired
        .iter()
        .map(|(name, bytes)| (*name, bytes.len() as u64, models::hex(&Sha256::digest(bytes))))
        .collect();
    for (name, bytes) in &mut repaired {
        if *name == DELTA
            && let Some(delta) = with_hashes(bytes, &hashed)
        {
            *bytes = delta;
        }
    }
    files::join(repaired.iter().map(|(name, bytes)| (*name, &bytes[..])))
}

/// The file with the length of its header's JSON and as many bytes of data as it names.
fn with_length(file: &[u8]) -> Vec<u8> {
    let Some((_, rest)) = file.split_first_chunk::<8>() else { return file.to_vec() };
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
    if !matches!(values.next(), Some(Ok(_))) {
        return file.to_vec();
    }
    let length = values.byte_offset();
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap_or_default();
    let ends = header.as_object().into_iter().flat_map(Map::values);
    let ends = ends.filter_map(|tensor| tensor.pointer("/data_offsets/1")?.as_u64());
    let data = ends.filter(|end| *end <= DATA_MAX).max().unwrap_or(0) as usize;
    let mut file = [&(length as u64).to_le_bytes(), rest].concat();
    file.resize(8 + length + data, 0);
    file
}

fn with_hashes(manifest: &[u8], hashed: &[(&str, u64, String)]) -> Option<Vec<u8>> {
    let mut manifest: Value = serde_json::from_slice(manifest).ok()?;
    let listed = manifest.get_mut("files")?.as_object_mut()?;
    for (name, bytes, sha256) in hashed {
        if let Some(file) = listed.get_mut(*name) {
            *file = json!({"bytes": bytes, "sha256": sha256});
        }
    }
    Some(manifest.to_string().into_bytes())
}

fn seeds() -> Vec<Seed> {
    let tensors = tensors();
    let one = whole(&tensors);
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let shards = [("model-00001-of-00002.safetensors", first), ("model-00002-of-00002.safetensors", second)];
    let listed: Map<String, Value> = shards
        .iter()
        .flat_map(|(file, tensors)| tensors.iter().map(move |(name, _)| (name.clone(), json!(file))))
        .collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": listed}).to_string();
    let shards = shards.map(|(name, tensors)| (name, whole(tensors)));
    let delta = json!({
        "format": "furrow.delta", "format_version": 1, "base_version": 0,
        "files": {"delta-00001.safetensors": {"bytes": 0, "sha256": ""}},
    });
    let changed = whole(&tensors[1..3]);
    let lora = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]});
    let module = "base_model.model.backbone.layers.2.mixer.q_proj";
    let factors = whole(&[
        (format!("{module}.lora_A.weight"), vec![2, 4]),
        (format!("{module}.lora_B.weight"), vec![4, 2]),
    ]);
    let delta =
        repair(&files::join([(DELTA, delta.to_string().as_bytes()), ("delta-00001.safetensors", &changed)]));
    let adapter =
        files::join([(ADAPTER, lora.to_string().as_bytes()), ("adapter_model.safetensors", &factors)]);
    let mut several: Vec<(&str, &[u8])> = vec![(INDEX, index.as_bytes())];
    several.extend(shards.iter().map(|(name, bytes)| (*name, &bytes[..])));
    vec![
        Seed::new("one", files::join([(WHOLE, &one[..])])),
        Seed::new("several", files::join(several)),
        Seed::new("delta", delta),
        Seed::new("adapter", adapter),
    ]
}
