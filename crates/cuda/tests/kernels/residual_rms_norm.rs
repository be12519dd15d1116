//! Residual add and RMS norm against `layers::norm::rms`.

use furrow_cuda::ops::norm::ResidualRmsNorm;
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::layers::{ComputeContext, norm};
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, near};
use crate::memory::{GuardedMemory, TestNumber, rounded, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "residual_rms_norm.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "y += (size_t)blockIdx.x * width",
            put: "y += (size_t)source * width",
        },
        PlantedBug { kind: BugKind::Index, find: "rows ? rows[blockIdx.x] : blockIdx.x", put: "blockIdx.x" },
        PlantedBug { kind: BugKind::Barrier, find: "block_sum(squares, partial)", put: "warp_sum(squares)" },
        PlantedBug { kind: BugKind::State, find: "store_floats(h + i, values);", put: "" },
        PlantedBug { kind: BugKind::Formula, find: "/ width + epsilon", put: "/ width" },
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

struct NormCase {
    rows: usize,
    width: usize,
    delta: bool,
    gathered: Option<&'static [u32]>,
}

fn check(library: &KernelRunner) -> Result<(), String> {
    let case = |rows, width, delta, gathered| NormCase { rows, width, delta, gathered };
    for case in [
        case(1, 8, false, None),
        case(3, 24, true, None),
        case(2, 136, false, None),
        case(5, 264, true, Some(&[4, 0, 2])),
        case(2, 5120, true, None),
    ] {
        compare::<f32, f32>(library, &case)?;
        compare::<bf16, bf16>(library, &case)?;
        compare::<f32, bf16>(library, &case)?;
    }
    Ok(())
}

fn compare<R: TestNumber, T: TestNumber>(library: &KernelRunner, case: &NormCase) -> Result<(), String> {
    let NormCase { rows, width, delta, gathered } = *case;
    let mut random = RandomCase::new(7);
    let hidden: StoredMemory<R> = random.stored(rows * width, 2.0);
    let added: StoredMemory<T> = random.stored(rows * width, 1.0);
    let weight: StoredMemory<T> = random.stored(width, 1.5);
    // Large enough that omitting it is detected.
    let epsilon = 0.05;

    let chosen: Vec<u32> = gathered.map_or((0..rows as u32).collect(), <[u32]>::to_vec);
    let index = GuardedMemory::of(&chosen);
    let out = GuardedMemory::<T>::unwritten(chosen.len() * width);
    let norm = ResidualRmsNorm {
        residual: hidden.view(),
        delta: delta.then(|| added.view()),
        rows: gathered.map(|_| index.view()),
        weight: weight.view(),
        out: out.view(),
        count: chosen.len(),
        epsilon,
    };
    library.run(&norm.launch())?;

    let both = hidden.values.iter().zip(&added.values);
    let sum: Vec<f32> = both.map(|(h, d)| if delta { h + d } else { *h }).collect();
    let sum = rounded::<R>(&sum);
    let mut want = Vec::new();
    let mut want_residual = hidden.values;
    let team = ThreadPool::new(1);
    let mut row_out = vec![0.0; width];
    for row in &chosen {
        let own = *row as usize * width..(*row as usize + 1) * width;
        norm::rms(
            ComputeContext { team: &team, compute: ProductPrecision::Float32 },
            &sum[own.clone()],
            &weight.values,
            epsilon,
            &mut row_out,
        );
        want.extend_from_slice(&row_out);
        want_residual[own.clone()].copy_from_slice(&sum[own]);
    }
    let what = |part: &str| format!("{part} of {rows} x {width}, {}", std::any::type_name::<(R, T)>());
    near(what("norm"), &widened(&out.read()?), &want, T::TOLERANCE)?;
    near(what("residual"), &widened(&hidden.memory.read()?), &want_residual, 1e-7)
}
