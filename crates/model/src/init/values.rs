//! The random values of a tensor: one seed gives the same bytes on every machine.
//!
//! Each tensor has a stream of its own, keyed by seed and tensor, so that another layer changes no
//! other tensor. Bell-shaped values use integers only; only `A_log` and `dt_bias` need a logarithm,
//! in float64 before rounding to float32.

use std::ops::Range;

use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use super::stored_type::StoredType;
use super::tensors::{TensorSpec, ValueDistribution};

/// Standard deviation of the sum of four uniform numbers in 0..65536: sqrt(4 (65536^2 - 1) / 12).
const SUM_SPREAD: f64 = 37_837.227_249_1;
/// Mean of that sum.
const SUM_MEAN: f64 = 2.0 * 65_535.0;

/// 32-bit numbers that each value takes from its stream.
const STREAM_U32S: u128 = 2;

/// Replaces `bytes` by the little-endian bytes of some of a tensor's values. Any part of a tensor
/// can be generated without the parts before it.
pub(super) fn fill(
    tensor: &TensorSpec,
    part: Range<usize>,
    seed: u64,
    dtype: StoredType,
    bytes: &mut Vec<u8>,
) {
    let mut stream = stream(tensor, seed);
    stream.set_word_pos(part.start as u128 * STREAM_U32S);
    bytes.clear();
    bytes.reserve(part.len() * dtype.bytes());
    for _ in part {
        let value = value(tensor.distribution, &mut stream);
        match dtype {
            StoredType::Float32 => bytes.extend(value.to_le_bytes()),
            StoredType::Bfloat16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
        }
    }
}

fn stream(tensor: &TensorSpec, seed: u64) -> ChaCha12Rng {
    let name = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(&tensor.name);
    ChaCha12Rng::from_seed(name.finalize().into())
}

fn value(distribution: ValueDistribution, stream: &mut ChaCha12Rng) -> f32 {
    let value = match distribution {
        ValueDistribution::Ones => 1.0,
        ValueDistribution::Zeros => 0.0,
        ValueDistribution::Spread(spread) => spread * bell(stream.next_u64()),
        ValueDistribution::Even(limit) => limit * (2.0 * even(stream.next_u64()) - 1.0),
        ValueDistribution::LogOfDecay => (1.0 + 15.0 * even(stream.next_u64())).ln(),
        ValueDistribution::Step => softplus_inverse(1e-3 * (100.0_f64.ln() * even(stream.next_u64())).exp()),
    };
    value as f32
}

/// Mean 0, standard deviation 1, within ±3.47: the sum of four uniform numbers.
fn bell(bits: u64) -> f64 {
    let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
    (sum as f64 - SUM_MEAN) / SUM_SPREAD
}

/// Uniform in [0, 1).
fn even(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// log(e^x - 1), written so that a small x keeps its digits.
fn softplus_inverse(x: f64) -> f64 {
    x + (-(-x).exp_m1()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(tensor: &TensorSpec, seed: u64, dtype: StoredType) -> Vec<u8> {
        let mut bytes = Vec::new();
        fill(tensor, 0..tensor.values(), seed, dtype, &mut bytes);
        bytes
    }

    /// The parts of a tensor, at any cuts, make up the tensor.
    #[test]
    fn parts_are_the_whole() {
        for kind in [ValueDistribution::Spread(1.0), ValueDistribution::Step, ValueDistribution::Ones] {
            let tensor = TensorSpec { name: "t".into(), shape: vec![1000], distribution: kind };
            for dtype in [StoredType::Float32, StoredType::Bfloat16] {
                let whole = bytes(&tensor, 5, dtype);
                let mut parts = Vec::new();
                let mut part = Vec::new();
                for cut in [0..1, 1..31, 31..32, 32..33, 33..500, 500..1000] {
                    fill(&tensor, cut, 5, dtype, &mut part);
                    parts.extend_from_slice(&part);
                }
                assert!(parts == whole, "{kind:?} {dtype:?}");
            }
        }
    }

    fn sample_tensor(name: &str, distribution: ValueDistribution, seed: u64) -> Vec<f32> {
        let tensor = TensorSpec { name: name.into(), shape: vec![50_000], distribution };
        bytemuck::pod_collect_to_vec(&bytes(&tensor, seed, StoredType::Float32))
    }

    #[test]
    fn values_have_the_spread_and_the_limits_they_should() {
        #[track_caller]
        fn check(kind: ValueDistribution, mean: f64, spread: f64, limits: [f32; 2]) {
            let values = sample_tensor("t", kind, 1);
            let count = values.len() as f64;
            let got_mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
            let squares = values.iter().map(|value| (f64::from(*value) - got_mean).powi(2)).sum::<f64>();
            let got_spread = (squares / count).sqrt();
            // Five standard errors of a mean of 50,000.
            assert!((got_mean - mean).abs() <= 0.0224 * spread, "mean {got_mean}");
            assert!((got_spread - spread).abs() <= 0.02 * spread, "spread {got_spread}");
            assert!(values.iter().all(|value| (limits[0]..=limits[1]).contains(value)));
        }
        check(ValueDistribution::Ones, 1.0, 0.0, [1.0, 1.0]);
        check(ValueDistribution::Zeros, 0.0, 0.0, [0.0, 0.0]);
        check(ValueDistribution::Spread(0.5), 0.0, 0.5, [-1.74, 1.74]);
        check(ValueDistribution::Even(0.5), 0.0, 0.5 / 3_f64.sqrt(), [-0.5, 0.5]);
        // Mean of ln u over 1..16: 16 ln 16 / 15 - 1; limits 0 and ln 16.
        check(ValueDistribution::LogOfDecay, 1.957, 0.6687, [0.0, 2.7726]);
        check(ValueDistribution::Step, -4.594, 1.342, [-6.9073, -2.2521]);
    }

    #[test]
    fn a_step_comes_back_through_softplus() {
        for step in [1e-3, 0.01, 0.1] {
            let back = softplus_inverse(step).exp().ln_1p();
            assert!((back / step - 1.0).abs() < 1e-12, "{back}");
        }
    }

    #[test]
    fn streams_are_named_by_seed_and_tensor() {
        assert_eq!(
            sample_tensor("a", ValueDistribution::Spread(1.0), 7),
            sample_tensor("a", ValueDistribution::Spread(1.0), 7)
        );
        assert_ne!(
            sample_tensor("a", ValueDistribution::Spread(1.0), 7),
            sample_tensor("b", ValueDistribution::Spread(1.0), 7)
        );
        assert_ne!(
            sample_tensor("a", ValueDistribution::Spread(1.0), 7),
            sample_tensor("a", ValueDistribution::Spread(1.0), 8)
        );
    }

    #[test]
    fn bfloat16_is_float32_rounded() {
        let tensor =
            TensorSpec { name: "t".into(), shape: vec![64], distribution: ValueDistribution::Spread(1.0) };
        let wide: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes(&tensor, 3, StoredType::Float32));
        let narrow: Vec<u16> = bytemuck::pod_collect_to_vec(&bytes(&tensor, 3, StoredType::Bfloat16));
        let rounded: Vec<u16> = wide.iter().map(|value| half::bf16::from_f32(*value).to_bits()).collect();
        assert_eq!(narrow, rounded);
    }
}
