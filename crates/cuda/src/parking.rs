//! Where parked states lie: pinned memory of this machine, which the device reads and writes by itself.
//!
//! Blocks are as large as a KV page: a page takes one, a slot's state as many as it needs. So what one state gave back fits the next, and nothing is lost but
//! the end of a slot's last block. For the 12B a block has 1.57 MB and a slot takes 95, so a session of 6,000 tokens lies in 95 + 94 blocks, 297 MB, 5.4 ms
//! over PCIe 5 at some 55 GB/s; one of 30,000 tokens in 887 MB, 16 ms.
//!
//! All of it is pinned when the backend is opened, in slabs, for pinning takes longer than any copy: what the machine does not lend is refused then, and a
//! running batch never waits for it.
//!
//! States go both ways in a lane of their own, one after the other. So one comes back after it has left, and a block that is given back while a copy of it is
//! under way is written to only after that. What orders this lane and the batches is [`Moving`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use furrow_model::backend::{PAGE_TOKENS, Page, Slot, Span};

use crate::executor::{Executor, ExecutorError, HostStretch, Pinned};
use crate::state::pages_of;

/// Bytes of a slab at most: few enough to be had in one piece, enough that there are few.
const SLAB_BYTES: u64 = 1 << 30;
/// Bytes of a block in a model without attention.
const BLOCK_BYTES: u64 = 1 << 20;

/// The pinned memory, and which of it is free.
pub(crate) struct Parking {
    slabs: Vec<Pinned>,
    blocks: Blocks,
    free: Arc<Free>,
}

/// Blocks and what takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    bytes: u64,
    /// Of a slab.
    each: u64,
    /// Bytes of a slot and of a page.
    slot: u64,
    page: u64,
}

/// Blocks that nobody holds, by number.
struct Free(Mutex<BTreeSet<u64>>);

/// Blocks of one parked state, given back when it is dropped.
pub(crate) struct Berth {
    of_slot: Vec<u64>,
    of_pages: Vec<u64>,
    free: Arc<Free>,
}

/// Why there is less pinned memory than asked for.
pub(crate) enum NotPinned {
    /// The machine lends this much and no more.
    Lent(u64),
    /// The executor failed.
    Failed(ExecutorError),
}

impl Parking {
    /// Pins as many blocks as so many bytes hold, for slots and pages of these sizes.
    pub fn open(executor: &mut dyn Executor, sizes: [u64; 2], bytes: u64) -> Result<Self, NotPinned> {
        let blocks = Blocks::of(sizes);
        let (mut slabs, mut lent) = (Vec::new(), 0);
        for slab in blocks.slabs(bytes) {
            match executor.pin(slab) {
                Ok(pinned) => slabs.push(pinned),
                Err(ExecutorError::NoHostMemory { .. }) => return Err(NotPinned::Lent(lent)),
                Err(error) => return Err(NotPinned::Failed(error)),
            }
            lent += slab;
        }
        let count = bytes / blocks.bytes;
        Ok(Self { slabs, blocks, free: Arc::new(Free(Mutex::new((0..count).collect()))) })
    }

    /// Bytes that a state with so many pages takes.
    pub fn bytes_of(&self, pages: u32) -> u64 {
        self.blocks.bytes_of(pages)
    }

    /// Blocks for a state with so many pages; `None` where there are not so many.
    pub fn take(&self, pages: usize) -> Option<Berth> {
        let slot = self.blocks.of_slot() as usize;
        let mut free = self.free.held();
        if free.len() < slot + pages {
            return None;
        }
        // The lowest ones first: neighbours are one copy.
        let mut next = |count| -> Vec<u64> { std::iter::from_fn(|| free.pop_first()).take(count).collect() };
        let (of_slot, of_pages) = (next(slot), next(pages));
        drop(free);
        Some(Berth { of_slot, of_pages, free: Arc::clone(&self.free) })
    }

    /// Where a slot's bytes lie, in order.
    pub fn slot(&self, berth: &Berth) -> Vec<HostStretch> {
        let Blocks { bytes, each, slot, .. } = self.blocks;
        let neighbours = |one: &u64, next: &u64| one + 1 == *next && one / each == next / each;
        let mut left = slot;
        let stretch = |run: &[u64]| {
            let taken = left.min(run.len() as u64 * bytes);
            left -= taken;
            self.stretch(run[0], taken)
        };
        berth.of_slot.chunk_by(neighbours).map(stretch).collect()
    }

