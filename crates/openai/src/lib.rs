//! The OpenAI wire form: asks a chat-completions endpoint in words and pictures, and reads and answers what such an endpoint is asked.
//!
//! [`Client::ask`] asks one question, [`Client::chat`] goes on with a conversation. Both block: they are for threads that may wait. Every call has a deadline, every reply a cap,
//! and what may heal by itself (429, 5xx, a server that is away, slow or garbled) is tried again with growing pauses until the
//! attempts or the time are used up. The key never appears in an error, a log line or a `Debug` text. [`server`] is the other side.

mod chat;
mod client;
pub mod server;
mod wire;

pub use chat::{Chat, ChatReply, Message, Role, TokenIds};
pub use client::{Ask, AskError, Client, ClientConfig, Completion, Key, Until};
