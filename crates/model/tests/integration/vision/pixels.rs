//! Grids, resized bytes, tiles and normalised values.

use furrow_model::config::VisionConfig;
use furrow_model::vision::{DecodedImage, PreparedImage, ResampleMode, grid, prepare, resize, tokens};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use crate::vision::oracle::{ExpectedTensors, SCREENSHOTS, bytes_of, json, near, published, screenshot};

#[test]
fn every_listed_size_gets_its_grid() {
    let list = json("grids_512.json");
    let rows = list["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 194);
    let config = published(512, 12);
    for row in rows {
        let [width, height, columns, rows, tiles, count]: [usize; 6] =
            serde_json::from_value(row.clone()).unwrap();
        let found = grid(width, height, 512, 12);
        assert_eq!(found, (columns, rows), "{width} x {height}");
        assert_eq!(tokens(&config, found), count, "{width} x {height}");
        assert_eq!(count, 256 * tiles);
    }
}

#[test]
fn screenshots_become_the_published_tiles() {
    let reference = json("preprocess_512.json");
    let expected = ExpectedTensors::read("preprocess_512.safetensors");
    for name in SCREENSHOTS {
        PublishedScreenshot {
            name,
            image: screenshot(name),
            reference: &reference["images"][name],
            expected: &expected,
        }
        .check();
    }
}

struct PublishedScreenshot<'a> {
    name: &'static str,
    image: &'a DecodedImage,
    reference: &'a serde_json::Value,
    expected: &'a ExpectedTensors,
}

impl PublishedScreenshot<'_> {
    fn check(&self) {
        let config = published(512, 12);
        let bytes = prepare(self.image, &config, ResampleMode::U8);
        self.sha256("sha256_rgb_source", &self.image.sha256);
        self.resized("sha256_rgb_canvas", (512 * bytes.grid.0, 512 * bytes.grid.1));
        self.resized("sha256_rgb_thumbnail", (512, 512));
        let tiles = bytes.tiles.iter().flat_map(|tile| bytes_of(&config, &tile.pixels));
        self.sha256("sha256_tiles_u8_nhwc", &Sha256::digest(tiles.collect::<Vec<_>>()));
        assert_eq!(self.reference["tokens"].as_u64(), Some(tokens(&config, bytes.grid) as u64));
        assert_eq!(self.reference["tiles"].as_u64(), Some(bytes.tiles.len() as u64));
        self.samples(&bytes, "u8path", 1e-6);
        self.samples(&prepare(self.image, &config, ResampleMode::Float), "floatpath", 1e-4);
    }

    fn resized(&self, key: &str, to: (usize, usize)) {
        if self.reference[key].is_null() {
            return;
        }
        let pixels = resize(&self.image.pixels, (self.image.width, self.image.height), to);
        self.sha256(key, &Sha256::digest(pixels));
    }

    fn sha256(&self, key: &str, got: &[u8]) {
        let hex: String = got.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(self.reference[key].as_str(), Some(hex.as_str()), "{key} of {}", self.name);
    }

    fn samples(&self, got: &PreparedImage, path: &str, tolerance: f32) {
        let index = self.expected.ints(&format!("{}.sample_index", self.name));
        let at = |[tile, channel, row, column]: [usize; 4]| {
            got.tiles[tile].pixels[(channel * 512 + row) * 512 + column]
        };
        let got: Vec<f32> =
            index.as_chunks::<4>().0.iter().map(|index| at(index.map(|i| i as usize))).collect();
        assert_eq!(got.len(), 4000);
        let key = format!("{}.sample.{path}", self.name);
        near(&key, &got, &self.expected.floats(&key), tolerance);
    }
}

#[test]
fn small_tiles_are_the_reference_tiles() {
    check_tiles("vl_f32", &published(64, 12));
    check_tiles("vl_bf16_sharded", &published(96, 4));
}

#[track_caller]
fn check_tiles(case: &str, config: &VisionConfig) {
    let expected = ExpectedTensors::read(&format!("{case}/expected.safetensors"));
    let pixels = |image: &DecodedImage, path| -> Vec<f32> {
        prepare(image, config, path).tiles.into_iter().flat_map(|tile| tile.pixels).collect()
    };
    let mut whole = 0;
    for name in SCREENSHOTS {
        let image = screenshot(name);
        let got = pixels(image, ResampleMode::U8);
        let bytes: Vec<u8> =
            got.chunks(3 * config.tile.pow(2)).flat_map(|tile| bytes_of(config, tile)).collect();
        assert!(bytes == expected.bytes(&format!("{name}.tiles_u8")), "{case} {name}");
        let path = format!("{name}.pixels.u8path");
        if expected.has(&path) {
            near(&path, &got, &expected.floats(&path), 1e-6);
            let path = format!("{name}.pixels.floatpath");
            near(&path, &pixels(image, ResampleMode::Float), &expected.floats(&path), 1e-4);
            whole += 1;
        }
    }
    assert_eq!(whole, 1, "{case} has all pixels of one image");
}

/// A tile's hash identifies its pixels and the preprocessing.
#[test]
fn hashes_name_pixels() {
    let image = screenshot("d_512x512");
    let config = published(64, 4);
    let hashes = |image: &DecodedImage, config: &_, path| -> Vec<[u8; 32]> {
        prepare(image, config, path).tiles.iter().map(|tile| tile.hash).collect()
    };
    let bytes = hashes(image, &config, ResampleMode::U8);
    assert_eq!(bytes, hashes(image, &config, ResampleMode::U8));
    let mut other = bytes.clone();
    other.extend(hashes(image, &config, ResampleMode::Float));
    other.extend(hashes(image, &published(32, 4), ResampleMode::U8));
    let mut shifted = config.clone();
    shifted.mean[2] += 0.01;
    other.extend(hashes(image, &shifted, ResampleMode::U8));
    let mut inverted = image.pixels.clone();
    inverted[0] ^= 255;
    let inverted = hashes(&DecodedImage::new(512, 512, inverted), &config, ResampleMode::U8);
    assert_ne!(inverted[0], bytes[0], "its first pixel did not change");
    assert_eq!(inverted[1..4], bytes[1..4], "the other tiles changed");
    let count = other.len();
    other.sort_unstable();
    other.dedup();
    assert_eq!(other.len(), count);
}

