//! States of sessions: slots and pages are copied and cleared, and move to host memory and back.

use furrow_model::backend::{DeviceLost, OffloadedState, Page, SequenceSpan, Slot};

use super::copy::RangeCopier;
use crate::executor::{ExecutionLane, Executor, HostRange};
use crate::forward::LaunchResult;
use crate::latch::ExecutorLatch;
use crate::offload::{MovingStates, OffloadPool, OffloadedBlocks, StateLocation};
use crate::state::StateBuffers;
use crate::types::ModelTypes;

/// All slots and pages, and host memory for offloaded states.
pub(super) struct SessionStates<P> {
    buffers: StateBuffers<P>,
    copier: RangeCopier,
    offload_pool: OffloadPool,
    moving: MovingStates,
}

/// One copy between a device address and pinned memory.
type CopyFn = fn(&mut dyn Executor, u64, HostRange) -> LaunchResult;

impl<P: ModelTypes> SessionStates<P> {
    pub(super) fn new(buffers: StateBuffers<P>, copier: RangeCopier, offload_pool: OffloadPool) -> Self {
        Self { buffers, copier, offload_pool, moving: MovingStates::default() }
    }

    pub(super) fn buffers(&self) -> &StateBuffers<P> {
        &self.buffers
    }

    /// Clears all slots and pages.
    pub(super) fn clear_all(&mut self, executor: &mut ExecutorLatch) -> Result<(), DeviceLost> {
        let mut all = self.buffers.all().into_iter();
        all.try_for_each(|all| self.copier.copy(executor, ExecutionLane::Batch, None, all))
    }

    /// Makes a batch wait for the copies of states that it would meet.
    pub(super) fn delay_batch(
        &mut self,
        executor: &mut ExecutorLatch,
        batch: &[SequenceSpan<'_>],
    ) -> Result<(), DeviceLost> {
        if batch.iter().any(|span| self.moving.span_must_wait(span)) {
            executor.follow(ExecutionLane::Batch, ExecutionLane::Copy)?;
            self.moving.clear();
        }
        Ok(())
    }

    /// Copies a slot or page to another one, or clears it. If a copy of a state to or from one of
    /// them is in progress, the copy lane does it, so that batches wait for it only when they need
    /// the result.
    pub(super) fn copy_at(
        &mut self,
        executor: &mut ExecutorLatch,
        from: Option<StateLocation>,
        to: StateLocation,
    ) -> Result<(), DeviceLost> {
        let region_of = |at| match at {
            StateLocation::Slot(slot) => self.buffers.slot(slot),
            StateLocation::Page(page) => self.buffers.page(page),
        };
        let from_region = from.map(region_of);
        let to_region = region_of(to);
        if !self.moving.must_wait(from, to) {
            return self.copier.copy(executor, ExecutionLane::Batch, from_region, to_region);
        }
        executor.follow(ExecutionLane::Copy, ExecutionLane::Batch)?;
        self.copier.copy(executor, ExecutionLane::Copy, from_region, to_region)?;
        self.moving.mark_copied(from, to);
        Ok(())
    }

    /// Bytes of host memory of a state with this many pages.
    pub(super) fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.offload_pool.bytes_of(pages)
    }

    /// Returns without waiting. Batches continue; those that write to the slot or pages wait until
    /// the state is copied.
    pub(super) fn offload(
        &mut self,
        executor: &mut ExecutorLatch,
        slot: Slot,
        pages: &[Page],
    ) -> Result<Option<OffloadedState>, DeviceLost> {
        let Some(blocks) = self.offload_pool.take(pages.len()) else { return Ok(None) };
        executor.follow(ExecutionLane::Copy, ExecutionLane::Batch)?;
        self.copy_state(executor, &blocks, (slot, pages), |executor, at, to| {
            executor.fetch(ExecutionLane::Copy, at, to)
        })?;
        self.moving.mark_outgoing(slot, pages);
        Ok(Some(OffloadedState::new(self.offload_pool.bytes_of(pages.len() as u32), blocks)))
    }

    /// Whether a copy to or from a slot and pages is in progress.
    pub(super) fn is_moving(
        &mut self,
        executor: &mut ExecutorLatch,
        slot: Slot,
        pages: &[Page],
    ) -> Result<bool, DeviceLost> {
        if self.moving.is_empty() {
            return Ok(false);
        }
        if executor.work(|executor| executor.is_done(ExecutionLane::Copy))? {
            self.moving.clear();
        }
        Ok(self.moving.is_at(slot, pages))
    }

    /// Returns without waiting. The lane that copied the state out copies it back, so the order is
    /// kept.
    pub(super) fn restore(
        &mut self,
        executor: &mut ExecutorLatch,
        offloaded: &OffloadedState,
        slot: Slot,
        pages: &[Page],
    ) -> Result<(), DeviceLost> {
        let blocks: &OffloadedBlocks =
            offloaded.handle().expect("a backend restores only states that its own kind offloaded");
        assert!(self.offload_pool.owns(blocks), "a GPU restores only states that it offloaded itself");
        let bytes = self.offload_pool.bytes_of(pages.len() as u32);
        assert_eq!(offloaded.bytes(), bytes, "offloaded bytes of {} pages", pages.len());
        executor.follow(ExecutionLane::Copy, ExecutionLane::Batch)?;
        self.copy_state(executor, blocks, (slot, pages), |executor, at, from| {
            executor.send(ExecutionLane::Copy, from, at)
        })?;
        self.moving.mark_incoming(slot, pages);
        Ok(())
    }

    /// Copies a slot and pages to their offloaded blocks, or back.
    fn copy_state(
        &self,
        executor: &mut ExecutorLatch,
        blocks: &OffloadedBlocks,
        (slot, pages): (Slot, &[Page]),
        copy_range: CopyFn,
    ) -> Result<(), DeviceLost> {
        let Self { buffers, offload_pool, .. } = self;
        let mut at = buffers.slot(slot).address();
        executor.work(|executor| {
            for range in offload_pool.slot(blocks) {
                copy_range(executor, at, range)?;
                at += range.bytes;
            }
            let mut pages = pages.iter().zip(offload_pool.pages(blocks));
            pages.try_for_each(|(page, range)| copy_range(executor, buffers.page(*page).address(), range))
        })
    }
}
