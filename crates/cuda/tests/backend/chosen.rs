//! What the tests run on: this machine's processor, or a GPU where `FURROW_TEST_GPU` asks for one.

use std::env;

use furrow_cuda::executor::Executor;
use furrow_cuda::gpu::{Gpu, Places};

use crate::air::Air;

/// Asks for a GPU. `air` is a device of air in its place: it goes the way that a GPU goes.
const ASKED: &str = "FURROW_TEST_GPU";
/// Memory of that one: more than any test takes.
const AIR_BYTES: u64 = 1 << 30;

/// Whether the tests run on a GPU.
pub fn on_a_gpu() -> bool {
    env::var_os(ASKED).is_some()
}

/// The device that is asked for.
pub fn gpu() -> Box<dyn Executor> {
    if env::var_os(ASKED).is_some_and(|asked| asked == "air") {
        return Box::new(Air::new(AIR_BYTES).0);
    }
    let folders = env::var_os("FURROW_CUDA_LIBRARIES").unwrap_or_default();
    let libraries = env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let cache = env::temp_dir().join("furrow-test-kernels");
    Box::new(Gpu::open(&Places { ordinal: 0, libraries, cache }).unwrap())
}
