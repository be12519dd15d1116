//! Products of bfloat16 with the tiles of AMX (Intel Xeon from Sapphire Rapids on), detected at run
//! time.
//!
//! One instruction multiplies 16 rows by 32 inputs with 32 inputs by 16 outputs: 16,384 operations
//! in 16 cycles, against 64 a cycle of two AVX-512 pipes. A block is 32 rows by a panel of 32
//! outputs: each step along K loads four tiles (32 cycles from the first-level cache) for four
//! instructions (64 cycles).
//!
//! Order of an element: 32 inputs a step. In a step the even inputs are one chain of fused
//! multiply-adds from zero, the odd inputs another, and their sum is added to the element. Rows are
//! computed separately, so their number changes no bit. Subnormal numbers count as zero.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::grid::{TaskGrid, share};
use super::inputs::rounded;
use crate::kernels::buffer::AlignedBuffer;
use crate::kernels::isa::{InstructionSet, VectorOp};
use crate::kernels::matrix::{PANEL, PackedMatrix};
use crate::kernels::{ThreadPool, vector::Vector};

/// Rows of a tile.
const LINES: usize = 16;
/// 32-bit values of a tile's row: two inputs each.
const LINE: usize = 16;
/// 32-bit values of a tile.
const TILE: usize = LINES * LINE;

/// Whether this machine has the tiles and the system permits their use.
pub(super) fn is_here() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| has_instructions() && system_saves_tiles() && ask_for_permission())
}

/// AMX-TILE and AMX-BF16 (CPUID 7.0, EDX bits 24 and 22), and the instruction that reports what the
/// system saves (CPUID 1, ECX bit 27).
fn has_instructions() -> bool {
    let [basic, extended] = [(1, 0), (7, 0)].map(|(leaf, part)| __cpuid_count(leaf, part));
    let known = __cpuid_count(0, 0).eax >= 7;
    known && basic.ecx >> 27 & 1 == 1 && extended.edx >> 24 & 1 == 1 && extended.edx >> 22 & 1 == 1
}

/// Whether the system saves tiles when it switches threads: components 17 and 18 of XCR0.
fn system_saves_tiles() -> bool {
    let low: u32;
    // SAFETY: CPUID reported the instruction; it only reads a register.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags));
    };
    low >> 17 & 3 == 3
}

/// Linux allocates 8 KiB of tiles a thread only to a process that requests them:
/// `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)`.
#[cfg(target_os = "linux")]
fn ask_for_permission() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const REQUEST: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let answer: i64;
    // SAFETY: the system call touches no memory of this process. The kernel overwrites rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => answer, in("rdi") REQUEST, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn ask_for_permission() -> bool {
    false
}

/// Prefetches the 32 lines of one step of a panel, this many bytes ahead of the loop.
macro_rules! prefetch {
    ($ahead:literal) => {
        concat!(
            prefetch!($ahead; 0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960),
            prefetch!($ahead; 1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984),
        )
    };
    ($ahead:literal; $($line:literal)*) => {
        concat!($("prefetcht0 [{weights} + ", $ahead, " + ", $line, "]\n"),*)
    };
}

/// `y[m, out] = x[m, in] W^T` for bfloat16 weights; the caller has checked the shapes and
/// `is_here`.
pub(super) fn product(
    matrix: &PackedMatrix,
    team: &ThreadPool,
    x: &[f32],
    y: &mut [f32],
    scratch: &mut AlignedBuffer,
) {
    let rows = y.len() / matrix.out;
    let blocks = rows.div_ceil(LINES);
    let steps = matrix.panel_steps() / LINE;
    scratch.grow(blocks * steps * TILE);
    let packed = &mut scratch[..blocks * steps * TILE];
    team.pieces(packed, steps * TILE, |block, packed| {
        InstructionSet::best().run(RowPacker { x, input: matrix.input, first: block * LINES, rows, packed });
    });

    let cut = TaskGrid::new(matrix, rows, team.threads());
    let output = AmxOutput { start: y.as_mut_ptr(), rows, matrix, inputs: packed, steps };
    team.tasks(cut.groups * cut.strips, |task| {
        let group = task / cut.strips;
        let strip = task % cut.strips;
        let panels = share(matrix.out.div_ceil(PANEL), cut.strips, strip);
        output.strip(share(blocks, cut.groups, group), panels);
    });
}

/// Rounds the rows of one block to bfloat16 and arranges them tile by tile along K; missing rows
/// are zero.
struct RowPacker<'a> {
    x: &'a [f32],
    input: usize,
    /// The block's first row, and the number of all rows.
    first: usize,
    rows: usize,
    packed: &'a mut [u32],
}

