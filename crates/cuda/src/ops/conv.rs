//! The causal convolution: `kernels/causal_conv.cu`.

use super::{Rows, Slots};
use crate::launch::{Launch, Span, Stored, Tile, View, size};

/// Taps the kernel is made for; every published model has as many.
pub const KERNEL: usize = 4;
/// Rows of a tile.
pub const TILE_ROWS: u32 = 16;
/// Threads of a block, with 4 channels each.
const THREADS: u32 = 256;

/// `c_t = silu(bias + sum_k w[k] .* in_{t-3+k})` over spans; the state moves behind them.
#[derive(Debug, Clone, Copy)]
pub struct CausalConv<T> {
    /// x | B | C, a slice of in_proj's rows.
    pub input: Rows<T>,
    /// Of each slot `[KERNEL - 1, width]`, oldest first.
    pub state: Slots<T>,
    /// The batch.
    pub spans: View<Span>,
    /// Its tiles of `TILE_ROWS` rows; those behind a span's end do nothing.
    pub tiles: View<Tile>,
    /// `[KERNEL, width]`, the present token's last.
    pub taps: View<T>,
    /// `[width]`.
    pub bias: View<T>,
    /// `[m, width]`.
    pub out: View<T>,
}

impl<T: Stored> CausalConv<T> {
    /// The launch.
    pub fn launch(&self) -> Launch {
        let width = self.bias.len();
        // A thread has 4 channels, and moves them at once.
        assert!(width > 0 && width.is_multiple_of(4), "channels: {width} is no multiple of 4");
        assert_eq!(self.taps.len(), KERNEL * width, "{KERNEL} taps a channel");
        self.input.hold(width, "inputs");
        self.state.hold((KERNEL - 1) * width, "convolution");
        let ([input, stride], [state, slot_stride]) = (self.input.arguments(), self.state.arguments());
        Launch {
            file: "causal_conv.cu",
            kernel: T::pick("causal_conv_f32", "causal_conv_bf16"),
            grid: [size(width.div_ceil(4)).div_ceil(THREADS), size(self.tiles.len()), 1],
            threads: THREADS,
            shared_bytes: 0,
            arguments: vec![
                input,
                stride,
                state,
                slot_stride,
                self.spans.into(),
                self.tiles.into(),
                self.taps.into(),
                self.bias.into(),
                self.out.into(),
                size(width).into(),
            ],
        }
    }
}
