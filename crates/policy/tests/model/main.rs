//! The `model` policy on a random checkpoint and the `cpu` backend.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alone;
mod answers;
mod audit;
mod chats;
mod claims;
mod fixture;
mod refusals;
mod weights;
