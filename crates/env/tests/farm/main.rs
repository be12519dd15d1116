//! A worker between a stub coordinator and a stub policy, over real gRPC: with a simulated browser
//! and with real ones.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod farm;
mod real;
mod simulated;
mod standin;
