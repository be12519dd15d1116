//! What a batch is computed in, and how large a batch can be.

use furrow_model::backend::Room;
use furrow_model::config::{LayerKind, MoeConfig, TextConfig};
use furrow_model::sample::KEPT_MAX;

use crate::arena::Placer;
use crate::launch::{Tile, View};
use crate::ops::attention::{self, SPLIT_PAGES};
use crate::ops::conv;
use crate::ops::moe;
use crate::ops::sample::{self, Pick, Picked};
use crate::state::pages_of;
use crate::types::Types;

/// Part of a plan.
const ROWS: &str = "rows of a batch";
const SAMPLING: &str = "logits and sampling";
const EXPERTS: &str = "rows at experts";
const INPUTS: &str = "descriptions of a batch";
/// Most parts that attention splits the longest context into: 64 of 512 positions are 32,768; above that the parts grow.
const SPLITS_MAX: usize = 64;
/// Strides and lengths are rounded up to it: kernels move packs of 16 bytes.
const PACK: usize = 8;

/// How large a batch can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Rows, those that fill a batch up included.
    pub rows: usize,
    /// Spans, likewise.
    pub spans: usize,
    /// Rows whose logits are computed: of a decode batch all, and those that are wanted beside it.
    pub wanted: usize,
    /// Draws at a time.
    pub draws: usize,
    /// Pages of a sequence.
    pub pages: usize,
    /// Pages of a part of decode attention. Fixed, so that what is summed together does not depend on the batch.
    pub split_pages: usize,
}

impl Limits {
    /// Of a room.
    pub fn of(text: &TextConfig, room: &Room) -> Self {
        let largest = bucket(room.slots.min(room.rows_max) as usize);
        let pages = pages_of(text.positions_max).min(room.pages as usize).max(1);
        Self {
            rows: largest.max(room.rows_max as usize),
            spans: largest,
            wanted: largest + room.logits_max as usize,
            draws: room.logits_max as usize,
            pages,
            split_pages: SPLIT_PAGES.max(pages.div_ceil(SPLITS_MAX)),
        }
    }

    /// Parts that a context of so many pages is split into.
    pub fn splits(&self, pages: usize) -> usize {
        pages.div_ceil(self.split_pages).max(1)
    }
}

/// Rows that a decode batch of `spans` is filled up to: so many graphs are recorded. Eights above 8, for products take rows by eights.
pub(crate) fn bucket(spans: usize) -> usize {
    if spans <= 8 { spans.max(1).next_power_of_two() } else { spans.next_multiple_of(8) }
}

/// Rows of the batch in several widths.
#[derive(Debug)]
pub(crate) struct Work<P: Types> {
    /// The residual stream, `[rows, H]`.
    pub hidden: View<P::Residual>,
    /// The same after a layer's norm.
    pub normed: View<P::Value>,
    /// What a mixer adds.
    pub delta: View<P::Value>,
    /// What a mixer's first product gives: the widest there is.
    pub wide: View<P::Value>,
    /// x | B | C after the convolution, `[rows, W]`.
    pub mixed: View<P::Value>,
    /// What heads give, `[rows, heads x head size]`.
    pub inner: View<P::Value>,
    /// The wanted rows after the last norm, `[wanted, H]`.
    pub last: View<P::Value>,
    /// Their logits, `[wanted, V]`.
    pub logits: View<f32>,
    /// What the parts of decode attention leave.
    pub parts: [View<f32>; 2],
    /// Descriptions of the batch: spans, tiles, sources, tables.
    pub inputs: View<u32>,
    /// Inputs and outputs of products in float32 in a model of bfloat16.
    pub widened: [View<f32>; 2],
    /// What expert layers need.
    pub experts: Option<ExpertWork<P>>,
    /// What drawing needs.
    pub draws: Draws,
}

/// What expert layers need. A pair is a row and one expert that it chose.
#[derive(Debug)]
pub(crate) struct ExpertWork<P: Types> {
    /// The router's product, `[rows, experts]`.
    pub logits: View<f32>,
    /// What it chose, and how much each counts, a value a pair.
    pub chosen: View<u32>,
    pub weights: View<f32>,
    /// Pairs by expert: their order, their places, where each expert begins, tiles of them.
    pub order: View<u32>,
    pub place: View<u32>,
    pub offsets: View<u32>,
    pub tiles: View<Tile>,
    /// Between the products, `[pairs, inner]`.
    pub wide: View<P::Value>,
    /// What experts made of their rows, `[pairs, width]`.
    pub answered: View<f32>,
    /// Rows in the latent width on their way in and out.
    pub latent: [View<P::Value>; 2],
}

