//! The data set: Arrow schema, Parquet shards, manifest, verification.
//!
//! The path of a trajectory: `ShardWriter` (shard.rs) writes it to durable files, `Manifest`
//! (manifest.rs) makes them part of the data set, `DataSet` (read.rs) reads it back, `verify`
//! checks that the data set can be trusted. Columns: schema.rs; a reader of some columns names them
//! with `columns!` (cell.rs). Answers from a data set are in `furrow-analysis`.

#![warn(missing_docs)]

mod card;
pub mod cell;
mod column_table;
mod config;
mod durable;
mod encoding;
mod error;
mod file;
mod find;
#[doc(hidden)]
pub mod fixtures;
mod gap;
mod invalid_commit;
mod jobs;
mod manifest;
pub mod merge;
mod page_header;
mod pages;
mod pixels;
mod read;
mod retention;
mod rows;
mod schema;
mod schema_version;
mod shard;
mod stage;
mod text_file;
mod verify;

pub use card::{DataCard, renew_card};
pub use config::{RecordsConfig, RecordsFile};
pub use error::{RecordsError, chain};
pub use file::{ShardPlan, TableFile, WrittenFile};
pub use find::FoundTrajectory;
pub use gap::{GapSum, LogprobGap};
pub use invalid_commit::InvalidCommit;
pub use jobs::changed_jobs;
pub use manifest::{
    Commit, CommitDraft, CommitOutcome, Manifest, ManifestSnapshot, Op, RemovedFile, StoredCommits, Txn,
};
pub use pixels::{DecodedPicture, PictureError};
pub use read::{DataSet, RecordIter, schema_version};
pub use retention::{ExpiryPlan, RetentionConfig};
pub use rows::{DerivedColumns, RecordedStep, RescoreRecord};
pub use schema::{Table, hex};
pub use shard::{LocalFile, ShardWriter, check_written, local_files, remove_shard, written_file};
pub use stage::ShardStage;
pub use verify::{ExpiredCounts, RuleBreach, VerifyCheck, VerifyCounts, VerifyReport, VerifyWarning, verify};
