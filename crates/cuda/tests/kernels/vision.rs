//! The kernels of the vision tower: alone against the CPU's functions, and the way in and out against what `vision::Encoder` shows of itself.

use furrow_cuda::ops::vision::{Patches, ResidualLayerNorm, attend, bias_gelu, pixel_shuffle};
use furrow_model::config::VisionConfig;
use furrow_model::kernels::{Compute, Matrix, Team, math};
use furrow_model::layers::{Crew, attention};
use furrow_model::vision::{Encoder, Stage, Tile, Workspace};
use furrow_model::weights::{MlpWeights, VisionWeights};
use half::bf16;

use crate::batch::{Draw, Held};
use crate::family::{Bug, Family, Kind, near, same};
use crate::memory::{Memory, Number, rounded, stored, widened};
use crate::place::Library;

pub const LAYER_NORM: Family = Family {
    file: "residual_layer_norm.cu",
    check: check_layer_norm,
    bugs: &[
        Bug { kind: Kind::Index, find: "load_floats(b + i, bias)", put: "load_floats(b, bias)" },
        Bug { kind: Kind::Barrier, find: "block_sum(sum, partial)", put: "warp_sum(sum)" },
        Bug { kind: Kind::Barrier, find: "partial + WARP", put: "partial" },
        Bug { kind: Kind::State, find: "store_floats(h + i, values);", put: "" },
        Bug { kind: Kind::Formula, find: "/ width + epsilon", put: "/ width" },
    ],
};

pub const GELU: Family = Family {
    file: "bias_gelu.cu",
    check: check_gelu,
    bugs: &[
        Bug {
            kind: Kind::Index,
            find: "x += (size_t)blockIdx.y * width",
            put: "x += (size_t)blockIdx.y * gridDim.x * blockDim.x * VALUES",
        },
        Bug { kind: Kind::Index, find: "    if (i >= width) return;\n", put: "" },
        Bug { kind: Kind::Index, find: "load_floats(b + i, bias)", put: "load_floats(b + i % 256, bias)" },
        Bug {
            kind: Kind::Formula,
            find: "erff(value * 0.707106781f)",
            put: "tanhf(0.797884561f * (value + 0.044715f * value * value * value))",
        },
    ],
};

pub const PATCHES: Family = Family {
    file: "patches.cu",
    check: check_patches,
    bugs: &[
        Bug {
            kind: Kind::Index,
            find: "y = i / side % side, x = i % side",
            put: "x = i / side % side, y = i % side",
        },
        Bug { kind: Kind::Index, find: "blockIdx.y * 3 * tile * tile", put: "blockIdx.y * tile * tile" },
        Bug {
            kind: Kind::Index,
            find: "positions + (size_t)patch * width",
            put: "positions + (size_t)token * width",
        },
        Bug {
            kind: Kind::Index,
            find: "blockIdx.y * (prefixes + count) + token",
            put: "blockIdx.y * count + token",
        },
    ],
};

pub const SHUFFLE: Family = Family {
    file: "pixel_shuffle.cu",
    check: check_shuffle,
    bugs: &[
        Bug { kind: Kind::Index, find: "a = patch / s, b = patch % s", put: "b = patch / s, a = patch % s" },
        Bug { kind: Kind::Index, find: "swapped ? column : row", put: "row" },
        Bug {
            kind: Kind::Index,
            find: "(prefixes + side * side) + prefixes)",
            put: "(prefixes + side * side))",
        },
    ],
};

