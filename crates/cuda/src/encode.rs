//! Tiles in, rows of the language model out: the RADIO tower, pixel shuffle and projector as launches and products on the vision lane.
//!
//! Floor for a published tile (1,040 tokens, 32 blocks): 1.5 TFLOP in the tower and 0.1 in the projector, 2 ms at 788 TFLOP/s; its weights, 1.7 GB in
//! bfloat16, are read once a group of tiles, 0.4 ms.

use furrow_model::config::VisionConfig;
use furrow_model::vision::Tile;

use crate::arena::Placer;
use crate::executor::{Executor, Lane, Product};
use crate::forward::{Done, Fast};
use crate::launch::{Launch, View};
use crate::ops::Rows;
use crate::ops::mlp::squared_relu;
use crate::ops::norm::ResidualRmsNorm;
use crate::ops::vision::{Patches, ResidualLayerNorm, attend, bias_gelu, pixel_shuffle};
use crate::types::Types;
use crate::weights::{Affine, Biased, VisionBlock, VisionWeights};

/// Part of a plan.
const TILES: &str = "tiles being encoded";
/// Tiles that go through the tower together at most: 8,320 rows of published tiles keep any device busy.
const GROUP_MAX: usize = 8;
/// Values that `squared_relu` takes at a time.
const PACK: usize = 8;
/// Of both LayerNorms of a block.
const NORM_EPSILON: f32 = 1e-6;
/// Of the projector's norm.
const PROJECTOR_EPSILON: f32 = 1e-5;

/// What tiles are computed in.
#[derive(Debug)]
pub(crate) struct VisionWork<P: Types> {
    /// Tiles of a group.
    pub group: usize,
    /// Prefix tokens of a tile.
    prefix: usize,
    pixels: View<f32>,
    /// The residual stream, `[tiles, prefix + patches, hidden]`.
    hidden: View<P::Value>,
    /// Rows of the same shape on their way into a product.
    normed: View<P::Value>,
    /// The same on their way out of one.
    delta: View<P::Value>,
    /// Rows of q, k and v, of an MLP's width, or of patches.
    wide: View<P::Value>,
}

impl<P: Types> VisionWork<P> {
    /// Places everything for a group of at most `features` tiles.
    pub fn place(vision: &VisionConfig, prefix: usize, features: usize, placer: &mut Placer) -> Self {
        let group = features.clamp(1, GROUP_MAX);
        let patches = vision.patches_side().pow(2);
        let tokens = prefix + patches;
        let widest = [
            patches * 3 * vision.patch.pow(2),
            tokens * 3 * vision.hidden,
            tokens * vision.intermediate,
            vision.rows_per_tile() * vision.projector_hidden,
        ];
        let narrow = group * tokens * vision.hidden;
        Self {
            group,
            prefix,
            pixels: placer.take(TILES, group * 3 * vision.tile.pow(2)),
            hidden: placer.take(TILES, narrow),
            normed: placer.take(TILES, narrow),
            delta: placer.take(TILES, narrow),
            wide: placer.take(TILES, group * widest.into_iter().max().unwrap_or(0) + PACK),
        }
    }
}

/// A group of tiles on their way through.
pub(crate) struct Encoder<'a, P: Types> {
    pub config: &'a VisionConfig,
    pub weights: &'a VisionWeights<P::Value>,
    pub work: &'a VisionWork<P>,
    /// Tiles of this group.
    pub tiles: usize,
}

