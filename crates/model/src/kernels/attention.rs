//! Attention of some query rows to the pages of one key-value head.
//!
//! Lower bound: a row takes 4 D operations a key on 8 D bytes of keys and values. The rows of a
//! group of heads and of neighbouring tokens share one pass, so with r rows a page of 64 keys costs
//! 256 D r operations for 512 D bytes: memory-bound below about ten rows. Blocks of rows after the
//! first read a page of 128 x 64 x 2 floats, 64 KiB, from the second-level cache.
//!
//! Order: a score is the chain `fma(q[d], k[d], …)` over d, times the scale. The softmax runs over
//! pages of 64 keys at absolute positions; each page's sum uses the tree of `Vector::sum` over four
//! vectors added as (0 + 1) + (2 + 3). An output is the chain over the keys of a page, started from
//! the rescaled result of the pages before. A row reads only the keys visible to it, so neither its
//! neighbours nor the cuts of a prompt change a bit of it.
#![allow(unsafe_code)]

use super::StridedRows;
use super::isa::{InstructionSet, VectorOp};
use super::math::functions::exp;
use super::product::each;
use super::vector::{LANES, Vector};

/// Keys of a page.
pub(crate) const PAGE_KEYS: usize = 64;

/// Keys and values of 64 positions.
#[derive(Debug, Clone, Copy)]
pub struct PageView<'a> {
    /// `[head_dim][64]`: the keys of the page are adjacent, so that each lane computes a score and
    /// no sum over lanes is needed.
    pub keys: &'a [f32],
    pub values: &'a [f32],
}

/// Queries of some tokens to one key-value head.
#[derive(Debug, Clone, Copy)]
pub struct PagedAttention<'a> {
    /// Size of a head, D.
    pub head_dim: usize,
    /// Factor on the scores, 1 / sqrt(D).
    pub scale: f32,
    /// `[T][heads of the group x D]`.
    pub queries: StridedRows<'a>,
}

/// Rows whose softmax is computed at once; their running values stay on the stack.
const ROWS: usize = 96;

/// Rows of a register block: 6 x 4 vectors of scores or of outputs.
const BLOCK: usize = 6;

impl PagedAttention<'_> {
    /// Computes `out[T][heads of the group x D]`. Token t sees the first `visible(t)` keys, at
    /// least one. `page(i)` holds the keys from 64 i on; its contents after the last visible key
    /// are never read.
    pub fn run<'p>(
        self,
        visible: impl Fn(usize) -> usize,
        page: impl Fn(usize) -> PageView<'p>,
        out: &mut [f32],
    ) {
        self.run_by(InstructionSet::best(), visible, page, out);
    }

    fn run_by<'p>(
        self,
        isa: InstructionSet,
        visible: impl Fn(usize) -> usize,
        page: impl Fn(usize) -> PageView<'p>,
        out: &mut [f32],
    ) {
        let tokens = self.queries.count();
        let width = self.queries.width();
        let head_dim = self.head_dim;
        assert!(head_dim > 0 && width.is_multiple_of(head_dim), "heads of {head_dim} in queries of {width}");
        assert_eq!(out.len(), tokens * width, "outputs of {tokens} tokens by {width}");
        let heads = width / head_dim;
        let rows = tokens * heads;
        for (index, out) in out.chunks_mut(ROWS * head_dim).enumerate() {
            let first = index * ROWS;
            let count = ROWS.min(rows - first);
            let mut running = RunningSoftmax::new(count, |row| visible((first + row) / heads));
            out.fill(0.0);
            for at in 0..running.pages() {
                let page = page(at);
                page.check(head_dim);
                isa.run(PagePass { attention: &self, first, at, page, running: &mut running, out });
            }
            running.finish(head_dim, out);
        }
    }

    /// The query of a row: rows count heads of a group first, then tokens.
    #[inline(always)]
    fn query(&self, row: usize) -> &[f32] {
        let heads = self.queries.width() / self.head_dim;
        &self.queries.row(row / heads)[row % heads * self.head_dim..][..self.head_dim]
    }
}

