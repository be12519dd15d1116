//! Conversion of rows to another type, bit for bit.

use furrow_cuda::ops::DeviceRows;
use furrow_cuda::ops::convert::{narrow, widen};
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, same};
use crate::memory::{GuardedMemory, rounded, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "convert.cu",
    check,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "if (i < width) to", put: "if (i <= width) to" },
        PlantedBug {
            kind: BugKind::Index,
            find: "widen(from[(size_t)blockIdx.y * stride + i])",
            put: "widen(from[(size_t)blockIdx.y * width + i])",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "to += (size_t)blockIdx.y * stride + i",
            put: "to += (size_t)blockIdx.y * width + i",
        },
        PlantedBug { kind: BugKind::Formula, find: "adds ? value + widen(*to) : value", put: "value" },
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
    for (count, width, gap) in [(1, 1, 0), (3, 40, 8), (2, 257, 3)] {
        rows(library, count, width, gap)?;
    }
    Ok(())
}

fn rows(library: &KernelRunner, count: usize, width: usize, gap: usize) -> Result<(), String> {
    let what = format!("{count} x {width}");
    let mut random = RandomCase::new(31);
    let from = random.spread::<bf16>(count, width, gap, 3.0);
    let wide = GuardedMemory::<f32>::unwritten(count * width);
    library.run(&widen(from.rows(), wide.view(), count, width))?;
    let want: Vec<f32> = (0..count).flat_map(|row| from.row(row).to_vec()).collect();
    same(format!("widened, {what}"), &wide.read()?, &want)?;

    let added: StoredMemory<f32> = random.stored(count * width, 1.0);
    let stride = width + gap;
    for adds in [false, true] {
        let there: StoredMemory<bf16> = random.stored(count * stride, 2.0);
        let to = DeviceRows { values: there.view(), stride };
        library.run(&narrow(added.view(), to, count, width, adds))?;
        // The values between the rows stay.
        let mut want = there.values.clone();
        for (row, added) in added.values.chunks_exact(width).enumerate() {
            for (want, added) in want[row * stride..].iter_mut().zip(added) {
                *want = if adds { added + *want } else { *added };
            }
        }
        same(format!("narrowed, {what}, {adds}"), &widened(&there.memory.read()?), &rounded::<bf16>(&want))?;
    }
    Ok(())
}
