//! The model: Nemotron-H (Mamba-2, attention, MLP, experts) with a RADIO vision encoder, and the plain-Rust backend that defines
//! what is correct.
//!
//! A checkpoint directory comes in through one door (`checkpoint.rs`); `config.rs` says what it must hold; `cpu.rs` runs it behind the
//! interface of `backend.rs`, which a GPU backend shares. Nothing here knows a session, a network or a clock.

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