impl PageView<'_> {
    fn check(&self, head_dim: usize) {
        let lens = [self.keys.len(), self.values.len()];
        assert_eq!(lens, [PAGE_KEYS * head_dim; 2], "keys and values of a page, {PAGE_KEYS} x {head_dim}");
    }
}

/// State of the softmax of some rows between pages.
struct RunningSoftmax {
    count: usize,
    /// Keys each row sees.
    visible: [usize; ROWS],
    /// The largest score so far.
    most: [f32; ROWS],
    /// The sum of e^(score - most) so far.
    sum: [f32; ROWS],
}

impl RunningSoftmax {
    fn new(count: usize, visible: impl Fn(usize) -> usize) -> Self {
        let mut new = Self { count, visible: [0; ROWS], most: [f32::NEG_INFINITY; ROWS], sum: [0.0; ROWS] };
        for (row, visible_keys) in new.visible[..count].iter_mut().enumerate() {
            *visible_keys = visible(row);
            assert!(*visible_keys > 0, "a row sees no key");
        }
        new
    }

    fn pages(&self) -> usize {
        self.visible[..self.count].iter().max().map_or(0, |most| most.div_ceil(PAGE_KEYS))
    }

    fn finish(&self, head_dim: usize, out: &mut [f32]) {
        for (out, sum) in out.chunks_exact_mut(head_dim).zip(self.sum) {
            out.iter_mut().for_each(|value| *value /= sum);
        }
    }
}

/// All rows of one block against one page.
struct PagePass<'a> {
    attention: &'a PagedAttention<'a>,
    /// The row that is row 0 of `running` and `out`.
    first: usize,
    /// Index of the page.
    at: usize,
    page: PageView<'a>,
    running: &'a mut RunningSoftmax,
    out: &'a mut [f32],
}

/// The scores of a block of rows, and then e^(score - most).
type ScoreBlock = [[f32; PAGE_KEYS]; BLOCK];

impl VectorOp for PagePass<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let mut row = 0;
        while row < self.running.count {
            let rows = BLOCK.min(self.running.count - row);
            self.block::<V>(row, rows);
            row += rows;
        }
    }
}

impl PagePass<'_> {
    /// Up to 6 rows, starting at `row`.
    #[inline(always)]
    fn block<V: Vector>(&mut self, row: usize, rows: usize) {
        let mut keys = [0; BLOCK];
        for (index, keys) in keys[..rows].iter_mut().enumerate() {
            let before = self.at * PAGE_KEYS;
            *keys = self.running.visible[row + index].saturating_sub(before).min(PAGE_KEYS);
        }
        if keys == [0; BLOCK] {
            return;
        }
        let mut scores = [[0.0; PAGE_KEYS]; BLOCK];
        self.score::<V>(row, rows, &mut scores);
        for index in 0..rows {
            if keys[index] > 0 {
                self.weigh::<V>(row + index, keys[index], &mut scores[index]);
            }
        }
        let head_dim = self.attention.head_dim;
        let out = &mut self.out[row * head_dim..][..rows * head_dim];
        gather::<V>(&scores, &keys[..rows], self.page.values, head_dim, out);
    }

    /// Scores of some rows with every key of the page. Scores of keys after the last one are not
    /// used and may be NaN.
    #[inline(always)]
    fn score<V: Vector>(&self, row: usize, rows: usize, scores: &mut ScoreBlock) {
        let mut queries = [self.attention.query(self.first + row); BLOCK];
        for (index, query) in queries[..rows].iter_mut().enumerate() {
            *query = self.attention.query(self.first + row + index);
        }
        let scale = V::splat(self.attention.scale);
        let operands =
            RowOperands { from: self.page.keys, stride: PAGE_KEYS, count: self.attention.head_dim };
        /// One match arm for each number of rows, so that the sums stay in registers.
        macro_rules! by_rows {
            ($vectors:literal from $column:expr; $($rows:literal)*) => {
                match rows {
                    $($rows => scored::<V, $rows, $vectors>(&operands, $column, &queries, scale, scores),)*
                    _ => unreachable!("a block of {rows} rows"),
                }
            };
        }
        if V::BLOCK[1] == 2 {
            by_rows!(4 from 0; 1 2 3 4 5 6);
        } else {
            for column in (0..PAGE_KEYS).step_by(LANES) {
                by_rows!(1 from column; 1 2 3 4 5 6);
            }
        }
    }

    /// Turns a row's scores into e^(score - most), and updates its running softmax and rescales its
    /// outputs.
    #[inline(always)]
    fn weigh<V: Vector>(&mut self, row: usize, keys: usize, scores: &mut [f32; PAGE_KEYS]) {
        scores[keys..].fill(f32::NEG_INFINITY);
        let (lanes, _) = scores.as_chunks_mut::<LANES>();
        let [a, b, c, d] = [0, 1, 2, 3].map(|vector| V::load(&lanes[vector]));
        let before = self.running.most[row];
        let most = V::splat(before).max(a.max(b).max(c.max(d))).largest();
        // NaN is never the largest; it reaches the outputs through its own exponential.
        let shift = V::splat(most);
        let weights = [exp(a.sub(shift)), exp(b.sub(shift)), exp(c.sub(shift)), exp(d.sub(shift))];
        for (lanes, weights) in lanes.iter_mut().zip(weights) {
            weights.store(lanes);
        }
        let [a, b, c, d] = weights;
        let rescale = exp(V::splat(before).sub(shift));
        let kept = rescale.lanes()[0];
        self.running.most[row] = most;
        self.running.sum[row] = self.running.sum[row].mul_add(kept, a.add(b).add(c.add(d)).sum());
        let head_dim = self.attention.head_dim;
        for value in &mut self.out[row * head_dim..][..head_dim] {
            *value *= kept;
        }
    }
}

