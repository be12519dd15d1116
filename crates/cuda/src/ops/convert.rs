//! Rows from one type to the other: `kernels/convert.cu`.

use half::bf16;

use super::Rows;
use crate::launch::{Launch, View, size};

/// Values of a block.
const BLOCK: usize = 256;

/// `count` rows of `width` values as float32, one behind the other.
pub fn widen(from: Rows<bf16>, to: View<f32>, count: usize, width: usize) -> Launch {
    from.hold(width, "rows to be widened");
    assert!(to.len() >= count * width, "room for {count} rows of {width}");
    let [from, stride] = from.arguments();
    let arguments = vec![from, stride, to.into(), size(width).into()];
    Launch { kernel: "widen_rows", arguments, ..over(count, width) }
}

/// `count` rows of `width` values, one behind the other, as the nearest in bfloat16; `adds`: added to what is there.
pub fn narrow(from: View<f32>, to: Rows<bf16>, count: usize, width: usize, adds: bool) -> Launch {
    to.hold(width, "rows that are narrow");
    assert!(from.len() >= count * width, "{count} rows of {width}");
    let [to, stride] = to.arguments();
    let arguments = vec![from.into(), to, stride, size(width).into(), u32::from(adds).into()];
    Launch { kernel: "narrow_rows", arguments, ..over(count, width) }
}

fn over(count: usize, width: usize) -> Launch {
    Launch {
        file: "convert.cu",
        kernel: "",
        grid: [size(width.div_ceil(BLOCK)), size(count), 1],
        threads: size(BLOCK),
        shared_bytes: 0,
        arguments: Vec::new(),
    }
}
