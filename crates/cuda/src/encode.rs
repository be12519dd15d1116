//! Encodes tiles into rows of the language model: the RADIO tower, pixel shuffle and projector as
//! launches and products on the vision lane.
//!
//! Lower bound for a published tile (1,040 tokens, 32 blocks): 1.5 TFLOP in the tower and 0.1 in
//! the projector, 2 ms at 788 TFLOP/s; its weights, 1.7 GB in bfloat16, are read once a group of
//! tiles, 0.4 ms.

use furrow_model::config::VisionConfig;
use furrow_model::vision::ImageTile;

use crate::arena::BufferAllocator;
use crate::executor::{ExecutionLane, Executor, MatrixProduct};
use crate::forward::{FastKernels, LaunchResult};
use crate::launch::{DeviceView, KernelLaunch};
use crate::ops::DeviceRows;
use crate::ops::mlp::squared_relu;
use crate::ops::norm::ResidualRmsNorm;
use crate::ops::vision::{PatchLaunch, ResidualLayerNorm, attend, bias_gelu, pixel_shuffle};
use crate::types::ModelTypes;
use crate::weights::{DeviceBiasedMatrix, DeviceLayerNorm, DeviceVisionBlock, DeviceVisionWeights};

/// Part of a plan.
const TILES: &str = "tiles being encoded";
/// Most tiles that go through the tower together: 8,320 rows of published tiles keep any device
/// busy.
const GROUP_MAX: usize = 8;
/// Values that `squared_relu` takes at a time.
const PACK: usize = 8;
/// Epsilon of both LayerNorms of a block.
const NORM_EPSILON: f32 = 1e-6;
/// Epsilon of the projector's norm.
const PROJECTOR_EPSILON: f32 = 1e-5;

/// Workspace for encoding tiles.
#[derive(Debug)]
pub(crate) struct VisionWork<P: ModelTypes> {
    /// Tiles of a group.
    pub group: usize,
    /// Prefix tokens of a tile.
    prefix: usize,
    pixels: DeviceView<f32>,
    /// The residual stream, `[tiles, prefix + patches, hidden]`.
    hidden: DeviceView<P::Value>,
    /// Rows of that shape, inputs of products.
    normed: DeviceView<P::Value>,
    /// Rows of that shape, outputs of products.
    delta: DeviceView<P::Value>,
    /// Rows of q, k and v, of an MLP's width, or of patches.
    wide: DeviceView<P::Value>,
}

impl<P: ModelTypes> VisionWork<P> {
    /// Allocates for a group of at most `features` tiles.
    pub(crate) fn allocate(
        vision: &VisionConfig,
        prefix: usize,
        features: usize,
        allocator: &mut BufferAllocator,
    ) -> Self {
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
            pixels: allocator.take(TILES, group * 3 * vision.tile.pow(2)),
            hidden: allocator.take(TILES, narrow),
            normed: allocator.take(TILES, narrow),
            delta: allocator.take(TILES, narrow),
            wide: allocator.take(TILES, group * widest.into_iter().max().unwrap_or(0) + PACK),
        }
    }
}

/// Encodes one group of tiles.
pub(crate) struct TileEncoder<'a, P: ModelTypes> {
    pub config: &'a VisionConfig,
    pub weights: &'a DeviceVisionWeights<P::Value>,
    pub work: &'a VisionWork<P>,
    /// Tiles of this group.
    pub tiles: usize,
}