impl VectorOp for RowPacker<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { x, input, first, rows, packed } = self;
        for (step, tile) in packed.chunks_exact_mut(TILE).enumerate() {
            for (line, packed) in tile.chunks_exact_mut(LINE).enumerate() {
                if first + line >= rows {
                    packed.fill(0);
                    continue;
                }
                let from = &x[(first + line) * input..][..input][step * 2 * LINE..];
                match from.first_chunk::<{ 2 * LINE }>() {
                    Some(from) => pack(from, packed),
                    None => {
                        let mut part = [0.0; 2 * LINE];
                        part[..from.len()].copy_from_slice(from);
                        pack(&part, packed);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn pack(from: &[f32; 2 * LINE], packed: &mut [u32]) {
    let (pairs, _) = from.as_chunks::<2>();
    for (lane, [even, odd]) in packed.iter_mut().zip(pairs) {
        *lane = rounded(*even) | rounded(*odd) << 16;
    }
}

/// Destination of a product. Threads write disjoint parts of it.
struct AmxOutput<'a> {
    start: *mut f32,
    rows: usize,
    matrix: &'a PackedMatrix,
    inputs: &'a [u32],
    steps: usize,
}

// SAFETY: every element of y belongs to one strip, and each strip is computed by one thread.
unsafe impl Sync for AmxOutput<'_> {}

impl AmxOutput<'_> {
    /// Some blocks of 16 rows by some panels, all along K.
    fn strip(&self, blocks: std::ops::Range<usize>, panels: std::ops::Range<usize>) {
        let tiles = TileRegisters::configure();
        for panel in panels {
            let weights = &self.matrix.packed[panel * self.matrix.panel_len()..][..self.matrix.panel_len()];
            let mut block = blocks.start;
            while block < blocks.end {
                let pair = block + 1 < blocks.end;
                self.block(&tiles, block, pair, panel, weights);
                block += 1 + usize::from(pair);
            }
        }
    }

    /// One or two blocks of rows by a panel. Blocks that exceed y go through a full one.
    fn block(&self, tiles: &TileRegisters, block: usize, pair: bool, panel: usize, weights: &[u32]) {
        let from = block * LINES;
        let lines = LINES << usize::from(pair);
        let inputs = &self.inputs[block * self.steps * TILE..][..lines / LINES * self.steps * TILE];
        let rows = lines.min(self.rows - from);
        let outputs = PANEL.min(self.matrix.out - panel * PANEL);
        // SAFETY: a row and a column of y.
        let start = unsafe { self.start.add(from * self.matrix.out + panel * PANEL) };
        if rows == lines && outputs == PANEL {
            // SAFETY: the whole block is inside y and belongs to this thread alone.
            return unsafe { tiles.multiply(inputs, weights, self.steps, pair, start, self.matrix.out) };
        }
        let mut full = [0.0f32; 2 * LINES * PANEL];
        // SAFETY: `full` has space for two blocks.
        unsafe { tiles.multiply(inputs, weights, self.steps, pair, full.as_mut_ptr(), PANEL) };
        for (row, full) in full.chunks_exact(PANEL).enumerate().take(rows) {
            // SAFETY: these outputs of this row are inside y and belong to this thread alone.
            let sums = unsafe { std::slice::from_raw_parts_mut(start.add(row * self.matrix.out), outputs) };
            sums.copy_from_slice(&full[..outputs]);
        }
    }
}

/// The tile registers of this thread, eight of 16 rows by 64 bytes, released on drop.
struct TileRegisters;

/// The argument of `ldtilecfg`: palette 1, then the bytes a row and the rows of each tile.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPE: TileConfig = {
    let mut row_bytes = [0; 16];
    let mut rows = [0; 16];
    let mut tile = 0;
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (4 * LINE as u16, LINES as u8);
        tile += 1;
    }
    TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

impl TileRegisters {
    fn configure() -> Self {
        // SAFETY: `is_here` was checked before, and the configuration is valid.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const SHAPE, options(nostack, preserves_flags, readonly));
        };
        Self
    }

    /// One block of 16 rows, or two, by the 32 outputs of a panel, along `steps` tiles.
    ///
    /// SAFETY: 32 values of each row can be written at `sums`, rows `stride` values apart, by this
    /// thread alone.
    unsafe fn multiply(
        &self,
        inputs: &[u32],
        weights: &[u32],
        steps: usize,
        pair: bool,
        sums: *mut f32,
        stride: usize,
    ) {
        assert!(
            steps > 0
                && inputs.len() == (steps * TILE) << usize::from(pair)
                && weights.len() == 2 * steps * TILE
        );
        if pair {
            // SAFETY: `steps` tiles of two blocks and of both halves of the panel can be read, and
            // the sums can be written by the contract above.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "2:",
                    "tileloadd tmm4, [{first} + {line}]",
                    "tileloadd tmm6, [{weights} + 2 * {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{weights} + 2 * {line} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{second} + {line}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {first}, 1024", "add {second}, 1024", "add {weights}, 2048",
                    "dec {steps}", "jnz 2b",
                    "tilestored [{sums} + {stride}], tmm0",
                    "tilestored [{sums} + {stride} + 64], tmm1",
                    "tilestored [{below} + {stride}], tmm2",
                    "tilestored [{below} + {stride} + 64], tmm3",
                    first = inout(reg) inputs.as_ptr() => _,
                    second = inout(reg) inputs[steps * TILE..].as_ptr() => _,
                    weights = inout(reg) weights.as_ptr() => _,
                    steps = inout(reg) steps => _,
                    sums = in(reg) sums,
                    below = in(reg) sums.wrapping_add(LINES * stride),
                    stride = in(reg) stride * size_of::<f32>(),
                    line = in(reg) LINE * size_of::<u32>(),
                    options(nostack),
                );
            }
        } else {
            // SAFETY: as above for one block.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1",
                    "2:",
                    // Few rows stream the weights from memory, and rows of tiles confuse the
                    // hardware's own prefetching: without this, 0.6 of the machine's read rate was
                    // measured.
                    prefetch!(8192),
                    "tileloadd tmm4, [{first} + {line}]",
                    "tileloadd tmm6, [{weights} + 2 * {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{weights} + 2 * {line} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {first}, 1024", "add {weights}, 2048",
                    "dec {steps}", "jnz 2b",
                    "tilestored [{sums} + {stride}], tmm0",
                    "tilestored [{sums} + {stride} + 64], tmm1",
                    first = inout(reg) inputs.as_ptr() => _,
                    weights = inout(reg) weights.as_ptr() => _,
                    steps = inout(reg) steps => _,
                    sums = in(reg) sums,
                    stride = in(reg) stride * size_of::<f32>(),
                    line = in(reg) LINE * size_of::<u32>(),
                    options(nostack),
                );
            }
        }
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: releases the registers, so that the system need not save them.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
