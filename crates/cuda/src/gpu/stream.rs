//! Streams and events of the driver, destroyed on drop.

use cudarc::driver::{DriverError, result, sys};

/// A queue of the device.
pub(super) struct GpuStream(sys::CUstream);

/// A mark in a queue.
pub(super) struct GpuEvent(sys::CUevent);

/// The lowest and the highest priority of a stream.
pub(super) fn priorities() -> Result<[i32; 2], DriverError> {
    let (lowest, highest) = result::stream::get_priority_range()?;
    Ok([lowest, highest])
}

impl GpuStream {
    pub(super) fn new(priority: i32) -> Result<Self, DriverError> {
        let kind = result::stream::StreamKind::NonBlocking;
        result::stream::create_with_priority(kind, priority).map(Self)
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Whether all its present work is done.
    pub(super) fn is_done(&self) -> Result<bool, DriverError> {
        // SAFETY: the stream lives as long as this.
        match unsafe { sys::cuStreamQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => answer.result().map(|()| true),
        }
    }

    /// Waits until all its present work is done.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.0) }
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        // SAFETY: it was created, and only this call destroys it.
        unsafe { result::stream::destroy(self.0) }.ok();
    }
}

impl GpuEvent {
    pub(super) fn new() -> Result<Self, DriverError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map(Self)
    }

    /// Records the mark after the present work of a stream.
    pub(super) fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: both live; the caller of a raw stream holds its owner.
        unsafe { result::event::record(self.0, stream) }
    }

    /// Makes a stream wait for the mark.
    pub(super) fn delay(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { result::stream::wait_event(stream, self.0, flags) }
    }

    /// Waits for the mark; returns at once if none is recorded.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives as long as this.
        unsafe { result::event::synchronize(self.0) }
    }
}

impl Drop for GpuEvent {
    fn drop(&mut self) {
        // SAFETY: it was created, and only this call destroys it.
        unsafe { result::event::destroy(self.0) }.ok();
    }
}
