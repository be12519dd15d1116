//! Full attention of one head over the tokens of one tile: `out = softmax(q k^T / sqrt(d)) v`, no
//! mask.
//!
//! Lower bound for a published tile: 4 x 1040^2 x 80 = 346 million operations a head, on 2 x 333 KB
//! of keys and values that stay in the second-level cache; so arithmetic is the limit, 1.7 ms at
//! 200 GFLOP/s. Scores of `BLOCK` queries (100 KB) are computed, turned into weights and used
//! before the next block. Every sum runs over k = 0, 1, 2, … or over fixed lanes: the result
//! depends on the tile alone.

use super::isa::{InstructionSet, VectorOp};
use super::math::functions::exp;
use super::vector::{LANES, Lanes, Vector};

/// Queries whose scores are stored at a time; a multiple of `ROWS`.
const BLOCK: usize = 24;
/// Queries of a register block.
const ROWS: usize = 6;

/// One head's queries, keys and values in rows of `q | k | v`, each of them head-major.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VisionHead<'a> {
    /// Rows of the tile, `[tokens, 3 hidden]`.
    pub qkv: &'a [f32],
    /// Width of the tower.
    pub hidden: usize,
    /// Size of a head, d.
    pub size: usize,
    /// Index of the head.
    pub index: usize,
}

impl VisionHead<'_> {
    /// Tokens of the tile.
    fn tokens(&self) -> usize {
        self.qkv.len() / (3 * self.hidden)
    }

    /// A token's query, key or value.
    #[inline(always)]
    fn part(&self, token: usize, part: usize) -> &[f32] {
        &self.qkv[(token * 3 + part) * self.hidden + self.index * self.size..][..self.size]
    }

    /// Scratch values of `attend`: keys, values and scores.
    pub(crate) fn work_len(tokens: usize, size: usize) -> usize {
        let keys = tokens.next_multiple_of(LANES);
        let width = size.next_multiple_of(LANES);
        keys * size + width * tokens + BLOCK * keys + BLOCK * width
    }

    pub(crate) fn attend(self, work: &mut [f32], out: &mut [f32]) {
        assert_eq!(out.len(), self.tokens() * self.size, "rows of {} values", self.size);
        assert!(
            work.len() >= Self::work_len(self.tokens(), self.size),
            "scratch for a head's keys, values and scores"
        );
        InstructionSet::best().run(HeadAttention { head: self, work, out });
    }
}

struct HeadAttention<'a> {
    head: VisionHead<'a>,
    work: &'a mut [f32],
    out: &'a mut [f32],
}

impl VectorOp for HeadAttention<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { head, work, out } = self;
        let tokens = head.tokens();
        let size = head.size;
        let keys_wide = tokens.next_multiple_of(LANES);
        let size_wide = size.next_multiple_of(LANES);
        let (keys, work) = work.split_at_mut(keys_wide * size);
        let (values, work) = work.split_at_mut(size_wide * tokens);
        let (scores, mixed) = work.split_at_mut(BLOCK * keys_wide);
        pack_keys(head, keys);
        pack_values(head, values);
        for first in (0..tokens).step_by(BLOCK) {
            let count = BLOCK.min(tokens - first);
            let queries = &head.qkv[first * 3 * head.hidden + head.index * size..];
            multiply::<V>(
                LeftRows { values: queries, stride: 3 * head.hidden, count, depth: size },
                keys,
                scores,
                keys_wide,
            );
            let mut sums = [0.0; BLOCK];
            for (row, sum) in scores.chunks_exact_mut(keys_wide).take(count).zip(&mut sums) {
                *sum = weigh::<V>(row, tokens, 1.0 / (size as f32).sqrt());
            }
            multiply::<V>(
                LeftRows { values: scores, stride: keys_wide, count, depth: tokens },
                values,
                mixed,
                size_wide,
            );
            let rows = out[first * size..].chunks_exact_mut(size).zip(mixed.chunks_exact(size_wide));
            for ((out, mixed), sum) in rows.zip(&sums[..count]) {
                for (out, mixed) in out.iter_mut().zip(mixed) {
                    *out = mixed / sum;
                }
            }
        }
    }
}

/// Panels of sixteen keys, `[keys / 16][size][16]`; padding keys are zero.
#[inline(always)]
fn pack_keys(head: VisionHead<'_>, keys: &mut [f32]) {
    for (panel, keys) in keys.chunks_exact_mut(head.size * LANES).enumerate() {
        keys.fill(0.0);
        for lane in 0..LANES.min(head.tokens() - panel * LANES) {
            let key = head.part(panel * LANES + lane, 1);
            for (target, key) in keys.as_chunks_mut::<LANES>().0.iter_mut().zip(key) {
                target[lane] = *key;
            }
        }
    }
}

/// Panels of sixteen dimensions of the values, `[size / 16][tokens][16]`; padding dimensions are
/// zero.
#[inline(always)]
fn pack_values(head: VisionHead<'_>, values: &mut [f32]) {
    for (panel, values) in values.chunks_exact_mut(head.tokens() * LANES).enumerate() {
        for (token, target) in values.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let part = &head.part(token, 2)[panel * LANES..];
            let part = &part[..part.len().min(LANES)];
            target.fill(0.0);
            target[..part.len()].copy_from_slice(part);
        }
    }
}

