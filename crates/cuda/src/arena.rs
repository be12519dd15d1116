//! One plan of the device's bytes, and where everything lies in it.
//!
//! A plan is made by placing every buffer behind the one before it from address 0; opening does the same from the address that the device gave for
//! all of it. So what was planned is what is used, to the byte, and nothing is allocated afterwards.
//!
//! For the 12B with 100 sessions of 8,192 tokens: weights 26.3 GB, slots 14.9 GB, pages 20.1 GB; rows of a batch of 2,000 0.2 GB; sampling 0.1 GB.

use std::fmt;

use crate::launch::{Element, View};

/// Every buffer begins at a multiple of it: what a device's own allocator gives, and what matrix products like best.
const ALIGN: u64 = 256;

/// Bytes of everything a backend holds on its device, by part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    parts: Vec<(&'static str, u64)>,
}

impl Plan {
    /// Of all parts.
    pub fn total(&self) -> u64 {
        self.parts.iter().fold(0, |total, (_, bytes)| total.saturating_add(*bytes))
    }

    /// Name and bytes of each part.
    pub fn parts(&self) -> &[(&'static str, u64)] {
        &self.parts
    }

    /// More bytes of a part.
    pub(crate) fn add(&mut self, part: &'static str, bytes: u64) {
        match self.parts.iter_mut().find(|(name, _)| *name == part) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.parts.push((part, bytes)),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.parts.iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{name} {:.1} MB, ", *bytes as f64 / 1e6)?;
        }
        write!(f, "together {:.1} MB", self.total() as f64 / 1e6)
    }
}

/// Places buffers one behind the other.
#[derive(Debug)]
pub(crate) struct Placer {
    next: u64,
    plan: Plan,
}

impl Placer {
    /// From an address on.
    pub fn at(address: u64) -> Self {
        Self { next: address, plan: Plan::default() }
    }

    /// A buffer of a part.
    pub fn take<T: Element>(&mut self, part: &'static str, count: usize) -> View<T> {
        let view = View::new(self.next, count);
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        // Past the last multiple there is nothing: the plan's total says so.
        let bytes = bytes.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        self.next = self.next.saturating_add(bytes);
        self.plan.add(part, bytes);
        view
    }

    /// Where the next buffer will begin.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// What was placed.
    pub fn plan(self) -> Plan {
        self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_one_behind_the_other_and_the_plan_is_their_sum() {
        let mut placer = Placer::at(1 << 20);
        let first = placer.take::<f32>("rows", 65);
        let second = placer.take::<u8>("pages", 256);
        let third = placer.take::<u32>("rows", 0);
        assert_eq!(first.address(), 1 << 20);
        assert_eq!(second.address(), (1 << 20) + 512);
        assert_eq!(third.address(), (1 << 20) + 768);
        let plan = placer.plan();
        assert_eq!(plan.parts(), [("rows", 512), ("pages", 256)]);
        assert_eq!(plan.to_string(), "rows 0.0 MB, pages 0.0 MB, together 0.0 MB");
    }

    #[test]
    fn sizes_that_no_machine_has_do_not_wrap_around() {
        let mut placer = Placer::at(0);
        placer.take::<f32>("pages", usize::MAX);
        placer.take::<f32>("pages", usize::MAX);
        assert_eq!(placer.plan().total(), u64::MAX);
    }
}
