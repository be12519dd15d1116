//! Tiles through tower, pixel shuffle and projector, stage by stage.

use std::collections::HashMap;

use furrow_model::config::VisionConfig;
use furrow_model::kernels::{Compute, Team};
use furrow_model::layers::Crew;
use furrow_model::vision::{Encoder, Resample, Stage, Tile, Workspace, prepare};
use furrow_model::weights::Weights;

use crate::oracle::{Expected, SCREENSHOTS, folder, screenshot};

const CASES: [&str; 2] = ["vl_f32", "vl_bf16_sharded"];

/// Rms of the difference over rms of the reference. The reference's own noise is 4e-6 at most; the nearest wrong choice, tanh in place of
/// erf, gives 9e-5.
const TOLERANCE: f64 = 2e-5;

#[track_caller]
pub fn near(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let square = |value: f32| f64::from(value).powi(2);
    let apart: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    let all: f64 = want.iter().map(|value| square(*value)).sum();
    let away = (apart / all).sqrt();
    assert!(away <= TOLERANCE, "{what} is {away:.1e} away");
}

/// A checkpoint with one of the two ways to resize the position table.
struct Case {
    name: &'static str,
    tag: &'static str,
    weights: Weights,
    config: VisionConfig,
    team: Team,
    expected: Expected,
}

impl Case {
    fn load(name: &'static str, align_corners: bool) -> Self {
        let team = Team::new(2);
        let weights = Weights::load(&folder().join(name), &team, &mut |_, _| {}).unwrap();
        let config = VisionConfig { align_corners, ..weights.config.vision.clone().unwrap() };
        let expected = Expected::read(&format!("{name}/expected.safetensors"));
        Self { name, tag: if align_corners { "ac1" } else { "ac0" }, weights, config, team, expected }
    }

    fn all() -> impl Iterator<Item = Self> {
        CASES.into_iter().flat_map(|name| [false, true].map(|align_corners| Self::load(name, align_corners)))
    }

    fn encoder(&self) -> Encoder<'_> {
        let crew = Crew { team: &self.team, compute: Compute::Float32 };
        Encoder { weights: self.weights.vision.as_ref().unwrap(), config: &self.config, crew }
    }

    fn tiles(&self, image: &str, resampling: Resample) -> Vec<Tile> {
        prepare(screenshot(image), &self.config, resampling).tiles
    }

    /// Compares a tensor that may be known of the first tiles only; says whether it was there.
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
        let mut workspace = Workspace::default();
        for image in SCREENSHOTS {
            let prefix = format!("{image}.{}", self.tag);
            let mut stages: HashMap<Stage, Vec<f32>> = HashMap::new();
            let tiles = self.tiles(image, Resample::U8);
            let rows = self.encoder().encode_traced(&mut workspace, &tiles, &mut |stage, values| {
                stages.entry(stage).or_default().extend_from_slice(values);
            });
            let embeds = format!("{prefix}.embeds");
            near(&embeds, &rows, &self.expected.floats(&embeds));
            for (stage, got) in &stages {
                let key = match stage {
                    Stage::State(index) => format!("{prefix}.state.{index}"),
                    Stage::Features => format!("{prefix}.features"),
                    Stage::Shuffled => format!("{prefix}.shuffled"),
                };
                compared += usize::from(self.compare(&key, got));
            }
            let key = format!("{prefix}.embeds.floatpath");
            if self.expected.has(&key) {
                let rows = self.encoder().encode(&mut workspace, &self.tiles(image, Resample::Float));
                compared += usize::from(self.compare(&key, &rows));
            }
        }
        // Of one image: a state before each block and after the last, features, shuffled; and the float path, known for ac0 only.
        let want = self.config.blocks + 3 + usize::from(!self.config.align_corners);
        assert_eq!(compared, want, "{} {}", self.name, self.tag);
    }
}

#[test]
fn every_stage_is_the_references() {
    Case::all().for_each(|case| case.check());
}

/// Alone, in any company, by any number of threads, in a used workspace: a tile's rows are the same bits.
#[test]
fn a_tile_does_not_depend_on_its_neighbours() {
    for case in Case::all() {
        // 60 tiles go through the tower in more than one group.
        let images = SCREENSHOTS.map(|image| case.tiles(image, Resample::U8)).concat();
        let tiles: Vec<Tile> = images.iter().cycle().take(60).cloned().collect();
        let alone =
            |tile: &Tile| case.encoder().encode(&mut Workspace::default(), std::slice::from_ref(tile));
        let want: Vec<Vec<f32>> = tiles.iter().map(alone).collect();
        let mut used = Workspace::default();
        for threads in [1, 2, 3] {
            let team = Team::new(threads);
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

/// A tile that is not finite stays alone with it.
#[test]
fn a_nan_stays_in_its_tile() {
    let case = Case::load("vl_f32", false);
    let mut tiles = case.tiles("d_512x512", Resample::U8);
    let want = case.encoder().encode(&mut Workspace::default(), &tiles);
    tiles[1].pixels[100] = f32::NAN;
    let got = case.encoder().encode(&mut Workspace::default(), &tiles);
    let rows = want.len() / tiles.len();
    for (index, (got, want)) in got.chunks(rows).zip(want.chunks(rows)).enumerate() {
        if index == 1 {
            assert!(got.iter().all(|value| value.is_nan()), "its own rows are lost");
        } else {
            assert_eq!(got, want, "tile {index}");
        }
    }
}
