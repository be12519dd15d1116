//! A commit of the manifest: its text, and what is wrong with it in any data set.

use std::collections::BTreeSet;

use furrow_rollout::{Id, Run, SCHEMA_VERSION, Shard};
use serde::{Deserialize, Serialize};

use crate::schema_version::SchemaVersion;
use crate::{InvalidCommit, WrittenFile};

/// Most bytes of a commit: 10,000 files of 200 bytes are 2 MB.
pub(super) const COMMIT_BYTES_MAX: u64 = 4 << 20;
/// Most files a commit may name, added and removed together.
const COMMIT_FILES_MAX: usize = 10_000;

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
    pub(super) fn parse(version: u64, text: &[u8]) -> Result<Self, InvalidCommit> {
        let commit: Commit = serde_json::from_slice(text).map_err(InvalidCommit::Malformed)?;
        if commit.version != version {
            return Err(InvalidCommit::OtherNumber { version: commit.version });
        }
        commit.check()?;
        Ok(commit)
    }

    pub(super) fn check(&self) -> Result<(), InvalidCommit> {
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
pub(super) fn check_file(file: &WrittenFile) -> Result<(), InvalidCommit> {
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

pub(super) fn check_length(bytes: u64) -> Result<(), InvalidCommit> {
    let most = COMMIT_BYTES_MAX;
    if bytes > most { Err(InvalidCommit::TooLong { bytes, most }) } else { Ok(()) }
}
