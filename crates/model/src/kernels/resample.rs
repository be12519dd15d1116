//! The two passes of a separable resampling of RGB pixels, in 8-bit fixed point and in float32.
//!
//! Lower bound of resizing a 1280 x 720 screenshot to 1024 x 512: 720 x 1024 x 6 taps horizontally
//! and 512 x 1024 x 7 vertically, 3 colours each, are 24 million multiply-adds. At 16 lanes a cycle
//! and 4 GHz that is 0.4 ms; reading and writing 2.8 + 2.2 + 2.2 + 1.6 MB in cache is less. A row
//! of pixels has no lanes to use horizontally (3 colours), so the horizontal pass processes `ROWS`
//! rows in parallel.

use std::ops::Range;

use super::isa::{InstructionSet, VectorOp};
use super::vector::{LANES, Vector};

/// Rows that the horizontal pass processes in parallel.
const ROWS: usize = 16;
/// Values of a pixel in that pass: three colours and one unused lane, so that a pixel moves as one
/// 32-bit value.
const PIXEL_LANES: usize = 4;
/// Vectors that are summed in parallel: one column of `ROWS` rows.
const STRIP: usize = ROWS * PIXEL_LANES / LANES;
/// A column of pixels, or as many consecutive values of a row.
type PixelStrip<S> = [[S; LANES]; STRIP];

/// A colour value and its arithmetic, sixteen at a time.
pub(crate) trait PixelSample: Copy + Default + Send + Sync + 'static {
    /// Type of its weights.
    type Weight: Copy + Default;
    /// Converts values and weights to lanes, and sums back to values.
    type Lanes<V: Vector>: SampleArithmetic<V, Self>;
}

/// Steps of a weighted sum.
pub(crate) trait SampleArithmetic<V: Vector, S: PixelSample> {
    fn start() -> V;
    /// A weight in every lane.
    fn weight(weight: S::Weight) -> V;
    fn add(sum: V, weight: V, values: &[S; LANES]) -> V;
    /// The values of the sums.
    fn finish(sum: V) -> [S; LANES];
}

impl PixelSample for u8 {
    type Weight = i32;
    type Lanes<V: Vector> = FixedPoint;
}

impl PixelSample for f32 {
    type Weight = f32;
    type Lanes<V: Vector> = FloatingPoint;
}

/// Bytes with weights of 22 fractional bits. A sum stays inside 32 bits: the weights of an output
/// add up to at most 1.4 in magnitude, and 1.4 x 2^22 x 255 = 1.5 x 10^9.
pub(crate) struct FixedPoint;

impl<V: Vector> SampleArithmetic<V, u8> for FixedPoint {
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

pub(crate) struct FloatingPoint;

impl<V: Vector> SampleArithmetic<V, f32> for FloatingPoint {
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

/// For each output along one axis, its inputs and their weights.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResampleTaps<W> {
    spans: Vec<(usize, Range<usize>)>,
    weights: Vec<W>,
}

impl<W> ResampleTaps<W> {
    /// Adds an output: its first input, and the weights from there on, at least one.
    pub(crate) fn push(&mut self, first: usize, weights: impl Iterator<Item = W>) {
        let start = self.weights.len();
        self.weights.extend(weights);
        assert!(self.weights.len() > start, "an output has no inputs");
        self.spans.push((first, start..self.weights.len()));
    }

    pub(crate) fn count(&self) -> usize {
        self.spans.len()
    }

    /// Number of inputs needed: one more than the highest index.
    fn reach(&self) -> usize {
        self.spans.iter().map(|(first, weights)| first + weights.len()).max().unwrap_or(0)
    }

    #[inline(always)]
    fn outputs(&self) -> impl Iterator<Item = (usize, &[W])> {
        self.spans.iter().map(|(first, weights)| (*first, &self.weights[weights.clone()]))
    }
}

/// Resamples every row: `out[y, x, c]` from `source[y, .., c]`. `width` is the width of a source
/// row in pixels; `out` has as many rows.
pub(crate) fn across<S: PixelSample>(
    taps: &ResampleTaps<S::Weight>,
    source: &[S],
    width: usize,
    out: &mut [S],
) {
    assert!(taps.reach() <= width, "a row of {width} pixels, inputs up to {}", taps.reach());
    let row = 3 * width;
    let out_row = 3 * taps.count();
    assert_eq!(source.len() / row * out_row, out.len(), "rows of {row} and of {out_row} values");
    let mut columns = vec![PixelStrip::<S>::default(); width];
    for (source, out) in source.chunks(ROWS * row).zip(out.chunks_mut(ROWS * out_row)) {
        transpose_rows(source, row, &mut columns);
        InstructionSet::best().run(HorizontalPass { taps, columns: &columns, out });
    }
}

/// Resamples every column: `out[y, i]` from `source[.., i]`, rows of `row` values.
pub(crate) fn down<S: PixelSample>(taps: &ResampleTaps<S::Weight>, source: &[S], row: usize, out: &mut [S]) {
    let rows = source.len() / row;
    assert!(taps.reach() <= rows, "{rows} rows, inputs up to {}", taps.reach());
    assert_eq!(taps.count() * row, out.len(), "{} rows of {row} values", taps.count());
    InstructionSet::best().run(VerticalPass { taps, source, row, out });
}

/// Transposes rows into lanes: pixel x of row r goes to lanes `4 r ..` of column x. Lanes of
/// missing rows keep their contents, which are never read.
fn transpose_rows<S: PixelSample>(source: &[S], row: usize, columns: &mut [PixelStrip<S>]) {
    for (r, row) in source.chunks_exact(row).enumerate() {
        for (pixel, column) in row.as_chunks::<3>().0.iter().zip(&mut *columns) {
            let [red, green, blue] = *pixel;
            column.as_flattened_mut().as_chunks_mut::<PIXEL_LANES>().0[r] = [red, green, blue, S::default()];
        }
    }
}

/// The horizontal pass, for transposed rows.
struct HorizontalPass<'a, S: PixelSample> {
    taps: &'a ResampleTaps<S::Weight>,
    columns: &'a [PixelStrip<S>],
    out: &'a mut [S],
}

