//! The data set: Arrow schema, Parquet shards, manifest, verification.
//!
//! The path of a trajectory: `ShardWriter` (shard.rs) writes it to durable files, `Manifest`
//! (manifest.rs) makes them part of the data set, `DataSet` (read.rs) reads it back, `verify`
//! checks that the data set can be trusted. Columns: schema.rs.

#![warn(missing_docs)]

mod cell;
mod config;
mod encoding;
mod error;
mod evaluate;
mod file;
mod find;
#[doc(hidden)]
pub mod fixtures;
mod gap;
mod inspect;
mod json;
mod kept;
mod manifest;
pub mod merge;
mod pixels;
mod read;
mod rows;
mod schema;
mod shard;
mod sizes;
mod statistics;
mod verify;
pub mod view;

pub use config::{RecordsConfig, RecordsFile};
pub use error::{RecordsError, chain};
pub use evaluate::{
    ActingPolicy, AttemptResult, EvaluationLine, EvaluationQuery, EvaluationReport, LineGrouping, PassAtK,
    TaskAttempt, VersionLine, evaluate, evaluation_lines,
};
pub use file::{ShardPlan, WrittenFile};
pub use find::FoundTrajectory;
pub use gap::{GapSum, LogprobGap};
pub use inspect::{DataSetSummary, EndLine, RewardLine, ShardGap, TableTotals, TimeLine, inspect};
pub use kept::{KeptLine, KeptReport, kept};
pub use manifest::{Commit, CommitDraft, CommitOutcome, Manifest, ManifestSnapshot, Op, StoredCommits, Txn};
pub use pixels::DecodedPicture;
pub use read::{DataSet, RecordIter};
pub use rows::{DerivedColumns, RecordedStep, RescoreRecord};
pub use schema::Table;
pub use shard::{LocalFile, ShardStage, ShardWriter, check_written, local_files, remove_shard, written_file};
pub use sizes::{StepSize, StepTokens};
pub use statistics::{
    BOOTSTRAP_SEED, Estimate, Interval, IntervalMethod, RESAMPLES, TaskShare, TermKind, bootstrap, estimate,
    pass_at_k, wilson,
};
pub use verify::{RuleBreach, VerifyCheck, VerifyCounts, VerifyReport, VerifyWarning, verify};
