//! The mathematics of each layer: the definition of correct results, which every faster form must
//! match.
//!
//! For a hot loop, this module has the plain definition and `kernels` the same in vectors; a test
//! beside the definition compares the two.
//!
//! Every function here computes a row's result from that row alone, by sums in one fixed order:
//! batching, cuts and threads do not change a single bit.

pub mod attention;
pub mod conv;
pub mod embed;
pub mod mlp;
pub mod moe;
pub mod norm;
pub mod ssm;
pub mod ssm_chunked;

use crate::kernels::{PackedMatrix, ProductPrecision, ThreadPool, math};

/// The threads and the precision of a computation.
#[derive(Debug, Clone, Copy)]
pub struct ComputeContext<'a> {
    /// Threads that run an operation.
    pub team: &'a ThreadPool,
    pub compute: ProductPrecision,
}

impl ComputeContext<'_> {
    /// `y[m, out] = x[m, in] W^T`.
    pub fn product(&self, matrix: &PackedMatrix, x: &[f32], y: &mut [f32]) {
        matrix.product(self.team, self.compute, x, y);
    }

    /// Calls `work(index, row)` for each row of `width` values; the rows are distributed in pieces
    /// that are worth waking a thread for.
    pub fn rows(&self, values: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        // Waking a thread takes about 5 us, in which one core processes about 8,192 values with a
        // few operations each.
        let rows = 8192_usize.div_ceil(width);
        self.team.pieces(values, rows * width, |piece, values| {
            values
                .chunks_exact_mut(width)
                .enumerate()
                .for_each(|(row, values)| work(piece * rows + row, values));
        });
    }
}

/// Adds `delta` to `values`, both in rows of `width` values.
pub fn add(crew: ComputeContext<'_>, values: &mut [f32], delta: &[f32], width: usize) {
    crew.rows(values, width, |row, values| math::add(values, &delta[row * width..][..values.len()]));
}

pub(crate) fn sigmoid(v: f32) -> f32 {
    1.0 / (1.0 + (-v).exp())
}

pub fn silu(v: f32) -> f32 {
    v * sigmoid(v)
}

/// ln(1 + e^v), without overflow.
pub(crate) fn softplus(v: f32) -> f32 {
    v.max(0.0) + (-v.abs()).exp().ln_1p()
}

/// Sum of a_i b_i, in order.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum))
}
