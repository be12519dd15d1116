//! The data set: Arrow schema, Parquet shards, manifest, verification.
//!
//! The way of a trajectory: `ShardWriter` (shard.rs) makes durable files of it, `Manifest` (manifest.rs) makes them part of the data
//! set, `DataSet` (read.rs) reads it back, `verify` proves that what is there can be trusted. Columns: schema.rs.

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
    Attempt, By, Evaluation, EvaluationLine, PassAtK, Policy, Question, Verdict, VersionLine, evaluate,
    figures,
};
pub use file::{ShardPlan, WrittenFile};
pub use find::Found;
pub use gap::{Gap, GapSum};
pub use inspect::{EndLine, RewardLine, ShardGap, Summary, TableFigures, TimeLine, inspect};
pub use kept::{KeptLine, KeptReport, kept};
pub use manifest::{Commit, Committed, Draft, Manifest, Op, Snapshot, StoredCommits, Txn};
pub use pixels::Picture;
pub use read::{DataSet, Nouns};
pub use rows::{RecordedStep, Rescore, StepPlace};
pub use schema::Table;
pub use shard::{LocalFile, ShardStage, ShardWriter, check_written, local_files, remove_shard, written_file};
pub use sizes::{StepSize, StepTokens};
pub use statistics::{
    BOOTSTRAP_SEED, Estimate, Interval, Method, RESAMPLES, Share, Terms, bootstrap, estimate, pass_at_k,
    wilson,
};
pub use verify::{Breach, Check, Counts, Report, Warning, verify};
