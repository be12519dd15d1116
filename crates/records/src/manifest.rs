//! The manifest: numbered commits, each created once, that define which files are the data set.
//!
//! A commit's number is its position in the order; there are no gaps and nothing is rewritten. A
//! reader that starts at 1 and stops at the first missing number sees every row once and whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as FilePath;
use std::sync::Arc;

use furrow_rollout::{Id, Run, SCHEMA_VERSION, Shard};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use serde::{Deserialize, Serialize};

use crate::durable::{create_durable_dir, remove};
use crate::schema_version::SchemaVersion;
use crate::{InvalidCommit, RecordsError, Table, WrittenFile};

/// Most bytes of a commit: 10,000 files of 200 bytes are 2 MB.
const COMMIT_BYTES_MAX: u64 = 4 << 20;
/// Most files a commit may name, added and removed together.
const COMMIT_FILES_MAX: usize = 10_000;
/// Commits read concurrently when a data set is opened.
const READ_AHEAD: usize = 16;
/// A commit that loses more races than this indicates an error.
const RACES_MAX: u32 = 1_000;

/// The operation of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Adds files to the data set.
    Append,
    /// Replaces files by others that hold the same rows.
    Replace,
    /// Removes files for good.
    Expire,
}

/// Identifies the writer of a commit, so that no shard is committed twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Txn {
    /// The start of the coordinator that made it.
    pub epoch: u64,
    /// Id of the shard.
    pub shard_id: String,
}

/// A commit as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Its number, from 1.
    pub version: u64,
    /// The operation of the commit.
    pub op: Op,
    /// Files that belong to the data set from this commit on; empty for a commit that only removes.
    pub files: Vec<WrittenFile>,
    /// Paths of files it removes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Schema version of the files it adds.
    pub schema_version: u32,
    /// Id of the run.
    pub run_id: String,
    /// The writer of the commit.
    pub txn: Txn,
    /// Wall clock, microseconds since the Unix epoch (for information, except for the grace of
    /// `merge::retire`).
    pub created_at_micros: i64,
}

/// A commit without a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitDraft {
    /// The operation of the commit.
    pub op: Op,
    /// Files that it adds to the data set; they must be at their final paths before the commit.
    pub files: Vec<WrittenFile>,
    /// Paths of files it removes.
    pub removed: Vec<String>,
    /// Id of the run.
    pub run_id: Id<Run>,
    /// The start of the coordinator that makes it.
    pub epoch: u64,
    /// Id of the shard.
    pub shard_id: Id<Shard>,
    /// Schema version of the files it adds: today's, unless an earlier release wrote them.
    pub schema_version: u32,
    /// Wall clock, microseconds since the Unix epoch.
    pub created_at_micros: i64,
}

/// Result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It was committed now, under this number.
    Now(u64),
    /// It was already committed under this number: an earlier try succeeded without its answer.
    Earlier(u64),
}

/// The data set after some commit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManifestSnapshot {
    version: u64,
    files: BTreeMap<String, WrittenFile>,
    removed: BTreeMap<String, i64>,
    /// Shards whose commits removed files, by the path of the file.
    taken_by: BTreeMap<String, String>,
    shards: BTreeMap<String, (u64, Vec<WrittenFile>)>,
    has_expired: bool,
}

/// Every commit in a store by its number; `Err` says why one cannot be read.
#[derive(Debug, Default)]
pub struct StoredCommits(BTreeMap<u64, Result<Commit, InvalidCommit>>);

/// A manifest in a store, and what has been read of it so far.
pub struct Manifest {
    store: Arc<dyn ObjectStore>,
    snapshot: ManifestSnapshot,
}

impl CommitOutcome {
    /// The number of the commit in the manifest, whichever try made it.
    pub fn version(self) -> u64 {
        match self {
            CommitOutcome::Now(version) | CommitOutcome::Earlier(version) => version,
        }
    }
}

