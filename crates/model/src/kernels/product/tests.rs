//! Products have the bits of the definition for any number of rows, threads, and instruction sets.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::*;

const SEED: u64 = 7;

/// Values that are exact in bfloat16, for weights stored in it; inputs may have any values.
fn values(rng: &mut ChaCha12Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

fn halved(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| half::bf16::from_f32(*value).to_bits()).collect()
}

fn widened(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|bits| half::bf16::from_bits(*bits).to_f32()).collect()
}

/// The definition: one chain an element.
fn chain(weights: &[f32], x: &[f32], out: usize, input: usize) -> Vec<f32> {
    let rows = x.len() / input;
    let element = |row: usize, output: usize| {
        let w = &weights[output * input..][..input];
        let x = &x[row * input..][..input];
        w.iter().zip(x).fold(0.0f32, |sum, (w, x)| w.mul_add(*x, sum))
    };
    (0..rows * out).map(|at| element(at / out, at % out)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Checks every order of this kind of product against the definition, with every instruction set of
/// this machine.
#[track_caller]
fn check(out: usize, input: usize, rows: usize) {
    let mut rng = ChaCha12Rng::seed_from_u64(SEED);
    let w = values(&mut rng, out * input);
    let x = values(&mut rng, rows * input);
    let stored = halved(&w);
    let full = PackedMatrix::from_f32(out, input, &w);
    let half = PackedMatrix::from_bf16(out, input, &stored);
    let w_half = widened(&stored);
    let want_full = bits(&chain(&w, &x, out, input));
    let want_half = bits(&chain(&w_half, &x, out, input));
    let want_rounded = bits(&chain(&w_half, &widened(&halved(&x)), out, input));
    let at = format!("{rows} rows by {out} x {input}, seed {SEED}");
    for threads in [1, 2, 3] {
        let team = ThreadPool::new(threads);
        for isa in InstructionSet::available() {
            for (matrix, kernel, want) in [
                (&full, ProductKernel::Chain(isa), &want_full),
                (&half, ProductKernel::Chain(isa), &want_half),
                (&half, ProductKernel::RoundedChain(isa), &want_rounded),
            ] {
                let mut y = vec![f32::NAN; rows * out];
                matrix.product_by(kernel, &team, &x, &mut y);
                assert!(bits(&y) == **want, "{at}: {kernel:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn any_number_of_rows_gives_the_same_bits() {
    for rows in 1..=40 {
        check(45, 37, rows);
    }
}

#[test]
fn any_shape_gives_the_same_bits() {
    for (out, input, rows) in [
        (1, 1, 1),
        (1, 12, 3),
        (3, 2, 1),
        (12, 12, 5),
        (31, 255, 13),
        (32, 256, 12),
        (33, 257, 12),
        (64, 511, 25),
        (65, 513, 24),
        (96, 512, 2),
        (160, 1025, 1),
        (700, 130, 3),
        (40, 300, 400),
    ] {
        check(out, input, rows);
    }
}

#[test]
fn empty_products_are_zero() {
    let team = ThreadPool::new(2);
    PackedMatrix::from_f32(0, 3, &[]).product(&team, ProductPrecision::Float32, &[], &mut []);
    let mut y = [f32::NAN; 4];
    PackedMatrix::from_f32(2, 0, &[]).product(&team, ProductPrecision::Float32, &[], &mut y);
    assert_eq!(y, [0.0; 4]);
}

#[test]
fn a_row_that_is_not_a_number_stays_alone() {
    let out = 40;
    let input = 300;
    let rows = 20;
    let mut rng = ChaCha12Rng::seed_from_u64(SEED);
    let w = values(&mut rng, out * input);
    let mut x = values(&mut rng, rows * input);
    x[7 * input + 5] = f32::NAN;
    let matrix = PackedMatrix::from_f32(out, input, &w);
    let mut y = vec![0.0; rows * out];
    matrix.product(&ThreadPool::new(2), ProductPrecision::Float32, &x, &mut y);
    for (row, y) in y.chunks(out).enumerate() {
        assert!(y.iter().all(|value| value.is_nan() == (row == 7)), "row {row}");
    }
}

/// An element's value in bfloat16 does not depend on the rows, with any kernel of this machine.
#[test]
fn bfloat16_products_do_not_depend_on_the_rows() {
    let out = 75;
    let input = 613;
    let mut rng = ChaCha12Rng::seed_from_u64(SEED);
    let w = values(&mut rng, out * input);
    let x = values(&mut rng, 40 * input);
    let matrix = PackedMatrix::from_bf16(out, input, &halved(&w));
    let product = |team: &ThreadPool, x: &[f32]| {
        let mut y = vec![0.0; x.len() / input * out];
        matrix.product(team, ProductPrecision::Bfloat16, x, &mut y);
        bits(&y)
    };
    let all = product(&ThreadPool::new(1), &x);
    for rows in 1..=40 {
        let team = ThreadPool::new(1 + rows % 3);
        assert!(product(&team, &x[..rows * input]) == all[..rows * out], "{rows} rows, seed {SEED}");
    }
    // 613 products of two values within 2^-8 of the originals: the sum differs by a few thousandths
    // of its terms' norm.
    let want = chain(&widened(&halved(&w)), &x, out, input);
    for (got, want) in all.iter().zip(want) {
        assert!((f32::from_bits(*got) - want).abs() < 0.25, "{} for {want}", f32::from_bits(*got));
    }
}

#[test]
fn rounding_is_to_the_nearest_bfloat16() {
    for value in [0.0, -0.0, 1.0, 1.003_906_3, 1.011_718_8, -3.1, 1e-40, 3.4e38, f32::INFINITY, f32::NAN] {
        let want = half::bf16::from_f32(value);
        let got = inputs::rounded(value);
        assert!(
            got == u32::from(want.to_bits()) || value.is_nan() && want.is_nan(),
            "{value}: {got:x} {want:?}"
        );
    }
}

/// The order of AMX tiles: 32 inputs a step, the even ones and the odd ones each a chain from zero,
/// subnormal numbers as zero.
#[cfg(target_arch = "x86_64")]
fn by_tiles(weights: &[f32], x: &[f32], out: usize, input: usize) -> Vec<f32> {
    let flush = |value: f32| if value.is_subnormal() { 0.0 * value } else { value };
    let element = |row: usize, output: usize| {
        let w = &weights[output * input..][..input];
        let x = &x[row * input..][..input];
        w.chunks(32).zip(x.chunks(32)).fold(0.0, |sum, (w, x)| {
            let mut chains = [0.0f32; 2];
            for (at, (w, x)) in w.iter().zip(x).enumerate() {
                chains[at % 2] = flush(flush(*w).mul_add(flush(*x), chains[at % 2]));
            }
            flush(sum + flush(chains[0] + chains[1]))
        })
    };
    (0..x.len() / input * out).map(|at| element(at / out, at % out)).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_give_the_bits_of_their_order() {
    if !amx::is_here() {
        return println!("skipped: this machine has no AMX");
    }
    for (out, input, rows) in [
        (1, 1, 1),
        (1, 31, 2),
        (16, 32, 16),
        (32, 33, 17),
        (33, 64, 1),
        (45, 37, 40),
        (64, 511, 31),
        (65, 513, 33),
        (160, 1024, 3),
        (700, 130, 48),
        (40, 300, 400),
    ] {
        let mut rng = ChaCha12Rng::seed_from_u64(SEED);
        // Values of very different size, so that any other order would round differently; some of
        // them subnormal.
        let mut random_values = |len: usize| -> Vec<f32> {
            (0..len).map(|_| rng.random_range(-1.0f32..1.0) * 2.0f32.powi(rng.random_range(-8..8))).collect()
        };
        let mut w = random_values(out * input);
        let mut x = random_values(rows * input);
        (w[0], x[input - 1]) = (1e-39, -1e-40);
        let w = halved(&w);
        let rounded = widened(&halved(&x));
        let want = bits(&by_tiles(&widened(&w), &rounded, out, input));
        let matrix = PackedMatrix::from_bf16(out, input, &w);
        for threads in [1, 2, 3] {
            let mut y = vec![f32::NAN; rows * out];
            matrix.product_by(ProductKernel::Tiles, &ThreadPool::new(threads), &x, &mut y);
            assert!(bits(&y) == want, "{rows} rows by {out} x {input}, {threads} threads, seed {SEED}");
        }
    }
}
