//! States parked in host memory: what idle sessions cost when the device has no place for them, within a budget of bytes.

use furrow_model::backend::{Backend, Page, Parked, Slot};

use crate::slots::Place;

/// The books of parked states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot {
    /// Bytes of one slot's state.
    pub state_bytes: u64,
    /// Bytes of one page in all attention layers.
    pub page_bytes: u64,
    bytes_max: u64,
    bytes: u64,
    parked: u64,
}

impl Lot {
    /// Asks the device how large its states are, on a slot and a page that nobody holds yet.
    pub fn new(device: &mut dyn Backend, bytes_max: u64) -> Self {
        device.clear(Slot(0));
        let empty = device.park(Slot(0), &[]);
        let paged = device.park(Slot(0), &[Page(0)]);
        Self {
            state_bytes: empty.state.len() as u64,
            page_bytes: paged.pages.len() as u64,
            bytes_max,
            bytes: 0,
            parked: 0,
        }
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
    pub fn park(&mut self, device: &mut dyn Backend, place: &Place) -> Option<Parked> {
        let bytes = self.bytes_of(place.pages.len() as u32);
        if self.bytes + bytes > self.bytes_max {
            return None;
        }
        self.bytes += bytes;
        self.parked += 1;
        Some(device.park(place.slot, &place.pages))
    }

    /// A parked state was restored or is needed no more.
    pub fn drive_off(&mut self, parked: &Parked) {
        self.bytes -= (parked.state.len() + parked.pages.len()) as u64;
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
