//! Resizes images as the published preprocessing does: Pillow's bicubic on bytes, byte for byte,
//! and torch's antialiased bicubic on float32.
//!
//! Both are separable with one set of weights (a = -0.5, widened when shrinking), first
//! horizontally, then vertically, and skip the pass of a side that keeps its size. The 8-bit form
//! rounds the weights to 22 fractional bits, and the pixels between the passes to bytes.

use std::borrow::Cow;

use crate::kernels::resample::{self, PixelSample, ResampleTaps};

/// Width and height in pixels.
pub(super) type PixelSize = (usize, usize);

/// Resizes RGB bytes `[height, width, 3]`. Sides are at least 1.
pub fn resize(pixels: &[u8], from: (usize, usize), to: (usize, usize)) -> Vec<u8> {
    resample(pixels, from, to).into_owned()
}

/// A value type in which images are resized.
pub(super) trait ResizeSample: PixelSample {
    /// Rounds a position on an axis to the precision in use.
    fn axis_position(position: f64) -> f64;
    fn weight(weight: f64) -> Self::Weight;
}

impl ResizeSample for u8 {
    fn axis_position(position: f64) -> f64 {
        position
    }

    fn weight(weight: f64) -> i32 {
        const ONE: f64 = (1 << 22) as f64;
        (weight * ONE + 0.5f64.copysign(weight)) as i32
    }
}

impl ResizeSample for f32 {
    /// torch computes positions of the filter in float32 too. At pixel 1,000 that is up to 3e-5
    /// off, which at an edge from black to white is 1e-4 in normalised units.
    fn axis_position(position: f64) -> f64 {
        f64::from(position as f32)
    }

    fn weight(weight: f64) -> f32 {
        weight as f32
    }
}

/// Resizes `[height, width, 3]`; borrows if nothing changes.
pub(super) fn resample<S: ResizeSample>(pixels: &[S], from: PixelSize, to: PixelSize) -> Cow<'_, [S]> {
    assert_eq!(pixels.len(), 3 * from.0 * from.1, "an RGB image of {from:?}");
    let mut pixels = Cow::Borrowed(pixels);
    if from.0 != to.0 {
        let mut out = vec![S::default(); 3 * to.0 * from.1];
        resample::across(&taps::<S>(from.0, to.0), &pixels, from.0, &mut out);
        pixels = Cow::Owned(out);
    }
    if from.1 != to.1 {
        let mut out = vec![S::default(); 3 * to.0 * to.1];
        resample::down(&taps::<S>(from.1, to.1), &pixels, 3 * to.0, &mut out);
        pixels = Cow::Owned(out);
    }
    pixels
}

/// Weights of an axis from `inputs` to `outputs` samples.
fn taps<S: ResizeSample>(inputs: usize, outputs: usize) -> ResampleTaps<S::Weight> {
    let scale = S::axis_position(inputs as f64 / outputs as f64);
    let widening = scale.max(1.0);
    let support = 2.0 * widening;
    let mut taps = ResampleTaps::default();
    let mut weights = Vec::new();
    for output in 0..outputs {
        let centre = S::axis_position((output as f64 + 0.5) * scale);
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(inputs);
        weights.clear();
        weights.extend((first..end).map(|input| bicubic((input as f64 - centre + 0.5) * (1.0 / widening))));
        let sum: f64 = weights.iter().sum();
        taps.push(first, weights.iter().map(|weight| S::weight(weight / sum)));
    }
    taps
}

/// Keys' cubic with a = -0.5.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    match x.abs() {
        t if t < 1.0 => ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0,
        t if t < 2.0 => (((t - 5.0) * t + 8.0) * t - 4.0) * A,
        _ => 0.0,
    }
}
