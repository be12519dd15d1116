//! The identity of this process as it is now: one from outside is read again when its files change,
//! so that connections that begin later show the renewed certificate.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use furrow_identity::{Identity, PeerRole};
use rustls::{ClientConfig, ServerConfig};
use tokio::time::Instant;

use crate::tls::{client_config, server_config};

/// Files are looked at with a new connection, and no more often than this.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct CurrentIdentity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    identity: Identity,
    /// Made once for each identity.
    server: Option<Arc<ServerConfig>>,
    looked: Instant,
    /// The files that were read last, whether they could be used or not.
    files: Vec<FileVersion>,
}

/// What changes with a file, also where a link leads to another one; `None` without the file.
type FileVersion = Option<(u64, u64, i64, i64)>;

impl CurrentIdentity {
    pub(crate) fn new(identity: Identity) -> Self {
        let files = identity.outside_dir().map(versions).unwrap_or_default();
        Self(Arc::new(Mutex::new(State { identity, server: None, looked: Instant::now(), files })))
    }

    /// How a connection that begins now calls a server of a role.
    pub(crate) async fn client(&self, to: PeerRole) -> io::Result<Arc<ClientConfig>> {
        self.look().await;
        client_config(&self.state().identity, to).map(Arc::new)
    }

    /// How a connection that begins now is accepted.
    pub(crate) async fn server(&self) -> io::Result<Arc<ServerConfig>> {
        self.look().await;
        let mut state = self.state();
        if let Some(made) = &state.server {
            return Ok(made.clone());
        }
        let made = Arc::new(server_config(&state.identity)?);
        state.server = Some(made.clone());
        Ok(made)
    }

    /// Reads the files again if they changed. What cannot be used is passed over: an issuer may not
    /// have written all of them yet, and the identity that was read before may still be valid.
    async fn look(&self) {
        let Some((dir, before)) = self.due() else { return };
        let reading = tokio::task::spawn_blocking(move || {
            let now = versions(&dir);
            (now != before).then(|| (now, Identity::read_outside(&dir)))
        });
        let Ok(Some((files, read))) = reading.await else { return };
        let mut state = self.state();
        state.files = files;
        match read {
            Ok(renewed) if renewed.peer() == state.identity.peer() => {
                tracing::info!(peer = %renewed.peer(), "the certificate was renewed");
                state.identity = renewed;
                state.server = None;
            }
            Ok(other) => tracing::warn!(
                own = %state.identity.peer(), other = %other.peer(),
                "the renewed certificate names another peer and is passed over; restart this process for it"
            ),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the renewed certificate cannot be used; the one before stays"
            ),
        }
    }

    /// The folder to look into, if that is due, and its files as they were.
    fn due(&self) -> Option<(PathBuf, Vec<FileVersion>)> {
        let mut state = self.state();
        let dir = state.identity.outside_dir()?.to_owned();
        if state.looked.elapsed() < LOOK_INTERVAL {
            return None;
        }
        state.looked = Instant::now();
        Some((dir, state.files.clone()))
    }

    /// A change of the state is one assignment after another that cannot panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn versions(dir: &Path) -> Vec<FileVersion> {
    let version = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    Identity::outside_files(dir).iter().map(version).collect()
}
