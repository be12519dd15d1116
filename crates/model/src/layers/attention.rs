//! Grouped-query attention without positions, over pages of keys and values.
//!
//! Scores q . k / sqrt(head size), causal, softmax in float32, weighted sum of values.
//! `kernels::PagedAttention` computes it page by page with a running maximum and sum. Pages begin
//! at absolute positions, so a row sums in the same order for any cut of its prefill. A page holds,
//! for each KV head, keys `[head size, 64]` (so that the scores of 64 positions are adjacent) and
//! then values `[64, head size]`.
//!
//! Lower bound of bytes: a row reads 2 x 4 B x head size a position and KV head, once for all query
//! heads of the group and all rows of a block.

use super::dot;
use crate::backend::PAGE_TOKENS;
use crate::config::AttentionConfig;
use crate::kernels::PageView;

impl AttentionConfig {
    /// Query heads that share a KV head. Query head h uses KV head floor(h / group).
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Values of a row of q, of k (or v), and of all three.
    pub fn widths(&self) -> [usize; 3] {
        let q = self.heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        [q, kv, q + 2 * kv]
    }

    /// Values a layer keeps in a page.
    pub fn page_values(&self) -> usize {
        2 * self.kv_heads * self.head_dim * PAGE_TOKENS
    }
}

/// Writes a position's keys and values, `k` and `v` `[kv heads, head size]`, into a layer's part of
/// a page.
pub fn store(config: &AttentionConfig, page: &mut [f32], at: usize, k: &[f32], v: &[f32]) {
    let size = config.head_dim;
    let heads = k.chunks_exact(size).zip(v.chunks_exact(size));
    for (page, (k, v)) in page.chunks_exact_mut(2 * size * PAGE_TOKENS).zip(heads) {
        let (keys, values) = page.split_at_mut(size * PAGE_TOKENS);
        keys.iter_mut().skip(at).step_by(PAGE_TOKENS).zip(k).for_each(|(key, k)| *key = *k);
        values[at * size..(at + 1) * size].copy_from_slice(v);
    }
}

/// Reads one KV head's key and value at a position of a page, as `store` wrote them.
pub fn load(config: &AttentionConfig, page: &[f32], at: usize, kv_head: usize) -> (Vec<f32>, Vec<f32>) {
    let PageView { keys, values } = self::page(config, page, kv_head);
    let key = keys.iter().skip(at).step_by(PAGE_TOKENS).copied().collect();
    (key, values[at * config.head_dim..(at + 1) * config.head_dim].to_vec())
}

/// Keys and values of one KV head in a layer's part of a page.
pub fn page<'a>(config: &AttentionConfig, page: &'a [f32], kv_head: usize) -> PageView<'a> {
    let half = config.head_dim * PAGE_TOKENS;
    let (keys, values) = page[kv_head * 2 * half..][..2 * half].split_at(half);
    PageView { keys, values }
}

/// The definition, for one query head: softmax(q K^T / sqrt(head size)) V with K and V
/// `[positions, head size]`.
pub fn attend(q: &[f32], keys: &[f32], values: &[f32], out: &mut [f32]) {
    let size = q.len();
    let scale = 1.0 / (size as f32).sqrt();
    let scores: Vec<f32> = keys.chunks_exact(size).map(|key| dot(q, key) * scale).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for (weight, value) in weights.iter().zip(values.chunks_exact(size)) {
        out.iter_mut().zip(value).for_each(|(out, value)| *out = (weight / sum).mul_add(*value, *out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{PagedAttention, StridedRows};

    const CONFIG: AttentionConfig = AttentionConfig { heads: 4, kv_heads: 2, head_dim: 6 };

    fn wave(i: usize) -> f32 {
        (i as f32 * 0.37).sin() * 2.0
    }

    fn key(t: usize) -> Vec<f32> {
        (0..12).map(|i| wave(t * 12 + i)).collect()
    }

    fn value(t: usize) -> Vec<f32> {
        (0..12).map(|i| wave(t * 31 + i + 5)).collect()
    }

    /// Pages of `tokens` positions; everything not written is NaN.
    fn pages(tokens: usize) -> Vec<Vec<f32>> {
        let mut pages = vec![vec![f32::NAN; CONFIG.page_values()]; tokens.div_ceil(PAGE_TOKENS)];
        for t in 0..tokens {
            store(&CONFIG, &mut pages[t / PAGE_TOKENS], t % PAGE_TOKENS, &key(t), &value(t));
        }
        pages
    }

    #[test]
    fn attend_is_the_softmax_over_all_positions() {
        let keys = [1.0, 0.0, 0.0, 2.0, -1.0, 1.0];
        let values = [3.0, -1.0, 5.0, 2.0, 0.0, 7.0];
        let mut out = [f32::NAN; 2];
        attend(&[0.5, -1.0], &keys, &values, &mut out);
        let weights = [0.5_f64, -2.0, -1.5].map(|score| (score / 2.0_f64.sqrt()).exp());
        let sum: f64 = weights.iter().sum();
        let want = [3.0 * weights[0] + 5.0 * weights[1], -weights[0] + 2.0 * weights[1] + 7.0 * weights[2]];
        for (got, want) in out.iter().zip(want) {
            assert!((f64::from(*got) - want / sum).abs() < 1e-6, "{got} for {}", want / sum);
        }
    }

    #[test]
    fn pages_hold_what_the_definition_reads() {
        for (tokens, kv_head) in [(1, 0), (63, 1), (64, 0), (65, 1), (200, 0), (200, 1)] {
            let queries: Vec<f32> = (0..12).map(|i| wave(i + 77)).collect();
            let mut got = [f32::NAN; 12];
            let stored = pages(tokens);
            PagedAttention {
                head_dim: 6,
                scale: 1.0 / 6.0_f32.sqrt(),
                queries: StridedRows::new(&queries, 0, 12, 12),
            }
            .run(|_| tokens, |index| page(&CONFIG, &stored[index], kv_head), &mut got);
            let own = kv_head * 6..kv_head * 6 + 6;
            let keys: Vec<f32> = (0..tokens).flat_map(|t| key(t)[own.clone()].to_vec()).collect();
            let values: Vec<f32> = (0..tokens).flat_map(|t| value(t)[own.clone()].to_vec()).collect();
            let mut want = [0.0; 12];
            for (q, out) in queries.chunks_exact(6).zip(want.chunks_exact_mut(6)) {
                attend(q, &keys, &values, out);
            }
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 2e-6, "{tokens} tokens: {got} for {want}");
            }
        }
    }

    #[test]
    fn a_stored_position_is_read_back() {
        let pages = pages(70);
        let (k, v) = load(&CONFIG, &pages[1], 5, 1);
        assert_eq!(k, key(69)[6..]);
        assert_eq!(v, value(69)[6..]);
    }
}