/// A matrix that every row of a block is multiplied with, row by row: `count` rows, `stride` apart.
#[derive(Clone, Copy)]
struct RowOperands<'a> {
    from: &'a [f32],
    stride: usize,
    count: usize,
}

/// M rows of scores by N vectors of keys.
#[inline(always)]
fn scored<V: Vector, const M: usize, const N: usize>(
    keys: &RowOperands<'_>,
    column: usize,
    queries: &[&[f32]; BLOCK],
    scale: V,
    scores: &mut [[f32; PAGE_KEYS]],
) {
    let mut sums = [[V::zero(); N]; M];
    chain(&mut sums, keys, column, |row| queries[row]);
    each!(row < M, {
        each!(vector < N, {
            let (lanes, _) = scores[row][column..].as_chunks_mut::<LANES>();
            sums[row][vector].mul(scale).store(&mut lanes[vector]);
        });
    });
}

/// `sums[row] = fma(factors(row)[i], matrix[i], sums[row])` for every i in order.
#[inline(always)]
fn chain<'a, V: Vector, const M: usize, const N: usize>(
    sums: &mut [[V; N]; M],
    matrix: &RowOperands<'_>,
    column: usize,
    factors: impl Fn(usize) -> &'a [f32],
) {
    let mut starts = [std::ptr::null(); M];
    each!(row < M, {
        starts[row] = factors(row)[..matrix.count].as_ptr();
    });
    if matrix.count == 0 {
        return;
    }
    let block = &matrix.from[column..];
    assert!(
        block.len() >= (matrix.count - 1) * matrix.stride + N * LANES,
        "a matrix of {} rows",
        matrix.count
    );
    for at in 0..matrix.count {
        let mut vectors = [V::zero(); N];
        each!(vector < N, {
            // SAFETY: by the assertion above.
            vectors[vector] = unsafe { V::load_at(block.as_ptr().add(at * matrix.stride + vector * LANES)) };
        });
        each!(row < M, {
            // SAFETY: each row of factors was checked to have `count` values.
            let factor = V::splat(unsafe { *starts[row].add(at) });
            each!(vector < N, {
                sums[row][vector] = vectors[vector].fma(factor, sums[row][vector]);
            });
        });
    }
}

