//! The reference data: screenshots, expected tensors, and comparisons of lists of numbers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use furrow_model::config::VisionConfig;
use furrow_model::vision::{DecodedImage, ImageLimits, decode};
use safetensors::SafeTensors;

pub(super) const SCREENSHOTS: [&str; 5] =
    ["a_1280x720", "b_1920x1080", "c_800x600", "d_512x512", "e_300x1000"];

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle_vl")
}

/// A decoded screenshot; every test shares them.
pub(super) fn screenshot(name: &str) -> &'static DecodedImage {
    static ALL: OnceLock<[DecodedImage; 5]> = OnceLock::new();
    let read = |name| {
        let bytes = fs::read(folder().join("screenshots").join(format!("{name}.png"))).unwrap();
        decode(&bytes, ImageLimits::default()).unwrap()
    };
    let index = SCREENSHOTS.iter().position(|other| *other == name).unwrap();
    &ALL.get_or_init(|| SCREENSHOTS.map(read))[index]
}

pub(super) fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(folder().join(name)).unwrap()).unwrap()
}

/// Tensors of a file, by name.
pub(super) struct ExpectedTensors(HashMap<String, Vec<u8>>);

impl ExpectedTensors {
    pub(super) fn read(name: &str) -> Self {
        let bytes = fs::read(folder().join(name)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let owned =
            |(name, view): (String, safetensors::tensor::TensorView<'_>)| (name, view.data().to_vec());
        Self(tensors.tensors().into_iter().map(owned).collect())
    }

    pub(super) fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(super) fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
    }

    pub(super) fn ints(&self, name: &str) -> Vec<i32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|value| i32::from_le_bytes(*value)).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// The published sizes; tests without a checkpoint use only the fields that matter to pixels.
pub(super) fn published(tile: usize, tiles_max: usize) -> VisionConfig {
    VisionConfig {
        tile,
        tiles_max,
        thumbnail: true,
        patch: 16,
        hidden: 1280,
        blocks: 32,
        heads: 16,
        intermediate: 5120,
        positions_side: 128,
        align_corners: false,
        shuffle_swapped: false,
        shuffle: 2,
        projector_hidden: 20_480,
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
        image_token: 131_072,
        image_marks: ["<img>".into(), "</img>".into()],
    }
}

/// The bytes that normalised pixels `[3, t, t]` came from, as `[t, t, 3]`: neighbouring bytes are
/// 0.014 apart, so rounding is exact.
pub(super) fn bytes_of(config: &VisionConfig, pixels: &[f32]) -> Vec<u8> {
    let plane = pixels.len() / 3;
    let byte = |i: usize, c: usize| (pixels[c * plane + i] * config.std[c] + config.mean[c]) * 255.0;
    (0..plane).flat_map(|i| [0, 1, 2].map(|c| byte(i, c).round() as u8)).collect()
}

#[track_caller]
pub(super) fn near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    // A NaN is near nothing.
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance;
    let apart = got.iter().zip(want).position(|pair| !is_near(pair));
    if let Some(index) = apart {
        panic!("{what}: {} at {index}, should be {} within {tolerance}", got[index], want[index]);
    }
}
