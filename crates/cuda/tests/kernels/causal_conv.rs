//! The causal convolution and its state against `layers::conv::Taps` and `kernels::Conv`.

use furrow_cuda::launch::tiles;
use furrow_cuda::ops::Slots;
use furrow_cuda::ops::conv::{CausalConv, KERNEL, TILE_ROWS};
use furrow_model::kernels::{Conv, Rows};
use furrow_model::layers::conv::Taps;
use half::bf16;

use crate::family::{Bug, Draw, Family, Kind, near, same, slots, spans};
use crate::memory::{Memory, Number, Spread, rounded, rows, stored, widened};
use crate::shim::Library;

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
    let (spans, slots) = (spans(of), slots(of));
    let count: usize = of.iter().map(|span| span.0 as usize).sum();
    let (offset, kept) = (16, (KERNEL - 1) * width);
    let mut draw = Draw::new(11);
    let input = Spread::new(&rounded::<T>(&draw.floats(count * width, 1.0)), width, 40);
    let taps = rounded::<T>(&draw.floats(width * KERNEL, 1.0));
    let bias = rounded::<T>(&draw.floats(width, 1.0));
    // A slot holds other layers before and after this one; one that begins anew holds what must not be read.
    let mut before = rounded::<T>(&draw.floats(slots * (offset + kept + 8), 1.0));
    let stride = offset + kept + 8;
    for span in spans.iter().filter(|span| span.start == 0 && span.length > 0) {
        before[span.slot as usize * stride + offset..][..kept].fill(f32::NAN);
    }

    let turned: Vec<f32> = (0..KERNEL * width).map(|at| taps[at % width * KERNEL + at / width]).collect();
    let (input_memory, state) = (input.memory::<T>(), Memory::of(&stored::<T>(&before)));
    let (taps_memory, bias_memory) = (Memory::of(&stored::<T>(&turned)), Memory::of(&stored::<T>(&bias)));
    // A batch of fixed size has tiles for its unused places too.
    let mut of_batch = tiles(&spans, TILE_ROWS);
    let unused = spans.iter().enumerate().filter(|(_, span)| span.length == 0);
    of_batch.extend(unused.map(|(span, _)| furrow_cuda::launch::Tile { span: span as u32, first: 0 }));
    let (spans_memory, tiles_memory) = (Memory::of(&spans), Memory::of(&of_batch));
    let out = Memory::<T>::unwritten(count * width);
    let conv = CausalConv {
        input: rows(&input_memory),
        state: Slots { values: state.view().from(offset), stride },
        spans: spans_memory.view(),
        tiles: tiles_memory.view(),
        taps: taps_memory.view(),
        bias: bias_memory.view(),
        out: out.view(),
    };
    library.run(&conv.launch())?;

    let definition = Taps { weights: &taps, bias: &bias };
    let advance = Conv::new(&taps, &bias, KERNEL);
    let (mut want, mut want_state) = (vec![0.0; count * width], before);
    for span in spans.iter().filter(|span| span.length > 0) {
        let own = &mut want_state[span.slot as usize * stride + offset..][..kept];
        if span.start == 0 {
            own.fill(0.0);
        }
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
    same(format!("state, {what}"), &widened(&state.read()?), &want_state)
}