/// Adds the weighted values of a page to the outputs: all rows together up to the fewest keys that
/// any row sees, then each row alone for the rest of its keys.
#[inline(always)]
fn gather<V: Vector>(weights: &ScoreBlock, keys: &[usize], values: &[f32], head_dim: usize, out: &mut [f32]) {
    let fewest = keys.iter().copied().min().unwrap_or(0);
    let together = RowOperands { from: values, stride: head_dim, count: fewest };
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match keys.len() {
                $($rows => gathered::<V, $rows>(&together, |row| &weights[row], head_dim, out),)*
                rows => unreachable!("a block of {rows} rows"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6);
    for (row, (keys, out)) in keys.iter().zip(out.chunks_exact_mut(head_dim)).enumerate() {
        if *keys > fewest {
            let rest =
                RowOperands { from: &values[fewest * head_dim..], stride: head_dim, count: keys - fewest };
            gathered::<V, 1>(&rest, |_| &weights[row][fewest..], head_dim, out);
        }
    }
}

/// M rows of outputs, all columns: four vectors at a time while the registers suffice, then one,
/// then the rest.
#[inline(always)]
fn gathered<'a, V: Vector, const M: usize>(
    values: &RowOperands<'_>,
    weights: impl Fn(usize) -> &'a [f32] + Copy,
    head_dim: usize,
    out: &mut [f32],
) {
    let mut column = 0;
    while V::BLOCK[1] == 2 && column + 4 * LANES <= head_dim {
        gathered_columns::<V, M, 4>(values, column, weights, head_dim, out);
        column += 4 * LANES;
    }
    while column + LANES <= head_dim {
        gathered_columns::<V, M, 1>(values, column, weights, head_dim, out);
        column += LANES;
    }
    for row in 0..M {
        for (index, sum) in out[row * head_dim..][column..head_dim].iter_mut().enumerate() {
            for (at, weight) in weights(row)[..values.count].iter().enumerate() {
                *sum = values.from[at * values.stride + column + index].mul_add(*weight, *sum);
            }
        }
    }
}

