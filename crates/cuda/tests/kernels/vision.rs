//! The kernels of the vision tower: each against the CPU's functions, and the first and last ones
//! against values that `vision::VisionEncoder` traces.

use furrow_cuda::ops::vision::{PatchLaunch, ResidualLayerNorm, attend, bias_gelu, pixel_shuffle};
use furrow_model::config::VisionConfig;
use furrow_model::kernels::{PackedMatrix, ProductPrecision, ThreadPool, math};
use furrow_model::layers::{ComputeContext, attention};
use furrow_model::vision::{EncoderStage, ImageTile, VisionEncoder, VisionWorkspace};
use furrow_model::weights::{MlpWeights, VisionWeights};
use half::bf16;

use crate::batch::{RandomCase, StoredMemory};
use crate::family::{BugKind, KernelFamily, PlantedBug, near, same};
use crate::memory::{GuardedMemory, TestNumber, rounded, stored, widened};
use crate::runner::KernelRunner;

pub(crate) const LAYER_NORM: KernelFamily = KernelFamily {
    file: "residual_layer_norm.cu",
    check: check_layer_norm,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "load_floats(b + i, bias)", put: "load_floats(b, bias)" },
        PlantedBug { kind: BugKind::Barrier, find: "block_sum(sum, partial)", put: "warp_sum(sum)" },
        PlantedBug { kind: BugKind::Barrier, find: "partial + WARP", put: "partial" },
        PlantedBug { kind: BugKind::State, find: "store_floats(h + i, values);", put: "" },
        PlantedBug { kind: BugKind::Formula, find: "/ width + epsilon", put: "/ width" },
    ],
};

pub(crate) const GELU: KernelFamily = KernelFamily {
    file: "bias_gelu.cu",
    check: check_gelu,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "x += (size_t)blockIdx.y * width",
            put: "x += (size_t)blockIdx.y * gridDim.x * blockDim.x * VALUES",
        },
        PlantedBug { kind: BugKind::Index, find: "    if (i >= width) return;\n", put: "" },
        PlantedBug {
            kind: BugKind::Index,
            find: "load_floats(b + i, bias)",
            put: "load_floats(b + i % 256, bias)",
        },
        PlantedBug {
            kind: BugKind::Formula,
            find: "erff(value * 0.707106781f)",
            put: "tanhf(0.797884561f * (value + 0.044715f * value * value * value))",
        },
    ],
};

pub(crate) const PATCHES: KernelFamily = KernelFamily {
    file: "patches.cu",
    check: check_patches,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "y = i / side % side, x = i % side",
            put: "x = i / side % side, y = i % side",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "blockIdx.y * 3 * tile * tile",
            put: "blockIdx.y * tile * tile",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "positions + (size_t)patch * width",
            put: "positions + (size_t)token * width",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "blockIdx.y * (prefixes + count) + token",
            put: "blockIdx.y * count + token",
        },
    ],
};

pub(crate) const SHUFFLE: KernelFamily = KernelFamily {
    file: "pixel_shuffle.cu",
    check: check_shuffle,
    bugs: &[
        PlantedBug {
            kind: BugKind::Index,
            find: "a = patch / s, b = patch % s",
            put: "b = patch / s, a = patch % s",
        },
        PlantedBug { kind: BugKind::Index, find: "swapped ? column : row", put: "row" },
        PlantedBug {
            kind: BugKind::Index,
            find: "(prefixes + side * side) + prefixes)",
            put: "(prefixes + side * side))",
        },
    ],
};

