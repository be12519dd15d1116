//! A whole coordinator between workers that the tests act: over real gRPC, and killed at every fail
//! point.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[cfg(feature = "failpoints")]
mod crash;
mod service;
mod weeks;
