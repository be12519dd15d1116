//! The oracle's cases: checkpoints, inputs and expected results.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use furrow_model::backend::{BackendCapacity, Page, Slot};
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::weights::ModelWeights;
use safetensors::SafeTensors;
use serde_json::Value;

/// Every case, and the two precisions of the one with bfloat16 weights.
pub(super) const CASES: [(&str, ProductPrecision); 6] = [
    ("dense", ProductPrecision::Float32),
    ("long_chunk128", ProductPrecision::Float32),
    ("moe", ProductPrecision::Float32),
    ("moe_latent_groups", ProductPrecision::Float32),
    ("vl_names_bf16", ProductPrecision::Float32),
    ("vl_names_bf16", ProductPrecision::Bfloat16),
];

pub(super) struct OracleCase {
    pub name: &'static str,
    pub compute: ProductPrecision,
    pub weights: Arc<ModelWeights>,
    inputs: Value,
    expected: Vec<u8>,
}

impl OracleCase {
    pub(super) fn load(name: &'static str, compute: ProductPrecision) -> Self {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
        let weights = ModelWeights::load(&dir, &ThreadPool::new(1), &mut |_, _| {}).unwrap();
        Self {
            name,
            compute,
            weights: Arc::new(weights),
            inputs: serde_json::from_slice(&fs::read(dir.join("inputs.json")).unwrap()).unwrap(),
            expected: fs::read(dir.join("expected.safetensors")).unwrap(),
        }
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        CASES.into_iter().map(|(name, compute)| Self::load(name, compute))
    }

    /// A list of numbers of `inputs.json`.
    pub(super) fn ids(&self, key: &str) -> Vec<u32> {
        numbers(&self.inputs[key]).into_iter().map(|id| id as u32).collect()
    }

    pub(super) fn segmentations(&self) -> Vec<Vec<usize>> {
        self.inputs["segmentations"].as_array().unwrap().iter().map(numbers).collect()
    }

    /// A float32 tensor of `expected.safetensors`; `None` if the case has none of that name.
    pub(super) fn find(&self, name: &str) -> Option<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.expected).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        let values = tensor.data().as_chunks::<4>().0;
        Some(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    #[track_caller]
    pub(super) fn floats(&self, name: &str) -> Vec<f32> {
        self.find(name).unwrap_or_else(|| panic!("{}: the oracle has no {name}", self.name))
    }

    #[track_caller]
    pub(super) fn ints(&self, name: &str) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.expected).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        tensor.data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as u32).collect()
    }

    /// Capacity for four sequences of 512 positions.
    pub(super) fn capacity(&self) -> BackendCapacity {
        BackendCapacity {
            slots: 4,
            pages: 32,
            rows_max: 1024,
            logits_max: 512,
            features: 1,
            offload_bytes: 0,
        }
    }

    pub(super) fn open(&self) -> CpuBackend {
        self.open_with(2)
    }

    pub(super) fn open_with(&self, threads: usize) -> CpuBackend {
        CpuBackend::open(Arc::clone(&self.weights), self.capacity(), threads, self.compute).unwrap()
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.weights.config.text.vocabulary
    }
}

fn numbers(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

/// The sequence in slot `index` on eight pages of its own.
pub(super) fn sequence(index: u32) -> Sequence {
    Sequence::new(Slot(index), (index * 8..index * 8 + 8).map(Page).collect())
}

/// sqrt(mean((x - y)^2)) / sqrt(mean(y^2)); a NaN counts as infinitely far.
pub(super) fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |v: f64| v * v;
    let errors = got.iter().zip(want).map(|(got, want)| square(f64::from(*got) - f64::from(*want)));
    (errors.sum::<f64>() / want.iter().map(|want| square(f64::from(*want))).sum::<f64>()).sqrt()
}

/// Largest |x - y|; a NaN counts as infinitely far.
pub(super) fn largest(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let errors = got.iter().zip(want).map(|(got, want)| (f64::from(*got) - f64::from(*want)).abs());
    errors.fold(0.0, |largest, error| if error <= largest { largest } else { error })
}