impl<P: Fast> Encoder<'_, P> {
    /// Encodes the group; a tile's rows go to its place `[rows_per_tile, H]`.
    pub fn run(&self, executor: &mut dyn Executor, tiles: &[Tile], places: &[View<P::Value>]) -> Done {
        self.embed(executor, tiles)?;
        let mut delta = None;
        for block in &self.weights.blocks {
            self.attend(executor, block, delta)?;
            self.mlp(executor, block)?;
            delta = Some(&block.fc2);
        }
        if let (Some(delta), Some(block)) = (delta, self.weights.blocks.last()) {
            self.enter(executor, &block.norm1, Some(delta), None)?;
        }
        self.project(executor, places)
    }

    fn tokens(&self) -> usize {
        self.work.prefix + self.config.patches_side().pow(2)
    }

    /// Tokens of the group.
    fn rows(&self) -> usize {
        self.tiles * self.tokens()
    }

    /// The group's part of a buffer of rows.
    fn narrow(&self, buffer: View<P::Value>) -> View<P::Value> {
        buffer.first(self.rows() * self.config.hidden)
    }

    /// The prefix as it is, then patches `W x` plus their positions.
    fn embed(&self, executor: &mut dyn Executor, tiles: &[Tile]) -> Done {
        let (config, work, weights) = (self.config, self.work, self.weights);
        let values = 3 * config.tile.pow(2);
        for (index, tile) in tiles.iter().enumerate() {
            let to = work.pixels.from(index * values).address();
            executor.upload(Lane::Vision, bytemuck::cast_slice(&tile.pixels), to)?;
        }
        let count = self.tiles * config.patches_side().pow(2);
        let inputs = weights.embedder.inputs;
        let patches = Patches {
            config,
            tiles: self.tiles,
            pixels: work.pixels.first(self.tiles * values),
            patches: work.wide.first(count * inputs),
            embedded: work.delta.first(count * config.hidden),
            positions: weights.positions,
            prefix: weights.prefix,
            hidden: self.narrow(work.hidden),
        };
        launch(executor, &patches.cut())?;
        let (input, output) = (rows(patches.patches, inputs), rows(patches.embedded, config.hidden));
        multiply(executor, &weights.embedder.product(count, input, output))?;
        launch(executor, &patches.place())
    }

    /// `h = h + (d + b)`, and its LayerNorm.
    fn enter(
        &self,
        executor: &mut dyn Executor,
        norm: &Affine<P::Value>,
        delta: Option<&Biased<P::Value>>,
        out: Option<View<P::Value>>,
    ) -> Done {
        let norm = ResidualLayerNorm {
            residual: self.narrow(self.work.hidden),
            delta: delta.map(|last| [self.narrow(self.work.delta), last.bias]),
            weight: norm.weight,
            shift: norm.shift,
            out: out.map(|out| self.narrow(out)),
            epsilon: NORM_EPSILON,
        };
        launch(executor, &norm.launch())
    }

    /// `d = proj(attention(LN(h)))`.
    fn attend(
        &self,
        executor: &mut dyn Executor,
        block: &VisionBlock<P::Value>,
        delta: Option<&Biased<P::Value>>,
    ) -> Done {
        let (width, work) = (self.config.hidden, self.work);
        let normed = self.narrow(work.normed);
        let qkv = work.wide.first(3 * normed.len());
        self.enter(executor, &block.norm1, delta, Some(normed))?;
        let product = block.qkv.matrix.product(self.rows(), rows(normed, width), rows(qkv, 3 * width));
        multiply(executor, &product.plus(block.qkv.bias))?;
        launch(executor, &attend(self.config, self.tokens(), qkv, normed))?;
        self.join(executor, &block.proj, normed)
    }

    /// `d = fc2(gelu(fc1(LN(h))))`.
    fn mlp(&self, executor: &mut dyn Executor, block: &VisionBlock<P::Value>) -> Done {
        let (width, inner, work) = (self.config.hidden, block.fc1.matrix.outputs, self.work);
        let normed = self.narrow(work.normed);
        let wide = work.wide.first(self.rows() * inner);
        self.enter(executor, &block.norm2, Some(&block.proj), Some(normed))?;
        let product = block.fc1.matrix.product(self.rows(), rows(normed, width), rows(wide, inner));
        multiply(executor, &product)?;
        launch(executor, &bias_gelu(wide, block.fc1.bias))?;
        self.join(executor, &block.fc2, wide)
    }

    /// A product that the next norm adds, with its bias, to the residual stream.
    fn join(&self, executor: &mut dyn Executor, layer: &Biased<P::Value>, input: View<P::Value>) -> Done {
        let Biased { matrix, .. } = layer;
        let output = rows(self.narrow(self.work.delta), matrix.outputs);
        multiply(executor, &matrix.product(self.rows(), rows(input, matrix.inputs), output))
    }

    /// Pixel shuffle, RMSNorm, squared-ReLU MLP.
    fn project(&self, executor: &mut dyn Executor, places: &[View<P::Value>]) -> Done {
        let (config, weights, work) = (self.config, self.weights, self.work);
        let (of_tile, width) = (config.rows_per_tile(), weights.projector_norm.len());
        let count = self.tiles * of_tile;
        let (shuffled, normed) = (work.delta.first(count * width), work.normed.first(count * width));
        let hidden = self.narrow(work.hidden);
        launch(executor, &pixel_shuffle(config, work.prefix, hidden, shuffled))?;
        let norm = ResidualRmsNorm {
            residual: shuffled,
            delta: None,
            rows: None,
            weight: weights.projector_norm,
            out: normed,
            count,
            epsilon: PROJECTOR_EPSILON,
        };
        launch(executor, &norm.launch())?;
        let (up, down) = (&weights.projector.up, &weights.projector.down);
        let wide = work.wide.first((count * up.outputs).next_multiple_of(PACK));
        multiply(executor, &up.product(count, rows(normed, width), rows(wide, up.outputs)))?;
        launch(executor, &squared_relu(wide))?;
        places.iter().enumerate().try_for_each(|(tile, place)| {
            let input = rows(wide.from(tile * of_tile * up.outputs), up.outputs);
            multiply(executor, &down.product(of_tile, input, rows(*place, down.outputs)))
        })
    }
}

fn rows<T>(values: View<T>, stride: usize) -> Rows<T> {
    Rows { values, stride }
}

fn launch(executor: &mut dyn Executor, launch: &Launch) -> Done {
    executor.launch(Lane::Vision, launch)
}

fn multiply(executor: &mut dyn Executor, product: &Product) -> Done {
    executor.multiply(Lane::Vision, product)
}
