//! Slots and pages of the device: state slots, and KV pages that sequences share until one of them
//! writes.
//!
//! This module only does the bookkeeping. It decides which sequence may write where; it returns the
//! copies that follow, and the engine makes them. A step reserves every page it can need before it
//! starts, so a running step never lacks a page.

use std::collections::HashMap;

use furrow_model::backend::{PAGE_TOKENS, Page, Slot};

/// Slot and pages of a sequence's state.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// Convolution and SSM state.
    pub slot: Slot,
    /// Keys and values; page i holds positions `i * PAGE_TOKENS..`.
    pub pages: Vec<Page>,
}

/// All slots and pages of a device.
#[derive(Debug)]
pub(crate) struct Allocator {
    free_slots: Vec<Slot>,
    free_pages: Vec<Page>,
    /// Number of holders of each page that is not free.
    holders: HashMap<Page, u32>,
    /// Free pages that running steps may still need.
    reserved: u32,
}

/// Pages reserved for one step. Return the unused ones with [`Allocator::unreserve`].
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "reserved pages are lost unless they are returned"]
pub(crate) struct PageReservation {
    left: u32,
}

/// Number of pages that hold this many tokens.
pub(crate) fn pages_for(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE_TOKENS as u32)
}

impl Allocator {
    /// Creates an allocator with everything free.
    pub(crate) fn new(slots: u32, pages: u32) -> Self {
        Self {
            // Taken from the end, so the lowest number is first.
            free_slots: (0..slots).rev().map(Slot).collect(),
            free_pages: (0..pages).rev().map(Page).collect(),
            holders: HashMap::new(),
            reserved: 0,
        }
    }

    /// Number of free slots.
    pub(crate) fn free_slots(&self) -> u32 {
        self.free_slots.len() as u32
    }

    /// Number of pages that are neither in use nor reserved.
    pub(crate) fn free_pages(&self) -> u32 {
        self.free_pages.len() as u32 - self.reserved
    }

    pub(crate) fn take_slot(&mut self) -> Option<Slot> {
        self.free_slots.pop()
    }

    pub(crate) fn reserve(&mut self, pages: u32) -> Option<PageReservation> {
        (self.free_pages() >= pages).then(|| {
            self.reserved += pages;
            PageReservation { left: pages }
        })
    }

    /// Returns the pages that a step did not use.
    pub(crate) fn unreserve(&mut self, PageReservation { left }: PageReservation) {
        self.reserved -= left;
    }

    /// Makes the positions `from..to` of an allocation writable: adds pages at the end and replaces
    /// shared ones by copies. Returns the pages to copy, as pairs of source and target.
    pub(crate) fn make_writable(
        &mut self,
        allocation: &mut Allocation,
        from: u32,
        to: u32,
        reserve: &mut PageReservation,
    ) -> Vec<(Page, Page)> {
        let mut copies = Vec::new();
        let first = from as usize / PAGE_TOKENS;
        for page in allocation.pages.iter_mut().skip(first) {
            if self.holders.get(page).is_some_and(|holders| *holders > 1) {
                let own = self.take_reserved(reserve);
                self.release_page(*page);
                copies.push((*page, own));
                *page = own;
            }
        }
        while (allocation.pages.len() as u32) < pages_for(to) {
            allocation.pages.push(self.take_reserved(reserve));
        }
        copies
    }

    /// Adds a holder to the pages of the first `tokens` positions.
    pub(crate) fn share(&mut self, allocation: &Allocation, tokens: u32) -> Vec<Page> {
        let pages = &allocation.pages[..pages_for(tokens) as usize];
        for page in pages {
            *self.holders.entry(*page).or_default() += 1;
        }
        pages.to_vec()
    }

    /// Allocates pages for a state that is restored from host memory.
    pub(crate) fn take_pages(&mut self, pages: u32, reserve: &mut PageReservation) -> Vec<Page> {
        (0..pages).map(|_| self.take_reserved(reserve)).collect()
    }

    pub(crate) fn release(&mut self, allocation: Allocation) {
        debug_assert!(!self.free_slots.contains(&allocation.slot), "the slot is freed twice");
        self.free_slots.push(allocation.slot);
        for page in allocation.pages {
            self.release_page(page);
        }
    }

    /// Steps reserve the most they can need, so a reservation never runs out.
    fn take_reserved(&mut self, reserve: &mut PageReservation) -> Page {
        assert!(reserve.left > 0, "a step took more pages than it had reserved");
        let page = self.free_pages.pop().unwrap_or_else(|| unreachable!("reserved pages are free"));
        reserve.left -= 1;
        self.reserved -= 1;
        self.holders.insert(page, 1);
        page
    }

    fn release_page(&mut self, page: Page) {
        let Some(holders) = self.holders.get_mut(&page) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&page);
            self.free_pages.push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = PAGE_TOKENS as u32;

    fn allocate(allocator: &mut Allocator, tokens: u32) -> Allocation {
        let mut reserve = allocator.reserve(pages_for(tokens)).unwrap();
        let mut allocation = Allocation { slot: allocator.take_slot().unwrap(), pages: Vec::new() };
        assert!(allocator.make_writable(&mut allocation, 0, tokens, &mut reserve).is_empty());
        allocator.unreserve(reserve);
        allocation
    }

    #[test]
    fn a_shared_page_is_copied_by_its_first_writer_alone() {
        let mut allocator = Allocator::new(3, 8);
        let mut first = allocate(&mut allocator, PAGE + 1);
        let mut second =
            Allocation { slot: allocator.take_slot().unwrap(), pages: allocator.share(&first, PAGE + 1) };
        assert_eq!(allocator.free_pages(), 6);

        let mut reserve = allocator.reserve(2).unwrap();
        let shared = first.pages[1];
        let copies = allocator.make_writable(&mut second, PAGE + 1, PAGE + 2, &mut reserve);
        assert_eq!(copies, [(shared, second.pages[1])]);
        assert_eq!(second.pages[0], first.pages[0], "full pages stay shared");
        assert!(
            allocator.make_writable(&mut first, PAGE + 1, PAGE + 2, &mut reserve).is_empty(),
            "not shared any more"
        );
        allocator.unreserve(reserve);

        allocator.release(first);
        allocator.release(second);
        assert_eq!((allocator.free_slots(), allocator.free_pages()), (3, 8));
    }

    #[test]
    fn reserved_pages_are_not_free_to_others() {
        let mut allocator = Allocator::new(1, 4);
        let reserve = allocator.reserve(3).unwrap();
        assert!(allocator.reserve(2).is_none());
        assert_eq!(allocator.free_pages(), 1);
        allocator.unreserve(reserve);
        assert!(allocator.reserve(4).is_some());
    }

    #[test]
    fn a_page_boundary_shares_no_half_page() {
        let mut allocator = Allocator::new(2, 4);
        let first = allocate(&mut allocator, PAGE);
        let mut second =
            Allocation { slot: allocator.take_slot().unwrap(), pages: allocator.share(&first, PAGE) };
        let mut reserve = allocator.reserve(1).unwrap();
        assert!(allocator.make_writable(&mut second, PAGE, PAGE + 1, &mut reserve).is_empty());
        assert_eq!((second.pages.len(), reserve.left), (2, 0));
    }
}
