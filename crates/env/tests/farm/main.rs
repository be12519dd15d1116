//! A worker between a stub coordinator and a stub policy, over real gRPC: with a simulated browser
//! and with real ones.
//!
//! A binary of its own, because the tests of `browser` look at all browsers of their process.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod farm;
mod real;
mod simulated;
mod standin;
