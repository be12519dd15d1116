//! Encodes tiles into rows of the language model.

use super::space::TowerSpace;
use super::tiles::ImageTile;
use crate::config::VisionConfig;
use crate::layers::ComputeContext;
use crate::weights::VisionWeights;

/// A vision encoder with its weights.
#[derive(Debug, Clone, Copy)]
pub struct VisionEncoder<'a> {
    pub weights: &'a VisionWeights,
    pub config: &'a VisionConfig,
    pub crew: ComputeContext<'a>,
}

/// Scratch memory of an encoder. Kept between calls, it grows to the largest size, after which
/// nothing is allocated.
#[derive(Debug, Default)]
pub struct VisionWorkspace(TowerSpace);

/// A stage of the encoder whose values can be observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EncoderStage {
    /// Tokens at the input of block i, `[tiles, prefix + patches, hidden]`; i = the number of
    /// blocks: at the output of the last.
    State(usize),
    /// After the prefix was dropped, `[tiles, patches, hidden]`.
    Features,
    /// After the pixel shuffle, `[tiles, rows_per_tile, shuffle^2 hidden]`.
    Shuffled,
}

/// Receives every stage of every group of tiles, in order.
pub(super) type StageTrace<'a> = &'a mut dyn FnMut(EncoderStage, &[f32]);

/// Most rows that go through the tower together, unless a single tile has more: enough to reuse the
/// weights well (a published tile has 1040), and few enough for a workspace of 50 MB at published
/// sizes.
const ROWS_MAX: usize = 1040;

impl VisionEncoder<'_> {
    /// Rows of the language model, `[tiles x rows_per_tile, H]`. A tile's rows are the same bit for
    /// bit with any other tiles.
    pub fn encode(&self, workspace: &mut VisionWorkspace, tiles: &[ImageTile]) -> Vec<f32> {
        self.encode_traced(workspace, tiles, &mut |_, _| {})
    }

    /// Like `encode`, but calls `trace` with each stage, once for every group of tiles that goes
    /// through the tower together.
    pub fn encode_traced(
        &self,
        workspace: &mut VisionWorkspace,
        tiles: &[ImageTile],
        trace: &mut dyn FnMut(EncoderStage, &[f32]),
    ) -> Vec<f32> {
        let space = &mut workspace.0;
        let rows = self.config.rows_per_tile() * self.weights.projector.down.out();
        let mut out = vec![0.0; tiles.len() * rows];
        let group = (ROWS_MAX / self.tokens()).max(1);
        self.resize_positions(space);
        for (tiles, out) in tiles.chunks(group).zip(out.chunks_mut(group * rows)) {
            self.tower(space, tiles, trace);
            self.project(space, out, trace);
        }
        out
    }
}
