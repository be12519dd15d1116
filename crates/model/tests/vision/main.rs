//! From encoded screenshots to rows of the language model, held to what the published preprocessing and the reference model gave.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod door;
mod oracle;
mod pixels;
mod prompts;
mod tower;
