//! For tests: what property tests of several crates draw, and stand-ins for a judge's server and for a collector.

#[cfg(feature = "collector")]
pub mod collector;
pub mod judge;
pub mod nouns;
