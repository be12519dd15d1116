//! For tests: what property tests of several crates draw.

pub mod nouns;
