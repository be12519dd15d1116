//! Drawing tokens on the device: `kernels/sample.cu`.

use bytemuck::{Pod, Zeroable};
use furrow_model::sample::{self, KEPT_MAX, Token};

use crate::launch::{Element, Launch, View, shared_bytes, size};

/// Weights of a block that is summed together.
const BLOCK: usize = 256;
/// Threads of a block.
const THREADS: usize = 512;
/// What the threads of a block share: 256 bins, 4 numbers, a word and a count a warp, a block of weights.
const BOARD: usize = 256 * 8 + 4 * 8 + THREADS / 32 * (8 + 4) + BLOCK * 4;
/// No set of allowed ids; no id; nothing cut.
const NONE: u32 = u32::MAX;

/// One draw: `Pick` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Pick {
    uniform: f64,
    row: u32,
    top_k: u32,
    allowed: u32,
    temperature: f32,
    top_p: f32,
    min_p: f32,
}

/// What a draw gave: `Picked` of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Picked {
    id: u32,
    kept_count: u32,
    logprob: f32,
    sampled_logprob: f32,
    entropy: f32,
}

impl Element for Pick {
    const LETTER: char = 'p';
}

impl Element for Picked {
    const LETTER: char = 'k';
}

impl Pick {
    /// Of a draw whose allowed ids are the `set`th that the device holds.
    pub fn new(pick: &sample::Pick<'_>, set: Option<u32>) -> Self {
        assert_eq!(pick.allowed.is_some(), set.is_some(), "the allowed ids are on the device");
        let sample::Pick { row, temperature, top_k, top_p, min_p, uniform, .. } = *pick;
        Self { uniform, row, top_k, allowed: set.unwrap_or(NONE), temperature, top_p, min_p }
    }
}

impl Picked {
    /// The answer; `kept` `[KEPT_MAX]` is what the kernel left for this pick.
    pub fn answer(&self, kept: &[u32]) -> sample::Picked {
        if self.id == NONE {
            return sample::Picked::NotFinite;
        }
        let kept_count = (self.kept_count != NONE).then_some(self.kept_count);
        let listed = kept_count.map_or(0, |count| count as usize);
        let kept_ids = if listed <= KEPT_MAX { kept[..listed].to_vec() } else { Vec::new() };
        let Self { id, logprob, sampled_logprob, entropy, .. } = *self;
        sample::Picked::Token(Token { id, logprob, sampled_logprob, kept_count, kept_ids, entropy })
    }
}

/// Draws from rows of logits.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// `[rows, vocabulary]`.
    pub logits: View<f32>,
    /// Ids of a row.
    pub vocabulary: usize,
    /// The draws.
    pub picks: View<Pick>,
    /// Sets of allowed ids, `[sets, ceil(vocabulary / 64)]`; id i at bit i % 64 of word i / 64.
    pub allowed: View<u64>,
    /// Work: ids that are left, `[picks, vocabulary]`.
    pub ids: View<u32>,
    /// Work: their logits, as many.
    pub lefts: View<f32>,
    /// Work: sums of blocks, `[picks, sums(vocabulary)]`.
    pub sums: View<f64>,
    /// Answers, one a pick.
    pub picked: View<Picked>,
    /// Ids that were left where something was cut and they are few, `[picks, KEPT_MAX]`.
    pub kept: View<u32>,
}

/// Sums that a pick needs room for.
pub fn sums(vocabulary: usize) -> usize {
    2 * vocabulary.div_ceil(BLOCK)
}

impl Sample {
    /// The launch.
    pub fn launch(&self) -> Launch {
        let (picks, vocabulary) = (self.picks.len(), self.vocabulary);
        assert!(vocabulary > 0 && self.logits.len() >= vocabulary, "a row of logits");
        assert!(
            self.ids.len() >= picks * vocabulary && self.lefts.len() >= picks * vocabulary,
            "room for what is left"
        );
        assert!(self.sums.len() >= picks * sums(vocabulary), "room for sums");
        assert!(self.picked.len() >= picks && self.kept.len() >= picks * KEPT_MAX, "room for answers");
        Launch {
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
