//! The vision tower: `kernels/patches.cu`, `kernels/residual_layer_norm.cu`, `kernels/attention_image.cu`, `kernels/bias_gelu.cu`,
//! `kernels/pixel_shuffle.cu`.

use furrow_model::config::VisionConfig;

use super::in_packs;
use crate::launch::{Launch, Stored, THREADS_MAX, View, shared_bytes, size};

/// Query tokens of a block of attention, and keys of a lot.
const TOKENS: usize = 64;
/// Warps of a block of attention; in the plain form each has a query token.
const WARPS: usize = 4;
/// Largest head size of the plain form.
pub const HEAD_MAX: usize = 256;
/// Added to rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// Pixels on their way to the residual stream of some tiles, before and after the patch product.
#[derive(Debug, Clone, Copy)]
pub struct Patches<'a, T> {
    /// Sizes.
    pub config: &'a VisionConfig,
    /// Tiles.
    pub tiles: usize,
    /// `[tiles, 3, tile, tile]`.
    pub pixels: View<f32>,
    /// `[tiles x patches, 3 patch^2]`.
    pub patches: View<T>,
    /// What the product makes of them, `[tiles x patches, hidden]`.
    pub embedded: View<T>,
    /// Position of each patch, `[patches, hidden]`.
    pub positions: View<f32>,
    /// Prefix tokens, `[prefixes, hidden]`.
    pub prefix: View<T>,
    /// The residual stream, `[tiles, prefixes + patches, hidden]`.
    pub hidden: View<T>,
}

impl<T: Stored> Patches<'_, T> {
    /// Pixels to the rows of the product.
    pub fn cut(&self) -> Launch {
        let (tile, side, count) = (self.config.tile, self.config.patch, self.count());
        assert!(self.pixels.len() >= self.tiles * 3 * tile * tile, "pixels of {} tiles", self.tiles);
        assert!(self.patches.len() >= self.tiles * count * 3 * side * side, "rows for all patches");
        Launch {
            file: "patches.cu",
            kernel: T::pick("cut_patches_f32", "cut_patches_bf16"),
            grid: [size(count), size(self.tiles), 1],
            threads: size((3 * side * side).next_multiple_of(32)).min(256),
            shared_bytes: 0,
            arguments: vec![self.pixels.into(), self.patches.into(), size(tile).into(), size(side).into()],
        }
    }

    /// Rows of the product to the residual stream.
    pub fn place(&self) -> Launch {
        let (width, count) = (self.config.hidden, self.count());
        in_packs(width, "width of the tower");
        let prefixes = self.prefix.len() / width;
        assert!(self.embedded.len() >= self.tiles * count * width, "rows of all patches");
        assert!(self.positions.len() >= count * width, "a position for each patch");
        assert!(self.hidden.len() >= self.tiles * (prefixes + count) * width, "a row for each token");
        Launch {
            file: "patches.cu",
            kernel: T::pick("place_patches_f32", "place_patches_bf16"),
            grid: [size(prefixes + count), size(self.tiles), 1],
            threads: size((width / 8).next_multiple_of(32)).min(256),
            shared_bytes: 0,
            arguments: vec![
                self.prefix.into(),
                size(prefixes).into(),
                self.embedded.into(),
                self.positions.into(),
                self.hidden.into(),
                size(count).into(),
                size(width).into(),
            ],
        }
    }

    fn count(&self) -> usize {
        self.config.patches_side().pow(2)
    }
}

/// `h = h + (b + d); y = LayerNorm(h)`.
#[derive(Debug, Clone, Copy)]
pub struct ResidualLayerNorm<T> {
    /// The residual stream, `[m, width]`.
    pub residual: View<T>,
    /// What a product gave, `[m, width]`, and its bias `[width]`; `None` where there was none.
    pub delta: Option<[View<T>; 2]>,
    /// Scale, `[width]`.
    pub weight: View<T>,
    /// Shift, `[width]`.
    pub shift: View<T>,
    /// `[m, width]`; `None` after the last block, which is not normed.
    pub out: Option<View<T>>,
    /// Of the norm.
    pub epsilon: f32,
}

