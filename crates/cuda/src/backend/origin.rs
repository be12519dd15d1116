//! Uploads a whole set of weights, from a checkpoint or generated.

use furrow_model::checkpoint::Checkpoint;

use crate::executor::Executor;
use crate::types::WeightElement;
use crate::weights::{self, LoadError, TensorUpload, UploadTarget};

/// Source of the weights.
pub(super) enum WeightsOrigin<'a> {
    /// A checkpoint; `progress` is called with bytes done and bytes in total.
    Checkpoint { checkpoint: &'a Checkpoint, progress: &'a mut dyn FnMut(u64, u64) },
    /// Noise of the magnitude of trained weights, for measurements.
    Noise,
}

impl WeightsOrigin<'_> {
    /// Uploads all of them, and waits until they are copied.
    pub(super) fn upload<T: WeightElement>(
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
