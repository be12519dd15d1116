//! The sessions of an engine by id, and the order in which they wait.
//!
//! Only the engine's thread changes phases. Within an iteration it uses ids that it has just read
//! from this table. An id of a session in another phase is a fault of the engine itself. It panics,
//! because a batch with a row too few would give tokens to the wrong sessions.

use std::collections::{HashMap, VecDeque};

use super::phase::{EngineSession, RestingState, WaitingSession};
use super::running::RunningSession;
use super::session::{IdleSession, SessionCore};

/// A session of one engine. Ids are never reused, so a late event for a closed session has no
/// effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId(pub u64);

/// All sessions of an engine.
#[derive(Default)]
pub(super) struct Sessions {
    by_id: HashMap<SessionId, EngineSession>,
    /// Those that wait for slots and pages, in order of arrival.
    queue: VecDeque<SessionId>,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.by_id.keys().copied().collect()
    }

    /// Sessions of which this is true.
    pub(super) fn ids_where(&self, is_so: impl Fn(&SessionCore) -> bool) -> Vec<SessionId> {
        self.by_id.iter().filter(|(_, session)| is_so(session.core())).map(|(id, _)| *id).collect()
    }

    /// Sessions whose owners have dropped them.
    pub(super) fn abandoned(&self) -> Vec<SessionId> {
        self.ids_where(|session| session.life.is_cancelled())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &EngineSession> {
        self.by_id.values()
    }

    pub(super) fn cores(&self) -> impl Iterator<Item = &SessionCore> {
        self.by_id.values().map(EngineSession::core)
    }

    /// Sessions whose steps run.
    pub(super) fn all_running(&self) -> impl Iterator<Item = (SessionId, &RunningSession)> {
        self.by_id.iter().filter_map(|(id, session)| match session {
            EngineSession::Running(session) => Some((*id, session)),
            EngineSession::Idle(_) | EngineSession::Waiting(_) => None,
        })
    }

    /// The same sessions, mutable.
    pub(super) fn all_running_mut(&mut self) -> impl Iterator<Item = &mut RunningSession> {
        self.by_id.values_mut().filter_map(|session| match session {
            EngineSession::Running(session) => Some(session),
            EngineSession::Idle(_) | EngineSession::Waiting(_) => None,
        })
    }

    /// Sessions that could be offloaded.
    pub(super) fn all_at_rest(&mut self) -> impl Iterator<Item = (SessionId, RestingState<'_>)> {
        self.by_id.iter_mut().filter_map(|(id, session)| Some((*id, session.at_rest()?)))
    }

    /// Adds a session in its phase. One that waits joins the end of the queue.
    pub(super) fn insert(&mut self, id: SessionId, session: EngineSession) {
        if matches!(session, EngineSession::Waiting(_)) {
            self.queue.push_back(id);
        }
        self.by_id.insert(id, session);
    }

    /// Removes a session in whatever phase it is; `None` if it has ended.
    pub(super) fn remove(&mut self, id: SessionId) -> Option<EngineSession> {
        let session = self.by_id.remove(&id)?;
        if matches!(session, EngineSession::Waiting(_)) {
            self.dequeue(id);
        }
        Some(session)
    }

    /// Removes a session that can begin a step; `None` if it has ended or has a step.
    pub(super) fn take_idle(&mut self, id: SessionId) -> Option<IdleSession> {
        match self.by_id.remove(&id)? {
            EngineSession::Idle(session) => Some(session),
            busy => {
                self.by_id.insert(id, busy);
                None
            }
        }
    }

    /// The session at a position of the queue; `None` behind its end.
    pub(super) fn queued(&self, index: usize) -> Option<SessionId> {
        self.queue.get(index).copied()
    }

    /// A session of the queue.
    pub(super) fn waiting(&self, id: SessionId) -> &WaitingSession {
        match self.by_id.get(&id) {
            Some(EngineSession::Waiting(session)) => session,
            _ => wrong_phase(id, "waiting"),
        }
    }

    /// Removes a session of the queue.
    pub(super) fn take_waiting(&mut self, id: SessionId) -> WaitingSession {
        match self.remove(id) {
            Some(EngineSession::Waiting(session)) => session,
            _ => wrong_phase(id, "waiting"),
        }
    }

    /// A session whose step runs.
    pub(super) fn running(&self, id: SessionId) -> &RunningSession {
        match self.by_id.get(&id) {
            Some(EngineSession::Running(session)) => session,
            _ => wrong_phase(id, "running"),
        }
    }

    /// The same session, mutable.
    pub(super) fn running_mut(&mut self, id: SessionId) -> &mut RunningSession {
        match self.by_id.get_mut(&id) {
            Some(EngineSession::Running(session)) => session,
            _ => wrong_phase(id, "running"),
        }
    }

    /// Removes a session whose step runs.
    pub(super) fn take_running(&mut self, id: SessionId) -> RunningSession {
        match self.by_id.remove(&id) {
            Some(EngineSession::Running(session)) => session,
            _ => wrong_phase(id, "running"),
        }
    }

    fn dequeue(&mut self, id: SessionId) {
        self.queue.retain(|queued| *queued != id);
    }
}

fn wrong_phase(id: SessionId, phase: &str) -> ! {
    unreachable!("session {} is not {phase}, although the engine has just found it so", id.0)
}

#[cfg(test)]
impl Sessions {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&EngineSession> {
        self.by_id.get(&id)
    }

    /// The ids of the queue, in order.
    pub(super) fn queue(&self) -> impl Iterator<Item = SessionId> {
        self.queue.iter().copied()
    }
}