    /// Where each page lies.
    pub fn pages(&self, berth: &Berth) -> Vec<HostStretch> {
        berth.of_pages.iter().map(|block| self.stretch(*block, self.blocks.page)).collect()
    }

    /// Whether a state was parked here.
    pub fn is_here(&self, berth: &Berth) -> bool {
        Arc::ptr_eq(&self.free, &berth.free)
    }

    fn stretch(&self, block: u64, bytes: u64) -> HostStretch {
        let Blocks { bytes: of_block, each, .. } = self.blocks;
        HostStretch { pinned: self.slabs[(block / each) as usize], at: block % each * of_block, bytes }
    }
}

impl Blocks {
    /// Of slots and pages of these sizes, in bytes.
    pub fn of([slot, page]: [u64; 2]) -> Self {
        let bytes = if page > 0 { page } else { BLOCK_BYTES };
        Self { bytes, each: (SLAB_BYTES / bytes).max(1), slot, page }
    }

    /// Bytes of each slab that is pinned where so many bytes are asked for: whole blocks, so their sum may be less.
    pub fn slabs(self, bytes: u64) -> impl Iterator<Item = u64> {
        let count = bytes / self.bytes;
        let firsts = (0..count).step_by(usize::try_from(self.each).unwrap_or(usize::MAX));
        firsts.map(move |first| (count - first).min(self.each) * self.bytes)
    }

    /// Bytes that a state with so many pages takes.
    pub fn bytes_of(self, pages: u32) -> u64 {
        (self.of_slot() + u64::from(pages)) * self.bytes
    }

    fn of_slot(&self) -> u64 {
        self.slot.div_ceil(self.bytes)
    }
}

impl Free {
    fn held(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // A set of numbers is whole whatever panicked beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let blocks = self.of_slot.drain(..).chain(self.of_pages.drain(..));
        self.free.held().extend(blocks);
    }
}

/// What the copy lane does with a place, as far as the batch lane knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Reads it: whoever writes there waits.
    Out,
    /// Writes it: whoever reads or writes there waits.
    In,
}

/// Places that the copy lane was told to read or write since the batch lane last waited for it.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    slots: BTreeMap<Slot, Way>,
    pages: BTreeMap<Page, Way>,
}

impl Moving {
    /// A state leaves its places.
    pub fn leaves(&mut self, slot: Slot, pages: &[Page]) {
        self.go(slot, pages, Way::Out);
    }

    /// A state comes to places.
    pub fn comes(&mut self, slot: Slot, pages: &[Page]) {
        self.go(slot, pages, Way::In);
    }

    /// A place is filled by the copy lane from another one, or from nothing.
    pub fn copied(&mut self, from: Option<At>, to: At) {
        for (at, way) in from.map(|from| (from, Way::Out)).into_iter().chain([(to, Way::In)]) {
            match at {
                At::Slot(slot) => self.go(slot, &[], way),
                At::Page(page) => mark(&mut self.pages, page, way),
            }
        }
    }

    /// Whether reading one place and writing to the other has to wait.
    pub fn holds_up(&self, from: Option<At>, to: At) -> bool {
        self.way(to).is_some() || from.is_some_and(|from| self.way(from) == Some(Way::In))
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.pages.is_empty()
    }

    /// Whether something is on its way to or from a slot and pages.
    pub fn is_at(&self, slot: Slot, pages: &[Page]) -> bool {
        self.slots.contains_key(&slot) || pages.iter().any(|page| self.pages.contains_key(page))
    }

    /// Whether a span has to wait: it writes to its slot and to the pages of its new positions, and reads those before.
    pub fn holds_up_span(&self, span: &Span<'_>) -> bool {
        let first = span.start as usize / PAGE_TOKENS;
        let pages = pages_of(span.start as usize + span.tokens.len());
        let waits = |(index, page): (usize, &Page)| match self.pages.get(page) {
            None => false,
            Some(Way::In) => true,
            Some(Way::Out) => index >= first,
        };
        self.slots.contains_key(&span.slot) || span.pages.iter().take(pages).enumerate().any(waits)
    }

    /// The batch lane has waited.
    pub fn settle(&mut self) {
        *self = Self::default();
    }

