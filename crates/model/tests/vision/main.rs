//! From encoded screenshots to rows of the language model, compared with the published
//! preprocessing and the reference model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod decode;
mod oracle;
mod pixels;
mod prompts;
mod tower;