impl ManifestSnapshot {
    /// Number of the newest commit; 0 before the first.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The files of a table, by name.
    pub fn files(&self, table: Table) -> impl Iterator<Item = &WrittenFile> {
        self.files.values().filter(move |file| file.table == table)
    }

    /// The file of a table that the newest commit with one added.
    pub fn newest_file(&self, table: Table) -> Option<&WrittenFile> {
        let added =
            self.shards.values().flat_map(|(version, files)| files.iter().map(move |file| (version, file)));
        let current = added.filter(|(_, file)| file.table == table && self.holds(&file.path));
        current.max_by_key(|(version, _)| **version).map(|(_, file)| file)
    }

    /// Every file that a commit ever added.
    pub fn files_ever(&self) -> impl Iterator<Item = &WrittenFile> {
        self.shards.values().flat_map(|(_, files)| files)
    }

    /// Whether a file currently belongs to the data set.
    pub fn holds(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Files that once belonged to it, and when they were removed (microseconds since the Unix
    /// epoch).
    pub fn removed(&self) -> &BTreeMap<String, i64> {
        &self.removed
    }

    /// Whether rows were removed for good.
    pub fn has_expired(&self) -> bool {
        self.has_expired
    }

    /// The commit that added a shard.
    pub fn version_of(&self, shard_id: &Id<Shard>) -> Option<u64> {
        self.shards.get(shard_id.as_str()).map(|(version, _)| *version)
    }

    /// Files of the data set that now hold the rows of a shard: its own, or those they were merged
    /// into.
    pub fn files_of(&self, shard_id: &Id<Shard>) -> Vec<&WrittenFile> {
        let files = self.shards.get(shard_id.as_str()).map_or(&[][..], |(_, files)| files);
        files.iter().flat_map(|file| self.holders(&file.path)).collect()
    }

    /// Files of the data set that now hold the rows of a file: itself, or the one it was merged
    /// into. Empty where the rows were removed for good.
    pub fn holders(&self, path: &str) -> Vec<&WrittenFile> {
        let mut path = path;
        loop {
            if let Some(file) = self.files.get(path) {
                return vec![file];
            }
            let Some((_, files)) = self.taken_by.get(path).and_then(|shard| self.shards.get(shard)) else {
                return Vec::new();
            };
            // A merge writes one file per table, and is itself merged as one.
            let folder = path.split('/').next();
            let Some(next) = files.iter().find(|file| file.path.split('/').next() == folder) else {
                return Vec::new();
            };
            path = &next.path;
        }
    }

    /// Applies the next commit; an inconsistent one leaves everything as it was.
    fn apply(&mut self, commit: &Commit) -> Result<(), RecordsError> {
        self.check(commit).map_err(|what| RecordsError::Manifest { version: commit.version, what })?;
        for path in &commit.removed {
            self.files.remove(path);
            self.removed.insert(path.clone(), commit.created_at_micros);
            self.taken_by.insert(path.clone(), commit.txn.shard_id.clone());
        }
        let added = commit.files.iter().map(|file| (file.path.clone(), file.clone()));
        self.files.extend(added);
        self.shards.insert(commit.txn.shard_id.clone(), (commit.version, commit.files.clone()));
        self.has_expired |= commit.op == Op::Expire;
        self.version = commit.version;
        Ok(())
    }

    fn check(&self, commit: &Commit) -> Result<(), InvalidCommit> {
        if commit.version != self.version + 1 {
            return Err(InvalidCommit::Gap { newest: self.version });
        }
        if let Some((version, _)) = self.shards.get(&commit.txn.shard_id) {
            let shard_id = commit.txn.shard_id.clone();
            return Err(InvalidCommit::ShardCommitted { shard_id, version: *version });
        }
        let known = |path: &str| self.files.contains_key(path) || self.removed.contains_key(path);
        if let Some(file) = commit.files.iter().find(|file| known(&file.path)) {
            return Err(InvalidCommit::FileKnown { path: file.path.clone() });
        }
        self.check_removed(commit)?;
        if commit.op == Op::Replace { self.check_rows(commit) } else { Ok(()) }
    }

    fn check_removed(&self, commit: &Commit) -> Result<(), InvalidCommit> {
        match commit.removed.iter().find(|path| !self.holds(path)) {
            Some(path) => Err(InvalidCommit::FileUnknown { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// A merge must keep every row, table by table.
    fn check_rows(&self, commit: &Commit) -> Result<(), InvalidCommit> {
        let removed = commit.removed.iter().map(|path| &self.files[path]);
        let before = rows_by_table(removed);
        let after = rows_by_table(&commit.files);
        if before == after { Ok(()) } else { Err(InvalidCommit::OtherRows { before, after }) }
    }
}

fn rows_by_table<'a>(files: impl IntoIterator<Item = &'a WrittenFile>) -> BTreeMap<Table, u64> {
    files.into_iter().fold(BTreeMap::new(), |mut rows, file| {
        let sum = rows.entry(file.table).or_insert(0u64);
        *sum = sum.saturating_add(file.rows);
        rows
    })
}

impl StoredCommits {
    /// Reads all commits. Fails only when the store fails.
    pub async fn read(store: &Arc<dyn ObjectStore>) -> Result<Self, RecordsError> {
        let read = |version| {
            let store = store.clone();
            async move { Ok::<_, RecordsError>((version, stored(&*store, version).await?)) }
        };
        let versions = versions(&**store).await?;
        let mut commits = stream::iter(versions).map(read).buffered(READ_AHEAD);
        let mut found = BTreeMap::new();
        while let Some((version, commit)) = commits.try_next().await? {
            found.extend(commit.map(|commit| (version, commit)));
        }
        Ok(Self(found))
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
        let mut snapshot = ManifestSnapshot::default();
        for (version, commit) in self.0 {
            let next = snapshot.version + 1;
            if version != next {
                let what = InvalidCommit::Missing { newest };
                return Err(RecordsError::Manifest { version: next, what });
            }
            snapshot.apply(&commit.map_err(|what| RecordsError::Manifest { version, what })?)?;
        }
        Ok(snapshot)
    }

    /// The highest number; 0 without a commit.
    pub fn newest(&self) -> u64 {
        self.0.keys().next_back().copied().unwrap_or(0)
    }

    /// The commit of this number, if it exists, or why it cannot be read.
    pub fn get(&self, version: u64) -> Option<&Result<Commit, InvalidCommit>> {
        self.0.get(&version)
    }

    /// All commits in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Result<Commit, InvalidCommit>)> {
        self.0.iter().map(|(version, commit)| (*version, commit))
    }

    /// The same without these commits.
    pub fn without(mut self, versions: &[u64]) -> Self {
        self.0.retain(|version, _| !versions.contains(version));
        self
    }

    /// Adds a restored commit.
    pub fn insert(&mut self, commit: Commit) {
        self.0.insert(commit.version, Ok(commit));
    }

    /// Path of a commit below the data set's folder.
    pub fn file_name(version: u64) -> String {
        path_of(version).to_string()
    }
}

impl Manifest {
    /// The store of a data set on a local disk, with every write synced; creates the folder.
    pub fn local_store(data_dir: &FilePath) -> Result<Arc<dyn ObjectStore>, RecordsError> {
        create_durable_dir(&data_dir.join("manifest"))?;
        let store = LocalFileSystem::new_with_prefix(data_dir);
        let store = store.map_err(store_error("open", &data_dir.display()))?;
        Ok(Arc::new(store.with_fsync(true)))
    }

    /// Removes the temporary files of commits that were killed during the write
    /// (`<commit>.json#1`). Only before a coordinator serves.
    pub fn clear_staged(data_dir: &FilePath) -> Result<(), RecordsError> {
        let dir = data_dir.join("manifest");
        for entry in std::fs::read_dir(&dir).map_err(RecordsError::io("list", &dir))? {
            let path = entry.map_err(RecordsError::io("list", &dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.split_once('#').is_some_and(|(name, _)| version_of(name).is_some()) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Reads the whole manifest. Fails on a gap, or on a malformed or inconsistent commit.
    pub async fn open(store: Arc<dyn ObjectStore>) -> Result<Self, RecordsError> {
        let stored = StoredCommits::read(&store).await?;
        Self::of(store, stored)
    }

    /// The manifest of these stored commits. Fails on a gap, or on a malformed or inconsistent
    /// commit.
    pub fn of(store: Arc<dyn ObjectStore>, stored: StoredCommits) -> Result<Self, RecordsError> {
        Ok(Self::at(store, stored.into_snapshot()?))
    }

    /// The manifest in a store whose commits were read already.
    pub fn at(store: Arc<dyn ObjectStore>, snapshot: ManifestSnapshot) -> Self {
        Self { store, snapshot }
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
        while let Some(commit) = read(&*self.store, self.snapshot.version + 1).await? {
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
            let commit = draft.numbered(self.snapshot.version + 1);
            self.check(&commit)?;
            if self.put(&commit).await? {
                self.snapshot.apply(&commit)?;
                return Ok(CommitOutcome::Now(commit.version));
            }
            self.refresh().await?;
        }
        let what = InvalidCommit::LostRaces { shard_id: draft.shard_id.to_string(), races: RACES_MAX };
        Err(RecordsError::Manifest { version: self.snapshot.version, what })
    }

    fn find_earlier(&self, draft: &CommitDraft) -> Result<Option<u64>, RecordsError> {
        let Some((version, files)) = self.snapshot.shards.get(draft.shard_id.as_str()) else {
            return Ok(None);
        };
        if *files != draft.files {
            let what = InvalidCommit::OtherFiles { shard_id: draft.shard_id.to_string() };
            return Err(RecordsError::Manifest { version: *version, what });
        }
        Ok(Some(*version))
    }

    fn check(&self, commit: &Commit) -> Result<(), RecordsError> {
        let refuse = |what| RecordsError::Manifest { version: commit.version, what };
        commit.check().and_then(|()| self.snapshot.check(commit)).map_err(refuse)
    }

    /// Whether the commit was stored; `false` if its number was taken.
    async fn put(&self, commit: &Commit) -> Result<bool, RecordsError> {
        let path = path_of(commit.version);
        let mut text = serde_json::to_vec_pretty(commit).expect("a commit contains only plain values");
        text.push(b'\n');
        let length = check_length(text.len() as u64);
        length.map_err(|what| RecordsError::Manifest { version: commit.version, what })?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(&path, PutPayload::from(text), options).await {
            Ok(_) => Ok(true),
            Err(StoreError::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(store_error("create", &path)(source)),
        }
    }
}

impl CommitDraft {
    /// A draft that adds the files of one shard.
    pub fn append(
        files: Vec<WrittenFile>,
        run_id: Id<Run>,
        epoch: u64,
        shard_id: Id<Shard>,
        now_micros: i64,
    ) -> Self {
        Self {
            op: Op::Append,
            files,
            removed: Vec::new(),
            run_id,
            epoch,
            shard_id,
            schema_version: SCHEMA_VERSION,
            created_at_micros: now_micros,
        }
    }

    /// The commit of this draft under a number.
    pub fn numbered(&self, version: u64) -> Commit {
        Commit {
            version,
            op: self.op,
            files: self.files.clone(),
            removed: self.removed.clone(),
            schema_version: self.schema_version,
            run_id: self.run_id.to_string(),
            txn: Txn { epoch: self.epoch, shard_id: self.shard_id.to_string() },
            created_at_micros: self.created_at_micros,
        }
    }
}

impl Commit {
    /// Parses and validates a commit.
    fn parse(version: u64, text: &[u8]) -> Result<Self, InvalidCommit> {
        let commit: Commit = serde_json::from_slice(text).map_err(InvalidCommit::Malformed)?;
        if commit.version != version {
            return Err(InvalidCommit::OtherNumber { version: commit.version });
        }
        commit.check()?;
        Ok(commit)
    }

    fn check(&self) -> Result<(), InvalidCommit> {
        if SchemaVersion::find(self.schema_version).is_none() {
            return Err(InvalidCommit::OtherSchema { version: self.schema_version });
        }
        if self.files.len() + self.removed.len() > COMMIT_FILES_MAX {
            return Err(InvalidCommit::TooManyFiles { most: COMMIT_FILES_MAX });
        }
        let adds = !self.files.is_empty();
        let removes = !self.removed.is_empty();
        match (self.op, adds, removes) {
            (Op::Append, true, false) | (Op::Replace, true, true) | (Op::Expire, false, true) => {}
            (op, ..) => {
                let op = format!("{op:?}");
                let adds = self.files.len();
                return Err(InvalidCommit::OtherOperation { op, adds, removes: self.removed.len() });
            }
        }
        Id::<Run>::new(&self.run_id)?;
        Id::<Shard>::new(&self.txn.shard_id)?;
        self.files.iter().try_for_each(check_file)?;
        let paths = self.files.iter().map(|file| &file.path).chain(&self.removed);
        let once: BTreeSet<&String> = paths.clone().collect();
        if once.len() != paths.count() {
            return Err(InvalidCommit::FileTwice);
        }
        Ok(())
    }
}

/// A path must name a file in its table's own folder.
fn check_file(file: &WrittenFile) -> Result<(), InvalidCommit> {
    let WrittenFile { table, path, rows, sha256, .. } = file;
    let name = path.strip_prefix(table.as_str()).and_then(|path| path.strip_prefix('/'));
    let shard = name.and_then(|name| name.strip_suffix(".parquet"));
    if shard.is_none_or(|shard| Id::<Shard>::new(shard).is_err()) {
        return Err(InvalidCommit::OtherPath { path: path.clone(), table: *table });
    }
    if sha256.len() != 64 || !sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(InvalidCommit::OtherHash { path: path.clone(), sha256: sha256.clone() });
    }
    if *rows == 0 {
        return Err(InvalidCommit::NoRows { path: path.clone() });
    }
    Ok(())
}

fn check_length(bytes: u64) -> Result<(), InvalidCommit> {
    let most = COMMIT_BYTES_MAX;
    if bytes > most { Err(InvalidCommit::TooLong { bytes, most }) } else { Ok(()) }
}

fn path_of(version: u64) -> Path {
    Path::from(format!("manifest/{version:020}.json"))
}

/// Numbers of the commits in the store. Other names are ignored.
async fn versions(store: &dyn ObjectStore) -> Result<BTreeSet<u64>, RecordsError> {
    let listed = store.list(Some(&Path::from("manifest")));
    let number = |meta: ObjectMeta| async move { Ok(meta.location.filename().and_then(version_of)) };
    listed.try_filter_map(number).try_collect().await.map_err(store_error("list", &"manifest"))
}

fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".json")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

async fn read(store: &dyn ObjectStore, version: u64) -> Result<Option<Commit>, RecordsError> {
    let commit = stored(store, version).await?.transpose();
    commit.map_err(|what| RecordsError::Manifest { version, what })
}

/// A commit in the store, or why it cannot be read; `None` where it does not exist.
async fn stored(
    store: &dyn ObjectStore,
    version: u64,
) -> Result<Option<Result<Commit, InvalidCommit>>, RecordsError> {
    let path = path_of(version);
    let got = match store.get(&path).await {
        Ok(got) => got,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(store_error("read", &path)(source)),
    };
    if let Err(what) = check_length(got.meta.size) {
        return Ok(Some(Err(what)));
    }
    let text = got.bytes().await.map_err(store_error("read", &path))?;
    Ok(Some(Commit::parse(version, &text)))
}

fn store_error(doing: &'static str, path: &impl ToString) -> impl FnOnce(StoreError) -> RecordsError {
    let path = path.to_string();
    move |source| RecordsError::Store { doing, path, source }
}
