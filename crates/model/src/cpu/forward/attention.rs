//! An attention layer over a batch: projection, keys and values written to their pages, softmax
//! over the pages, projection.

use super::ForwardPass;
use crate::backend::PAGE_TOKENS;
use crate::cpu::work::{AttendJob, BatchWorkspace, attend_tokens, emptied};
use crate::kernels::{PagedAttention, StridedRows};
use crate::layers::attention::{page, store};
use crate::weights::AttentionWeights;

impl ForwardPass<'_> {
    /// Computes the addition to the residual stream from the normed rows. `layer` counts attention
    /// layers.
    pub(super) fn attention(&mut self, layer: usize, weights: &AttentionWeights) {
        let [q, _, qkv] = self.text.attention.widths();
        let all = self.all(self.text.hidden);
        let all_q = self.all(q);
        let all_qkv = self.all(qkv);
        let BatchWorkspace { normed, wide, .. } = &mut *self.work;
        self.crew.product(&weights.qkv, &normed[..all], &mut wide[..all_qkv]);
        self.store(layer);
        self.attend(layer);
        self.join();
        let BatchWorkspace { by_row, delta, .. } = &mut *self.work;
        self.crew.product(&weights.out, &by_row[..all_q], &mut delta[..all]);
    }

    fn store(&mut self, layer: usize) {
        let config = &self.text.attention;
        let [q, kv, qkv] = config.widths();
        for piece in &self.layout.pieces {
            let span = &self.batch[piece.span];
            let rows = self.work.wide[piece.base * qkv..].chunks_exact(qkv).take(piece.len);
            for (position, row) in (piece.start..).zip(rows) {
                let page = self.arena.keys_values_mut(layer, span.pages[position / PAGE_TOKENS]);
                store(config, page, position % PAGE_TOKENS, &row[q..q + kv], &row[q + kv..]);
            }
        }
    }

    /// Distributes KV heads and groups of tokens among the threads.
    fn attend(&mut self, layer: usize) {
        let config = &self.text.attention;
        let layout = self.layout;
        let rows = self.layout.rows();
        let [q, _, qkv] = config.widths();
        let tokens = attend_tokens(config);
        let width = config.group() * config.head_dim;
        let BatchWorkspace { wide, by_head, jobs, .. } = &mut *self.work;

        let mut list: Vec<AttendJob<'_>> = emptied(std::mem::take(&mut jobs.attend));
        let mut rest = &mut by_head[..rows * q];
        for piece in &layout.pieces {
            for kv_head in 0..config.kv_heads {
                let (own, after) = rest.split_at_mut(piece.len * width);
                rest = after;
                let blocks = own.chunks_mut(tokens * width).enumerate();
                let job = |(block, out)| AttendJob { piece: *piece, kv_head, first: block * tokens, out };
                list.extend(blocks.map(job));
            }
        }
        let arena = &*self.arena;
        let batch = self.batch;
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        self.crew.team.pieces(&mut list, 1, |_, jobs| {
            for AttendJob { piece, kv_head, first, out } in jobs {
                let end = *first + out.len() / width;
                let own = StridedRows::new(piece.rows(wide, qkv), *kv_head * width, width, qkv);
                let queries = own.part(*first, end);
                let pages = batch[piece.span].pages;
                PagedAttention { head_dim: config.head_dim, scale, queries }.run(
                    |token| piece.start + *first + token + 1,
                    |index| page(config, arena.keys_values(layer, pages[index]), *kv_head),
                    out,
                );
            }
        });
        jobs.attend = emptied(list);
    }

    /// Gathers the heads' outputs into rows.
    fn join(&mut self) {
        let layout = self.layout;
        let rows = self.layout.rows();
        let [q, _, _] = self.text.attention.widths();
        let wide_row = self.text.attention.group() * self.text.attention.head_dim;
        let BatchWorkspace { by_head, by_row, .. } = &mut *self.work;
        self.crew.rows(&mut by_row[..rows * q], q, |row, out| {
            let piece = &layout.pieces[layout.piece_of[row] as usize];
            let kv_heads = by_head[piece.base * q..].chunks_exact(piece.len * wide_row);
            for (out, kv_head) in out.chunks_exact_mut(wide_row).zip(kv_heads) {
                out.copy_from_slice(&kv_head[(row - piece.base) * wide_row..][..wide_row]);
            }
        });
    }
}
