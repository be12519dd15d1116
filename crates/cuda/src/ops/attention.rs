//! Attention over pages: `kernels/attention.cu` for any type and head size; `kernels/attention_decode.cu` and `kernels/attention_prefill.cu` where
//! they are faster.

use furrow_model::backend::PAGE_TOKENS;
use furrow_model::config::AttentionConfig;
use half::bf16;

use super::{Rows, in_packs};
use crate::launch::{Argument, Launch, Span, Stored, THREADS_MAX, Tile, View, shared_bytes, size};

/// New tokens of a tile of prefill.
pub const TILE_ROWS: u32 = 64;
/// Pages that a block of decode walks over: 512 positions, so that 8,192 make 16 parts, and 100 sessions of 8 KV heads 12,800 blocks.
pub const SPLIT_PAGES: usize = 8;
/// Largest head size of the plain form.
const HEAD_MAX: usize = 256;
/// Query heads a KV head that decode has rows for.
const GROUP_MAX: usize = 16;
/// Added to rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// Keys and values of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Pages<T> {
    /// From the layer's part of page 0 on: for each KV head keys `[64, head size]`, values `[64, head size]`.
    pub values: View<T>,
    /// Values from one page to the next.
    pub stride: usize,
    /// Page table: a row a span, its pages in order.
    pub table: View<u32>,
    /// Entries of a row of the table.
    pub table_stride: usize,
}

/// The rows of a batch in one attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a, T> {
    /// Heads and their size.
    pub config: &'a AttentionConfig,
    /// q, k and v of every head.
    pub qkv: Rows<T>,
    /// The batch.
    pub spans: View<Span>,
    /// Where keys and values are.
    pub pages: Pages<T>,
    /// `[m, heads x head size]`.
    pub out: View<T>,
}

impl<T: Stored> Attention<'_, T> {
    /// Puts the rows' keys and values into their pages. `span_of` `[m]` says whose row each is.
    pub fn store(&self, span_of: View<u32>) -> Launch {
        let mut arguments = self.of_batch(&[span_of.into()]);
        arguments.extend_from_slice(&self.sizes());
        arguments.push(size(self.config.head_dim).into());
        Launch {
            file: "attention.cu",
            kernel: T::pick("store_kv_f32", "store_kv_bf16"),
            grid: [size(span_of.len()), 1, 1],
            threads: size((2 * self.config.kv_heads * self.config.head_dim).next_multiple_of(32))
                .min(THREADS_MAX / 4),
            shared_bytes: 0,
            arguments,
        }
    }

    /// The plain form, for any rows.
    pub fn launch(&self, span_of: View<u32>) -> Launch {
        assert!(self.config.head_dim <= HEAD_MAX, "heads of {} over {HEAD_MAX}", self.config.head_dim);
        let mut arguments = self.of_batch(&[span_of.into()]);
        arguments.extend_from_slice(&[self.out.into(), size(span_of.len()).into()]);
        arguments.extend_from_slice(&self.sizes());
        arguments.extend_from_slice(&[size(self.config.head_dim).into(), self.scale().into()]);
        Launch {
            file: "attention.cu",
            kernel: T::pick("attend_f32", "attend_bf16"),
            grid: [size((span_of.len() * self.config.heads).div_ceil(4)), 1, 1],
            threads: 128,
            shared_bytes: 0,
            arguments,
        }
    }

    /// Parameters that every kernel begins with; `more` come after the spans.
    fn of_batch(&self, more: &[Argument]) -> Vec<Argument> {
        let AttentionConfig { heads, kv_heads, head_dim } = *self.config;
        assert!(heads.is_multiple_of(kv_heads), "{heads} heads of {kv_heads} groups");
        self.qkv.hold((heads + 2 * kv_heads) * head_dim, "q, k and v");
        assert!(self.config.page_values() <= self.pages.stride, "pages overlap");
        let mut arguments = self.qkv.arguments().to_vec();
        arguments.push(self.spans.into());
        arguments.extend_from_slice(more);
        arguments.extend_from_slice(&[
            self.pages.values.into(),
            (self.pages.stride as u64).into(),
            self.pages.table.into(),
            size(self.pages.table_stride).into(),
        ]);
        arguments
    }

    fn sizes(&self) -> [Argument; 2] {
        [size(self.config.heads).into(), size(self.config.kv_heads).into()]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }
}

