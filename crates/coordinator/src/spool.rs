//! The spool: one append-only file a trajectory, holding what is acknowledged and not yet published.
//!
//! One thread owns the files. Whatever arrives while it waits for the disk shares the next round of syncs; a caller is answered
//! after the sync that covers its bytes, never before.

mod entry;
mod files;
mod finished;
mod reader;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use furrow_rollout::{Id, Trajectory};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::crash;
use crate::durable::DurableError;
pub use entry::{Entry, Key, PAYLOAD_BYTES_MAX};
use files::SpoolFiles;
pub use files::{Appended, Flaw, RecoveredTrajectory, Tail};
pub use finished::finished;
pub use reader::SpoolReader;

/// Every place of this module where a test can kill the process.
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
    /// Payload bytes that may wait for it; at least one payload of the largest size.
    pub queued_bytes_max: usize,
    /// Files held open at once.
    pub open_files_max: usize,
}

impl Default for SpoolLimits {
    /// 1,000 sessions with one step of 200 KB each are 200 MB: they fit once over. 256 open files are a quarter of the usual
    /// limit of 1,024 descriptors; a file beyond them is opened again at its next step, which costs microseconds.
    fn default() -> Self {
        Self { queued_max: 1024, queued_bytes_max: 256 << 20, open_files_max: 256 }
    }
}

/// What is acknowledged and not yet published. The last clone that goes waits for the thread to end.
#[derive(Debug, Clone)]
pub struct Spool {
    owner: Arc<Owner>,
    room: Arc<Semaphore>,
    room_max: u32,
    bytes: Arc<AtomicU64>,
}

