//! Rows of the embedding table, float32 or widened from bfloat16.

use crate::kernels::math;
use crate::weights::{Table, Values};

/// Row `id` of the table. The id has been checked at the door of the batch.
pub fn row(table: &Table, id: u32, out: &mut [f32]) {
    let start = id as usize * table.width;
    let range = start..start + table.width;
    match &table.values {
        Values::F32(values) => out.copy_from_slice(&values[range]),
        Values::Bf16(bits) => math::widen(&bits[range], out),
    }
}
