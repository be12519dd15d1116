//! The two passes of a separable resampling of RGB pixels, in 8-bit fixed point and in float32.
//!
//! Floor of a 1280 x 720 screenshot on its way to 1024 x 512: 720 x 1024 x 6 taps across and 512 x 1024 x 7 down, 3 colours each,
//! are 24 million multiply-adds. At 16 lanes a cycle and 4 GHz that is 0.4 ms; reading and writing 2.8 + 2.2 + 2.2 + 1.6 MB in
//! cache is less. A row of pixels has no lanes to spare across (3 colours), so the pass across works on `ROWS` rows side by side.

use std::ops::Range;

use super::isa::{Isa, Op};
use super::vector::{LANES, Vector};

/// Rows that the pass across handles side by side.
const ROWS: usize = 16;
/// Values of a pixel there: three colours and one lane left idle, so that a pixel moves as one 32-bit word.
const WORD: usize = 4;
/// Vectors summed side by side: one column of `ROWS` rows.
const STRIP: usize = ROWS * WORD / LANES;
/// A column of pixels, or as many neighbouring values of a row.
type Strip<S> = [[S; LANES]; STRIP];

/// A colour value and the arithmetic it is resampled in, sixteen at a time.
pub(crate) trait Sample: Copy + Default + Send + Sync + 'static {
    /// What it is weighed by.
    type Weight: Copy + Default;
    /// How values and weights are turned into lanes, and sums back into values.
    type Lanes<V: Vector>: Arithmetic<V, Self>;
}

/// The steps of a weighted sum.
pub(crate) trait Arithmetic<V: Vector, S: Sample> {
    /// The empty sum.
    fn start() -> V;
    /// A weight in every lane.
    fn weight(weight: S::Weight) -> V;
    /// `sum + weight * values`.
    fn add(sum: V, weight: V, values: &[S; LANES]) -> V;
    /// The values that sums stand for.
    fn finish(sum: V) -> [S; LANES];
}

impl Sample for u8 {
    type Weight = i32;
    type Lanes<V: Vector> = FixedPoint;
}

impl Sample for f32 {
    type Weight = f32;
    type Lanes<V: Vector> = Float;
}

/// Bytes, and weights of 22 fractional bits. A sum stays inside 32 bits: the weights of an output add up to at most 1.4 in magnitude, and
/// 1.4 x 2^22 x 255 = 1.5 x 10^9.
pub(crate) struct FixedPoint;

impl<V: Vector> Arithmetic<V, u8> for FixedPoint {
    #[inline(always)]
    fn start() -> V {
        V::from_bits(1 << 21) // one half, for rounding
    }

    #[inline(always)]
    fn weight(weight: i32) -> V {
        V::from_bits(weight.cast_unsigned())
    }

    #[inline(always)]
    fn add(sum: V, weight: V, values: &[u8; LANES]) -> V {
        sum.add_bits(weight.mul_bits(V::from_bytes(values)))
    }

    #[inline(always)]
    fn finish(sum: V) -> [u8; LANES] {
        sum.to_bytes::<22>()
    }
}

/// float32 throughout.
pub(crate) struct Float;

impl<V: Vector> Arithmetic<V, f32> for Float {
    #[inline(always)]
    fn start() -> V {
        V::zero()
    }

    #[inline(always)]
    fn weight(weight: f32) -> V {
        V::splat(weight)
    }

    #[inline(always)]
    fn add(sum: V, weight: V, values: &[f32; LANES]) -> V {
        weight.fma(V::load(values), sum)
    }

    #[inline(always)]
    fn finish(sum: V) -> [f32; LANES] {
        sum.lanes()
    }
}

/// For each output along one axis, the inputs it is made of and their weights.
#[derive(Debug, Clone, Default)]
pub struct Taps<W> {
    spans: Vec<(usize, Range<usize>)>,
    weights: Vec<W>,
}

impl<W> Taps<W> {
    /// Adds an output: the first input it takes and the weights from there on, at least one.
    pub fn push(&mut self, first: usize, weights: impl Iterator<Item = W>) {
        let start = self.weights.len();
        self.weights.extend(weights);
        assert!(self.weights.len() > start, "an output is made of at least one input");
        self.spans.push((first, start..self.weights.len()));
    }