/// Why the spool did not do as told.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SpoolError {
    /// Something else is recorded under this key.
    #[error(
        "{trajectory}: {key} is recorded with another digest; send the same bytes again, or a later step"
    )]
    Conflict {
        /// Whose.
        trajectory: Id<Trajectory>,
        /// Which entry.
        key: Key,
    },
    /// A step came too early.
    #[error("{trajectory}: step {got} came before step {expected}")]
    Gap {
        /// Whose.
        trajectory: Id<Trajectory>,
        /// The step that must come next.
        expected: u32,
        /// The step that came.
        got: u32,
    },
    /// The trajectory takes no more entries: it has its ending, or it is on its way to a shard.
    #[error("{trajectory} is over and takes no more entries")]
    Over {
        /// Which.
        trajectory: Id<Trajectory>,
    },
    /// The payload is too large.
    #[error("{trajectory}: {key} has {bytes} bytes, at most {PAYLOAD_BYTES_MAX} are taken")]
    TooLarge {
        /// Whose.
        trajectory: Id<Trajectory>,
        /// Which entry.
        key: Key,
        /// Its size.
        bytes: usize,
    },
    /// The digest is not that of the payload.
    #[error("{trajectory}: the digest of {key} is not that of its bytes; they were damaged on the way")]
    WrongDigest {
        /// Whose.
        trajectory: Id<Trajectory>,
        /// Which entry.
        key: Key,
    },
    /// There is no room: nothing was kept, the same append may be tried again.
    #[error("no space left for the spool: free some; nothing was acknowledged")]
    DiskFull(#[source] DurableError),
    /// The storage failed while opening, reading or deleting.
    #[error("the spool failed")]
    Storage(#[source] DurableError),
    /// A recorded entry cannot be read back.
    #[error("{path}, byte {offset}: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the entry begins.
        offset: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A write or a sync failed: what is durable is unknown until the next start, so nothing more is acknowledged.
    #[error("the spool stopped: start again with --resume once the disk is well")]
    Stopped(#[source] Option<DurableError>),
}

impl SpoolError {
    /// Whether it is about one file: its content is not what was written, the disk cannot read it back, it is gone, or in its place
    /// is a symbolic link, a named pipe or a folder. A file with a second name, such as a backup by hard links makes, is whole.
    pub fn is_damage(&self) -> bool {
        match self {
            SpoolError::Damaged { .. } => true,
            SpoolError::Storage(error) => {
                // Without the folder nothing is there, which is no damage of one file.
                let is_gone = || error.path.parent().is_some_and(Path::is_dir);
                match error.source.kind() {
                    io::ErrorKind::InvalidInput => true,
                    io::ErrorKind::NotFound => is_gone(),
                    _ => files::is_unreadable(&error.source),
                }
            }
            _ => false,
        }
    }
}

impl Spool {
    /// Opens the directory, making it when there is none, and says what is there. A torn tail stays until [`cut`](Self::cut) or the next
    /// append; a file that is damaged takes no more.
    pub fn open(
        dir: impl Into<PathBuf>,
        limits: SpoolLimits,
    ) -> Result<(Self, Vec<RecoveredTrajectory>), SpoolError> {
        let dir = dir.into();
        let bytes = Arc::default();
        let (files, recovered) = SpoolFiles::open(&dir, limits.open_files_max, Arc::clone(&bytes))?;
        let (requests, queue) = mpsc::channel(limits.queued_max);
        let started =
            std::thread::Builder::new().name("spool".to_owned()).spawn(|| Worker { files, queue }.run());
        let thread = started.map_err(|error| storage("start the thread of", &dir, error))?;
        let room_max = units(limits.queued_bytes_max.max(PAYLOAD_BYTES_MAX));
        let spool = Self {
            owner: Arc::new(Owner { dir, requests: Some(requests), thread: Some(thread) }),
            room: Arc::new(Semaphore::new(room_max as usize)),
            room_max,
            bytes,
        };
        Ok((spool, recovered))
    }

    /// Records a step. Answers once it is durable, or was already.
    pub async fn append_step(
        &self,
        trajectory: &Id<Trajectory>,
        step: u32,
        digest: [u8; 32],
        payload: Bytes,
    ) -> Result<Appended, SpoolError> {
        self.append(Entry { key: Key::Step(step), digest, payload }, trajectory).await
    }

    /// Records how a trajectory ended; it takes no steps afterwards.
    pub async fn append_ending(
        &self,
        trajectory: &Id<Trajectory>,
        digest: [u8; 32],
        payload: Bytes,
    ) -> Result<Appended, SpoolError> {
        self.append(Entry { key: Key::End, digest, payload }, trajectory).await
    }

    /// The durable entries of a trajectory, none when it has no file. Blocks: not for async code.
    pub fn read(&self, trajectory: &Id<Trajectory>) -> Result<SpoolReader, SpoolError> {
        let extent = self.ask(|answer| Request::Measure { trajectory: trajectory.clone(), answer })?;
        SpoolReader::open(&self.owner.dir, trajectory, extent)
    }

    /// How a trajectory ended, if it did; its steps are passed over unread. Blocks: not for async code.
    pub fn read_ending(&self, trajectory: &Id<Trajectory>) -> Result<Option<Entry>, SpoolError> {
        self.read(trajectory)?.ending()
    }

    /// The newest durable step of a trajectory, if it has one; those before it are passed over unread. Blocks: not for async code.
    pub fn read_last_step(&self, trajectory: &Id<Trajectory>) -> Result<Option<Entry>, SpoolError> {
        self.read(trajectory)?.last_step()
    }

    /// From now on the trajectory takes no more entries: what is read is what there will ever be. Says how many bytes that is.
    /// Blocks: not for async code.
    pub fn seal(&self, trajectory: &Id<Trajectory>) -> Result<u64, SpoolError> {
        self.ask(|answer| Request::Seal { trajectory: trajectory.clone(), answer })
    }

    /// Cuts what follows the whole entries of a trajectory's file. Blocks: not for async code.
    pub fn cut(&self, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
        self.ask(|answer| Request::Cut { trajectory: trajectory.clone(), answer })
    }

    /// The file of a trajectory.
    pub fn path(&self, trajectory: &Id<Trajectory>) -> PathBuf {
        files::path_of(&self.owner.dir, trajectory)
    }

    /// Throws a trajectory's file away; only after the manifest names its rows. Blocks: not for async code.
    ///
    /// The removal is not synced: a file that comes back after a power cut is found published and removed again.
    pub fn delete(&self, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
        self.ask(|answer| Request::Delete { trajectory: trajectory.clone(), answer })
    }

    /// Bytes in all files.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    async fn append(&self, entry: Entry, trajectory: &Id<Trajectory>) -> Result<Appended, SpoolError> {
        check(&entry, trajectory)?;
        let need = units(entry.payload.len()).min(self.room_max);
        let room =
            Arc::clone(&self.room).acquire_many_owned(need).await.map_err(|_| SpoolError::Stopped(None))?;
        let (answer, answered) = oneshot::channel();
        let append = Append { trajectory: trajectory.clone(), entry, answer, _room: room };
        self.requests()?.send(Request::Append(append)).await.map_err(|_| SpoolError::Stopped(None))?;
        answered.await.map_err(|_| SpoolError::Stopped(None))?
    }

    fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, SpoolError>>) -> Request,
    ) -> Result<T, SpoolError> {
        let (answer, answered) = oneshot::channel();
        self.requests()?.blocking_send(request(answer)).map_err(|_| SpoolError::Stopped(None))?;
        answered.blocking_recv().map_err(|_| SpoolError::Stopped(None))?
    }

    fn requests(&self) -> Result<&mpsc::Sender<Request>, SpoolError> {
        self.owner.requests.as_ref().ok_or(SpoolError::Stopped(None))
    }
}

