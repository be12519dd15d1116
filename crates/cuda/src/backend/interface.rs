//! What a backend on a device offers beyond the [`Backend`] interface: its plan, and the exchange
//! of its weights.

use std::fmt;

use furrow_model::backend::{Backend, DeviceLost};
use furrow_model::checkpoint::Checkpoint;

use super::error::SwapError;
use crate::arena::MemoryPlan;

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
