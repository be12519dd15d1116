//! Merges a LoRA adapter in the format of PEFT into the weights of its base: W + scale · B A.
//!
//! ```text
//! adapter_config.json          peft_type LORA, r, lora_alpha, use_rslora, alpha_pattern,
//!                              rank_pattern
//! adapter_model.safetensors    base_model.model.{module}.lora_A.weight [r, in]
//!                              base_model.model.{module}.lora_B.weight [out, r]
//! ```
//!
//! scale = lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora` (Hu et al. 2021, section 4.1;
//! Kalajdzievski 2023). Product and sum are computed in float32 and rounded once to the type in
//! which the weight is stored, so the merged model has the same types as its base.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::Dtype;
use serde_json::{Map, Value};

use super::displayed::{NAME_CHARS_MAX, displayed_name};
use super::error::CheckpointError;
use super::header::TensorEntry;
use super::layout::{LocatedTensor, TensorLayout, TensorPiece};
use super::shards::{FileBytes, WeightFile};
use super::update::{ADAPTER_CONFIG, UpdateError};
use super::{Checkpoint, Tensor, names, tensor};
use crate::file;
use crate::kernels::ThreadPool;

/// Name of the weight file that PEFT writes.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// Largest configuration that is read; PEFT's have a few kilobytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Largest rank that is merged. Usual ones are 8 to 256.
const RANK_MAX: usize = 16_384;
/// Every tensor name begins with this.
const PREFIX: &str = "base_model.model.";

/// The values that are read from the configuration.
struct LoraConfig {
    path: PathBuf,
    rank: usize,
    alpha: f64,
    rslora: bool,
    ranks: Map<String, Value>,
    alphas: Map<String, Value>,
}

/// The two factors of one module.
#[derive(Default)]
struct LoraFactors<'a> {
    a: Option<&'a TensorEntry>,
    b: Option<&'a TensorEntry>,
}

/// Rows of a weight that a module's factors are added to.
struct TargetRows {
    tensor: String,
    first_row: usize,
    rows: usize,
}

struct LoraMerge<'a> {
    first_row: usize,
    rank: usize,
    scale: f32,
    a: Vec<f32>,
    b: Vec<f32>,
    module: &'a str,
}

impl Checkpoint {
    /// Merges a LoRA adapter into this checkpoint.
    ///
    /// # Errors
    /// If the configuration needs more than plain LoRA, a module does not exist in this model,
    /// shapes do not match, or a value is not finite before or after the merge.
    pub fn with_adapter(mut self, dir: &Path, team: &ThreadPool) -> Result<Self, UpdateError> {
        let settings = LoraConfig::read(dir)?;
        let file = WeightFile::open(dir, ADAPTER_WEIGHTS)?;
        let path = dir.join(ADAPTER_WEIGHTS);
        let mut merges: BTreeMap<String, Vec<LoraMerge<'_>>> = BTreeMap::new();
        for (module, factors) in modules(&file, &path)? {
            let (goal, merge) = self.plan(&settings, (&file, &path), module, &factors)?;
            merges.entry(goal.tensor).or_default().push(merge);
        }
        if merges.is_empty() {
            return Err(UpdateError::Empty { dir: dir.into() });
        }
        let mut files = Vec::new();
        let mut layout = TensorLayout::default();
        for (name, merges) in merges {
            let merged = self.merged(&name, &merges, &path, team)?;
            let shape = merged.shape.clone();
            let dtype = merged.dtype;
            let piece = TensorPiece { shard: files.len(), entry: 0, dtype, bytes: merged.bytes.clone() };
            layout.tensors.insert(name, LocatedTensor { shape, pieces: vec![piece] });
            let map = FileBytes::Made(merged.made);
            let entry = TensorEntry { name: merged.name, dtype, shape: merged.shape, bytes: merged.bytes };
            files.push(WeightFile { name: ADAPTER_WEIGHTS.into(), map, entries: vec![entry] });
        }
        file.check_uncut()?;
        drop(file);
        self.overlay(files, layout);
        Ok(self)
    }

