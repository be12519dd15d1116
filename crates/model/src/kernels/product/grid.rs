//! How a product is divided: into tasks, and each panel into pieces.

use std::ops::Range;

use crate::kernels::matrix::{PANEL, PackedMatrix};

/// Steps of a piece of a panel: 256 x 32 x 4 B = 32 KiB, two thirds of a first-level cache; 12 rows
/// of inputs take another quarter.
pub(super) const DEPTH: usize = 256;

/// Rows that share a piece of a panel: their inputs of DEPTH steps, 192 KiB, stay in the
/// second-level cache.
const GROUP: usize = 192;

/// How a product is divided into tasks: groups of rows by strips of panels.
pub(super) struct TaskGrid {
    pub groups: usize,
    pub strips: usize,
}

impl TaskGrid {
    /// Four tasks a thread balance threads of different speed. There are more only if a strip would
    /// exceed 16 panels, whose sums (192 x 512 x 4 B = 384 KiB) stay in the second-level cache.
    pub(super) fn new(matrix: &PackedMatrix, rows: usize, threads: usize) -> Self {
        let panels = matrix.out.div_ceil(PANEL);
        let groups = rows.div_ceil(GROUP);
        let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil(groups) };
        let strips = wanted.max(panels.div_ceil(16)).min(panels);
        Self { groups, strips }
    }
}

/// The `index`th of `shares` nearly equal parts of 0..total.
pub(super) fn share(total: usize, shares: usize, index: usize) -> Range<usize> {
    total * index / shares..total * (index + 1) / shares
}
