//! For tests: what property tests of several crates draw, and a stand-in for a judge's server.

pub mod judge;
pub mod nouns;
