//! The product of a packed matrix with rows of inputs.
//!
//! Lower bound: a product of m rows takes 2 m K N operations and reads 4 K N bytes of float32
//! weights (2 K N of bfloat16). A core of the reference machine computes about 64 operations a
//! cycle and reads 5 bytes a cycle from memory, so below about 25 rows the bytes of the weights are
//! the limit, above it the multiplications.
//!
//! A register block computes some rows by 32 outputs: every step loads one step of the panel and
//! broadcasts one input of each row. Blocks are cut along K so that a piece of the panel stays in
//! the first-level cache while all rows of a group use it; the sums are stored in y meanwhile. That
//! never changes an element's order of summation, so any number of rows gives the same bits.
#![allow(unsafe_code)]

/// Unrolls a loop over a constant number of indices (16 at most): otherwise the compiler keeps some
/// of these loops and, with them, the sums in memory.
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
mod grid;
mod inputs;
mod schemes;
#[cfg(test)]
mod tests;
mod tile;

use std::cell::Cell;

use super::isa::{InstructionSet, VectorOp};
use super::matrix::{PANEL, PackedFormat, PackedMatrix};
use super::vector::{LANES, Vector};
use super::{ThreadPool, buffer::AlignedBuffer};
use grid::{DEPTH, TaskGrid, share};
use inputs::InputRows;
use schemes::{Float32Scheme, StepScheme, WidenedScheme};
use tile::RegisterBlock;

/// Precision of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProductPrecision {
    /// Inputs unchanged, weights widened: float32 throughout.
    #[default]
    Float32,
    /// Inputs rounded to bfloat16, only for bfloat16 weights; sums in float32. Products with
    /// float32 weights stay in float32.
    Bfloat16,
}

/// The code that computes a product. All kernels of one order give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProductKernel {
    /// The chain of fused multiply-adds over unchanged inputs.
    Chain(InstructionSet),
    /// The same chain over inputs rounded to bfloat16.
    RoundedChain(InstructionSet),
    /// The tiles of AMX, which have their own order.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

impl ProductKernel {
    /// The kernel that this machine uses for such a product. It depends on nothing else, neither
    /// the shape nor the number of rows.
    fn best(stored: PackedFormat, compute: ProductPrecision) -> Self {
        match (stored, compute) {
            #[cfg(target_arch = "x86_64")]
            (PackedFormat::Bfloat16, ProductPrecision::Bfloat16) if amx::is_here() => Self::Tiles,
            (PackedFormat::Bfloat16, ProductPrecision::Bfloat16) => {
                Self::RoundedChain(InstructionSet::best())
            }
            _ => Self::Chain(InstructionSet::best()),
        }
    }

    fn isa(self) -> InstructionSet {
        match self {
            Self::Chain(isa) | Self::RoundedChain(isa) => isa,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => InstructionSet::best(),
        }
    }
}

impl PackedMatrix {
    /// `y[m, out] = x[m, in] W^T` for any number of rows m. In float32 each element is
    /// `fma(w[k], x[k], … fma(w[1], x[1], fma(w[0], x[0], 0)))`; in bfloat16 the order depends only
    /// on the machine.
    pub fn product(&self, team: &ThreadPool, compute: ProductPrecision, x: &[f32], y: &mut [f32]) {
        self.product_by(ProductKernel::best(self.stored, compute), team, x, y);
    }

    /// The product with a given kernel.
    fn product_by(&self, kernel: ProductKernel, team: &ThreadPool, x: &[f32], y: &mut [f32]) {
        let rows = y.len() / self.out.max(1);
        assert_eq!(
            y.len(),
            rows * self.out,
            "outputs of {rows} rows by a matrix of {} x {}",
            self.out,
            self.input
        );
        assert_eq!(
            x.len(),
            rows * self.input,
            "inputs of {rows} rows by a matrix of {} x {}",
            self.out,
            self.input
        );
        product(self, kernel, team, x, y);
    }
}

thread_local! {
    /// Buffer for a caller's rearranged inputs. It is kept, so that a decode step allocates
    /// nothing.
    static SCRATCH: Cell<AlignedBuffer> = Cell::default();
}

