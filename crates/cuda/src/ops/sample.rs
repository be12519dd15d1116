//! Samples tokens on the device: `kernels/sample.cu`.

use bytemuck::{Pod, Zeroable};
use furrow_model::sample::{self, KEPT_MAX, SampledToken};

use crate::launch::{DeviceElement, DeviceView, KernelLaunch, shared_bytes, size};

/// Weights of a block that are summed together.
const BLOCK: usize = 256;
/// Threads of a block.
const THREADS: usize = 512;
/// Shared memory of a block: 256 buckets, 4 numbers, a key and a count for each warp, a block of
/// weights.
const BOARD: usize = 256 * 8 + 4 * 8 + THREADS / 32 * (8 + 4) + BLOCK * 4;
/// No set of allowed ids; no id; nothing cut.
const NONE: u32 = u32::MAX;

/// Parameters of one token: `Pick` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PackedRequest {
    uniform: f64,
    row: u32,
    top_k: u32,
    allowed: u32,
    temperature: f32,
    top_p: f32,
    min_p: f32,
}

/// Result for one token: `Picked` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PackedSample {
    id: u32,
    kept_count: u32,
    logprob: f32,
    sampled_logprob: f32,
    entropy: f32,
}

impl DeviceElement for PackedRequest {
    const LETTER: char = 'p';
}

impl DeviceElement for PackedSample {
    const LETTER: char = 'k';
}

impl PackedRequest {
    /// For a token whose allowed ids are the `set`th on the device.
    pub fn new(pick: &sample::SampleRequest<'_>, set: Option<u32>) -> Self {
        assert_eq!(pick.allowed.is_some(), set.is_some(), "the allowed ids must be on the device");
        let sample::SampleRequest { row, temperature, top_k, top_p, min_p, uniform, .. } = *pick;
        Self { uniform, row, top_k, allowed: set.unwrap_or(NONE), temperature, top_p, min_p }
    }
}

impl PackedSample {
    /// The outcome; `kept` `[KEPT_MAX]` has the kernel's kept ids of this request.
    pub fn answer(&self, kept: &[u32]) -> sample::SampleOutcome {
        if self.id == NONE {
            return sample::SampleOutcome::NotFinite;
        }
        let kept_count = (self.kept_count != NONE).then_some(self.kept_count);
        let listed = kept_count.map_or(0, |count| count as usize);
        let kept_ids = if listed <= KEPT_MAX { kept[..listed].to_vec() } else { Vec::new() };
        let Self { id, logprob, sampled_logprob, entropy, .. } = *self;
        sample::SampleOutcome::Token(SampledToken {
            id,
            logprob,
            sampled_logprob,
            kept_count,
            kept_ids,
            entropy,
        })
    }
}

/// Samples from rows of logits.
#[derive(Debug, Clone, Copy)]
pub struct SampleLaunch {
    pub logits: DeviceView<f32>,
    /// Ids of a row.
    pub vocabulary: usize,
    /// Parameters of each token.
    pub picks: DeviceView<PackedRequest>,
    /// Sets of allowed ids, `[sets, ceil(vocabulary / 64)]`; id i at bit i % 64 of element i / 64.
    pub allowed: DeviceView<u64>,
    /// Scratch: ids that are left, `[picks, vocabulary]`.
    pub ids: DeviceView<u32>,
    /// Scratch: their logits, of the same shape.
    pub lefts: DeviceView<f32>,
    /// Scratch: sums of blocks, `[picks, sums(vocabulary)]`.
    pub sums: DeviceView<f64>,
    /// One result for each request.
    pub picked: DeviceView<PackedSample>,
    /// Ids that were left if something was cut and they are few, `[picks, KEPT_MAX]`.
    pub kept: DeviceView<u32>,
}

/// Length of a request's sums.
pub fn sums(vocabulary: usize) -> usize {
    2 * vocabulary.div_ceil(BLOCK)
}

impl SampleLaunch {
    pub fn launch(&self) -> KernelLaunch {
        let picks = self.picks.len();
        let vocabulary = self.vocabulary;
        assert!(vocabulary > 0 && self.logits.len() >= vocabulary, "at least one row of logits");
        assert!(
            self.ids.len() >= picks * vocabulary && self.lefts.len() >= picks * vocabulary,
            "buffers for the ids that are left"
        );
        assert!(self.sums.len() >= picks * sums(vocabulary), "a buffer for the sums");
        assert!(self.picked.len() >= picks && self.kept.len() >= picks * KEPT_MAX, "buffers for the results");
        KernelLaunch {
            file: "sample.cu",
            kernel: "sample",
            grid: [size(picks), 1, 1],
            threads: size(THREADS),
            shared_bytes: shared_bytes(&[(BOARD, 1)]),
            arguments: vec![
                self.logits.into(),
                size(vocabulary).into(),
                self.picks.into(),
                self.allowed.into(),
                self.ids.into(),
                self.lefts.into(),
                self.sums.into(),
                self.picked.into(),
                self.kept.into(),
            ],
        }
    }
}
