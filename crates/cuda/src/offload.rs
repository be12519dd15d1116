//! Storage of offloaded states: pinned host memory, which the device accesses directly.
//!
//! Blocks have the size of a KV page: a page takes one, a slot's state as many as it needs. So the
//! blocks of any freed state fit the next one, and only the end of a slot's last block is wasted.
//! For the 12B a block has 1.57 MB and a slot takes 95, so a session of 6,000 tokens takes 95 + 94
//! blocks, 297 MB, 5.4 ms over PCIe 5 at about 55 GB/s; one of 30,000 tokens takes 887 MB, 16 ms.
//!
//! All of it is pinned in slabs when the backend opens, because pinning takes longer than any copy:
//! a shortage is reported then, and a running batch never waits for pinning.
//!
//! States move in both directions on one lane, one after another. So a state comes back after it
//! has left, and a block that is freed while its copy is in progress is overwritten only after
//! that. [`MovingStates`] orders this lane and the batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use furrow_model::backend::{PAGE_TOKENS, Page, SequenceSpan, Slot};

use crate::executor::{Executor, ExecutorError, HostRange, PinnedMemory};
use crate::state::pages_of;

/// Largest slab: small enough to be contiguous, large enough that there are few.
const SLAB_BYTES: u64 = 1 << 30;
/// Bytes of a block in a model without attention.
const BLOCK_BYTES: u64 = 1 << 20;

/// The pinned memory, and its free blocks.
pub(crate) struct OffloadPool {
    slabs: Vec<PinnedMemory>,
    blocks: BlockSizes,
    free: Arc<FreeBlocks>,
}

/// Blocks and what they store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSizes {
    bytes: u64,
    /// Blocks of a slab.
    each: u64,
    /// Bytes of a slot and of a page.
    slot: u64,
    page: u64,
}

/// Numbers of the free blocks.
struct FreeBlocks(Mutex<BTreeSet<u64>>);

/// Blocks of one offloaded state, freed on drop.
pub(crate) struct OffloadedBlocks {
    of_slot: Vec<u64>,
    of_pages: Vec<u64>,
    free: Arc<FreeBlocks>,
}

/// Why less memory was pinned than requested.
pub(crate) enum NotPinned {
    /// The system pins only this much.
    Limited(u64),
    Failed(ExecutorError),
}

impl OffloadPool {
    /// Pins as many blocks as fit into this many bytes, for slots and pages of these sizes.
    pub(crate) fn open(executor: &mut dyn Executor, sizes: [u64; 2], bytes: u64) -> Result<Self, NotPinned> {
        let blocks = BlockSizes::of(sizes);
        let mut slabs = Vec::new();
        let mut pinned_bytes = 0;
        for slab in blocks.slabs(bytes) {
            match executor.pin(slab) {
                Ok(pinned) => slabs.push(pinned),
                Err(ExecutorError::NoHostMemory { .. }) => return Err(NotPinned::Limited(pinned_bytes)),
                Err(error) => return Err(NotPinned::Failed(error)),
            }
            pinned_bytes += slab;
        }
        let count = bytes / blocks.bytes;
        Ok(Self { slabs, blocks, free: Arc::new(FreeBlocks(Mutex::new((0..count).collect()))) })
    }

    /// Bytes of a state with this many pages.
    pub(crate) fn bytes_of(&self, pages: u32) -> u64 {
        self.blocks.bytes_of(pages)
    }

    /// Takes blocks for a state with this many pages; `None` if too few are free.
    pub(crate) fn take(&self, pages: usize) -> Option<OffloadedBlocks> {
        let slot = self.blocks.of_slot() as usize;
        let mut free = self.free.lock();
        if free.len() < slot + pages {
            return None;
        }
        // The lowest ones first: adjacent blocks are one copy.
        let mut next = |count| -> Vec<u64> { std::iter::from_fn(|| free.pop_first()).take(count).collect() };
        let of_slot = next(slot);
        let of_pages = next(pages);
        drop(free);
        Some(OffloadedBlocks { of_slot, of_pages, free: Arc::clone(&self.free) })
    }

    /// Ranges of a slot's bytes, in order.
    pub(crate) fn slot(&self, blocks: &OffloadedBlocks) -> Vec<HostRange> {
        let BlockSizes { bytes, each, slot, .. } = self.blocks;
        let neighbours = |one: &u64, next: &u64| one + 1 == *next && one / each == next / each;
        let mut left = slot;
        let range_of = |run: &[u64]| {
            let taken = left.min(run.len() as u64 * bytes);
            left -= taken;
            self.host_range(run[0], taken)
        };
        blocks.of_slot.chunk_by(neighbours).map(range_of).collect()
    }