    /// How many outputs.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Inputs that are needed: one more than the highest taken.
    fn reach(&self) -> usize {
        self.spans.iter().map(|(first, weights)| first + weights.len()).max().unwrap_or(0)
    }

    #[inline(always)]
    fn outputs(&self) -> impl Iterator<Item = (usize, &[W])> {
        self.spans.iter().map(|(first, weights)| (*first, &self.weights[weights.clone()]))
    }
}

/// Resamples every row: `out[y, x, c]` from `source[y, .., c]`. `width` is that of a source row in pixels; `out` has as many rows.
pub fn across<S: Sample>(taps: &Taps<S::Weight>, source: &[S], width: usize, out: &mut [S]) {
    assert!(taps.reach() <= width, "a row of {width} pixels, inputs up to {}", taps.reach());
    let (row, out_row) = (3 * width, 3 * taps.count());
    assert_eq!(source.len() / row * out_row, out.len(), "rows of {row} and of {out_row} values");
    let mut columns = vec![Strip::<S>::default(); width];
    for (source, out) in source.chunks(ROWS * row).zip(out.chunks_mut(ROWS * out_row)) {
        stand(source, row, &mut columns);
        Isa::best().run(Across { taps, columns: &columns, out });
    }
}

/// Resamples every column: `out[y, i]` from `source[.., i]`, rows of `row` values.
pub fn down<S: Sample>(taps: &Taps<S::Weight>, source: &[S], row: usize, out: &mut [S]) {
    let rows = source.len() / row;
    assert!(taps.reach() <= rows, "{rows} rows, inputs up to {}", taps.reach());
    assert_eq!(taps.count() * row, out.len(), "{} rows of {row} values", taps.count());
    Isa::best().run(Down { taps, source, row, out });
}

/// Rows become lanes: pixel x of row r goes to lanes `4 r ..` of column x. Lanes of missing rows keep what they held; nobody reads them.
fn stand<S: Sample>(source: &[S], row: usize, columns: &mut [Strip<S>]) {
    for (r, row) in source.chunks_exact(row).enumerate() {
        for (pixel, column) in row.as_chunks::<3>().0.iter().zip(&mut *columns) {
            let [red, green, blue] = *pixel;
            column.as_flattened_mut().as_chunks_mut::<WORD>().0[r] = [red, green, blue, S::default()];
        }
    }
}

/// The pass across, for rows that stand as columns.
struct Across<'a, S: Sample> {
    taps: &'a Taps<S::Weight>,
    columns: &'a [Strip<S>],
    out: &'a mut [S],
}

impl<S: Sample> Op for Across<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let out_row = 3 * self.taps.count();
        for (x, (first, weights)) in self.taps.outputs().enumerate() {
            let values = weigh::<V, S, STRIP>(weights, &self.columns[first..first + weights.len()]);
            let rows = self.out.chunks_exact_mut(out_row);
            for (pixel, row) in values.as_flattened().as_chunks::<WORD>().0.iter().zip(rows) {
                // A word is one store: its idle lane goes along, and the next pixel overwrites it.
                match row[3 * x..].first_chunk_mut::<WORD>() {
                    Some(word) => *word = *pixel,
                    None => row[3 * x..].copy_from_slice(&pixel[..3]),
                }
            }
        }
    }
}

/// The pass down.
struct Down<'a, S: Sample> {
    taps: &'a Taps<S::Weight>,
    source: &'a [S],
    row: usize,
    out: &'a mut [S],
}

impl<S: Sample> Op for Down<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { taps, source, row, out } = self;
        for ((first, weights), out) in taps.outputs().zip(out.chunks_exact_mut(row)) {
            let source = &source[first * row..];
            let (strips, rest) = out.as_chunks_mut::<{ STRIP * LANES }>();
            let (vectors, last) = rest.as_chunks_mut::<LANES>();
            let mut at = 0;
            for strip in strips {
                let values = weigh_rows::<V, S, STRIP>(weights, &source[at..], row);
                strip.copy_from_slice(values.as_flattened());
                at += STRIP * LANES;
            }
            for vector in vectors {
                [*vector] = weigh_rows::<V, S, 1>(weights, &source[at..], row);
                at += LANES;
            }
            if !last.is_empty() {
                last_of::<V, S>(weights, &source[at..], row, last);
            }
        }
    }
}

