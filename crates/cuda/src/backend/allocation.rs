//! Assigns every buffer of a backend its address: the weights, a second set, states, the workspaces
//! and tile features, in one order.

use furrow_model::backend::BackendCapacity;
use furrow_model::config::Config;

use super::options::{BackendOptions, StagingMode};
use crate::arena::{BufferAllocator, MemoryPlan};
use crate::encode::VisionWork;
use crate::launch::{CopyMove, DeviceView};
use crate::needs::MemoryNeeds;
use crate::state::StateBuffers;
use crate::types::ModelTypes;
use crate::weights::{CheckpointCounts, DeviceWeights, TensorUpload};
use crate::work::{BatchBuffers, BatchLimits};

/// Everything that determines the sizes of buffers.
#[derive(Clone, Copy)]
pub(super) struct AllocationInputs<'a> {
    pub config: &'a Config,
    pub counts: &'a CheckpointCounts,
    pub capacity: &'a BackendCapacity,
    pub options: &'a BackendOptions,
}

/// All buffers, and what must be uploaded to them.
pub(super) struct AllocatedBackend<P: ModelTypes> {
    pub weights: DeviceWeights<P::Value>,
    pub uploads: Vec<TensorUpload>,
    /// All weights, as bytes.
    pub all: DeviceView<u8>,
    /// Memory for a second set of weights, and its uploads; off the device their addresses start at
    /// 0.
    pub stage: Option<(DeviceView<u8>, Vec<TensorUpload>)>,
    pub limits: BatchLimits,
    pub states: StateBuffers<P>,
    pub work: BatchBuffers<P>,
    pub vision: Option<VisionWork<P>>,
    /// Rows of all tile features.
    pub features: DeviceView<P::Value>,
    /// The copy command from index 0 to index 0.
    pub one: DeviceView<CopyMove>,
}

impl<P: ModelTypes> AllocatedBackend<P> {
    pub(super) fn allocate(allocator: &mut BufferAllocator, inputs: AllocationInputs<'_>) -> Self {
        let AllocationInputs { config, counts, capacity, options } = inputs;
        let first = allocator.next();
        let (weights, uploads) = DeviceWeights::allocate(config, counts, allocator);
        let bytes = usize::try_from(allocator.next() - first).unwrap_or(usize::MAX);
        let region = match options.stage {
            StagingMode::None => None,
            StagingMode::Device => Some(allocator.take("a second set of weights", bytes)),
            StagingMode::Host => Some(DeviceView::new(0, bytes)),
        };
        let stage = region.map(|region| {
            let mut second = BufferAllocator::at(region.address());
            (region, DeviceWeights::<P::Value>::allocate(config, counts, &mut second).1)
        });
        let text = &config.text;
        let limits = BatchLimits::of(text, capacity);
        let vision = config.vision.as_ref();
        let features = capacity.features as usize;
        let feature_values = vision.map_or(0, |vision| vision.rows_per_tile() * text.hidden);
        Self {
            states: StateBuffers::allocate(text, capacity, allocator),
            work: BatchBuffers::allocate(text, &limits, weights.text.widest, allocator),
            vision: vision.map(|vision| VisionWork::allocate(vision, counts.prefix, features, allocator)),
            features: allocator.take("tile features", features.saturating_mul(feature_values)),
            one: allocator.take("state slots", 1),
            weights,
            uploads,
            all: DeviceView::new(first, bytes),
            stage,
            limits,
        }
    }
}

/// Device memory of a model in these types: its buffers, from address 0 on.
pub(super) fn plan_in<P: ModelTypes>(inputs: AllocationInputs<'_>) -> MemoryPlan {
    needs_in::<P>(inputs).device
}

/// Device and host memory of a model in these types.
pub(super) fn needs_in<P: ModelTypes>(inputs: AllocationInputs<'_>) -> MemoryNeeds {
    let mut allocator = BufferAllocator::at(0);
    let allocated = AllocatedBackend::<P>::allocate(&mut allocator, inputs);
    let AllocationInputs { capacity, options, .. } = inputs;
    let staged = if options.stage == StagingMode::Host { allocated.all.len() as u64 } else { 0 };
    MemoryNeeds::new(allocator.plan(), allocated.states.sizes(), (capacity.offload_bytes, staged))
}
