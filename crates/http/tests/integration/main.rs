//! The server as roles use it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;