/// Weighted sum of strips.
#[inline(always)]
fn weigh<V: Vector, S: Sample, const N: usize>(
    weights: &[S::Weight],
    strips: &[[[S; LANES]; N]],
) -> [[S; LANES]; N] {
    let mut sums = [S::Lanes::<V>::start(); N];
    for (strip, weight) in strips.iter().zip(weights) {
        let weight = S::Lanes::<V>::weight(*weight);
        for (sum, values) in sums.iter_mut().zip(strip) {
            *sum = S::Lanes::<V>::add(*sum, weight, values);
        }
    }
    finish::<V, S, N>(&sums)
}

/// The same of the first values of rows of `row` values.
#[inline(always)]
fn weigh_rows<V: Vector, S: Sample, const N: usize>(
    weights: &[S::Weight],
    source: &[S],
    row: usize,
) -> [[S; LANES]; N] {
    let mut sums = [S::Lanes::<V>::start(); N];
    for (values, weight) in source.chunks(row).zip(weights) {
        let weight = S::Lanes::<V>::weight(*weight);
        let values: &[[S; LANES]; N] =
            values.as_chunks().0.first_chunk().expect("a row reaches as far as its strips");
        for (sum, values) in sums.iter_mut().zip(values) {
            *sum = S::Lanes::<V>::add(*sum, weight, values);
        }
    }
    finish::<V, S, N>(&sums)
}

#[inline(always)]
fn finish<V: Vector, S: Sample, const N: usize>(sums: &[V; N]) -> [[S; LANES]; N] {
    // A loop, not `map`: what the library calls back is compiled for the plain machine.
    let mut values = [[S::default(); LANES]; N];
    for (values, sum) in values.iter_mut().zip(sums) {
        *values = S::Lanes::<V>::finish(*sum);
    }
    values
}

/// The same for fewer values than a vector holds.
#[inline(always)]
fn last_of<V: Vector, S: Sample>(weights: &[S::Weight], source: &[S], row: usize, out: &mut [S]) {
    let mut sum = S::Lanes::<V>::start();
    for (values, weight) in source.chunks(row).zip(weights) {
        let mut lanes = [S::default(); LANES];
        lanes[..out.len()].copy_from_slice(&values[..out.len()]);
        sum = S::Lanes::<V>::add(sum, S::Lanes::<V>::weight(*weight), &lanes);
    }
    out.copy_from_slice(&S::Lanes::<V>::finish(sum)[..out.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes around the edges of blocks, strips and vectors; weights that leave 0 to 255 on both sides.
    #[test]
    fn every_family_gives_the_same_bytes() {
        for (width, rows) in [(1, 1), (3, 15), (21, 16), (22, 17), (64, 33), (130, 5)] {
            let source: Vec<u8> = (0..3 * width * rows).map(|i| (i * 37 % 251) as u8).collect();
            let taps = |count: usize, step: i32| {
                let mut taps = Taps::default();
                for first in 0..count {
                    let len = (count - first).min(5);
                    taps.push(first, (0..len).map(|k| ((1 << 22) / len as i32) + (k as i32 - 2) * step));
                }
                taps
            };
            let (x, y) = (taps(width, 90_000), taps(rows, -2_000_000));
            let resampled = |isa: Isa| {
                let (mut across, mut down) = (vec![0; source.len()], vec![0; source.len()]);
                let mut columns = vec![Strip::default(); width];
                let blocks = source.chunks(ROWS * 3 * width).zip(across.chunks_mut(ROWS * 3 * width));
                for (source, out) in blocks {
                    stand(source, 3 * width, &mut columns);
                    isa.run(Across { taps: &x, columns: &columns, out });
                }
                isa.run(Down { taps: &y, source: &source, row: 3 * width, out: &mut down });
                (across, down)
            };
            for isa in Isa::here() {
                assert_eq!(resampled(isa), resampled(Isa::Portable), "{isa:?}: {width} x {rows}");
            }
        }
    }
}
