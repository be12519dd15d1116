//! The rows of inputs in the order in which the register blocks read them.

use super::grid::DEPTH;
use crate::kernels::buffer::AlignedBuffer;
use crate::kernels::isa::{InstructionSet, VectorOp};
use crate::kernels::matrix::{PackedFormat, PackedMatrix};
use crate::kernels::{ThreadPool, vector::Vector};

/// Rows of inputs, unchanged or rearranged: the values of one segment of DEPTH steps for all rows,
/// then the next segment. Rows a power of two apart would otherwise compete for the same few sets
/// of a cache.
pub(super) struct InputRows<'a> {
    values: &'a [f32],
    /// Values from a row to the next.
    pub row_stride: usize,
    /// Values from a segment of DEPTH steps to the next.
    segment_stride: usize,
}

impl<'a> InputRows<'a> {
    /// Rearranges into `scratch` where necessary, and rounds the values to bfloat16 if `rounded`.
    pub(super) fn prepare(
        isa: InstructionSet,
        rounded: bool,
        matrix: &PackedMatrix,
        team: &ThreadPool,
        x: &'a [f32],
        rows: usize,
        scratch: &'a mut AlignedBuffer,
    ) -> Self {
        let segment = DEPTH * weights_a_step(matrix.stored);
        if !rounded && rows <= AS_THEY_CAME_MAX {
            return Self { values: x, row_stride: matrix.input, segment_stride: segment };
        }
        let segments = matrix.input.div_ceil(segment);
        scratch.grow(segments * rows * segment);
        let values = &mut scratch.as_f32_mut()[..segments * rows * segment];
        let lines = rows.div_ceil(team.threads());
        team.pieces(values, lines * segment, |piece, values| {
            isa.run(RowRearranger {
                x,
                input: matrix.input,
                segment,
                rows,
                rounded,
                first: piece * lines,
                values,
            });
        });
        Self { values, row_stride: segment, segment_stride: rows * segment }
    }

    /// The inputs of a row from a step on, which begins a segment.
    pub(super) fn at(&self, row: usize, from: usize) -> *const f32 {
        self.values[row * self.row_stride + from / DEPTH * self.segment_stride..].as_ptr()
    }
}

/// Rows that are read in place: one register block, read once a panel.
const AS_THEY_CAME_MAX: usize = 12;

/// Inputs of a step.
fn weights_a_step(stored: PackedFormat) -> usize {
    match stored {
        PackedFormat::Float32 => 1,
        PackedFormat::Bfloat16 => 2,
    }
}

/// Copies a range of lines; a line is one row of one segment.
struct RowRearranger<'a> {
    x: &'a [f32],
    input: usize,
    segment: usize,
    rows: usize,
    rounded: bool,
    first: usize,
    values: &'a mut [f32],
}

impl VectorOp for RowRearranger<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (line, segment_values) in self.values.chunks_exact_mut(self.segment).enumerate() {
            let segment = (self.first + line) / self.rows;
            let row = (self.first + line) % self.rows;
            let from = &self.x[row * self.input..][..self.input];
            let from = &from[segment * self.segment..self.input.min((segment + 1) * self.segment)];
            let segment_values = &mut segment_values[..from.len()];
            if self.rounded {
                segment_values
                    .iter_mut()
                    .zip(from)
                    .for_each(|(slot_value, value)| *slot_value = f32::from_bits(rounded(*value) << 16));
            } else {
                segment_values.copy_from_slice(from);
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
