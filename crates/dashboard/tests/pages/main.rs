//! The dashboard as somebody meets it: over HTTP, in a real Chromium, and held against a script that computes its figures again.
//!
//! Needs the headless shell, and Python with pyarrow: their absence is a failure that says what to install, never a skip.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod controls;
mod figures;
mod ground;
mod http;
mod keyboard;
mod keys;
mod live;
mod many;
mod pages;
mod report;
