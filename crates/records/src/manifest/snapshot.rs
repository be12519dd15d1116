//! The data set after some commit: its files, and what is still known of those that left it.

use std::collections::{BTreeMap, BTreeSet};

use furrow_rollout::{Id, Shard};
use serde::{Deserialize, Serialize};

use super::commit::{Commit, Op, check_file};
use crate::{InvalidCommit, RecordsError, Table, WrittenFile};

/// Shards of the newest commits that are remembered: a commit is tried again only after a crash,
/// and then it is among the last.
const SHARDS_MAX: usize = 256;
/// Removed files that are remembered. Their owner forgets them as they leave the disk, so this many
/// wait only where none is ever removed: at a commit every two seconds, 20,000 are the parts of
/// hours.
const REMOVED_MAX: usize = 20_000;

/// The data set after some commit. Its size follows the files of the data set, not its history.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestSnapshot {
    version: u64,
    files: BTreeMap<String, ListedFile>,
    removed: BTreeMap<String, RemovedFile>,
    /// Those of the newest commits alone.
    shards: BTreeMap<String, NamedShard>,
    has_expired: bool,
    /// How many rows were removed for good, by table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    expired_rows: BTreeMap<Table, u64>,
}

/// A file of the data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedFile {
    /// The commit that added it; of a merged file, the newest one that added one of its parts.
    since: u64,
    /// `None` where an earlier release wrote the checkpoint that lists the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<RowAges>,
    file: WrittenFile,
}

/// How old the rows of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowAges {
    /// The oldest commit that added some of them.
    from: u64,
    /// When the newest of them were committed, in microseconds since the Unix epoch.
    at_micros: i64,
}

/// A file of the data set, and which commits added its rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileAge<'a> {
    pub file: &'a WrittenFile,
    /// The oldest of these commits; 0 where that is not known.
    pub from: u64,
    /// The newest of them.
    pub to: u64,
    /// When that was committed, in microseconds since the Unix epoch; the latest time of all where
    /// that is not known.
    pub at_micros: i64,
}

/// A file that left the data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovedFile {
    /// Number of the commit that removed it.
    pub by: u64,
    /// When, in microseconds since the Unix epoch.
    pub at_micros: i64,
    /// Path of the file that has its rows since; `None` where they were removed for good.
    pub into: Option<String>,
    /// As the commit that added it lists it.
    pub file: WrittenFile,
}

/// A shard and its commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedShard {
    version: u64,
    files: Vec<WrittenFile>,
}

impl ManifestSnapshot {
    /// Number of the newest commit; 0 before the first.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The files of a table, by name.
    pub fn files(&self, table: Table) -> impl Iterator<Item = &WrittenFile> {
        self.files.values().map(|listed| &listed.file).filter(move |file| file.table == table)
    }

    /// The file of a table that has the rows of the newest commit with some.
    pub fn newest_file(&self, table: Table) -> Option<&WrittenFile> {
        let current = self.files.values().filter(|listed| listed.file.table == table);
        current.max_by_key(|listed| listed.since).map(|listed| &listed.file)
    }

    /// Whether a file currently belongs to the data set.
    pub fn holds(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Files that left the data set, by their paths, and are not forgotten yet.
    pub fn removed(&self) -> &BTreeMap<String, RemovedFile> {
        &self.removed
    }

    /// The files of the data set and how old their rows are, by path.
    pub(crate) fn file_ages(&self) -> impl Iterator<Item = FileAge<'_>> {
        self.files.values().map(ListedFile::age)
    }

    /// Whether it is known of every file which commits added its rows. Checkpoints of earlier
    /// releases do not say so.
    pub(super) fn knows_ages(&self) -> bool {
        self.files.values().all(|listed| listed.rows.is_some())
    }

