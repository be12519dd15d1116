//! Sessions between requests: a chat's state stays where it is until somebody goes on with it, and is forgotten when nobody does.
//!
//! Each session and each request at work takes one of a fixed number of places, so chats never have more of the engine than they were
//! given. A request that finds none takes that of the session idle longest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::Talk;

/// SHA-256 of a message: who said it, its words and its pictures' bytes.
pub(super) type Digest = [u8; 32];

/// A chat between two requests.
pub(super) struct Resident {
    /// Its session in the engine.
    pub talk: Talk,
    /// Its place.
    pub _place: OwnedSemaphorePermit,
    /// What was said in it.
    pub held: Vec<Digest>,
    /// The tokens its session holds, or runs with the next ones.
    pub ids: Vec<u32>,
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
    pub fn take(&self, name: &str) -> Option<Resident> {
        self.lock().remove(name).map(|(resident, _)| resident)
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
