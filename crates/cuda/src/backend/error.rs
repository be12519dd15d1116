//! Why a backend did not open, and why its weights were not exchanged.

use furrow_model::backend::{DeviceLost, WeightsError};
use furrow_model::checkpoint::CheckpointError;

use crate::arena::MemoryPlan;
use crate::executor::ExecutorError;
use crate::weights::LoadError;

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

impl From<SwapError> for WeightsError {
    fn from(error: SwapError) -> Self {
        match error {
            SwapError::NotStaged => Self::NotStaged,
            SwapError::Device(lost) => Self::Device(lost),
            other => Self::Refused(other.to_string()),
        }
    }
}
