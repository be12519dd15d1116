//! For tests: proptest strategies that several crates share, hostile HTTP clients, and fake servers
//! for a judge's model and for a collector.

pub mod chat_server;
#[cfg(feature = "collector")]
pub mod collector;
pub mod generators;
pub mod hostile_http;
