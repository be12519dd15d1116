//! Converts rows between types: `kernels/convert.cu`.

use half::bf16;

use super::DeviceRows;
use crate::launch::{DeviceView, KernelLaunch, size};

/// Values of a block.
const BLOCK: usize = 256;

/// Writes `count` rows of `width` values as float32, contiguously.
pub fn widen(from: DeviceRows<bf16>, to: DeviceView<f32>, count: usize, width: usize) -> KernelLaunch {
    from.assert_width(width, "rows to be widened");
    assert!(to.len() >= count * width, "output for {count} rows of {width}");
    let [from, stride] = from.arguments();
    let arguments = vec![from, stride, to.into(), size(width).into()];
    KernelLaunch { kernel: "widen_rows", arguments, ..over(count, width) }
}

/// Writes `count` contiguous rows of `width` values as the nearest bfloat16; `adds`: adds them to
/// the contents of the output.
pub fn narrow(
    from: DeviceView<f32>,
    to: DeviceRows<bf16>,
    count: usize,
    width: usize,
    adds: bool,
) -> KernelLaunch {
    to.assert_width(width, "rows to be narrowed");
    assert!(from.len() >= count * width, "input of {count} rows of {width}");
    let [to, stride] = to.arguments();
    let arguments = vec![from.into(), to, stride, size(width).into(), u32::from(adds).into()];
    KernelLaunch { kernel: "narrow_rows", arguments, ..over(count, width) }
}

fn over(count: usize, width: usize) -> KernelLaunch {
    KernelLaunch {
        file: "convert.cu",
        kernel: "",
        grid: [size(width.div_ceil(BLOCK)), size(count), 1],
        threads: size(BLOCK),
        shared_bytes: 0,
        arguments: Vec::new(),
    }
}
