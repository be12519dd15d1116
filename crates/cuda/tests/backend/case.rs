//! The oracle's cases that there are kernels for, and checkpoints made here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use furrow_cuda::backend::{Device, Options, Precision, open};
use furrow_cuda::executor::Executor;
use furrow_model::backend::{Page, Room, Slot};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::cpu::Cpu;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{Compute, Team};
use furrow_model::weights::Weights;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

use crate::air::{Air, Gauge};
use crate::chosen::gpu;
pub use crate::chosen::on_a_gpu;
use crate::made;

/// Memory of the air: more than any case takes.
pub const BYTES: u64 = 1 << 30;

/// A checkpoint and how it is computed.
pub struct Case {
    pub name: String,
    pub dir: PathBuf,
    pub options: Options,
    /// Largest relative RMS of logits against float32 arithmetic on the same weights.
    pub bound: f64,
    pub weights: Arc<Weights>,
}

/// Oracle checkpoints in float32: widths that are no powers of two, heads of 10 and 16; two with experts.
pub const FLOAT32: [&str; 4] = ["dense", "long_chunk128", "moe", "moe_latent_groups"];

/// float32 sums in another order.
const FLOAT32_BOUND: f64 = 1e-5;
/// bfloat16 activations: transformers' own are 1.6e-2 off, a prefill from a decode 2.1e-2.
const BFLOAT16_BOUND: f64 = 3e-2;

impl Case {
    pub fn oracle(name: &str, precision: Precision) -> Self {
        let dir = oracle_dir(name);
        let bound = if name.ends_with("bf16") { BFLOAT16_BOUND } else { FLOAT32_BOUND };
        Self::new(name, dir, Options { precision, ..Options::default() }, bound)
    }

    /// The checkpoint made for the fast kernels, in bfloat16.
    pub fn made(precision: Precision) -> Self {
        let options = Options { precision, ..Options::default() };
        Self::new("made", made::checkpoint().to_owned(), options, BFLOAT16_BOUND)
    }

    /// One with experts, in bfloat16: each row goes to all of them, so that no rounding sends it elsewhere.
    pub fn of_experts() -> Self {
        static MADE: OnceLock<TempDir> = OnceLock::new();
        let dir = MADE.get_or_init(|| made::written(4, &made::config_of_experts(), |_, _| {})).path();
        Self::new("experts", dir.to_owned(), Options::default(), BFLOAT16_BOUND)
    }

    /// One in float32 throughout, with a tower whose heads are of 32.
    pub fn of_float32() -> Self {
        static MADE: OnceLock<TempDir> = OnceLock::new();
        let mut config = made::config();
        config["vision_config"]["num_attention_heads"] = 4.into();
        let dir = MADE.get_or_init(|| made::written_as(5, &config, |_, _| {}, |_| Dtype::F32)).path();
        Self::new("float32", dir.to_owned(), Options::default(), FLOAT32_BOUND)
    }

    /// One in bfloat16 but for the matrices that have one of these words in their names.
    pub fn with_float32(config: &Value, words: &[&str]) -> (Self, TempDir) {
        let is_wide = |name: &str| words.iter().any(|word| name.contains(word));
        let stored = |name: &str| if is_wide(name) { Dtype::F32 } else { Dtype::BF16 };
        let dir = made::written_as(6, config, |_, _| {}, stored);
        (Self::new("some float32", dir.path().to_owned(), Options::default(), BFLOAT16_BOUND), dir)
    }

    pub fn new(name: &str, dir: PathBuf, options: Options, bound: f64) -> Self {
        let weights = Arc::new(Weights::load(&dir, &Team::new(1), &mut |_, _| {}).unwrap());
        Self { name: name.to_owned(), dir, options, bound, weights }
    }

    /// Every case in its usual precision.
    pub fn all() -> Vec<Self> {
        let oracle = |name: &&str| Self::oracle(name, Precision::Usual);
        let mut all: Vec<Self> = FLOAT32[..2].iter().chain(&["vl_names_bf16"]).map(oracle).collect();
        all.push(Self::made(Precision::Usual));
        all
    }

    /// Room for four sequences of 512 positions, and for some that are parked: the largest slot and page here have less than a MiB each.
    pub fn room(&self) -> Room {
        Room { slots: 4, pages: 32, rows_max: 320, logits_max: 320, features: 3, parked_bytes: 16 << 20 }
    }

    pub fn cpu(&self) -> Cpu {
        Cpu::open(Arc::clone(&self.weights), self.room(), 1, Compute::Float32).unwrap()
    }

    pub fn device(&self) -> (Box<dyn Device>, Arc<Gauge>) {
        self.device_with(self.options)
    }

    pub fn device_with(&self, options: Options) -> (Box<dyn Device>, Arc<Gauge>) {
        self.device_on(options, executor())
    }

    pub fn device_on(
        &self,
        options: Options,
        (executor, gauge): (Box<dyn Executor>, Arc<Gauge>),
    ) -> (Box<dyn Device>, Arc<Gauge>) {
        let checkpoint = Checkpoint::open(&self.dir).unwrap();
        (open(&checkpoint, self.room(), options, executor, &mut |_, _| {}).unwrap(), gauge)
    }

    /// Token ids, none of them a placeholder.
    pub fn ids(&self, seed: u32, count: usize) -> Vec<u32> {
        let vocabulary = self.weights.config.text.vocabulary as u32;
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state % vocabulary
        };
        (0..count).map(|_| draw()).collect()
    }
}

/// Air, or a GPU where that is asked for: then the gauge counts nothing.
pub fn executor() -> (Box<dyn Executor>, Arc<Gauge>) {
    if on_a_gpu() {
        return (gpu(), Arc::default());
    }
    let (air, gauge) = Air::new(BYTES);
    (Box::new(air), gauge)
}

/// A checkpoint of the oracle: in this repository, or where `FURROW_REPOSITORY` says it is.
pub fn oracle_dir(name: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let repository = env::var_os("FURROW_REPOSITORY").map_or_else(here, PathBuf::from);
    repository.join("crates/model/tests/oracle").join(name)
}

/// Numbers of an oracle's `inputs.json`.
pub fn inputs(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("inputs.json")).unwrap()).unwrap()
}

pub fn numbers(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

/// A float32 tensor of an oracle's `expected.safetensors`.
pub fn expected(dir: &Path, name: &str) -> Vec<f32> {
    let bytes = fs::read(dir.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    values.into_iter().map(f32::from_le_bytes).collect()
}

/// The sequence in slot `index` on its own eight pages.
pub fn sequence(index: u32) -> Sequence {
    Sequence::new(Slot(index), (index * 8..index * 8 + 8).map(Page).collect())
}

/// sqrt(mean((x - y)^2)) / sqrt(mean(y^2)); a NaN is far from everything.
pub fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |v: f64| v * v;
    let errors = got.iter().zip(want).map(|(got, want)| square(f64::from(*got) - f64::from(*want)));
    (errors.sum::<f64>() / want.iter().map(|want| square(f64::from(*want))).sum::<f64>()).sqrt()
}
