//! From tower features to rows of the language model: pixel shuffle, RMSNorm, squared-ReLU MLP.

use super::encode::{EncoderStage, StageTrace, VisionEncoder};
use super::space::{TowerSpace, resized};
use crate::layers::{mlp, norm};

/// Epsilon of the projector's norm.
const EPSILON: f32 = 1e-5;

impl VisionEncoder<'_> {
    /// Projects the tower's output in `space.hidden` to `out`, `[tiles x rows_per_tile, H]`.
    pub(super) fn project(&self, space: &mut TowerSpace, out: &mut [f32], trace: StageTrace<'_>) {
        let TowerSpace { hidden, narrow, wide, .. } = space;
        let width = self.config.hidden;
        let features = drop_prefix(hidden, self.tokens() * width, self.prefix() * width);
        trace(EncoderStage::Features, &hidden[..features]);
        let shuffled = resized(narrow, features);
        let tile = self.config.patches_side().pow(2) * width;
        for (features, shuffled) in hidden[..features].chunks_exact(tile).zip(shuffled.chunks_exact_mut(tile))
        {
            self.shuffle(features, shuffled);
        }
        trace(EncoderStage::Shuffled, shuffled);
        let normed = &mut hidden[..features];
        norm::rms(self.crew, shuffled, &self.weights.projector_norm, EPSILON, normed);
        let projector = &self.weights.projector;
        let wide = resized(wide, out.len() / projector.down.out() * projector.up.out());
        mlp::forward(self.crew, projector, normed, wide, out);
    }

    /// Token (i, j) consists of patches (s i + a, s j + b), a before b. "v1" writes it to (j, i).
    fn shuffle(&self, features: &[f32], shuffled: &mut [f32]) {
        let width = self.config.hidden;
        let side = self.config.patches_side();
        let s = self.config.shuffle;
        for (index, token) in shuffled.chunks_exact_mut(s * s * width).enumerate() {
            let row = index / (side / s);
            let column = index % (side / s);
            let (i, j) = if self.config.shuffle_swapped { (column, row) } else { (row, column) };
            for (a, patches) in token.chunks_exact_mut(s * width).enumerate() {
                patches.copy_from_slice(&features[((s * i + a) * side + s * j) * width..][..s * width]);
            }
        }
    }
}

/// Moves the values after the first `prefix` of every `tile` values to the front; returns how many
/// values are left.
fn drop_prefix(values: &mut [f32], tile: usize, prefix: usize) -> usize {
    let kept = tile - prefix;
    let tiles = values.len() / tile;
    for index in 0..tiles {
        let start = index * tile + prefix;
        values.copy_within(start..start + kept, index * kept);
    }
    tiles * kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_dropped_tile_by_tile() {
        let mut values = [9.0, 9.0, 1.0, 2.0, 3.0, 9.0, 9.0, 4.0, 5.0, 6.0];
        let left = drop_prefix(&mut values, 5, 2);
        assert_eq!(values[..left], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
