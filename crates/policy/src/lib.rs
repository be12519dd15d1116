//! Sessions in, actions out: the policy service, its policies and the grammars in which they write
//! actions.
//!
//! An environment worker opens one stream for each session (`service.rs`). A `Policy` turns each
//! observation into a reply (`scripted.rs`, `random.rs`, `model.rs`, `remote.rs`). A grammar parses
//! text into an action and formats an action as text (`grammar/`). This crate has no access to a
//! browser.
//!
//! How the model handles an observation: `model/session.rs` cuts the screenshot into tiles and
//! builds the turn (`prompt.rs`). `context.rs` decides which tokens are kept and shown. `engine.rs`
//! runs them on its own thread and samples the reply (`response.rs`, `constrain.rs`). A scheduler
//! simulator drives the same engine without the thread (`stepped.rs`).

mod config;
pub mod constrain;
mod context;
mod conversation;
mod device_faults;
mod engine;
mod features;
pub mod grammar;
pub mod hint;
mod metered;
mod model;
mod offload;
mod policy;
mod progress;
mod prompt;
mod random;
mod remote;
pub mod response;
mod schedule;
mod scripted;
mod sequence;
mod serve;
mod service;
mod session_table;
#[cfg(test)]
mod sim;
mod slots;
mod snapshots;
pub mod stepped;
mod tool_text;
mod trace;
mod worker;

pub use config::{
    AuditFile, BackendChoice, ConstrainFile, ContextFile, EngineFile, GrammarFile, LayoutFile, ModelConfig,
    PolicyChoice, PolicyConfig, PolicyFile, RemoteConfig, RemoteFile, RemoteKeyError, SamplingFile,
    ServeConfig, ServeFile, WeightsFile,
};
pub use device_faults::DEVICE_FAIL_POINTS;
pub use model::{EngineMemoryPlan, ModelError, ModelPolicy, cpu_memory_bytes};
pub use policy::{Policy, PolicyError, PolicyInput, PolicyOutput, Session, WeightSwapStats};
pub use random::RandomPolicy;
pub use remote::RemotePolicy;
pub use scripted::ScriptedPolicy;
pub use serve::{ChatEndpoint, ServeError};
pub use worker::{WorkerConnections, WorkerError, WorkerListeners, WorkerReport, run, run_on, serve_chats};
