//! The product of a packed matrix with rows of inputs.
//!
//! Floor: a product of m rows does 2 m K N operations and reads 4 K N bytes of float32 weights (2 K N of bfloat16). A core here does about
//! 64 operations a cycle and is fed 5 bytes a cycle from memory, so below some 25 rows the weights' bytes are the bound and above it
//! the multiplications are.
//!
//! A register block computes some rows by 32 outputs: every step loads one step of the panel and, for each row, one broadcast input. Blocks
//! are cut along K so that a piece of the panel stays in the first-level cache while all rows of a group pass by; the sums wait in y. That
//! never changes an element's order of summation, which is why any number of rows gives the same bits.
#![allow(unsafe_code)]

/// A loop over a constant number of indices (16 at most), written out: left to itself the compiler keeps some of these loops, and then
/// the sums in memory.
macro_rules! each {
    ($index:ident < $count:ident, $body:block) => { $crate::kernels::product::each!($index, $count, $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    ($index:ident, $count:ident, $body:block; $($at:literal)*) => {
        $(if $at < $count {
            let $index = $at;
            $body
        })*
    };
}
pub(super) use each;

#[cfg(target_arch = "x86_64")]
mod amx;
mod inputs;
mod schemes;
#[cfg(test)]
mod tests;
mod tile;

use std::cell::Cell;

use super::isa::{Isa, Op};
use super::matrix::{Compute, Matrix, PANEL, Stored};
use super::vector::{LANES, Vector};
use super::{Team, buffer::Buffer};
use inputs::Inputs;
use schemes::{Float32, Scheme, Widened};
use tile::Tile;

/// What computes a product. All kernels of one order give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The chain of fused multiply-adds over inputs as they are.
    Chain(Isa),
    /// The same chain over inputs rounded to bfloat16.
    RoundedChain(Isa),
    /// The tiles of AMX, which have an order of their own.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

impl Kernel {
    /// The one this machine does such a product by. It depends on nothing else: not on the shape and not on the rows.
    pub(super) fn best(stored: Stored, compute: Compute) -> Self {
        match (stored, compute) {
            #[cfg(target_arch = "x86_64")]
            (Stored::Bfloat16, Compute::Bfloat16) if amx::is_here() => Self::Tiles,
            (Stored::Bfloat16, Compute::Bfloat16) => Self::RoundedChain(Isa::best()),
            _ => Self::Chain(Isa::best()),
        }
    }

    fn isa(self) -> Isa {
        match self {
            Self::Chain(isa) | Self::RoundedChain(isa) => isa,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => Isa::best(),
        }
    }
}

/// Steps of a piece of a panel: 256 x 32 x 4 B = 32 KiB, two thirds of a first-level cache; 12 rows of inputs take another quarter.
const DEPTH: usize = 256;

/// Rows that share a piece of a panel before it is left: their inputs of DEPTH steps, 192 KiB, stay in the second-level cache.
const GROUP: usize = 192;

thread_local! {
    /// Where a caller's inputs are rearranged. Kept, so that a decode step allocates nothing.
    static SCRATCH: Cell<Buffer> = Cell::default();
}

/// `y[m, out] = x[m, in] W^T`, shapes checked by the caller.
pub(super) fn product(matrix: &Matrix, kernel: Kernel, team: &Team, x: &[f32], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    if matrix.input == 0 {
        return y.fill(0.0);
    }
    let mut scratch = SCRATCH.take();
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Tiles {
        amx::product(matrix, team, x, y, &mut scratch);
        return SCRATCH.set(scratch);
    }
    let rows = y.len() / matrix.out;
    let inputs = Inputs::prepare(kernel, matrix, team, x, rows, &mut scratch);
    let cut = Cut::new(matrix, rows, team.threads());
    let output = Output { start: y.as_mut_ptr(), matrix, inputs };
    team.tasks(cut.groups * cut.strips, |task| {
        let (group, strip) = (task / cut.strips, task % cut.strips);
        let rows = share(rows, cut.groups, group);
        let panels = share(matrix.out.div_ceil(PANEL), cut.strips, strip);
        kernel.isa().run(Strip { output: &output, rows, panels });
    });
    SCRATCH.set(scratch);
}

/// How a product is cut into tasks: groups of rows by strips of panels.
struct Cut {
    groups: usize,
    strips: usize,
}

impl Cut {
    /// Four tasks a thread even out threads of unlike speed; more only where a strip would outgrow 16 panels, whose sums
    /// (192 x 512 x 4 B = 384 KiB) wait in the second-level cache.
    fn new(matrix: &Matrix, rows: usize, threads: usize) -> Self {
        let panels = matrix.out.div_ceil(PANEL);
        let groups = rows.div_ceil(GROUP);
        let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil(groups) };
        let strips = wanted.max(panels.div_ceil(16)).min(panels);
        Self { groups, strips }
    }
}

/// The `index`th of `shares` nearly equal parts of 0..total.
fn share(total: usize, shares: usize, index: usize) -> std::ops::Range<usize> {
    total * index / shares..total * (index + 1) / shares
}

/// Where a product goes, shared by the threads that fill disjoint parts of it.
struct Output<'a> {
    start: *mut f32,
    matrix: &'a Matrix,
    inputs: Inputs<'a>,
}

