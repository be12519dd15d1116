//! The workspace of a batch, and the largest batch.

use furrow_model::backend::BackendCapacity;
use furrow_model::config::{LayerKind, MoeConfig, TextConfig};
use furrow_model::sample::KEPT_MAX;

use crate::arena::BufferAllocator;
use crate::launch::{DeviceView, SpanTile};
use crate::ops::attention::{self, SPLIT_PAGES};
use crate::ops::conv;
use crate::ops::moe;
use crate::ops::sample::{self, PackedRequest, PackedSample};
use crate::state::pages_of;
use crate::types::ModelTypes;

/// Part of a plan.
const ROWS: &str = "rows of a batch";
const SAMPLING: &str = "logits and sampling";
const EXPERTS: &str = "rows at experts";
const INPUTS: &str = "descriptions of a batch";
/// Most parts that attention splits the longest context into: 64 of 512 positions are 32,768; for
/// longer contexts the parts grow.
const SPLITS_MAX: usize = 64;
/// Strides and lengths are rounded up to a multiple of this: kernels move packs of 16 bytes.
const PACK: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchLimits {
    pub rows: usize,
    pub spans: usize,
    /// Rows whose logits are computed: all rows of a decode batch, and requested rows of other
    /// spans.
    pub wanted: usize,
    /// Tokens that are sampled at once.
    pub samples: usize,
    /// Pages of a sequence.
    pub pages: usize,
    /// Pages of a part of decode attention. Fixed, so that the grouping of sums does not depend on
    /// the batch.
    pub split_pages: usize,
}

impl BatchLimits {
    /// Limits of a capacity.
    pub(crate) fn of(text: &TextConfig, capacity: &BackendCapacity) -> Self {
        let largest = bucket(capacity.slots.min(capacity.rows_max) as usize);
        let pages = pages_of(text.positions_max).min(capacity.pages as usize).max(1);
        Self {
            rows: largest.max(capacity.rows_max as usize),
            spans: largest,
            wanted: largest + capacity.logits_max as usize,
            samples: capacity.logits_max as usize,
            pages,
            split_pages: SPLIT_PAGES.max(pages.div_ceil(SPLITS_MAX)),
        }
    }

    /// Parts of a context with this many pages.
    pub(crate) fn splits(&self, pages: usize) -> usize {
        pages.div_ceil(self.split_pages).max(1)
    }
}

/// Rows that a decode batch of `spans` is padded to; each value has its own graph. Multiples of
/// eight above 8, because products process rows by eights.
pub(crate) fn bucket(spans: usize) -> usize {
    if spans <= 8 { spans.max(1).next_power_of_two() } else { spans.next_multiple_of(8) }
}

/// Rows of the batch in several widths.
#[derive(Debug)]
pub(crate) struct BatchBuffers<P: ModelTypes> {
    /// The residual stream, `[rows, H]`.
    pub hidden: DeviceView<P::Residual>,
    /// The residual stream after a layer's norm.
    pub normed: DeviceView<P::Value>,
    /// Output of a mixer.
    pub delta: DeviceView<P::Value>,
    /// Output of a mixer's first product: the widest buffer.
    pub wide: DeviceView<P::Value>,
    /// x | B | C after the convolution, `[rows, W]`.
    pub mixed: DeviceView<P::Value>,
    /// Outputs of heads, `[rows, heads x head size]`.
    pub inner: DeviceView<P::Value>,
    /// Requested rows after the last norm, `[requested rows, H]`.
    pub last: DeviceView<P::Value>,
    /// Their logits, `[requested rows, V]`.
    pub logits: DeviceView<f32>,
    /// Results of the parts of decode attention.
    pub parts: [DeviceView<f32>; 2],
    /// Descriptions of the batch: spans, tiles, sources, tables.
    pub inputs: DeviceView<u32>,
    /// Inputs and outputs of float32 products in a bfloat16 model.
    pub widened: [DeviceView<f32>; 2],
    /// Buffers of expert layers.
    pub experts: Option<ExpertWork<P>>,
    pub sampling: SamplingBuffers,
}

/// Buffers of expert layers. A pair is a row and one expert that it chose.
#[derive(Debug)]
pub(crate) struct ExpertWork<P: ModelTypes> {
    /// The router's product, `[rows, experts]`.
    pub logits: DeviceView<f32>,
    /// The chosen experts and their weights, one value for each pair.
    pub chosen: DeviceView<u32>,
    pub weights: DeviceView<f32>,
    /// Pairs by expert: their order, their sorted indices, the first pair of each expert, tiles of
    /// pairs.
    pub order: DeviceView<u32>,
    pub sorted_index: DeviceView<u32>,
    pub offsets: DeviceView<u32>,
    pub tiles: DeviceView<SpanTile>,
    /// Between the products, `[pairs, inner]`.
    pub wide: DeviceView<P::Value>,
    /// Outputs of the experts, `[pairs, width]`.
    pub answered: DeviceView<f32>,
    /// Rows in the latent width, before and after the experts.
    pub latent: [DeviceView<P::Value>; 2],
}

/// Buffers for sampling: for each token its request, its scratch and its result.
#[derive(Debug)]
pub(crate) struct SamplingBuffers {
    pub picks: DeviceView<PackedRequest>,
    pub allowed: DeviceView<u64>,
    pub ids: DeviceView<u32>,
    pub lefts: DeviceView<f32>,
    pub sums: DeviceView<f64>,
    pub picked: DeviceView<PackedSample>,
    pub kept: DeviceView<u32>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ProjectionWidths {
    /// Values from one row of in_proj's output to the next.
    pub projected: usize,
    /// Values from one row of q, k and v to the next.
    pub qkv: usize,
}

impl ProjectionWidths {
    pub(crate) fn of(text: &TextConfig) -> Self {
        let [_, _, qkv] = text.attention.widths();
        Self { projected: text.ssm.in_proj_width().next_multiple_of(PACK), qkv: qkv.next_multiple_of(PACK) }
    }

