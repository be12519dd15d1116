//! Admits steps: what each needs on the device, which sessions are offloaded for it, and where its
//! state comes from.
//!
//! Steps are admitted in order of arrival. A step that finds no capacity blocks those after it, so
//! that none starves. A step whose state a sibling is making waits for it and lets others pass.

use furrow_model::backend::{Backend as _, DeviceLost};
use furrow_rollout::StateOrigin;

use super::step::{EngineSession, StateTier};
use super::{Engine, EngineFault, PAGES_SPARE, SessionId};
use crate::slots::{Allocation, PageReservation, pages_for};
use crate::snapshots::SnapshotKey;

/// Result of an attempt to admit a step.
enum AdmitOutcome {
    Admitted,
    /// A sibling is making the state it begins with.
    AfterSibling,
    NoCapacity,
}

/// What a step needs on the device in addition to what its session holds there.
#[derive(Debug, PartialEq, Eq)]
struct StepDemand {
    slots: u32,
    pages: u32,
}

impl Engine {
    /// Admits waiting steps in order of arrival.
    pub(super) fn admit(&mut self) -> Result<(), DeviceLost> {
        let mut index = 0;
        while let Some(id) = self.waiting.get(index).copied() {
            match self.try_to_admit(id)? {
                AdmitOutcome::Admitted => drop(self.waiting.remove(index)),
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
        let admitted = |session: &EngineSession| session.step.as_ref().is_some_and(|step| step.is_admitted);
        if !self.sessions.values().any(admitted) {
            self.fail(id, EngineFault::Full { sessions_max: self.sessions_max });
        }
    }

    fn try_to_admit(&mut self, id: SessionId) -> Result<AdmitOutcome, DeviceLost> {
        let Some(session) = self.sessions.get(&id) else { return Ok(AdmitOutcome::Admitted) };
        let names = self.fork_names(session);
        if let Some(first) =
            names.iter().find(|(_, name)| self.snapshots.has(name) || self.snapshots.is_awaited(name))
            && self.snapshots.is_awaited(&first.1)
        {
            return Ok(AdmitOutcome::AfterSibling);
        }
        let need = step_demand(session);
        if !self.free_capacity(&need, id)? {
            return Ok(AdmitOutcome::NoCapacity);
        }
        let Some(reserve) = self.allocator.reserve(need.pages) else { return Ok(AdmitOutcome::NoCapacity) };
        let Some(mut session) = self.sessions.remove(&id) else { return Ok(AdmitOutcome::Admitted) };
        let settled = self.fill_allocations(&mut session, reserve, &names);
        // Inserted after a failure as well, so that its step is answered.
        self.sessions.insert(id, session);
        settled.map(|()| AdmitOutcome::Admitted)
    }

    /// Keys of the states from which an empty sequence could start, the longest first.
    fn fork_names(&self, session: &EngineSession) -> Vec<(u32, SnapshotKey)> {
        let (sequence, _) = session.active();
        if sequence.done() > 0 || matches!(session.state, StateTier::Host(_)) {
            return Vec::new();
        }
        let version = self.version_of(session);
        sequence
            .forks_ahead()
            .map(|position| (position, SnapshotKey::of(sequence, position, version)))
            .collect()
    }

    /// Allocates a step's slots and pages and fills them: from host memory, from a sibling's
    /// snapshot, or with the empty state.
    fn fill_allocations(
        &mut self,
        session: &mut EngineSession,
        mut reserve: PageReservation,
        names: &[(u32, SnapshotKey)],
    ) -> Result<(), DeviceLost> {
        if let StateTier::Host(offloaded) = &session.state {
            let Some(slot) = self.allocator.take_slot() else { unreachable!("the caller freed a slot") };
            let pages = self.allocator.take_pages(pages_for(session.base.done()), &mut reserve);
            self.device.restore(offloaded, slot, &pages)?;
            self.offload_budget.release(offloaded);
            session.state = StateTier::Device(Allocation { slot, pages });
            session.origin.get_or_insert(StateOrigin::Offloaded);
        }
        if matches!(session.state, StateTier::Empty) && session.base.next().is_some() {
            session.state = StateTier::Device(self.allocate_empty()?);
        }
        let has_fork = session.step.as_ref().is_some_and(|step| step.fork.is_some());
        let allocation = if has_fork { Some(self.allocate_empty()?) } else { None };
        if let Some(step) = &mut session.step {
            (step.is_admitted, step.reserve) = (true, reserve);
            step.costs.slot = allocation.as_ref().map(|allocation| allocation.slot.0);
            if let Some(fork) = &mut step.fork {
                fork.allocation = allocation;
            }
        }
        self.start_from_sibling(session, names)?;
        self.begin_fork(session)?;
        let reused = session.active().0.done();
        if let (Some(step), StateTier::Device(allocation)) = (&mut session.step, &session.state) {
            step.costs.slot.get_or_insert(allocation.slot.0);
        }
        if let Some(step) = &mut session.step {
            step.costs.reused_tokens = reused;
        }
        Ok(())
    }

    /// Allocates a slot with the state before any token.
    fn allocate_empty(&mut self) -> Result<Allocation, DeviceLost> {
        let Some(slot) = self.allocator.take_slot() else { unreachable!("the caller freed a slot") };
        self.device.clear(slot)?;
        Ok(Allocation { slot, pages: Vec::new() })
    }

    /// Starts from the longest snapshot of a sibling and promises the missing ones.
    fn start_from_sibling(
        &mut self,
        session: &mut EngineSession,
        names: &[(u32, SnapshotKey)],
    ) -> Result<(), DeviceLost> {
        for (position, name) in names {
            if self.snapshots.has(name) {
                return self.start_from(session, *position, name);
            }
            if self.snapshots.promise(*name)
                && let Some(step) = &mut session.step
            {
                step.promised.push((*position, *name));
            }
        }
        Ok(())
    }

    fn start_from(
        &mut self,
        session: &mut EngineSession,
        position: u32,
        name: &SnapshotKey,
    ) -> Result<(), DeviceLost> {
        let Some(snapshot) = self.snapshots.get(name) else { return Ok(()) };
        let (_, is_fork) = session.active();
        let allocation = match (&mut session.step, &mut session.state) {
            (Some(step), _) if is_fork => step.fork.as_mut().and_then(|fork| fork.allocation.as_mut()),
            (_, StateTier::Device(allocation)) => Some(allocation),
            _ => None,
        };
        let Some(allocation) = allocation else { return Ok(()) };
        self.device.copy_slot(snapshot.allocation.slot, allocation.slot)?;
        allocation.pages = self.allocator.share(&snapshot.allocation, snapshot.tokens);
        let version = Some(snapshot.version_min);
        match &mut session.step {
            Some(step) if is_fork => step.version_min = version,
            _ => session.version_min = version,
        }
        session.active_mut().forked_to(position);
        session.origin.get_or_insert(StateOrigin::Forked);
        Ok(())
    }

    /// Copies the base's state to the fork once all kept tokens are in it.
    pub(super) fn begin_fork(&mut self, session: &mut EngineSession) -> Result<(), DeviceLost> {
        let Some(step) = &mut session.step else { return Ok(()) };
        let Some(allocation) = step.fork.as_mut().and_then(|fork| fork.allocation.as_mut()) else {
            return Ok(());
        };
        let (StateTier::Device(base), None) = (&session.state, session.base.next()) else { return Ok(()) };
        self.device.copy_slot(base.slot, allocation.slot)?;
        allocation.pages = self.allocator.share(base, session.base.done());
        step.version_min = session.version_min;
        Ok(())
    }

    /// Frees slots and pages: evicts snapshots for pages first, then offloads idle sessions.
    fn free_capacity(&mut self, need: &StepDemand, keep: SessionId) -> Result<bool, DeviceLost> {
        loop {
            let slots = self.allocator.free_slots() - self.snapshots.slots_left();
            let slots_lack = slots < need.slots;
            let pages_lack = self.allocator.free_pages() < need.pages;
            if !slots_lack && !pages_lack {
                return Ok(true);
            }
            if pages_lack && let Some(allocation) = self.snapshots.evict() {
                self.allocator.release(allocation);
            } else if !self.offload_idlest(keep)? {
                return Ok(false);
            }
        }
    }

    /// Offloads the session that has been idle longest. One that waits for capacity comes after all
    /// that wait for nothing.
    fn offload_idlest(&mut self, keep: SessionId) -> Result<bool, DeviceLost> {
        let running = |session: &EngineSession| session.step.as_ref().is_some_and(|step| step.is_admitted);
        let at_rest = self.sessions.iter_mut().filter(|(id, session)| {
            **id != keep && !running(session) && matches!(session.state, StateTier::Device(_))
        });
        let idlest = at_rest.min_by_key(|(_, session)| (session.step.is_some(), session.touched));
        let Some((_, session)) = idlest else { return Ok(false) };
        let StateTier::Device(allocation) = &session.state else { return Ok(false) };
        let Some(offloaded) = self.offload_budget.offload(&mut self.device, allocation)? else {
            return Ok(false);
        };
        let state = std::mem::replace(&mut session.state, StateTier::Host(offloaded));
        self.drop_state(state);
        Ok(true)
    }
}

/// Most slots and pages a step can need, its longest reply included.
fn step_demand(session: &EngineSession) -> StepDemand {
    let Some(step) = &session.step else { return StepDemand { slots: 0, pages: 0 } };
    let left = step.tokens_left();
    let base_end = if step.fork.is_some() { session.base.len() } else { session.base.len() + left };
    let (base_slot, own_pages) = match &session.state {
        StateTier::Device(allocation) => (0, allocation.pages.len() as u32),
        StateTier::Host(_) => (1, 0),
        StateTier::Empty => (session.base.next().is_some().into(), 0),
    };
    let base_pages = pages_for(base_end).saturating_sub(own_pages);
    let (fork_slot, fork_pages) = match &step.fork {
        // Full pages of the base stay shared; the copy of its last, partly filled page is among the
        // spare ones.
        Some(fork) => (1, pages_for(fork.sequence.len() + left) - pages_for(session.base.planned())),
        None => (0, 0),
    };
    StepDemand { slots: base_slot + fork_slot, pages: base_pages + fork_pages + PAGES_SPARE }
}
