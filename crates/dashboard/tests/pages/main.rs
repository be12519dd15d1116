//! The dashboard as its users get it: over HTTP, in a real Chromium, and compared with a script
//! that computes its metrics again.
//!
//! Needs the headless shell, and Python with pyarrow: without them tests fail and name what to
//! install; they are never skipped. Not named `integration`, because `tests/run.sh check` runs
//! those and does without a browser.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod controls;
mod harness;
mod http;
mod journeys;
mod keyboard;
mod keys;
mod live;
mod many;
mod metrics;
mod pages;
mod pictures;
mod plots;
mod report;
mod runs;
mod trajectory_file;
