//! Attention inside tiles: every head of every tile is a task of its own; tiles never see each other.

use crate::kernels::Team;
use crate::kernels::vision_attention::Head;

/// Shape of the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Width of the tower.
    pub hidden: usize,
    /// Heads.
    pub heads: usize,
    /// Tokens of a tile.
    pub tokens: usize,
}

/// From rows of `q | k | v`, `[tiles x tokens, 3 hidden]`, to `out` `[tiles x tokens, hidden]`.
pub(super) fn run(team: &Team, shape: Shape, qkv: &[f32], work: &mut Vec<f32>, out: &mut [f32]) {
    let Shape { hidden, heads, tokens } = shape;
    let (size, tiles) = (hidden / heads, out.len() / (hidden * tokens));
    // A task's piece holds its result and the room it works in: of a published tile 0.3 + 0.8 MB, which a second-level cache holds.
    let piece = tokens * size + Head::work_len(tokens, size);
    let work = super::tower::resized(work, tiles * heads * piece);
    team.pieces(work, piece, |task, piece| {
        let rows = &qkv[task / heads * tokens * 3 * hidden..][..tokens * 3 * hidden];
        let (mixed, room) = piece.split_at_mut(tokens * size);
        Head { qkv: rows, hidden, size, index: task % heads }.attend(room, mixed);
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