/// What drawing needs: for each pick its question, its work and its answer.
#[derive(Debug)]
pub(crate) struct Draws {
    pub picks: View<Pick>,
    pub allowed: View<u64>,
    pub ids: View<u32>,
    pub lefts: View<f32>,
    pub sums: View<f64>,
    pub picked: View<Picked>,
    pub kept: View<u32>,
}

/// Widths of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widths {
    /// Values from one row of in_proj's output to the next.
    pub projected: usize,
    /// The same of q, k and v.
    pub qkv: usize,
}

impl Widths {
    pub fn of(text: &TextConfig) -> Self {
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

impl<P: Types> Work<P> {
    /// Places everything for the largest batch.
    pub fn place(text: &TextConfig, limits: &Limits, widest: [usize; 2], placer: &mut Placer) -> Self {
        let Limits { rows, spans, wanted, .. } = *limits;
        let [q, ..] = text.attention.widths();
        let heads = text.attention.heads;
        let splits = spans * limits.splits(limits.pages) * heads;
        Self {
            hidden: placer.take(ROWS, rows.saturating_mul(text.hidden)),
            normed: placer.take(ROWS, rows.saturating_mul(text.hidden)),
            delta: placer.take(ROWS, rows.saturating_mul(text.hidden)),
            wide: placer.take(ROWS, rows.saturating_mul(Widths::of(text).widest(text)) + PACK),
            mixed: placer.take(ROWS, rows.saturating_mul(text.ssm.conv_width())),
            inner: placer.take(ROWS, rows.saturating_mul(text.ssm.inner().max(q))),
            last: placer.take(ROWS, wanted.saturating_mul(text.hidden)),
            logits: placer.take(SAMPLING, wanted.saturating_mul(text.vocabulary)),
            parts: [
                placer.take(ROWS, splits.saturating_mul(text.attention.head_dim)),
                placer.take(ROWS, 2 * splits),
            ],
            inputs: placer.take(INPUTS, words(limits)),
            widened: widest.map(|width| placer.take(ROWS, rows.max(wanted).saturating_mul(width))),
            experts: text.moe.as_ref().map(|moe| ExpertWork::place(moe, text.hidden, rows, placer)),
            draws: Draws::place(text.vocabulary, limits.draws, placer),
        }
    }
}

impl<P: Types> ExpertWork<P> {
    fn place(moe: &MoeConfig, hidden: usize, rows: usize, placer: &mut Placer) -> Self {
        let pairs = rows.saturating_mul(moe.experts_per_token);
        let latent = rows.saturating_mul(moe.latent.unwrap_or(0));
        Self {
            logits: placer.take(EXPERTS, rows.saturating_mul(moe.experts)),
            chosen: placer.take(EXPERTS, pairs),
            weights: placer.take(EXPERTS, pairs),
            order: placer.take(EXPERTS, pairs),
            place: placer.take(EXPERTS, pairs),
            offsets: placer.take(EXPERTS, moe.experts + 1),
            tiles: placer.take(EXPERTS, moe::tiles_max(moe.experts, pairs)),
            wide: placer.take(EXPERTS, pairs.saturating_mul(moe.intermediate)),
            answered: placer.take(EXPERTS, pairs.saturating_mul(moe.latent.unwrap_or(hidden))),
            latent: [placer.take(EXPERTS, latent), placer.take(EXPERTS, latent)],
        }
    }
}

/// Words that describe the largest batch; `batch.rs` writes them.
fn words(limits: &Limits) -> usize {
    let Limits { rows, spans, wanted, pages, .. } = *limits;
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

impl Draws {
    fn place(vocabulary: usize, picks: usize, placer: &mut Placer) -> Self {
        let all = |each: usize| picks.saturating_mul(each);
        Self {
            picks: placer.take(SAMPLING, picks),
            allowed: placer.take(SAMPLING, all(vocabulary.div_ceil(64))),
            ids: placer.take(SAMPLING, all(vocabulary)),
            lefts: placer.take(SAMPLING, all(vocabulary)),
            sums: placer.take(SAMPLING, all(sample::sums(vocabulary))),
            picked: placer.take(SAMPLING, picks),
            kept: placer.take(SAMPLING, all(KEPT_MAX)),
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
