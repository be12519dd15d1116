//! Vector mathematics on rows of values. It is memory-bound at a few operations a byte: the lower
//! bound is bytes read and written / bandwidth, with rows in a cache.
//!
//! An element's value does not depend on its position in the slice, and sums have one fixed order:
//! 64 partial sums (element i in partial i mod 64), added as 0 + 1, 2 + 3 by groups of sixteen,
//! then a tree over the lanes.

pub(super) mod functions;
#[cfg(test)]
mod tests;

use functions::{Exp, Gelu, Sigmoid, Silu, Softplus, SquaredRelu, UnaryFunction, exp as exp_of};

use super::isa::{InstructionSet, VectorOp};
use super::vector::{LANES, Vector};

/// e^x of each value.
pub fn exp(values: &mut [f32]) {
    InstructionSet::best().run(ElementMap { values, function: Exp });
}

/// `1 / (1 + e^-x)` of each value.
pub(crate) fn sigmoid(values: &mut [f32]) {
    InstructionSet::best().run(ElementMap { values, function: Sigmoid });
}

/// `x / (1 + e^-x)` of each value.
pub fn silu(values: &mut [f32]) {
    InstructionSet::best().run(ElementMap { values, function: Silu });
}

/// `ln(1 + e^x)` of each value, without a lower limit.
pub(crate) fn softplus(values: &mut [f32]) {
    InstructionSet::best().run(ElementMap { values, function: Softplus });
}

/// `max(x, 0)^2` of each value.
pub fn squared_relu(values: &mut [f32]) {
    InstructionSet::best().run(ElementMap { values, function: SquaredRelu });
}

/// `x Phi(x)` of each value, the exact (erf) form.
pub fn gelu(values: &mut [f32]) {
    InstructionSet::best().run(ElementMap { values, function: Gelu });
}

/// `y = y silu(z)`, element by element.
pub fn gate(y: &mut [f32], z: &[f32]) {
    assert_eq!(y.len(), z.len(), "one gate for each value");
    InstructionSet::best().run(ElementZip { to: y, from: z, pair: GatedPair });
}

/// `to = to + from`, element by element.
pub fn add(to: &mut [f32], from: &[f32]) {
    add_scaled(to, 1.0, from);
}

/// `to = scale from + to`, element by element, each rounded once.
pub(crate) fn add_scaled(to: &mut [f32], scale: f32, from: &[f32]) {
    assert_eq!(to.len(), from.len(), "one addend for each value");
    InstructionSet::best().run(ElementZip { to, from, pair: ScaledPair(scale) });
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "two vectors of the same length");
    InstructionSet::best().run(DotProduct { a, b })
}

/// `out = weight x / sqrt(mean(x^2) + epsilon)`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "one weight for each value of a row");
    InstructionSet::best().run(RmsNorm { x, weight, epsilon, out });
}

/// `out = weight (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) + bias`.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    let fit = x.len() == weight.len() && x.len() == bias.len() && x.len() == out.len();
    assert!(fit, "one weight and one bias for each value of a row");
    InstructionSet::best().run(LayerNorm { x, weight, bias, epsilon, out });
}

/// `e^(x - max) / sum`, in place. NaN anywhere makes every value NaN.
pub fn softmax(values: &mut [f32]) {
    InstructionSet::best().run(Softmax { values });
}

/// bfloat16 bits as float32 values.
pub fn widen(bits: &[u16], out: &mut [f32]) {
    assert_eq!(bits.len(), out.len(), "one output for each value");
    for (out, bits) in out.iter_mut().zip(bits) {
        *out = f32::from_bits(u32::from(*bits) << 16);
    }
}

/// Applies a function to each value in place.
struct ElementMap<'a, F> {
    values: &'a mut [f32],
    function: F,
}

impl<F: UnaryFunction> VectorOp for ElementMap<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (whole, rest) = self.values.as_chunks_mut();
        for lanes in whole {
            self.function.of(V::load(lanes)).store(lanes);
        }
        if !rest.is_empty() {
            self.function.of(V::load_part(rest)).store_part(rest);
        }
    }
}

/// A function of two values.
trait PairFunction: Copy {
    fn of<V: Vector>(self, to: V, from: V) -> V;
}

#[derive(Clone, Copy)]
struct GatedPair;

impl PairFunction for GatedPair {
    #[inline(always)]
    fn of<V: Vector>(self, to: V, from: V) -> V {
        to.mul(Silu.of(from))
    }
}

#[derive(Clone, Copy)]
struct ScaledPair(f32);

impl PairFunction for ScaledPair {
    #[inline(always)]
    fn of<V: Vector>(self, to: V, from: V) -> V {
        from.fma(V::splat(self.0), to)
    }
}

/// Applies a function to pairs of values and stores the result in the first.
struct ElementZip<'a, P> {
    to: &'a mut [f32],
    from: &'a [f32],
    pair: P,
}