#[derive(Debug)]
struct Owner {
    dir: PathBuf,
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the spool's thread panicked");
        }
    }
}

enum Request {
    Append(Append),
    Measure { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<u64, SpoolError>> },
    Seal { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<u64, SpoolError>> },
    Cut { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<(), SpoolError>> },
    Delete { trajectory: Id<Trajectory>, answer: oneshot::Sender<Result<(), SpoolError>> },
}

struct Append {
    trajectory: Id<Trajectory>,
    entry: Entry,
    answer: oneshot::Sender<Result<Appended, SpoolError>>,
    _room: OwnedSemaphorePermit,
}

struct Worker {
    files: SpoolFiles,
    queue: mpsc::Receiver<Request>,
}

impl Worker {
    fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let mut appends = Vec::new();
            let mut request = Some(first);
            while let Some(Request::Append(append)) = request {
                appends.push(append);
                request = self.queue.try_recv().ok();
            }
            self.record(appends);
            if let Some(other) = request {
                self.perform(other);
            }
        }
    }

    /// Writes all, syncs once, then answers: nothing is acknowledged before the sync that covers it.
    fn record(&mut self, appends: Vec<Append>) {
        if appends.is_empty() {
            return;
        }
        let mut waiting = Vec::with_capacity(appends.len());
        for Append { trajectory, entry, answer, _room } in appends {
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
            // whoever asked may have gone; its retry will find the entry
            answer.send(synced.clone().map(|()| appended)).ok();
        }
    }

    fn perform(&mut self, request: Request) {
        match request {
            Request::Append(append) => self.record(vec![append]),
            Request::Measure { trajectory, answer } => {
                answer.send(self.files.measure(&trajectory)).ok();
            }
            Request::Seal { trajectory, answer } => {
                answer.send(self.files.seal(&trajectory)).ok();
            }
            Request::Cut { trajectory, answer } => {
                answer.send(self.files.cut(&trajectory)).ok();
            }
            Request::Delete { trajectory, answer } => {
                answer.send(self.files.delete(&trajectory)).ok();
            }
        }
    }
}

/// The door: behind it an entry's digest is its payload's.
fn check(entry: &Entry, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
    let (trajectory, key) = (trajectory.clone(), entry.key);
    if entry.payload.len() > PAYLOAD_BYTES_MAX {
        return Err(SpoolError::TooLarge { trajectory, key, bytes: entry.payload.len() });
    }
    if <[u8; 32]>::from(Sha256::digest(&entry.payload)) != entry.digest {
        return Err(SpoolError::WrongDigest { trajectory, key });
    }
    Ok(())
}

/// Room is counted in kibibytes, because a semaphore counts to 2^32.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

fn storage(operation: &'static str, path: &Path, error: io::Error) -> SpoolError {
    SpoolError::Storage(DurableError::on(operation, path)(error))
}
