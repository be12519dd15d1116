//! The `cuda` backend: computes what `furrow_model::cpu` defines, through an executor.
//!
//! All memory is one allocation, planned before it is made (`arena.rs`). A batch is described in
//! one buffer (`batch.rs`), which takes one copy to the device, and then run (`forward.rs`): decode
//! batches as graphs, recorded once a bucket; all others directly. Tiles go through the tower on a
//! lane of their own, and a batch waits for them only if it shows one. Offloaded states also have a
//! lane of their own (`offload.rs`), and a batch waits for them only if it uses their slot or
//! pages. Any failure ends the backend (`latch.rs`): the call that detects it and every later one
//! return that failure and nothing else.

use std::collections::BTreeSet;
use std::fmt;

use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, BatchValidator, DeviceLost, IncomingWeights, OffloadedState,
    PAGE_TOKENS, Page, SequenceSpan, Slot, TileFeature, WeightsError,
};
use furrow_model::checkpoint::{Checkpoint, CheckpointError, chain};
use furrow_model::config::Config;
use furrow_model::sample::{SampleOutcome, SampleRequest};
use furrow_model::vision::ImageTile;

use crate::arena::{BufferAllocator, MemoryPlan};
use crate::batch::{BatchDescriptor, FixedBucket, LayoutInputs, is_single};
use crate::encode::{TileEncoder, VisionWork};
use crate::executor::{ExecutionLane, Executor, ExecutorError, GraphKey, HostRange};
use crate::forward::{DevicePass, FastKernels, LaunchResult};
use crate::latch::ExecutorLatch;
use crate::launch::{CopyMove, DeviceView};
use crate::needs::MemoryNeeds;
use crate::offload::{MovingStates, NotPinned, OffloadPool, OffloadedBlocks, StateLocation};
use crate::ops::copy::{CopyLaunch, CopyRegion};
use crate::sampling;
use crate::state::StateBuffers;
use crate::types::{Bfloat16Types, Float32Types, ModelTypes, NarrowState, WeightElement, WideResidual};
use crate::unsupported::unsupported;
use crate::weights::{
    self, CheckpointCounts, DeviceWeights, LoadError, MatrixTypes, TensorUpload, UploadTarget,
};
use crate::work::{BatchBuffers, BatchLimits};

/// How a model is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendOptions {
    /// Precision of bfloat16 checkpoints, whose float32 matrices stay so; a checkpoint that is
    /// mostly float32 is computed in float32 throughout.
    pub precision: ModelPrecision,
    /// Whether a session's tokens must not depend on its neighbours: then every decode batch is
    /// padded to the largest, and every other span and every tile runs alone.
    pub deterministic: bool,
    /// Whether decode batches are recorded as graphs and replayed.
    pub graphs: bool,
    /// Memory for a second set of weights, so that new ones can be loaded while batches run.
    pub stage: StagingMode,
}

/// Where a second set of weights is stored until the swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StagingMode {
    /// Nowhere: weights change only by [`DeviceBackend::replace_weights`].
    #[default]
    None,
    /// On the device, which leaves less memory for sessions; the swap takes 12 ms.
    Device,
    /// In pinned memory of this machine, as large as the weights; the swap takes half a second.
    Host,
}

/// Precision in which a bfloat16 checkpoint is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ModelPrecision {
    /// States of the recurrence in float32, all else in bfloat16.
    #[default]
    Usual,
    /// The residual stream in float32 as well.
    WideResidual,
    /// States in bfloat16 as well.
    NarrowState,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self {
            precision: ModelPrecision::Usual,
            deterministic: false,
            graphs: true,
            stage: StagingMode::None,
        }
    }
}

