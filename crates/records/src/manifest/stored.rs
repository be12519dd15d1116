//! Reads commits from a store.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path as FilePath;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

use super::checkpoint;
use super::commit::{COMMIT_BYTES_MAX, Commit};
use super::snapshot::ManifestSnapshot;
use super::store::{COMMITS, path_of, store_error, text, versions};
use crate::{InvalidCommit, RecordsError};

/// Commits read concurrently when a data set is opened.
const READ_AHEAD: usize = 16;

/// Commits in a store by their numbers; `Err` says why one cannot be read.
#[derive(Debug, Default)]
pub struct StoredCommits {
    /// The data set that the first of them belongs to, or that they follow; empty where they begin
    /// at 1.
    base: ManifestSnapshot,
    commits: BTreeMap<u64, Result<Commit, InvalidCommit>>,
}

impl StoredCommits {
    /// Reads all commits, and no checkpoint. Fails only when the store fails.
    pub async fn read(store: &Arc<dyn ObjectStore>) -> Result<Self, RecordsError> {
        let versions = versions(&**store, COMMITS).await?;
        let mut read = stream::iter(versions).map(|version| read(store, version)).buffered(READ_AHEAD);
        let mut commits = BTreeMap::new();
        while let Some((version, commit)) = read.try_next().await? {
            commits.extend(commit.map(|commit| (version, commit)));
        }
        Ok(Self { base: ManifestSnapshot::default(), commits })
    }

    /// Reads the newest checkpoint of `known` commits at most, and the commits from its own on; all
    /// commits where there is no such checkpoint. Looks at least as far as commit `known`.
    pub async fn read_newest(store: &Arc<dyn ObjectStore>, known: Option<u64>) -> Result<Self, RecordsError> {
        let base = checkpoint::newest(&**store, known.unwrap_or(u64::MAX)).await?;
        let Some(base) = base else { return Self::read(store).await };
        let mut commits = BTreeMap::new();
        let mut next = base.version();
        loop {
            let ahead = next..next + READ_AHEAD as u64;
            next = ahead.end;
            let before = commits.len();
            let mut read = stream::iter(ahead).map(|version| read(store, version)).buffered(READ_AHEAD);
            while let Some((version, commit)) = read.try_next().await? {
                commits.extend(commit.map(|commit| (version, commit)));
            }
            if commits.len() == before && next > known.unwrap_or(0) {
                break;
            }
        }
        let newest = commits.keys().next_back().copied().unwrap_or(0);
        // A commit may have come after its turn, and another one before the turn of that.
        for version in base.version()..newest {
            if let Entry::Vacant(gap) = commits.entry(version)
                && let (_, Some(commit)) = read(store, version).await?
            {
                gap.insert(commit);
            }
        }
        Ok(Self { base, commits })
    }

    /// Reads all commits of a data set on a local disk and creates nothing: without the folder
    /// there are none.
    pub async fn read_local(data_dir: &FilePath) -> Result<Self, RecordsError> {
        if !data_dir.join("manifest").is_dir() {
            return Ok(Self::default());
        }
        let store = LocalFileSystem::new_with_prefix(data_dir);
        let store: Arc<dyn ObjectStore> = Arc::new(store.map_err(store_error("open", &data_dir.display()))?);
        Self::read(&store).await
    }

    /// The data set after all commits. Fails on a gap, or on a malformed or inconsistent commit.
    pub fn into_snapshot(self) -> Result<ManifestSnapshot, RecordsError> {
        let newest = self.newest();
        let mut snapshot = self.base;
        let base = snapshot.version();
        for (version, commit) in self.commits.into_iter().filter(|(version, _)| *version > base) {
            let next = snapshot.version() + 1;
            if version != next {
                let what = InvalidCommit::Missing { newest };
                return Err(RecordsError::Manifest { version: next, what });
            }
            snapshot.apply(&commit.map_err(|what| RecordsError::Manifest { version, what })?)?;
        }
        Ok(snapshot)
    }

    /// Number of the first commit that was looked for.
    pub fn first(&self) -> u64 {
        self.checkpoint().max(1)
    }

    /// Number of the commit whose checkpoint stands for those before it; 0 without one.
    pub fn checkpoint(&self) -> u64 {
        self.base.version()
    }

    /// Whether it is known of every file of the checkpoint which commits added its rows. One of an
    /// earlier release does not say so.
    pub fn knows_ages(&self) -> bool {
        self.base.knows_ages()
    }

    /// Whether a commit named a file, as far as the file still belongs to the data set.
    pub fn name(&self, path: &str) -> bool {
        let commits = self.commits.values().filter_map(|commit| commit.as_ref().ok());
        self.base.holds(path) || commits.flat_map(|commit| &commit.files).any(|file| file.path == path)
    }

    /// The highest number; 0 without a commit.
    pub fn newest(&self) -> u64 {
        self.commits.keys().next_back().copied().unwrap_or(0)
    }

    /// The commit of this number, if it exists, or why it cannot be read.
    pub fn get(&self, version: u64) -> Option<&Result<Commit, InvalidCommit>> {
        self.commits.get(&version)
    }

    /// All commits in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Result<Commit, InvalidCommit>)> {
        self.commits.iter().map(|(version, commit)| (*version, commit))
    }

    /// The same without these commits.
    pub fn without(mut self, versions: &[u64]) -> Self {
        self.commits.retain(|version, _| !versions.contains(version));
        self
    }

    /// Adds a restored commit.
    pub fn insert(&mut self, commit: Commit) {
        self.commits.insert(commit.version, Ok(commit));
    }

    /// Path of a commit below the data set's folder.
    pub fn file_name(version: u64) -> String {
        path_of(COMMITS, version).to_string()
    }
}

async fn read(
    store: &Arc<dyn ObjectStore>,
    version: u64,
) -> Result<(u64, Option<Result<Commit, InvalidCommit>>), RecordsError> {
    Ok((version, stored(&**store, version).await?))
}

/// The commit of a number; `None` where it does not exist.
pub(super) async fn commit(store: &dyn ObjectStore, version: u64) -> Result<Option<Commit>, RecordsError> {
    let commit = stored(store, version).await?.transpose();
    commit.map_err(|what| RecordsError::Manifest { version, what })
}

/// A commit in the store, or why it cannot be read; `None` where it does not exist.
async fn stored(
    store: &dyn ObjectStore,
    version: u64,
) -> Result<Option<Result<Commit, InvalidCommit>>, RecordsError> {
    let text = text(store, &path_of(COMMITS, version), COMMIT_BYTES_MAX).await?;
    Ok(text.map(|text| Commit::parse(version, &text?)))
}