pub const ATTENTION: Family = Family {
    file: "attention_image.cu",
    check: check_attention,
    bugs: &[
        Bug { kind: Kind::Index, find: "(int)(tokens - lot * TOKENS)", put: "(int)TOKENS" },
        Bug {
            kind: Kind::Index,
            find: "qkv += (size_t)blockIdx.z * tokens * stride",
            put: "qkv += (size_t)blockIdx.z * TOKENS * stride",
        },
        Bug { kind: Kind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        Bug {
            kind: Kind::Barrier,
            find: "        __syncthreads();  // this lot may be overwritten, the next one is there\n",
            put: "",
        },
        Bug { kind: Kind::State, find: "begin_lot(lot + 1)", put: "begin_lot(lot)" },
        Bug {
            kind: Kind::Index,
            find: "of_tile = qkv + (size_t)blockIdx.z * tokens * stride",
            put: "of_tile = qkv + (size_t)blockIdx.z * WARP * stride",
        },
        Bug { kind: Kind::Index, find: "key < WARP && key < there", put: "key < WARP - 1 && key < there" },
        Bug { kind: Kind::Index, find: "scale, tokens - first", put: "scale, tokens" },
        Bug { kind: Kind::State, find: "sums[i] *= fade", put: "sums[i] *= 1.0f" },
    ],
};

#[test]
fn layer_norm_agrees_with_the_cpu() {
    LAYER_NORM.agrees();
}

#[test]
fn planted_bugs_show_in_layer_norm() {
    LAYER_NORM.finds_its_bugs();
}

#[test]
fn gelu_agrees_with_the_cpu() {
    GELU.agrees();
}

#[test]
fn planted_bugs_show_in_gelu() {
    GELU.finds_its_bugs();
}

#[test]
fn patches_agree_with_the_cpu() {
    PATCHES.agrees();
}

#[test]
fn planted_bugs_show_in_patches() {
    PATCHES.finds_its_bugs();
}

#[test]
fn pixel_shuffle_agrees_with_the_cpu() {
    SHUFFLE.agrees();
}

#[test]
fn planted_bugs_show_in_pixel_shuffle() {
    SHUFFLE.finds_its_bugs();
}

#[test]
fn attention_agrees_with_the_cpu() {
    ATTENTION.agrees();
}

#[test]
fn planted_bugs_show_in_attention() {
    ATTENTION.finds_its_bugs();
}

fn check_layer_norm(library: &Library) -> Result<(), String> {
    for (rows, width) in [(1, 8), (3, 136), (2, 1280)] {
        for (delta, last) in [(false, false), (true, false), (true, true)] {
            layer_norm::<f32>(library, rows, width, delta, last)?;
            layer_norm::<bf16>(library, rows, width, delta, last)?;
        }
    }
    Ok(())
}

fn layer_norm<T: Number>(
    library: &Library,
    rows: usize,
    width: usize,
    delta: bool,
    last: bool,
) -> Result<(), String> {
    let mut draw = Draw::new(19);
    // A mean far from 0, so that a variance by the difference of two sums would show.
    let hidden: Vec<f32> = draw.floats(rows * width, 1.0).iter().map(|value| value + 9.0).collect();
    let Held::<T> { values: mut hidden, memory: residual } = Held::of(&hidden);
    let added: Held<T> = draw.held(rows * width, 1.0);
    let [bias, weight, shift]: [Held<T>; 3] = [0; 3].map(|_| draw.held(width, 1.5));
    let epsilon = 0.05;
    let out = Memory::<T>::unwritten(rows * width);
    let norm = ResidualLayerNorm {
        residual: residual.view(),
        delta: delta.then(|| [added.view(), bias.view()]),
        weight: weight.view(),
        shift: shift.view(),
        out: (!last).then(|| out.view()),
        epsilon,
    };
    library.run(&norm.launch())?;

    if delta {
        for (at, value) in hidden.iter_mut().enumerate() {
            *value += bias.values[at % width] + added.values[at];
        }
        hidden = rounded::<T>(&hidden);
    }
    let what = format!("{rows} x {width}, {}", std::any::type_name::<T>());
    near(format!("residual, {what}"), &widened(&residual.read()?), &hidden, 1e-7)?;
    if last {
        return Ok(());
    }
    let mut want = vec![0.0; rows * width];
    for (row, out) in hidden.chunks_exact(width).zip(want.chunks_exact_mut(width)) {
        math::layer_norm(row, &weight.values, &shift.values, epsilon, out);
    }
    near(what, &widened(&out.read()?), &want, T::TOLERANCE.max(1e-5))
}

fn check_gelu(library: &Library) -> Result<(), String> {
    for (rows, width) in [(1, 8), (3, 2088)] {
        gelu::<f32>(library, rows, width)?;
        gelu::<bf16>(library, rows, width)?;
    }
    Ok(())
}

fn gelu<T: Number>(library: &Library, rows: usize, width: usize) -> Result<(), String> {
    let mut draw = Draw::new(21);
    let Held::<T> { values: mut want, memory } = draw.held(rows * width, 3.0);
    let bias: Held<T> = draw.held(width, 1.0);
    library.run(&bias_gelu(memory.view(), bias.view()))?;
    want.iter_mut().enumerate().for_each(|(at, value)| *value += bias.values[at % width]);
    math::gelu(&mut want);
    near(format!("{rows} x {width}"), &widened(&memory.read()?), &want, T::TOLERANCE)
}

fn check_attention(library: &Library) -> Result<(), String> {
    // Tokens of a tile that end inside, on and behind a lot's end; 1,040 are 16.25 lots too.
    for (heads, size, tokens) in [(2, 80, 68), (1, 64, 128), (1, 80, 130), (2, 64, 7)] {
        attention_inside::<bf16>(library, heads, size, tokens, 8e-3)?;
    }
    // The plain way: heads that are no multiple of a warp, the widest, fewer tokens than a block has warps.
    for (heads, size, tokens) in [(2, 20, 65), (1, 256, 33), (3, 8, 3)] {
        attention_inside::<f32>(library, heads, size, tokens, 1e-5)?;
        attention_inside::<bf16>(library, heads, size, tokens, bf16::TOLERANCE)?;
    }
    Ok(())
}

fn attention_inside<T: Number>(
    library: &Library,
    heads: usize,
    size: usize,
    tokens: usize,
    tolerance: f32,
) -> Result<(), String> {
    let config = config(heads * size, heads, 32, 16, false);
    let tiles = 2;
    let mut draw = Draw::new(23);
    let Held::<T> { values: qkv, memory } = draw.held(tiles * tokens * 3 * config.hidden, 2.0);
    let out = Memory::<T>::unwritten(tiles * tokens * config.hidden);
    library.run(&attend(&config, tokens, memory.view(), out.view()))?;
    let mut want = vec![0.0; tiles * tokens * config.hidden];
    for (row, out) in want.chunks_exact_mut(config.hidden).enumerate() {
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            let part =
                |row: usize, part: usize| &qkv[(row * 3 + part) * config.hidden + head * size..][..size];
            let of_tile = row / tokens * tokens..(row / tokens + 1) * tokens;
            let [keys, values]: [Vec<f32>; 2] =
                [1, 2].map(|which| of_tile.clone().flat_map(|row| part(row, which).to_vec()).collect());
            attention::attend(part(row, 0), &keys, &values, out);
        }
    }
    let what = format!("{heads} heads of {size}, {tokens} tokens, {}", std::any::type_name::<T>());
    near(what, &widened(&out.read()?), &want, tolerance)
}

