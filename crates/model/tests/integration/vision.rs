//! From encoded screenshots to rows of the language model, compared with the published
//! preprocessing and the reference model.

mod decode;
mod oracle;
mod pixels;
mod prompts;
mod tower;