// SAFETY: every element of y belongs to one strip, and each strip is computed by one thread.
unsafe impl Sync for Output<'_> {}

/// One task: some rows by some panels.
struct Strip<'a> {
    output: &'a Output<'a>,
    rows: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
}

impl Op for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.output.matrix.stored {
            Stored::Float32 => self.by_scheme::<V, Float32>(),
            Stored::Bfloat16 => self.by_scheme::<V, Widened>(),
        }
    }
}

impl Strip<'_> {
    #[inline(always)]
    fn by_scheme<V: Vector, S: Scheme<V>>(self) {
        let steps = self.output.matrix.steps();
        let blocks = self.rows.len().div_ceil(V::BLOCK[0]);
        for from in (0..steps).step_by(DEPTH) {
            for panel in self.panels.clone() {
                for block in 0..blocks {
                    let rows = share(self.rows.len(), blocks, block);
                    let first = self.rows.start + rows.start;
                    self.block::<V, S>(from, panel, first..first + rows.len());
                }
            }
        }
    }

    /// Some rows by a panel, along DEPTH steps. The last panel may have fewer than 32 outputs: its sums take a detour over a full block.
    #[inline(always)]
    fn block<V: Vector, S: Scheme<V>>(&self, from: usize, panel: usize, rows: std::ops::Range<usize>) {
        let Output { start, matrix, inputs } = self.output;
        let outputs = PANEL.min(matrix.out - panel * PANEL);
        let at = rows.start * matrix.out + panel * PANEL;
        let mut tile = Tile {
            steps: DEPTH.min(matrix.steps() - from),
            half: from + DEPTH >= matrix.steps() && !matrix.input.is_multiple_of(S::WEIGHTS),
            weights: matrix.words[panel * matrix.panel_words() + from * PANEL..].as_ptr(),
            inputs: inputs.at(rows.start, from),
            inputs_stride: inputs.row_stride,
            // SAFETY: a row and a column inside y.
            sums: unsafe { start.add(at) },
            sums_stride: matrix.out,
            begun: from > 0,
        };
        if outputs == PANEL {
            // SAFETY: the rows and the panel lie inside y, x and the matrix.
            unsafe { tile.run::<V, S>(rows.len()) };
        } else {
            // SAFETY: as above for the outputs there are.
            unsafe { self.narrow::<V, S>(&mut tile, rows.len(), outputs) };
        }
    }

    /// A block of fewer outputs than a panel has.
    ///
    /// SAFETY: `tile` is as `Tile::run` wants it, but only `outputs` values a row are ours at `sums`.
    #[inline(always)]
    unsafe fn narrow<V: Vector, S: Scheme<V>>(&self, tile: &mut Tile, rows: usize, outputs: usize) {
        let mut full = [0.0f32; ROWS_MAX * PANEL];
        let (start, stride) = (tile.sums, tile.sums_stride);
        (tile.sums, tile.sums_stride) = (full.as_mut_ptr(), PANEL);
        for row in 0..rows {
            // SAFETY: by the contract above.
            let sums = unsafe { std::slice::from_raw_parts(start.add(row * stride), outputs) };
            if tile.begun {
                full[row * PANEL..][..outputs].copy_from_slice(sums);
            }
        }
        // SAFETY: `full` has room for every row of the largest block.
        unsafe { tile.run::<V, S>(rows) };
        for row in 0..rows {
            // SAFETY: by the contract above.
            let sums = unsafe { std::slice::from_raw_parts_mut(start.add(row * stride), outputs) };
            sums.copy_from_slice(&full[row * PANEL..][..outputs]);
        }
    }
}

/// Rows of the largest block of any machine.
const ROWS_MAX: usize = 12;

const _: () = assert!(PANEL == 2 * LANES);
