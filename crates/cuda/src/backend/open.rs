//! Opens a backend: checks the model and the capacity, allocates everything, uploads the weights.

use furrow_model::backend::BackendCapacity;
use furrow_model::checkpoint::Checkpoint;
use furrow_model::config::Config;

use super::allocation::{AllocatedBackend, AllocationInputs, plan_in};
use super::batches::BatchRunner;
use super::capacity::check_supported;
use super::copy::RangeCopier;
use super::cuda::CudaBackend;
use super::error::CudaOpenError;
use super::exchange::ModelWeights;
use super::features::TileFeatures;
use super::interface::DeviceBackend;
use super::options::{BackendOptions, ModelPrecision};
use super::origin::WeightsOrigin;
use super::staging::StagedWeights;
use super::states::SessionStates;
use crate::arena::{BufferAllocator, MemoryPlan};
use crate::executor::{Executor, ExecutorError};
use crate::forward::FastKernels;
use crate::latch::ExecutorLatch;
use crate::offload::{NotPinned, OffloadPool};
use crate::types::{Bfloat16Types, Float32Types, NarrowState, WideResidual};
use crate::weights::{CheckpointCounts, MatrixTypes};

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
    let request = OpenRequest { config: checkpoint.config(), counts, capacity, options, executor };
    request.device(kept.of_f32, WeightsOrigin::Checkpoint { checkpoint, progress })
}

/// Opens a model in bfloat16 with weights of noise and states of zeros, for measurements.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_noise(
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
        check_supported(self.config, &self.capacity)?;
        Ok(match (of_f32, self.options.precision) {
            (true, _) => Box::new(self.backend::<Float32Types>(origin)?),
            (_, ModelPrecision::Usual) => Box::new(self.backend::<Bfloat16Types>(origin)?),
            (_, ModelPrecision::WideResidual) => Box::new(self.backend::<WideResidual>(origin)?),
            (_, ModelPrecision::NarrowState) => Box::new(self.backend::<NarrowState>(origin)?),
        })
    }

    fn backend<P: FastKernels>(self, mut origin: WeightsOrigin<'_>) -> Result<CudaBackend<P>, CudaOpenError> {
        let Self { config, counts, capacity, options, mut executor } = self;
        let sizes = AllocationInputs { config, counts: &counts, capacity: &capacity, options: &options };
        let plan = plan_in::<P>(sizes);
        let address = allocate(&mut *executor, &plan)?;
        let allocated = AllocatedBackend::<P>::allocate(&mut BufferAllocator::at(address), sizes);
        let offload_pool = open_pool(&mut *executor, allocated.states.sizes(), capacity.offload_bytes)?;
        let is_noise = matches!(origin, WeightsOrigin::Noise);
        let stage = allocated
            .stage
            .map(|stage| StagedWeights::open::<P::Value>(&mut *executor, stage, options.stage, is_noise));
        let stage = stage.transpose()?;
        origin.upload::<P::Value>(&mut *executor, &allocated.uploads)?;
        let copier = RangeCopier::open(&mut *executor, allocated.one)?;
        executor.wait()?;
        let AllocatedBackend { weights, uploads, all, limits, states, work, vision, features, .. } =
            allocated;
        let mut opened = CudaBackend {
            config: config.clone(),
            capacity,
            options,
            executor: ExecutorLatch::new(executor),
            plan,
            weights: ModelWeights { in_use: weights, counts, uploads, all, stage, copier },
            states: SessionStates::new(states, copier, offload_pool),
            features: TileFeatures::new(capacity.features, features, vision, options.deterministic),
            batches: BatchRunner::new(options, limits, work, config.text.vocabulary),
        };
        if is_noise {
            // Measurements decode contexts that no prefill wrote. Zeros are as good as other values
            // there, but NaN would make sampling stop early and look too fast.
            opened.states.clear_all(&mut opened.executor)?;
        }
        Ok(opened)
    }
}

/// Allocates the whole plan, and returns its address.
fn allocate(executor: &mut dyn Executor, plan: &MemoryPlan) -> Result<u64, CudaOpenError> {
    let free = executor.free_bytes()?;
    if plan.total() > free {
        return Err(CudaOpenError::Full { requested: plan.clone(), free });
    }
    match executor.allocate(plan.total()) {
        // The memory is free, but not contiguous.
        Err(ExecutorError::NoMemory { free, .. }) => {
            Err(CudaOpenError::Full { requested: plan.clone(), free })
        }
        allocated => Ok(allocated?),
    }
}

/// Pins the host memory of offloaded states.
fn open_pool(
    executor: &mut dyn Executor,
    sizes: [u64; 2],
    requested: u64,
) -> Result<OffloadPool, CudaOpenError> {
    OffloadPool::open(executor, sizes, requested).map_err(|why| match why {
        NotPinned::Limited(available) => CudaOpenError::OffloadFull { requested, available },
        NotPinned::Failed(error) => error.into(),
    })
}
