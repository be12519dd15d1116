//! The causal convolution and its state against `layers::conv::Taps` and `kernels::Conv`.

use furrow_cuda::launch::Tile;
use furrow_cuda::ops::conv::{CausalConv, KERNEL, TILE_ROWS};
use furrow_model::kernels::{Conv, Rows};
use furrow_model::layers::conv::Taps;
use half::bf16;

use crate::batch::{Batch, Draw, Held};
use crate::family::{Bug, Family, Kind, near};
use crate::memory::{Memory, Number, widened};
use crate::place::Library;

pub const FAMILY: Family = Family {
    file: "causal_conv.cu",
    check,
    bugs: &[
        Bug {
            kind: Kind::Index,
            find: "(int)tile.first - (KERNEL - 1) + k",
            put: "(int)tile.first - KERNEL + k",
        },
        Bug {
            kind: Kind::Index,
            find: "in += (size_t)span.base * stride",
            put: "in += (size_t)blockIdx.y * stride",
        },
        Bug {
            kind: Kind::State,
            find: "else if (span.start > 0) load_floats",
            put: "else if (span.start > 2) load_floats",
        },
        Bug {
            kind: Kind::State,
            find: "const int at = (int)span.length - (KERNEL - 1) + k;\n        Pack",
            put: "const int at = k;\n        Pack",
        },
        Bug {
            kind: Kind::State,
            find: "else if (span.start > 0) kept",
            put: "else if (span.start > 999) kept",
        },
        Bug {
            kind: Kind::State,
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

fn check(library: &Library) -> Result<(), String> {
    // Prompts of one and two tokens, tiles that end inside and on a span's end, states of one, two and many tokens, places that are not used.
    let ragged: &[(u32, u32)] =
        &[(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (1, 900), (16, 3), (17, 0), (40, 5)];
    let decode: &[(u32, u32)] = &[(1, 30), (1, 1), (0, 0), (1, 700)];
    for (width, of) in [(8, ragged), (1032, decode), (1032, &ragged[3..8])] {
        compare::<f32>(library, width, of)?;
        compare::<bf16>(library, width, of)?;
    }
    Ok(())
}

fn compare<T: Number>(library: &Library, width: usize, of: &[(u32, u32)]) -> Result<(), String> {
    let batch = Batch::new(of);
    let count = batch.count();
    let mut draw = Draw::new(11);
    let input = draw.spread::<T>(count, width, 40, 1.0);
    let mut states = draw.states::<T>(&batch, 16, (KERNEL - 1) * width);
    // The kernel finds the taps of all channels side by side, the CPU those of a channel.
    let turned = draw.held::<T>(width * KERNEL, 1.0);
    let taps: Vec<f32> =
        (0..width * KERNEL).map(|at| turned.values[at % KERNEL * width + at / KERNEL]).collect();
    let bias: Held<T> = draw.held(width, 1.0);
    // A batch of fixed size has tiles for its unused places too.
    let mut of_batch = batch.tiles(TILE_ROWS);
    let unused = batch.spans.iter().enumerate().filter(|(_, span)| span.length == 0);
    of_batch.extend(unused.map(|(span, _)| Tile { span: span as u32, first: 0 }));
    let tiles = Memory::of(&of_batch);
    let out = Memory::<T>::unwritten(count * width);
    let conv = CausalConv {
        input: input.rows(),
        state: states.slots(),
        spans: batch.view(),
        tiles: tiles.view(),
        taps: turned.view(),
        bias: bias.view(),
        out: out.view(),
    };
    library.run(&conv.launch())?;

    let definition = Taps { weights: &taps, bias: &bias.values };
    let advance = Conv::new(&taps, &bias.values, KERNEL);
    let mut want = vec![0.0; count * width];
    for span in batch.spans.iter().filter(|span| span.length > 0) {
        let own = states.of(span);
        let inputs: Vec<f32> =
            (span.base..span.base + span.length).flat_map(|row| input.row(row as usize).to_vec()).collect();
        let inputs = Rows::new(&inputs, 0, width, width);
        for t in 0..span.length as usize {
            definition.row(inputs, own, t, &mut want[(span.base as usize + t) * width..][..width]);
        }
        advance.advance(own, inputs);
    }
    let what = format!("{of:?} of {width}, {}", std::any::type_name::<T>());
    near(&what, &widened(&out.read()?), &want, T::TOLERANCE)?;
    states.compare(&what, 0.0)
}
