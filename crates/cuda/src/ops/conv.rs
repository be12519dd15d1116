//! The causal convolution: `kernels/causal_conv.cu`.

use super::{DeviceRows, DeviceSlots};
use crate::launch::{DeviceView, KernelLaunch, RowSpan, SpanTile, StoredElement, size};

/// Taps that the kernel supports; every published model has this number.
pub const KERNEL: usize = 4;
/// Rows of a tile.
pub const TILE_ROWS: u32 = 16;
/// Threads of a block, with 4 channels each.
const THREADS: u32 = 256;

/// `c_t = silu(bias + sum_k w[k] .* in_{t-3+k})` over spans; updates the state to the end of each
/// span.
#[derive(Debug, Clone, Copy)]
pub struct CausalConvLaunch<T> {
    /// x | B | C, a slice of in_proj's rows.
    pub input: DeviceRows<T>,
    /// For each slot `[KERNEL - 1, width]`, oldest first.
    pub state: DeviceSlots<T>,
    pub spans: DeviceView<RowSpan>,
    /// Its tiles of `TILE_ROWS` rows; those after a span's end do nothing.
    pub tiles: DeviceView<SpanTile>,
    /// `[KERNEL, width]`, the last row for the current token.
    pub taps: DeviceView<T>,
    pub bias: DeviceView<T>,
    pub out: DeviceView<T>,
}

impl<T: StoredElement> CausalConvLaunch<T> {
    pub fn launch(&self) -> KernelLaunch {
        let width = self.bias.len();
        // A thread has 4 channels, and moves them together.
        assert!(width > 0 && width.is_multiple_of(4), "channels: {width} is not a multiple of 4");
        assert_eq!(self.taps.len(), KERNEL * width, "{KERNEL} taps a channel");
        self.input.assert_width(width, "inputs");
        self.state.assert_width((KERNEL - 1) * width, "convolution");
        let [input, stride] = self.input.arguments();
        let [state, slot_stride] = self.state.arguments();
        KernelLaunch {
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