impl<P: PairFunction> VectorOp for ElementZip<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (to, to_rest) = self.to.as_chunks_mut();
        let (from, from_rest) = self.from.as_chunks();
        for (to, from) in to.iter_mut().zip(from) {
            self.pair.of(V::load(to), V::load(from)).store(to);
        }
        if !to_rest.is_empty() {
            self.pair.of(V::load_part(to_rest), V::load_part(from_rest)).store_part(to_rest);
        }
    }
}

/// Partial sums of a reduction, by vectors.
const PARTIALS: usize = 4;

#[inline(always)]
fn total<V: Vector>(partials: [V; PARTIALS]) -> f32 {
    let [a, b, c, d] = partials;
    a.add(b).add(c.add(d)).sum()
}

struct DotProduct<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl VectorOp for DotProduct<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vector>(self) -> f32 {
        let mut partials = [V::zero(); PARTIALS];
        let (a, a_rest) = blocks(self.a);
        let (b, b_rest) = blocks(self.b);
        for (a, b) in a.iter().zip(b) {
            for (partial, (a, b)) in partials.iter_mut().zip(lines(a).iter().zip(lines(b))) {
                *partial = V::load(a).fma(V::load(b), *partial);
            }
        }
        for (partial, (a, b)) in partials.iter_mut().zip(a_rest.chunks(LANES).zip(b_rest.chunks(LANES))) {
            *partial = V::load_part(a).fma(V::load_part(b), *partial);
        }
        total(partials)
    }
}

/// Sums `x - shift` or its square, see `run`.
#[derive(Clone, Copy)]
struct SumReduction<'a> {
    x: &'a [f32],
    shift: f32,
    squared: bool,
}

impl SumReduction<'_> {
    #[inline(always)]
    fn of<V: Vector>(self) -> f32 {
        let mut partials = [V::zero(); PARTIALS];
        let (blocks, rest) = blocks(self.x);
        for block in blocks {
            for (partial, x) in partials.iter_mut().zip(lines(block)) {
                *partial = self.term(V::load(x), *partial);
            }
        }
        for (partial, x) in partials.iter_mut().zip(rest.chunks(LANES)) {
            // The lanes after the end hold the shift, so they add nothing.
            let mut lanes = [self.shift; LANES];
            lanes[..x.len()].copy_from_slice(x);
            *partial = self.term(V::load(&lanes), *partial);
        }
        total(partials)
    }

    #[inline(always)]
    fn term<V: Vector>(self, x: V, partial: V) -> V {
        let x = x.sub(V::splat(self.shift));
        if self.squared { x.fma(x, partial) } else { x.add(partial) }
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl VectorOp for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let squares = SumReduction { x: self.x, shift: 0.0, squared: true }.of::<V>();
        let scale = 1.0 / (squares / self.x.len() as f32 + self.epsilon).sqrt();
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * weight;
        }
    }
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl VectorOp for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let count = self.x.len() as f32;
        let mean = SumReduction { x: self.x, shift: 0.0, squared: false }.of::<V>() / count;
        let variance = SumReduction { x: self.x, shift: mean, squared: true }.of::<V>() / count;
        let scale = 1.0 / (variance + self.epsilon).sqrt();
        for (((out, x), weight), bias) in self.out.iter_mut().zip(self.x).zip(self.weight).zip(self.bias) {
            *out = ((x - mean) * scale).mul_add(*weight, *bias);
        }
    }
}

struct Softmax<'a> {
    values: &'a mut [f32],
}

impl VectorOp for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let largest = V::splat(largest::<V>(self.values));
        let (whole, rest) = self.values.as_chunks_mut();
        for lanes in whole {
            exp_of(V::load(lanes).sub(largest)).store(lanes);
        }
        if !rest.is_empty() {
            exp_of(V::load_part(rest).sub(largest)).store_part(rest);
        }
        let sum = SumReduction { x: self.values, shift: 0.0, squared: false }.of::<V>();
        self.values.iter_mut().for_each(|value| *value /= sum);
    }
}

/// The largest value; negative infinity for an empty slice.
#[inline(always)]
fn largest<V: Vector>(values: &[f32]) -> f32 {
    let mut most = V::splat(f32::NEG_INFINITY);
    let (whole, rest) = values.as_chunks();
    for lanes in whole {
        most = V::load(lanes).max(most);
    }
    let mut lanes = [f32::NEG_INFINITY; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    V::load(&lanes).max(most).largest()
}

/// Whole blocks of one vector for each partial sum, and the rest.
#[inline(always)]
fn blocks(values: &[f32]) -> (&[[f32; PARTIALS * LANES]], &[f32]) {
    values.as_chunks()
}

/// The vectors of a block.
#[inline(always)]
fn lines(block: &[f32; PARTIALS * LANES]) -> &[[f32; LANES]] {
    block.as_chunks().0
}
