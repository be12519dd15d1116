//! Copies of ranges, byte for byte.

use furrow_cuda::launch::CopyMove;
use furrow_cuda::ops::copy::{CopyLaunch, CopyRegion};

use crate::batch::RandomCase;
use crate::family::{BugKind, KernelFamily, PlantedBug, same};
use crate::memory::GuardedMemory;
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "copy.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "to += move.to * to_stride",
            put: "to += move.from * to_stride",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "blockDim.x * PACKS + threadIdx.x",
            put: "blockDim.x + threadIdx.x",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "if (first + i * step < bytes) *reinterpret",
            put: "*reinterpret",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "if (from) from += move.from * from_stride",
            put: "if (from) from += move.to * from_stride",
        },
    ],
};

#[test]
fn agrees_with_the_cpu() {
    FAMILY.agrees();
}

#[test]
fn planted_bugs_show() {
    FAMILY.finds_its_bugs();
}

fn check(library: &KernelRunner) -> Result<(), String> {
    for (bytes, stride) in [(16, 32), (4096, 4096), (16_384, 16_400), (40_000, 40_016)] {
        compare(library, bytes, stride)?;
    }
    Ok(())
}

/// A fork, a clear, a copy out and a copy back, on four ranges.
fn compare(library: &KernelRunner, bytes: usize, stride: usize) -> Result<(), String> {
    let values: Vec<u8> =
        RandomCase::new(5).floats(4 * stride, 128.0).into_iter().map(|value| value as i8 as u8).collect();
    let arena = GuardedMemory::of(&values);
    let outside = GuardedMemory::of(&vec![7_u8; 2 * bytes]);
    let arena_region = CopyRegion { bytes: arena.view(), stride };
    let outside_region = CopyRegion { bytes: outside.view(), stride: bytes };
    let run = |from, to, moves: &[CopyMove]| {
        let moves = GuardedMemory::of(moves);
        library.run(&CopyLaunch { from, to, moves: moves.view(), bytes }.launch())
    };
    let at = |from, to| CopyMove { from, to };
    run(Some(arena_region), arena_region, &[at(0, 2)])?;
    run(Some(arena_region), outside_region, &[at(3, 0), at(2, 1)])?;
    run(None, arena_region, &[at(9, 3), at(9, 0)])?;
    let cleared = arena.read()?;
    run(Some(outside_region), arena_region, &[at(0, 0)])?;

    let byte_range = |index: usize| index * stride..index * stride + bytes;
    let mut want = values.clone();
    want.copy_within(byte_range(0), 2 * stride);
    want[byte_range(3)].fill(0);
    want[byte_range(0)].fill(0);
    same(format!("cleared ranges of {bytes} bytes"), &cleared, &want)?;
    want[byte_range(0)].copy_from_slice(&values[byte_range(3)]);
    same(format!("ranges of {bytes} bytes"), &arena.read()?, &want)?;
    same("offloaded", &outside.read()?, &[&values[byte_range(3)], &values[byte_range(0)]].concat())
}
