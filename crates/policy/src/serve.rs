//! The endpoint for chats: `/v1/chat/completions` and `/v1/models`, on the engine that acts
//! trajectories.
//!
//! `server.rs` listens, `access.rs` authenticates requests, `routes.rs` selects the kind of answer,
//! `chats.rs` turns a chat into tokens and a reply, `residents.rs` keeps sessions between requests,
//! `text.rs` decodes tokens into text as they arrive.

mod access;
mod chats;
mod residents;
mod routes;
mod server;
mod text;

pub use server::{ChatEndpoint, ServeError};
