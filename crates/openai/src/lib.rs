//! The OpenAI wire form, client side: asks a chat-completions endpoint in words and pictures.
//!
//! [`Client::ask`] blocks: it is for threads that may wait, such as those that score. Every call has a deadline, every reply a cap,
//! and what may heal by itself (429, 5xx, a server that is away, slow or garbled) is tried again with growing pauses until the
//! attempts or the time are used up. The key never appears in an error, a log line or a `Debug` text.

mod client;
mod wire;

pub use client::{Ask, AskError, Client, ClientConfig, Completion, Key, Until};
