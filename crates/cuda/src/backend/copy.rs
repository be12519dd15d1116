//! Copies one range of device memory to another of the same size, or clears it.

use furrow_model::backend::DeviceLost;

use crate::executor::{ExecutionLane, Executor, ExecutorError};
use crate::latch::ExecutorLatch;
use crate::launch::{CopyMove, DeviceView};
use crate::ops::copy::{CopyLaunch, CopyRegion};

/// Launches the copy kernel for single ranges.
#[derive(Clone, Copy)]
pub(super) struct RangeCopier {
    /// The copy command from index 0 to index 0.
    one: DeviceView<CopyMove>,
}

impl RangeCopier {
    /// Uploads the copy command.
    pub(super) fn open(
        executor: &mut dyn Executor,
        one: DeviceView<CopyMove>,
    ) -> Result<Self, ExecutorError> {
        let command = CopyMove { from: 0, to: 0 };
        executor.upload(ExecutionLane::Batch, bytemuck::bytes_of(&command), one.address())?;
        Ok(Self { one })
    }

    /// Copies a range to another one of the same size, or clears it.
    pub(super) fn copy(
        self,
        executor: &mut ExecutorLatch,
        lane: ExecutionLane,
        from: Option<DeviceView<u8>>,
        to: DeviceView<u8>,
    ) -> Result<(), DeviceLost> {
        let bytes = to.len();
        if bytes == 0 {
            return executor.check();
        }
        let copy_region = |bytes: DeviceView<u8>| CopyRegion { bytes, stride: bytes.len() };
        let copy = CopyLaunch { from: from.map(copy_region), to: copy_region(to), moves: self.one, bytes };
        executor.work(|executor| executor.launch(lane, &copy.launch()))
    }
}
