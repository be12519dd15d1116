//! The endpoint for chats: `/v1/chat/completions` and `/v1/models`, another door to the engine that trajectories act on.
//!
//! `server.rs` listens, `access.rs` says who may ask, `routes.rs` what kind of answer each request gets, `chats.rs` turns a chat into
//! tokens and a reply, `residents.rs` keeps sessions between requests, `text.rs` makes text of tokens as they come.

mod access;
mod chats;
mod residents;
mod routes;
mod server;
mod text;

pub use server::{Endpoint, ServeError};
