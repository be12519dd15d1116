//! Accuracy against float64, and equal bits with every instruction set and at every position of a
//! slice.

use super::*;

/// 0.5 (1 + erf(x / sqrt 2)): the series near 0, the continued fraction of erfc far from 0.
fn normal(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let tail = if z < 2.5 {
        let mut term = z;
        let mut sum = z;
        for n in 1..100 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        0.5 - sum / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..60).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
        0.5 * (-z * z).exp() / fraction / std::f64::consts::PI.sqrt()
    };
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Distance between two neighbouring float32 at a value.
fn ulp(value: f64) -> f64 {
    let value = (value.abs() as f32).max(f32::MIN_POSITIVE);
    f64::from(f32::from_bits(value.to_bits() + 1)) - f64::from(value)
}

/// Checks a function against float64 over a range, and for equal bits with all instruction sets.
#[track_caller]
fn check<F: UnaryFunction>(
    name: &str,
    function: F,
    exact: impl Fn(f64) -> f64,
    low: f32,
    high: f32,
    ulps_max: f64,
) {
    let count = 200_003;
    let inputs: Vec<f32> =
        (0..count).map(|at| low + (high - low) * (at as f32 / (count - 1) as f32)).collect();
    let mut got = inputs.clone();
    InstructionSet::best().run(ElementMap { values: &mut got, function });
    let mut worst = (0.0, 0.0);
    for (x, y) in inputs.iter().zip(&got) {
        let want = exact(f64::from(*x));
        let ulps = (f64::from(*y) - want).abs() / ulp(want);
        if ulps > worst.0 || ulps.is_nan() {
            worst = (ulps, *x);
        }
    }
    println!("{name} from {low} to {high}: {:.2} ulp at {}", worst.0, worst.1);
    assert!(worst.0 <= ulps_max, "{name}: {} ulp at {}", worst.0, worst.1);
    for isa in InstructionSet::available() {
        let mut other = inputs.clone();
        isa.run(ElementMap { values: &mut other, function });
        assert!(same(&other, &got), "{name} by {isa:?}");
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn functions_are_accurate() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    check("exp", Exp, f64::exp, -1.0, 1.0, 1.0);
    check("exp", Exp, f64::exp, -87.3, 88.7, 1.0);
    check("exp", Exp, f64::exp, -110.0, -87.3, 1.0);
    check("sigmoid", Sigmoid, sigmoid, -30.0, 30.0, 2.5);
    check("sigmoid", Sigmoid, sigmoid, -87.0, -30.0, 2.5);
    check("silu", Silu, |x| x * sigmoid(x), -20.0, 20.0, 3.0);
    check("silu", Silu, |x| x * sigmoid(x), -87.0, -20.0, 3.0);
    check("softplus", Softplus, softplus, -1.0, 1.0, 2.5);
    check("softplus", Softplus, softplus, -20.0, -1.0, 3.0);
    check("softplus", Softplus, softplus, -87.0, -20.0, 2.5);
    check("softplus", Softplus, softplus, 1.0, 1e4, 1.0);
    check("squared relu", SquaredRelu, |x| x.max(0.0).powi(2), -3.0, 9.0, 0.5);
    check("gelu", Gelu, |x| x * normal(x), -1.0, 8.0, 3.0);
    check("gelu", Gelu, |x| x * normal(x), -12.0, -1.0, 8.0);
}

#[test]
fn erf_is_within_2e_7() {
    let inputs: Vec<f32> = (0..100_001).map(|at| (at as f32 - 5e4) * 2e-4).collect();
    let mut got = inputs.clone();
    gelu(&mut got);
    for (x, y) in inputs.iter().zip(&got).filter(|(x, _)| **x != 0.0) {
        let erf = f64::from(*y) / f64::from(*x) * 2.0 - 1.0;
        let want = normal(f64::from(*x)) * 2.0 - 1.0;
        assert!((erf - want).abs() <= 2e-7, "erf({x} / sqrt 2) = {erf} for {want}");
    }
}

#[test]
fn extremes_come_out_right() {
    /// The function of one value.
    fn of(function: impl UnaryFunction, x: f32) -> f32 {
        let mut values = [x];
        InstructionSet::best().run(ElementMap { values: &mut values, function });
        values[0]
    }
    let infinity = f32::INFINITY;
    for (got, want) in [
        (of(Exp, 0.0), 1.0),
        (of(Exp, -infinity), 0.0),
        (of(Exp, -104.5), 0.0),
        (of(Exp, infinity), infinity),
        (of(Exp, 88.73), infinity),
        (of(Sigmoid, infinity), 1.0),
        (of(Sigmoid, -infinity), 0.0),
        (of(Silu, 1e30), 1e30),
        (of(Silu, -1e30), -0.0),
        (of(Softplus, 1e30), 1e30),
        (of(Softplus, infinity), infinity),
        (of(Softplus, -infinity), 0.0),
        // A dt of 3.06e-7, far below the lower limits of other implementations.
        (of(Softplus, -15.0), 3.059_023e-7),
        (of(SquaredRelu, -infinity), 0.0),
        (of(Gelu, 30.0), 30.0),
        (of(Gelu, -30.0), -0.0),
        (of(Gelu, 1e30), 1e30),
        (of(Gelu, -1e30), -0.0),
        (of(Gelu, -0.0), -0.0),
    ] {
        assert!(got.to_bits() == want.to_bits(), "{got} for {want}");
    }
    let nan = f32::NAN;
    for got in [
        of(Exp, nan),
        of(Sigmoid, nan),
        of(Silu, nan),
        of(Softplus, nan),
        of(SquaredRelu, nan),
        of(Gelu, nan),
    ] {
        assert!(got.is_nan(), "{got}");
    }
}

#[test]
fn a_value_does_not_depend_on_its_index() {
    let inputs: Vec<f32> = (0..67).map(|at| at as f32 * 0.37 - 11.0).collect();
    let mut all = inputs.clone();
    softplus(&mut all);
    for from in 0..20 {
        for to in from..inputs.len() {
            let mut part = inputs[from..to].to_vec();
            softplus(&mut part);
            assert!(same(&part, &all[from..to]), "{from}..{to}");
        }
    }
}

fn wave(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|at| (at as f32 * step).sin() * 2.0 + 0.3).collect()
}

