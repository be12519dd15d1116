//! One plan of the device's memory, with the position of every buffer.
//!
//! A plan assigns each buffer the space after the previous one, starting at address 0. Opening a
//! backend does the same from the address of its single allocation. So the plan is what is used, to
//! the byte, and nothing is allocated afterwards.
//!
//! For the 12B with 100 sessions of 8,192 tokens: weights 26.3 GB, slots 14.9 GB, pages 20.1 GB;
//! rows of a batch of 2,000 0.2 GB; sampling 0.1 GB.

use std::fmt;

use crate::launch::{DeviceElement, DeviceView};

/// Every buffer begins at a multiple of this, the alignment of a device's own allocator, which
/// matrix products prefer.
const ALIGN: u64 = 256;

/// Bytes of everything a backend holds on its device, by part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    parts: Vec<(&'static str, u64)>,
}

impl MemoryPlan {
    /// Bytes of all parts.
    pub fn total(&self) -> u64 {
        self.parts.iter().fold(0, |total, (_, bytes)| total.saturating_add(*bytes))
    }

    /// Name and bytes of each part.
    pub fn parts(&self) -> &[(&'static str, u64)] {
        &self.parts
    }

    /// Adds bytes to a part.
    pub(crate) fn add(&mut self, part: &'static str, bytes: u64) {
        match self.parts.iter_mut().find(|(name, _)| *name == part) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.parts.push((part, bytes)),
        }
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.parts.iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{name} {:.1} MB, ", *bytes as f64 / 1e6)?;
        }
        write!(f, "total {:.1} MB", self.total() as f64 / 1e6)
    }
}

/// Assigns addresses to buffers, one after another.
#[derive(Debug)]
pub(crate) struct BufferAllocator {
    next: u64,
    plan: MemoryPlan,
}

impl BufferAllocator {
    /// Starts at an address.
    pub(crate) fn at(address: u64) -> Self {
        Self { next: address, plan: MemoryPlan::default() }
    }

    /// Allocates a buffer of a part.
    pub(crate) fn take<T: DeviceElement>(&mut self, part: &'static str, count: usize) -> DeviceView<T> {
        let view = DeviceView::new(self.next, count);
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        // An overflow is not an error here: the plan's total shows it.
        let bytes = bytes.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        self.next = self.next.saturating_add(bytes);
        self.plan.add(part, bytes);
        view
    }

    /// Address of the next buffer.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes allocated so far.
    pub(crate) fn plan(self) -> MemoryPlan {
        self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_one_behind_the_other_and_the_plan_is_their_sum() {
        let mut allocator = BufferAllocator::at(1 << 20);
        let first = allocator.take::<f32>("rows", 65);
        let second = allocator.take::<u8>("pages", 256);
        let third = allocator.take::<u32>("rows", 0);
        assert_eq!(first.address(), 1 << 20);
        assert_eq!(second.address(), (1 << 20) + 512);
        assert_eq!(third.address(), (1 << 20) + 768);
        let plan = allocator.plan();
        assert_eq!(plan.parts(), [("rows", 512), ("pages", 256)]);
        assert_eq!(plan.to_string(), "rows 0.0 MB, pages 0.0 MB, total 0.0 MB");
    }

    #[test]
    fn sizes_that_no_machine_has_do_not_wrap_around() {
        let mut allocator = BufferAllocator::at(0);
        allocator.take::<f32>("pages", usize::MAX);
        allocator.take::<f32>("pages", usize::MAX);
        assert_eq!(allocator.plan().total(), u64::MAX);
    }
}
