//! Squared-ReLU MLP: `W_down r` with `r_j = max(0, (W_up u)_j)^2`, without a gate.

use super::ComputeContext;
use crate::kernels::math;
use crate::weights::MlpWeights;

/// `out[m, H] = W_down relu2(W_up x)`; `wide` takes `m` rows of the inner width.
pub fn forward(crew: ComputeContext<'_>, weights: &MlpWeights, x: &[f32], wide: &mut [f32], out: &mut [f32]) {
    crew.product(&weights.up, x, wide);
    crew.rows(wide, weights.up.out(), |_, row| math::squared_relu(row));
    crew.product(&weights.down, wide, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{PackedMatrix, ProductPrecision, ThreadPool};

    #[test]
    fn negative_values_become_zero_and_nan_stays() {
        let up = PackedMatrix::from_f32(2, 1, &[1.0, -1.0]);
        let weights = MlpWeights { up, down: PackedMatrix::from_f32(1, 2, &[1.0, 10.0]) };
        let team = ThreadPool::new(1);
        let crew = ComputeContext { team: &team, compute: ProductPrecision::Float32 };
        let mut wide = [0.0; 6];
        let mut out = [0.0; 3];
        forward(crew, &weights, &[3.0, -2.0, f32::NAN], &mut wide, &mut out);
        assert_eq!(out[..2], [9.0, 40.0]);
        assert!(out[2].is_nan());
    }
}
