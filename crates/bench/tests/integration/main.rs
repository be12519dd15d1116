//! Runs `furrow-bench` as its users do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod command_line;
