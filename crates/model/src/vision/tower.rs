//! The RADIO tower: patches, positions, prefix tokens, transformer blocks.
//!
//! Lower bound for a published tile (1040 tokens, 629 million weights in 32 blocks): products 2 x
//! 629e6 x 1040 = 1.31 TFLOP, attention 4 x 1040^2 x 1280 x 32 = 0.18 TFLOP, against 2.5 GB of
//! float32 weights read once for a group of tiles: arithmetic is the limit, not memory.

use super::encode::{EncoderStage, StageTrace, VisionEncoder};
use super::space::{TowerSpace, resized};
use super::tiles::ImageTile;
use super::{attention, positions};
use crate::kernels::tower::{bias_gelu, layer_norm};
use crate::weights::{BiasedMatrix, LayerNormWeights, VisionBlock};

/// Epsilon of both LayerNorms of a block.
const EPSILON: f32 = 1e-6;

impl VisionEncoder<'_> {
    /// Tokens of a tile in the tower.
    pub(super) fn tokens(&self) -> usize {
        self.prefix() + self.config.patches_side().pow(2)
    }

    /// Prefix tokens: as many as the checkpoint has.
    pub(super) fn prefix(&self) -> usize {
        self.weights.prefix.len() / self.config.hidden
    }

    /// Resizes the position table for all groups of tiles of a call.
    pub(super) fn resize_positions(&self, space: &mut TowerSpace) {
        positions::resize(self.config, &self.weights.positions, &mut space.positions);
    }

    /// Runs the tower over some tiles; the result is `space.hidden`.
    pub(super) fn tower(&self, space: &mut TowerSpace, tiles: &[ImageTile], trace: StageTrace<'_>) {
        self.embed(space, tiles);
        trace(EncoderStage::State(0), &space.hidden);
        for (index, block) in self.weights.blocks.iter().enumerate() {
            self.attend(space, block);
            self.mlp(space, block);
            trace(EncoderStage::State(index + 1), &space.hidden);
        }
    }

    /// The prefix unchanged, then patches `W x` plus their positions.
    fn embed(&self, space: &mut TowerSpace, tiles: &[ImageTile]) {
        let TowerSpace { positions, hidden, narrow, wide, .. } = space;
        let values = self.weights.embedder.input();
        let patches = tiles.len() * self.config.patches_side().pow(2);
        let patches = resized(wide, patches * values);
        for (tile, patches) in
            tiles.iter().zip(patches.chunks_exact_mut(self.config.patches_side().pow(2) * values))
        {
            cut_patches(&tile.pixels, self.config.patch, patches);
        }
        let embedded = resized(narrow, tiles.len() * positions.len());
        self.crew.product(&self.weights.embedder, patches, embedded);
        hidden.clear();
        for embedded in embedded.chunks_exact(positions.len()) {
            hidden.extend_from_slice(&self.weights.prefix);
            hidden.extend(embedded.iter().zip(&*positions).map(|(value, position)| value + position));
        }
    }

    fn attend(&self, space: &mut TowerSpace, block: &VisionBlock) {
        let width = self.config.hidden;
        let TowerSpace { hidden, narrow, wide, heads, .. } = space;
        let narrow = resized(narrow, hidden.len());
        let qkv = resized(wide, 3 * hidden.len());
        self.norm(&block.norm1, hidden, narrow);
        self.crew.product(&block.qkv.matrix, narrow, qkv);
        self.crew.rows(qkv, 3 * width, |_, row| add(row, &block.qkv.bias));
        let shape =
            attention::AttentionShape { hidden: width, heads: self.config.heads, tokens: self.tokens() };
        attention::run(self.crew.team, shape, qkv, heads, narrow);
        let out = &mut qkv[..hidden.len()];
        self.join(&block.proj, narrow, out, hidden);
    }

    fn mlp(&self, space: &mut TowerSpace, block: &VisionBlock) {
        let TowerSpace { hidden, narrow, wide, .. } = space;
        let narrow = resized(narrow, hidden.len());
        let inner = block.fc1.matrix.out();
        let wide = resized(wide, hidden.len() / self.config.hidden * inner);
        self.norm(&block.norm2, hidden, narrow);
        self.crew.product(&block.fc1.matrix, narrow, wide);
        self.crew.rows(wide, inner, |_, row| bias_gelu(row, &block.fc1.bias));
        self.join(&block.fc2, wide, narrow, hidden);
    }

    fn norm(&self, norm: &LayerNormWeights, x: &[f32], out: &mut [f32]) {
        let width = self.config.hidden;
        self.crew.rows(out, width, |row, out| {
            layer_norm(&x[row * width..][..width], &norm.weight, &norm.bias, EPSILON, out);
        });
    }

    /// `hidden += W x + b`, with `out` as scratch for the product.
    fn join(&self, layer: &BiasedMatrix, x: &[f32], out: &mut [f32], hidden: &mut [f32]) {
        let width = self.config.hidden;
        self.crew.product(&layer.matrix, x, out);
        self.crew.rows(hidden, width, |row, hidden| {
            add(hidden, &layer.bias);
            add(hidden, &out[row * width..][..width]);
        });
    }
}

fn add(values: &mut [f32], more: &[f32]) {
    values.iter_mut().zip(more).for_each(|(value, more)| *value += more);
}

/// Patches row by row; in each patch by channel, row and column.
fn cut_patches(pixels: &[f32], side: usize, patches: &mut [f32]) {
    let plane = pixels.len() / 3;
    let tile = plane.isqrt();
    let across = tile / side;
    for (index, patch) in patches.chunks_exact_mut(3 * side * side).enumerate() {
        let corner = index / across * side * tile + index % across * side;
        for (line, values) in patch.chunks_exact_mut(side).enumerate() {
            let channel = line / side;
            let y = line % side;
            values.copy_from_slice(&pixels[channel * plane + corner + y * tile..][..side]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_cut_row_by_row_and_hold_channel_row_column() {
        // A tile of 4 x 4: value = 100 channel + 10 row + column.
        let pixels: Vec<f32> = (0..48).map(|i| (i / 16 * 100 + i / 4 % 4 * 10 + i % 4) as f32).collect();
        let mut patches = vec![0.0; 48];
        cut_patches(&pixels, 2, &mut patches);
        assert_eq!(patches[..12], [0., 1., 10., 11., 100., 101., 110., 111., 200., 201., 210., 211.]);
        assert_eq!(patches[12..16], [2., 3., 12., 13.]);
        assert_eq!(patches[24..28], [20., 21., 30., 31.]);
    }
}