/// Why a backend did not open.
#[derive(Debug, thiserror::Error)]
pub enum CudaOpenError {
    /// There are no kernels for this model.
    #[error("the cuda backend cannot run this model: {}; use the cpu backend", why.join("; "))]
    Unsupported { why: Vec<String> },
    /// A part of the capacity is zero.
    #[error("capacity of 0 {what}; give at least 1")]
    NoCapacity { what: &'static str },
    /// A part of the capacity is more than a launch supports.
    #[error("{requested} {what} requested, kernels take at most {most}; lower it")]
    TooLarge { what: &'static str, requested: usize, most: usize },
    /// The device has less memory.
    #[error(
        "out of device memory: {requested} requested, {:.1} MB free; lower slots, pages or rows",
        *free as f64 / 1e6
    )]
    Full {
        /// Requested bytes by part.
        requested: MemoryPlan,
        free: u64,
    },
    /// The system does not pin that much host memory for the weights.
    #[error(
        "a second set of weights needs {:.1} MB of pinned host memory, which the system refused; stage it on the device, or not at all",
        *requested as f64 / 1e6
    )]
    HostFull { requested: u64 },
    /// The system does not pin that much host memory for states.
    #[error(
        "{:.1} MB of pinned host memory requested for offloaded states, of which {:.1} MB are available; request no more than that",
        *requested as f64 / 1e6,
        *available as f64 / 1e6
    )]
    OffloadFull { requested: u64, available: u64 },
    /// The weights were refused or could not be copied.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The checkpoint lacks a tensor.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the device failed while the backend was opened")]
    Executor(#[from] ExecutorError),
    /// The device failed when its states were cleared.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Why weights were not exchanged. Those in use stay, unless the device failed.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// They belong to another model.
    #[error("the new weights belong to another model than those in use")]
    OtherModel,
    /// The backend was opened without memory for them.
    #[error("the backend was opened without memory for a second set of weights")]
    NoStage,
    /// No complete set of staged weights.
    #[error("no complete set of weights is staged; stage the weights and copy all of them first")]
    NotStaged,
    /// They cannot be read, or a value is not finite.
    #[error(transparent)]
    Load(#[from] CheckpointError),
    /// The device failed; it cannot be used any more.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

/// Opens a checkpoint on an executor. `progress` is called with bytes loaded and bytes in total.
///
/// # Errors
/// Before anything is loaded, if there are no kernels for the model or too little memory; later, if
/// a weight is not finite.
pub fn open(
    checkpoint: &Checkpoint,
    capacity: BackendCapacity,
    options: BackendOptions,
    executor: Box<dyn Executor>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn DeviceBackend>, CudaOpenError> {
    let kept = MatrixTypes::of(checkpoint)?;
    let counts = CheckpointCounts::of(checkpoint, kept.wide)?;
    let opening = OpenRequest { config: checkpoint.config(), counts, capacity, options, executor };
    opening.device(kept.of_f32, WeightsOrigin::Checkpoint { checkpoint, progress })
}

/// Opens a model in bfloat16 with weights of noise and states of zeros, for measurements.
///
/// # Errors
/// As [`open`].
pub fn open_noise(
    config: &Config,
    capacity: BackendCapacity,
    options: BackendOptions,
    executor: Box<dyn Executor>,
) -> Result<Box<dyn DeviceBackend>, CudaOpenError> {
    let counts = CheckpointCounts::of_config(config);
    OpenRequest { config, counts, capacity, options, executor }.device(false, WeightsOrigin::Noise)
}

/// Everything that opening needs.
struct OpenRequest<'a> {
    config: &'a Config,
    counts: CheckpointCounts,
    capacity: BackendCapacity,
    options: BackendOptions,
    executor: Box<dyn Executor>,
}

impl OpenRequest<'_> {
    fn device(
        self,
        of_f32: bool,
        origin: WeightsOrigin<'_>,
    ) -> Result<Box<dyn DeviceBackend>, CudaOpenError> {
        check_capacity(self.config, &self.capacity)?;
        let why = unsupported(self.config);
        if !why.is_empty() {
            return Err(CudaOpenError::Unsupported { why });
        }
        Ok(match (of_f32, self.options.precision) {
            (true, _) => Box::new(CudaBackend::<Float32Types>::open(self, origin)?),
            (_, ModelPrecision::Usual) => Box::new(CudaBackend::<Bfloat16Types>::open(self, origin)?),
            (_, ModelPrecision::WideResidual) => Box::new(CudaBackend::<WideResidual>::open(self, origin)?),
            (_, ModelPrecision::NarrowState) => Box::new(CudaBackend::<NarrowState>::open(self, origin)?),
        })
    }
}

/// Device memory of a model in bfloat16 with this capacity, from its configuration alone.
///
/// # Errors
/// If there are no kernels for the model.
pub fn plan(
    config: &Config,
    capacity: &BackendCapacity,
    options: &BackendOptions,
) -> Result<MemoryPlan, CudaOpenError> {
    Ok(needs(config, capacity, options)?.device)
}

/// Device and host memory of a model in bfloat16 with this capacity, from its configuration alone.
///
/// # Errors
/// If there are no kernels for the model.
pub fn needs(
    config: &Config,
    capacity: &BackendCapacity,
    options: &BackendOptions,
) -> Result<MemoryNeeds, CudaOpenError> {
    compute_needs(false, (config, &CheckpointCounts::of_config(config), capacity, options))
}

/// Device and host memory of a checkpoint with this capacity: what [`open`] will allocate, to the
/// byte.
///
/// # Errors
/// If there are no kernels for the model, or a tensor is missing.
pub fn checkpoint_needs(
    checkpoint: &Checkpoint,
    capacity: &BackendCapacity,
    options: &BackendOptions,
) -> Result<MemoryNeeds, CudaOpenError> {
    let kept = MatrixTypes::of(checkpoint)?;
    let counts = CheckpointCounts::of(checkpoint, kept.wide)?;
    compute_needs(kept.of_f32, (checkpoint.config(), &counts, capacity, options))
}

fn compute_needs(of_f32: bool, sizes: AllocationInputs<'_>) -> Result<MemoryNeeds, CudaOpenError> {
    let (config, _, capacity, options) = sizes;
    check_capacity(config, capacity)?;
    let why = unsupported(config);
    if !why.is_empty() {
        return Err(CudaOpenError::Unsupported { why });
    }
    Ok(match (of_f32, options.precision) {
        (true, _) => needs_in::<Float32Types>(sizes),
        (_, ModelPrecision::Usual) => needs_in::<Bfloat16Types>(sizes),
        (_, ModelPrecision::WideResidual) => needs_in::<WideResidual>(sizes),
        (_, ModelPrecision::NarrowState) => needs_in::<NarrowState>(sizes),
    })
}

/// A backend whose weights can be exchanged.
pub trait DeviceBackend: Backend + fmt::Debug {
    /// Its device memory by part.
    fn plan(&self) -> &MemoryPlan;

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// If the device has failed.
    fn wait(&mut self) -> Result<(), DeviceLost>;

    /// Replaces the weights in use by others of the same model, between two batches. Sessions,
    /// features and recorded graphs stay.
    ///
    /// # Errors
    /// If they belong to another model or a value is not finite, those in use stay; if the device
    /// fails, it cannot be used any more.
    fn replace_weights(
        &mut self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), SwapError>;

    /// Accepts other weights of the same model, which are loaded while those in use stay. Drops
    /// what was staged before.
    ///
    /// # Errors
    /// If they belong to another model, or there is no memory for them.
    fn stage_weights(&mut self, checkpoint: Checkpoint) -> Result<(), SwapError>;

    /// Copies more of the staged weights: at least this many bytes, or all that are left. True when
    /// all are copied. Call it between two batches: a batch does not wait for them.
    ///
    /// # Errors
    /// If a value is not finite, the staged weights are dropped and those in use stay; if the
    /// device fails, it cannot be used any more.
    fn stage_more(&mut self, bytes: u64) -> Result<bool, SwapError>;

    /// Switches to the staged weights in one copy. Sessions, features and graphs stay. For the 12B:
    /// from the device 2 x 26.3 GB at 4.3 TB/s, 12 ms; from pinned host memory 26.3 GB over PCIe 5
    /// at about 55 GB/s, 0.48 s.
    ///
    /// # Errors
    /// If not all of them are copied.
    fn swap_weights(&mut self) -> Result<(), SwapError>;
}

/// Largest number of blocks of a launch along its second and third axis.
const GRID_MAX: usize = 65_535;

fn check_capacity(config: &Config, capacity: &BackendCapacity) -> Result<(), CudaOpenError> {
    let parts = [
        ("state slots", capacity.slots),
        ("rows", capacity.rows_max),
        ("rows of logits", capacity.logits_max),
    ];
    if let Some((what, _)) = parts.into_iter().find(|(_, count)| *count == 0) {
        return Err(CudaOpenError::NoCapacity { what });
    }
    let requested = BatchLimits::of(&config.text, capacity).rows;
    if requested > GRID_MAX {
        return Err(CudaOpenError::TooLarge { what: "rows of a batch", requested, most: GRID_MAX });
    }
    Ok(())
}

/// Runs a model on an executor.
struct CudaBackend<P: ModelTypes> {
    config: Config,
    capacity: BackendCapacity,
    options: BackendOptions,
    executor: ExecutorLatch,
    plan: MemoryPlan,
    counts: CheckpointCounts,
    weights: DeviceWeights<P::Value>,
    /// Uploads that fill them, and all weights as bytes.
    uploads: Vec<TensorUpload>,
    all: DeviceView<u8>,
    stage: Option<StagedWeights>,
    memory: BackendMemory<P>,
    offload_pool: OffloadPool,
    moving: MovingStates,
    features: FeatureTable,
    block: BatchDescriptor,
    /// Row of the computed logits of each requested row of the newest batch.
    rows_of: Vec<u32>,
    /// Logits of the last request.
    logits: Vec<f32>,
}

/// All buffers after the weights.
struct BackendMemory<P: ModelTypes> {
    limits: BatchLimits,
    states: StateBuffers<P>,
    work: BatchBuffers<P>,
    vision: Option<VisionWork<P>>,
    /// Rows of all tile features.
    features: DeviceView<P::Value>,
    /// The copy command from index 0 to index 0.
    one: DeviceView<CopyMove>,
}

/// Which tile features exist.
struct FeatureTable {
    occupied: Vec<bool>,
    free: Vec<u32>,
    /// Features that the newest batch shows.
    in_batch: BTreeSet<TileFeature>,
}

impl<P: ModelTypes> BackendMemory<P> {
    fn allocate(
        config: &Config,
        counts: &CheckpointCounts,
        capacity: &BackendCapacity,
        widest: [usize; 2],
        allocator: &mut BufferAllocator,
    ) -> Self {
        let text = &config.text;
        let limits = BatchLimits::of(text, capacity);
        let vision = config.vision.as_ref();
        let features = capacity.features as usize;
        let feature_values = vision.map_or(0, |vision| vision.rows_per_tile() * text.hidden);
        Self {
            states: StateBuffers::allocate(text, capacity, allocator),
            work: BatchBuffers::allocate(text, &limits, widest, allocator),
            vision: vision.map(|vision| VisionWork::allocate(vision, counts.prefix, features, allocator)),
            features: allocator.take("tile features", features.saturating_mul(feature_values)),
            one: allocator.take("state slots", 1),
            limits,
        }
    }
}

/// All buffers, and what must be uploaded to them.
struct AllocatedBackend<P: ModelTypes> {
    weights: DeviceWeights<P::Value>,
    uploads: Vec<TensorUpload>,
    /// All weights, as bytes.
    all: DeviceView<u8>,
    /// Memory for a second set of weights, and its uploads; off the device their addresses start at
    /// 0.
    stage: Option<(DeviceView<u8>, Vec<TensorUpload>)>,
    memory: BackendMemory<P>,
}

impl<P: ModelTypes> AllocatedBackend<P> {
    fn allocate(
        allocator: &mut BufferAllocator,
        (config, counts, capacity, options): AllocationInputs<'_>,
    ) -> Self {
        let first = allocator.next();
        let (weights, uploads) = DeviceWeights::allocate(config, counts, allocator);
        let bytes = usize::try_from(allocator.next() - first).unwrap_or(usize::MAX);
        let region = match options.stage {
            StagingMode::None => None,
            StagingMode::Device => Some(allocator.take("a second set of weights", bytes)),
            StagingMode::Host => Some(DeviceView::new(0, bytes)),
        };
        let stage = region.map(|region| {
            (
                region,
                DeviceWeights::<P::Value>::allocate(
                    config,
                    counts,
                    &mut BufferAllocator::at(region.address()),
                )
                .1,
            )
        });
        let memory = BackendMemory::allocate(config, counts, capacity, weights.text.widest, allocator);
        Self { weights, uploads, all: DeviceView::new(first, bytes), stage, memory }
    }
}

/// Everything that determines the sizes of buffers.
type AllocationInputs<'a> = (&'a Config, &'a CheckpointCounts, &'a BackendCapacity, &'a BackendOptions);

fn plan_in<P: ModelTypes>(sizes: AllocationInputs<'_>) -> MemoryPlan {
    needs_in::<P>(sizes).device
}

fn needs_in<P: ModelTypes>(sizes: AllocationInputs<'_>) -> MemoryNeeds {
    let mut allocator = BufferAllocator::at(0);
    let placed = AllocatedBackend::<P>::allocate(&mut allocator, sizes);
    let (_, _, capacity, options) = sizes;
    let staged = if options.stage == StagingMode::Host { placed.all.len() as u64 } else { 0 };
    MemoryNeeds::new(allocator.plan(), placed.memory.states.sizes(), (capacity.offload_bytes, staged))
}

/// Source of the weights.
enum WeightsOrigin<'a> {
    /// A checkpoint; `progress` is called with bytes done and bytes in total.
    Checkpoint { checkpoint: &'a Checkpoint, progress: &'a mut dyn FnMut(u64, u64) },
    /// Noise of the magnitude of trained weights, for measurements.
    Noise,
}

