//! The weights in use, and their exchange for others of the same model.

use furrow_model::checkpoint::{Checkpoint, chain};
use furrow_model::config::Config;

use super::copy::RangeCopier;
use super::error::SwapError;
use super::origin::WeightsOrigin;
use super::staging::StagedWeights;
use crate::executor::{ExecutionLane, HostRange};
use crate::latch::ExecutorLatch;
use crate::launch::DeviceView;
use crate::types::WeightElement;
use crate::weights::{self, CheckpointCounts, DeviceWeights, MatrixTypes, TensorUpload, UploadTarget};

/// The weights in use, and memory for a second set.
pub(super) struct ModelWeights<T> {
    pub in_use: DeviceWeights<T>,
    pub counts: CheckpointCounts,
    /// Uploads that fill them.
    pub uploads: Vec<TensorUpload>,
    /// All of them, as bytes.
    pub all: DeviceView<u8>,
    pub stage: Option<StagedWeights>,
    pub copier: RangeCopier,
}

impl<T: WeightElement> ModelWeights<T> {
    /// Replaces the weights in use by a checkpoint's, once all submitted work is done.
    pub(super) fn replace(
        &mut self,
        executor: &mut ExecutorLatch,
        config: &Config,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), SwapError> {
        self.check_model(config, checkpoint)?;
        weights::check(checkpoint, &self.uploads)?;
        // All work in progress reads the old weights.
        executor.wait()?;
        let mut origin = WeightsOrigin::Checkpoint { checkpoint, progress };
        let loaded = executor.load(|executor| origin.upload::<T>(executor, &self.uploads))?;
        // They were checked before, and the old ones are partly overwritten.
        let in_part =
            |refused| executor.lose(format!("the weights were replaced only in part: {}", chain(&refused)));
        Ok(loaded.map_err(in_part)?)
    }

    /// Accepts a checkpoint as the next set.
    pub(super) fn stage(
        &mut self,
        executor: &mut ExecutorLatch,
        config: &Config,
        checkpoint: Checkpoint,
    ) -> Result<(), SwapError> {
        self.check_model(config, &checkpoint)?;
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        Ok(stage.begin(executor, checkpoint)?)
    }

    /// Copies more of the next set. True when all of it is copied.
    pub(super) fn stage_more(&mut self, executor: &mut ExecutorLatch, bytes: u64) -> Result<bool, SwapError> {
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        stage.upload_more::<T>(executor, bytes)
    }

    /// Copies the next set over the weights in use.
    pub(super) fn swap(&mut self, executor: &mut ExecutorLatch) -> Result<(), SwapError> {
        let stage = self.stage.as_mut().ok_or(SwapError::NoStage)?;
        let (target, from) = stage.take_whole()?;
        let to = self.all;
        // Tiles read weights, too: the copy waits for earlier tiles, and later tiles wait for the
        // copy.
        executor.follow(ExecutionLane::Batch, ExecutionLane::Vision)?;
        match target {
            UploadTarget::Device => self.copier.copy(executor, ExecutionLane::Batch, Some(from), to)?,
            UploadTarget::Host(pinned) => {
                let all = HostRange { pinned, at: 0, bytes: to.len() as u64 };
                executor.work(|executor| executor.send(ExecutionLane::Batch, all, to.address()))?;
            }
        }
        Ok(executor.follow(ExecutionLane::Vision, ExecutionLane::Batch)?)
    }

    /// Checks that a checkpoint has the shapes of the weights in use.
    fn check_model(&self, config: &Config, checkpoint: &Checkpoint) -> Result<(), SwapError> {
        let MatrixTypes { of_f32, wide } = MatrixTypes::of(checkpoint)?;
        let counts = CheckpointCounts::of(checkpoint, wide)?;
        let same = checkpoint.config() == config && counts == self.counts;
        if same && of_f32 == (size_of::<T>() == size_of::<f32>()) {
            Ok(())
        } else {
            Err(SwapError::OtherModel)
        }
    }
}
