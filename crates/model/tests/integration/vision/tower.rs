//! Tiles through tower, pixel shuffle and projector, stage by stage.

use std::collections::HashMap;

use furrow_model::config::VisionConfig;
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::layers::ComputeContext;
use furrow_model::vision::{EncoderStage, ImageTile, ResampleMode, VisionEncoder, VisionWorkspace, prepare};
use furrow_model::weights::ModelWeights;

use crate::vision::oracle::{ExpectedTensors, SCREENSHOTS, folder, screenshot};

const CASES: [&str; 2] = ["vl_f32", "vl_bf16_sharded"];

/// Rms of the difference over rms of the reference. The reference's own noise is at most 4e-6; the
/// nearest wrong choice, tanh instead of erf, gives 9e-5.
const TOLERANCE: f64 = 2e-5;

#[track_caller]
pub(super) fn near(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let square = |value: f32| f64::from(value).powi(2);
    let apart: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    let all: f64 = want.iter().map(|value| square(*value)).sum();
    let away = (apart / all).sqrt();
    assert!(away <= TOLERANCE, "{what} is {away:.1e} away");
}

/// A checkpoint with one of the two ways of resizing the position table.
struct TowerCase {
    name: &'static str,
    tag: &'static str,
    weights: ModelWeights,
    config: VisionConfig,
    team: ThreadPool,
    expected: ExpectedTensors,
}

impl TowerCase {
    fn load(name: &'static str, align_corners: bool) -> Self {
        let team = ThreadPool::new(2);
        let weights = ModelWeights::load(&folder().join(name), &team, &mut |_, _| {}).unwrap();
        let config = VisionConfig { align_corners, ..weights.config.vision.clone().unwrap() };
        let expected = ExpectedTensors::read(&format!("{name}/expected.safetensors"));
        Self { name, tag: if align_corners { "ac1" } else { "ac0" }, weights, config, team, expected }
    }

    fn all() -> impl Iterator<Item = Self> {
        CASES.into_iter().flat_map(|name| [false, true].map(|align_corners| Self::load(name, align_corners)))
    }

    fn encoder(&self) -> VisionEncoder<'_> {
        let crew = ComputeContext { team: &self.team, compute: ProductPrecision::Float32 };
        VisionEncoder { weights: self.weights.vision.as_ref().unwrap(), config: &self.config, crew }
    }

    fn tiles(&self, image: &str, resampling: ResampleMode) -> Vec<ImageTile> {
        prepare(screenshot(image), &self.config, resampling).tiles
    }

    /// Compares a tensor, of which the reference may have only the first tiles; returns whether it
    /// has the tensor.
    fn compare(&self, key: &str, got: &[f32]) -> bool {
        let known = self.expected.has(key);
        if known {
            let want = self.expected.floats(key);
            near(&format!("{} {key}", self.name), &got[..want.len()], &want);
        }
        known
    }

    fn check(&self) {
        let mut compared = 0;
        let mut workspace = VisionWorkspace::default();
        for image in SCREENSHOTS {
            let prefix = format!("{image}.{}", self.tag);
            let mut stages: HashMap<EncoderStage, Vec<f32>> = HashMap::new();
            let tiles = self.tiles(image, ResampleMode::U8);
            let rows = self.encoder().encode_traced(&mut workspace, &tiles, &mut |stage, values| {
                stages.entry(stage).or_default().extend_from_slice(values);
            });
            let embeds = format!("{prefix}.embeds");
            near(&embeds, &rows, &self.expected.floats(&embeds));
            for (stage, got) in &stages {
                let key = match stage {
                    EncoderStage::State(index) => format!("{prefix}.state.{index}"),
                    EncoderStage::Features => format!("{prefix}.features"),
                    EncoderStage::Shuffled => format!("{prefix}.shuffled"),
                };
                compared += usize::from(self.compare(&key, got));
            }
            let key = format!("{prefix}.embeds.floatpath");
            if self.expected.has(&key) {
                let rows = self.encoder().encode(&mut workspace, &self.tiles(image, ResampleMode::Float));
                compared += usize::from(self.compare(&key, &rows));
            }
        }
        // For one image: a state before each block and after the last, features, shuffled; and the
        // float path, which only ac0 has.
        let want = self.config.blocks + 3 + usize::from(!self.config.align_corners);
        assert_eq!(compared, want, "{} {}", self.name, self.tag);
    }
}

#[test]
fn every_stage_is_the_references() {
    TowerCase::all().for_each(|case| case.check());
}

/// A tile's rows have the same bits alone, with any other tiles, with any number of threads, and in
/// a used workspace.
#[test]
fn a_tile_does_not_depend_on_its_neighbours() {
    for case in TowerCase::all() {
        // 60 tiles go through the tower in more than one group.
        let images = SCREENSHOTS.map(|image| case.tiles(image, ResampleMode::U8)).concat();
        let tiles: Vec<ImageTile> = images.iter().cycle().take(60).cloned().collect();
        let alone = |tile: &ImageTile| {
            case.encoder().encode(&mut VisionWorkspace::default(), std::slice::from_ref(tile))
        };
        let want: Vec<Vec<f32>> = tiles.iter().map(alone).collect();
        let mut used = VisionWorkspace::default();
        for threads in [1, 2, 3] {
            let team = ThreadPool::new(threads);
            let mut encoder = case.encoder();
            encoder.crew.team = &team;
            for (tiles, want) in
                [(&tiles[..], &want[..]), (&tiles[7..9], &want[7..9]), (&tiles[..0], &want[..0])]
            {
                assert!(encoder.encode(&mut used, tiles) == want.concat(), "{} by {threads}", case.name);
            }
        }
    }
}

/// A tile that is not finite affects no other tile.
#[test]
fn a_nan_stays_in_its_tile() {
    let case = TowerCase::load("vl_f32", false);
    let mut tiles = case.tiles("d_512x512", ResampleMode::U8);
    let want = case.encoder().encode(&mut VisionWorkspace::default(), &tiles);
    tiles[1].pixels[100] = f32::NAN;
    let got = case.encoder().encode(&mut VisionWorkspace::default(), &tiles);
    let rows = want.len() / tiles.len();
    for (index, (got, want)) in got.chunks(rows).zip(want.chunks(rows)).enumerate() {
        if index == 1 {
            assert!(got.iter().all(|value| value.is_nan()), "its own rows are not all NaN");
        } else {
            assert_eq!(got, want, "tile {index}");
        }
    }
}
