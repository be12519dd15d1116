//! The model through its public interface: checkpoints, the language model and the images, compared
//! with the oracle.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint;
mod checkpoint_init;
mod language;
mod vision;
