//! The gated norm by groups against `layers::norm::gated_row`.

use furrow_cuda::ops::norm::GatedNorm;
use furrow_model::layers::norm::gated_row;
use half::bf16;

use crate::batch::{Draw, Held};
use crate::family::{Bug, Family, Kind, near};
use crate::memory::{Memory, Number, widened};
use crate::place::Library;

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
    for (count, groups, group) in [(1, 1, 8), (3, 2, 40), (2, 3, 20), (2, 8, 1280)] {
        compare::<f32>(library, count, groups, group)?;
        compare::<bf16>(library, count, groups, group)?;
    }
    Ok(())
}

fn compare<T: Number>(library: &Library, count: usize, groups: usize, group: usize) -> Result<(), String> {
    let (width, epsilon) = (groups * group, 0.05);
    let mut draw = Draw::new(9);
    let y: Held<T> = draw.held(count * width, 2.0);
    let z = draw.spread::<T>(count, width, 24, 4.0);
    let weight: Held<T> = draw.held(width, 1.5);
    let out = Memory::<T>::unwritten(count * width);
    let norm = GatedNorm {
        y: y.view(),
        z: z.rows(),
        weight: weight.view(),
        out: out.view(),
        count,
        groups,
        epsilon,
    };
    library.run(&norm.launch())?;
    // In place as well.
    library.run(&GatedNorm { out: y.view(), ..norm }.launch())?;

    let mut want = y.values;
    for (row, values) in want.chunks_exact_mut(width).enumerate() {
        gated_row(values, z.row(row), &weight.values, groups, epsilon);
    }
    let what = format!("{count} x {groups} x {group}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out.read()?), &want, T::TOLERANCE)?;
    near(format!("in place, {what}"), &widened(&y.memory.read()?), &want, T::TOLERANCE)
}
