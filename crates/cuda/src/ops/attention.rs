//! Attention over pages: `kernels/attention.cu` for any type and head size;
//! `kernels/attention_decode.cu` and `kernels/attention_prefill.cu` for cases in which they are
//! faster.

use furrow_model::backend::PAGE_TOKENS;
use furrow_model::config::AttentionConfig;
use half::bf16;

use super::{DeviceRows, assert_in_packs};
use crate::launch::{
    DeviceView, KernelArgument, KernelLaunch, RowSpan, SpanTile, StoredElement, THREADS_MAX, shared_bytes,
    size,
};

/// New tokens of a tile of prefill.
pub const TILE_ROWS: u32 = 64;
/// Pages that a block of decode processes: 512 positions, so that 8,192 make 16 parts, and 100
/// sessions of 8 KV heads make 12,800 blocks.
pub(crate) const SPLIT_PAGES: usize = 8;
/// Largest head size of the plain kernel.
const HEAD_MAX: usize = 256;
/// Most query heads for a KV head in decode.
const GROUP_MAX: usize = 16;
/// Padding of rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// Keys and values of one layer.
#[derive(Debug, Clone, Copy)]
pub struct DevicePages<T> {
    /// Starting at the layer's part of page 0: for each KV head keys `[64, head size]`, values
    /// `[64, head size]`.
    pub values: DeviceView<T>,
    /// Values from one page to the next.
    pub stride: usize,
    /// Page table: a row for each span, with its pages in order.
    pub table: DeviceView<u32>,
    /// Entries of a row of the table.
    pub table_stride: usize,
}

/// The rows of a batch in one attention layer.
#[derive(Debug, Clone, Copy)]
pub struct AttentionLaunch<'a, T> {
    /// Heads and their size.
    pub config: &'a AttentionConfig,
    /// q, k and v of every head.
    pub qkv: DeviceRows<T>,
    pub spans: DeviceView<RowSpan>,
    pub pages: DevicePages<T>,
    /// `[m, heads x head size]`.
    pub out: DeviceView<T>,
}

impl<T: StoredElement> AttentionLaunch<'_, T> {
    /// Writes the rows' keys and values to their pages. `span_of` `[m]` is the span of each row.
    pub fn store(&self, span_of: DeviceView<u32>) -> KernelLaunch {
        let mut arguments = self.of_batch(&[span_of.into()]);
        arguments.extend_from_slice(&self.sizes());
        arguments.push(size(self.config.head_dim).into());
        KernelLaunch {
            file: "attention.cu",
            kernel: T::pick("store_kv_f32", "store_kv_bf16"),
            grid: [size(span_of.len()), 1, 1],
            threads: size((2 * self.config.kv_heads * self.config.head_dim).next_multiple_of(32))
                .min(THREADS_MAX / 4),
            shared_bytes: 0,
            arguments,
        }
    }

    /// The plain kernel, for any rows.
    pub fn launch(&self, span_of: DeviceView<u32>) -> KernelLaunch {
        assert!(self.config.head_dim <= HEAD_MAX, "heads of {}, more than {HEAD_MAX}", self.config.head_dim);
        let mut arguments = self.of_batch(&[span_of.into()]);
        arguments.extend_from_slice(&[self.out.into(), size(span_of.len()).into()]);
        arguments.extend_from_slice(&self.sizes());
        arguments.extend_from_slice(&[size(self.config.head_dim).into(), self.scale().into()]);
        KernelLaunch {
            file: "attention.cu",
            kernel: T::pick("attend_f32", "attend_bf16"),
            grid: [size((span_of.len() * self.config.heads).div_ceil(4)), 1, 1],
            threads: 128,
            shared_bytes: 0,
            arguments,
        }
    }

    /// Parameters that every kernel begins with; `more` come after the spans.
    fn of_batch(&self, more: &[KernelArgument]) -> Vec<KernelArgument> {
        let AttentionConfig { heads, kv_heads, head_dim } = *self.config;
        assert!(heads.is_multiple_of(kv_heads), "{heads} heads of {kv_heads} groups");
        self.qkv.assert_width((heads + 2 * kv_heads) * head_dim, "q, k and v");
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

    fn sizes(&self) -> [KernelArgument; 2] {
        [size(self.config.heads).into(), size(self.config.kv_heads).into()]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }
}

/// Buffers for the results of a decode's parts, in float32.
#[derive(Debug, Clone, Copy)]
pub struct SplitBuffers {
    /// `[spans, splits, heads, head size]`.
    pub values: DeviceView<f32>,
    /// `[spans, splits, heads, 2]`.
    pub weights: DeviceView<f32>,
    /// Parts of the longest context.
    pub splits: usize,
    /// Pages of a part.
    pub pages: usize,
}

impl SplitBuffers {
    /// Number of parts for this many positions.
    pub fn splits(positions: usize, pages: usize) -> usize {
        positions.div_ceil(PAGE_TOKENS).div_ceil(pages).max(1)
    }
}

impl AttentionLaunch<'_, bf16> {
    /// One new token for each span: the parts, then their combination. `None` if the kernels do not
    /// support head size or group.
    pub fn decode(&self, parts: &SplitBuffers) -> Option<[KernelLaunch; 2]> {
        let AttentionConfig { heads, kv_heads, head_dim } = *self.config;
        if self.config.group() > GROUP_MAX {
            return None;
        }
        let kernel = of_size(head_dim, "attend_split_64", "attend_split_128")?;
        let slots = self.spans.len() * parts.splits * heads;
        assert!(
            parts.values.len() >= slots * head_dim && parts.weights.len() >= 2 * slots,
            "buffers for all parts"
        );
        let mut arguments = self.of_batch(&[]);
        arguments.extend_from_slice(&[parts.values.into(), parts.weights.into()]);
        arguments.extend_from_slice(&self.sizes());
        arguments.extend_from_slice(&[size(parts.pages).into(), self.scale().into()]);
        let row = head_dim + PAD;
        let split = KernelLaunch {
            file: "attention_decode.cu",
            kernel,
            grid: [size(kv_heads), size(parts.splits), size(self.spans.len())],
            threads: 128,
            shared_bytes: shared_bytes(&[(GROUP_MAX * row, 2), (4 * PAGE_TOKENS * row, 2)]),
            arguments,
        };
        let join = KernelLaunch {
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

    /// Many new tokens, in tiles of `TILE_ROWS`. `None` if the kernels do not support the head
    /// size.
    pub fn prefill(&self, tiles: DeviceView<SpanTile>) -> Option<KernelLaunch> {
        let head_dim = self.config.head_dim;
        let kernel = of_size(head_dim, "attend_tile_64", "attend_tile_128")?;
        assert_in_packs(self.qkv.stride, "stride of rows that are copied in packs");
        let mut arguments = self.of_batch(&[tiles.into()]);
        arguments.push(self.out.into());
        arguments.extend_from_slice(&self.sizes());
        arguments.push(self.scale().into());
        let row = head_dim + PAD;
        Some(KernelLaunch {
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
