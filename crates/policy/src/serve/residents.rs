//! Sessions between requests: a chat's state stays in the engine until a request continues it, and
//! is dropped when none does for some time.
//!
//! Each kept session and each running request takes one of a fixed number of permits, so chats
//! never use more of the engine than their share. A request without a free permit replaces the
//! session that has been idle longest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::ChatSession;

pub(super) type Sha256Digest = [u8; 32];

/// Hashes of a message as it was sent: one of its role, texts and image bytes, and one of its token
/// ids if the request has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MessageDigest {
    pub text_digest: Sha256Digest,
    /// Hash of the ids without the stop id at their end.
    pub ids: Option<Sha256Digest>,
}

/// A message that a session holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionMessage {
    pub message: MessageDigest,
    /// Whether the session sampled it. Then its text alone identifies it.
    pub is_sampled: bool,
}

impl SessionMessage {
    /// Whether a message equals this one. Text never replaces ids that a client sent, and ids must
    /// equal the ones held.
    pub(super) fn matches(&self, digest: &MessageDigest) -> bool {
        let own = self.message.ids;
        let sent = digest.ids;
        self.message.text_digest == digest.text_digest && (own == sent || (self.is_sampled && sent.is_none()))
    }
}

/// A chat between two requests.
pub(super) struct ResidentChat {
    /// Its session in the engine.
    pub chat: ChatSession,
    pub _permit: OwnedSemaphorePermit,
    /// Hash of the functions that its instructions describe.
    pub instructions: Sha256Digest,
    pub messages: Vec<SessionMessage>,
    /// The tokens that its session holds, or will run with the next ones.
    pub ids: Vec<u32>,
}

impl ResidentChat {
    /// Whether the messages of a request begin with those of this chat.
    pub(super) fn is_prefix_of(&self, messages: &[MessageDigest]) -> bool {
        self.messages.len() <= messages.len()
            && self.messages.iter().zip(messages).all(|(own, digest)| own.matches(digest))
    }
}

/// A chat that a request has taken out of the table. Dropping this puts it back.
pub(super) struct TakenChat<'a> {
    residents: &'a ResidentChats,
    name: String,
    resident: Option<ResidentChat>,
}

impl TakenChat<'_> {
    /// The chat, if there is one.
    pub(super) fn resident(&self) -> Option<&ResidentChat> {
        self.resident.as_ref()
    }

    /// Takes the chat without putting it back.
    pub(super) fn keep(mut self) -> Option<ResidentChat> {
        self.resident.take()
    }
}

impl Drop for TakenChat<'_> {
    fn drop(&mut self) {
        if let Some(resident) = self.resident.take() {
            self.residents.keep(std::mem::take(&mut self.name), resident);
        }
    }
}

pub(super) struct ResidentChats {
    table: Mutex<HashMap<String, (ResidentChat, Instant)>>,
    permits: Arc<Semaphore>,
    idle: Duration,
}

impl ResidentChats {
    pub(super) fn new(permits: u32, idle: Duration) -> Self {
        Self { table: Mutex::default(), permits: Arc::new(Semaphore::new(permits as usize)), idle }
    }

    /// Takes a chat out of the table. A concurrent request for it finds none and starts from the
    /// beginning.
    pub(super) fn take(&self, name: &str) -> TakenChat<'_> {
        let resident = self.lock().remove(name).map(|(resident, _)| resident);
        TakenChat { residents: self, name: name.to_owned(), resident }
    }

    /// Keeps a chat, and drops one with the same name that was kept meanwhile.
    pub(super) fn keep(&self, name: String, resident: ResidentChat) {
        self.lock().insert(name, (resident, Instant::now()));
    }

    /// A permit: a free one, or that of the chat idle longest. `None` if running requests have all
    /// of them.
    pub(super) fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(permit);
            }
            let mut table = self.lock();
            let idlest = table.iter().min_by_key(|(_, (_, since))| *since).map(|(name, _)| name.clone())?;
            drop(table.remove(&idlest));
        }
    }

    /// Drops chats that were idle too long, and those whose state older weights wrote.
    pub(super) fn sweep(&self) {
        self.lock()
            .retain(|_, (resident, since)| since.elapsed() < self.idle && !resident.chat.is_outdated());
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (ResidentChat, Instant)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