    fn way(&self, at: At) -> Option<Way> {
        match at {
            At::Slot(slot) => self.slots.get(&slot).copied(),
            At::Page(page) => self.pages.get(&page).copied(),
        }
    }

    fn go(&mut self, slot: Slot, pages: &[Page], way: Way) {
        mark(&mut self.slots, slot, way);
        pages.iter().for_each(|page| mark(&mut self.pages, *page, way));
    }
}

/// A slot or a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// This slot.
    Slot(Slot),
    /// This page.
    Page(Page),
}

/// What is written and read waits as what is written.
fn mark<K: Ord>(all: &mut BTreeMap<K, Way>, place: K, way: Way) {
    let held = all.entry(place).or_insert(way);
    *held = way.max(*held);
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::executor::{GraphKey, Lane, Product, Work};
    use crate::launch::Launch;

    type Done = Result<(), ExecutorError>;

    /// A machine that lends so many bytes and does nothing else.
    struct Lender {
        left: u64,
        lent: Vec<u64>,
    }

    #[rustfmt::skip]
    impl Executor for Lender {
        fn pin(&mut self, bytes: u64) -> Result<Pinned, ExecutorError> {
            self.left = self.left.checked_sub(bytes).ok_or(ExecutorError::NoHostMemory { asked: bytes })?;
            self.lent.push(bytes);
            Ok(Pinned(self.lent.len() - 1))
        }

        fn free_bytes(&mut self) -> Result<u64, ExecutorError> { unreachable!() }
        fn allocate(&mut self, _: u64) -> Result<u64, ExecutorError> { unreachable!() }
        fn upload(&mut self, _: Lane, _: &[u8], _: u64) -> Done { unreachable!() }
        fn download(&mut self, _: Lane, _: u64, _: &mut [u8]) -> Done { unreachable!() }
        fn fill(&mut self, _: Pinned, _: u64, _: &[u8]) -> Done { unreachable!() }
        fn send(&mut self, _: Lane, _: HostStretch, _: u64) -> Done { unreachable!() }
        fn fetch(&mut self, _: Lane, _: u64, _: HostStretch) -> Done { unreachable!() }
        fn launch(&mut self, _: Lane, _: &Launch) -> Done { unreachable!() }
        fn multiply(&mut self, _: Lane, _: &Product) -> Done { unreachable!() }
        fn follow(&mut self, _: Lane, _: Lane) -> Done { unreachable!() }
        fn is_done(&mut self, _: Lane) -> Result<bool, ExecutorError> { unreachable!() }
        fn graph(&mut self, _: Lane, _: GraphKey, _: Work<'_>) -> Done { unreachable!() }
        fn wait(&mut self) -> Done { unreachable!() }
    }

    /// A third of a slab: two blocks fit, and what is left of it is not pinned.
    const PAGE: u64 = SLAB_BYTES / 3 + 1;

    fn lender(bytes: u64) -> Lender {
        Lender { left: bytes, lent: Vec::new() }
    }

    fn opened(sizes: [u64; 2], bytes: u64) -> (Parking, Vec<u64>) {
        let mut lender = lender(u64::MAX);
        let Ok(parking) = Parking::open(&mut lender, sizes, bytes) else { panic!("it lends all") };
        (parking, lender.lent)
    }

    #[test]
    fn memory_is_pinned_in_slabs_of_whole_blocks() {
        assert_eq!(opened([1, PAGE], 0).1, [0_u64; 0]);
        assert_eq!(opened([1, PAGE], PAGE - 1).1, [0_u64; 0]);
        assert_eq!(opened([1, PAGE], 5 * PAGE + 7).1, [2 * PAGE, 2 * PAGE, PAGE]);
        // A page larger than a slab is one.
        assert_eq!(opened([1, 2 * SLAB_BYTES], 4 * SLAB_BYTES).1, [2 * SLAB_BYTES; 2]);
        // No attention, no pages.
        assert_eq!(opened([3 * BLOCK_BYTES + 1, 0], 9 * BLOCK_BYTES).0.bytes_of(0), 4 * BLOCK_BYTES);
    }

    #[test]
    fn what_is_not_lent_is_told() {
        let refused = Parking::open(&mut lender(4 * PAGE + 1), [1, PAGE], 5 * PAGE);
        assert!(matches!(refused, Err(NotPinned::Lent(lent)) if lent == 4 * PAGE));
    }

    /// States of all lengths come and go; no byte belongs to two, and what all gave back is whole.
    #[test]
    fn no_block_is_held_twice() {
        let seed = 20_261_122;
        println!("seed {seed}");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        // A slot of two and a half blocks; 13 blocks, two a slab.
        let slot = 2 * PAGE + PAGE / 2;
        let (parking, lent) = opened([slot, PAGE], 13 * PAGE);
        let mut held: Vec<Berth> = Vec::new();
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..2000 {
            if random.random_bool(0.4) && !held.is_empty() {
                held.swap_remove(random.random_range(0..held.len()));
            }
            let pages = random.random_range(0..5);
            let used: u64 = held.iter().map(|berth| 3 + berth.of_pages.len() as u64).sum();
            match parking.take(pages) {
                Some(berth) => {
                    taken += 1;
                    assert_eq!(parking.bytes_of(pages as u32), (3 + pages as u64) * PAGE);
                    held.push(berth);
                }
                None => {
                    refused += 1;
                    assert!(used + 3 + pages as u64 > 13, "{used} blocks of 13 are held");
                }
            }
            let mut all: Vec<(Pinned, u64, u64)> = Vec::new();
            for berth in &held {
                let of_slot = parking.slot(berth);
                assert_eq!(of_slot.iter().map(|stretch| stretch.bytes).sum::<u64>(), slot);
                let of_pages = parking.pages(berth);
                assert!(of_pages.iter().all(|stretch| stretch.bytes == PAGE));
                let stretches = of_slot.into_iter().chain(of_pages);
                all.extend(stretches.map(|HostStretch { pinned, at, bytes }| (pinned, at, at + bytes)));
            }
            all.sort_unstable();
            for two in all.windows(2) {
                assert!(two[0].0 != two[1].0 || two[0].2 <= two[1].1, "{two:?} overlap");
            }
            assert!(all.iter().all(|(pinned, _, end)| *end <= lent[pinned.0]), "{all:?}");
        }
        assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
        held.clear();
        assert_eq!(parking.free.held().len(), 13);
    }

    fn span<'a>(slot: u32, pages: &'a [Page], start: u32) -> Span<'a> {
        let want = furrow_model::backend::Want::Last;
        Span { slot: Slot(slot), pages, start, tokens: &[0], insets: &[], want }
    }

    #[test]
    fn a_batch_waits_where_it_would_meet_a_copy_and_nowhere_else() {
        let (full, next) = ([Page(0), Page(1)], 70);
        let mut moving = Moving::default();
        assert!(!moving.holds_up_span(&span(0, &full, next)));
        moving.leaves(Slot(1), &[Page(0), Page(7)]);
        assert!(!moving.holds_up_span(&span(0, &full, next)), "a shared page is read by both");
        assert!(moving.holds_up_span(&span(0, &full, 63)), "its last position is written");
        assert!(!moving.holds_up_span(&span(0, &[Page(2), Page(7)], 63)), "a page for later");
        assert!(moving.holds_up_span(&span(1, &[Page(9)], 0)), "the slot is written");
        assert!(!moving.holds_up(Some(At::Slot(Slot(1))), At::Slot(Slot(0))), "both read");
        assert!(moving.holds_up(None, At::Slot(Slot(1))));
        assert!(moving.holds_up(Some(At::Page(Page(3))), At::Page(Page(7))));
        moving.comes(Slot(2), &[Page(0)]);
        assert!(moving.holds_up_span(&span(0, &full, next)), "the page is not there yet");
        assert!(moving.holds_up(Some(At::Slot(Slot(2))), At::Slot(Slot(0))));
        moving.leaves(Slot(2), &[]);
        assert!(moving.holds_up(Some(At::Slot(Slot(2))), At::Slot(Slot(0))), "it came before it left");
        moving.copied(Some(At::Slot(Slot(4))), At::Slot(Slot(5)));
        assert!(moving.holds_up(Some(At::Slot(Slot(5))), At::Slot(Slot(6))));
        assert!(!moving.holds_up(Some(At::Slot(Slot(4))), At::Slot(Slot(6))));
        moving.settle();
        assert!(!moving.holds_up_span(&span(2, &full, 0)));
    }
}