    /// Checks each module's factors and finds the weights that they are merged into.
    fn plan<'m>(
        &self,
        settings: &LoraConfig,
        (file, path): (&WeightFile, &Path),
        module: &'m str,
        factors: &LoraFactors<'_>,
    ) -> Result<(TargetRows, LoraMerge<'m>), UpdateError> {
        let wrong =
            |name: &str, why: String| UpdateError::Tensor { path: path.into(), name: name.into(), why };
        let (Some(a), Some(b)) = (factors.a, factors.b) else {
            return Err(wrong(module, "has only one of lora_A and lora_B; save the adapter again".into()));
        };
        let Some(goal) = self.target_rows(module) else {
            return Err(wrong(&a.name, "does not belong to a matrix of this model; remove it".into()));
        };
        let inputs = self.layout.tensors[&goal.tensor].shape[1];
        let (rank, scale) = settings.of(module)?;
        for (entry, want) in [(a, [rank, inputs]), (b, [goal.rows, rank])] {
            if entry.shape != want {
                return Err(wrong(
                    &entry.name,
                    format!("has the shape {:?}; expected {want:?}", entry.shape),
                ));
            }
            if !matches!(entry.dtype, Dtype::F32 | Dtype::BF16) {
                return Err(wrong(
                    &entry.name,
                    format!("has the type {}; save it as BF16 or F32", entry.dtype),
                ));
            }
        }
        let values = |entry: &TensorEntry| {
            let bytes = &file.map[entry.bytes.clone()];
            let piece = tensor::TensorRows { file: &file.name, name: &entry.name, dtype: entry.dtype, bytes };
            Tensor::new(entry.shape.clone(), vec![piece]).to_f32()
        };
        let a = values(a)?;
        let b = values(b)?;
        let merge = LoraMerge { first_row: goal.first_row, rank, scale, a, b, module };
        Ok((goal, merge))
    }

    /// The matrix that transformers calls `module`, or its rows: here the tower's q, k and v may be
    /// one matrix.
    fn target_rows(&self, module: &str) -> Option<TargetRows> {
        let name = names::canonical(&format!("{module}.weight"))?;
        if let Some(located) = self.layout.tensors.get(&name) {
            let [rows, _] = located.shape[..] else { return None };
            return Some(TargetRows { tensor: name, first_row: 0, rows });
        }
        let (block, part) = name.split_once(".attn.")?;
        let third =
            ["q_proj.weight", "k_proj.weight", "v_proj.weight"].iter().position(|name| *name == part)?;
        let tensor = format!("{block}.attn.qkv.weight");
        let rows = self.layout.tensors.get(&tensor)?.shape.first()? / 3;
        Some(TargetRows { tensor, first_row: third * rows, rows })
    }

    /// W + scale · B A, row by row.
    fn merged(
        &self,
        name: &str,
        merges: &[LoraMerge<'_>],
        path: &Path,
        team: &ThreadPool,
    ) -> Result<MergedTensor, UpdateError> {
        let own = self.tensor(name)?;
        let shape = own.shape().to_vec();
        let is_bf16 = own.is_bf16();
        let mut weight = own.to_f32()?;
        let inputs = shape[1];
        for merge in merges {
            let rows = merge.b.len() / merge.rank;
            let part = &mut weight[merge.first_row * inputs..(merge.first_row + rows) * inputs];
            team.pieces(part, inputs, |row, weights| {
                let b = &merge.b[row * merge.rank..(row + 1) * merge.rank];
                add_row(weights, b, &merge.a, merge.scale);
            });
        }
        if let Some(index) = weight.iter().position(|value| !value.is_finite()) {
            let first = merges.first().map_or(name, |merge| merge.module);
            return Err(CheckpointError::NotFinite {
                file: path.display().to_string(),
                name: format!("{} after the merge", displayed_name(first)),
                index,
                value: weight[index],
            }
            .into());
        }
        let (dtype, made): (Dtype, Vec<u8>) = match is_bf16 {
            true => {
                let round = |value: &f32| bf16::from_f32(*value).to_bits().to_le_bytes();
                (Dtype::BF16, weight.iter().flat_map(round).collect())
            }
            false => (Dtype::F32, weight.iter().flat_map(|value| value.to_le_bytes()).collect()),
        };
        Ok(MergedTensor { name: name.into(), dtype, shape, bytes: 0..made.len(), made })
    }
}

/// A merged weight in the type in which it is stored.
struct MergedTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: std::ops::Range<usize>,
    made: Vec<u8>,
}

/// Adds scale · b A to a row of weights: first the sum over the rank, in order, then one product
/// and one sum a weight.
fn add_row(weights: &mut [f32], b: &[f32], a: &[f32], scale: f32) {
    let mut sums = vec![0.0_f32; weights.len()];
    for (factor, row) in b.iter().zip(a.chunks_exact(weights.len())) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += factor * value;
        }
    }
    for (weight, sum) in weights.iter_mut().zip(sums) {
        *weight += scale * sum;
    }
}

/// Groups the file's tensors by module.
fn modules<'a>(file: &'a WeightFile, path: &Path) -> Result<BTreeMap<&'a str, LoraFactors<'a>>, UpdateError> {
    let mut modules: BTreeMap<&str, LoraFactors<'_>> = BTreeMap::new();
    for entry in &file.entries {
        let inner = entry.name.strip_prefix(PREFIX);
        let found = inner.and_then(|inner| {
            let a = inner.strip_suffix(".lora_A.weight").map(|module| (module, true));
            a.or_else(|| inner.strip_suffix(".lora_B.weight").map(|module| (module, false)))
        });
        let Some((module, is_a)) = found else {
            let why = format!(
                "is not a {PREFIX}….lora_A.weight or .lora_B.weight; only these are merged: publish a delta or a full checkpoint"
            );
            return Err(UpdateError::Tensor { path: path.into(), name: entry.name.clone(), why });
        };
        let factors = modules.entry(module).or_default();
        *(if is_a { &mut factors.a } else { &mut factors.b }) = Some(entry);
    }
    Ok(modules)
}

