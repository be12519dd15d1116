//! The downloads of one context: they go into the session's own folder, up to a number and a total
//! size, and are read at the end as evidence.
//!
//! The browser's events do not say which context a download belongs to, so the folder decides: the
//! browser names each file in it by the download's id, for which an event gave the name.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::browser::{
    BrowserContextId, CancelDownloadParams, EventDownloadWillBegin, SetDownloadBehaviorBehavior,
    SetDownloadBehaviorParams,
};
use chromiumoxide::listeners::EventStream;
use furrow_rollout::{DownloadReport, DownloadedFile};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::browser::RunningBrowser;
use super::link::protocol_error;
use crate::config::BrowserConfig;
use crate::environment::EnvironmentError;
use crate::secrets::WorkerSecrets;

/// Most downloads of a trajectory.
pub(super) const DOWNLOADS_MAX: usize = 16;

/// Largest file whose content is part of the evidence.
const CONTENT_BYTES_MAX: u64 = 64 << 10;

/// Most announced names that are remembered: all contexts of a browser share its events.
const NAMES_MAX: usize = 1024;

/// Most entries of the folder that are looked at: a page may start ten thousand downloads before
/// the browser denies the next.
const ENTRIES_MAX: usize = 256;

/// How often the folder is measured. A fast download exceeds its limit by what it writes meanwhile.
const MEASURE_INTERVAL: Duration = Duration::from_millis(50);

/// What the browser appends to the name of an unfinished download.
const UNFINISHED: &str = ".crdownload";

/// The open downloads of a context. Dropping it stops their supervision.
#[derive(Debug)]
pub(super) struct DownloadWatch {
    folder: PathBuf,
    bytes_max: u64,
    shared: Arc<Mutex<Announced>>,
    /// Ids of the downloads that an outcome has named.
    reported: HashSet<String>,
    is_excess_reported: bool,
    watcher: JoinHandle<()>,
}

/// What the events of the browser said, and whether a limit was exceeded.
#[derive(Debug, Default)]
struct Announced {
    /// Ids and names of downloads in any context, oldest first.
    names: VecDeque<(String, String)>,
    is_over: bool,
}

/// A browser writes a file that is not complete yet under another name.
#[derive(Debug, Default)]
struct FolderContent {
    /// Ids and sizes of complete files.
    complete: Vec<(String, u64)>,
    /// Ids of files that are being written.
    unfinished: Vec<String>,
    bytes: u64,
}

impl DownloadWatch {
    /// Lets the context download into the folder.
    pub(super) async fn start(
        running: Arc<RunningBrowser>,
        id: BrowserContextId,
        folder: PathBuf,
        bytes_max: u64,
        config: &BrowserConfig,
    ) -> Result<Self, EnvironmentError> {
        let deadline = config.deadlines.input;
        let listening = running.link.browser.event_listener::<EventDownloadWillBegin>().await;
        let begun = listening.map_err(|error| protocol_error("listening to downloads", &error))?;
        let mut allow = behaviour(SetDownloadBehaviorBehavior::AllowAndName, &id);
        allow.download_path = Some(folder.display().to_string());
        running.link.call(allow, deadline, "allowing downloads").await?;
        let shared = Arc::new(Mutex::new(Announced::default()));
        let supervisor = Supervisor {
            running,
            id,
            folder: folder.clone(),
            bytes_max,
            shared: shared.clone(),
            secrets: config.secrets.clone(),
        };
        let watcher = tokio::spawn(supervisor.watch(begun, deadline));
        Ok(Self { folder, bytes_max, shared, reported: HashSet::new(), is_excess_reported: false, watcher })
    }

    /// Waits until nothing is being downloaded, at most for this long.
    pub(super) async fn wait(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        while Instant::now() < until && !lock(&self.shared).is_over {
            if measure(&self.folder).unfinished.is_empty() {
                return;
            }
            sleep(MEASURE_INTERVAL).await;
        }
    }