fn config(hidden: usize, heads: usize, tile: usize, patch: usize, shuffle_swapped: bool) -> VisionConfig {
    VisionConfig {
        tile,
        tiles_max: 12,
        thumbnail: true,
        patch,
        hidden,
        blocks: 0,
        heads,
        intermediate: hidden,
        positions_side: tile / patch,
        align_corners: false,
        shuffle_swapped,
        shuffle: 2,
        projector_hidden: 8,
        mean: [0.5; 3],
        std: [0.5; 3],
        image_token: 0,
        image_marks: [String::new(), String::new()],
    }
}

/// What the encoder shows of two tiles on their way in and out, no block between.
struct Shown {
    config: VisionConfig,
    prefix: Vec<f32>,
    embedder: Matrix,
    positions: Vec<f32>,
    pixels: Vec<f32>,
    entering: Vec<f32>,
    shuffled: Vec<f32>,
}

const TILES: usize = 2;
const PREFIXES: usize = 3;

fn show(swapped: bool) -> Shown {
    let config = config(24, 1, 24, 4, swapped);
    let (count, values) = (config.patches_side().pow(2), 3 * config.patch * config.patch);
    let mut draw = Draw::new(25);
    let matrix = |draw: &mut Draw, out: usize, input: usize| {
        Matrix::from_f32(out, input, &draw.floats(out * input, 0.5))
    };
    let weights = VisionWeights {
        embedder: matrix(&mut draw, config.hidden, values),
        positions: draw.floats(count * config.hidden, 1.0),
        prefix: draw.floats(PREFIXES * config.hidden, 1.0),
        blocks: Vec::new(),
        projector_norm: draw.floats(4 * config.hidden, 1.0),
        projector: MlpWeights {
            up: matrix(&mut draw, config.projector_hidden, 4 * config.hidden),
            down: matrix(&mut draw, 8, config.projector_hidden),
        },
    };
    let tiles: Vec<Tile> = (0..TILES)
        .map(|_| Tile { pixels: draw.floats(3 * config.tile.pow(2), 2.0), hash: [0; 32] })
        .collect();
    let (team, mut entering, mut shuffled) = (Team::new(1), Vec::new(), Vec::new());
    let crew = Crew { team: &team, compute: Compute::Float32 };
    let mut see = |stage: Stage, values: &[f32]| match stage {
        Stage::State(_) => entering.extend_from_slice(values),
        Stage::Features => (),
        Stage::Shuffled => shuffled.extend_from_slice(values),
    };
    let encoder = Encoder { weights: &weights, config: &config, crew };
    encoder.encode_traced(&mut Workspace::default(), &tiles, &mut see);
    let pixels = tiles.iter().flat_map(|tile| tile.pixels.clone()).collect();
    let VisionWeights { embedder, positions, prefix, .. } = weights;
    Shown { config, prefix, embedder, positions, pixels, entering, shuffled }
}