impl<T: Stored> ResidualLayerNorm<T> {
    /// The launch.
    pub fn launch(&self) -> Launch {
        let width = self.weight.len();
        in_packs(width, "width of a norm");
        assert_eq!(self.shift.len(), width, "a shift for each scale");
        let rows = self.residual.len() / width;
        let full = |view: &View<T>| view.len() >= rows * width;
        assert!(
            self.delta.is_none_or(|[delta, bias]| full(&delta) && bias.len() == width),
            "deltas of {rows} rows"
        );
        assert!(self.out.is_none_or(|out| full(&out)), "outputs of {rows} rows");
        let [delta, bias] = [0, 1].map(|at| self.delta.map(|both| both[at]));
        Launch {
            file: "residual_layer_norm.cu",
            kernel: T::pick("residual_layer_norm_f32", "residual_layer_norm_bf16"),
            grid: [size(rows), 1, 1],
            threads: size((width / 4).next_multiple_of(32)).min(THREADS_MAX / 4),
            shared_bytes: shared_bytes(&[(width, 4), (64, 4)]),
            arguments: vec![
                self.residual.into(),
                delta.into(),
                bias.into(),
                self.weight.into(),
                self.shift.into(),
                self.out.into(),
                size(width).into(),
                self.epsilon.into(),
            ],
        }
    }
}

/// `x = gelu(x + b)`, the exact form, in place; `x` `[m, width]`.
pub fn bias_gelu<T: Stored>(values: View<T>, bias: View<T>) -> Launch {
    let width = bias.len();
    in_packs(width, "width of an MLP");
    Launch {
        file: "bias_gelu.cu",
        kernel: T::pick("bias_gelu_f32", "bias_gelu_bf16"),
        grid: [size((width / 8).div_ceil(256)), size(values.len() / width), 1],
        threads: size((width / 8).next_multiple_of(32)).min(256),
        shared_bytes: 0,
        arguments: vec![values.into(), bias.into(), size(width).into()],
    }
}

/// Attention inside tiles, from `qkv` `[tiles x tokens, 3 hidden]` to `out` `[tiles x tokens, hidden]`: by matrix products in bfloat16 for heads of 64 and
/// 80, the plain way otherwise.
pub fn attend<T: Stored>(config: &VisionConfig, tokens: usize, qkv: View<T>, out: View<T>) -> Launch {
    let head = config.hidden / config.heads;
    let tiles = out.len() / (tokens * config.hidden);
    assert!(qkv.len() >= 3 * tiles * tokens * config.hidden, "q, k and v of {tiles} tiles");
    assert!(head <= HEAD_MAX, "heads of {head} over {HEAD_MAX}");
    let fast = match head {
        64 => T::pick(None, Some("attend_image_64")),
        80 => T::pick(None, Some("attend_image_80")),
        _ => None,
    };
    let (kernel, queries) = match fast {
        Some(kernel) => (kernel, TOKENS),
        None => (T::pick("attend_image_f32", "attend_image_bf16"), WARPS),
    };
    let mut arguments = vec![qkv.into(), out.into(), size(tokens).into(), size(config.heads).into()];
    if fast.is_none() {
        arguments.push(size(head).into());
    }
    arguments.push((1.0 / (head as f32).sqrt()).into());
    let rows = [(TOKENS * (head + PAD), 2), (4 * TOKENS * (head + PAD), 2)];
    Launch {
        file: "attention_image.cu",
        kernel,
        grid: [size(config.heads), size(tokens.div_ceil(queries)), size(tiles)],
        threads: size(WARPS * 32),
        shared_bytes: fast.map_or(0, |_| shared_bytes(&rows)),
        arguments,
    }
}

/// From the residual stream `[tiles, prefixes + patches, hidden]` to the projector's rows `[tiles x rows, shuffle^2 hidden]`.
pub fn pixel_shuffle<T: Stored>(
    config: &VisionConfig,
    prefixes: usize,
    hidden: View<T>,
    out: View<T>,
) -> Launch {
    let (side, width) = (config.patches_side(), config.hidden);
    in_packs(width, "width of the tower");
    let tiles = hidden.len() / ((prefixes + side * side) * width);
    assert!(out.len() >= tiles * side * side * width, "rows of {tiles} tiles");
    Launch {
        file: "pixel_shuffle.cu",
        kernel: T::pick("pixel_shuffle_f32", "pixel_shuffle_bf16"),
        grid: [size((side / config.shuffle).pow(2)), size(tiles), 1],
        threads: 256,
        shared_bytes: 0,
        arguments: vec![
            hidden.into(),
            out.into(),
            size(prefixes).into(),
            size(side).into(),
            size(config.shuffle).into(),
            u32::from(config.shuffle_swapped).into(),
            size(width).into(),
        ],
    }
}