pub(crate) const ATTENTION: KernelFamily = KernelFamily {
    file: "attention_image.cu",
    check: check_attention,
    bugs: &[
        PlantedBug { kind: BugKind::Index, find: "(int)(tokens - key_tile * TOKENS)", put: "(int)TOKENS" },
        PlantedBug {
            kind: BugKind::Index,
            find: "qkv += (size_t)blockIdx.z * tokens * stride",
            put: "qkv += (size_t)blockIdx.z * TOKENS * stride",
        },
        PlantedBug { kind: BugKind::Barrier, find: "        copy_wait<0>();\n", put: "" },
        PlantedBug {
            kind: BugKind::Barrier,
            find: "        __syncthreads();  // this tile may be overwritten, the next one is complete\n",
            put: "",
        },
        PlantedBug {
            kind: BugKind::State,
            find: "begin_key_tile(key_tile + 1)",
            put: "begin_key_tile(key_tile)",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "of_tile = qkv + (size_t)blockIdx.z * tokens * stride",
            put: "of_tile = qkv + (size_t)blockIdx.z * WARP * stride",
        },
        PlantedBug {
            kind: BugKind::Index,
            find: "key < WARP && key < there",
            put: "key < WARP - 1 && key < there",
        },
        PlantedBug { kind: BugKind::Index, find: "scale, tokens - first", put: "scale, tokens" },
        PlantedBug { kind: BugKind::State, find: "sums[i] *= fade", put: "sums[i] *= 1.0f" },
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

fn check_layer_norm(library: &KernelRunner) -> Result<(), String> {
    for (rows, width) in [(1, 8), (3, 136), (2, 1280)] {
        for (delta, last) in [(false, false), (true, false), (true, true)] {
            layer_norm::<f32>(library, rows, width, delta, last)?;
            layer_norm::<bf16>(library, rows, width, delta, last)?;
        }
    }
    Ok(())
}

fn layer_norm<T: TestNumber>(
    library: &KernelRunner,
    rows: usize,
    width: usize,
    delta: bool,
    last: bool,
) -> Result<(), String> {
    let mut random = RandomCase::new(19);
    // A mean far from 0, so that a variance from the difference of two sums would be detected.
    let hidden: Vec<f32> = random.floats(rows * width, 1.0).iter().map(|value| value + 9.0).collect();
    let StoredMemory::<T> { values: mut hidden, memory: residual } = StoredMemory::of(&hidden);
    let added: StoredMemory<T> = random.stored(rows * width, 1.0);
    let [bias, weight, shift]: [StoredMemory<T>; 3] = [0; 3].map(|_| random.stored(width, 1.5));
    let epsilon = 0.05;
    let out = GuardedMemory::<T>::unwritten(rows * width);
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

fn check_gelu(library: &KernelRunner) -> Result<(), String> {
    for (rows, width) in [(1, 8), (3, 2088)] {
        gelu::<f32>(library, rows, width)?;
        gelu::<bf16>(library, rows, width)?;
    }
    Ok(())
}

fn gelu<T: TestNumber>(library: &KernelRunner, rows: usize, width: usize) -> Result<(), String> {
    let mut random = RandomCase::new(21);
    let StoredMemory::<T> { values: mut want, memory } = random.stored(rows * width, 3.0);
    let bias: StoredMemory<T> = random.stored(width, 1.0);
    library.run(&bias_gelu(memory.view(), bias.view()))?;
    want.iter_mut().enumerate().for_each(|(at, value)| *value += bias.values[at % width]);
    math::gelu(&mut want);
    near(format!("{rows} x {width}"), &widened(&memory.read()?), &want, T::TOLERANCE)
}

fn check_attention(library: &KernelRunner) -> Result<(), String> {
    // Tokens of an image tile that end inside, on and after a key tile's end; 1,040 are 16.25 key
    // tiles too.
    for (heads, size, tokens) in [(2, 80, 68), (1, 64, 128), (1, 80, 130), (2, 64, 7)] {
        attention_inside::<bf16>(library, heads, size, tokens, 8e-3)?;
    }
    // The plain kernel: heads that are not a multiple of a warp, the widest, fewer tokens than a
    // block has warps.
    for (heads, size, tokens) in [(2, 20, 65), (1, 256, 33), (3, 8, 3)] {
        attention_inside::<f32>(library, heads, size, tokens, 1e-5)?;
        attention_inside::<bf16>(library, heads, size, tokens, bf16::TOLERANCE)?;
    }
    Ok(())
}

fn attention_inside<T: TestNumber>(
    library: &KernelRunner,
    heads: usize,
    size: usize,
    tokens: usize,
    tolerance: f32,
) -> Result<(), String> {
    let config = config(heads * size, heads, 32, 16, false);
    let tiles = 2;
    let mut random = RandomCase::new(23);
    let StoredMemory::<T> { values: qkv, memory } = random.stored(tiles * tokens * 3 * config.hidden, 2.0);
    let out = GuardedMemory::<T>::unwritten(tiles * tokens * config.hidden);
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

/// The encoder's values for two tiles at the input and the output, without blocks between.
struct EncoderValues {
    config: VisionConfig,
    prefix: Vec<f32>,
    embedder: PackedMatrix,
    positions: Vec<f32>,
    pixels: Vec<f32>,
    entering: Vec<f32>,
    shuffled: Vec<f32>,
}

const TILES: usize = 2;
const PREFIXES: usize = 3;

fn encoder_values(swapped: bool) -> EncoderValues {
    let config = config(24, 1, 24, 4, swapped);
    let count = config.patches_side().pow(2);
    let values = 3 * config.patch * config.patch;
    let mut random = RandomCase::new(25);
    let matrix = |random: &mut RandomCase, out: usize, input: usize| {
        PackedMatrix::from_f32(out, input, &random.floats(out * input, 0.5))
    };
    let weights = VisionWeights {
        embedder: matrix(&mut random, config.hidden, values),
        positions: random.floats(count * config.hidden, 1.0),
        prefix: random.floats(PREFIXES * config.hidden, 1.0),
        blocks: Vec::new(),
        projector_norm: random.floats(4 * config.hidden, 1.0),
        projector: MlpWeights {
            up: matrix(&mut random, config.projector_hidden, 4 * config.hidden),
            down: matrix(&mut random, 8, config.projector_hidden),
        },
    };
    let tiles: Vec<ImageTile> = (0..TILES)
        .map(|_| ImageTile { pixels: random.floats(3 * config.tile.pow(2), 2.0), hash: [0; 32] })
        .collect();
    let team = ThreadPool::new(1);
    let mut entering = Vec::new();
    let mut shuffled = Vec::new();
    let crew = ComputeContext { team: &team, compute: ProductPrecision::Float32 };
    let mut see = |stage: EncoderStage, values: &[f32]| match stage {
        EncoderStage::State(_) => entering.extend_from_slice(values),
        EncoderStage::Features => (),
        EncoderStage::Shuffled => shuffled.extend_from_slice(values),
    };
    let encoder = VisionEncoder { weights: &weights, config: &config, crew };
    encoder.encode_traced(&mut VisionWorkspace::default(), &tiles, &mut see);
    let pixels = tiles.iter().flat_map(|tile| tile.pixels.clone()).collect();
    let VisionWeights { embedder, positions, prefix, .. } = weights;
    EncoderValues { config, prefix, embedder, positions, pixels, entering, shuffled }
}

fn check_patches(library: &KernelRunner) -> Result<(), String> {
    patches::<f32>(library, 2e-6)?;
    patches::<bf16>(library, 2e-2)
}

fn patches<T: TestNumber>(library: &KernelRunner, tolerance: f32) -> Result<(), String> {
    let EncoderValues { config, prefix, embedder, positions, pixels, entering, .. } = encoder_values(false);
    let count = config.patches_side().pow(2);
    let values = 3 * config.patch * config.patch;
    let pixel_memory = GuardedMemory::of(&pixels);
    let position_memory = GuardedMemory::of(&positions);
    let cut = GuardedMemory::<T>::unwritten(TILES * count * values);
    let prefixes = GuardedMemory::of(&stored::<T>(&prefix));
    let hidden = GuardedMemory::<T>::unwritten(TILES * (PREFIXES + count) * config.hidden);
    let empty = GuardedMemory::<T>::unwritten(TILES * count * config.hidden);
    let way = PatchLaunch {
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
    embedder.product(&ThreadPool::new(1), ProductPrecision::Float32, &widened(&cut.read()?), &mut embedded);
    let embedded = GuardedMemory::of(&stored::<T>(&embedded));
    library.run(&PatchLaunch { embedded: embedded.view(), ..way }.write_residual())?;
    near("tokens entering the tower", &widened(&hidden.read()?), &entering, tolerance)
}

fn check_shuffle(library: &KernelRunner) -> Result<(), String> {
    for swapped in [false, true] {
        let EncoderValues { config, entering, shuffled, .. } = encoder_values(swapped);
        shuffle::<f32>(library, &config, &entering, &shuffled)?;
        shuffle::<bf16>(library, &config, &entering, &shuffled)?;
    }
    Ok(())
}

fn shuffle<T: TestNumber>(
    library: &KernelRunner,
    config: &VisionConfig,
    from: &[f32],
    want: &[f32],
) -> Result<(), String> {
    let hidden = GuardedMemory::of(&stored::<T>(from));
    let out = GuardedMemory::<T>::unwritten(want.len());
    library.run(&pixel_shuffle(config, PREFIXES, hidden.view(), out.view()))?;
    same("shuffled rows", &widened(&out.read()?), &rounded::<T>(want))
}
