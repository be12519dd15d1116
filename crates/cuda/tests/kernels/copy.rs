//! Copies of places, byte for byte.

use furrow_cuda::launch::Move;
use furrow_cuda::ops::copy::{CopyPlaces, Places};

use crate::batch::Draw;
use crate::family::{Bug, Family, Kind, same};
use crate::memory::Memory;
use crate::place::Library;

pub const FAMILY: Family = Family {
    file: "copy.cu",
    check,
    bugs: &[
        Bug { kind: Kind::Index, find: "to += move.to * to_stride", put: "to += move.from * to_stride" },
        Bug { kind: Kind::Index, find: "blockDim.x * PACKS + threadIdx.x", put: "blockDim.x + threadIdx.x" },
        Bug { kind: Kind::Index, find: "if (first + i * step < bytes) *reinterpret", put: "*reinterpret" },
        Bug {
            kind: Kind::State,
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

fn check(library: &Library) -> Result<(), String> {
    for (bytes, stride) in [(16, 32), (4096, 4096), (16_384, 16_400), (40_000, 40_016)] {
        compare(library, bytes, stride)?;
    }
    Ok(())
}

/// A fork, a clearing, a way out and back, on four places.
fn compare(library: &Library, bytes: usize, stride: usize) -> Result<(), String> {
    let values: Vec<u8> =
        Draw::new(5).floats(4 * stride, 128.0).into_iter().map(|value| value as i8 as u8).collect();
    let (arena, outside) = (Memory::of(&values), Memory::of(&vec![7_u8; 2 * bytes]));
    let arena_places = Places { bytes: arena.view(), stride };
    let outside_places = Places { bytes: outside.view(), stride: bytes };
    let run = |from, to, moves: &[Move]| {
        let moves = Memory::of(moves);
        library.run(&CopyPlaces { from, to, moves: moves.view(), bytes }.launch())
    };
    let at = |from, to| Move { from, to };
    run(Some(arena_places), arena_places, &[at(0, 2)])?;
    run(Some(arena_places), outside_places, &[at(3, 0), at(2, 1)])?;
    run(None, arena_places, &[at(9, 3), at(9, 0)])?;
    let cleared = arena.read()?;
    run(Some(outside_places), arena_places, &[at(0, 0)])?;

    let place = |index: usize| index * stride..index * stride + bytes;
    let mut want = values.clone();
    want.copy_within(place(0), 2 * stride);
    want[place(3)].fill(0);
    want[place(0)].fill(0);
    same(format!("cleared places of {bytes} bytes"), &cleared, &want)?;
    want[place(0)].copy_from_slice(&values[place(3)]);
    same(format!("places of {bytes} bytes"), &arena.read()?, &want)?;
    same("parked", &outside.read()?, &[&values[place(3)], &values[place(0)]].concat())
}
