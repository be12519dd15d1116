//! The sessions a policy worker holds: who owns one, what it replied last, and when it may be forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use furrow_rollout::{Id, Trajectory};
use furrow_wire::v1::Acted;
use tokio_util::sync::CancellationToken;

use crate::policy::Session;

/// All sessions of a worker, shared by its streams.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    table: Arc<Mutex<HashMap<Id<Trajectory>, Entry>>>,
    sessions_max: usize,
    linger: Duration,
    /// Cancelled when no session can go on here.
    over: CancellationToken,
    /// Why, where it is a failure.
    failure: Arc<OnceLock<String>>,
}

/// A stream's hold on its session. Dropping it leaves the session to linger for a stream that comes back.
#[derive(Debug)]
pub(crate) struct Seat {
    sessions: Sessions,
    trajectory: Id<Trajectory>,
    hold: CancellationToken,
    life: Arc<Life>,
}

/// What lives on while streams come and go, until the session is closed, forgotten or taken by a younger assignment.
pub(crate) struct Life {
    /// The policy's session. Whoever acts holds the lock, so a stream that comes back waits for the reply that is being made.
    pub acting: tokio::sync::Mutex<Option<Acting>>,
    last: Mutex<Option<Acted>>,
    /// Cancelled when no stream can come back to it.
    over: CancellationToken,
}

/// A policy's session and how far it is.
pub(crate) struct Acting {
    /// The session.
    pub session: Box<dyn Session>,
    /// Steps it has behind it.
    pub steps: u32,
}

/// Why a session is not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoSeat {
    /// A younger assignment holds the trajectory.
    Stale { held: u64 },
    /// As many sessions as allowed are in use.
    Full { sessions_max: usize },
}

#[derive(Debug)]
struct Entry {
    token: u64,
    life: Arc<Life>,
    /// Cancelled when another stream takes the session over.
    hold: CancellationToken,
    /// When its stream ended; `None` while one is attached.
    left_at: Option<Instant>,
}

impl Sessions {
    pub fn new(sessions_max: u32, linger: Duration) -> Self {
        Self {
            table: Arc::default(),
            sessions_max: sessions_max as usize,
            linger,
            over: CancellationToken::new(),
            failure: Arc::default(),
        }
    }

    /// Takes a session for a stream. A stream that held it before is cut; an older assignment is refused.
    pub fn open(&self, trajectory: &Id<Trajectory>, token: u64) -> Result<Seat, NoSeat> {
        let mut table = self.lock();
        forget(&mut table, self.linger);
        let hold = CancellationToken::new();
        match table.get_mut(trajectory) {
            Some(entry) if entry.token > token => return Err(NoSeat::Stale { held: entry.token }),
            Some(entry) => entry.hand_over(token, hold.clone()),
            None => {
                make_room(&mut table, self.sessions_max)?;
                let entry = Entry { token, life: Life::new(), hold: hold.clone(), left_at: None };
                table.insert(trajectory.clone(), entry);
            }
        }
        let life = table.get(trajectory).map_or_else(Life::new, |entry| entry.life.clone());
        Ok(Seat { sessions: self.clone(), trajectory: trajectory.clone(), hold, life })
    }

    /// Sessions with a stream attached.
    pub fn attached(&self) -> usize {
        self.lock().values().filter(|entry| entry.left_at.is_none()).count()
    }

    /// Cuts every stream and ends every session, for the policy failed.
    pub fn fail_all(&self, why: &str) {
        self.failure.get_or_init(|| why.to_owned());
        self.cut_all();
    }

    /// Why the policy failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Resolves when no session can go on here.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Cuts every stream and ends every session.
    pub fn cut_all(&self) {
        self.over.cancel();
        self.lock().values().for_each(|entry| entry.hold.cancel());
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id<Trajectory>, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The reply already given at this step, if it was the last one.
    pub fn replied(&self, step: u32) -> Option<Acted> {
        self.life.last().clone().filter(|acted| acted.step == step)
    }

    /// Remembers the reply before it is sent.
    pub fn remember(&self, acted: &Acted) {
        *self.life.last() = Some(acted.clone());
    }

    /// Forgets the reply: the session begins anew.
    pub fn forget(&self) {
        *self.life.last() = None;
    }

    /// The policy's session, its streams behind it.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Resolves when another stream has taken the session over or the worker cuts it.
    pub async fn cut(&self) {
        tokio::select! {
            () = self.hold.cancelled() => {}
            () = self.sessions.over() => {}
        }
    }

    /// Ends the session for good.
    pub fn close(self) {
        let mut table = self.sessions.lock();
        if self.mine(&mut table).is_some() {
            table.remove(&self.trajectory);
        }
    }

    fn mine<'a>(&self, table: &'a mut HashMap<Id<Trajectory>, Entry>) -> Option<&'a mut Entry> {
        table.get_mut(&self.trajectory).filter(|_| !self.hold.is_cancelled())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(entry) = self.mine(&mut self.sessions.lock()) {
            entry.left_at = Some(Instant::now());
        }
    }
}

