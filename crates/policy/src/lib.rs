//! Sessions in, actions out: the policy service, the policies behind it and the grammars they speak.
//!
//! An environment worker opens one stream a session (`service.rs`); a `Policy` turns each observation into a reply (`scripted.rs`,
//! `random.rs`, `model.rs`, `remote.rs`); a grammar turns text into an action and back (`grammar/`). This crate never sees a browser.
//!
//! The way of an observation through the model: `model/session.rs` cuts the screenshot and lays out the turn (`prompt.rs`), `context.rs`
//! says which tokens are kept and shown, `engine.rs` runs them on a thread of its own and draws the reply (`draw.rs`, `constrain.rs`).

mod config;
pub mod constrain;
mod context;
mod conversation;
pub mod draw;
mod engine;
mod features;
pub mod grammar;
pub mod hint;
mod metered;
mod model;
mod park;
mod policy;
mod prompt;
mod random;
mod remote;
mod schedule;
mod scripted;
mod sequence;
mod serve;
mod service;
mod sessions;
pub mod sim;
mod slots;
mod snapshots;
mod trace;
pub mod twin;
mod worker;

pub use config::{
    AuditFile, BackendChoice, ConstrainFile, ContextFile, EngineFile, GrammarFile, LayoutFile, ModelConfig,
    PolicyChoice, PolicyConfig, PolicyFile, RemoteConfig, RemoteFile, SamplingFile, ServeConfig, ServeFile,
    WeightsFile,
};
pub use model::{Arena, Model, ModelError, bytes_on_the_processor};
pub use policy::{Answer, Policy, PolicyError, Session, Taken, Turn};
pub use random::Random;
pub use remote::Remote;
pub use scripted::Scripted;
pub use serve::{Endpoint, ServeError};
pub use worker::{Listening, Report, WorkerError, run};
