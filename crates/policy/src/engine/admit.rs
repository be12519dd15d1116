//! Admits steps: what each needs on the device, which sessions are offloaded for it, and where its
//! state comes from.
//!
//! Steps are admitted in order of arrival. A step that finds no capacity blocks those after it, so
//! that none starves. A step whose state a sibling is making waits for it and lets others pass.

use furrow_model::backend::{Backend as _, DeviceLost};
use furrow_rollout::{FinishReason, StateOrigin};

use super::phase::{BaseFill, EngineSession, StepWork, WaitingSession};
use super::running::{AfterSpan, RunningSession};
use super::session::StateTier;
use super::{Engine, EngineFault, PAGES_SPARE, SessionId};
use crate::slots::{PageReservation, pages_for};
use crate::snapshots::SnapshotKey;

/// Result of an attempt to admit a step.
enum AdmitOutcome {
    Admitted,
    /// A sibling is making the state it begins with.
    AfterSibling,
    NoCapacity,
}

/// What a step needs on the device in addition to what its session has there.
#[derive(Debug, PartialEq, Eq)]
struct StepDemand {
    slots: u32,
    pages: u32,
}

impl Engine {
    /// Admits waiting steps in order of arrival.
    pub(super) fn admit(&mut self) -> Result<(), DeviceLost> {
        let mut index = 0;
        while let Some(id) = self.sessions.queued(index) {
            match self.try_to_admit(id)? {
                // It has left the queue.
                AdmitOutcome::Admitted => {}
                AdmitOutcome::AfterSibling => index += 1,
                AdmitOutcome::NoCapacity => {
                    self.refuse_if_stuck(id);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// `sessions_max` prevents this case: while no step runs, all other sessions can be offloaded.
    fn refuse_if_stuck(&mut self, id: SessionId) {
        if self.sessions.all_running().next().is_none() {
            self.fail(id, EngineFault::Full { sessions_max: self.sessions_max });
        }
    }

    fn try_to_admit(&mut self, id: SessionId) -> Result<AdmitOutcome, DeviceLost> {
        let session = self.sessions.waiting(id);
        let names = self.fork_names(session);
        let need = step_demand(session);
        if let Some(first) =
            names.iter().find(|(_, name)| self.snapshots.has(name) || self.snapshots.is_awaited(name))
            && self.snapshots.is_awaited(&first.1)
        {
            return Ok(AdmitOutcome::AfterSibling);
        }
        let Some(reserve) = self.free_capacity(&need, id)? else { return Ok(AdmitOutcome::NoCapacity) };
        let (mut session, fill) = self.sessions.take_waiting(id).admit(&mut self.allocator, reserve);
        if let Err(lost) = self.fill_allocations(&mut session, fill, &names) {
            // Put into the table, so that its step is answered.
            self.sessions.insert(id, EngineSession::Running(session));
            return Err(lost);
        }
        self.enter_next_stage(id, session)?;
        Ok(AdmitOutcome::Admitted)
    }

    /// Keys of the states from which an empty sequence could start, the longest first.
    fn fork_names(&self, session: &WaitingSession) -> Vec<(u32, SnapshotKey)> {
        let sequence = session.first_sequence();
        if sequence.done() > 0 || matches!(session.state, StateTier::Host(_)) {
            return Vec::new();
        }
        let version = self.version_of(&session.core);
        sequence
            .forks_ahead()
            .map(|position| (position, SnapshotKey::of(sequence, position, version)))
            .collect()
    }

    /// Fills the slots of a step: from host memory, from a sibling's snapshot, or with the empty
    /// state.
    fn fill_allocations(
        &mut self,
        session: &mut RunningSession,
        fill: BaseFill,
        names: &[(u32, SnapshotKey)],
    ) -> Result<(), DeviceLost> {
        if let Some(base) = session.base() {
            match fill {
                BaseFill::Nothing => {}
                BaseFill::Clear => self.device.clear(base.slot)?,
                BaseFill::Restore(offloaded) => {
                    self.device.restore(&offloaded, base.slot, &base.pages)?;
                    self.offload_budget.release(&offloaded);
                }
            }
        }
        if let Some(fork) = session.fork() {
            self.device.clear(fork.allocation.slot)?;
        }
        self.start_from_sibling(session, names)?;
        self.fill_fork(session)?;
        session.step.costs.reused_tokens = session.active().sequence.done();
        Ok(())
    }

    /// Starts from the longest snapshot of a sibling and promises the missing ones.
    fn start_from_sibling(
        &mut self,
        session: &mut RunningSession,
        names: &[(u32, SnapshotKey)],
    ) -> Result<(), DeviceLost> {
        for (position, name) in names {
            let snapshot = if session.can_start_at(*position) { self.snapshots.get(name) } else { None };
            let Some(snapshot) = snapshot else {
                if self.snapshots.promise(*name) {
                    session.step.promised.push((*position, *name));
                }
                continue;
            };
            let active = session.active_mut();
            self.device.copy_slot(snapshot.allocation.slot, active.allocation.slot)?;
            active.allocation.pages = self.allocator.share(&snapshot.allocation, snapshot.tokens);
            *active.version_min = Some(snapshot.version_min);
            active.sequence.forked_to(*position);
            session.core.origin.get_or_insert(StateOrigin::Forked);
            return Ok(());
        }
        Ok(())
    }

    /// Copies the base's state to the fork once all kept tokens are in it.
    fn fill_fork(&mut self, session: &mut RunningSession) -> Result<(), DeviceLost> {
        if let Some((base, fork)) = session.fork_source() {
            self.device.copy_slot(base.allocation.slot, fork.allocation.slot)?;
            fork.allocation.pages = self.allocator.share(base.allocation, base.sequence.done());
            fork.version_min = base.version_min;
        }
        Ok(())
    }

    /// Puts a session into the table after it was admitted or the last span of its stage ran. It is
    /// put there after a failure as well, so that its step is answered.
    pub(super) fn enter_next_stage(
        &mut self,
        id: SessionId,
        session: RunningSession,
    ) -> Result<(), DeviceLost> {
        match session.after_span() {
            AfterSpan::Runs(session) => {
                self.sessions.insert(id, EngineSession::Running(session));
                Ok(())
            }
            AfterSpan::ForkBegins(mut session) => {
                let filled = self.fill_fork(&mut session);
                self.sessions.insert(id, EngineSession::Running(session));
                filled
            }
            AfterSpan::Rebuilt(session) => {
                self.finish(id, session, FinishReason::Stop);
                Ok(())
            }
        }
    }

    /// Frees slots and reserves pages: evicts snapshots for pages first, then offloads idle
    /// sessions. `None` if that is not enough.
    fn free_capacity(
        &mut self,
        need: &StepDemand,
        keep: SessionId,
    ) -> Result<Option<PageReservation>, DeviceLost> {
        loop {
            let slots = self.allocator.free_slots() - self.snapshots.slots_left();
            let slots_lack = slots < need.slots;
            let pages_lack = self.allocator.free_pages() < need.pages;
            if !slots_lack && !pages_lack {
                return Ok(self.allocator.reserve(need.pages));
            }
            if pages_lack && let Some(allocation) = self.snapshots.evict() {
                self.allocator.release(allocation);
            } else if !self.offload_idlest(keep)? {
                return Ok(None);
            }
        }
    }

    /// Offloads the session that has been idle longest. One that waits for capacity comes after all
    /// that wait for nothing. False if no session can be offloaded.
    fn offload_idlest(&mut self, keep: SessionId) -> Result<bool, DeviceLost> {
        let on_device = self
            .sessions
            .all_at_rest()
            .filter(|(id, rest)| *id != keep && matches!(rest.state, StateTier::Device(_)));
        let idlest = on_device.map(|(_, rest)| rest).min_by_key(|rest| rest.order);
        if let Some(rest) = idlest
            && let StateTier::Device(allocation) = &*rest.state
            && let Some(offloaded) = self.offload_budget.offload(&mut self.device, allocation)?
        {
            let left = std::mem::replace(rest.state, StateTier::Host(offloaded));
            self.release_state(left);
            return Ok(true);
        }
        Ok(false)
    }
}

/// Most slots and pages a step can need, its longest reply included.
fn step_demand(session: &WaitingSession) -> StepDemand {
    let base = &session.core.base;
    let (base_slot, own_pages) = match &session.state {
        StateTier::Device(allocation) => (0, allocation.pages.len() as u32),
        StateTier::Host(_) => (1, 0),
        StateTier::Empty => (base.next().is_some().into(), 0),
    };
    let base_pages = |end: u32| pages_for(end).saturating_sub(own_pages);
    let (slots, pages) = match &session.work {
        StepWork::Rebuild => (base_slot, base_pages(base.len())),
        StepWork::Extend(reply) => (base_slot, base_pages(base.len() + reply.tokens_left())),
        // Full pages of the base stay shared; the copy of its last, partly filled page is among the
        // spare ones.
        StepWork::Fork { sequence, reply } => {
            let fork_pages = pages_for(sequence.len() + reply.tokens_left()) - pages_for(base.planned());
            (base_slot + 1, base_pages(base.len()) + fork_pages)
        }
    };
    StepDemand { slots, pages: pages + PAGES_SPARE }
}
