//! The endpoint for chats: `/v1/chat/completions`, `/v1/responses`, `/v1/completions` and
//! `/v1/models`, on the engine that acts trajectories.
//!
//! `server.rs` listens, `access.rs` authenticates requests, `routes.rs` selects the kind of answer,
//! `admission.rs` bounds what waits and runs, `requests.rs` reads requests of all routes,
//! `chats.rs` turns them into replies. `segment.rs` builds the prompt's tokens, `forms.rs` the form
//! of the reply, `calls.rs` finds calls of functions in it. `residents.rs` keeps sessions between
//! requests, which `digests.rs` recognises. `text.rs` decodes tokens into text as they arrive.

mod access;
mod admission;
mod calls;
mod chats;
mod digests;
mod errors;
mod forms;
mod requests;
mod residents;
mod routes;
mod segment;
mod server;
mod text;

pub use server::{ChatEndpoint, ServeError};
