//! The spool: one append-only file per trajectory with what is acknowledged and not yet committed.
//!
//! One thread owns the files. Requests that arrive while it waits for the disk share the next round
//! of syncs. A caller is answered only after the sync that covers its bytes.

mod entry;
mod error;
mod files;
mod finished;
mod reader;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use furrow_rollout::{Id, Trajectory};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::crash;
pub(crate) use entry::PAYLOAD_BYTES_MAX;
pub use entry::{EntryKey, SpoolEntry};
pub use error::SpoolError;
use error::storage;
use files::SpoolFiles;
pub(crate) use files::scan;
pub use files::{AppendOutcome, EntryFlaw, RecoveredTrajectory, SpoolTail};
pub use finished::read_finished;
pub use reader::SpoolReader;

/// Every fail point of this module.
pub const SPOOL_FAIL_POINTS: &[&str] = &[
    "spool.before_write",
    "spool.after_write",
    "spool.before_sync",
    "spool.after_sync",
    "spool.before_delete",
    "spool.after_delete",
];

/// Bounds of the spool.
#[derive(Debug, Clone, Copy)]
pub struct SpoolLimits {
    /// Requests that may wait for the thread.
    pub queued_max: usize,
    /// Payload bytes that may wait for the thread; at least one payload of the largest size.
    pub queued_bytes_max: usize,
    /// Files held open at once.
    pub open_files_max: usize,
}

impl Default for SpoolLimits {
    /// 1,000 sessions with one step of 200 KB each are 200 MB, which fit. 256 open files are a
    /// quarter of the usual limit of 1,024 descriptors; a file beyond them is reopened at its next
    /// step, which costs microseconds.
    fn default() -> Self {
        Self { queued_max: 1024, queued_bytes_max: 256 << 20, open_files_max: 256 }
    }
}

/// Entries that are acknowledged and not yet committed. Dropping the last clone waits for the
/// thread to end.
#[derive(Debug, Clone)]
pub struct Spool {
    owner: Arc<SpoolThread>,
    queue_permits: Arc<Semaphore>,
    queue_permits_max: u32,
    bytes: Arc<AtomicU64>,
}

impl Spool {
    /// Opens the directory, creating it where needed, and returns what is in it. A torn tail stays
    /// until [`cut`](Self::cut) or the next append; a damaged file takes no more entries.
    pub fn open(
        dir: impl Into<PathBuf>,
        limits: SpoolLimits,
    ) -> Result<(Self, Vec<RecoveredTrajectory>), SpoolError> {
        let dir = dir.into();
        let bytes = Arc::default();
        let (files, recovered) = SpoolFiles::open(&dir, limits.open_files_max, Arc::clone(&bytes))?;
        let (requests, queue) = mpsc::channel(limits.queued_max);
        let started =
            std::thread::Builder::new().name("spool".to_owned()).spawn(|| SpoolWorker { files, queue }.run());
        let thread = started.map_err(|error| storage("start the thread of", &dir, error))?;
        let queue_permits_max = permits_for(limits.queued_bytes_max.max(PAYLOAD_BYTES_MAX));
        let spool = Self {
            owner: Arc::new(SpoolThread { dir, requests: Some(requests), thread: Some(thread) }),
            queue_permits: Arc::new(Semaphore::new(queue_permits_max as usize)),
            queue_permits_max,
            bytes,
        };
        Ok((spool, recovered))
    }

    /// Records a step. Returns once it is durable.
    pub async fn append_step(
        &self,
        trajectory: &Id<Trajectory>,
        step: u32,
        digest: [u8; 32],
        payload: Bytes,
    ) -> Result<AppendOutcome, SpoolError> {
        self.append(SpoolEntry { key: EntryKey::Step(step), digest, payload }, trajectory).await
    }

    /// Records how a trajectory ended; it takes no steps afterwards.
    pub(crate) async fn append_ending(
        &self,
        trajectory: &Id<Trajectory>,
        digest: [u8; 32],
        payload: Bytes,
    ) -> Result<AppendOutcome, SpoolError> {
        self.append(SpoolEntry { key: EntryKey::End, digest, payload }, trajectory).await
    }

    /// The durable entries of a trajectory; none when it has no file. Blocks: not for async code.
    pub fn read(&self, trajectory: &Id<Trajectory>) -> Result<SpoolReader, SpoolError> {
        let extent =
            self.request(|answer| SpoolRequest::Measure { trajectory: trajectory.clone(), answer })?;
        SpoolReader::open(&self.owner.dir, trajectory, extent)
    }

    /// The newest durable step of a trajectory, if any; skips earlier ones unread. Blocks: not for
    /// async code.
    pub(crate) fn read_last_step(
        &self,
        trajectory: &Id<Trajectory>,
    ) -> Result<Option<SpoolEntry>, SpoolError> {
        self.read(trajectory)?.last_step()
    }

    /// Stops the trajectory from taking more entries, so that what is read is final. Returns its
    /// size in bytes. Blocks: not for async code.
    pub fn seal(&self, trajectory: &Id<Trajectory>) -> Result<u64, SpoolError> {
        self.request(|answer| SpoolRequest::Seal { trajectory: trajectory.clone(), answer })
    }

    /// Cuts what follows the whole entries of a trajectory's file. Blocks: not for async code.
    pub fn cut(&self, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
        self.request(|answer| SpoolRequest::Cut { trajectory: trajectory.clone(), answer })
    }

