//! Real Chromium: actions, hostile pages, filters, and the starter tasks solved by their own
//! demonstrations.
//!
//! Needs the headless shell: without it the tests fail with an error that says what to install;
//! they are never skipped. A binary of its own, because its tests look at all browsers that their
//! process started, and `farm` starts some, too.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actions;
mod archive;
mod attacks;
mod blocked;
mod egress;
mod error_pages;
mod files;
mod findings;
mod fixture;
mod frames;
mod grading;
mod hostile;
mod input_events;
mod kit;
mod libraries;
mod life;
mod limits;
mod live;
mod marks;
mod page_errors;
mod page_time;
mod pressed;
mod secrets;
mod suites;
mod thinking;
mod walls;
