//! Words of memory on cache-line boundaries, in huge pages where the system gives them.
//!
//! A product streams its weights once: at 4 KiB a page, 1 GB of them would need 262,144 address translations, at 2 MiB it needs 512.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// 32-bit words, zero at first.
pub(crate) struct Buffer {
    start: NonNull<u32>,
    len: usize,
}

/// A cache line, and the width of a vector.
const LINE: usize = 64;
/// A huge page of x86-64 and of aarch64 with 4 KiB granules.
const HUGE: usize = 2 << 20;

// SAFETY: it owns its words, like a Vec<u32>.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) fn new(len: usize) -> Self {
        Self::try_new(len).unwrap_or_else(|| match Self::layout(len) {
            Some(layout) => handle_alloc_error(layout),
            None => panic!("{len} words are more than an address space"),
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
        // SAFETY: the allocation holds len words.
        unsafe { start.write_bytes(0, len) };
        Some(Self { start, len })
    }

    /// Makes room for at least so many words. What was there is lost when it grows.
    pub(super) fn grow(&mut self, len: usize) {
        if len > self.len {
            // A quarter more than asked, so that slowly growing needs do not allocate each time.
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

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len).filter(|layout| layout.size() > 0) {
            // SAFETY: allocated in `try_new` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Deref for Buffer {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: len words, all initialised; none when the pointer dangles.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as in `deref`, and ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: NonNull<u32>, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the range is ours and this advice leaves its contents alone. A kernel that refuses costs speed, nothing else.
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
            let mut buffer = Buffer::new(len);
            assert_eq!(buffer.len(), len);
            assert!(len == 0 || buffer.as_ptr().addr().is_multiple_of(LINE));
            assert!(buffer.iter().all(|word| *word == 0));
            buffer.fill(7);
            buffer.grow(len + 1);
            assert!(buffer.len() > len && buffer.iter().all(|word| *word == 0));
        }
    }
}