    /// The file of a trajectory.
    pub fn path(&self, trajectory: &Id<Trajectory>) -> PathBuf {
        files::path_of(&self.owner.dir, trajectory)
    }

    /// Deletes a trajectory's file; only after the manifest names its rows. Blocks: not for async
    /// code.
    ///
    /// The removal is not synced: a file that reappears after a power cut is found committed and is
    /// removed again.
    pub fn delete(&self, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
        self.request(|answer| SpoolRequest::Delete { trajectory: trajectory.clone(), answer })
    }

    /// Bytes in all files.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    async fn append(
        &self,
        entry: SpoolEntry,
        trajectory: &Id<Trajectory>,
    ) -> Result<AppendOutcome, SpoolError> {
        check(&entry, trajectory)?;
        let need = permits_for(entry.payload.len()).min(self.queue_permits_max);
        let permit = Arc::clone(&self.queue_permits)
            .acquire_many_owned(need)
            .await
            .map_err(|_| SpoolError::Stopped(None))?;
        let (answer, answered) = oneshot::channel();
        let append = AppendRequest { trajectory: trajectory.clone(), entry, answer, _permit: permit };
        self.requests()?.send(SpoolRequest::Append(append)).await.map_err(|_| SpoolError::Stopped(None))?;
        answered.await.map_err(|_| SpoolError::Stopped(None))?
    }

    fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, SpoolError>>) -> SpoolRequest,
    ) -> Result<T, SpoolError> {
        let (answer, answered) = oneshot::channel();
        self.requests()?.blocking_send(request(answer)).map_err(|_| SpoolError::Stopped(None))?;
        answered.blocking_recv().map_err(|_| SpoolError::Stopped(None))?
    }

    fn requests(&self) -> Result<&mpsc::Sender<SpoolRequest>, SpoolError> {
        self.owner.requests.as_ref().ok_or(SpoolError::Stopped(None))
    }
}

#[derive(Debug)]
struct SpoolThread {
    dir: PathBuf,
    requests: Option<mpsc::Sender<SpoolRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SpoolThread {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the spool's thread panicked");
        }
    }
}

enum SpoolRequest {
    Append(AppendRequest),
    Measure { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<u64, SpoolError>> },
    Seal { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<u64, SpoolError>> },
    Cut { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<(), SpoolError>> },
    Delete { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<(), SpoolError>> },
}

struct AppendRequest {
    trajectory: Id<Trajectory>,
    entry: SpoolEntry,
    answer: oneshot::Sender<Result<AppendOutcome, SpoolError>>,
    _permit: OwnedSemaphorePermit,
}

struct SpoolWorker {
    files: SpoolFiles,
    queue: mpsc::Receiver<SpoolRequest>,
}

impl SpoolWorker {
    fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let mut appends = Vec::new();
            let mut request = Some(first);
            while let Some(SpoolRequest::Append(append)) = request {
                appends.push(append);
                request = self.queue.try_recv().ok();
            }
            self.record(appends);
            if let Some(other) = request {
                self.perform(other);
            }
        }
    }

    /// Writes all, syncs once, then answers: nothing is acknowledged before the sync that covers
    /// it.
    fn record(&mut self, appends: Vec<AppendRequest>) {
        if appends.is_empty() {
            return;
        }
        let mut waiting = Vec::with_capacity(appends.len());
        for AppendRequest { trajectory, entry, answer, _permit } in appends {
            match self.files.append(&trajectory, &entry) {
                Ok(appended) if crash::planted("bug.ack_before_sync") => {
                    answer.send(Ok(appended)).ok();
                }
                Ok(appended) => waiting.push((answer, appended)),
                Err(error) => {
                    answer.send(Err(error)).ok();
                }
            }
        }
        let synced = self.files.sync();
        for (answer, appended) in waiting {
            // the caller may be gone; its retry will find the entry
            answer.send(synced.clone().map(|()| appended)).ok();
        }
    }

    fn perform(&mut self, request: SpoolRequest) {
        match request {
            SpoolRequest::Append(append) => self.record(vec![append]),
            SpoolRequest::Measure { trajectory, answer } => {
                answer.send(self.files.measure(&trajectory)).ok();
            }
            SpoolRequest::Seal { trajectory, answer } => {
                answer.send(self.files.seal(&trajectory)).ok();
            }
            SpoolRequest::Cut { trajectory, answer } => {
                answer.send(self.files.cut(&trajectory)).ok();
            }
            SpoolRequest::Delete { trajectory, answer } => {
                answer.send(self.files.delete(&trajectory)).ok();
            }
        }
    }
}

/// Makes sure that an entry's digest matches its payload.
fn check(entry: &SpoolEntry, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
    let trajectory = trajectory.clone();
    let key = entry.key;
    if entry.payload.len() > PAYLOAD_BYTES_MAX {
        return Err(SpoolError::TooLarge { trajectory, key, bytes: entry.payload.len() });
    }
    if <[u8; 32]>::from(Sha256::digest(&entry.payload)) != entry.digest {
        return Err(SpoolError::WrongDigest { trajectory, key });
    }
    Ok(())
}

/// Queue space is counted in kibibytes, because a semaphore counts to 2^32.
fn permits_for(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}
