//! Squared ReLU against `max(x, 0)^2`, bit for bit.

use furrow_cuda::ops::mlp::squared_relu;
use furrow_model::kernels::math;
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, same};
use crate::memory::{GuardedMemory, TestNumber, rounded, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "squared_relu.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "blockIdx.x * blockDim.x + threadIdx.x",
            put: "blockIdx.x * VALUES + threadIdx.x",
        },
        PlantedBug { kind: BugKind::Index, find: "i < count; i += step", put: "i <= count; i += step" },
        PlantedBug {
            kind: BugKind::Index,
            find: "gridDim.x * blockDim.x * VALUES",
            put: "blockDim.x * VALUES",
        },
        PlantedBug {
            kind: BugKind::Formula,
            find: "values[v] < 0.0f ? 0.0f :",
            put: "values[v] < -0.5f ? 0.0f :",
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
    for count in [8, 2048, 3 * 2048 + 24] {
        compare::<f32>(library, count)?;
        compare::<bf16>(library, count)?;
    }
    hidden_nan(library)
}

fn compare<T: TestNumber>(library: &KernelRunner, count: usize) -> Result<(), String> {
    let StoredMemory::<T> { mut values, memory } = RandomCase::new(3).stored(count, 3.0);
    library.run(&squared_relu(memory.view()))?;
    math::squared_relu(&mut values);
    same(format!("{count} values"), &widened(&memory.read()?), &rounded::<T>(&values))
}

/// A NaN stays NaN.
fn hidden_nan(library: &KernelRunner) -> Result<(), String> {
    let memory = GuardedMemory::of(&[f32::NAN, -1.0, 2.0, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, -3.0]);
    library.run(&squared_relu(memory.view()))?;
    let got = memory.read()?;
    if !got[0].is_nan() {
        return Err(format!("NaN became {}", got[0]));
    }
    same("special values", &got[1..], &[0.0, 4.0, 0.0, 0.0, f32::INFINITY, 0.0, 0.0])
}