impl WeightsOrigin<'_> {
    fn upload<T: WeightElement>(
        &mut self,
        executor: &mut dyn Executor,
        uploads: &[TensorUpload],
    ) -> Result<(), LoadError> {
        let mut done = 0;
        for upload in uploads {
            match self {
                Self::Noise => weights::upload_noise::<T>(executor, UploadTarget::Device, upload)?,
                Self::Checkpoint { checkpoint, progress } => {
                    done += weights::upload_tensor::<T>(executor, UploadTarget::Device, checkpoint, upload)?;
                    progress(done, checkpoint.bytes());
                }
            }
        }
        Ok(executor.wait()?)
    }
}

/// Memory for a second set of weights, and its state.
struct StagedWeights {
    target: UploadTarget,
    region: DeviceView<u8>,
    uploads: Vec<TensorUpload>,
    progress: StagingProgress,
}

/// Progress of a second set of weights.
enum StagingProgress {
    Nothing,
    /// This checkpoint, with this many of the uploads done.
    Some(Box<Checkpoint>, usize),
    /// Noise, which may be swapped in any number of times.
    Noise,
}

impl StagedWeights {
    fn open<T: WeightElement>(
        executor: &mut dyn Executor,
        (region, uploads): (DeviceView<u8>, Vec<TensorUpload>),
        stage: StagingMode,
        is_noise: bool,
    ) -> Result<Self, CudaOpenError> {
        let target = match stage {
            StagingMode::Host => match executor.pin(region.len() as u64) {
                Ok(pinned) => UploadTarget::Host(pinned),
                Err(ExecutorError::NoHostMemory { requested }) => {
                    return Err(CudaOpenError::HostFull { requested });
                }
                Err(error) => return Err(error.into()),
            },
            StagingMode::Device | StagingMode::None => UploadTarget::Device,
        };
        if is_noise {
            uploads.iter().try_for_each(|upload| weights::upload_noise::<T>(executor, target, upload))?;
        }
        Ok(Self {
            target,
            region,
            uploads,
            progress: if is_noise { StagingProgress::Noise } else { StagingProgress::Nothing },
        })
    }

