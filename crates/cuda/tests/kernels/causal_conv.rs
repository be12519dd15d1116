//! The causal convolution and its state against `layers::conv::ConvTaps` and `kernels::ConvKernel`.

use furrow_cuda::launch::SpanTile;
use furrow_cuda::ops::conv::{CausalConvLaunch, KERNEL, TILE_ROWS};
use furrow_model::kernels::{ConvKernel, StridedRows};
use furrow_model::layers::conv::ConvTaps;
use half::bf16;

use crate::batch::{RandomCase, StoredMemory, TestBatch};
use crate::family::{BugKind, KernelFamily, PlantedBug, near};
use crate::memory::{GuardedMemory, TestNumber, widened};
use crate::runner::KernelRunner;

pub(crate) const FAMILY: KernelFamily = KernelFamily {
    file: "causal_conv.cu",
    check,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "(int)tile.first - (KERNEL - 1) + k",
            put: "(int)tile.first - KERNEL + k",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "in += (size_t)span.base * stride",
            put: "in += (size_t)blockIdx.y * stride",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "else if (span.start > 0) load_floats",
            put: "else if (span.start > 2) load_floats",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "const int at = (int)span.length - (KERNEL - 1) + k;\n        Pack",
            put: "const int at = k;\n        Pack",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "else if (span.start > 0) kept",
            put: "else if (span.start > 999) kept",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "state + span.slot * slot_stride",
            put: "state + tile.span * slot_stride",
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
    // Prompts of one and two tokens, tiles that end inside and on a span's end, states of one, two
    // and many tokens, unused spans.
    let ragged: &[(u32, u32)] =
        &[(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (1, 900), (16, 3), (17, 0), (40, 5)];
    let decode: &[(u32, u32)] = &[(1, 30), (1, 1), (0, 0), (1, 700)];
    for (width, of) in [(8, ragged), (1032, decode), (1032, &ragged[3..8])] {
        compare::<f32>(library, width, of)?;
        compare::<bf16>(library, width, of)?;
    }
    Ok(())
}

fn compare<T: TestNumber>(library: &KernelRunner, width: usize, of: &[(u32, u32)]) -> Result<(), String> {
    let batch = TestBatch::new(of);
    let count = batch.count();
    let mut random = RandomCase::new(11);
    let input = random.spread::<T>(count, width, 40, 1.0);
    let mut states = random.states::<T>(&batch, 16, (KERNEL - 1) * width);
    // The kernel reads the taps of all channels together, the CPU those of one channel.
    let turned = random.stored::<T>(width * KERNEL, 1.0);
    let taps: Vec<f32> =
        (0..width * KERNEL).map(|at| turned.values[at % KERNEL * width + at / KERNEL]).collect();
    let bias: StoredMemory<T> = random.stored(width, 1.0);
    // A batch of fixed size has tiles for unused spans too.
    let mut of_batch = batch.tiles(TILE_ROWS);
    let unused = batch.spans.iter().enumerate().filter(|(_, span)| span.length == 0);
    of_batch.extend(unused.map(|(span, _)| SpanTile { span: span as u32, first: 0 }));
    let tiles = GuardedMemory::of(&of_batch);
    let out = GuardedMemory::<T>::unwritten(count * width);
    let conv = CausalConvLaunch {
        input: input.rows(),
        state: states.slots(),
        spans: batch.view(),
        tiles: tiles.view(),
        taps: turned.view(),
        bias: bias.view(),
        out: out.view(),
    };
    library.run(&conv.launch())?;

    let definition = ConvTaps { weights: &taps, bias: &bias.values };
    let advance = ConvKernel::new(&taps, &bias.values, KERNEL);
    let mut want = vec![0.0; count * width];
    for span in batch.spans.iter().filter(|span| span.length > 0) {
        let own = states.of(span);
        let inputs: Vec<f32> =
            (span.base..span.base + span.length).flat_map(|row| input.row(row as usize).to_vec()).collect();
        let inputs = StridedRows::new(&inputs, 0, width, width);
        for t in 0..span.length as usize {
            definition.row(inputs, own, t, &mut want[(span.base as usize + t) * width..][..width]);
        }
        advance.advance(own, inputs);
    }
    let what = format!("{of:?} of {width}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out.read()?), &want, T::TOLERANCE)?;
    states.compare(&what, 0.0)
}
