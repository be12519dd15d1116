//! The vision tower: `kernels/patches.cu`, `kernels/residual_layer_norm.cu`,
//! `kernels/attention_image.cu`, `kernels/bias_gelu.cu`, `kernels/pixel_shuffle.cu`.

use furrow_model::config::VisionConfig;

use super::assert_in_packs;
use crate::launch::{DeviceView, KernelLaunch, StoredElement, THREADS_MAX, shared_bytes, size};

/// Query tokens of a block of attention, and keys of a tile.
const TOKENS: usize = 64;
/// Warps of a block of attention; in the plain kernel each has a query token.
const WARPS: usize = 4;
/// Largest head size of the plain kernel.
pub(crate) const HEAD_MAX: usize = 256;
/// Padding of rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// Converts the pixels of some tiles to the residual stream, before and after the patch product.
#[derive(Debug, Clone, Copy)]
pub struct PatchLaunch<'a, T> {
    pub config: &'a VisionConfig,
    pub tiles: usize,
    /// `[tiles, 3, tile, tile]`.
    pub pixels: DeviceView<f32>,
    /// `[tiles x patches, 3 patch^2]`.
    pub patches: DeviceView<T>,
    /// Output of the product, `[tiles x patches, hidden]`.
    pub embedded: DeviceView<T>,
    /// Position of each patch, `[patches, hidden]`.
    pub positions: DeviceView<f32>,
    /// Prefix tokens, `[prefixes, hidden]`.
    pub prefix: DeviceView<T>,
    /// The residual stream, `[tiles, prefixes + patches, hidden]`.
    pub hidden: DeviceView<T>,
}

impl<T: StoredElement> PatchLaunch<'_, T> {
    /// Converts pixels to the rows of the product.
    pub fn cut(&self) -> KernelLaunch {
        let tile = self.config.tile;
        let side = self.config.patch;
        let count = self.count();
        assert!(self.pixels.len() >= self.tiles * 3 * tile * tile, "pixels of {} tiles", self.tiles);
        assert!(self.patches.len() >= self.tiles * count * 3 * side * side, "output for all patches");
        KernelLaunch {
            file: "patches.cu",
            kernel: T::pick("cut_patches_f32", "cut_patches_bf16"),
            grid: [size(count), size(self.tiles), 1],
            threads: size((3 * side * side).next_multiple_of(32)).min(256),
            shared_bytes: 0,
            arguments: vec![self.pixels.into(), self.patches.into(), size(tile).into(), size(side).into()],
        }
    }

    /// Writes the rows of the product to the residual stream.
    pub fn write_residual(&self) -> KernelLaunch {
        let width = self.config.hidden;
        let count = self.count();
        assert_in_packs(width, "width of the tower");
        let prefixes = self.prefix.len() / width;
        assert!(self.embedded.len() >= self.tiles * count * width, "rows of all patches");
        assert!(self.positions.len() >= count * width, "one position for each patch");
        assert!(self.hidden.len() >= self.tiles * (prefixes + count) * width, "one row for each token");
        KernelLaunch {
            file: "patches.cu",
            kernel: T::pick("write_residual_f32", "write_residual_bf16"),
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
    pub residual: DeviceView<T>,
    /// Output of a product, `[m, width]`, and its bias `[width]`; `None` if there was none.
    pub delta: Option<[DeviceView<T>; 2]>,
    pub weight: DeviceView<T>,
    pub shift: DeviceView<T>,
    /// `[m, width]`; `None` after the last block, which is not normed.
    pub out: Option<DeviceView<T>>,
    /// Epsilon of the norm.
    pub epsilon: f32,
}

impl<T: StoredElement> ResidualLayerNorm<T> {
    pub fn launch(&self) -> KernelLaunch {
        let width = self.weight.len();
        assert_in_packs(width, "width of a norm");
        assert_eq!(self.shift.len(), width, "one shift for each scale");
        let rows = self.residual.len() / width;
        let full = |view: &DeviceView<T>| view.len() >= rows * width;
        assert!(
            self.delta.is_none_or(|[delta, bias]| full(&delta) && bias.len() == width),
            "deltas of {rows} rows"
        );
        assert!(self.out.is_none_or(|out| full(&out)), "outputs of {rows} rows");
        let [delta, bias] = [0, 1].map(|at| self.delta.map(|both| both[at]));
        KernelLaunch {
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
pub fn bias_gelu<T: StoredElement>(values: DeviceView<T>, bias: DeviceView<T>) -> KernelLaunch {
    let width = bias.len();
    assert_in_packs(width, "width of an MLP");
    KernelLaunch {
        file: "bias_gelu.cu",
        kernel: T::pick("bias_gelu_f32", "bias_gelu_bf16"),
        grid: [size((width / 8).div_ceil(256)), size(values.len() / width), 1],
        threads: size((width / 8).next_multiple_of(32)).min(256),
        shared_bytes: 0,
        arguments: vec![values.into(), bias.into(), size(width).into()],
    }
}

/// Attention inside tiles, from `qkv` `[tiles x tokens, 3 hidden]` to `out`
/// `[tiles x tokens, hidden]`: by matrix products in bfloat16 for heads of 64 and 80, otherwise
/// with the plain kernel.
pub fn attend<T: StoredElement>(
    config: &VisionConfig,
    tokens: usize,
    qkv: DeviceView<T>,
    out: DeviceView<T>,
) -> KernelLaunch {
    let head = config.hidden / config.heads;
    let tiles = out.len() / (tokens * config.hidden);
    assert!(qkv.len() >= 3 * tiles * tokens * config.hidden, "q, k and v of {tiles} tiles");
    assert!(head <= HEAD_MAX, "heads of {head}, more than {HEAD_MAX}");
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
    KernelLaunch {
        file: "attention_image.cu",
        kernel,
        grid: [size(config.heads), size(tokens.div_ceil(queries)), size(tiles)],
        threads: size(WARPS * 32),
        shared_bytes: fast.map_or(0, |_| shared_bytes(&rows)),
        arguments,
    }
}

/// From the residual stream `[tiles, prefixes + patches, hidden]` to the projector's rows
/// `[tiles x rows, shuffle^2 hidden]`.
pub fn pixel_shuffle<T: StoredElement>(
    config: &VisionConfig,
    prefixes: usize,
    hidden: DeviceView<T>,
    out: DeviceView<T>,
) -> KernelLaunch {
    let side = config.patches_side();
    let width = config.hidden;
    assert_in_packs(width, "width of the tower");
    let tiles = hidden.len() / ((prefixes + side * side) * width);
    assert!(out.len() >= tiles * side * side * width, "rows of {tiles} tiles");
    KernelLaunch {
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
