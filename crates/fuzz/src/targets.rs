//! The list of targets, from which the environment of a process chooses one.

mod archive;
mod chat;
mod config;
mod grammar;
mod job;
mod manifest;
mod parquet;
mod picture;
mod planted;
mod proto;
mod safetensors;
mod spool;
mod tasks;
mod template;
mod tokenizer;

use std::env;

use crate::FuzzTarget;

/// Names the target of a process.
const TARGET: &str = "FURROW_FUZZ_TARGET";

/// All targets, each with an input of its own.
pub const TARGETS: &[FuzzTarget] = &[
    job::JOB,
    tasks::TASKS,
    safetensors::SAFETENSORS,
    config::CONFIG,
    tokenizer::TOKENIZER,
    template::TEMPLATE,
    proto::PROTO,
    picture::PICTURE,
    grammar::GRAMMAR,
    chat::CHAT,
    manifest::MANIFEST,
    parquet::PARQUET,
    spool::SPOOL,
    archive::ARCHIVE,
];

/// The target that the environment names.
///
/// # Panics
/// If it names none.
pub fn target_of_environment() -> &'static FuzzTarget {
    let name = env::var(TARGET).unwrap_or_default();
    let mut targets = TARGETS.iter().chain([&planted::PLANTED]);
    targets.find(|target| target.name == name).unwrap_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("{TARGET} is {name:?}; set it to one of {}", known.join(", "))
    })
}
