//! Suites as a job loads them: made-up ones, and those of this repository.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod repository;
mod suites;