/// Turns scores into weights exp((score - greatest) scale); returns their sum. Lanes after the last
/// token become zero.
#[inline(always)]
fn weigh<V: Vector>(scores: &mut [f32], tokens: usize, scale: f32) -> f32 {
    scores[tokens..].fill(f32::NEG_INFINITY);
    let (blocks, _) = scores.as_chunks_mut::<LANES>();
    let mut greatest = V::splat(f32::NEG_INFINITY);
    for block in &*blocks {
        greatest = greatest.max(V::load(block));
    }
    let greatest = V::splat(greatest.largest());
    let scale = V::splat(scale);
    let mut sum = V::zero();
    for block in blocks {
        let weight = exp(V::load(block).sub(greatest).mul(scale));
        weight.store(block);
        sum = sum.add(weight);
    }
    sum.sum()
}

/// Rows of the left side of a product.
#[derive(Clone, Copy)]
struct LeftRows<'a> {
    values: &'a [f32],
    stride: usize,
    count: usize,
    depth: usize,
}

/// `out[r, 16 p + l] = sum over k of rows[r, k] panels[p, k, l]`, out in rows of `width` = 16 x
/// panels.
#[inline(always)]
fn multiply<V: Vector>(rows: LeftRows<'_>, panels: &[f32], out: &mut [f32], width: usize) {
    let mut panel = 0;
    let whole = if V::BLOCK[1] > 1 { width / LANES / 2 * 2 } else { 0 };
    while panel < whole {
        columns::<V, 2>(rows, panels, panel, out, width);
        panel += 2;
    }
    while panel < width / LANES {
        columns::<V, 1>(rows, panels, panel, out, width);
        panel += 1;
    }
}

/// `W` panels of the product.
#[inline(always)]
fn columns<V: Vector, const W: usize>(
    rows: LeftRows<'_>,
    panels: &[f32],
    panel: usize,
    out: &mut [f32],
    width: usize,
) {
    let length = rows.depth * LANES;
    let panels: [&[Lanes]; W] =
        std::array::from_fn(|w| panels[(panel + w) * length..][..length].as_chunks::<LANES>().0);
    let mut row = 0;
    while row + ROWS <= rows.count {
        tile::<V, ROWS, W>(rows, row, panels, &mut out[row * width + panel * LANES..], width);
        row += ROWS;
    }
    while row < rows.count {
        tile::<V, 1, W>(rows, row, panels, &mut out[row * width + panel * LANES..], width);
        row += 1;
    }
}

/// `R` rows of `W` panels, in registers.
#[inline(always)]
fn tile<V: Vector, const R: usize, const W: usize>(
    rows: LeftRows<'_>,
    first: usize,
    panels: [&[Lanes]; W],
    out: &mut [f32],
    width: usize,
) {
    let left: [&[f32]; R] = std::array::from_fn(|r| &rows.values[(first + r) * rows.stride..][..rows.depth]);
    let mut sums = [[V::zero(); W]; R];
    for k in 0..rows.depth {
        let right: [V; W] = std::array::from_fn(|w| V::load(&panels[w][k]));
        for (sums, left) in sums.iter_mut().zip(left) {
            let left = V::splat(left[k]);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = left.fma(right, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (sum, out) in sums.iter().zip(out[r * width..].as_chunks_mut::<LANES>().0) {
            sum.store(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(i: usize, step: f64) -> f32 {
        (i as f64 * step).sin() as f32 * 2.5
    }

    fn attend(head: VisionHead<'_>, isa: InstructionSet) -> Vec<f32> {
        // The earlier contents must not matter.
        let mut work = vec![f32::NAN; VisionHead::work_len(head.tokens(), head.size)];
        let mut out = vec![f32::NAN; head.tokens() * head.size];
        isa.run(HeadAttention { head, work: &mut work, out: &mut out });
        out
    }

    /// Directly from the formula, in double precision.
    fn exact(head: VisionHead<'_>) -> Vec<f64> {
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let mut out = Vec::new();
        for q in 0..head.tokens() {
            let score = |k| dot(head.part(q, 0), head.part(k, 1)) / (head.size as f64).sqrt();
            let scores: Vec<f64> = (0..head.tokens()).map(score).collect();
            let greatest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d: usize| {
                weights
                    .iter()
                    .enumerate()
                    .map(|(k, weight)| weight * f64::from(head.part(k, 2)[d]))
                    .sum::<f64>()
                    / sum
            };
            out.extend((0..head.size).map(value));
        }
        out
    }

    #[test]
    fn it_is_the_formula_on_every_machine() {
        for (tokens, size, heads) in
            [(1, 1, 1), (7, 12, 4), (17, 16, 2), (32, 12, 4), (44, 12, 5), (65, 80, 2), (100, 33, 1)]
        {
            let hidden = size * heads;
            let qkv: Vec<f32> = (0..tokens * 3 * hidden).map(|i| wave(i, 0.731)).collect();
            for index in 0..heads {
                let head = VisionHead { qkv: &qkv, hidden, size, index };
                let want = exact(head);
                let got = attend(head, InstructionSet::Portable);
                for (got, want) in got.iter().zip(&want) {
                    assert!(
                        (f64::from(*got) - want).abs() < 1e-5,
                        "{got} for {want}: {tokens} tokens of {size}"
                    );
                }
                for isa in InstructionSet::available() {
                    assert_eq!(attend(head, isa), got, "{isa:?}: {tokens} tokens of {size}");
                }
            }
        }
    }
}