fn check_patches(library: &Library) -> Result<(), String> {
    patches::<f32>(library, 2e-6)?;
    patches::<bf16>(library, 2e-2)
}

fn patches<T: Number>(library: &Library, tolerance: f32) -> Result<(), String> {
    let Shown { config, prefix, embedder, positions, pixels, entering, .. } = show(false);
    let (count, values) = (config.patches_side().pow(2), 3 * config.patch * config.patch);
    let (pixel_memory, position_memory) = (Memory::of(&pixels), Memory::of(&positions));
    let cut = Memory::<T>::unwritten(TILES * count * values);
    let prefixes = Memory::of(&stored::<T>(&prefix));
    let hidden = Memory::<T>::unwritten(TILES * (PREFIXES + count) * config.hidden);
    let empty = Memory::<T>::unwritten(TILES * count * config.hidden);
    let way = Patches {
        config: &config,
        tiles: TILES,
        pixels: pixel_memory.view(),
        patches: cut.view(),
        embedded: empty.view(),
        positions: position_memory.view(),
        prefix: prefixes.view(),
        hidden: hidden.view(),
    };
    library.run(&way.cut())?;
    let mut embedded = vec![0.0; TILES * count * config.hidden];
    embedder.product(&Team::new(1), Compute::Float32, &widened(&cut.read()?), &mut embedded);
    let embedded = Memory::of(&stored::<T>(&embedded));
    library.run(&Patches { embedded: embedded.view(), ..way }.place())?;
    near("tokens entering the tower", &widened(&hidden.read()?), &entering, tolerance)
}

fn check_shuffle(library: &Library) -> Result<(), String> {
    for swapped in [false, true] {
        let Shown { config, entering, shuffled, .. } = show(swapped);
        shuffle::<f32>(library, &config, &entering, &shuffled)?;
        shuffle::<bf16>(library, &config, &entering, &shuffled)?;
    }
    Ok(())
}

fn shuffle<T: Number>(
    library: &Library,
    config: &VisionConfig,
    from: &[f32],
    want: &[f32],
) -> Result<(), String> {
    let (hidden, out) = (Memory::of(&stored::<T>(from)), Memory::<T>::unwritten(want.len()));
    library.run(&pixel_shuffle(config, PREFIXES, hidden.view(), out.view()))?;
    same("shuffled rows", &widened(&out.read()?), &rounded::<T>(want))
}