impl<P: FastKernels> TileEncoder<'_, P> {
    /// Encodes the group; writes a tile's rows to its feature `[rows_per_tile, H]`.
    pub(crate) fn run(
        &self,
        executor: &mut dyn Executor,
        tiles: &[ImageTile],
        outputs: &[DeviceView<P::Value>],
    ) -> LaunchResult {
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
        self.project(executor, outputs)
    }

    fn tokens(&self) -> usize {
        self.work.prefix + self.config.patches_side().pow(2)
    }

    /// Tokens of the group.
    fn rows(&self) -> usize {
        self.tiles * self.tokens()
    }

    /// The group's part of a buffer of rows.
    fn narrow(&self, buffer: DeviceView<P::Value>) -> DeviceView<P::Value> {
        buffer.first(self.rows() * self.config.hidden)
    }

    /// The prefix unchanged, then patches `W x` plus their positions.
    fn embed(&self, executor: &mut dyn Executor, tiles: &[ImageTile]) -> LaunchResult {
        let config = self.config;
        let work = self.work;
        let weights = self.weights;
        let values = 3 * config.tile.pow(2);
        for (index, tile) in tiles.iter().enumerate() {
            let to = work.pixels.from(index * values).address();
            executor.upload(ExecutionLane::Vision, bytemuck::cast_slice(&tile.pixels), to)?;
        }
        let count = self.tiles * config.patches_side().pow(2);
        let inputs = weights.embedder.inputs;
        let patches = PatchLaunch {
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
        let input = rows(patches.patches, inputs);
        let output = rows(patches.embedded, config.hidden);
        multiply(executor, &weights.embedder.product(count, input, output))?;
        launch(executor, &patches.write_residual())
    }

    /// `h = h + (d + b)`, and its LayerNorm.
    fn enter(
        &self,
        executor: &mut dyn Executor,
        norm: &DeviceLayerNorm<P::Value>,
        delta: Option<&DeviceBiasedMatrix<P::Value>>,
        out: Option<DeviceView<P::Value>>,
    ) -> LaunchResult {
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

    fn attend(
        &self,
        executor: &mut dyn Executor,
        block: &DeviceVisionBlock<P::Value>,
        delta: Option<&DeviceBiasedMatrix<P::Value>>,
    ) -> LaunchResult {
        let width = self.config.hidden;
        let work = self.work;
        let normed = self.narrow(work.normed);
        let qkv = work.wide.first(3 * normed.len());
        self.enter(executor, &block.norm1, delta, Some(normed))?;
        let product = block.qkv.matrix.product(self.rows(), rows(normed, width), rows(qkv, 3 * width));
        multiply(executor, &product.plus(block.qkv.bias))?;
        launch(executor, &attend(self.config, self.tokens(), qkv, normed))?;
        self.join(executor, &block.proj, normed)
    }

    fn mlp(&self, executor: &mut dyn Executor, block: &DeviceVisionBlock<P::Value>) -> LaunchResult {
        let width = self.config.hidden;
        let inner = block.fc1.matrix.outputs;
        let work = self.work;
        let normed = self.narrow(work.normed);
        let wide = work.wide.first(self.rows() * inner);
        self.enter(executor, &block.norm2, Some(&block.proj), Some(normed))?;
        let product = block.fc1.matrix.product(self.rows(), rows(normed, width), rows(wide, inner));
        multiply(executor, &product)?;
        launch(executor, &bias_gelu(wide, block.fc1.bias))?;
        self.join(executor, &block.fc2, wide)
    }

    /// A product whose output and bias the next norm adds to the residual stream.
    fn join(
        &self,
        executor: &mut dyn Executor,
        layer: &DeviceBiasedMatrix<P::Value>,
        input: DeviceView<P::Value>,
    ) -> LaunchResult {
        let DeviceBiasedMatrix { matrix, .. } = layer;
        let output = rows(self.narrow(self.work.delta), matrix.outputs);
        multiply(executor, &matrix.product(self.rows(), rows(input, matrix.inputs), output))
    }

    /// Pixel shuffle, RMSNorm, squared-ReLU MLP.
    fn project(&self, executor: &mut dyn Executor, outputs: &[DeviceView<P::Value>]) -> LaunchResult {
        let config = self.config;
        let weights = self.weights;
        let work = self.work;
        let of_tile = config.rows_per_tile();
        let width = weights.projector_norm.len();
        let count = self.tiles * of_tile;
        let shuffled = work.delta.first(count * width);
        let normed = work.normed.first(count * width);
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
        let up = &weights.projector.up;
        let down = &weights.projector.down;
        let wide = work.wide.first((count * up.outputs).next_multiple_of(PACK));
        multiply(executor, &up.product(count, rows(normed, width), rows(wide, up.outputs)))?;
        launch(executor, &squared_relu(wide))?;
        outputs.iter().enumerate().try_for_each(|(tile, output)| {
            let input = rows(wide.from(tile * of_tile * up.outputs), up.outputs);
            multiply(executor, &down.product(of_tile, input, rows(*output, down.outputs)))
        })
    }
}

fn rows<T>(values: DeviceView<T>, stride: usize) -> DeviceRows<T> {
    DeviceRows { values, stride }
}

fn launch(executor: &mut dyn Executor, launch: &KernelLaunch) -> LaunchResult {
    executor.launch(ExecutionLane::Vision, launch)
}

fn multiply(executor: &mut dyn Executor, product: &MatrixProduct) -> LaunchResult {
    executor.multiply(ExecutionLane::Vision, product)
}
