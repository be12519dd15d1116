//! Sessions between requests: a chat's state stays where it is until somebody goes on with it, and is forgotten when nobody does.
//!
//! Each session and each request at work takes one of a fixed number of places, so chats never have more of the engine than they were
//! given. A request that finds none takes that of the session idle longest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::Talk;

/// A SHA-256.
pub(super) type Digest = [u8; 32];

/// A message as it was sent: who said it, its words and its pictures' bytes, and the tokens where they came beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heard {
    pub words: Digest,
    /// Of the ids without the stop id at their end.
    pub ids: Option<Digest>,
}

/// A message that a session holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub message: Heard,
    /// Whether the session drew it itself: its words alone name it then.
    pub is_drawn: bool,
}

impl Held {
    /// Whether this message is the one held: no words stand for tokens that somebody sent, and no other tokens for those that are held.
    pub fn is(&self, heard: &Heard) -> bool {
        let (held, sent) = (self.message.ids, heard.ids);
        self.message.words == heard.words && (held == sent || (self.is_drawn && sent.is_none()))
    }
}

/// A chat between two requests.
pub(super) struct Resident {
    /// Its session in the engine.
    pub talk: Talk,
    /// Its place.
    pub _place: OwnedSemaphorePermit,
    /// What was said in it.
    pub held: Vec<Held>,
    /// The tokens its session holds, or runs with the next ones.
    pub ids: Vec<u32>,
}

impl Resident {
    /// Whether messages begin with what was said in it.
    pub fn begins(&self, said: &[Heard]) -> bool {
        self.held.len() <= said.len() && self.held.iter().zip(said).all(|(held, heard)| held.is(heard))
    }
}

/// A chat that was taken out. Dropping this puts it back.
pub(super) struct Taken<'a> {
    residents: &'a Residents,
    name: String,
    resident: Option<Resident>,
}

impl Taken<'_> {
    /// The chat, if there is one.
    pub fn resident(&self) -> Option<&Resident> {
        self.resident.as_ref()
    }

    /// The chat for good.
    pub fn keep(mut self) -> Option<Resident> {
        self.resident.take()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(resident) = self.resident.take() {
            self.residents.keep(std::mem::take(&mut self.name), resident);
        }
    }
}

/// All of them.
pub(super) struct Residents {
    table: Mutex<HashMap<String, (Resident, Instant)>>,
    places: Arc<Semaphore>,
    idle: Duration,
}

impl Residents {
    pub fn new(places: u32, idle: Duration) -> Self {
        Self { table: Mutex::default(), places: Arc::new(Semaphore::new(places as usize)), idle }
    }

    /// Takes a chat out to go on with it. Whoever comes meanwhile finds none and begins anew.
    pub fn take(&self, name: &str) -> Taken<'_> {
        let resident = self.lock().remove(name).map(|(resident, _)| resident);
        Taken { residents: self, name: name.to_owned(), resident }
    }

    /// Keeps a chat; one of the same name that was kept meanwhile is forgotten.
    pub fn keep(&self, name: String, resident: Resident) {
        self.lock().insert(name, (resident, Instant::now()));
    }

    /// A place: a free one, or that of the chat idle longest. `None` when requests at work have them all.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                return Some(place);
            }
            let mut table = self.lock();
            let idlest = table.iter().min_by_key(|(_, (_, since))| *since).map(|(name, _)| name.clone())?;
            drop(table.remove(&idlest));
        }
    }

    /// Forgets chats that nobody went on with, and those that newer weights have left behind.
    pub fn sweep(&self) {
        self.lock()
            .retain(|_, (resident, since)| since.elapsed() < self.idle && !resident.talk.is_outdated());
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Resident, Instant)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
