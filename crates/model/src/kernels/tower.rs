//! Vector mathematics of the vision tower, a row at a time: LayerNorm and the exact GELU.

use super::isa::{InstructionSet, VectorOp};
use super::math::functions::{Gelu, UnaryFunction};
use super::vector::{LANES, Vector};

/// `out = (x - mean) / sqrt(variance + epsilon) * weight + bias` with the variance of all values.
///
/// Two passes over a row in the first-level cache: the mean first, then squares of differences, so
/// nothing cancels.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    InstructionSet::best().run(TowerLayerNorm { x, weight, bias, epsilon, out });
}

/// `value = gelu(value + bias)` with gelu(x) = x/2 (1 + erf(x / sqrt 2)).
pub(crate) fn bias_gelu(values: &mut [f32], bias: &[f32]) {
    InstructionSet::best().run(BiasGelu { values, bias });
}

struct TowerLayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl VectorOp for TowerLayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let count = self.x.len() as f32;
        let mean = sum_of::<V>(self.x) / count;
        let squares = sum_of_squares::<V>(self.x, mean);
        let scale = 1.0 / (squares / count + self.epsilon).sqrt();
        let rows = self.x.iter().zip(self.weight).zip(self.bias);
        for (out, ((x, weight), bias)) in self.out.iter_mut().zip(rows) {
            *out = (x - mean) * scale * weight + bias;
        }
    }
}

#[inline(always)]
fn sum_of<V: Vector>(values: &[f32]) -> f32 {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut sum = V::load_part(rest);
    for block in blocks {
        sum = sum.add(V::load(block));
    }
    sum.sum()
}

/// Sum of (value - mean)^2.
#[inline(always)]
fn sum_of_squares<V: Vector>(values: &[f32], mean: f32) -> f32 {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut differences = [0.0; LANES];
    for (difference, value) in differences.iter_mut().zip(rest) {
        *difference = value - mean;
    }
    let differences = V::load(&differences);
    let mean = V::splat(mean);
    let mut sum = differences.mul(differences);
    for block in blocks {
        let difference = V::load(block).sub(mean);
        sum = difference.fma(difference, sum);
    }
    sum.sum()
}

struct BiasGelu<'a> {
    values: &'a mut [f32],
    bias: &'a [f32],
}

impl VectorOp for BiasGelu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (blocks, rest) = self.values.as_chunks_mut::<LANES>();
        let (biases, rest_bias) = self.bias.as_chunks::<LANES>();
        for (block, bias) in blocks.iter_mut().zip(biases) {
            Gelu.of(V::load(block).add(V::load(bias))).store(block);
        }
        Gelu.of(V::load_part(rest).add(V::load_part(rest_bias))).store_part(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::gelu;

    #[test]
    fn the_bias_comes_before_gelu() {
        for width in [1, 15, 16, 37] {
            let bias: Vec<f32> = (0..width).map(|i| i as f32 * 0.25 - 2.0).collect();
            let mut values = vec![0.5; width];
            bias_gelu(&mut values, &bias);
            let mut want: Vec<f32> = bias.iter().map(|bias| bias + 0.5).collect();
            gelu(&mut want);
            assert_eq!(values, want);
        }
    }

    #[test]
    fn layer_norm_in_double_precision() {
        for width in [1, 15, 16, 48, 60, 1280] {
            let wave = |i: usize, step: f64| (i as f64 * step).sin();
            let x: Vec<f32> = (0..width).map(|i| (100.0 + wave(i, 0.7)) as f32).collect();
            let weight: Vec<f32> = (0..width).map(|i| 1.0 + wave(i, 0.3) as f32).collect();
            let bias: Vec<f32> = (0..width).map(|i| wave(i, 0.9) as f32).collect();
            let mut got = vec![0.0; width];
            layer_norm(&x, &weight, &bias, 1e-6, &mut got);
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / width as f64;
            for i in 0..width {
                let want = (f64::from(x[i]) - mean) / (variance + 1e-6).sqrt() * f64::from(weight[i])
                    + f64::from(bias[i]);
                assert!((f64::from(got[i]) - want).abs() < 5e-5, "{} for {want} of {width}", got[i]);
            }
        }
    }

    #[test]
    fn every_family_gives_the_same_bits() {
        let x: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).sin() * 6.0).collect();
        let bits = |isa: InstructionSet| -> Vec<u32> {
            let mut normed = vec![0.0; 100];
            let mut bent = x.clone();
            isa.run(TowerLayerNorm { x: &x, weight: &x, bias: &x, epsilon: 1e-6, out: &mut normed });
            isa.run(BiasGelu { values: &mut bent, bias: &x });
            normed.iter().chain(&bent).map(|value| value.to_bits()).collect()
        };
        for isa in InstructionSet::available() {
            assert_eq!(bits(isa), bits(InstructionSet::Portable), "{isa:?}");
        }
    }
}
