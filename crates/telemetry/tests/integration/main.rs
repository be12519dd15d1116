//! What outlives or leaves the process: the log of a killed one, and the board and the alerts that
//! read its metrics.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod board;
mod killed;