    fn is_whole(&self) -> bool {
        match self.progress {
            StagingProgress::Nothing => false,
            StagingProgress::Some(_, next) => next == self.uploads.len(),
            StagingProgress::Noise => true,
        }
    }

    /// Copies more of them; returns the number of bytes of the checkpoint.
    fn upload_next<T: WeightElement>(&mut self, executor: &mut dyn Executor) -> Result<u64, LoadError> {
        let StagingProgress::Some(checkpoint, next) = &mut self.progress else { return Ok(0) };
        let brought = weights::upload_tensor::<T>(executor, self.target, checkpoint, &self.uploads[*next])?;
        *next += 1;
        Ok(brought)
    }
}

impl<P: FastKernels> CudaBackend<P> {
    fn open(opening: OpenRequest<'_>, origin: WeightsOrigin<'_>) -> Result<Self, CudaOpenError> {
        let OpenRequest { config, counts, capacity, options, mut executor } = opening;
        let plan = plan_in::<P>((config, &counts, &capacity, &options));
        let free = executor.free_bytes()?;
        if plan.total() > free {
            return Err(CudaOpenError::Full { requested: plan, free });
        }
        let address = match executor.allocate(plan.total()) {
            // The memory is free, but not contiguous.
            Err(ExecutorError::NoMemory { free, .. }) => {
                return Err(CudaOpenError::Full { requested: plan, free });
            }
            allocated => allocated?,
        };
        let allocated = AllocatedBackend::allocate(
            &mut BufferAllocator::at(address),
            (config, &counts, &capacity, &options),
        );
        let sizes = allocated.memory.states.sizes();
        let offload_pool =
            OffloadPool::open(&mut *executor, sizes, capacity.offload_bytes).map_err(|why| match why {
                NotPinned::Limited(available) => {
                    CudaOpenError::OffloadFull { requested: capacity.offload_bytes, available }
                }
                NotPinned::Failed(error) => error.into(),
            })?;
        let AllocatedBackend { weights, uploads, all, stage, memory } = allocated;
        let is_noise = matches!(origin, WeightsOrigin::Noise);
        let stage = stage
            .map(|stage| StagedWeights::open::<P::Value>(&mut *executor, stage, options.stage, is_noise));
        let stage = stage.transpose()?;
        let mut origin = origin;
        origin.upload::<P::Value>(&mut *executor, &uploads)?;
        executor.upload(
            ExecutionLane::Batch,
            bytemuck::bytes_of(&CopyMove { from: 0, to: 0 }),
            memory.one.address(),
        )?;
        executor.wait()?;
        let mut opened = Self {
            logits: vec![0.0; config.text.vocabulary],
            features: FeatureTable::new(capacity.features),
            config: config.clone(),
            capacity,
            options,
            executor: ExecutorLatch::new(executor),
            plan,
            counts,
            weights,
            uploads,
            all,
            stage,
            memory,
            offload_pool,
            moving: MovingStates::default(),
            block: BatchDescriptor::default(),
            rows_of: Vec::new(),
        };
        if is_noise {
            // Measurements decode contexts that no prefill wrote. Zeros are as good as other values
            // there, but NaN would make sampling stop early and look too fast.
            opened
                .memory
                .states
                .all()
                .into_iter()
                .try_for_each(|all| opened.copy(ExecutionLane::Batch, None, all))?;
        }
        Ok(opened)
    }

