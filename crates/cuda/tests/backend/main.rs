//! Tests the whole backend without a GPU: its kernels run through the shim, its products in plain
//! Rust, and the results are compared with the `cpu` backend and the oracle.
//!
//! With `FURROW_TEST_GPU` set (`tests/gpu.sh parity`) the same tests run on a GPU, except those
//! that inspect the host executor. A binary of its own, as `kernels` is, because `tests/gpu.sh`
//! carries both to that machine and runs other tests of each.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod case;
mod chosen;
mod host_executor;
mod life;
mod lost;
mod made;
mod measured;
mod needs;
mod offload;
mod pair;
mod refusals;
mod sampling;
#[expect(dead_code, reason = "the tests of kernels check which were never launched")]
#[path = "../kernels/shim.rs"]
mod shim;
mod truth;
mod types;
mod vision;
