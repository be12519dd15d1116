//! Compares the language model of the `cpu` backend with the oracle and with itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bits;
mod oracle;
mod states;
mod truth;
