//! 32-bit memory aligned to cache lines, in huge pages where the system provides them.
//!
//! A product streams its weights once: at 4 KiB a page, 1 GB of them would need 262,144 address
//! translations, at 2 MiB it needs 512.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// 32-bit values, initially zero.
pub(crate) struct AlignedBuffer {
    start: NonNull<u32>,
    len: usize,
}

/// A cache line, and the width of a vector.
const LINE: usize = 64;
/// A huge page of x86-64 and of aarch64 with 4 KiB granules.
const HUGE: usize = 2 << 20;

// SAFETY: it owns its memory, like a Vec<u32>.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    pub(super) fn new(len: usize) -> Self {
        Self::try_new(len).unwrap_or_else(|| match Self::layout(len) {
            Some(layout) => handle_alloc_error(layout),
            None => panic!("{len} 32-bit values do not fit into the address space"),
        })
    }

    /// `None` when the allocator refuses.
    pub(crate) fn try_new(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self { start: NonNull::dangling(), len });
        }
        let layout = Self::layout(len)?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc(layout) }.cast::<u32>())?;
        if layout.align() == HUGE {
            ask_for_huge_pages(start, layout.size());
        }
        // SAFETY: the allocation holds `len` values.
        unsafe { start.write_bytes(0, len) };
        Some(Self { start, len })
    }

    /// Grows to at least this length. Growing loses the contents.
    pub(super) fn grow(&mut self, len: usize) {
        if len > self.len {
            // A quarter more than requested, so that slowly growing sizes do not allocate each
            // time.
            *self = Self::new(len + len / 4);
        }
    }

    pub(crate) fn as_f32(&self) -> &[f32] {
        bytemuck::cast_slice(self)
    }

    pub(crate) fn as_f32_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self)
    }

    fn layout(len: usize) -> Option<Layout> {
        let align = if len >= HUGE / 4 { HUGE } else { LINE };
        Layout::array::<u32>(len).and_then(|layout| layout.align_to(align)).ok()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len).filter(|layout| layout.size() > 0) {
            // SAFETY: allocated in `try_new` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl Default for AlignedBuffer {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Deref for AlignedBuffer {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: `len` values, all initialised; none if the pointer dangles.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: NonNull<u32>, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: this buffer owns the range, and the advice does not change its contents. A kernel
    // that refuses it only costs speed.
    unsafe { madvise(start.as_ptr().cast(), bytes & !(HUGE - 1), Advice::LinuxHugepage) }.ok();
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: NonNull<u32>, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 16, 17, 1000, HUGE / 4, HUGE / 4 + 1, HUGE] {
            let mut buffer = AlignedBuffer::new(len);
            assert_eq!(buffer.len(), len);
            assert!(len == 0 || buffer.as_ptr().addr().is_multiple_of(LINE));
            assert!(buffer.iter().all(|value| *value == 0));
            buffer.fill(7);
            buffer.grow(len + 1);
            assert!(buffer.len() > len && buffer.iter().all(|value| *value == 0));
        }
    }
}
