//! The model: Nemotron-H (Mamba-2, attention, MLP, experts) with a RADIO vision encoder, and the
//! plain-Rust backend that defines what is correct.
//!
//! `checkpoint.rs` opens and checks a checkpoint directory; `config.rs` describes its model;
//! `cpu.rs` runs it behind the interface of `backend.rs`, which a GPU backend shares. This crate
//! knows nothing about sessions, networks or clocks.

pub mod backend;
pub mod checkpoint;
pub mod config;
pub mod cpu;
pub mod file;
pub mod floor;
pub mod forward;
pub mod init;
pub mod kernels;
pub mod layers;
pub mod sample;
pub mod template;
pub mod tokenizer;
pub mod vision;
pub mod weights;