impl<S: PixelSample> VectorOp for HorizontalPass<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let out_row = 3 * self.taps.count();
        for (x, (first, weights)) in self.taps.outputs().enumerate() {
            let values = weigh::<V, S, STRIP>(weights, &self.columns[first..first + weights.len()]);
            let rows = self.out.chunks_exact_mut(out_row);
            for (pixel, row) in values.as_flattened().as_chunks::<PIXEL_LANES>().0.iter().zip(rows) {
                // A pixel is one store of four values: the next pixel overwrites the unused lane.
                match row[3 * x..].first_chunk_mut::<PIXEL_LANES>() {
                    Some(output) => *output = *pixel,
                    None => row[3 * x..].copy_from_slice(&pixel[..3]),
                }
            }
        }
    }
}

struct VerticalPass<'a, S: PixelSample> {
    taps: &'a ResampleTaps<S::Weight>,
    source: &'a [S],
    row: usize,
    out: &'a mut [S],
}

impl<S: PixelSample> VectorOp for VerticalPass<'_, S> {
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
                resample_tail::<V, S>(weights, &source[at..], row, last);
            }
        }
    }
}

/// Weighted sum of strips.
#[inline(always)]
fn weigh<V: Vector, S: PixelSample, const N: usize>(
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

/// Weighted sum of the first values of rows of `row` values.
#[inline(always)]
fn weigh_rows<V: Vector, S: PixelSample, const N: usize>(
    weights: &[S::Weight],
    source: &[S],
    row: usize,
) -> [[S; LANES]; N] {
    let mut sums = [S::Lanes::<V>::start(); N];
    for (values, weight) in source.chunks(row).zip(weights) {
        let weight = S::Lanes::<V>::weight(*weight);
        let values: &[[S; LANES]; N] =
            values.as_chunks().0.first_chunk().expect("a row has all values of its strips");
        for (sum, values) in sums.iter_mut().zip(values) {
            *sum = S::Lanes::<V>::add(*sum, weight, values);
        }
    }
    finish::<V, S, N>(&sums)
}

#[inline(always)]
fn finish<V: Vector, S: PixelSample, const N: usize>(sums: &[V; N]) -> [[S; LANES]; N] {
    // A loop, not `map`: functions that the library calls back are compiled without the vector
    // instructions.
    let mut values = [[S::default(); LANES]; N];
    for (values, sum) in values.iter_mut().zip(sums) {
        *values = S::Lanes::<V>::finish(*sum);
    }
    values
}

/// Weighted sum of fewer values than a vector has lanes.
#[inline(always)]
fn resample_tail<V: Vector, S: PixelSample>(weights: &[S::Weight], source: &[S], row: usize, out: &mut [S]) {
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

    /// Sizes around the edges of blocks, strips and vectors, with weights that exceed 0 to 255 on
    /// both sides.
    #[test]
    fn every_family_gives_the_same_bytes() {
        for (width, rows) in [(1, 1), (3, 15), (21, 16), (22, 17), (64, 33), (130, 5)] {
            let source: Vec<u8> = (0..3 * width * rows).map(|i| (i * 37 % 251) as u8).collect();
            let taps = |count: usize, step: i32| {
                let mut taps = ResampleTaps::default();
                for first in 0..count {
                    let len = (count - first).min(5);
                    taps.push(first, (0..len).map(|k| ((1 << 22) / len as i32) + (k as i32 - 2) * step));
                }
                taps
            };
            let x = taps(width, 90_000);
            let y = taps(rows, -2_000_000);
            let resampled = |isa: InstructionSet| {
                let mut across = vec![0; source.len()];
                let mut down = vec![0; source.len()];
                let mut columns = vec![PixelStrip::default(); width];
                let blocks = source.chunks(ROWS * 3 * width).zip(across.chunks_mut(ROWS * 3 * width));
                for (source, out) in blocks {
                    transpose_rows(source, 3 * width, &mut columns);
                    isa.run(HorizontalPass { taps: &x, columns: &columns, out });
                }
                isa.run(VerticalPass { taps: &y, source: &source, row: 3 * width, out: &mut down });
                (across, down)
            };
            for isa in InstructionSet::available() {
                assert_eq!(resampled(isa), resampled(InstructionSet::Portable), "{isa:?}: {width} x {rows}");
            }
        }
    }
}
