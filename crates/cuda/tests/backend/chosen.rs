//! The executor of the tests: this machine's CPU, or a GPU if `FURROW_TEST_GPU` requests one.

use std::env;

use furrow_cuda::executor::Executor;
use furrow_cuda::gpu::{GpuExecutor, GpuPaths};

use crate::host_executor::HostExecutor;

/// Requests a GPU. The value `host` selects the host executor, used as a GPU is.
const GPU_VARIABLE: &str = "FURROW_TEST_GPU";
/// Memory of that executor: more than any test needs.
const HOST_EXECUTOR_BYTES: u64 = 1 << 30;

/// Whether the tests run on a GPU.
pub(crate) fn on_a_gpu() -> bool {
    env::var_os(GPU_VARIABLE).is_some()
}

pub(crate) fn gpu() -> Box<dyn Executor> {
    if env::var_os(GPU_VARIABLE).is_some_and(|value| value == "host") {
        return Box::new(HostExecutor::new(HOST_EXECUTOR_BYTES).0);
    }
    let folders = env::var_os("FURROW_CUDA_LIBRARIES").unwrap_or_default();
    let libraries = env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let cache = env::temp_dir().join("furrow-test-kernels");
    Box::new(GpuExecutor::open(&GpuPaths { ordinal: 0, libraries, cache }).unwrap())
}
