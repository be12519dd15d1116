//! Places for steps: what each needs, who gives way, where a state comes from.
//!
//! Steps are admitted in the order they came. One that finds no room holds up those behind it, so that none starves; one whose state a
//! sibling is just making waits for it and lets others pass.

use furrow_model::backend::{Backend as _, DeviceLost};
use furrow_rollout::StateOrigin;

use super::step::{Session, State};
use super::{Engine, Fault, PAGES_SPARE, SessionId};
use crate::slots::{Place, Reserve, pages_for};
use crate::snapshots::Name;

/// What came of a try.
enum Tried {
    Admitted,
    /// A sibling is making the state it begins with.
    AfterSibling,
    NoRoom,
}

/// What a step needs on the device beside what its session holds there.
#[derive(Debug, PartialEq, Eq)]
struct Need {
    slots: u32,
    pages: u32,
}

impl Engine {
    /// Gives places to the steps that wait.
    pub(super) fn admit(&mut self) -> Result<(), DeviceLost> {
        let mut index = 0;
        while let Some(id) = self.waiting.get(index).copied() {
            match self.try_to_admit(id)? {
                Tried::Admitted => drop(self.waiting.remove(index)),
                Tried::AfterSibling => index += 1,
                Tried::NoRoom => {
                    self.refuse_if_stuck(id);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// `places_max` keeps this from happening: with nothing running, all others can be parked.
    fn refuse_if_stuck(&mut self, id: SessionId) {
        let admitted = |session: &Session| session.step.as_ref().is_some_and(|step| step.is_admitted);
        if !self.sessions.values().any(admitted) {
            self.fail(id, Fault::Full { places: self.places_max });
        }
    }

    fn try_to_admit(&mut self, id: SessionId) -> Result<Tried, DeviceLost> {
        let Some(session) = self.sessions.get(&id) else { return Ok(Tried::Admitted) };
        let names = self.fork_names(session);
        if let Some(first) =
            names.iter().find(|(_, name)| self.snapshots.has(name) || self.snapshots.is_awaited(name))
            && self.snapshots.is_awaited(&first.1)
        {
            return Ok(Tried::AfterSibling);
        }
        let need = need(session);
        if !self.make_room(&need, id)? {
            return Ok(Tried::NoRoom);
        }
        let Some(reserve) = self.places.reserve(need.pages) else { return Ok(Tried::NoRoom) };
        let Some(mut session) = self.sessions.remove(&id) else { return Ok(Tried::Admitted) };
        let settled = self.settle_in(&mut session, reserve, &names);
        // Put back also after a failure, so that its step is answered.
        self.sessions.insert(id, session);
        settled.map(|()| Tried::Admitted)
    }

    /// Names of the states a sequence that begins from nothing could start with, the longest first.
    fn fork_names(&self, session: &Session) -> Vec<(u32, Name)> {
        let (sequence, _) = session.active();
        if sequence.done() > 0 || matches!(session.state, State::Host(_)) {
            return Vec::new();
        }
        let version = self.version_of(session);
        sequence.forks_ahead().map(|position| (position, Name::of(sequence, position, version))).collect()
    }

    /// Gives a step its places and fills them: from host memory, from a sibling's snapshot, or with nothing.
    fn settle_in(
        &mut self,
        session: &mut Session,
        mut reserve: Reserve,
        names: &[(u32, Name)],
    ) -> Result<(), DeviceLost> {
        if let State::Host(parked) = &session.state {
            let Some(slot) = self.places.take_slot() else { unreachable!("room was made") };
            let pages = self.places.take_pages(pages_for(session.base.done()), &mut reserve);
            self.device.restore(parked, slot, &pages)?;
            self.lot.drive_off(parked);
            session.state = State::Device(Place { slot, pages });
            session.origin.get_or_insert(StateOrigin::Parked);
        }
        if matches!(session.state, State::Nowhere) && session.base.next().is_some() {
            session.state = State::Device(self.empty_place()?);
        }
        let has_fork = session.step.as_ref().is_some_and(|step| step.fork.is_some());
        let place = if has_fork { Some(self.empty_place()?) } else { None };
        if let Some(step) = &mut session.step {
            (step.is_admitted, step.reserve) = (true, reserve);
            step.tally.slot = place.as_ref().map(|place| place.slot.0);
            if let Some(fork) = &mut step.fork {
                fork.place = place;
            }
        }
        self.start_from_sibling(session, names)?;
        self.begin_fork(session)?;
        let reused = session.active().0.done();
        if let (Some(step), State::Device(place)) = (&mut session.step, &session.state) {
            step.tally.slot.get_or_insert(place.slot.0);
        }
        if let Some(step) = &mut session.step {
            step.tally.reused_tokens = reused;
        }
        Ok(())
    }

    /// A slot with the state before any token.
    fn empty_place(&mut self) -> Result<Place, DeviceLost> {
        let Some(slot) = self.places.take_slot() else { unreachable!("room was made") };
        self.device.clear(slot)?;
        Ok(Place { slot, pages: Vec::new() })
    }

    /// Takes the longest state a sibling left, and promises those that are still missing.
    fn start_from_sibling(&mut self, session: &mut Session, names: &[(u32, Name)]) -> Result<(), DeviceLost> {
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

    fn start_from(&mut self, session: &mut Session, position: u32, name: &Name) -> Result<(), DeviceLost> {
        let Some(snapshot) = self.snapshots.get(name) else { return Ok(()) };
        let (_, is_fork) = session.active();
        let place = match (&mut session.step, &mut session.state) {
            (Some(step), _) if is_fork => step.fork.as_mut().and_then(|fork| fork.place.as_mut()),
            (_, State::Device(place)) => Some(place),
            _ => None,
        };
        let Some(place) = place else { return Ok(()) };
        self.device.copy_slot(snapshot.place.slot, place.slot)?;
        place.pages = self.places.share(&snapshot.place, snapshot.tokens);
        let version = Some(snapshot.version_min);
        match &mut session.step {
            Some(step) if is_fork => step.version_min = version,
            _ => session.version_min = version,
        }
        session.active_mut().forked_to(position);
        session.origin.get_or_insert(StateOrigin::Forked);
        Ok(())
    }

    /// Copies the base's state to the fork when all kept tokens are in it.
    pub(super) fn begin_fork(&mut self, session: &mut Session) -> Result<(), DeviceLost> {
        let Some(step) = &mut session.step else { return Ok(()) };
        let Some(place) = step.fork.as_mut().and_then(|fork| fork.place.as_mut()) else { return Ok(()) };
        let (State::Device(base), None) = (&session.state, session.base.next()) else { return Ok(()) };
        self.device.copy_slot(base.slot, place.slot)?;
        place.pages = self.places.share(base, session.base.done());
        step.version_min = session.version_min;
        Ok(())
    }

    /// Frees slots and pages: snapshots give up pages first, then idle sessions are parked.
    fn make_room(&mut self, need: &Need, keep: SessionId) -> Result<bool, DeviceLost> {
        loop {
            let slots = self.places.free_slots() - self.snapshots.slots_left();
            let (slots_lack, pages_lack) = (slots < need.slots, self.places.free_pages() < need.pages);
            if !slots_lack && !pages_lack {
                return Ok(true);
            }
            if pages_lack && let Some(place) = self.snapshots.evict() {
                self.places.release(place);
            } else if !self.park_idlest(keep)? {
                return Ok(false);
            }
        }
    }

    /// Parks the session that has been idle longest; one that waits for room only after all that wait for nothing.
    fn park_idlest(&mut self, keep: SessionId) -> Result<bool, DeviceLost> {
        let running = |session: &Session| session.step.as_ref().is_some_and(|step| step.is_admitted);
        let at_rest = self.sessions.iter_mut().filter(|(id, session)| {
            **id != keep && !running(session) && matches!(session.state, State::Device(_))
        });
        let idlest = at_rest.min_by_key(|(_, session)| (session.step.is_some(), session.touched));
        let Some((_, session)) = idlest else { return Ok(false) };
        let State::Device(place) = &session.state else { return Ok(false) };
        let Some(parked) = self.lot.park(&mut self.device, place)? else { return Ok(false) };
        let state = std::mem::replace(&mut session.state, State::Host(parked));
        self.drop_state(state);
        Ok(true)
    }
}

/// Slots and pages a step can come to need, its longest reply included.
fn need(session: &Session) -> Need {
    let Some(step) = &session.step else { return Need { slots: 0, pages: 0 } };
    let left = step.tokens_left();
    let base_end = if step.fork.is_some() { session.base.len() } else { session.base.len() + left };
    let (base_slot, held) = match &session.state {
        State::Device(place) => (0, place.pages.len() as u32),
        State::Host(_) => (1, 0),
        State::Nowhere => (session.base.next().is_some().into(), 0),
    };
    let base_pages = pages_for(base_end).saturating_sub(held);
    let (fork_slot, fork_pages) = match &step.fork {
        // Full pages of the base stay shared; a copy of its last one, half-full, is among the spare.
        Some(fork) => (1, pages_for(fork.sequence.len() + left) - pages_for(session.base.planned())),
        None => (0, 0),
    };
    Need { slots: base_slot + fork_slot, pages: base_pages + fork_pages + PAGES_SPARE }
}
