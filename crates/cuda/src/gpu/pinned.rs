//! Memory of this machine that the device reads and writes by itself.

use std::ops::Range;

use cudarc::driver::{DriverError, result};

/// Pinned bytes, freed with this: whoever drops it has waited for copies from and to it.
pub(super) struct HostBytes {
    first: *mut u8,
    len: usize,
}

impl HostBytes {
    /// So many. The context is bound.
    pub fn new(len: usize) -> Result<Self, DriverError> {
        // SAFETY: the context is bound; the driver gives zero bytes or so many.
        let first: *mut u8 = unsafe { result::malloc_host(len, 0) }?.cast();
        // SAFETY: so many bytes were just allocated; nobody has seen them.
        unsafe { first.write_bytes(0, len) };
        Ok(Self { first, len })
    }

    /// Some of them.
    pub fn slice(&mut self, range: Range<usize>) -> &mut [u8] {
        let (first, len) = self.place(range);
        // SAFETY: the bytes were allocated and written by `new`; `&mut self` keeps the slice the only one on this side, and whoever gave bytes to the
        // device waits before it asks for them again.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// Where some of them begin and how many they are, for copies: the device may be at others, or at these, meanwhile.
    pub fn place(&self, range: Range<usize>) -> (*mut u8, usize) {
        assert!(range.start <= range.end && range.end <= self.len, "bytes {range:?} of {}", self.len);
        (self.first.wrapping_add(range.start), range.len())
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `new`, copies have ended, and it is freed once.
        unsafe { result::free_host(self.first.cast()) }.ok();
    }
}
