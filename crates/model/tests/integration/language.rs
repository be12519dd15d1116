//! Compares the language model of the `cpu` backend with the oracle and with itself.

mod bits;
mod oracle;
mod states;
mod truth;