/// One axis after the other in double precision, directly from the filter's definition: no fixed
/// point, no clamp, no blocks.
fn naive(pixels: &[f64], from: (usize, usize), to: (usize, usize)) -> Vec<f64> {
    let at = |pixels: &[f64], width: usize, x: usize, y: usize, c: usize| pixels[3 * (y * width + x) + c];
    let mut across = Vec::new();
    for y in 0..from.1 {
        for x in 0..to.0 {
            (0..3).for_each(|c| across.push(naive_sample(from.0, to.0, x, |i| at(pixels, from.0, i, y, c))));
        }
    }
    let mut down = Vec::new();
    for y in 0..to.1 {
        for x in 0..to.0 {
            (0..3).for_each(|c| down.push(naive_sample(from.1, to.1, y, |i| at(&across, to.0, x, i, c))));
        }
    }
    down
}

fn naive_sample(inputs: usize, outputs: usize, output: usize, value: impl Fn(usize) -> f64) -> f64 {
    if inputs == outputs {
        return value(output);
    }
    let support = (inputs as f64 / outputs as f64).max(1.0);
    let centre = (output as f64 + 0.5) * inputs as f64 / outputs as f64;
    let weight = |input: usize| {
        let t = ((input as f64 + 0.5 - centre) / support).abs();
        if t < 1.0 {
            1.5 * t.powi(3) - 2.5 * t.powi(2) + 1.0
        } else if t < 2.0 {
            -0.5 * t.powi(3) + 2.5 * t.powi(2) - 4.0 * t + 2.0
        } else {
            0.0
        }
    };
    let sum: f64 = (0..inputs).map(weight).sum();
    (0..inputs).map(|input| weight(input) * value(input)).sum::<f64>() / sum
}

fn noise(width: usize, height: usize, seed: u64) -> DecodedImage {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    DecodedImage::new(width, height, (0..3 * width * height).map(|_| next()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two roundings to bytes: half a step after the horizontal pass, which the vertical pass may
    /// amplify by 1.4, and half a step after that. Values from 64 to 191 leave a margin for
    /// overshoot, so that no clamp between the passes hides the filter.
    #[test]
    fn bytes_stay_near_the_exact_filter(
        from in (1usize..90, 1usize..90),
        to in (1usize..70, 1usize..70),
        seed: u64,
    ) {
        let pixels: Vec<u8> = noise(from.0, from.1, seed).pixels.iter().map(|value| value / 2 + 64).collect();
        let exact: Vec<f64> = pixels.iter().map(|value| f64::from(*value)).collect();
        let want = naive(&exact, from, to);
        for (index, (got, want)) in resize(&pixels, from, to).iter().zip(&want).enumerate() {
            prop_assert!((f64::from(*got) - want).abs() <= 1.25, "{got} at {index}, exactly {want}");
        }
    }

    #[test]
    fn floats_follow_the_exact_filter(width in 1usize..120, height in 1usize..120, seed: u64) {
        let config = published(16, 4);
        let image = noise(width, height, seed);
        let scaled: Vec<f64> = image.pixels.iter().map(|value| f64::from(*value) / 255.0).collect();
        let prepared = prepare(&image, &config, ResampleMode::Float);
        let thumbnail = naive(&scaled, (width, height), (16, 16));
        let got = &prepared.tiles[prepared.tiles.len() - 1].pixels;
        for (index, want) in thumbnail.iter().enumerate() {
            let pixel = index / 3;
            let channel = index % 3;
            let want = (want - f64::from(config.mean[channel])) / f64::from(config.std[channel]);
            prop_assert!((f64::from(got[channel * 256 + pixel]) - want).abs() <= 1e-4);
        }
    }

    #[test]
    fn any_size_gives_whole_tiles(width in 1usize..400, height in 1usize..400, tile in 1usize..5, tiles_max in 0usize..14) {
        check_shape(width, height, 16 * tile, tiles_max);
    }
}

#[test]
fn extreme_shapes_give_whole_tiles() {
    check_shape(1, 1, 512, 12);
    check_shape(32, 32, 512, 12);
    check_shape(16_384, 1, 64, 12);
    check_shape(1, 16_384, 64, 12);
    check_shape(16_384, 32, 512, 12);
    check_shape(32, 16_384, 512, 12);
    check_shape(511, 513, 512, 1);
}

#[track_caller]
fn check_shape(width: usize, height: usize, tile: usize, tiles_max: usize) {
    let config = published(tile, tiles_max);
    for path in [ResampleMode::U8, ResampleMode::Float] {
        let prepared = prepare(&noise(width, height, 7), &config, path);
        let (columns, rows) = prepared.grid;
        assert!(columns * rows <= tiles_max.max(1), "{width} x {height}: {columns} x {rows}");
        assert_eq!(prepared.tiles.len(), columns * rows + usize::from(columns * rows > 1));
        for tile_ in &prepared.tiles {
            assert_eq!(tile_.pixels.len(), 3 * tile * tile);
            assert!(tile_.pixels.iter().all(|value| value.is_finite()));
        }
    }
}
