//! The backend itself: checks each call, and passes it to the part whose duty it is.

use std::fmt;

use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, BatchValidator, DeviceLost, IncomingWeights, OffloadedState,
    PAGE_TOKENS, Page, SequenceSpan, Slot, TileFeature, WeightsError,
};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::config::{Config, VisionConfig};
use furrow_model::sample::{SampleOutcome, SampleRequest};
use furrow_model::vision::ImageTile;

use super::batches::{BatchRunner, PassInputs};
use super::error::SwapError;
use super::exchange::ModelWeights;
use super::features::TileFeatures;
use super::interface::DeviceBackend;
use super::options::BackendOptions;
use super::states::SessionStates;
use crate::arena::MemoryPlan;
use crate::forward::FastKernels;
use crate::latch::ExecutorLatch;
use crate::offload::StateLocation;
use crate::types::ModelTypes;

/// Runs a model on an executor.
pub(super) struct CudaBackend<P: ModelTypes> {
    pub config: Config,
    pub capacity: BackendCapacity,
    pub options: BackendOptions,
    pub executor: ExecutorLatch,
    pub plan: MemoryPlan,
    pub weights: ModelWeights<P::Value>,
    pub states: SessionStates<P>,
    pub features: TileFeatures<P>,
    pub batches: BatchRunner<P>,
}

impl<P: FastKernels> CudaBackend<P> {
    fn feature_rows(&self) -> usize {
        self.config.vision.as_ref().map_or(0, VisionConfig::rows_per_tile)
    }

    fn check(&self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        let rows = self.feature_rows();
        let feature_rows = &|feature| if self.features.contains(feature) { rows } else { 0 };
        BatchValidator { capacity: &self.capacity, embeddings: self.weights.counts.embeddings, feature_rows }
            .check(batch)?;
        let mut slots: Vec<Slot> = batch.iter().map(|span| span.slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|two| two[0] < two[1]), "two spans of a batch share a slot");
        let capacity = self.batches.limits().pages * PAGE_TOKENS;
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

    /// Runs a checked batch after the tiles and the copies of states that it must wait for.
    fn run_checked(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        let feature_rows = self.feature_rows();
        let Self { config, executor, weights, states, features, batches, .. } = self;
        features.order_batch(executor, batch)?;
        states.delay_batch(executor, batch)?;
        let inputs = PassInputs {
            text: &config.text,
            weights: &weights.in_use.text,
            states: states.buffers(),
            features: features.rows(),
            feature_rows,
        };
        batches.run(executor, &inputs, batch)
    }
}

impl<P: FastKernels> Backend for CudaBackend<P> {
    fn config(&self) -> &Config {
        &self.config
    }

    fn capacity(&self) -> BackendCapacity {
        self.capacity
    }

    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        let Self { config, executor, weights, features, .. } = self;
        executor.check()?;
        let (Some(config), Some(weights)) = (&config.vision, &weights.in_use.vision) else {
            return Err(BackendError::NoVision);
        };
        features.check_capacity(tiles.len())?;
        Ok(features.encode(executor, config, weights, tiles)?)
    }

    fn encodes_concurrently(&self) -> bool {
        self.features.has_tower()
    }

    fn release(&mut self, features: &[TileFeature]) {
        features.iter().for_each(|feature| self.features.release(*feature));
    }

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        self.executor.check()?;
        self.check(batch)?;
        if batch.is_empty() {
            self.batches.clear();
            return Ok(());
        }
        Ok(self.run_checked(batch)?)
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        self.batches.logits(&mut self.executor, row)
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
        self.batches.sample(&mut self.executor, picks)
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.states.copy_at(&mut self.executor, None, StateLocation::Slot(slot))
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        let from = Some(StateLocation::Slot(from));
        self.states.copy_at(&mut self.executor, from, StateLocation::Slot(to))
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        let from = Some(StateLocation::Page(from));
        self.states.copy_at(&mut self.executor, from, StateLocation::Page(to))
    }

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.states.offloaded_bytes(pages)
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        self.states.offload(&mut self.executor, slot, pages)
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        self.states.is_moving(&mut self.executor, slot, pages)
    }

    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.states.restore(&mut self.executor, offloaded, slot, pages)
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
        self.weights.replace(&mut self.executor, &self.config, checkpoint, progress)
    }

    fn stage_weights(&mut self, checkpoint: Checkpoint) -> Result<(), SwapError> {
        self.weights.stage(&mut self.executor, &self.config, checkpoint)
    }

    fn stage_more(&mut self, bytes: u64) -> Result<bool, SwapError> {
        self.weights.stage_more(&mut self.executor, bytes)
    }

    fn swap_weights(&mut self) -> Result<(), SwapError> {
        self.weights.swap(&mut self.executor)
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