impl LoraConfig {
    fn read(dir: &Path) -> Result<Self, UpdateError> {
        let path = dir.join(ADAPTER_CONFIG);
        let text = file::read(&path, CONFIG_BYTES_MAX)?;
        let keys: Map<String, Value> = serde_json::from_slice(&text)
            .map_err(|source| UpdateError::Json { path: path.clone(), source })?;
        let wrong = |key: &str, value: &Value, right: &str| UpdateError::Key {
            path: path.clone(),
            key: key.into(),
            value: json(value),
            right: right.into(),
        };
        let get = |key: &str| keys.get(key).unwrap_or(&Value::Null);
        if get("peft_type") != "LORA" {
            return Err(wrong("peft_type", get("peft_type"), "only \"LORA\" is merged"));
        }
        if let Some((key, right)) = PLAIN.iter().find(|(key, _)| !is_off(get(key))) {
            return Err(wrong(key, get(key), right));
        }
        let whole = |key: &str| get(key).as_u64().filter(|rank| (1..=RANK_MAX as u64).contains(rank));
        let rank = whole("r").ok_or_else(|| wrong("r", get("r"), "give a whole number from 1 to 16384"))?;
        let alpha = get("lora_alpha").as_f64().filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| wrong("lora_alpha", get("lora_alpha"), "give a number"))?;
        let init = get("init_lora_weights").as_str().unwrap_or_default();
        if BASE_CHANGING_INITS.iter().any(|name| init.starts_with(name)) {
            return Err(wrong(
                "init_lora_weights",
                get("init_lora_weights"),
                "such an adapter changes its base weights; convert it to plain LoRA and save it again",
            ));
        }
        let map = |key: &str| match get(key) {
            Value::Null => Ok(Map::new()),
            Value::Object(map) => Ok(map.clone()),
            other => Err(wrong(key, other, "give an object that maps modules to numbers")),
        };
        Ok(Self {
            ranks: map("rank_pattern")?,
            alphas: map("alpha_pattern")?,
            rslora: get("use_rslora") == &Value::Bool(true),
            rank: rank as usize,
            alpha,
            path,
        })
    }

    /// Rank and scale of a module.
    fn of(&self, module: &str) -> Result<(usize, f32), UpdateError> {
        let rank = self.pattern("rank_pattern", &self.ranks, module)?.unwrap_or(self.rank as f64);
        let alpha = self.pattern("alpha_pattern", &self.alphas, module)?.unwrap_or(self.alpha);
        if rank.fract() != 0.0 || !(1.0..=RANK_MAX as f64).contains(&rank) {
            return Err(self.key_error(
                "rank_pattern",
                &rank.to_string(),
                "give whole numbers from 1 to 16384",
            ));
        }
        let scale = alpha / if self.rslora { rank.sqrt() } else { rank };
        Ok((rank as usize, scale as f32))
    }

    /// The number of the first pattern that a module's name ends with. PEFT accepts regular
    /// expressions; this reader accepts only names.
    fn pattern(&self, key: &str, map: &Map<String, Value>, module: &str) -> Result<Option<f64>, UpdateError> {
        for (pattern, value) in map {
            let is_name = pattern.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
            let Some(number) = value.as_f64().filter(|number| is_name && number.is_finite()) else {
                let described = format!("{}: {}", displayed_name(pattern), json(value));
                return Err(self.key_error(
                    key,
                    &described,
                    "give module names, not regular expressions, and a number for each",
                ));
            };
            let ends = module.strip_suffix(pattern.as_str());
            if ends.is_some_and(|before| before.is_empty() || before.ends_with('.')) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn key_error(&self, key: &str, value: &str, right: &str) -> UpdateError {
        UpdateError::Key {
            path: self.path.clone(),
            key: key.into(),
            value: value.into(),
            right: right.into(),
        }
    }
}

/// Keys that change what an adapter means. If one is set, plain LoRA would be a wrong merge.
const PLAIN: [(&str, &str); 8] = [
    ("use_dora", "merge it yourself and publish a delta"),
    ("lora_bias", "merge it yourself and publish a delta"),
    ("fan_in_fan_out", "set it to false; weights of this model are [out, in]"),
    ("bias", "only \"none\" is merged"),
    ("modules_to_save", "publish such modules in a delta"),
    ("layer_replication", "remove it; the model's layers are fixed"),
    ("target_parameters", "only modules are merged; publish a delta"),
    ("trainable_token_indices", "publish the embeddings in a delta"),
];

/// Initialisations that subtract from the base weights: such an adapter is right only for the
/// changed base.
const BASE_CHANGING_INITS: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// A value for an error; JSON escapes control characters.
fn json(value: &Value) -> String {
    value.to_string().chars().take(NAME_CHARS_MAX).collect()
}

/// Whether a key is absent, false, empty or "none".
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none",
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
