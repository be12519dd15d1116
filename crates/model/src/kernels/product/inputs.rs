//! The rows of inputs as the register blocks read them.

use super::{DEPTH, Kernel, Matrix};
use crate::kernels::buffer::Buffer;
use crate::kernels::matrix::Stored;
use crate::kernels::{Team, isa::Op, vector::Vector};

/// Rows of inputs, as they came or rearranged: the values of one stretch of DEPTH steps for all rows, then the next stretch. Rows a power
/// of two apart would otherwise fight for the same few sets of a cache.
pub(super) struct Inputs<'a> {
    words: &'a [f32],
    /// Words from a row to the next.
    pub row_stride: usize,
    /// Words from a stretch of DEPTH steps to the next.
    stretch_stride: usize,
}

impl<'a> Inputs<'a> {
    /// Rearranges what needs it, into `scratch`.
    pub(super) fn prepare(
        kernel: Kernel,
        matrix: &Matrix,
        team: &Team,
        x: &'a [f32],
        rows: usize,
        scratch: &'a mut Buffer,
    ) -> Self {
        let stretch = DEPTH * weights_a_step(matrix.stored);
        let rounded = matches!(kernel, Kernel::RoundedChain(_));
        if !rounded && rows <= AS_THEY_CAME_MAX {
            return Self { words: x, row_stride: matrix.input, stretch_stride: stretch };
        }
        let stretches = matrix.input.div_ceil(stretch);
        scratch.grow(stretches * rows * stretch);
        let words = &mut scratch.as_f32_mut()[..stretches * rows * stretch];
        let lines = rows.div_ceil(team.threads());
        team.pieces(words, lines * stretch, |piece, words| {
            kernel.isa().run(Rearrange {
                x,
                input: matrix.input,
                stretch,
                rows,
                rounded,
                first: piece * lines,
                words,
            });
        });
        Self { words, row_stride: stretch, stretch_stride: rows * stretch }
    }

    /// The inputs of a row from a step on, which begins a stretch.
    pub(super) fn at(&self, row: usize, from: usize) -> *const f32 {
        self.words[row * self.row_stride + from / DEPTH * self.stretch_stride..].as_ptr()
    }
}

/// Rows that are read where they are: one register block, read once a panel.
const AS_THEY_CAME_MAX: usize = 12;

/// Inputs a step takes.
fn weights_a_step(stored: Stored) -> usize {
    match stored {
        Stored::Float32 => 1,
        Stored::Bfloat16 => 2,
    }
}

/// Copies a run of lines, a line being one row of one stretch.
struct Rearrange<'a> {
    x: &'a [f32],
    input: usize,
    stretch: usize,
    rows: usize,
    rounded: bool,
    first: usize,
    words: &'a mut [f32],
}

impl Op for Rearrange<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (line, words) in self.words.chunks_exact_mut(self.stretch).enumerate() {
            let (stretch, row) = ((self.first + line) / self.rows, (self.first + line) % self.rows);
            let from = &self.x[row * self.input..][..self.input];
            let from = &from[stretch * self.stretch..self.input.min((stretch + 1) * self.stretch)];
            let words = &mut words[..from.len()];
            if self.rounded {
                words
                    .iter_mut()
                    .zip(from)
                    .for_each(|(word, value)| *word = f32::from_bits(rounded(*value) << 16));
            } else {
                words.copy_from_slice(from);
            }
        }
    }
}

/// The bfloat16 bits nearest to a value, ties to even; NaN stays NaN.
#[inline(always)]
pub(super) fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { bits >> 16 | 0x40 } else { nearest }
}
