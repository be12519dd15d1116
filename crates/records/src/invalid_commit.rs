//! What can be wrong with a commit of the manifest.

use std::collections::BTreeMap;

use furrow_rollout::{BadId, SCHEMA_VERSION};

use crate::Table;

/// What is wrong with a commit: with its text, or with the commits before it. The text follows
/// `manifest commit N: `.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCommit {
    /// Its text is longer than any commit may be.
    #[error("is {bytes} bytes long; at most {most} are allowed")]
    TooLong {
        /// Length of the text in bytes.
        bytes: u64,
        /// The largest length that is allowed.
        most: u64,
    },
    /// Its text is not the JSON of a commit.
    #[error("is not a valid commit: {0}")]
    Malformed(serde_json::Error),
    /// Its text holds the commit of another number.
    #[error("contains commit {version}")]
    OtherNumber {
        /// The number in the text.
        version: u64,
    },
    /// Its files have columns that this version does not read.
    #[error("has schema version {version}, this furrow reads 1 to {SCHEMA_VERSION}")]
    OtherSchema {
        /// The version that it names.
        version: u32,
    },
    /// It adds and removes more files than a commit may.
    #[error("names more than {most} files")]
    TooManyFiles {
        /// Most files of a commit.
        most: usize,
    },
    /// Its operation does not add or remove files so.
    #[error("{op} adds {adds} and removes {removes} files")]
    OtherOperation {
        /// Name of the operation.
        op: String,
        /// How many files it adds.
        adds: usize,
        /// How many files it removes.
        removes: usize,
    },
    /// The id of the run or of the shard is not an id.
    #[error(transparent)]
    Id(#[from] BadId),
    /// A path that does not lead to a file in the table's own folder.
    #[error("{path:?} is not {table}/<shard>.parquet")]
    OtherPath {
        /// The path as it is written.
        path: String,
        /// The table of the file.
        table: Table,
    },
    /// A hash that is not written as one.
    #[error("{path}: sha256 {sha256:?} is not 64 lower-case hexadecimal digits")]
    OtherHash {
        /// Path of the file.
        path: String,
        /// The hash as it is written.
        sha256: String,
    },
    /// A file without rows.
    #[error("{path} holds no rows: a file without rows is not listed")]
    NoRows {
        /// Path of the file.
        path: String,
    },
    /// It adds or removes a file twice, or does both.
    #[error("names a file twice")]
    FileTwice,
    /// It does not follow the newest commit.
    #[error("follows {newest}: there is a gap")]
    Gap {
        /// Number of the newest commit.
        newest: u64,
    },
    /// No commit has this number, but a later one exists.
    #[error("is missing, but {newest} exists")]
    Missing {
        /// Number of the newest commit.
        newest: u64,
    },
    /// A commit of this number exists.
    #[error("exists already")]
    Exists,
    /// An earlier commit has its shard.
    #[error("shard {shard_id} was already committed by commit {version}")]
    ShardCommitted {
        /// Id of the shard.
        shard_id: String,
        /// Number of the earlier commit.
        version: u64,
    },
    /// This commit has the shard that is to be committed, but other files.
    #[error("committed shard {shard_id} with other files")]
    OtherFiles {
        /// Id of the shard.
        shard_id: String,
    },
    /// An earlier commit added a file of the same path.
    #[error("adds {path}, which an earlier commit added")]
    FileKnown {
        /// Path of the file.
        path: String,
    },
    /// It removes a file that the data set does not have.
    #[error("removes {path}, which is not part of the data set")]
    FileUnknown {
        /// Path of the file.
        path: String,
    },
    /// A replacement that loses or adds rows.
    #[error("replaces {before:?} rows by {after:?}: a replacement holds the same rows")]
    OtherRows {
        /// Rows of the files that it removes, by table.
        before: BTreeMap<Table, u64>,
        /// Rows of the files that it adds, by table.
        after: BTreeMap<Table, u64>,
    },
    /// Other writers took every number that it tried.
    #[error("shard {shard_id} lost {races} races against other commits")]
    LostRaces {
        /// Id of the shard.
        shard_id: String,
        /// How many numbers it tried.
        races: u32,
    },
}
