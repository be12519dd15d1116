//! For tests: proptest strategies that several crates share, hostile HTTP clients, fake servers for
//! a judge's model and for a collector, and a certificate authority that is no run's.

pub mod chat_server;
#[cfg(feature = "collector")]
pub mod collector;
pub mod generators;
pub mod hostile_http;
#[cfg(feature = "outside")]
pub mod outside;
