//! Loads suites, makes tasks, scores finished trajectories.
//!
//! Three rooms. [`load`] turns the job's `[tasks]` section into a [`TaskSet`]: tasks an environment can act, each with the
//! [`Scorer`] that will judge it. A [`Sampler`] says which task the n-th group draws. [`Scorer::score`] turns the evidence
//! of a finished trajectory into a [`furrow_rollout::Score`], or says why it comes to no verdict; nothing else in the farm
//! may call anything a reward.
//!
//! Task files, job sections and evidence are strangers: each has its door here, with size caps and errors that name key,
//! value and remedy.

mod config;
mod dates;
mod fields;
mod glob;
mod grounding;
mod jsonl;
mod judge;
mod miniwob;
mod sampler;
mod score;
mod sites;
mod starter;
mod suite;
mod web;
mod webvoyager;

pub use config::{
    EvalConfig, EvalFile, MiniwobReward, SamplerKind, Section, SourceConfig, SourceFile, TasksConfig,
    TasksFile,
};
pub use glob::fits as fits_pattern;
pub use grounding::{BoxForm, Pictures};
pub use judge::{Habits, Judge, Question, Reply};
pub use sampler::{Draw, Measured, Sampler};
pub use score::{Facts, Finished, ScoreError, Scorer, judge_cost_usd};
pub use sites::{SiteRoot, SiteSpec, WHEEL_SHA256};
pub use suite::{TaskSet, TaskSpec, load};
