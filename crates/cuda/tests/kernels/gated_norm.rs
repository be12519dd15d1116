//! The gated group norm against `layers::norm::gated_row`.

use furrow_cuda::ops::norm::GatedNorm;
use furrow_model::layers::norm::gated_row;
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, near};
use crate::memory::{GuardedMemory, TestNumber, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "gated_norm.cu",
    check,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "row * z_stride", put: "row * width" },
        PlantedBug { kind: BugKind::Index, find: "    w += first;\n", put: "" },
        PlantedBug { kind: BugKind::Barrier, find: "block_sum(squares, partial)", put: "warp_sum(squares)" },
        PlantedBug {
            kind: BugKind::Formula,
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

fn check(library: &KernelRunner) -> Result<(), String> {
    for (count, groups, group) in [(1, 1, 8), (3, 2, 40), (2, 3, 20), (2, 8, 1280)] {
        compare::<f32>(library, count, groups, group)?;
        compare::<bf16>(library, count, groups, group)?;
    }
    Ok(())
}

fn compare<T: TestNumber>(
    library: &KernelRunner,
    count: usize,
    groups: usize,
    group: usize,
) -> Result<(), String> {
    let width = groups * group;
    let epsilon = 0.05;
    let mut random = RandomCase::new(9);
    let y: StoredMemory<T> = random.stored(count * width, 2.0);
    let z = random.spread::<T>(count, width, 24, 4.0);
    let weight: StoredMemory<T> = random.stored(width, 1.5);
    let out = GuardedMemory::<T>::unwritten(count * width);
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
    // Also in place.
    library.run(&GatedNorm { out: y.view(), ..norm }.launch())?;

    let mut want = y.values;
    for (row, values) in want.chunks_exact_mut(width).enumerate() {
        gated_row(values, z.row(row), &weight.values, groups, epsilon);
    }
    let what = format!("{count} x {groups} x {group}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out.read()?), &want, T::TOLERANCE)?;
    near(format!("in place, {what}"), &widened(&y.memory.read()?), &want, T::TOLERANCE)
}
