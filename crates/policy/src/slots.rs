//! Places on the device: state slots, and KV pages that sequences share until one of them writes.
//!
//! Pure bookkeeping. Who may write where is decided here; the copies that follow from it are returned and made by the engine.
//! A step reserves every page it can come to need before it starts, so nothing that runs ever stops for want of a page.

use std::collections::HashMap;

use furrow_model::backend::{PAGE_TOKENS, Page, Slot};

/// Where a sequence's state lies on the device.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// Convolution and SSM state.
    pub slot: Slot,
    /// Keys and values; page i holds positions `i * PAGE_TOKENS..`.
    pub pages: Vec<Page>,
}

/// All places of a device.
#[derive(Debug)]
pub struct Places {
    free_slots: Vec<Slot>,
    free_pages: Vec<Page>,
    /// Holders of each page that is not free.
    holders: HashMap<Page, u32>,
    /// Free pages that running steps may still come to need.
    reserved: u32,
}

/// Pages set aside for one step. What is left of it is given back with [`Places::unreserve`].
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "pages that are reserved and forgotten are lost"]
pub struct Reserve {
    left: u32,
}

/// Pages that hold so many tokens.
pub fn pages_for(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE_TOKENS as u32)
}

impl Places {
    /// All free.
    pub fn new(slots: u32, pages: u32) -> Self {
        Self {
            // Taken from the end: the lowest number first.
            free_slots: (0..slots).rev().map(Slot).collect(),
            free_pages: (0..pages).rev().map(Page).collect(),
            holders: HashMap::new(),
            reserved: 0,
        }
    }

    /// Slots nobody holds.
    pub fn free_slots(&self) -> u32 {
        self.free_slots.len() as u32
    }

    /// Pages nobody holds and nobody has reserved.
    pub fn free_pages(&self) -> u32 {
        self.free_pages.len() as u32 - self.reserved
    }

    /// Takes a slot.
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.free_slots.pop()
    }

    /// Sets pages aside.
    pub fn reserve(&mut self, pages: u32) -> Option<Reserve> {
        (self.free_pages() >= pages).then(|| {
            self.reserved += pages;
            Reserve { left: pages }
        })
    }

    /// Gives back what a step did not use.
    pub fn unreserve(&mut self, Reserve { left }: Reserve) {
        self.reserved -= left;
    }

    /// Makes the positions `from..to` of a place writable: adds pages at the end and parts from shared ones. Returns the pages to be
    /// copied, from and to.
    pub fn make_writable(
        &mut self,
        place: &mut Place,
        from: u32,
        to: u32,
        reserve: &mut Reserve,
    ) -> Vec<(Page, Page)> {
        let mut copies = Vec::new();
        let first = from as usize / PAGE_TOKENS;
        for page in place.pages.iter_mut().skip(first) {
            if self.holders.get(page).is_some_and(|holders| *holders > 1) {
                let own = self.take_reserved(reserve);
                self.let_go(*page);
                copies.push((*page, own));
                *page = own;
            }
        }
        while (place.pages.len() as u32) < pages_for(to) {
            place.pages.push(self.take_reserved(reserve));
        }
        copies
    }

    /// Another holder of the pages that hold the first `tokens` positions.
    pub fn share(&mut self, place: &Place, tokens: u32) -> Vec<Page> {
        let pages = &place.pages[..pages_for(tokens) as usize];
        for page in pages {
            *self.holders.entry(*page).or_default() += 1;
        }
        pages.to_vec()
    }

    /// New pages for a state that comes back from host memory.
    pub fn take_pages(&mut self, pages: u32, reserve: &mut Reserve) -> Vec<Page> {
        (0..pages).map(|_| self.take_reserved(reserve)).collect()
    }

    /// Gives a place back.
    pub fn release(&mut self, place: Place) {
        debug_assert!(!self.free_slots.contains(&place.slot), "a slot is held once");
        self.free_slots.push(place.slot);
        for page in place.pages {
            self.let_go(page);
        }
    }

    /// The steps reserve what they can need at most, so a reserve never runs dry.
    fn take_reserved(&mut self, reserve: &mut Reserve) -> Page {
        assert!(reserve.left > 0, "a step took more pages than it had reserved");
        let page = self.free_pages.pop().unwrap_or_else(|| unreachable!("reserved pages are free ones"));
        reserve.left -= 1;
        self.reserved -= 1;
        self.holders.insert(page, 1);
        page
    }

    fn let_go(&mut self, page: Page) {
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

    fn place(places: &mut Places, tokens: u32) -> Place {
        let mut reserve = places.reserve(pages_for(tokens)).unwrap();
        let mut place = Place { slot: places.take_slot().unwrap(), pages: Vec::new() };
        assert!(places.make_writable(&mut place, 0, tokens, &mut reserve).is_empty());
        places.unreserve(reserve);
        place
    }

    #[test]
    fn a_shared_page_is_copied_by_whoever_writes_first_and_only_by_them() {
        let mut places = Places::new(3, 8);
        let mut first = place(&mut places, PAGE + 1);
        let mut second = Place { slot: places.take_slot().unwrap(), pages: places.share(&first, PAGE + 1) };
        assert_eq!(places.free_pages(), 6);

        let mut reserve = places.reserve(2).unwrap();
        let shared = first.pages[1];
        let copies = places.make_writable(&mut second, PAGE + 1, PAGE + 2, &mut reserve);
        assert_eq!(copies, [(shared, second.pages[1])]);
        assert_eq!(second.pages[0], first.pages[0], "full pages stay shared");
        assert!(places.make_writable(&mut first, PAGE + 1, PAGE + 2, &mut reserve).is_empty(), "alone again");
        places.unreserve(reserve);

        places.release(first);
        places.release(second);
        assert_eq!((places.free_slots(), places.free_pages()), (3, 8));
    }

    #[test]
    fn what_is_reserved_is_nobody_elses() {
        let mut places = Places::new(1, 4);
        let reserve = places.reserve(3).unwrap();
        assert!(places.reserve(2).is_none());
        assert_eq!(places.free_pages(), 1);
        places.unreserve(reserve);
        assert!(places.reserve(4).is_some());
    }

    #[test]
    fn a_page_boundary_shares_no_half_page() {
        let mut places = Places::new(2, 4);
        let first = place(&mut places, PAGE);
        let mut second = Place { slot: places.take_slot().unwrap(), pages: places.share(&first, PAGE) };
        let mut reserve = places.reserve(1).unwrap();
        assert!(places.make_writable(&mut second, PAGE, PAGE + 1, &mut reserve).is_empty());
        assert_eq!((second.pages.len(), reserve.left), (2, 0));
    }
}
