//! The gated norm by groups against `layers::norm::gated_row`.

use furrow_cuda::ops::norm::GatedNorm;
use furrow_model::layers::norm::gated_row;
use half::bf16;

use crate::family::{Bug, Draw, Family, Kind, near};
use crate::memory::{Memory, Number, Spread, rounded, rows, stored, widened};
use crate::shim::Library;

pub const FAMILY: Family = Family {
    file: "gated_norm.cu",
    check,
    bugs: &[
        Bug { kind: Kind::Index, find: "row * z_stride", put: "row * width" },
        Bug { kind: Kind::Index, find: "    w += first;\n", put: "" },
        Bug { kind: Kind::Barrier, find: "block_sum(squares, partial)", put: "warp_sum(squares)" },
        Bug {
            kind: Kind::Formula,
            find: "values[v] *= silu(gates[v])",
            put: "values[v] = silu(values[v]) * gates[v]",
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
    for (count, groups, group) in [(1, 1, 8), (3, 2, 40), (2, 8, 1280)] {
        compare::<f32>(library, count, groups, group)?;
        compare::<bf16>(library, count, groups, group)?;
    }
    Ok(())
}

fn compare<T: Number>(library: &Library, count: usize, groups: usize, group: usize) -> Result<(), String> {
    let (width, epsilon) = (groups * group, 0.05);
    let mut draw = Draw::new(9);
    let y = rounded::<T>(&draw.floats(count * width, 2.0));
    let z = Spread::new(&rounded::<T>(&draw.floats(count * width, 4.0)), width, 24);
    let weight = rounded::<T>(&draw.floats(width, 1.5));

    let (z_memory, weights) = (z.memory::<T>(), Memory::of(&stored::<T>(&weight)));
    let (from, out) = (Memory::of(&stored::<T>(&y)), Memory::<T>::unwritten(count * width));
    let norm = GatedNorm {
        y: from.view(),
        z: rows(&z_memory),
        weight: weights.view(),
        out: out.view(),
        count,
        groups,
        epsilon,
    };
    library.run(&norm.launch())?;
    // In place as well.
    library.run(&GatedNorm { out: from.view(), ..norm }.launch())?;

    let mut want = y;
    for (row, values) in want.chunks_exact_mut(width).enumerate() {
        gated_row(values, z.row(row), &weight, groups, epsilon);
    }
    let what = format!("{count} x {groups} x {group}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out.read()?), &want, T::TOLERANCE)?;
    near(format!("in place, {what}"), &widened(&from.read()?), &want, T::TOLERANCE)
}
