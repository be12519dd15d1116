//! Loads suites, creates tasks, scores finished trajectories.
//!
//! There are three parts. [`load`] turns the job's `[tasks]` section into a [`TaskSet`]: tasks for
//! environments, each with its [`Scorer`]. A [`TaskSampler`] chooses the task of the n-th group.
//! [`Scorer::score`] turns the evidence of a finished trajectory into a [`furrow_rollout::Score`],
//! or reports why it reaches no verdict; rewards come from nowhere else in the farm.
//!
//! Task files, job sections and evidence are untrusted: each is validated here, with size limits
//! and errors that name the key, the value and the remedy.

mod config;
mod dates;
mod fields;
mod file_keys;
mod files;
mod glob;
mod grounding;
mod jsonl;
mod judge;
mod miniwob;
mod sampler;
mod score;
mod sites;
mod source;
mod starter;
mod suite;
mod suite_version;
mod web;
mod webvoyager;

pub use config::{
    EvalConfig, EvalFile, HookConfig, HookFile, MiniwobReward, SamplerKind, SourceConfig, SourceFile,
    TaskSection, TasksConfig, TasksFile,
};
pub use glob::fits as fits_pattern;
pub use grounding::{BoxForm, PictureSet};
pub use judge::{Judge, JudgeQuery, JudgeReply, JudgeSettings};
pub use sampler::{MeasuredSuccess, TaskChoice, TaskSampler};
pub use score::{EndFacts, FinishedTrajectory, ScoreError, Scorer, judge_cost_usd};
pub use sites::{SiteRoot, SiteSpec};
pub use source::TaskSpec;
pub use suite::{TaskSet, load};
