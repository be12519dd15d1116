//! The language model of the `cpu` backend, held to the oracle and to itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bits;
mod oracle;
mod states;
mod truth;
