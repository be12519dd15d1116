//! The client as other crates use it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stand_in;
