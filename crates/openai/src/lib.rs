//! The OpenAI wire protocol: a client that sends texts and images to a chat-completions endpoint,
//! and the request and answer formats of a server.
//!
//! [`ChatClient::ask`] asks one question, [`ChatClient::chat`] continues a conversation. Both block
//! the thread. Every call has a deadline and every reply a size limit. Failures that may pass (429,
//! 5xx, a server that is down, slow or sends broken data) are retried with growing pauses until the
//! attempts or the time are used up. The key never appears in an error, a log line or a `Debug`
//! text. [`server`] has the server's formats.

mod chat;
mod client;
pub mod server;
mod wire;

pub use chat::{ChatConversation, ChatReply, ConversationTurn, Role, TokenIds};
pub use client::{ApiKey, CallLimits, ChatCallError, ChatClient, ClientConfig};
pub use wire::{Completion, JudgeQuestion};
