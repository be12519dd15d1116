//! The manifest: numbered commits, each created once, that define which files are the data set.
//!
//! A commit's number is its position in the order; there are no gaps and nothing is rewritten. A
//! reader that starts at 1 and stops at the first missing number sees every row once and whole. One
//! that wants the newest data set starts at a checkpoint.

mod checkpoint;
mod commit;
mod snapshot;
mod store;
mod stored;

use std::path::Path as FilePath;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

use crate::durable::{create_durable_dir, remove};
use crate::{InvalidCommit, RecordsError};
use checkpoint::CHECKPOINT_EVERY;
use commit::check_length;
use store::{COMMITS, create, path_of, store_error, version_of};

pub use commit::{Commit, CommitDraft, Op, Txn};
pub(crate) use snapshot::FileAge;
pub use snapshot::{ManifestSnapshot, RemovedFile};
pub use stored::StoredCommits;

/// A commit that loses more races than this indicates an error.
const RACES_MAX: u32 = 1_000;

/// Result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It was committed now, under this number.
    Now(u64),
    /// It was already committed under this number: an earlier try succeeded without its answer.
    Earlier(u64),
}

/// A manifest in a store, and what has been read of it so far.
pub struct Manifest {
    store: Arc<dyn ObjectStore>,
    snapshot: ManifestSnapshot,
    /// Number of the newest commit with a checkpoint, as far as this manifest knows.
    checkpoint: u64,
}

impl CommitOutcome {
    /// The number of the commit in the manifest, whichever try made it.
    pub fn version(self) -> u64 {
        match self {
            CommitOutcome::Now(version) | CommitOutcome::Earlier(version) => version,
        }
    }
}

impl Manifest {
    /// The store of a data set on a local disk, with every write synced; creates the folder.
    pub fn local_store(data_dir: &FilePath) -> Result<Arc<dyn ObjectStore>, RecordsError> {
        create_durable_dir(&data_dir.join(COMMITS))?;
        let store = LocalFileSystem::new_with_prefix(data_dir);
        let store = store.map_err(store_error("open", &data_dir.display()))?;
        Ok(Arc::new(store.with_fsync(true)))
    }

    /// Removes the temporary files of commits that were killed during the write
    /// (`<commit>.json#1`). Only before a coordinator serves.
    pub fn clear_staged(data_dir: &FilePath) -> Result<(), RecordsError> {
        let dir = data_dir.join(COMMITS);
        for entry in std::fs::read_dir(&dir).map_err(RecordsError::io("list", &dir))? {
            let path = entry.map_err(RecordsError::io("list", &dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.split_once('#').is_some_and(|(name, _)| version_of(name).is_some()) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Reads the manifest from its newest checkpoint on. Fails on a gap there, or on a malformed or
    /// inconsistent commit.
    pub async fn open(store: Arc<dyn ObjectStore>) -> Result<Self, RecordsError> {
        let stored = StoredCommits::read_newest(&store, None).await?;
        Self::of(store, stored)
    }

    /// The manifest of these stored commits. Fails on a gap, or on a malformed or inconsistent
    /// commit.
    pub fn of(store: Arc<dyn ObjectStore>, stored: StoredCommits) -> Result<Self, RecordsError> {
        let checkpoint = stored.checkpoint();
        Ok(Self::at(store, stored.into_snapshot()?, checkpoint))
    }

    /// The manifest in a store whose commits were read already, from this checkpoint on.
    pub fn at(store: Arc<dyn ObjectStore>, snapshot: ManifestSnapshot, checkpoint: u64) -> Self {
        Self { store, snapshot, checkpoint }
    }

    /// Writes a checkpoint where many commits were added since the last one. Returns whether it
    /// did. Only for the process that writes commits.
    pub async fn write_checkpoint_if_due(&mut self) -> Result<bool, RecordsError> {
        if self.snapshot.version() < self.checkpoint + CHECKPOINT_EVERY {
            return Ok(false);
        }
        // A failure is not repeated at every commit.
        self.checkpoint = self.snapshot.version();
        checkpoint::write(&*self.store, &self.snapshot).await?;
        Ok(true)
    }

    /// Forgets removed files that are on the disk no more, so that the list of them stays short.
    pub fn forget(&mut self, paths: &[String]) {
        self.snapshot.forget(paths);
    }

    /// Restores a commit under its former number, which must be free.
    pub async fn restore(&self, commit: &Commit) -> Result<(), RecordsError> {
        let refuse = |what| RecordsError::Manifest { version: commit.version, what };
        commit.check().map_err(refuse)?;
        if self.put(commit).await? { Ok(()) } else { Err(refuse(InvalidCommit::Exists)) }
    }

    /// The data set as last read.
    pub fn snapshot(&self) -> &ManifestSnapshot {
        &self.snapshot
    }

    /// Reads the commits that were added since.
    pub async fn refresh(&mut self) -> Result<&ManifestSnapshot, RecordsError> {
        self.refresh_each(drop).await?;
        Ok(&self.snapshot)
    }

    /// Reads the commits that were added since, and passes on each once it was applied.
    pub async fn refresh_each(&mut self, mut each: impl FnMut(Commit)) -> Result<(), RecordsError> {
        while let Some(commit) = stored::commit(&*self.store, self.snapshot.version() + 1).await? {
            self.snapshot.apply(&commit)?;
            each(commit);
        }
        Ok(())
    }

    /// Commits a draft exactly once, however often it is tried: the shard's id is the key.
    pub async fn commit(&mut self, draft: &CommitDraft) -> Result<CommitOutcome, RecordsError> {
        for _ in 0..RACES_MAX {
            if let Some(version) = self.find_earlier(draft)? {
                return Ok(CommitOutcome::Earlier(version));
            }
            let commit = draft.numbered(self.snapshot.version() + 1);
            self.check(&commit)?;
            if self.put(&commit).await? {
                self.snapshot.apply(&commit)?;
                return Ok(CommitOutcome::Now(commit.version));
            }
            self.refresh().await?;
        }
        let what = InvalidCommit::LostRaces { shard_id: draft.shard_id.to_string(), races: RACES_MAX };
        Err(RecordsError::Manifest { version: self.snapshot.version(), what })
    }

    fn find_earlier(&self, draft: &CommitDraft) -> Result<Option<u64>, RecordsError> {
        let Some((version, files)) = self.snapshot.committed(&draft.shard_id) else { return Ok(None) };
        if *files != *draft.files {
            let what = InvalidCommit::OtherFiles { shard_id: draft.shard_id.to_string() };
            return Err(RecordsError::Manifest { version, what });
        }
        Ok(Some(version))
    }

    fn check(&self, commit: &Commit) -> Result<(), RecordsError> {
        let refuse = |what| RecordsError::Manifest { version: commit.version, what };
        commit.check().and_then(|()| self.snapshot.check(commit)).map_err(refuse)
    }

    /// Whether the commit was stored; `false` if its number was taken.
    async fn put(&self, commit: &Commit) -> Result<bool, RecordsError> {
        let mut text = serde_json::to_vec_pretty(commit).expect("a commit contains only plain values");
        text.push(b'\n');
        let length = check_length(text.len() as u64);
        length.map_err(|what| RecordsError::Manifest { version: commit.version, what })?;
        create(&*self.store, &path_of(COMMITS, commit.version), text).await
    }
}
