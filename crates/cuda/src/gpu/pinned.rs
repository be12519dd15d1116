//! Pinned host memory that the device accesses directly.

use std::ffi::c_void;
use std::num::NonZero;
use std::ops::Range;
use std::ptr;

use cudarc::driver::{DriverError, result, sys};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Most threads that touch new pages: with more, memory bandwidth is the limit.
const TOUCHERS_MAX: usize = 16;
/// Smallest page size; writing one byte of a page maps it.
const PAGE: usize = 4096;

/// Pinned bytes, freed on drop. Before dropping it, the owner must wait for copies from and to it.
///
/// The driver pins its own allocations with one thread, page by page; 60 GB took minutes. So pages
/// come from the kernel, large ones if available, all cores touch them, and the driver pins the
/// mapped pages. If it refuses, it allocates them itself.
pub(super) struct HostBytes {
    first: *mut u8,
    len: usize,
    /// Mapped and registered here; otherwise allocated by the driver.
    is_mapped: bool,
}

impl HostBytes {
    /// Allocates zeros. The caller has bound the context.
    pub(super) fn new(len: usize) -> Result<Self, DriverError> {
        match mapped(len) {
            Some(first) => Ok(Self { first, len, is_mapped: true }),
            None => Self::allocated(len),
        }
    }

    fn allocated(len: usize) -> Result<Self, DriverError> {
        // SAFETY: the context is bound; the driver allocates this many bytes or fails.
        let first: *mut u8 = unsafe { result::malloc_host(len, 0) }?.cast();
        // SAFETY: these bytes were just allocated, and nothing else refers to them.
        unsafe { first.write_bytes(0, len) };
        Ok(Self { first, len, is_mapped: false })
    }

    /// A range of the bytes.
    pub(super) fn slice(&mut self, range: Range<usize>) -> &mut [u8] {
        let (first, len) = self.raw_range(range);
        // SAFETY: `new` allocated and wrote the bytes; `&mut self` makes the slice the only one on
        // the host, and a caller that gave bytes to the device waits before it calls this for them
        // again.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// Address and length of a range, for copies: the device may access other ranges, or this one,
    /// meanwhile.
    pub(super) fn raw_range(&self, range: Range<usize>) -> (*mut u8, usize) {
        assert!(range.start <= range.end && range.end <= self.len, "bytes {range:?} of {}", self.len);
        (self.first.wrapping_add(range.start), range.len())
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        let first: *mut c_void = self.first.cast();
        if self.is_mapped {
            // SAFETY: `mapped` registered and mapped it, copies have ended, and it is freed once.
            unsafe {
                sys::cuMemHostUnregister(first).result().ok();
                munmap(first, self.len).ok();
            }
        } else {
            // SAFETY: it was allocated by `allocated`, copies have ended, and it is freed once.
            unsafe { result::free_host(first) }.ok();
        }
    }
}

/// New pages of zeros that the driver has pinned; `None` if there is no memory or the driver
/// refuses.
fn mapped(len: usize) -> Option<*mut u8> {
    let first = touched(len)?;
    // SAFETY: these bytes are mapped from `first` on, and stay so until they are unregistered.
    let registered = unsafe { sys::cuMemHostRegister_v2(first.cast(), len, 0) }.result();
    if registered.is_err() {
        // SAFETY: `touched` mapped it, and nothing else refers to it.
        unsafe { munmap(first.cast(), len) }.ok();
        return None;
    }
    Some(first)
}

/// New pages of zeros, all mapped.
fn touched(len: usize) -> Option<*mut u8> {
    if len == 0 {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE;
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
    let first: *mut u8 = unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags) }.ok()?.cast();
    // A forked process does not need them, and the kernel would copy pinned pages. Without large
    // pages this only takes longer.
    for advice in [Advice::LinuxDontFork, Advice::LinuxHugepage] {
        // SAFETY: these bytes were just mapped, and the advice does not change their contents.
        unsafe { madvise(first.cast(), len, advice) }.ok();
    }
    // SAFETY: the kernel has mapped this many zeros, and nothing else refers to them yet.
    let pages = unsafe { std::slice::from_raw_parts_mut(first, len) };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(TOUCHERS_MAX);
    let share = len.div_ceil(threads).next_multiple_of(PAGE);
    std::thread::scope(|scope| {
        for part in pages.chunks_mut(share) {
            scope.spawn(|| part.iter_mut().step_by(PAGE).for_each(|byte| *std::hint::black_box(byte) = 0));
        }
    });
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_pages_are_zeros_and_all_there() {
        for len in [1, PAGE - 1, PAGE + 1, 3 << 20] {
            let first = touched(len).unwrap();
            // SAFETY: these bytes were mapped.
            let pages = unsafe { std::slice::from_raw_parts(first, len) };
            assert!(pages.iter().all(|byte| *byte == 0), "{len}");
            // SAFETY: it was mapped by `touched`.
            unsafe { munmap(first.cast(), len) }.unwrap();
        }
        assert!(touched(0).is_none());
        assert!(touched(usize::MAX / 2).is_none(), "more than the address space");
    }
}