/// `y[m, out] = x[m, in] W^T`; the caller has checked the shapes.
fn product(matrix: &PackedMatrix, kernel: ProductKernel, team: &ThreadPool, x: &[f32], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    if matrix.input == 0 {
        return y.fill(0.0);
    }
    let mut scratch = SCRATCH.take();
    #[cfg(target_arch = "x86_64")]
    if kernel == ProductKernel::Tiles {
        amx::product(matrix, team, x, y, &mut scratch);
        return SCRATCH.set(scratch);
    }
    let rows = y.len() / matrix.out;
    let rounded = matches!(kernel, ProductKernel::RoundedChain(_));
    let inputs = InputRows::prepare(kernel.isa(), rounded, matrix, team, x, rows, &mut scratch);
    let cut = TaskGrid::new(matrix, rows, team.threads());
    let output = ProductOutput { start: y.as_mut_ptr(), matrix, inputs };
    team.tasks(cut.groups * cut.strips, |task| {
        let group = task / cut.strips;
        let strip = task % cut.strips;
        let rows = share(rows, cut.groups, group);
        let panels = share(matrix.out.div_ceil(PANEL), cut.strips, strip);
        kernel.isa().run(PanelStrip { output: &output, rows, panels });
    });
    SCRATCH.set(scratch);
}

/// Destination of a product. Threads write disjoint parts of it.
struct ProductOutput<'a> {
    start: *mut f32,
    matrix: &'a PackedMatrix,
    inputs: InputRows<'a>,
}

// SAFETY: every element of y belongs to one strip, and each strip is computed by one thread.
unsafe impl Sync for ProductOutput<'_> {}

/// One task: some rows by some panels.
struct PanelStrip<'a> {
    output: &'a ProductOutput<'a>,
    rows: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
}

impl VectorOp for PanelStrip<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.output.matrix.stored {
            PackedFormat::Float32 => self.by_scheme::<V, Float32Scheme>(),
            PackedFormat::Bfloat16 => self.by_scheme::<V, WidenedScheme>(),
        }
    }
}

impl PanelStrip<'_> {
    #[inline(always)]
    fn by_scheme<V: Vector, S: StepScheme<V>>(self) {
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

    /// Some rows by a panel, along DEPTH steps. The last panel may have fewer than 32 outputs: then
    /// the sums go through a full block.
    #[inline(always)]
    fn block<V: Vector, S: StepScheme<V>>(&self, from: usize, panel: usize, rows: std::ops::Range<usize>) {
        let ProductOutput { start, matrix, inputs } = self.output;
        let outputs = PANEL.min(matrix.out - panel * PANEL);
        let at = rows.start * matrix.out + panel * PANEL;
        let mut tile = RegisterBlock {
            steps: DEPTH.min(matrix.steps() - from),
            half: from + DEPTH >= matrix.steps() && !matrix.input.is_multiple_of(S::WEIGHTS),
            weights: matrix.packed[panel * matrix.panel_len() + from * PANEL..].as_ptr(),
            inputs: inputs.at(rows.start, from),
            inputs_stride: inputs.row_stride,
            // SAFETY: a row and a column of y.
            sums: unsafe { start.add(at) },
            sums_stride: matrix.out,
            begun: from > 0,
        };
        if outputs == PANEL {
            // SAFETY: the rows and the panel are inside y, x and the matrix.
            unsafe { tile.run::<V, S>(rows.len()) };
        } else {
            // SAFETY: as above, for the outputs that exist.
            unsafe { self.narrow::<V, S>(&mut tile, rows.len(), outputs) };
        }
    }

    /// A block of fewer outputs than a panel has.
    ///
    /// SAFETY: `tile` satisfies the contract of `RegisterBlock::run`, except that only `outputs`
    /// values a row at `sums` belong to this call.
    #[inline(always)]
    unsafe fn narrow<V: Vector, S: StepScheme<V>>(
        &self,
        tile: &mut RegisterBlock,
        rows: usize,
        outputs: usize,
    ) {
        let mut full = [0.0f32; ROWS_MAX * PANEL];
        let start = tile.sums;
        let stride = tile.sums_stride;
        (tile.sums, tile.sums_stride) = (full.as_mut_ptr(), PANEL);
        for row in 0..rows {
            // SAFETY: by the contract above.
            let sums = unsafe { std::slice::from_raw_parts(start.add(row * stride), outputs) };
            if tile.begun {
                full[row * PANEL..][..outputs].copy_from_slice(sums);
            }
        }
        // SAFETY: `full` has space for every row of the largest block.
        unsafe { tile.run::<V, S>(rows) };
        for row in 0..rows {
            // SAFETY: by the contract above.
            let sums = unsafe { std::slice::from_raw_parts_mut(start.add(row * stride), outputs) };
            sums.copy_from_slice(&full[row * PANEL..][..outputs]);
        }
    }
}

/// Rows of the largest block of any instruction set.
const ROWS_MAX: usize = 12;

const _: () = assert!(PANEL == 2 * LANES);
