//! Rules for the sources of the whole repository, checked by reading them: which crates and files
//! may use each other, and how names, comments and functions are written.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod architecture;
mod decisions;
mod runbook;
mod taste;