    /// Whether both list the same files, added by the same commits.
    pub(crate) fn lists_same(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&ListedFile, &ListedFile)| {
            let ages = one.rows.zip(other.rows).is_none_or(|(one, other)| one == other);
            one.file == other.file && one.since == other.since && ages
        };
        let pairs = self.files.values().zip(other.files.values());
        self.version == other.version
            && self.files.len() == other.files.len()
            && pairs.into_iter().all(is_same)
    }

    /// Whether rows were removed for good.
    pub fn has_expired(&self) -> bool {
        self.has_expired
    }

    /// How many rows of a table were removed for good.
    pub fn expired_rows(&self, table: Table) -> u64 {
        self.expired_rows.get(&table).copied().unwrap_or(0)
    }

    /// The commit that added a shard, while it is among the newest.
    pub fn version_of(&self, shard_id: &Id<Shard>) -> Option<u64> {
        self.shards.get(shard_id.as_str()).map(|named| named.version)
    }

    /// The files that a shard was committed with, while it is among the newest, and the number of
    /// that commit.
    pub(super) fn committed(&self, shard_id: &Id<Shard>) -> Option<(u64, &[WrittenFile])> {
        self.shards.get(shard_id.as_str()).map(|named| (named.version, &*named.files))
    }

    /// Files of the data set that now hold the rows of a shard: its own, or those they were merged
    /// into. Empty for a shard that is not among the newest.
    pub fn files_of(&self, shard_id: &Id<Shard>) -> Vec<&WrittenFile> {
        let files = self.shards.get(shard_id.as_str()).map_or(&[][..], |named| &named.files);
        files.iter().filter_map(|file| self.holder(&file.path)).collect()
    }

    /// The file of the data set that now holds the rows of a file: itself, or the one it was merged
    /// into. `None` where the rows were removed for good, or the file was forgotten.
    pub fn holder(&self, path: &str) -> Option<&WrittenFile> {
        let mut path = path;
        loop {
            if let Some(listed) = self.files.get(path) {
                return Some(&listed.file);
            }
            path = self.removed.get(path)?.into.as_deref()?;
        }
    }

    /// Whether the rows of a file were removed for good.
    pub fn is_expired(&self, path: &str) -> bool {
        let mut path = path;
        while let Some(removed) = self.removed.get(path) {
            let Some(into) = &removed.into else { return true };
            path = into;
        }
        false
    }

    /// Forgets files that are on the disk no more. One into which another was merged stays until
    /// that one is forgotten.
    pub(crate) fn forget(&mut self, paths: &[String]) {
        let gone: BTreeSet<&String> = paths.iter().collect();
        let kept = self.removed.iter().filter(|(path, _)| !gone.contains(path));
        let needed: BTreeSet<String> = kept.filter_map(|(_, removed)| removed.into.clone()).collect();
        self.removed.retain(|path, _| !gone.contains(path) || needed.contains(path));
    }

    /// Applies the next commit; an inconsistent one leaves everything as it was.
    pub(super) fn apply(&mut self, commit: &Commit) -> Result<(), RecordsError> {
        self.check(commit).map_err(|what| RecordsError::Manifest { version: commit.version, what })?;
        let mut merged: BTreeMap<Table, (u64, Option<RowAges>)> = BTreeMap::new();
        for path in &commit.removed {
            let Some(ListedFile { file, since, rows }) = self.files.remove(path) else { continue };
            let sum = merged.entry(file.table).or_insert((since, rows));
            *sum = (sum.0.max(since), sum.1.zip(rows).map(RowAges::of_both));
            if commit.op == Op::Expire {
                let expired = self.expired_rows.entry(file.table).or_default();
                *expired = expired.saturating_add(file.rows);
            }
            let into = commit.files.iter().find(|new| new.table == file.table).map(|new| new.path.clone());
            let at_micros = commit.created_at_micros;
            self.removed.insert(path.clone(), RemovedFile { by: commit.version, at_micros, into, file });
        }
        for file in commit.files.clone() {
            // A merged file has the rows of its parts, and no newer ones.
            let new = RowAges { from: commit.version, at_micros: commit.created_at_micros };
            let (since, rows) = merged.get(&file.table).copied().unwrap_or((commit.version, Some(new)));
            self.files.insert(file.path.clone(), ListedFile { since, rows, file });
        }
        let named = NamedShard { version: commit.version, files: commit.files.clone() };
        self.shards.insert(commit.txn.shard_id.clone(), named);
        self.has_expired |= commit.op == Op::Expire;
        self.version = commit.version;
        self.forget_oldest();
        Ok(())
    }

    /// Both lists may grow by half before the oldest are looked for.
    fn forget_oldest(&mut self) {
        if self.shards.len() > SHARDS_MAX + SHARDS_MAX / 2 {
            let mut versions: Vec<u64> = self.shards.values().map(|named| named.version).collect();
            let oldest = oldest_kept(&mut versions, SHARDS_MAX);
            self.shards.retain(|_, named| named.version >= oldest);
        }
        if self.removed.len() > REMOVED_MAX + REMOVED_MAX / 2 {
            let mut versions: Vec<u64> = self.removed.values().map(|removed| removed.by).collect();
            let oldest = oldest_kept(&mut versions, REMOVED_MAX);
            self.removed.retain(|_, removed| removed.by >= oldest);
        }
    }

    /// Checks what a commit can be checked for on its own, in a snapshot from outside.
    pub(super) fn check_parts(&self) -> Result<(), InvalidCommit> {
        let removed = self.removed.iter().map(|(path, removed)| (path, &removed.file));
        for (path, file) in self.files.iter().map(|(path, listed)| (path, &listed.file)).chain(removed) {
            check_file(file)?;
            if *path != file.path {
                return Err(InvalidCommit::OtherPath { path: path.clone(), table: file.table });
            }
        }
        self.shards.values().flat_map(|named| &named.files).try_for_each(check_file)
    }

    /// Whether the commits that added a file's rows are in their order, and none is newer than the
    /// newest.
    pub(super) fn ages_are_in_order(&self) -> bool {
        let in_order = |listed: &ListedFile| {
            let from = listed.rows.map_or(listed.since, |rows| rows.from);
            from <= listed.since && listed.since <= self.version
        };
        self.files.values().all(in_order)
    }

    /// Whether each file was removed before the file that replaced it, as commits do: otherwise
    /// what replaced what could go in a circle.
    pub(super) fn replacements_are_newer(&self) -> bool {
        self.removed.values().all(|removed| {
            let next = removed.into.as_ref().and_then(|path| self.removed.get(path));
            next.is_none_or(|next| removed.by < next.by)
        })
    }

    pub(super) fn check(&self, commit: &Commit) -> Result<(), InvalidCommit> {
        if commit.version != self.version + 1 {
            return Err(InvalidCommit::Gap { newest: self.version });
        }
        if let Some(named) = self.shards.get(&commit.txn.shard_id) {
            let shard_id = commit.txn.shard_id.clone();
            return Err(InvalidCommit::ShardCommitted { shard_id, version: named.version });
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
        let removed = commit.removed.iter().map(|path| &self.files[path].file);
        let before = rows_by_table(removed);
        let after = rows_by_table(&commit.files);
        if before == after { Ok(()) } else { Err(InvalidCommit::OtherRows { before, after }) }
    }
}

impl ListedFile {
    fn age(&self) -> FileAge<'_> {
        let RowAges { from, at_micros } = self.rows.unwrap_or(RowAges { from: 0, at_micros: i64::MAX });
        FileAge { file: &self.file, from, to: self.since, at_micros }
    }
}

impl RowAges {
    fn of_both((one, other): (Self, Self)) -> Self {
        Self { from: one.from.min(other.from), at_micros: one.at_micros.max(other.at_micros) }
    }
}

/// The version from which on `most` are kept.
fn oldest_kept(versions: &mut [u64], most: usize) -> u64 {
    versions.sort_unstable();
    versions.iter().rev().nth(most - 1).copied().unwrap_or(0)
}

fn rows_by_table<'a>(files: impl IntoIterator<Item = &'a WrittenFile>) -> BTreeMap<Table, u64> {
    files.into_iter().fold(BTreeMap::new(), |mut rows, file| {
        let sum = rows.entry(file.table).or_insert(0u64);
        *sum = sum.saturating_add(file.rows);
        rows
    })
}
