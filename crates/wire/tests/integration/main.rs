//! Messages between processes: what a domain type becomes, and what a peer may send instead.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod identities;
mod outside;
mod roundtrip;
