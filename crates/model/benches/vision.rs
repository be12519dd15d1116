//! Times the steps from a screenshot to the language model:
//! `cargo bench -p furrow-model --bench vision [-- THREADS]`. Each number is the best of several
//! runs; arithmetic is printed next to the peak measured in the same run.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::hint::black_box;
use std::io::Cursor;
use std::time::Instant;

use furrow_model::config::VisionConfig;
use furrow_model::kernels::{InstructionSet, PackedMatrix, ProductPrecision, ThreadPool, peak};
use furrow_model::layers::ComputeContext;
use furrow_model::vision::{
    DecodedImage, ImageLimits, ImageTile, ResampleMode, VisionEncoder, VisionWorkspace, decode, prepare,
    resize,
};
use furrow_model::weights::{BiasedMatrix, LayerNormWeights, MlpWeights, VisionBlock, VisionWeights};
use image::ImageFormat;

fn main() {
    let threads = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2);
    let team = ThreadPool::new(threads);
    let alone = ThreadPool::new(1);
    println!("{threads} threads, {:?}", InstructionSet::best());
    for (width, height, grid) in [(1280, 720, (2, 1)), (1920, 1080, (4, 2))] {
        pixels(&screenshot(width, height), grid, flops(&alone));
    }
    let peak = flops(&team);
    println!("peak: {:.0} GFLOP/s of multiply-adds", peak / 1e9);
    // C-RADIO's smallest published width, with a projector in proportion; then the 12B's own shapes
    // with 2 of its 32 blocks.
    tower("small", &team, peak, &shape(384, 6, 12, 1536, 1536), 1024, ProductPrecision::Float32);
    tower("12B/16", &team, peak, &shape(1280, 16, 2, 5120, 20_480), 5120, ProductPrecision::Float32);
    tower("12B/16", &team, peak, &shape(1280, 16, 2, 5120, 20_480), 5120, ProductPrecision::Bfloat16);
}

/// Everything before the tower, on one thread.
fn pixels(image: &DecodedImage, (columns, rows): (usize, usize), peak: f64) {
    let DecodedImage { width, height, pixels, .. } = image;
    let name = format!("{width} x {height}");
    for format in [ImageFormat::Png, ImageFormat::Jpeg] {
        let bytes = encoded(image, format);
        let seconds = best(8, || _ = black_box(decode(&bytes, ImageLimits::default()).is_ok()));
        println!("{name}: decode {format:?} {:.2} ms", seconds * 1e3);
    }
    let config = shape(1280, 16, 32, 5120, 20_480);
    for to in [(512 * columns, 512 * rows), (512, 512)] {
        let seconds = best(20, || _ = black_box(resize(pixels, (*width, *height), to)));
        // Taps a side: 4 when it grows, 4 x scale when it shrinks. An integer multiply-add takes as
        // long as a float32 one.
        let taps = |from: usize, to: usize| 4.0 * (from as f64 / to as f64).max(1.0);
        let sums = 3.0 * (height * to.0) as f64 * taps(*width, to.0)
            + 3.0 * (to.0 * to.1) as f64 * taps(*height, to.1);
        let share = 2.0 * sums / peak / seconds;
        println!(
            "{name}: resize to {} x {} {:.2} ms ({:.0} % of peak)",
            to.0,
            to.1,
            seconds * 1e3,
            100.0 * share
        );
    }
    for resampling in [ResampleMode::U8, ResampleMode::Float] {
        let seconds = best(10, || _ = black_box(prepare(image, &config, resampling)));
        println!("{name}: prepare {resampling:?} {:.2} ms", seconds * 1e3);
    }
}

fn tower(
    name: &str,
    team: &ThreadPool,
    peak: f64,
    config: &VisionConfig,
    out: usize,
    compute: ProductPrecision,
) {
    let weights = weights(config, out);
    let encoder = VisionEncoder { weights: &weights, config, crew: ComputeContext { team, compute } };
    let mut workspace = VisionWorkspace::default();
    for tiles in [1, 3] {
        let tiles: Vec<ImageTile> = (0..tiles).map(|seed| tile(config, seed)).collect();
        let seconds = best(3, || _ = black_box(encoder.encode(&mut workspace, &tiles)));
        let work = work(config, out) * tiles.len() as f64;
        println!(
            "{name} {compute:?}: {} tiles {:.1} ms, {:.0} GFLOP/s ({:.0} % of the float32 peak)",
            tiles.len(),
            seconds * 1e3,
            work / seconds / 1e9,
            100.0 * work / seconds / peak
        );
    }
}

