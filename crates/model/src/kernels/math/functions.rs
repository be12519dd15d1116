//! Exponential and related functions over sixteen lanes. The polynomials are our own minimax fits;
//! each comment gives the range and the error.

use crate::kernels::vector::Vector;

/// A function of one value.
pub(in crate::kernels) trait UnaryFunction: Copy {
    fn of<V: Vector>(self, x: V) -> V;
}

/// e^x: 0 below -104, infinity above 88.8, within 1 ulp between (2 where the result is subnormal).
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), p with an error below 3e-9; then
/// two factors 2^(n/2), so that neither overflows unless the result does.
#[inline(always)]
pub(in crate::kernels) fn exp<V: Vector>(x: V) -> V {
    // `max` and `min` return their second operand if one is NaN, so NaN is preserved.
    let x = V::splat(89.0).min(V::splat(-105.0).max(x));
    // Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
    let magic = V::splat(12_582_912.0);
    let n = x.fma(V::splat(std::f32::consts::LOG2_E), magic).sub(magic);
    // ln 2 in two parts, the first with 15 bits, so that n times it is exact.
    let r = n.fma(V::splat(-0.693_145_75), x);
    let r = n.fma(V::splat(-1.428_606_8e-6), r);
    let p = polynomial(r, &[0.001_381_314_1, 0.008_369_419, 0.041_668_456, 0.166_665_15, 0.499_999_94]);
    let e = r.mul(r).fma(p, r).add(V::splat(1.0));
    let half = n.fma(V::splat(0.5), magic);
    let n = n.add(magic);
    let rest = n.sub(half).add(magic);
    e.mul(power_of_two(half)).mul(power_of_two(rest))
}

/// 2^n, n from -126 to 127 in the low bits, as the magic number leaves it.
#[inline(always)]
fn power_of_two<V: Vector>(n: V) -> V {
    n.shift_left::<23>().add_bits(V::splat(1.0))
}

#[inline(always)]
fn polynomial<V: Vector, const N: usize>(x: V, coefficients: &[f32; N]) -> V {
    let mut sum = V::splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = sum.fma(x, V::splat(*coefficient));
    }
    sum
}

/// ln(1 + u) for u in 0..=1, to 2 ulp, also for tiny u: 2 atanh(s) = 2 s + s^3 q(s^2) with s = u /
/// (2 + u) <= 1/3, q with an error below 1e-10.
#[inline(always)]
pub(in crate::kernels) fn ln_one_plus<V: Vector>(u: V) -> V {
    let s = u.div(V::splat(2.0).add(u));
    let z = s.mul(s);
    let q = polynomial(z, &[0.243_009_31, 0.214_276_58, 0.286_168_84, 0.399_988_77, 0.666_666_75]);
    z.mul(s).fma(q, s.add(s))
}

#[derive(Clone, Copy)]
pub(in crate::kernels) struct Exp;

impl UnaryFunction for Exp {
    #[inline(always)]
    fn of<V: Vector>(self, x: V) -> V {
        exp(x)
    }
}

/// 1 / (1 + e^-x), computed from e^-|x| so that nothing overflows and small results keep their
/// digits.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Sigmoid;

impl UnaryFunction for Sigmoid {
    #[inline(always)]
    fn of<V: Vector>(self, x: V) -> V {
        let e = exp(V::zero().sub(x.abs()));
        let one = V::splat(1.0);
        x.select_less(V::zero(), e, one).div(one.add(e))
    }
}

#[derive(Clone, Copy)]
pub(in crate::kernels) struct Silu;

impl UnaryFunction for Silu {
    #[inline(always)]
    fn of<V: Vector>(self, x: V) -> V {
        x.mul(Sigmoid.of(x))
    }
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), without a lower limit, so -15 gives 3e-7, or an upper
/// one.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Softplus;

impl UnaryFunction for Softplus {
    #[inline(always)]
    fn of<V: Vector>(self, x: V) -> V {
        let rest = ln_one_plus(exp(V::zero().sub(x.abs())));
        V::zero().max(x).add(rest)
    }
}

#[derive(Clone, Copy)]
pub(in crate::kernels) struct SquaredRelu;

impl UnaryFunction for SquaredRelu {
    #[inline(always)]
    fn of<V: Vector>(self, x: V) -> V {
        let positive = V::zero().max(x);
        positive.mul(positive)
    }
}

/// x Phi(x), Phi the normal distribution (the erf form). Inside -1..1 Phi(x) = 1/2 + x q(x^2), q
/// with an error below 1e-9; outside Phi(-t sqrt 2) = e^(-t^2) k p(k) with k = 1 / (1 + 0.35 t), p
/// with an error below 8e-9, so the negative tail keeps its digits.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Gelu;

impl UnaryFunction for Gelu {
    #[inline(always)]
    fn of<V: Vector>(self, x: V) -> V {
        let one = V::splat(1.0);
        let tail = normal_tail(x);
        let outside = x.select_less(V::zero(), tail, one.sub(tail));
        x.mul(x.abs().select_less(one, normal_centre(x), outside))
    }
}

/// Phi(x) for |x| < 1.
#[inline(always)]
fn normal_centre<V: Vector>(x: V) -> V {
    let q = [-7.654_206e-6, 1.134_863_6e-4, -1.186_33e-3, 9.973_323e-3, -0.066_490_36, 0.398_942_3];
    polynomial(x.mul(x), &q).fma(x, V::splat(0.5))
}

#[inline(always)]
fn normal_tail<V: Vector>(x: V) -> V {
    const P: [f32; 10] = [
        0.019_602_977,
        -0.081_710_92,
        0.096_176_22,
        -0.021_360_55,
        0.049_985_98,
        0.069_402_4,
        0.076_900_27,
        0.093_657_32,
        0.098_606_44,
        0.098_739_86,
    ];
    // From 14.2 on the result is 0; squares of far larger values would overflow.
    let x = V::splat(16.0).min(x.abs());
    // 0.35 / sqrt 2, as t = |x| / sqrt 2.
    let k = V::splat(1.0).div(x.fma(V::splat(0.247_487_37), V::splat(1.0)));
    // e^(-x^2 / 2), corrected to first order for the rounding error of x^2, which is up to 4e-6 of
    // the result for large x.
    let square = x.mul(x);
    let lost = x.fma(x, V::zero().sub(square));
    let e = exp(square.mul(V::splat(-0.5)));
    let e = e.mul(V::splat(-0.5)).fma(lost, e);
    e.mul(k).mul(polynomial(k, &P))
}