    /// Names and sizes of the downloads that were completed since the last call.
    pub(super) fn take_completed(&mut self) -> Vec<(String, u64)> {
        let mut complete = measure(&self.folder).complete;
        complete.retain(|(id, _)| !self.reported.contains(id));
        complete.truncate(DOWNLOADS_MAX.saturating_sub(self.reported.len()));
        self.reported.extend(complete.iter().map(|(id, _)| id.clone()));
        let announced = lock(&self.shared);
        complete.into_iter().map(|(id, bytes)| (announced.name(&id), bytes)).collect()
    }

    /// Whether a limit was exceeded since the last call.
    pub(super) fn take_excess(&mut self) -> bool {
        let is_over = lock(&self.shared).is_over;
        is_over && !std::mem::replace(&mut self.is_excess_reported, true)
    }

    /// The completed downloads within the limits.
    pub(super) async fn report(&self) -> DownloadReport {
        let mut complete = measure(&self.folder).complete;
        let named: Vec<(PathBuf, String)> = {
            let announced = lock(&self.shared);
            complete.sort_by_key(|(id, _)| announced.position(id));
            complete.iter().map(|(id, _)| (self.folder.join(id), announced.name(id))).collect()
        };
        let bytes_max = self.bytes_max;
        let reading = tokio::task::spawn_blocking(move || read_all(named, bytes_max));
        DownloadReport { files: reading.await.unwrap_or_default() }
    }
}

impl Drop for DownloadWatch {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Remembers names and enforces the limits.
struct Supervisor {
    running: Arc<RunningBrowser>,
    id: BrowserContextId,
    folder: PathBuf,
    bytes_max: u64,
    shared: Arc<Mutex<Announced>>,
    /// A name is searched for values before it is cut.
    secrets: Arc<WorkerSecrets>,
}

impl Supervisor {
    async fn watch(self, mut begun: EventStream<EventDownloadWillBegin>, deadline: Duration) {
        let mut ticks = interval(MEASURE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = begun.next() => {
                    let Some(event) = event else { return };
                    let name = self.secrets.scrubber().text(&event.suggested_filename);
                    lock(&self.shared).add(&event.guid, &name);
                }
                _ = ticks.tick() => self.enforce(deadline).await,
            }
        }
    }

    async fn enforce(&self, deadline: Duration) {
        let content = measure(&self.folder);
        let files = content.complete.len() + content.unfinished.len();
        if content.bytes <= self.bytes_max && files <= DOWNLOADS_MAX && !lock(&self.shared).is_over {
            return;
        }
        if !std::mem::replace(&mut lock(&self.shared).is_over, true) {
            let deny = behaviour(SetDownloadBehaviorBehavior::Deny, &self.id);
            self.running.link.call(deny, deadline, "denying downloads").await.ok();
        }
        // One that is finished or gone by now cannot be cancelled, which changes nothing.
        for guid in content.unfinished {
            let mut cancel = CancelDownloadParams::new(guid);
            cancel.browser_context_id = Some(self.id.clone());
            self.running.link.call(cancel, deadline, "cancelling a download").await.ok();
        }
    }
}

impl Announced {
    fn add(&mut self, id: &str, name: &str) {
        if self.names.len() == NAMES_MAX {
            self.names.pop_front();
        }
        self.names.push_back((id.to_owned(), DownloadedFile::clean_name(name)));
    }

    fn position(&self, id: &str) -> usize {
        self.names.iter().position(|(known, _)| known == id).unwrap_or(usize::MAX)
    }

    fn name(&self, id: &str) -> String {
        let known = self.names.get(self.position(id));
        known.map_or_else(|| DownloadedFile::clean_name(""), |(_, name)| name.clone())
    }
}

/// The setting of a context. The events of all contexts are on or off together, so each setting
/// names them.
pub(super) fn behaviour(
    behaviour: SetDownloadBehaviorBehavior,
    id: &BrowserContextId,
) -> SetDownloadBehaviorParams {
    let mut setting = SetDownloadBehaviorParams::new(behaviour);
    setting.browser_context_id = Some(id.clone());
    setting.events_enabled = Some(true);
    setting
}

