//! Streams and events of the driver's, destroyed with these.

use cudarc::driver::{DriverError, result, sys};

/// A queue of the device.
pub(super) struct Stream(sys::CUstream);

/// A mark in a queue.
pub(super) struct Event(sys::CUevent);

/// The lowest and the highest priority of a stream.
pub(super) fn priorities() -> Result<[i32; 2], DriverError> {
    let (lowest, highest) = result::stream::get_priority_range()?;
    Ok([lowest, highest])
}

impl Stream {
    pub fn new(priority: i32) -> Result<Self, DriverError> {
        let kind = result::stream::StreamKind::NonBlocking;
        result::stream::create_with_priority(kind, priority).map(Self)
    }

    pub fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Whether all it got is done.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        // SAFETY: the stream lives as long as this.
        match unsafe { sys::cuStreamQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => answer.result().map(|()| true),
        }
    }

    /// Until all it got is done.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.0) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else destroys it.
        unsafe { result::stream::destroy(self.0) }.ok();
    }
}

impl Event {
    pub fn new() -> Result<Self, DriverError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map(Self)
    }

    /// Puts the mark behind all that a stream got so far.
    pub fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: both live; whoever has a raw stream holds its owner.
        unsafe { result::event::record(self.0, stream) }
    }

    /// Has a stream wait for the mark.
    pub fn hold_up(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { result::stream::wait_event(stream, self.0, flags) }
    }

    /// Until the mark is passed; at once where there is none yet.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives as long as this.
        unsafe { result::event::synchronize(self.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else destroys it.
        unsafe { result::event::destroy(self.0) }.ok();
    }
}