impl Entry {
    fn hand_over(&mut self, token: u64, hold: CancellationToken) {
        self.hold.cancel();
        if token > self.token {
            std::mem::replace(&mut self.life, Life::new()).over.cancel();
        }
        (self.token, self.hold, self.left_at) = (token, hold, None);
    }
}

impl Life {
    fn new() -> Arc<Self> {
        Arc::new(Self { acting: Default::default(), last: Mutex::default(), over: CancellationToken::new() })
    }

    /// Resolves when no stream can come back to the session.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }

    fn last(&self) -> MutexGuard<'_, Option<Acted>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.life.over.cancel();
    }
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life").field("over", &self.over.is_cancelled()).finish_non_exhaustive()
    }
}

fn forget(table: &mut HashMap<Id<Trajectory>, Entry>, linger: Duration) {
    table.retain(|_, entry| entry.left_at.is_none_or(|left_at| left_at.elapsed() < linger));
}

/// Makes room for one more; the session that lingers longest goes first.
fn make_room(table: &mut HashMap<Id<Trajectory>, Entry>, sessions_max: usize) -> Result<(), NoSeat> {
    if table.len() < sessions_max {
        return Ok(());
    }
    let oldest = table
        .iter()
        .filter_map(|(id, entry)| Some((entry.left_at?, id.clone())))
        .min_by_key(|(left_at, _)| *left_at);
    match oldest {
        Some((_, id)) => {
            table.remove(&id);
            Ok(())
        }
        None => Err(NoSeat::Full { sessions_max }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(name: &str) -> Id<Trajectory> {
        Id::new(name).unwrap()
    }

    fn acted(step: u32) -> Acted {
        Acted { step, ..Acted::default() }
    }

    #[test]
    fn a_repeated_step_finds_its_reply_until_the_session_is_closed() {
        let sessions = Sessions::new(4, Duration::from_secs(60));
        let seat = sessions.open(&trajectory("a"), 1).unwrap();
        seat.remember(&acted(3));
        drop(seat);
        let again = sessions.open(&trajectory("a"), 1).unwrap();
        assert_eq!(again.replied(3), Some(acted(3)));
        assert_eq!(again.replied(2), None);
        again.close();
        assert_eq!(sessions.open(&trajectory("a"), 1).unwrap().replied(3), None);
    }

    #[test]
    fn an_older_assignment_is_refused_and_a_younger_one_starts_afresh() {
        let sessions = Sessions::new(4, Duration::from_secs(60));
        let first = sessions.open(&trajectory("a"), 5).unwrap();
        first.remember(&acted(0));
        assert_eq!(sessions.open(&trajectory("a"), 4).unwrap_err(), NoSeat::Stale { held: 5 });
        let second = sessions.open(&trajectory("a"), 6).unwrap();
        assert_eq!(second.replied(0), None);
        first.remember(&acted(9));
        assert_eq!(second.replied(9), None, "what an older assignment is still told is its own");
        drop(first);
        assert_eq!(sessions.attached(), 1, "and its end does not detach the new one");
    }

    #[test]
    fn a_session_lives_on_between_streams_and_ends_with_its_assignment() {
        let sessions = Sessions::new(4, Duration::from_secs(60));
        let first = sessions.open(&trajectory("a"), 5).unwrap();
        let again = sessions.open(&trajectory("a"), 5).unwrap();
        assert!(Arc::ptr_eq(&first.life, &again.life) && !again.life.over.is_cancelled());
        let young = sessions.open(&trajectory("a"), 6).unwrap();
        assert!(again.life.over.is_cancelled() && !young.life.over.is_cancelled());
        let life = young.life.clone();
        young.close();
        assert!(life.over.is_cancelled());
    }

    #[test]
    fn a_full_table_gives_up_the_session_that_lingers_longest() {
        let sessions = Sessions::new(2, Duration::from_secs(60));
        let a = sessions.open(&trajectory("a"), 1).unwrap();
        let _b = sessions.open(&trajectory("b"), 2).unwrap();
        assert_eq!(sessions.open(&trajectory("c"), 3).unwrap_err(), NoSeat::Full { sessions_max: 2 });
        drop(a);
        assert!(sessions.open(&trajectory("c"), 3).is_ok());
    }
}
