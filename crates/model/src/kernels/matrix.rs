//! A weight matrix, packed for products with few and with many rows.
//!
//! Packed once when it is loaded, streamed in that order ever after: panels of 32 outputs, inside a panel all inputs in order, 32 values
//! each. One row of inputs then reads every weight once, front to back (the floor of decode: bytes of weights / memory bandwidth).
//!
//! ```text
//! float32    [out / 32][input    ][32]       one word a weight
//! bfloat16   [out / 32][input / 2][32][2]    one word two weights of neighbouring inputs, the even one in the lower half; a panel
//!                                            ends on a whole 32 inputs, as the tiles of AMX want it
//! ```
//!
//! Outputs and inputs that round the shape up are zeros and never reach a result.

use super::Team;
use super::buffer::Buffer;
use super::product::{self, Kernel};

/// What a product is computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compute {
    /// Inputs as they are, weights widened: float32 throughout.
    #[default]
    Float32,
    /// Inputs rounded to bfloat16, for bfloat16 weights only; sums in float32. Float32 weights are computed in float32 all the same.
    Bfloat16,
}

/// `[out, in]`, applied as `W x`.
pub struct Matrix {
    pub(super) out: usize,
    pub(super) input: usize,
    pub(super) stored: Stored,
    pub(super) words: Buffer,
}

/// What a word of a packed matrix holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// A float32 weight.
    Float32,
    /// Two bfloat16 weights of neighbouring inputs.
    Bfloat16,
}

/// Outputs of a panel: two registers of AVX-512.
pub(super) const PANEL: usize = 32;

impl Matrix {
    /// Packs float32 values given by row.
    pub fn from_f32(out: usize, input: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), out * input, "a matrix of {out} x {input}");
        let mut words = Buffer::new(out.next_multiple_of(PANEL) * input);
        for (output, row) in values.chunks_exact(input.max(1)).enumerate() {
            let panel = &mut words[output / PANEL * PANEL * input..];
            for (word, value) in panel.iter_mut().skip(output % PANEL).step_by(PANEL).zip(row) {
                *word = value.to_bits();
            }
        }
        Self { out, input, stored: Stored::Float32, words }
    }

    /// Packs bfloat16 bits given by row, and keeps them as such.
    pub fn from_bf16(out: usize, input: usize, bits: &[u16]) -> Self {
        assert_eq!(bits.len(), out * input, "a matrix of {out} x {input}");
        let steps = panel_steps(Stored::Bfloat16, input);
        let mut words = Buffer::new(out.next_multiple_of(PANEL) * steps);
        for (output, row) in bits.chunks_exact(input.max(1)).enumerate() {
            let panel = &mut words[output / PANEL * PANEL * steps..];
            for (word, pair) in panel.iter_mut().skip(output % PANEL).step_by(PANEL).zip(row.chunks(2)) {
                *word = u32::from(pair[0]) | pair.get(1).map_or(0, |odd| u32::from(*odd) << 16);
            }
        }
        Self { out, input, stored: Stored::Bfloat16, words }
    }

    /// Rows of the matrix: values of one product.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Columns of the matrix: values one product takes.
    pub fn input(&self) -> usize {
        self.input
    }

    /// Bytes it takes in memory, and moves in a product with few rows.
    pub fn bytes(&self) -> usize {
        self.words.len() * 4
    }

    /// `y[m, out] = x[m, in] W^T` for any number of rows m. In float32 each element is
    /// `fma(w[k], x[k], … fma(w[1], x[1], fma(w[0], x[0], 0)))`; in bfloat16 an order that the machine alone decides.
    pub fn product(&self, team: &Team, compute: Compute, x: &[f32], y: &mut [f32]) {
        self.product_by(Kernel::best(self.stored, compute), team, x, y);
    }

    /// The product by a kernel of one's choice.
    pub(super) fn product_by(&self, kernel: Kernel, team: &Team, x: &[f32], y: &mut [f32]) {
        let rows = y.len() / self.out.max(1);
        assert_eq!(
            y.len(),
            rows * self.out,
            "outputs of {rows} rows by a matrix of {} x {}",
            self.out,
            self.input
        );
        assert_eq!(
            x.len(),
            rows * self.input,
            "inputs of {rows} rows by a matrix of {} x {}",
            self.out,
            self.input
        );
        product::product(self, kernel, team, x, y);
    }

    /// Words of one panel.
    pub(super) fn panel_words(&self) -> usize {
        PANEL * self.panel_steps()
    }

    /// Words of one output in a panel.
    pub(super) fn panel_steps(&self) -> usize {
        panel_steps(self.stored, self.input)
    }

    /// Those among them that hold weights.
    pub(super) fn steps(&self) -> usize {
        match self.stored {
            Stored::Float32 => self.input,
            Stored::Bfloat16 => self.input.div_ceil(2),
        }
    }
}

/// Words of one output in a panel.
fn panel_steps(stored: Stored, input: usize) -> usize {
    match stored {
        Stored::Float32 => input,
        Stored::Bfloat16 => input.div_ceil(2).next_multiple_of(16),
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {}, {:?})", self.out, self.input, self.stored)
    }
}