/// Operations of a tile: two for each weight and row, and 4 tokens^2 hidden a block for attention.
fn work(config: &VisionConfig, out: usize) -> f64 {
    let hidden = config.hidden as f64;
    let inner = config.intermediate as f64;
    let patches = config.patches_side().pow(2) as f64;
    let tokens = patches + PREFIX as f64;
    let block =
        2.0 * tokens * (4.0 * hidden * hidden + 2.0 * hidden * inner) + 4.0 * tokens * tokens * hidden;
    let wide = (config.shuffle.pow(2) * config.hidden + out) as f64;
    let projector = 2.0 * config.rows_per_tile() as f64 * config.projector_hidden as f64 * wide;
    2.0 * patches * 768.0 * hidden + config.blocks as f64 * block + projector
}

const PREFIX: usize = 16;

fn shape(
    hidden: usize,
    heads: usize,
    blocks: usize,
    intermediate: usize,
    projector_hidden: usize,
) -> VisionConfig {
    VisionConfig {
        tile: 512,
        tiles_max: 12,
        thumbnail: true,
        patch: 16,
        hidden,
        blocks,
        heads,
        intermediate,
        positions_side: 128,
        align_corners: false,
        shuffle_swapped: false,
        shuffle: 2,
        projector_hidden,
        mean: [0.48, 0.46, 0.41],
        std: [0.27, 0.26, 0.28],
        image_token: 131_072,
        image_marks: ["<img>".into(), "</img>".into()],
    }
}

fn weights(config: &VisionConfig, out: usize) -> VisionWeights {
    let h = config.hidden;
    let norm = || LayerNormWeights { weight: vec![1.0; h], bias: vec![0.0; h] };
    let biased = |out, input| BiasedMatrix { matrix: matrix(out, input), bias: vec![0.01; out] };
    let block = || VisionBlock {
        norm1: norm(),
        qkv: biased(3 * h, h),
        proj: biased(h, h),
        norm2: norm(),
        fc1: biased(config.intermediate, h),
        fc2: biased(h, config.intermediate),
    };
    let shuffled = config.shuffle.pow(2) * h;
    VisionWeights {
        embedder: matrix(h, 768),
        positions: wave(config.positions_side.pow(2) * h),
        prefix: wave(PREFIX * h),
        blocks: (0..config.blocks).map(|_| block()).collect(),
        projector_norm: vec![1.0; shuffled],
        projector: MlpWeights {
            up: matrix(config.projector_hidden, shuffled),
            down: matrix(out, config.projector_hidden),
        },
    }
}

fn matrix(out: usize, input: usize) -> PackedMatrix {
    let scale = (input as f32).sqrt().recip();
    let bits: Vec<u16> =
        wave(out * input).iter().map(|value| ((value * scale).to_bits() >> 16) as u16).collect();
    PackedMatrix::from_bf16(out, input, &bits)
}

fn wave(len: usize) -> Vec<f32> {
    (0..len)
        .map(|index| (index as u32).wrapping_mul(2_654_435_761) as f32 * 2.0_f32.powi(-31) - 1.0)
        .collect()
}

fn tile(config: &VisionConfig, seed: u8) -> ImageTile {
    ImageTile { pixels: wave(3 * config.tile.pow(2)), hash: [seed; 32] }
}

/// Flat areas, an edge every 40 pixels, and noise in a tenth, like a page for a decoder.
fn screenshot(width: usize, height: usize) -> DecodedImage {
    let value = |index: usize| {
        let x = index / 3 % width;
        let y = index / 3 / width;
        let noise = if x % 400 < 40 { index.wrapping_mul(2_654_435_761) >> 24 & 63 } else { 0 };
        ((x / 40 * 37 + y / 40 * 61) % 192 + noise) as u8
    };
    DecodedImage::new(width, height, (0..3 * width * height).map(value).collect())
}

fn encoded(image: &DecodedImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let width = image.width as u32;
    let height = image.height as u32;
    let image = image::RgbImage::from_raw(width, height, image.pixels.clone())
        .expect("the buffer has the size of the image");
    image.write_to(&mut bytes, format).expect("writing to memory succeeds");
    bytes.into_inner()
}

/// Multiply-adds a second, two operations each.
fn flops(team: &ThreadPool) -> f64 {
    let rounds = 4_000_000;
    let mut work = 0.0;
    let seconds = best(5, || work = black_box(peak::multiply_adds(team, rounds)));
    work / seconds
}

/// Seconds of the fastest of some runs.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