    /// Range of each page.
    pub(crate) fn pages(&self, blocks: &OffloadedBlocks) -> Vec<HostRange> {
        blocks.of_pages.iter().map(|block| self.host_range(*block, self.blocks.page)).collect()
    }

    /// Whether the state is stored here.
    pub(crate) fn owns(&self, blocks: &OffloadedBlocks) -> bool {
        Arc::ptr_eq(&self.free, &blocks.free)
    }

    fn host_range(&self, block: u64, bytes: u64) -> HostRange {
        let BlockSizes { bytes: of_block, each, .. } = self.blocks;
        HostRange { pinned: self.slabs[(block / each) as usize], at: block % each * of_block, bytes }
    }
}

impl BlockSizes {
    /// For slots and pages of these sizes, in bytes.
    pub(crate) fn of([slot, page]: [u64; 2]) -> Self {
        let bytes = if page > 0 { page } else { BLOCK_BYTES };
        Self { bytes, each: (SLAB_BYTES / bytes).max(1), slot, page }
    }

    /// Bytes of each slab for a request of this many bytes: whole blocks, so their sum may be less.
    pub(crate) fn slabs(self, bytes: u64) -> impl Iterator<Item = u64> {
        let count = bytes / self.bytes;
        let firsts = (0..count).step_by(usize::try_from(self.each).unwrap_or(usize::MAX));
        firsts.map(move |first| (count - first).min(self.each) * self.bytes)
    }

    /// Bytes of a state with this many pages.
    pub(crate) fn bytes_of(self, pages: u32) -> u64 {
        (self.of_slot() + u64::from(pages)) * self.bytes
    }

    fn of_slot(&self) -> u64 {
        self.slot.div_ceil(self.bytes)
    }
}

impl FreeBlocks {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // The set stays consistent even if another thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OffloadedBlocks {
    fn drop(&mut self) {
        let blocks = self.of_slot.drain(..).chain(self.of_pages.drain(..));
        self.free.lock().extend(blocks);
    }
}

/// Access of the copy lane to a slot or page, as far as the batch lane knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CopyDirection {
    /// Reads it: writers wait.
    Out,
    /// Writes it: readers and writers wait.
    In,
}

/// Slots and pages that the copy lane got to read or write since the batch lane last waited for it.
#[derive(Debug, Default)]
pub(crate) struct MovingStates {
    slots: BTreeMap<Slot, CopyDirection>,
    pages: BTreeMap<Page, CopyDirection>,
}

impl MovingStates {
    /// Records that a state is copied out.
    pub(crate) fn mark_outgoing(&mut self, slot: Slot, pages: &[Page]) {
        self.mark_state(slot, pages, CopyDirection::Out);
    }

    /// Records that a state is copied in.
    pub(crate) fn mark_incoming(&mut self, slot: Slot, pages: &[Page]) {
        self.mark_state(slot, pages, CopyDirection::In);
    }

    /// Records that the copy lane fills a slot or page from another one, or clears it.
    pub(crate) fn mark_copied(&mut self, from: Option<StateLocation>, to: StateLocation) {
        for (at, way) in
            from.map(|from| (from, CopyDirection::Out)).into_iter().chain([(to, CopyDirection::In)])
        {
            match at {
                StateLocation::Slot(slot) => self.mark_state(slot, &[], way),
                StateLocation::Page(page) => mark(&mut self.pages, page, way),
            }
        }
    }

    /// Whether reading `from` and writing `to` must wait.
    pub(crate) fn must_wait(&self, from: Option<StateLocation>, to: StateLocation) -> bool {
        self.direction(to).is_some()
            || from.is_some_and(|from| self.direction(from) == Some(CopyDirection::In))
    }

    /// Whether no copy is in progress.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.pages.is_empty()
    }

    /// Whether a copy to or from a slot and pages is in progress.
    pub(crate) fn is_at(&self, slot: Slot, pages: &[Page]) -> bool {
        self.slots.contains_key(&slot) || pages.iter().any(|page| self.pages.contains_key(page))
    }

    /// Whether a span must wait: it writes its slot and the pages of its new positions, and reads
    /// the earlier ones.
    pub(crate) fn span_must_wait(&self, span: &SequenceSpan<'_>) -> bool {
        let first = span.start as usize / PAGE_TOKENS;
        let pages = pages_of(span.start as usize + span.tokens.len());
        let waits = |(index, page): (usize, &Page)| match self.pages.get(page) {
            None => false,
            Some(CopyDirection::In) => true,
            Some(CopyDirection::Out) => index >= first,
        };
        self.slots.contains_key(&span.slot) || span.pages.iter().take(pages).enumerate().any(waits)
    }

    /// Forgets the copies after the batch lane has waited for them.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn direction(&self, at: StateLocation) -> Option<CopyDirection> {
        match at {
            StateLocation::Slot(slot) => self.slots.get(&slot).copied(),
            StateLocation::Page(page) => self.pages.get(&page).copied(),
        }
    }

    fn mark_state(&mut self, slot: Slot, pages: &[Page], way: CopyDirection) {
        mark(&mut self.slots, slot, way);
        pages.iter().for_each(|page| mark(&mut self.pages, *page, way));
    }
}

