//! The activation between an MLP's products: `kernels/squared_relu.cu`.

use super::assert_in_packs;
use crate::launch::{DeviceView, KernelLaunch, StoredElement, size};

/// Threads of a block, with 8 values each.
const THREADS: u32 = 256;
/// More blocks than any device runs at once; the rest is done in further rounds.
const BLOCKS_MAX: usize = 16_384;

/// `x = max(x, 0)^2`, in place.
pub fn squared_relu<T: StoredElement>(values: DeviceView<T>) -> KernelLaunch {
    assert_in_packs(values.len(), "values");
    let blocks = values.len().div_ceil(8 * THREADS as usize).min(BLOCKS_MAX);
    KernelLaunch {
        file: "squared_relu.cu",
        kernel: T::pick("squared_relu_f32", "squared_relu_bf16"),
        grid: [size(blocks), 1, 1],
        threads: THREADS,
        shared_bytes: 0,
        arguments: vec![values.into(), (values.len() as u64).into()],
    }
}
