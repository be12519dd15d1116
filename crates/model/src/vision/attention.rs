//! Attention inside tiles. Every head of every tile is a separate task; tiles never see each other.

use super::space::resized;
use crate::kernels::ThreadPool;
use crate::kernels::vision_attention::VisionHead;

/// Shape of the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionShape {
    /// Width of the tower.
    pub hidden: usize,
    pub heads: usize,
    /// Tokens of a tile.
    pub tokens: usize,
}

/// Computes `out` `[tiles x tokens, hidden]` from rows of `q | k | v`,
/// `[tiles x tokens, 3 hidden]`.
pub(super) fn run(
    team: &ThreadPool,
    shape: AttentionShape,
    qkv: &[f32],
    work: &mut Vec<f32>,
    out: &mut [f32],
) {
    let AttentionShape { hidden, heads, tokens } = shape;
    let size = hidden / heads;
    let tiles = out.len() / (hidden * tokens);
    // A task's piece holds its result and its scratch: for a published tile 0.3 + 0.8 MB, which
    // fits a second-level cache.
    let piece = tokens * size + VisionHead::work_len(tokens, size);
    let work = resized(work, tiles * heads * piece);
    team.pieces(work, piece, |task, piece| {
        let rows = &qkv[task / heads * tokens * 3 * hidden..][..tokens * 3 * hidden];
        let (mixed, scratch) = piece.split_at_mut(tokens * size);
        VisionHead { qkv: rows, hidden, size, index: task % heads }.attend(scratch, mixed);
    });
    let work = &*work;
    team.pieces(out, tokens * hidden, |tile, out| {
        for (token, row) in out.chunks_exact_mut(hidden).enumerate() {
            for (head, part) in row.chunks_exact_mut(size).enumerate() {
                part.copy_from_slice(&work[(tile * heads + head) * piece + token * size..][..size]);
            }
        }
    });
}
