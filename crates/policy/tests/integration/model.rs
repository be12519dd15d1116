//! The `model` policy on a random checkpoint and the `cpu` backend.

mod alone;
mod answers;
mod audit;
mod chats;
mod claims;
mod fixture;
mod refusals;
mod weights;