/// A slot or a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateLocation {
    Slot(Slot),
    Page(Page),
}

/// Something both written and read counts as written.
fn mark<K: Ord>(all: &mut BTreeMap<K, CopyDirection>, location: K, way: CopyDirection) {
    let entry = all.entry(location).or_insert(way);
    *entry = way.max(*entry);
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::executor::{ExecutionLane, GraphKey, GraphWork, MatrixProduct};
    use crate::launch::KernelLaunch;

    type PinResult = Result<(), ExecutorError>;

    /// An executor that pins a limited number of bytes and supports nothing else.
    struct PinningExecutor {
        left: u64,
        pinned: Vec<u64>,
    }

    #[rustfmt::skip]
    impl Executor for PinningExecutor {
        fn pin(&mut self, bytes: u64) -> Result<PinnedMemory, ExecutorError> {
            self.left = self.left.checked_sub(bytes).ok_or(ExecutorError::NoHostMemory { requested: bytes })?;
            self.pinned.push(bytes);
            Ok(PinnedMemory(self.pinned.len() - 1))
        }

        fn free_bytes(&mut self) -> Result<u64, ExecutorError> { unreachable!() }
        fn allocate(&mut self, _: u64) -> Result<u64, ExecutorError> { unreachable!() }
        fn upload(&mut self, _: ExecutionLane, _: &[u8], _: u64) -> PinResult { unreachable!() }
        fn download(&mut self, _: ExecutionLane, _: u64, _: &mut [u8]) -> PinResult { unreachable!() }
        fn fill(&mut self, _: PinnedMemory, _: u64, _: &[u8]) -> PinResult { unreachable!() }
        fn send(&mut self, _: ExecutionLane, _: HostRange, _: u64) -> PinResult { unreachable!() }
        fn fetch(&mut self, _: ExecutionLane, _: u64, _: HostRange) -> PinResult { unreachable!() }
        fn launch(&mut self, _: ExecutionLane, _: &KernelLaunch) -> PinResult { unreachable!() }
        fn multiply(&mut self, _: ExecutionLane, _: &MatrixProduct) -> PinResult { unreachable!() }
        fn follow(&mut self, _: ExecutionLane, _: ExecutionLane) -> PinResult { unreachable!() }
        fn is_done(&mut self, _: ExecutionLane) -> Result<bool, ExecutorError> { unreachable!() }
        fn graph(&mut self, _: ExecutionLane, _: GraphKey, _: GraphWork<'_>) -> PinResult { unreachable!() }
        fn wait(&mut self) -> PinResult { unreachable!() }
    }

    /// A third of a slab: two blocks fit, and the rest of it is not pinned.
    const PAGE: u64 = SLAB_BYTES / 3 + 1;

    fn pinning_executor(bytes: u64) -> PinningExecutor {
        PinningExecutor { left: bytes, pinned: Vec::new() }
    }

    fn opened(sizes: [u64; 2], bytes: u64) -> (OffloadPool, Vec<u64>) {
        let mut lender = pinning_executor(u64::MAX);
        let Ok(pool) = OffloadPool::open(&mut lender, sizes, bytes) else {
            panic!("pinning all of it must succeed")
        };
        (pool, lender.pinned)
    }

    #[test]
    fn memory_is_pinned_in_slabs_of_whole_blocks() {
        assert_eq!(opened([1, PAGE], 0).1, [0_u64; 0]);
        assert_eq!(opened([1, PAGE], PAGE - 1).1, [0_u64; 0]);
        assert_eq!(opened([1, PAGE], 5 * PAGE + 7).1, [2 * PAGE, 2 * PAGE, PAGE]);
        // A page larger than a slab has a slab of its own.
        assert_eq!(opened([1, 2 * SLAB_BYTES], 4 * SLAB_BYTES).1, [2 * SLAB_BYTES; 2]);
        // No attention, no pages.
        assert_eq!(opened([3 * BLOCK_BYTES + 1, 0], 9 * BLOCK_BYTES).0.bytes_of(0), 4 * BLOCK_BYTES);
    }

    #[test]
    fn too_little_pinned_memory_is_reported() {
        let refused = OffloadPool::open(&mut pinning_executor(4 * PAGE + 1), [1, PAGE], 5 * PAGE);
        assert!(matches!(refused, Err(NotPinned::Limited(pinned)) if pinned == 4 * PAGE));
    }

    /// States of all lengths are stored and dropped; no byte belongs to two, and at the end all are
    /// free.
    #[test]
    fn no_block_belongs_to_two_states() {
        let seed = 20_261_122;
        println!("seed {seed}");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        // A slot of two and a half blocks; 13 blocks, two for each slab.
        let slot = 2 * PAGE + PAGE / 2;
        let (pool, slab_bytes) = opened([slot, PAGE], 13 * PAGE);
        let mut states: Vec<OffloadedBlocks> = Vec::new();
        let mut taken = 0;
        let mut refused = 0;
        for _ in 0..2000 {
            if random.random_bool(0.4) && !states.is_empty() {
                states.swap_remove(random.random_range(0..states.len()));
            }
            let pages = random.random_range(0..5);
            let used: u64 = states.iter().map(|state| 3 + state.of_pages.len() as u64).sum();
            match pool.take(pages) {
                Some(state) => {
                    taken += 1;
                    assert_eq!(pool.bytes_of(pages as u32), (3 + pages as u64) * PAGE);
                    states.push(state);
                }
                None => {
                    refused += 1;
                    assert!(used + 3 + pages as u64 > 13, "{used} of 13 blocks are in use");
                }
            }
            let mut all: Vec<(PinnedMemory, u64, u64)> = Vec::new();
            for state in &states {
                let of_slot = pool.slot(state);
                assert_eq!(of_slot.iter().map(|range| range.bytes).sum::<u64>(), slot);
                let of_pages = pool.pages(state);
                assert!(of_pages.iter().all(|range| range.bytes == PAGE));
                let ranges = of_slot.into_iter().chain(of_pages);
                all.extend(ranges.map(|HostRange { pinned, at, bytes }| (pinned, at, at + bytes)));
            }
            all.sort_unstable();
            for two in all.windows(2) {
                assert!(two[0].0 != two[1].0 || two[0].2 <= two[1].1, "{two:?} overlap");
            }
            assert!(all.iter().all(|(pinned, _, end)| *end <= slab_bytes[pinned.0]), "{all:?}");
        }
        assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
        states.clear();
        assert_eq!(pool.free.lock().len(), 13);
    }

    fn span<'a>(slot: u32, pages: &'a [Page], start: u32) -> SequenceSpan<'a> {
        let want = furrow_model::backend::LogitRows::Last;
        SequenceSpan { slot: Slot(slot), pages, start, tokens: &[0], insets: &[], want }
    }

    #[test]
    fn a_batch_waits_where_it_would_meet_a_copy_and_nowhere_else() {
        let full = [Page(0), Page(1)];
        let next = 70;
        let mut moving = MovingStates::default();
        assert!(!moving.span_must_wait(&span(0, &full, next)));
        moving.mark_outgoing(Slot(1), &[Page(0), Page(7)]);
        assert!(!moving.span_must_wait(&span(0, &full, next)), "both only read a shared page");
        assert!(moving.span_must_wait(&span(0, &full, 63)), "its last position is written");
        assert!(
            !moving.span_must_wait(&span(0, &[Page(2), Page(7)], 63)),
            "the span does not use this page yet"
        );
        assert!(moving.span_must_wait(&span(1, &[Page(9)], 0)), "the slot is written");
        assert!(
            !moving.must_wait(Some(StateLocation::Slot(Slot(1))), StateLocation::Slot(Slot(0))),
            "both only read"
        );
        assert!(moving.must_wait(None, StateLocation::Slot(Slot(1))));
        assert!(moving.must_wait(Some(StateLocation::Page(Page(3))), StateLocation::Page(Page(7))));
        moving.mark_incoming(Slot(2), &[Page(0)]);
        assert!(moving.span_must_wait(&span(0, &full, next)), "the page is not copied yet");
        assert!(moving.must_wait(Some(StateLocation::Slot(Slot(2))), StateLocation::Slot(Slot(0))));
        moving.mark_outgoing(Slot(2), &[]);
        assert!(
            moving.must_wait(Some(StateLocation::Slot(Slot(2))), StateLocation::Slot(Slot(0))),
            "the copy in came before the copy out"
        );
        moving.mark_copied(Some(StateLocation::Slot(Slot(4))), StateLocation::Slot(Slot(5)));
        assert!(moving.must_wait(Some(StateLocation::Slot(Slot(5))), StateLocation::Slot(Slot(6))));
        assert!(!moving.must_wait(Some(StateLocation::Slot(Slot(4))), StateLocation::Slot(Slot(6))));
        moving.clear();
        assert!(!moving.span_must_wait(&span(2, &full, 0)));
    }
}
