//! The sessions of a policy worker: which stream owns one, what it replied last, and when it is
//! dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use furrow_rollout::{Id, Trajectory};
use furrow_wire::v1::Acted;
use tokio_util::sync::CancellationToken;

use crate::policy::Session;

/// All sessions of a worker, shared by its streams.
#[derive(Debug, Clone)]
pub(crate) struct SessionTable {
    table: Arc<Mutex<HashMap<Id<Trajectory>, SessionEntry>>>,
    sessions_max: usize,
    linger: Duration,
    /// Cancelled when no session can continue on this worker.
    ended: CancellationToken,
    /// The reason, if it is a failure.
    failure: Arc<OnceLock<String>>,
}

/// A stream's claim on its session. When it is dropped, the session lingers for a stream that comes
/// back.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    sessions: SessionTable,
    trajectory: Id<Trajectory>,
    stream_token: CancellationToken,
    life: Arc<SessionLife>,
}

/// The part of a session that outlives its streams, until it is closed, dropped or taken over by a
/// newer assignment.
pub(crate) struct SessionLife {
    /// The policy's session. A stream holds the lock while a reply is computed, so a stream that
    /// comes back waits for that reply.
    pub acting: tokio::sync::Mutex<Option<ActingSession>>,
    last: Mutex<Option<Acted>>,
    /// Cancelled when no stream can come back to it.
    ended: CancellationToken,
}

/// A policy's session and the number of its steps.
pub(crate) struct ActingSession {
    pub session: Box<dyn Session>,
    /// Number of steps it has acted.
    pub steps: u32,
}

/// Why a session is not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotRefusal {
    /// A newer assignment owns the trajectory.
    Stale { current: u64 },
    /// The limit of sessions is reached.
    Full { sessions_max: usize },
}

#[derive(Debug)]
struct SessionEntry {
    token: u64,
    life: Arc<SessionLife>,
    /// Cancelled when another stream takes the session over.
    stream_token: CancellationToken,
    /// When its stream ended; `None` while one is attached.
    left_at: Option<Instant>,
}

impl SessionTable {
    pub(crate) fn new(sessions_max: u32, linger: Duration) -> Self {
        Self {
            table: Arc::default(),
            sessions_max: sessions_max as usize,
            linger,
            ended: CancellationToken::new(),
            failure: Arc::default(),
        }
    }

    /// Claims a session for a stream. Cuts the stream that had it before; refuses an older
    /// assignment.
    pub(crate) fn open(&self, trajectory: &Id<Trajectory>, token: u64) -> Result<SessionSlot, SlotRefusal> {
        let mut table = self.lock();
        forget(&mut table, self.linger);
        let stream_token = CancellationToken::new();
        match table.get_mut(trajectory) {
            Some(entry) if entry.token > token => return Err(SlotRefusal::Stale { current: entry.token }),
            Some(entry) => entry.hand_over(token, stream_token.clone()),
            None => {
                evict_lingering(&mut table, self.sessions_max)?;
                let entry = SessionEntry {
                    token,
                    life: SessionLife::new(),
                    stream_token: stream_token.clone(),
                    left_at: None,
                };
                table.insert(trajectory.clone(), entry);
            }
        }
        let life = table.get(trajectory).map_or_else(SessionLife::new, |entry| entry.life.clone());
        Ok(SessionSlot { sessions: self.clone(), trajectory: trajectory.clone(), stream_token, life })
    }

    /// Sessions with a stream attached.
    pub(crate) fn attached(&self) -> usize {
        self.lock().values().filter(|entry| entry.left_at.is_none()).count()
    }

    /// Cuts every stream and ends every session because the policy failed.
    pub(crate) fn fail_all(&self, why: &str) {
        self.failure.get_or_init(|| why.to_owned());
        self.cut_all();
    }

    /// Why the policy failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Resolves when no session can continue on this worker.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Cuts every stream and ends every session.
    pub(crate) fn cut_all(&self) {
        self.ended.cancel();
        self.lock().values().for_each(|entry| entry.stream_token.cancel());
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id<Trajectory>, SessionEntry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionSlot {
    /// The reply of this step, if it was the last one given.
    pub(crate) fn replied(&self, step: u32) -> Option<Acted> {
        self.life.last().clone().filter(|acted| acted.step == step)
    }

    /// Keeps the reply; called before it is sent.
    pub(crate) fn remember(&self, acted: &Acted) {
        *self.life.last() = Some(acted.clone());
    }

    /// Drops the reply, because the session starts from its beginning.
    pub(crate) fn forget(&self) {
        *self.life.last() = None;
    }

    /// The part of the session that its streams share.
    pub(crate) fn life(&self) -> &SessionLife {
        &self.life
    }

    /// Resolves when another stream has taken the session over or the worker ends it.
    pub(crate) async fn cut(&self) {
        tokio::select! {
            () = self.stream_token.cancelled() => {}
            () = self.sessions.ended() => {}
        }
    }

    /// Ends the session; no stream can come back to it.
    pub(crate) fn close(self) {
        let mut table = self.sessions.lock();
        if self.own_entry(&mut table).is_some() {
            table.remove(&self.trajectory);
        }
    }

    fn own_entry<'a>(
        &self,
        table: &'a mut HashMap<Id<Trajectory>, SessionEntry>,
    ) -> Option<&'a mut SessionEntry> {
        table.get_mut(&self.trajectory).filter(|_| !self.stream_token.is_cancelled())
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        if let Some(entry) = self.own_entry(&mut self.sessions.lock()) {
            entry.left_at = Some(Instant::now());
        }
    }
}

