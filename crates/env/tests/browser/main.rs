//! Real Chromium: actions, hostile pages, filters, and the starter tasks solved by their own demonstrations.
//!
//! Needs the headless shell: its absence is a failure that says what to install, never a skip.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actions;
mod archive;
mod attacks;
mod blocked;
mod egress;
mod error_pages;
mod ground;
mod hostile;
mod kit;
mod libraries;
mod life;
mod limits;
mod live;
mod marks;
mod page_time;
mod suites;
mod thinking;
