//! The whole backend without a GPU: its kernels through the shim, its products in plain Rust, held to the `cpu` backend and to the oracle.
//!
//! With `FURROW_TEST_GPU` set (`tests/gpu.sh parity`) the same tests run on a GPU; those that look into the air do not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod air;
mod case;
mod chosen;
mod doors;
mod life;
mod lost;
mod made;
mod measured;
mod needs;
mod pair;
mod parking;
mod sampling;
#[expect(dead_code, reason = "which kernels were never launched is asked by their own tests")]
#[path = "../kernels/shim.rs"]
mod shim;
mod truth;
mod types;
mod vision;
