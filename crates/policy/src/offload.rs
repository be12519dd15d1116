//! Offloads the states of idle sessions to host memory when the device is full, within a byte
//! budget.

use furrow_model::backend::{Backend, DeviceLost, OffloadedState};

use crate::slots::Allocation;

/// Counts the bytes of offloaded states against the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffloadBudget {
    /// Bytes of one slot's state in host memory.
    pub state_bytes: u64,
    /// Bytes of one page of all attention layers in host memory.
    pub page_bytes: u64,
    bytes_max: u64,
    bytes: u64,
    offloaded: u64,
}

impl OffloadBudget {
    /// Takes the device's offload capacity as the budget.
    pub(crate) fn new(device: &dyn Backend) -> Self {
        Self::of([0, 1].map(|pages| device.offloaded_bytes(pages)), device.capacity().offload_bytes)
    }

    /// `empty` and `with_a_page` are the bytes of a state without pages and with one page;
    /// `bytes_max` is the budget.
    pub(crate) fn of([empty, with_a_page]: [u64; 2], bytes_max: u64) -> Self {
        Self { state_bytes: empty, page_bytes: with_a_page - empty, bytes_max, bytes: 0, offloaded: 0 }
    }

    /// Bytes of a state with this many pages.
    pub(crate) fn bytes_of(&self, pages: u32) -> u64 {
        self.state_bytes + u64::from(pages) * self.page_bytes
    }

    /// How many states with this many pages fit into the budget.
    pub(crate) fn capacity_for(&self, pages: u32) -> u64 {
        self.bytes_max / self.bytes_of(pages).max(1)
    }

    /// Copies a state from the device to host memory if the budget has enough bytes left.
    pub(crate) fn offload(
        &mut self,
        device: &mut dyn Backend,
        allocation: &Allocation,
    ) -> Result<Option<OffloadedState>, DeviceLost> {
        let bytes = self.bytes_of(allocation.pages.len() as u32);
        if self.bytes + bytes > self.bytes_max {
            return Ok(None);
        }
        let Some(offloaded) = device.offload(allocation.slot, &allocation.pages)? else { return Ok(None) };
        debug_assert_eq!(offloaded.bytes(), bytes, "a state takes as many bytes as its backend announced");
        self.bytes += bytes;
        self.offloaded += 1;
        Ok(Some(offloaded))
    }

    /// Frees the bytes of an offloaded state that was restored or is not needed any more.
    pub(crate) fn release(&mut self, offloaded: &OffloadedState) {
        self.bytes -= offloaded.bytes();
    }

    /// States that were offloaded so far.
    pub(crate) fn offloaded(&self) -> u64 {
        self.offloaded
    }

    /// Bytes in use now.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
