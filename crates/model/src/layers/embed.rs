//! Rows of the embedding table, float32 or widened from bfloat16.

use crate::kernels::math;
use crate::weights::{EmbeddingTable, StoredValues};

/// Row `id` of the table. The batch validation has checked the id.
pub fn row(table: &EmbeddingTable, id: u32, out: &mut [f32]) {
    let start = id as usize * table.width;
    let range = start..start + table.width;
    match &table.values {
        StoredValues::F32(values) => out.copy_from_slice(&values[range]),
        StoredValues::Bf16(bits) => math::widen(&bits[range], out),
    }
}