#[track_caller]
fn near(got: &[f32], want: impl Iterator<Item = f64>, what: &str) {
    for (got, want) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() <= 1e-6 * want.abs().max(1.0), "{what}: {got} for {want}");
    }
}

/// Norms, sums and softmax of rows of one length.
#[track_caller]
fn check_rows(len: usize) {
    let x = wave(len, 0.7);
    let w = wave(len, 0.3);
    let b = wave(len, 1.1);
    let [x64, w64, b64] =
        [&x, &w, &b].map(|values| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
    let count = len as f64;
    let mut out = vec![f32::NAN; len];

    rms_norm(&x, &w, 1e-5, &mut out);
    let scale = 1.0 / (x64.iter().map(|x| x * x).sum::<f64>() / count + 1e-5).sqrt();
    near(&out, x64.iter().zip(&w64).map(|(x, w)| x * scale * w), "rms_norm");

    layer_norm(&x, &w, &b, 1e-6, &mut out);
    let mean = x64.iter().sum::<f64>() / count;
    let variance = x64.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + 1e-6).sqrt();
    if len > 1 {
        let want = x64.iter().zip(&w64).zip(&b64).map(|((x, w), b)| (x - mean) * scale * w + b);
        near(&out, want, "layer_norm");
    }

    out.copy_from_slice(&x);
    softmax(&mut out);
    let sum: f64 = x64.iter().map(|x| x.exp()).sum();
    near(&out, x64.iter().map(|x| x.exp() / sum), "softmax");

    let want: f64 = x64.iter().zip(&w64).map(|(x, w)| x * w).sum();
    assert!((f64::from(dot(&x, &w)) - want).abs() < 1e-6 * count.max(10.0), "dot of {len}");

    out.copy_from_slice(&x);
    gate(&mut out, &w);
    near(&out, x64.iter().zip(&w64).map(|(x, w)| x * w / (1.0 + (-w).exp())), "gate");
    out.copy_from_slice(&x);
    add_scaled(&mut out, 0.5, &w);
    near(&out, x64.iter().zip(&w64).map(|(x, w)| x + 0.5 * w), "add_scaled");
    out.copy_from_slice(&x);
    add(&mut out, &w);
    assert!(out.iter().zip(x.iter().zip(&w)).all(|(out, (x, w))| *out == x + w), "add");
    let halves: Vec<u16> = x.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
    widen(&halves, &mut out);
    assert!(
        out.iter().zip(&halves).all(|(out, bits)| *out == half::bf16::from_bits(*bits).to_f32()),
        "widen"
    );

    for isa in InstructionSet::available() {
        let sums = [isa.run(DotProduct { a: &x, b: &w }), dot(&x, &w)];
        assert_eq!(sums[0].to_bits(), sums[1].to_bits(), "dot of {len} by {isa:?}");
        let [mut here, mut best] = [vec![0.0; len], vec![0.0; len]];
        isa.run(LayerNorm { x: &x, weight: &w, bias: &b, epsilon: 1e-6, out: &mut here });
        layer_norm(&x, &w, &b, 1e-6, &mut best);
        assert!(same(&here, &best), "layer_norm of {len} by {isa:?}");
        isa.run(RmsNorm { x: &x, weight: &w, epsilon: 1e-5, out: &mut here });
        rms_norm(&x, &w, 1e-5, &mut best);
        assert!(same(&here, &best), "rms_norm of {len} by {isa:?}");
        here.copy_from_slice(&x);
        isa.run(Softmax { values: &mut here });
        best.copy_from_slice(&x);
        softmax(&mut best);
        assert!(same(&here, &best), "softmax of {len} by {isa:?}");
    }
}

#[test]
fn rows_are_accurate() {
    for len in [1, 2, 15, 16, 17, 63, 64, 65, 100, 768, 1000, 5120] {
        check_rows(len);
    }
}

/// The trees over lanes are the same in every instruction set.
#[test]
fn sums_of_lanes_agree() {
    struct LaneSums([[f32; LANES]; LANES]);
    impl VectorOp for LaneSums {
        type Output = [u32; LANES];

        #[inline(always)]
        fn run<V: Vector>(self) -> Self::Output {
            let mut vectors = [V::zero(); LANES];
            for (vector, lanes) in vectors.iter_mut().zip(&self.0) {
                *vector = V::load(lanes);
            }
            let singly = vectors.map(|vector| vector.sum().to_bits());
            assert_eq!(V::sums(vectors).lanes().map(f32::to_bits), singly);
            singly
        }
    }
    let lanes: [[f32; LANES]; LANES] = std::array::from_fn(|row| {
        std::array::from_fn(|lane| ((row * 31 + lane * 17) as f32).sin() * 10f32.powi(lane as i32 % 5))
    });
    let best = InstructionSet::best().run(LaneSums(lanes));
    assert!(InstructionSet::available().into_iter().all(|isa| isa.run(LaneSums(lanes)) == best));
}
