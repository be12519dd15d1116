//! The oracle's cases that the kernels support, and checkpoints generated here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use furrow_cuda::backend::{BackendOptions, DeviceBackend, ModelPrecision, open};
use furrow_cuda::executor::Executor;
use furrow_model::backend::{BackendCapacity, Page, Slot};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::weights::ModelWeights;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

use crate::chosen::gpu;
pub(crate) use crate::chosen::on_a_gpu;
use crate::host_executor::{ExecutorGauge, HostExecutor};
use crate::made;

/// Memory of the host executor: more than any case needs.
pub(crate) const BYTES: u64 = 1 << 30;

/// A checkpoint and how it is computed.
pub(crate) struct BackendCase {
    pub name: String,
    pub dir: PathBuf,
    pub options: BackendOptions,
    /// Largest permitted relative RMS of logits against float32 arithmetic on the same weights.
    pub bound: f64,
    pub weights: Arc<ModelWeights>,
}

/// Oracle checkpoints in float32: widths that are not powers of two, heads of 10 and 16; two with
/// experts.
pub(crate) const FLOAT32: [&str; 4] = ["dense", "long_chunk128", "moe", "moe_latent_groups"];

/// For float32 sums in another order.
const FLOAT32_BOUND: f64 = 1e-5;
/// For bfloat16 activations: transformers' own error is 1.6e-2, a prefill differs from a decode by
/// 2.1e-2.
const BFLOAT16_BOUND: f64 = 3e-2;

impl BackendCase {
    pub(crate) fn oracle(name: &str, precision: ModelPrecision) -> Self {
        let dir = oracle_dir(name);
        let bound = if name.ends_with("bf16") { BFLOAT16_BOUND } else { FLOAT32_BOUND };
        Self::new(name, dir, BackendOptions { precision, ..BackendOptions::default() }, bound)
    }

    /// The generated checkpoint for the fast kernels, in bfloat16.
    pub(crate) fn made(precision: ModelPrecision) -> Self {
        let options = BackendOptions { precision, ..BackendOptions::default() };
        Self::new("made", made::checkpoint().to_owned(), options, BFLOAT16_BOUND)
    }

    /// A checkpoint with experts, in bfloat16: each row goes to all of them, so that rounding
    /// cannot change the choice.
    pub(crate) fn of_experts() -> Self {
        static MADE: OnceLock<TempDir> = OnceLock::new();
        let dir = MADE.get_or_init(|| made::written(4, &made::config_of_experts(), |_, _| {})).path();
        Self::new("experts", dir.to_owned(), BackendOptions::default(), BFLOAT16_BOUND)
    }

    /// A checkpoint in float32 throughout, with a tower whose heads have 32 values.
    pub(crate) fn of_float32() -> Self {
        static MADE: OnceLock<TempDir> = OnceLock::new();
        let mut config = made::config();
        config["vision_config"]["num_attention_heads"] = 4.into();
        let dir = MADE.get_or_init(|| made::written_as(5, &config, |_, _| {}, |_| Dtype::F32)).path();
        Self::new("float32", dir.to_owned(), BackendOptions::default(), FLOAT32_BOUND)
    }

    /// A checkpoint in bfloat16 except for matrices whose names contain one of these strings.
    pub(crate) fn with_float32(config: &Value, name_parts: &[&str]) -> (Self, TempDir) {
        let is_wide = |name: &str| name_parts.iter().any(|part| name.contains(part));
        let stored = |name: &str| if is_wide(name) { Dtype::F32 } else { Dtype::BF16 };
        let dir = made::written_as(6, config, |_, _| {}, stored);
        (Self::new("some float32", dir.path().to_owned(), BackendOptions::default(), BFLOAT16_BOUND), dir)
    }

    pub(crate) fn new(name: &str, dir: PathBuf, options: BackendOptions, bound: f64) -> Self {
        let weights = Arc::new(ModelWeights::load(&dir, &ThreadPool::new(1), &mut |_, _| {}).unwrap());
        Self { name: name.to_owned(), dir, options, bound, weights }
    }

