//! Policies and the worker that serves them, through its public interface and over real sockets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model;
mod remote;
mod service;