    fn feature_rows(&self) -> usize {
        self.config.vision.as_ref().map_or(0, furrow_model::config::VisionConfig::rows_per_tile)
    }

    fn check(&self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        let rows = self.feature_rows();
        let feature_rows = &|feature| if self.features.contains(feature) { rows } else { 0 };
        BatchValidator { capacity: &self.capacity, embeddings: self.counts.embeddings, feature_rows }
            .check(batch)?;
        let mut slots: Vec<Slot> = batch.iter().map(|span| span.slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|two| two[0] < two[1]), "two spans of a batch share a slot");
        let capacity = self.memory.limits.pages * PAGE_TOKENS;
        let longest = batch.iter().map(|span| span.start as usize + span.tokens.len()).max().unwrap_or(0);
        if longest > capacity {
            return Err(BackendError::OverCapacity {
                what: "positions of a sequence",
                requested: longest,
                capacity,
            });
        }
        Ok(())
    }

    /// Runs a checked batch: as one, or, in deterministic mode, decode padded and every other span
    /// alone.
    fn run_all(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        if self.memory.vision.is_some() {
            // Tiles that are encoded while this batch runs may overwrite features that earlier
            // batches read.
            self.follow(ExecutionLane::Vision, ExecutionLane::Batch)?;
        }
        self.features.in_batch =
            batch.iter().flat_map(|span| span.insets).map(|inset| inset.feature).collect();
        if !self.features.in_batch.is_empty() {
            self.follow(ExecutionLane::Batch, ExecutionLane::Vision)?;
        }
        if batch.iter().any(|span| self.moving.span_must_wait(span)) {
            self.follow(ExecutionLane::Batch, ExecutionLane::Copy)?;
            self.moving.clear();
        }
        let firsts = batch.iter().scan(0, |sum, span| {
            *sum += span.wanted();
            Some(*sum - span.wanted())
        });
        let firsts: Vec<usize> = firsts.collect();
        self.rows_of.clear();
        self.rows_of.resize(batch.iter().map(SequenceSpan::wanted).sum(), 0);
        let (singles, longs): (Vec<usize>, Vec<usize>) =
            (0..batch.len()).partition(|index| is_single(&batch[*index]));
        if !self.options.deterministic {
            let members = [singles, longs].concat();
            return self.run_pass(batch, &members, &firsts, 0);
        }
        if !singles.is_empty() {
            self.run_pass(batch, &singles, &firsts, 0)?;
        }
        // The logits of a decode batch take as many rows as it is padded to.
        let mut logits_at = self.memory.limits.spans;
        for long in longs {
            self.run_pass(batch, &[long], &firsts, logits_at)?;
            logits_at += batch[long].wanted();
        }
        Ok(())
    }

    /// Runs some spans, single ones first; writes their logits to the rows from `logits_at` on.
    fn run_pass(
        &mut self,
        batch: &[SequenceSpan<'_>],
        members: &[usize],
        firsts: &[usize],
        logits_at: usize,
    ) -> Result<(), DeviceLost> {
        let spans: Vec<&SequenceSpan<'_>> = members.iter().map(|member| &batch[*member]).collect();
        let mut row = logits_at;
        for member in members {
            for wanted in 0..batch[*member].wanted() {
                self.rows_of[firsts[*member] + wanted] = row as u32;
                row += 1;
            }
        }
        let limits = &self.memory.limits;
        let layer =
            LayoutInputs { limits, scrap: self.memory.states.scrap(), feature_rows: self.feature_rows() };
        let decodes = spans.iter().all(|span| is_single(span));
        match decodes {
            true => {
                let most = FixedBucket { rows: limits.spans, splits: limits.splits(limits.pages) };
                self.block.arrange_decode(layer, &spans, self.options.deterministic.then_some(most));
            }
            false => self.block.arrange(layer, &spans),
        }
        self.launch_pass(decodes && self.options.graphs, logits_at)
    }

    fn launch_pass(&mut self, as_graph: bool, logits_at: usize) -> Result<(), DeviceLost> {
        let Self { config, weights, memory, block, executor, .. } = self;
        let BackendMemory { limits, states, work, features, .. } = memory;
        let bytes = bytemuck::cast_slice(&block.values);
        let form = block.form;
        let lists = form.lists(work.inputs);
        let text = &config.text;
        let features = *features;
        let weights = &weights.text;
        let pass = DevicePass { text, weights, features, states, work, limits, form, lists, logits_at };
        executor.work(|executor| {
            executor.upload(ExecutionLane::Batch, bytes, work.inputs.address())?;
            if as_graph {
                let key = GraphKey { rows: form.rows, splits: form.splits };
                executor.graph(ExecutionLane::Batch, key, &mut |executor| pass.run(executor))
            } else {
                pass.run(executor)
            }
        })
    }

    fn encode_all(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, DeviceLost> {
        let Self { config, weights, memory, executor, features, options, .. } = self;
        let (Some(config), Some(weights), Some(work)) = (&config.vision, &weights.vision, &memory.vision)
        else {
            return Ok(Vec::new());
        };
        let encoded: Vec<TileFeature> = tiles.iter().map(|_| features.take()).collect();
        let values = config.rows_per_tile() * weights.projector.down.outputs;
        // The running batch may still read a released feature.
        if encoded.iter().any(|tile_feature| features.in_batch.contains(tile_feature)) {
            executor.work(|executor| executor.follow(ExecutionLane::Vision, ExecutionLane::Batch))?;
            features.in_batch.clear();
        }
        let group = if options.deterministic { 1 } else { work.group };
        for (tiles, group_features) in tiles.chunks(group).zip(encoded.chunks(group)) {
            let feature_rows =
                |feature: &TileFeature| memory.features.from(feature.0 as usize * values).first(values);
            let outputs: Vec<DeviceView<P::Value>> = group_features.iter().map(feature_rows).collect();
            let encoder = TileEncoder { config, weights, work, tiles: tiles.len() };
            executor.work(|executor| encoder.run(executor, tiles, &outputs))?;
        }
        Ok(encoded)
    }

    /// Copies a slot or page to another one, or clears it. If a copy of a state to or from one of
    /// them is in progress, the copy lane does it, so that batches wait for it only when they need
    /// the result.
    fn copy_at(&mut self, from: Option<StateLocation>, to: StateLocation) -> Result<(), DeviceLost> {
        let region_of = |at| match at {
            StateLocation::Slot(slot) => self.memory.states.slot(slot),
            StateLocation::Page(page) => self.memory.states.page(page),
        };
        let from_region = from.map(region_of);
        let to_region = region_of(to);
        if !self.moving.must_wait(from, to) {
            return self.copy(ExecutionLane::Batch, from_region, to_region);
        }
        self.follow(ExecutionLane::Copy, ExecutionLane::Batch)?;
        self.copy(ExecutionLane::Copy, from_region, to_region)?;
        self.moving.mark_copied(from, to);
        Ok(())
    }

    /// Makes later work of `lane` wait for the present work of `other`.
    fn follow(&mut self, lane: ExecutionLane, other: ExecutionLane) -> Result<(), DeviceLost> {
        self.executor.work(|executor| executor.follow(lane, other))
    }

    /// Copies a range to another one of the same size, or clears it.
    fn copy(
        &mut self,
        lane: ExecutionLane,
        from: Option<DeviceView<u8>>,
        to: DeviceView<u8>,
    ) -> Result<(), DeviceLost> {
        let bytes = to.len();
        if bytes == 0 {
            return self.executor.check();
        }
        let copy_region = |bytes: DeviceView<u8>| CopyRegion { bytes, stride: bytes.len() };
        let copy =
            CopyLaunch { from: from.map(copy_region), to: copy_region(to), moves: self.memory.one, bytes };
        self.executor.work(|executor| executor.launch(lane, &copy.launch()))
    }

    /// Copies a slot and pages to their offloaded blocks, or back.
    fn copy_state(
        &mut self,
        blocks: &OffloadedBlocks,
        slot: Slot,
        pages: &[Page],
        copy_range: CopyFn,
    ) -> Result<(), DeviceLost> {
        let Self { memory: BackendMemory { states, .. }, offload_pool, executor, .. } = self;
        let mut at = states.slot(slot).address();
        executor.work(|executor| {
            for range in offload_pool.slot(blocks) {
                copy_range(executor, at, range)?;
                at += range.bytes;
            }
            let mut pages = pages.iter().zip(offload_pool.pages(blocks));
            pages.try_for_each(|(page, range)| copy_range(executor, states.page(*page).address(), range))
        })
    }
}

/// One copy between a device address and pinned memory.
type CopyFn = fn(&mut dyn Executor, u64, HostRange) -> LaunchResult;

impl<P: FastKernels> Backend for CudaBackend<P> {
    fn config(&self) -> &Config {
        &self.config
    }

    fn capacity(&self) -> BackendCapacity {
        self.capacity
    }

    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        self.executor.check()?;
        if self.config.vision.is_none() {
            return Err(BackendError::NoVision);
        }
        self.features.check_capacity(tiles.len())?;
        Ok(self.encode_all(tiles)?)
    }

    fn encodes_concurrently(&self) -> bool {
        self.memory.vision.is_some()
    }

    fn release(&mut self, features: &[TileFeature]) {
        features.iter().for_each(|feature| self.features.release(*feature));
    }

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        self.executor.check()?;
        self.check(batch)?;
        if batch.is_empty() {
            self.rows_of.clear();
            return Ok(());
        }
        Ok(self.run_all(batch)?)
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        assert!((row as usize) < self.rows_of.len(), "logits of row {row} were not requested");
        let width = self.config.text.vocabulary;
        let from = self.memory.work.logits.from(self.rows_of[row as usize] as usize * width);
        let Self { executor, logits, .. } = self;
        let bytes = bytemuck::cast_slice_mut(logits);
        executor.work(|executor| executor.download(ExecutionLane::Batch, from.address(), bytes))?;
        Ok(logits)
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        let Self { config, memory, executor, rows_of, .. } = self;
        executor.check()?;
        let mut picked = Vec::with_capacity(picks.len());
        for picks in picks.chunks(memory.limits.samples) {
            let moved: Vec<SampleRequest<'_>> =
                picks.iter().map(|pick| SampleRequest { row: rows_of[pick.row as usize], ..*pick }).collect();
            let sampled = executor.work(|executor| {
                sampling::sample_rows(executor, &memory.work, config.text.vocabulary, &moved)
            })?;
            picked.extend(sampled);
        }
        Ok(picked)
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.copy_at(None, StateLocation::Slot(slot))
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.copy_at(Some(StateLocation::Slot(from)), StateLocation::Slot(to))
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.copy_at(Some(StateLocation::Page(from)), StateLocation::Page(to))
    }

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.offload_pool.bytes_of(pages)
    }

    /// Returns without waiting. Batches continue; those that write to the slot or pages wait until
    /// the state is copied.
    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        let Some(blocks) = self.offload_pool.take(pages.len()) else { return Ok(None) };
        self.follow(ExecutionLane::Copy, ExecutionLane::Batch)?;
        self.copy_state(&blocks, slot, pages, |executor, at, to| {
            executor.fetch(ExecutionLane::Copy, at, to)
        })?;
        self.moving.mark_outgoing(slot, pages);
        Ok(Some(OffloadedState::new(self.offload_pool.bytes_of(pages.len() as u32), blocks)))
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        if self.moving.is_empty() {
            return Ok(false);
        }
        if self.executor.work(|executor| executor.is_done(ExecutionLane::Copy))? {
            self.moving.clear();
        }
        Ok(self.moving.is_at(slot, pages))
    }

    /// Returns without waiting. The lane that copied the state out copies it back, so the order is
    /// kept.
    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        let blocks: &OffloadedBlocks =
            offloaded.handle().expect("a backend restores only states that its own kind offloaded");
        assert!(self.offload_pool.owns(blocks), "a GPU restores only states that it offloaded itself");
        let bytes = self.offload_pool.bytes_of(pages.len() as u32);
        assert_eq!(offloaded.bytes(), bytes, "offloaded bytes of {} pages", pages.len());
        self.follow(ExecutionLane::Copy, ExecutionLane::Batch)?;
        self.copy_state(blocks, slot, pages, |executor, at, from| {
            executor.send(ExecutionLane::Copy, from, at)
        })?;
        self.moving.mark_incoming(slot, pages);
        Ok(())
    }

    fn stage(&mut self, weights: IncomingWeights) -> Result<(), WeightsError> {
        let other = |_| WeightsError::Refused("the cuda backend takes weights as an open checkpoint".into());
        let checkpoint = weights.downcast::<Checkpoint>().map_err(other)?;
        self.stage_weights(*checkpoint).map_err(WeightsError::from)
    }

    fn copy_staged(&mut self, bytes: u64) -> Result<bool, WeightsError> {
        Ok(self.stage_more(bytes)?)
    }

    /// The old weights are overwritten.
    fn swap(&mut self) -> Result<Option<IncomingWeights>, WeightsError> {
        self.swap_weights()?;
        Ok(None)
    }
}