/// Room for what the parts of a decode leave, in float32.
#[derive(Debug, Clone, Copy)]
pub struct Parts {
    /// `[spans, splits, heads, head size]`.
    pub values: View<f32>,
    /// `[spans, splits, heads, 2]`.
    pub weights: View<f32>,
    /// Parts of the longest context.
    pub splits: usize,
    /// Pages of a part.
    pub pages: usize,
}

impl Parts {
    /// Parts of so many positions.
    pub fn splits(positions: usize, pages: usize) -> usize {
        positions.div_ceil(PAGE_TOKENS).div_ceil(pages).max(1)
    }
}

impl Attention<'_, bf16> {
    /// Of one new token a span: the parts, and their joining. `None` where head size or group are others than the kernels are made for.
    pub fn decode(&self, parts: &Parts) -> Option<[Launch; 2]> {
        let AttentionConfig { heads, kv_heads, head_dim } = *self.config;
        if self.config.group() > GROUP_MAX {
            return None;
        }
        let kernel = of_size(head_dim, "attend_split_64", "attend_split_128")?;
        let slots = self.spans.len() * parts.splits * heads;
        assert!(
            parts.values.len() >= slots * head_dim && parts.weights.len() >= 2 * slots,
            "room for all parts"
        );
        let mut arguments = self.of_batch(&[]);
        arguments.extend_from_slice(&[parts.values.into(), parts.weights.into()]);
        arguments.extend_from_slice(&self.sizes());
        arguments.extend_from_slice(&[size(parts.pages).into(), self.scale().into()]);
        let row = head_dim + PAD;
        let split = Launch {
            file: "attention_decode.cu",
            kernel,
            grid: [size(kv_heads), size(parts.splits), size(self.spans.len())],
            threads: 128,
            shared_bytes: shared_bytes(&[(GROUP_MAX * row, 2), (4 * PAGE_TOKENS * row, 2)]),
            arguments,
        };
        let join = Launch {
            file: "attention_decode.cu",
            kernel: "join_splits",
            grid: [size(heads), size(self.spans.len()), 1],
            threads: size(head_dim),
            shared_bytes: 0,
            arguments: vec![
                parts.values.into(),
                parts.weights.into(),
                self.spans.into(),
                self.out.into(),
                size(heads).into(),
                size(head_dim).into(),
                size(parts.splits).into(),
                size(parts.pages).into(),
            ],
        };
        Some([split, join])
    }

    /// Of many new tokens, in tiles of `TILE_ROWS`. `None` where the head size is another than the kernels are made for.
    pub fn prefill(&self, tiles: View<Tile>) -> Option<Launch> {
        let head_dim = self.config.head_dim;
        let kernel = of_size(head_dim, "attend_tile_64", "attend_tile_128")?;
        in_packs(self.qkv.stride, "steps between rows that are copied in packs");
        let mut arguments = self.of_batch(&[tiles.into()]);
        arguments.push(self.out.into());
        arguments.extend_from_slice(&self.sizes());
        arguments.push(self.scale().into());
        let row = head_dim + PAD;
        Some(Launch {
            file: "attention_prefill.cu",
            kernel,
            grid: [size(self.config.heads), size(tiles.len()), 1],
            threads: 128,
            shared_bytes: shared_bytes(&[(TILE_ROWS as usize * row, 2), (4 * PAGE_TOKENS * row, 2)]),
            arguments,
        })
    }
}

fn of_size(head_dim: usize, of_64: &'static str, of_128: &'static str) -> Option<&'static str> {
    match head_dim {
        64 => Some(of_64),
        128 => Some(of_128),
        _ => None,
    }
}