impl SessionEntry {
    fn hand_over(&mut self, token: u64, stream_token: CancellationToken) {
        self.stream_token.cancel();
        if token > self.token {
            std::mem::replace(&mut self.life, SessionLife::new()).ended.cancel();
        }
        (self.token, self.stream_token, self.left_at) = (token, stream_token, None);
    }
}

impl SessionLife {
    fn new() -> Arc<Self> {
        Arc::new(Self { acting: Default::default(), last: Mutex::default(), ended: CancellationToken::new() })
    }

    /// Resolves when no stream can come back to the session.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    fn last(&self) -> MutexGuard<'_, Option<Acted>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        self.life.ended.cancel();
    }
}

impl std::fmt::Debug for SessionLife {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionLife").field("over", &self.ended.is_cancelled()).finish_non_exhaustive()
    }
}

fn forget(table: &mut HashMap<Id<Trajectory>, SessionEntry>, linger: Duration) {
    table.retain(|_, entry| entry.left_at.is_none_or(|left_at| left_at.elapsed() < linger));
}

/// Frees capacity for one more session by dropping the one that has lingered longest.
fn evict_lingering(
    table: &mut HashMap<Id<Trajectory>, SessionEntry>,
    sessions_max: usize,
) -> Result<(), SlotRefusal> {
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
        None => Err(SlotRefusal::Full { sessions_max }),
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
        let sessions = SessionTable::new(4, Duration::from_secs(60));
        let slot = sessions.open(&trajectory("a"), 1).unwrap();
        slot.remember(&acted(3));
        drop(slot);
        let reopened = sessions.open(&trajectory("a"), 1).unwrap();
        assert_eq!(reopened.replied(3), Some(acted(3)));
        assert_eq!(reopened.replied(2), None);
        reopened.close();
        assert_eq!(sessions.open(&trajectory("a"), 1).unwrap().replied(3), None);
    }

    #[test]
    fn an_older_assignment_is_refused_and_a_younger_one_starts_afresh() {
        let sessions = SessionTable::new(4, Duration::from_secs(60));
        let first = sessions.open(&trajectory("a"), 5).unwrap();
        first.remember(&acted(0));
        assert_eq!(sessions.open(&trajectory("a"), 4).unwrap_err(), SlotRefusal::Stale { current: 5 });
        let second = sessions.open(&trajectory("a"), 6).unwrap();
        assert_eq!(second.replied(0), None);
        first.remember(&acted(9));
        assert_eq!(second.replied(9), None, "the newer assignment does not get the older one's reply");
        drop(first);
        assert_eq!(sessions.attached(), 1, "the end of the older one does not detach the newer one");
    }

    #[test]
    fn a_session_survives_its_streams_and_ends_with_its_assignment() {
        let sessions = SessionTable::new(4, Duration::from_secs(60));
        let first = sessions.open(&trajectory("a"), 5).unwrap();
        let reopened = sessions.open(&trajectory("a"), 5).unwrap();
        assert!(Arc::ptr_eq(&first.life, &reopened.life) && !reopened.life.ended.is_cancelled());
        let young = sessions.open(&trajectory("a"), 6).unwrap();
        assert!(reopened.life.ended.is_cancelled() && !young.life.ended.is_cancelled());
        let life = young.life.clone();
        young.close();
        assert!(life.ended.is_cancelled());
    }

    #[test]
    fn a_full_table_gives_up_the_session_that_lingers_longest() {
        let sessions = SessionTable::new(2, Duration::from_secs(60));
        let a = sessions.open(&trajectory("a"), 1).unwrap();
        let _b = sessions.open(&trajectory("b"), 2).unwrap();
        assert_eq!(sessions.open(&trajectory("c"), 3).unwrap_err(), SlotRefusal::Full { sessions_max: 2 });
        drop(a);
        assert!(sessions.open(&trajectory("c"), 3).is_ok());
    }
}
