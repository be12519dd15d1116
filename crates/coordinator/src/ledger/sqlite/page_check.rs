//! Checks every page of the database, beside the run where it is large.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, InterruptHandle, OpenFlags};

use super::failure::{MutationFailure, foreign};
use crate::ledger::LedgerError;

/// A database of this size is checked before anything is served: that takes 0.2 s. A larger one is
/// checked while the run goes on.
const CHECKED_FIRST_BYTES: u64 = 16 << 20;

/// A check that is running, or whose verdict was not fetched. Dropping it ends it.
pub(super) struct PageCheck {
    verdict: Receiver<Result<(), LedgerError>>,
    interrupt: InterruptHandle,
    thread: Option<JoinHandle<()>>,
}

/// Fails where a page of the file is damaged.
pub(super) fn check_pages(connection: &Connection, path: &Path) -> Result<(), MutationFailure> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(foreign(path, format!("damaged: {verdict}"))) }
}

/// Checks a small database now, and begins the check of a large one.
pub(super) fn begin(connection: &Connection, path: &Path) -> Result<Option<PageCheck>, MutationFailure> {
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
    let size: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    if pages.saturating_mul(size).cast_unsigned() <= CHECKED_FIRST_BYTES {
        return check_pages(connection, path).map(|()| None);
    }
    Ok(Some(PageCheck::start(path)?))
}

impl PageCheck {
    /// Reads through a connection of its own, which sees the database as of now and keeps no writer
    /// waiting.
    pub(super) fn start(path: &Path) -> Result<Self, MutationFailure> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let interrupt = connection.get_interrupt_handle();
        let (send, verdict) = sync_channel(1);
        let path = path.to_owned();
        let at = path.clone();
        let check = move || {
            let checked = check_pages(&connection, &path);
            // The ledger may have been closed.
            send.send(checked.map_err(|failure| failure.into_ledger_error("check", &path))).ok();
        };
        let thread = std::thread::Builder::new().name("ledger-check".to_owned()).spawn(check);
        let thread = thread.map_err(|source| {
            let path = at;
            MutationFailure::Other(LedgerError::Storage {
                operation: "check",
                path,
                source: Arc::new(source),
            })
        })?;
        Ok(Self { verdict, interrupt, thread: Some(thread) })
    }

    /// The verdict, once there is one.
    pub(super) fn poll(&self) -> Option<Result<(), LedgerError>> {
        match self.verdict.try_recv() {
            Ok(verdict) => Some(verdict),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(LedgerError::Stopped)),
        }
    }
}

impl fmt::Debug for PageCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCheck").finish_non_exhaustive()
    }
}

impl Drop for PageCheck {
    fn drop(&mut self) {
        self.interrupt.interrupt();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
