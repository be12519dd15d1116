//! A weight matrix, packed for products with few and with many rows.
//!
//! A matrix is packed once when it is loaded and then always streamed in that order: panels of 32
//! outputs, in each panel all inputs in order, 32 values each. A product with one row of inputs
//! then reads every weight once, front to back (the lower bound of decode: bytes of weights /
//! memory bandwidth).
//!
//! ```text
//! float32    [out / 32][input    ][32]       one weight in each 32-bit value
//! bfloat16   [out / 32][input / 2][32][2]    two weights of neighbouring inputs, the even one low;
//!                                            a panel is padded to 32 inputs
//! ```
//!
//! Outputs and inputs that pad the shape are zeros and never reach a result.

use super::buffer::AlignedBuffer;

/// `[out, in]`, applied as `W x`.
pub struct PackedMatrix {
    pub(super) out: usize,
    pub(super) input: usize,
    pub(super) stored: PackedFormat,
    pub(super) packed: AlignedBuffer,
}

/// Contents of a 32-bit value of a packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackedFormat {
    Float32,
    /// Two bfloat16 weights of neighbouring inputs.
    Bfloat16,
}

/// Outputs of a panel: two registers of AVX-512.
pub(super) const PANEL: usize = 32;

impl PackedMatrix {
    /// Packs float32 values in row order.
    pub fn from_f32(out: usize, input: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), out * input, "a matrix of {out} x {input}");
        let mut packed = AlignedBuffer::new(out.next_multiple_of(PANEL) * input);
        for (output, row) in values.chunks_exact(input.max(1)).enumerate() {
            let panel = &mut packed[output / PANEL * PANEL * input..];
            for (lane, value) in panel.iter_mut().skip(output % PANEL).step_by(PANEL).zip(row) {
                *lane = value.to_bits();
            }
        }
        Self { out, input, stored: PackedFormat::Float32, packed }
    }

    /// Packs bfloat16 bits in row order and keeps them in bfloat16.
    pub fn from_bf16(out: usize, input: usize, bits: &[u16]) -> Self {
        assert_eq!(bits.len(), out * input, "a matrix of {out} x {input}");
        let steps = panel_steps(PackedFormat::Bfloat16, input);
        let mut packed = AlignedBuffer::new(out.next_multiple_of(PANEL) * steps);
        for (output, row) in bits.chunks_exact(input.max(1)).enumerate() {
            let panel = &mut packed[output / PANEL * PANEL * steps..];
            for (lane, pair) in panel.iter_mut().skip(output % PANEL).step_by(PANEL).zip(row.chunks(2)) {
                *lane = u32::from(pair[0]) | pair.get(1).map_or(0, |odd| u32::from(*odd) << 16);
            }
        }
        Self { out, input, stored: PackedFormat::Bfloat16, packed }
    }

    /// Rows of the matrix: outputs of one product.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Columns of the matrix: inputs of one product.
    pub fn input(&self) -> usize {
        self.input
    }

    /// Bytes that it takes in memory, and that a product with few rows moves.
    pub fn bytes(&self) -> usize {
        self.packed.len() * 4
    }

    /// Length of one panel in 32-bit values.
    pub(super) fn panel_len(&self) -> usize {
        PANEL * self.panel_steps()
    }

    /// 32-bit values of one output in a panel.
    pub(super) fn panel_steps(&self) -> usize {
        panel_steps(self.stored, self.input)
    }

    /// Those of them that hold weights.
    pub(super) fn steps(&self) -> usize {
        match self.stored {
            PackedFormat::Float32 => self.input,
            PackedFormat::Bfloat16 => self.input.div_ceil(2),
        }
    }
}

/// 32-bit values of one output in a panel.
fn panel_steps(stored: PackedFormat, input: usize) -> usize {
    match stored {
        PackedFormat::Float32 => input,
        PackedFormat::Bfloat16 => input.div_ceil(2).next_multiple_of(16),
    }
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {}, {:?})", self.out, self.input, self.stored)
    }
}