#[inline(always)]
fn gathered_columns<'a, V: Vector, const M: usize, const N: usize>(
    values: &RowOperands<'_>,
    column: usize,
    weights: impl Fn(usize) -> &'a [f32],
    head_dim: usize,
    out: &mut [f32],
) {
    let mut sums = [[V::zero(); N]; M];
    each!(row < M, {
        let (lanes, _) = out[row * head_dim + column..].as_chunks::<LANES>();
        each!(vector < N, {
            sums[row][vector] = V::load(&lanes[vector]);
        });
    });
    chain(&mut sums, values, column, weights);
    each!(row < M, {
        let (lanes, _) = out[row * head_dim + column..].as_chunks_mut::<LANES>();
        each!(vector < N, {
            sums[row][vector].store(&mut lanes[vector]);
        });
    });
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha12Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const SEED: u64 = 11;

    /// Keys and values of some positions in pages; positions after the last one are NaN.
    struct TestPages {
        head_dim: usize,
        keys: Vec<f32>,
        values: Vec<f32>,
    }

    impl TestPages {
        fn new(rng: &mut ChaCha12Rng, positions: usize, head_dim: usize) -> Self {
            let len = positions.next_multiple_of(PAGE_KEYS) * head_dim;
            let mut new = Self { head_dim, keys: vec![f32::NAN; len], values: vec![f32::NAN; len] };
            for at in 0..positions * head_dim {
                let position = at / head_dim;
                let d = at % head_dim;
                let key = new.key(position, d);
                new.keys[key] = rng.random_range(-1.0f32..1.0);
                new.values[at] = rng.random_range(-1.0f32..1.0);
            }
            new
        }

        fn key(&self, position: usize, d: usize) -> usize {
            position / PAGE_KEYS * PAGE_KEYS * self.head_dim + d * PAGE_KEYS + position % PAGE_KEYS
        }

        fn page(&self, at: usize) -> PageView<'_> {
            let len = PAGE_KEYS * self.head_dim;
            PageView { keys: &self.keys[at * len..][..len], values: &self.values[at * len..][..len] }
        }

        /// Attention of one query in float64.
        fn exact(&self, query: &[f32], visible: usize, scale: f32) -> Vec<f64> {
            let score = |position: usize| -> f64 {
                let products = query.iter().enumerate();
                let products =
                    products.map(|(d, q)| f64::from(*q) * f64::from(self.keys[self.key(position, d)]));
                products.sum::<f64>() * f64::from(scale)
            };
            let weights: Vec<f64> = (0..visible).map(|position| score(position).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |position: usize, d: usize| f64::from(self.values[position * self.head_dim + d]);
            let out = |d| weights.iter().enumerate().map(|(at, weight)| weight / sum * value(at, d)).sum();
            (0..self.head_dim).map(out).collect()
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Checks tokens after `start` others: against float64, with every instruction set, and each
    /// token alone.
    #[track_caller]
    fn check(head_dim: usize, heads: usize, start: usize, tokens: usize) {
        let mut rng = ChaCha12Rng::seed_from_u64(SEED);
        let pages = TestPages::new(&mut rng, start + tokens, head_dim);
        let at = 3;
        let width = heads * head_dim;
        let stride = at + width + 2;
        let queries: Vec<f32> = (0..tokens * stride).map(|_| rng.random_range(-2.0f32..2.0)).collect();
        let scale = 1.0 / (head_dim as f32).sqrt();
        let rows = StridedRows::new(&queries, at, width, stride);
        let case = format!("{tokens} tokens of {heads} heads of {head_dim} after {start}, seed {SEED}");
        let mut all: Option<Vec<f32>> = None;
        for isa in InstructionSet::available() {
            let mut out = vec![f32::NAN; tokens * width];
            let attention = PagedAttention { head_dim, scale, queries: rows };
            attention.run_by(isa, |token| start + token + 1, |at| pages.page(at), &mut out);
            let first = all.get_or_insert_with(|| out.clone());
            assert!(bits(first) == bits(&out), "{case}: {isa:?}");
        }
        let all = all.unwrap();
        for token in 0..tokens {
            let mut alone = vec![f32::NAN; width];
            let attention = PagedAttention { head_dim, scale, queries: rows.part(token, token + 1) };
            attention.run(|_| start + token + 1, |at| pages.page(at), &mut alone);
            let got = &all[token * width..][..width];
            assert!(bits(got) == bits(&alone), "{case}: token {token} alone");
            for (query, got) in rows.row(token).chunks(head_dim).zip(got.chunks(head_dim)) {
                for (got, want) in got.iter().zip(pages.exact(query, start + token + 1, scale)) {
                    // Outputs are means of values below 1; float32 keeps seven digits of them.
                    assert!((f64::from(*got) - want).abs() < 1e-6, "{case}: token {token}: {got} for {want}");
                }
            }
        }
    }

    #[test]
    fn attention_is_exact_and_each_row_alone() {
        for (head_dim, heads, start, tokens) in [
            (1, 1, 0, 1),
            (12, 1, 0, 3),
            (16, 3, 0, 70),
            (16, 4, 62, 5),
            (20, 2, 63, 2),
            (64, 3, 64, 1),
            (64, 3, 100, 40),
            (80, 1, 127, 1),
            (80, 5, 300, 13),
            (128, 5, 1000, 1),
            (128, 2, 120, 60),
        ] {
            check(head_dim, heads, start, tokens);
        }
    }

    #[test]
    fn a_query_that_is_not_a_number_stays_alone() {
        let mut rng = ChaCha12Rng::seed_from_u64(SEED);
        let pages = TestPages::new(&mut rng, 100, 16);
        let mut queries = vec![0.5; 10 * 32];
        queries[4 * 32 + 3] = f32::NAN;
        let mut out = vec![0.0; 10 * 32];
        let attention =
            PagedAttention { head_dim: 16, scale: 0.25, queries: StridedRows::new(&queries, 0, 32, 32) };
        attention.run(|token| 91 + token, |at| pages.page(at), &mut out);
        for (row, out) in out.chunks(16).enumerate() {
            assert!(out.iter().all(|value| value.is_nan() == (row == 8)), "row {row}");
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let keys = vec![30.0; PAGE_KEYS * 16];
        let values: Vec<f32> = (0..PAGE_KEYS * 16).map(|at| (at / 16) as f32).collect();
        let page = PageView { keys: &keys, values: &values };
        let queries = [30.0; 16];
        let mut out = [0.0; 16];
        let attention =
            PagedAttention { head_dim: 16, scale: 1.0, queries: StridedRows::new(&queries, 0, 16, 16) };
        attention.run(|_| 3, |_| page, &mut out);
        assert_eq!(out, [1.0; 16]);
    }
}
