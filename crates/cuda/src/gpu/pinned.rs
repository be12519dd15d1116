//! Memory of this machine that the device reads and writes by itself.

use std::ffi::c_void;
use std::num::NonZero;
use std::ops::Range;
use std::ptr;

use cudarc::driver::{DriverError, result, sys};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Threads that touch new pages at most: beyond these the memory's own rate is the limit.
const TOUCHERS_MAX: usize = 16;
/// The smallest page that there is; a page is there once a byte of it was written.
const PAGE: usize = 4096;

/// Pinned bytes, freed with this: whoever drops it has waited for copies from and to it.
///
/// The driver pins what it allocates with one thread, page by page, and 60 GB of it took minutes. So pages come from the kernel, large ones
/// where it has them, all cores touch them, and the driver pins what is there already. Where it will not, it allocates after all.
pub(super) struct HostBytes {
    first: *mut u8,
    len: usize,
    /// Mapped and registered here; else the driver allocated it.
    is_mapped: bool,
}

impl HostBytes {
    /// So many zeros. The context is bound.
    pub fn new(len: usize) -> Result<Self, DriverError> {
        match mapped(len) {
            Some(first) => Ok(Self { first, len, is_mapped: true }),
            None => Self::allocated(len),
        }
    }

    fn allocated(len: usize) -> Result<Self, DriverError> {
        // SAFETY: the context is bound; the driver gives zero bytes or so many.
        let first: *mut u8 = unsafe { result::malloc_host(len, 0) }?.cast();
        // SAFETY: so many bytes were just allocated; nobody has seen them.
        unsafe { first.write_bytes(0, len) };
        Ok(Self { first, len, is_mapped: false })
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
        let first: *mut c_void = self.first.cast();
        if self.is_mapped {
            // SAFETY: `mapped` registered and mapped it, copies have ended, and it is given back once.
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

/// New pages of zeros that the driver has pinned; `None` where there is no room for them or the driver does not pin them.
fn mapped(len: usize) -> Option<*mut u8> {
    let first = touched(len)?;
    // SAFETY: so many bytes are mapped from `first` on, and stay so until they are unregistered.
    let registered = unsafe { sys::cuMemHostRegister_v2(first.cast(), len, 0) }.result();
    if registered.is_err() {
        // SAFETY: `touched` mapped it, and nothing else knows it.
        unsafe { munmap(first.cast(), len) }.ok();
        return None;
    }
    Some(first)
}

/// New pages of zeros, all of them there.
fn touched(len: usize) -> Option<*mut u8> {
    if len == 0 {
        return None;
    }
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses where, so nothing that is mapped is replaced.
    let first: *mut u8 = unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags) }.ok()?.cast();
    // A process that is forked has no use for them, and the kernel would copy what is pinned. Without large pages it only takes longer.
    for advice in [Advice::LinuxDontFork, Advice::LinuxHugepage] {
        // SAFETY: so many bytes were just mapped, and both leave their content as it is.
        unsafe { madvise(first.cast(), len, advice) }.ok();
    }
    // SAFETY: the kernel maps zeros, so many bytes of them, and nothing else knows them yet.
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
            // SAFETY: so many bytes were mapped.
            let pages = unsafe { std::slice::from_raw_parts(first, len) };
            assert!(pages.iter().all(|byte| *byte == 0), "{len}");
            // SAFETY: it was mapped by `touched`.
            unsafe { munmap(first.cast(), len) }.unwrap();
        }
        assert!(touched(0).is_none());
        assert!(touched(usize::MAX / 2).is_none(), "more than the address space holds");
    }
}
