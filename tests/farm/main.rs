//! Whole-farm tests: start the real `furrow`, kill it, read the shards with an independent checker.
//!
//! A binary of its own, because they need browsers and minutes: `tests/run.sh check` leaves them
//! out.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "prints seeds, kills and the checker's counts"
)]

mod attacks;
mod back_ends;
mod backup;
mod blind;
mod broken_weights;
mod command_line;
mod crash_points;
mod damage;
mod dashboard;
#[cfg(feature = "failpoints")]
mod device;
mod evaluations;
mod examples;
mod expiry;
mod farm;
mod hacks;
mod identities;
mod kills;
mod lease_secrets;
mod load;
mod lost_device;
#[cfg(feature = "otel")]
mod otlp;
mod outside;
mod pacing;
mod planted;
mod recompute;
mod recorded;
mod recovery;
mod released;
mod remote;
mod replay;
mod secrets;
mod serve;
mod sharing;
mod sites;
mod small_run;
mod suites;
mod web;
mod weights;
