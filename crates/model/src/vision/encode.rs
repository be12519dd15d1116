//! Tiles in, rows of the language model out.

use super::tiles::Tile;
use super::tower::Space;
use crate::config::VisionConfig;
use crate::layers::Crew;
use crate::weights::VisionWeights;

/// A vision encoder ready to work.
#[derive(Debug, Clone, Copy)]
pub struct Encoder<'a> {
    /// Its weights.
    pub weights: &'a VisionWeights,
    /// Its shape.
    pub config: &'a VisionConfig,
    /// Who computes, and in what.
    pub crew: Crew<'a>,
}

/// What an encoder works in. Kept between calls it grows to the largest and nothing is allocated any more.
#[derive(Debug, Default)]
pub struct Workspace(Space);

/// A place inside the encoder where values can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Tokens entering block i, `[tiles, prefix + patches, hidden]`; as many as blocks: leaving the last.
    State(usize),
    /// After the prefix was dropped, `[tiles, patches, hidden]`.
    Features,
    /// After the pixel shuffle, `[tiles, rows_per_tile, shuffle^2 hidden]`.
    Shuffled,
}

/// Sees every stage of every group of tiles, in order.
pub(super) type Trace<'a> = &'a mut dyn FnMut(Stage, &[f32]);

/// Rows that go through the tower together at most, unless a single tile has more: as many as keep weights busy (a published tile has
/// 1040), and few enough for a workspace of 50 MB at published sizes.
const ROWS_MAX: usize = 1040;

impl Encoder<'_> {
    /// Rows of the language model, `[tiles x rows_per_tile, H]`. A tile's rows are the same bit for bit whatever tiles are beside it.
    pub fn encode(&self, workspace: &mut Workspace, tiles: &[Tile]) -> Vec<f32> {
        self.encode_traced(workspace, tiles, &mut |_, _| {})
    }

    /// The same, showing what is inside on the way: each stage once for every group of tiles that goes through the tower together.
    pub fn encode_traced(
        &self,
        workspace: &mut Workspace,
        tiles: &[Tile],
        trace: &mut dyn FnMut(Stage, &[f32]),
    ) -> Vec<f32> {
        let space = &mut workspace.0;
        let rows = self.config.rows_per_tile() * self.weights.projector.down.out();
        let mut out = vec![0.0; tiles.len() * rows];
        let group = (ROWS_MAX / self.tokens()).max(1);
        self.place(space);
        for (tiles, out) in tiles.chunks(group).zip(out.chunks_mut(group * rows)) {
            self.tower(space, tiles, trace);
            self.project(space, out, trace);
        }
        out
    }
}
