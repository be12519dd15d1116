//! States parked in host memory: what idle sessions cost when the device has no place for them, within its room for them.

use furrow_model::backend::{Backend, DeviceLost, Parked};

use crate::slots::Place;

/// The books of parked states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot {
    /// Bytes that one slot's state takes there.
    pub state_bytes: u64,
    /// Bytes that one page of all attention layers takes there.
    pub page_bytes: u64,
    bytes_max: u64,
    bytes: u64,
    parked: u64,
}

impl Lot {
    /// As large as the device's room for parked states.
    pub fn new(device: &dyn Backend) -> Self {
        Self::of([0, 1].map(|pages| device.parked_bytes(pages)), device.room().parked_bytes)
    }

    /// Of the bytes that a state without pages takes and one with a page, with so many bytes for all.
    pub fn of([empty, with_a_page]: [u64; 2], bytes_max: u64) -> Self {
        Self { state_bytes: empty, page_bytes: with_a_page - empty, bytes_max, bytes: 0, parked: 0 }
    }

    /// Bytes of a state with so many pages.
    pub fn bytes_of(&self, pages: u32) -> u64 {
        self.state_bytes + u64::from(pages) * self.page_bytes
    }

    /// How many states of so many pages the whole lot holds.
    pub fn holds(&self, pages: u32) -> u64 {
        self.bytes_max / self.bytes_of(pages).max(1)
    }

    /// Copies a state out of the device if there is room for it.
    pub fn park(&mut self, device: &mut dyn Backend, place: &Place) -> Result<Option<Parked>, DeviceLost> {
        let bytes = self.bytes_of(place.pages.len() as u32);
        if self.bytes + bytes > self.bytes_max {
            return Ok(None);
        }
        let Some(parked) = device.park(place.slot, &place.pages)? else { return Ok(None) };
        debug_assert_eq!(parked.bytes(), bytes, "a state takes what its backend said");
        self.bytes += bytes;
        self.parked += 1;
        Ok(Some(parked))
    }

    /// A parked state was restored or is needed no more.
    pub fn drive_off(&mut self, parked: &Parked) {
        self.bytes -= parked.bytes();
    }

    /// States that were parked so far.
    pub fn parked(&self) -> u64 {
        self.parked
    }

    /// Bytes parked now.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
