//! The register block: some rows by one panel, all sums in registers.
#![allow(unsafe_code)]

use super::schemes::StepScheme;
use crate::kernels::matrix::PANEL;
use crate::kernels::vector::{LANES, Vector};

/// Operands of a register block.
#[derive(Debug, Clone, Copy)]
pub(super) struct RegisterBlock {
    pub steps: usize,
    /// The last step has one input instead of two.
    pub half: bool,
    /// First step of the panel.
    pub weights: *const u32,
    /// First step of the first row, and 32-bit values from row to row.
    pub inputs: *const f32,
    pub inputs_stride: usize,
    /// First sum of the first row, and values from row to row.
    pub sums: *mut f32,
    pub sums_stride: usize,
    /// Whether the sums continue from `sums` or begin at zero.
    pub begun: bool,
}

impl RegisterBlock {
    /// Computes `rows` rows by 32 outputs.
    ///
    /// SAFETY: `rows` is 1 to `V::BLOCK[0]`; `steps` steps can be read at `weights` and in each row
    /// of `inputs`; 32 values of each row can be read and written at `sums`, by this thread alone.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector, S: StepScheme<V>>(&self, rows: usize) {
        /// One match arm for each number of rows, so that each keeps its sums in registers.
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match rows {
                    // SAFETY: the contract of `run`.
                    $($rows if $rows <= V::BLOCK[0] => unsafe { self.rows::<V, S, $rows>() },)*
                    _ => unreachable!("a block of {rows} rows"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
    }

    /// SAFETY: as `run`, for M rows.
    #[inline(always)]
    unsafe fn rows<V: Vector, S: StepScheme<V>, const M: usize>(&self) {
        if V::BLOCK[1] == 2 {
            // SAFETY: the contract of `run`.
            unsafe { self.columns::<V, S, M, 2>(0) };
        } else {
            for column in (0..PANEL).step_by(LANES) {
                // SAFETY: the contract of `run`.
                unsafe { self.columns::<V, S, M, 1>(column) };
            }
        }
    }

    /// M rows by N vectors, starting at a column of the panel.
    ///
    /// SAFETY: as `run`, for M rows.
    #[inline(always)]
    unsafe fn columns<V: Vector, S: StepScheme<V>, const M: usize, const N: usize>(&self, column: usize) {
        let weights = self.weights.cast::<f32>().wrapping_add(column);
        let mut sums = [[V::zero(); N]; M];
        // SAFETY: by the contract of `run` every address below is in the panel, the inputs or the
        // sums.
        unsafe {
            if self.begun {
                each!(row < M, {
                    sums[row] = load(self.sums.add(row * self.sums_stride + column));
                });
            }
            let whole = self.steps - usize::from(self.half);
            for step in 0..whole {
                let packed = load(weights.add(step * PANEL));
                let inputs = self.inputs.add(step * S::WEIGHTS);
                S::step::<M, N, false>(&mut sums, packed, inputs, self.inputs_stride);
            }
            if self.half {
                let packed = load(weights.add(whole * PANEL));
                let inputs = self.inputs.add(whole * S::WEIGHTS);
                S::step::<M, N, true>(&mut sums, packed, inputs, self.inputs_stride);
            }
            each!(row < M, {
                each!(vector < N, {
                    sums[row][vector]
                        .store_at(self.sums.add(row * self.sums_stride + column + vector * LANES));
                });
            });
        }
    }
}

/// N vectors.
///
/// SAFETY: they can be read at `from`.
#[inline(always)]
unsafe fn load<V: Vector, const N: usize>(from: *const f32) -> [V; N] {
    let mut vectors = [V::zero(); N];
    each!(vector < N, {
        // SAFETY: by the contract above.
        vectors[vector] = unsafe { V::load_at(from.add(vector * LANES)) };
    });
    vectors
}
