//! A second set of weights: loaded piece by piece while batches run, until a swap takes it.

use furrow_model::backend::DeviceLost;
use furrow_model::checkpoint::Checkpoint;

use super::error::{CudaOpenError, SwapError};
use super::options::StagingMode;
use crate::executor::{ExecutionLane, Executor, ExecutorError};
use crate::latch::ExecutorLatch;
use crate::launch::DeviceView;
use crate::types::WeightElement;
use crate::weights::{self, LoadError, TensorUpload, UploadTarget};

/// Memory for a second set of weights, and its state.
pub(super) struct StagedWeights {
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
    pub(super) fn open<T: WeightElement>(
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

    /// Begins with a checkpoint. Drops what was staged before.
    pub(super) fn begin(
        &mut self,
        executor: &mut ExecutorLatch,
        checkpoint: Checkpoint,
    ) -> Result<(), DeviceLost> {
        self.progress = StagingProgress::Some(Box::new(checkpoint), 0);
        // The copy of the previous set may still read this memory. Host memory is written at once,
        // device memory in stream order.
        match self.target {
            UploadTarget::Host(_) => executor.wait(),
            UploadTarget::Device => executor.follow(ExecutionLane::Vision, ExecutionLane::Batch),
        }
    }

    /// Copies more of them: at least this many bytes, or all that are left. True when all are
    /// copied. Drops them if a value is not finite.
    pub(super) fn upload_more<T: WeightElement>(
        &mut self,
        executor: &mut ExecutorLatch,
        bytes: u64,
    ) -> Result<bool, SwapError> {
        if matches!(self.progress, StagingProgress::Nothing) {
            return Err(SwapError::NotStaged);
        }
        let mut read = 0;
        while read < bytes.max(1) && !self.is_whole() {
            match executor.load(|executor| self.upload_next::<T>(executor))? {
                Ok(more) => read += more,
                Err(refused) => {
                    self.progress = StagingProgress::Nothing;
                    return Err(refused.into());
                }
            }
        }
        Ok(self.is_whole())
    }

    /// Returns where the whole set is, for its copy to the weights in use; nothing is staged
    /// afterwards.
    pub(super) fn take_whole(&mut self) -> Result<(UploadTarget, DeviceView<u8>), SwapError> {
        if !self.is_whole() {
            return Err(SwapError::NotStaged);
        }
        if !matches!(self.progress, StagingProgress::Noise) {
            self.progress = StagingProgress::Nothing;
        }
        Ok((self.target, self.region))
    }

    fn is_whole(&self) -> bool {
        match self.progress {
            StagingProgress::Nothing => false,
            StagingProgress::Some(_, next) => next == self.uploads.len(),
            StagingProgress::Noise => true,
        }
    }

    /// Copies the next upload; returns the number of bytes of the checkpoint.
    fn upload_next<T: WeightElement>(&mut self, executor: &mut dyn Executor) -> Result<u64, LoadError> {
        let StagingProgress::Some(checkpoint, next) = &mut self.progress else { return Ok(0) };
        let read = weights::upload_tensor::<T>(executor, self.target, checkpoint, &self.uploads[*next])?;
        *next += 1;
        Ok(read)
    }
}
