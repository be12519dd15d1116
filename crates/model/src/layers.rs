//! One layer's mathematics each: what is correct, and what every faster form is held to.
//!
//! Where a loop is hot the plain definition stands here and `kernels` has the same in vectors; a test beside the definition holds the two
//! together.
//!
//! Every function here gives a row's result from that row alone, by sums in one fixed order: how rows are batched, cut or shared among
//! threads does not show in a single bit.

pub mod attention;
pub mod conv;
pub mod embed;
pub mod mlp;
pub mod moe;
pub mod norm;
pub mod ssm;
pub mod ssm_chunked;

use crate::kernels::{Compute, Matrix, Team, math};

/// Who computes, and in what.
#[derive(Debug, Clone, Copy)]
pub struct Crew<'a> {
    /// Threads that share an operation.
    pub team: &'a Team,
    /// What products are computed in.
    pub compute: Compute,
}

impl Crew<'_> {
    /// `y[m, out] = x[m, in] W^T`.
    pub fn product(&self, matrix: &Matrix, x: &[f32], y: &mut [f32]) {
        matrix.product(self.team, self.compute, x, y);
    }

    /// Calls `work(index, row)` for each row of `width` values; rows are shared out in pieces worth waking a thread for.
    pub fn rows(&self, values: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        // A thread is woken in about 5 us, in which one core touches some 8,192 values with a few operations each.
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
pub fn add(crew: Crew<'_>, values: &mut [f32], delta: &[f32], width: usize) {
    crew.rows(values, width, |row, values| math::add(values, &delta[row * width..][..values.len()]));
}

/// 1 / (1 + e^-v).
pub fn sigmoid(v: f32) -> f32 {
    1.0 / (1.0 + (-v).exp())
}

/// v sigmoid(v).
pub fn silu(v: f32) -> f32 {
    v * sigmoid(v)
}

/// ln(1 + e^v), without overflow.
pub fn softplus(v: f32) -> f32 {
    v.max(0.0) + (-v.abs()).exp().ln_1p()
}

/// Sum of a_i b_i, in order.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum))
}