fn lock(shared: &Mutex<Announced>) -> MutexGuard<'_, Announced> {
    // Additions cannot leave an inconsistent state.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn measure(folder: &Path) -> FolderContent {
    let mut content = FolderContent::default();
    let Ok(entries) = fs::read_dir(folder) else { return content };
    let mut unfinished = HashSet::new();
    for entry in entries.flatten().take(ENTRIES_MAX) {
        let Ok(found) = entry.metadata() else { continue };
        content.bytes += found.len();
        let Ok(name) = entry.file_name().into_string() else { continue };
        match name.strip_suffix(UNFINISHED) {
            Some(id) => {
                unfinished.insert(id.to_owned());
            }
            // The browser begins some files under a hidden name.
            None if name.starts_with('.') || !found.is_file() => {}
            None => content.complete.push((name, found.len())),
        }
    }
    content.complete.retain(|(id, _)| !unfinished.contains(id));
    content.unfinished = unfinished.into_iter().collect();
    content
}

/// Reads the files in their order, as far as they stay within the limits.
fn read_all(files: Vec<(PathBuf, String)>, bytes_max: u64) -> Vec<DownloadedFile> {
    let mut left = bytes_max;
    let mut all = Vec::new();
    for (path, name) in files.into_iter().take(DOWNLOADS_MAX) {
        // A file that is gone, or larger than what is left, is no evidence; a later one may be.
        let Ok(file) = read(&path, name, left) else { continue };
        left -= file.bytes;
        all.push(file);
    }
    all
}

/// The browser's user owns the folder: a link in it must not lead this process anywhere.
fn read(path: &Path, name: String, bytes_max: u64) -> io::Result<DownloadedFile> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let bytes = file.metadata()?.len();
    if !file.metadata()?.is_file() || bytes > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut file = file.take(bytes);
    let mut hash = Sha256::new();
    let mut content = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = file.read(&mut buffer)?;
        let part = &buffer[..count];
        hash.update(part);
        if bytes <= CONTENT_BYTES_MAX {
            content.extend_from_slice(part);
        }
        if count == 0 {
            break;
        }
    }
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let content = (bytes <= CONTENT_BYTES_MAX).then(|| Bytes::from(content));
    Ok(DownloadedFile { name, bytes, sha256, content })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_read_within_the_limits_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a"), "small").unwrap();
        fs::write(path("b"), vec![7; (64 << 10) + 1]).unwrap();
        fs::write(path("c"), vec![7; 100_000]).unwrap();
        fs::write(path("d"), "").unwrap();
        symlink("/etc/passwd", path("e")).unwrap();
        let named = ["a", "b", "c", "d", "e", "gone"].map(|name| (path(name), format!("{name}.bin")));
        let files = read_all(named.to_vec(), 100_000);
        let names: Vec<(&str, u64, bool)> =
            files.iter().map(|file| (file.name.as_str(), file.bytes, file.content.is_some())).collect();
        // c exceeds what a and b left.
        assert_eq!(names, [("a.bin", 5, true), ("b.bin", 65_537, false), ("d.bin", 0, true)]);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(files[2].sha256, empty);
    }

    #[test]
    fn unfinished_and_hidden_files_are_measured_and_no_downloads() {
        let folder = tempfile::tempdir().unwrap();
        for (name, size) in [("one", 10), ("two.crdownload", 20), ("two", 0), (".org.chromium.x", 5)] {
            fs::write(folder.path().join(name), vec![0; size]).unwrap();
        }
        let FolderContent { complete, unfinished, bytes } = measure(folder.path());
        assert_eq!(complete, [("one".to_owned(), 10)]);
        assert_eq!(unfinished, ["two"]);
        assert_eq!(bytes, 35);
        assert!(measure(Path::new("/nowhere")).complete.is_empty());
    }
}