    /// Every case in its usual precision.
    pub(crate) fn all() -> Vec<Self> {
        let oracle = |name: &&str| Self::oracle(name, ModelPrecision::Usual);
        let mut all: Vec<Self> = FLOAT32[..2].iter().chain(&["vl_names_bf16"]).map(oracle).collect();
        all.push(Self::made(ModelPrecision::Usual));
        all
    }

    /// Capacity for four sequences of 512 positions and some offloaded ones: the largest slot and
    /// page here have less than a MiB each.
    pub(crate) fn capacity(&self) -> BackendCapacity {
        BackendCapacity {
            slots: 4,
            pages: 32,
            rows_max: 320,
            logits_max: 320,
            features: 3,
            offload_bytes: 16 << 20,
        }
    }

    pub(crate) fn cpu(&self) -> CpuBackend {
        CpuBackend::open(Arc::clone(&self.weights), self.capacity(), 1, ProductPrecision::Float32).unwrap()
    }

    pub(crate) fn device(&self) -> (Box<dyn DeviceBackend>, Arc<ExecutorGauge>) {
        self.device_with(self.options)
    }

    pub(crate) fn device_with(
        &self,
        options: BackendOptions,
    ) -> (Box<dyn DeviceBackend>, Arc<ExecutorGauge>) {
        self.device_on(options, executor())
    }

    pub(crate) fn device_on(
        &self,
        options: BackendOptions,
        (executor, gauge): (Box<dyn Executor>, Arc<ExecutorGauge>),
    ) -> (Box<dyn DeviceBackend>, Arc<ExecutorGauge>) {
        let checkpoint = Checkpoint::open(&self.dir).unwrap();
        (open(&checkpoint, self.capacity(), options, executor, &mut |_, _| {}).unwrap(), gauge)
    }

    /// Token ids, none of them a placeholder.
    pub(crate) fn ids(&self, seed: u32, count: usize) -> Vec<u32> {
        let vocabulary = self.weights.config.text.vocabulary as u32;
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next_id = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state % vocabulary
        };
        (0..count).map(|_| next_id()).collect()
    }
}

/// The host executor, or a GPU if one is requested: then the gauge counts nothing.
pub(crate) fn executor() -> (Box<dyn Executor>, Arc<ExecutorGauge>) {
    if on_a_gpu() {
        return (gpu(), Arc::default());
    }
    let (host, gauge) = HostExecutor::new(BYTES);
    (Box::new(host), gauge)
}

/// Directory of an oracle checkpoint: in this repository, or under `FURROW_REPOSITORY`.
pub(crate) fn oracle_dir(name: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let repository = env::var_os("FURROW_REPOSITORY").map_or_else(here, PathBuf::from);
    repository.join("crates/model/tests/oracle").join(name)
}

/// Numbers of an oracle's `inputs.json`.
pub(crate) fn inputs(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("inputs.json")).unwrap()).unwrap()
}

pub(crate) fn numbers(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

/// A float32 tensor of an oracle's `expected.safetensors`.
pub(crate) fn expected(dir: &Path, name: &str) -> Vec<f32> {
    let bytes = fs::read(dir.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    values.into_iter().map(f32::from_le_bytes).collect()
}

/// The sequence in slot `index` on eight pages of its own.
pub(crate) fn sequence(index: u32) -> Sequence {
    Sequence::new(Slot(index), (index * 8..index * 8 + 8).map(Page).collect())
}

/// sqrt(mean((x - y)^2)) / sqrt(mean(y^2)); a NaN counts as infinitely far.
pub(crate) fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |v: f64| v * v;
    let errors = got.iter().zip(want).map(|(got, want)| square(f64::from(*got) - f64::from(*want)));
    (errors.sum::<f64>() / want.iter().map(|want| square(f64::from(*want))).sum::<f64>()).sqrt()
}