    /// The widest row of a mixer's first product.
    fn widest(&self, text: &TextConfig) -> usize {
        let only = |kind, width: usize| if text.layers.contains(&kind) { width } else { 0 };
        only(LayerKind::Ssm, self.projected)
            .max(only(LayerKind::Attention, self.qkv))
            .max(only(LayerKind::Mlp, text.intermediate))
            .max(text.moe.map_or(0, |moe| moe.shared_intermediate))
    }
}

impl<P: ModelTypes> BatchBuffers<P> {
    /// Allocates everything for the largest batch.
    pub(crate) fn allocate(
        text: &TextConfig,
        limits: &BatchLimits,
        widest: [usize; 2],
        allocator: &mut BufferAllocator,
    ) -> Self {
        let BatchLimits { rows, spans, wanted, .. } = *limits;
        let [q, ..] = text.attention.widths();
        let heads = text.attention.heads;
        let splits = spans * limits.splits(limits.pages) * heads;
        Self {
            hidden: allocator.take(ROWS, rows.saturating_mul(text.hidden)),
            normed: allocator.take(ROWS, rows.saturating_mul(text.hidden)),
            delta: allocator.take(ROWS, rows.saturating_mul(text.hidden)),
            wide: allocator.take(ROWS, rows.saturating_mul(ProjectionWidths::of(text).widest(text)) + PACK),
            mixed: allocator.take(ROWS, rows.saturating_mul(text.ssm.conv_width())),
            inner: allocator.take(ROWS, rows.saturating_mul(text.ssm.inner().max(q))),
            last: allocator.take(ROWS, wanted.saturating_mul(text.hidden)),
            logits: allocator.take(SAMPLING, wanted.saturating_mul(text.vocabulary)),
            parts: [
                allocator.take(ROWS, splits.saturating_mul(text.attention.head_dim)),
                allocator.take(ROWS, 2 * splits),
            ],
            inputs: allocator.take(INPUTS, descriptor_len(limits)),
            widened: widest.map(|width| allocator.take(ROWS, rows.max(wanted).saturating_mul(width))),
            experts: text.moe.as_ref().map(|moe| ExpertWork::allocate(moe, text.hidden, rows, allocator)),
            sampling: SamplingBuffers::allocate(text.vocabulary, limits.samples, allocator),
        }
    }
}

impl<P: ModelTypes> ExpertWork<P> {
    fn allocate(moe: &MoeConfig, hidden: usize, rows: usize, allocator: &mut BufferAllocator) -> Self {
        let pairs = rows.saturating_mul(moe.experts_per_token);
        let latent = rows.saturating_mul(moe.latent.unwrap_or(0));
        Self {
            logits: allocator.take(EXPERTS, rows.saturating_mul(moe.experts)),
            chosen: allocator.take(EXPERTS, pairs),
            weights: allocator.take(EXPERTS, pairs),
            order: allocator.take(EXPERTS, pairs),
            sorted_index: allocator.take(EXPERTS, pairs),
            offsets: allocator.take(EXPERTS, moe.experts + 1),
            tiles: allocator.take(EXPERTS, moe::tiles_max(moe.experts, pairs)),
            wide: allocator.take(EXPERTS, pairs.saturating_mul(moe.intermediate)),
            answered: allocator.take(EXPERTS, pairs.saturating_mul(moe.latent.unwrap_or(hidden))),
            latent: [allocator.take(EXPERTS, latent), allocator.take(EXPERTS, latent)],
        }
    }
}

/// Length of the largest batch's description; `batch.rs` writes it.
fn descriptor_len(limits: &BatchLimits) -> usize {
    let BatchLimits { rows, spans, wanted, pages, .. } = *limits;
    let tiles = |of: u32| 2 * (rows / of as usize + spans);
    let lists = [
        4 * spans,
        tiles(conv::TILE_ROWS),
        tiles(attention::TILE_ROWS),
        rows,
        rows,
        spans.saturating_mul(pages + limits.split_pages),
        wanted,
    ];
    lists.iter().fold(0, |sum, list| list.next_multiple_of(4).saturating_add(sum))
}

impl SamplingBuffers {
    fn allocate(vocabulary: usize, picks: usize, allocator: &mut BufferAllocator) -> Self {
        let all = |each: usize| picks.saturating_mul(each);
        Self {
            picks: allocator.take(SAMPLING, picks),
            allowed: allocator.take(SAMPLING, all(vocabulary.div_ceil(64))),
            ids: allocator.take(SAMPLING, all(vocabulary)),
            lefts: allocator.take(SAMPLING, all(vocabulary)),
            sums: allocator.take(SAMPLING, all(sample::sums(vocabulary))),
            picked: allocator.take(SAMPLING, picks),
            kept: allocator.take(SAMPLING, all(KEPT_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets_hold_their_spans_and_are_few() {
        let of = |spans| bucket(spans);
        assert_eq!([0, 1, 2, 3, 5, 8, 9, 16, 100, 101].map(of), [1, 1, 2, 4, 8, 8, 16, 16, 104, 104]);
        assert!((1..=256).all(|spans| bucket(spans) >= spans));
        let mut all: Vec<usize> = (1..=256).map(bucket).collect();
        all.dedup();
        assert_eq!(all.len(), 35);
    }
}