impl From<SwapError> for WeightsError {
    fn from(error: SwapError) -> Self {
        match error {
            SwapError::NotStaged => Self::NotStaged,
            SwapError::Device(lost) => Self::Device(lost),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl<P: FastKernels> DeviceBackend for CudaBackend<P> {
    fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    fn wait(&mut self) -> Result<(), DeviceLost> {
        self.executor.wait()
    }

    fn replace_weights(
        &mut self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), SwapError> {
        self.check_model(checkpoint)?;
        weights::check(checkpoint, &self.uploads)?;
        // All work in progress reads the old weights.
        self.executor.wait()?;
        let mut origin = WeightsOrigin::Checkpoint { checkpoint, progress };
        let Self { executor, uploads, .. } = self;
        let brought = executor.load(|executor| origin.upload::<P::Value>(executor, uploads))?;
        // They were checked before, and the old ones are partly overwritten.
        let in_part =
            |refused| executor.lose(format!("the weights were replaced only in part: {}", chain(&refused)));
        Ok(brought.map_err(in_part)?)
    }

    fn stage_weights(&mut self, checkpoint: Checkpoint) -> Result<(), SwapError> {
        self.check_model(&checkpoint)?;
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        stage.progress = StagingProgress::Some(Box::new(checkpoint), 0);
        // The copy of the previous set may still read this memory. Host memory is written at once,
        // device memory in stream order.
        match stage.target {
            UploadTarget::Host(_) => self.executor.wait()?,
            UploadTarget::Device => self.follow(ExecutionLane::Vision, ExecutionLane::Batch)?,
        }
        Ok(())
    }

    fn stage_more(&mut self, bytes: u64) -> Result<bool, SwapError> {
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        if matches!(stage.progress, StagingProgress::Nothing) {
            return Err(SwapError::NotStaged);
        }
        let mut read = 0;
        while read < bytes.max(1) && !stage.is_whole() {
            match self.executor.load(|executor| stage.upload_next::<P::Value>(executor))? {
                Ok(more) => read += more,
                Err(refused) => {
                    stage.progress = StagingProgress::Nothing;
                    return Err(refused.into());
                }
            }
        }
        Ok(stage.is_whole())
    }

    fn swap_weights(&mut self) -> Result<(), SwapError> {
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        if !stage.is_whole() {
            return Err(SwapError::NotStaged);
        }
        if !matches!(stage.progress, StagingProgress::Noise) {
            stage.progress = StagingProgress::Nothing;
        }
        let target = stage.target;
        let from = stage.region;
        let to = self.all;
        // Tiles read weights, too: the copy waits for earlier tiles, and later tiles wait for the
        // copy.
        self.follow(ExecutionLane::Batch, ExecutionLane::Vision)?;
        match target {
            UploadTarget::Device => self.copy(ExecutionLane::Batch, Some(from), to)?,
            UploadTarget::Host(pinned) => {
                let all = HostRange { pinned, at: 0, bytes: to.len() as u64 };
                self.executor.work(|executor| executor.send(ExecutionLane::Batch, all, to.address()))?;
            }
        }
        Ok(self.follow(ExecutionLane::Vision, ExecutionLane::Batch)?)
    }
}

impl<P: FastKernels> CudaBackend<P> {
    /// Checks that a checkpoint has the shapes of the weights in use.
    fn check_model(&self, checkpoint: &Checkpoint) -> Result<(), SwapError> {
        let MatrixTypes { of_f32, wide } = MatrixTypes::of(checkpoint)?;
        let counts = CheckpointCounts::of(checkpoint, wide)?;
        let same = *checkpoint.config() == self.config && counts == self.counts;
        if same && of_f32 == (size_of::<P::Value>() == size_of::<f32>()) {
            Ok(())
        } else {
            Err(SwapError::OtherModel)
        }
    }
}

impl<P: ModelTypes> fmt::Debug for CudaBackend<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, options, plan, executor, .. } = self;
        f.debug_struct("CudaBackend")
            .field("capacity", capacity)
            .field("options", options)
            .field("plan", plan)
            .field("lost", &executor.lost())
            .finish_non_exhaustive()
    }
}

impl FeatureTable {
    fn new(count: u32) -> Self {
        let occupied = vec![false; count as usize];
        let free = (0..count).rev().collect();
        Self { occupied, free, in_batch: BTreeSet::new() }
    }

    fn contains(&self, feature: TileFeature) -> bool {
        self.occupied.get(feature.0 as usize).copied().unwrap_or(false)
    }

    fn check_capacity(&self, requested: usize) -> Result<(), BackendError> {
        let capacity = self.free.len();
        if requested > capacity {
            Err(BackendError::OverCapacity { what: "tile features", requested, capacity })
        } else {
            Ok(())
        }
    }

    fn take(&mut self) -> TileFeature {
        let index = self.free.pop().expect("the capacity was checked");
        self.occupied[index as usize] = true;
        TileFeature(index)
    }

    fn release(&mut self, feature: TileFeature) {
        let was_occupied = std::mem::replace(&mut self.occupied[feature.0 as usize], false);
        assert!(was_occupied, "feature {} does not exist", feature.0);
        self.free.push(feature.0);
    }
}
