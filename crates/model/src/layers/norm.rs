//! RMS norm, and the gated group norm at the end of a Mamba-2 mixer.

use super::ComputeContext;
use crate::kernels::math;

/// `y = w .* x / sqrt(mean(x^2) + eps)` for each row of `w.len()` values.
pub fn rms(crew: ComputeContext<'_>, x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32]) {
    let width = weight.len();
    crew.rows(y, width, |row, y| math::rms_norm(&x[row * width..][..width], weight, epsilon, y));
}

/// One row, in place: `g = y .* silu(z)`, then RMS over each of the groups separately, times the
/// weight. The gate comes before the norm.
pub fn gated_row(y: &mut [f32], z: &[f32], weight: &[f32], groups: usize, epsilon: f32) {
    math::gate(y, z);
    let width = y.len() / groups;
    for (y, weight) in y.chunks_exact_mut(width).zip(weight.chunks_exact(width)) {
        let scale = 1.0 / (math::dot(y, y) / width as f32 + epsilon).sqrt();
        y.iter_mut().zip(weight).for_each(|(y, weight)| *y = *y * scale * weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{ProductPrecision, ThreadPool};

    #[track_caller]
    fn check(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() <= 1e-6 * want.abs().max(1e-3), "{got} for {want}");
        }
    }

    #[test]
    fn rms_divides_by_the_root_of_the_mean_square_with_epsilon_inside() {
        let mut y = [0.0; 4];
        let team = ThreadPool::new(1);
        let crew = ComputeContext { team: &team, compute: ProductPrecision::Float32 };
        rms(crew, &[1.0, -2.0, 3.0, -4.0], &[1.0, 1.0, 2.0, 0.5], 0.5, &mut y);
        let root = (7.5_f64 + 0.5).sqrt();
        check(&y, &[1.0 / root, -2.0 / root, 6.0 / root, -2.0 / root]);
    }

    #[test]
    fn the_gate_comes_first_and_groups_are_normed_apart() {
        let mut y = [1.0, 2.0, 300.0, 400.0];
        let z = [0.5_f32, -1.0, 2.0, 0.0];
        gated_row(&mut y, &z, &[1.0, 2.0, 3.0, 4.0], 2, 1e-5);
        let gate = |y: f64, z: f64| y * z / (1.0 + (-z).exp());
        let g = [gate(1.0, 0.5), gate(2.0, -1.0), gate(300.0, 2.0), gate(400.0, 0.0)];
        let root = |a: f64, b: f64| ((a * a + b * b) / 2.0 + 1e-5).sqrt();
        let first = root(g[0], g[1]);
        let second = root(g[2], g[3]);
        check(&y, &[g[0] / first, 2.0 * g[1] / first, 3.0 * g[2] / second, 0.0]);
    }
}
