//! Screenshots through the tower on the device, and their rows inside prompts.

use furrow_cuda::backend::Precision;
use furrow_model::backend::{Backend, BackendError, Feature, Inset};
use furrow_model::vision::Tile;

use crate::case::{Case, sequence};
use crate::pair::Pair;

/// Tiles of noise.
fn tiles(case: &Case, count: u32) -> Vec<Tile> {
    let side = case.weights.config.vision.as_ref().unwrap().tile;
    let pixel = |value: u32| value as f32 / 48.0 - 1.0;
    (0..count)
        .map(|seed| Tile {
            pixels: case.ids(100 + seed, 3 * side * side).into_iter().map(pixel).collect(),
            hash: [seed as u8; 32],
        })
        .collect()
}

fn both(pair: &mut Pair, tiles: &[Tile]) -> Vec<Feature> {
    let held = pair.device.encode(tiles).unwrap();
    assert_eq!(held, pair.cpu.encode(tiles).unwrap(), "both give places in one order");
    held
}

#[test]
fn tiles_stand_in_prompts_as_on_the_cpu() {
    for case in [Case::made(Precision::Usual), Case::made(Precision::WideResidual), Case::of_float32()] {
        let mut pair = Pair::open(&case);
        let features = both(&mut pair, &tiles(&case, 3));
        let rows = case.weights.config.vision.as_ref().unwrap().rows_per_tile() as u32;
        let placeholder = case.weights.config.vision.as_ref().unwrap().image_token;
        // Text, a tile, text, two tiles; cut inside the second.
        let mut ids = case.ids(50, 30);
        let [first, second, third] = [2, 9, 9 + rows].map(|at| at as usize);
        for at in [first, second, third] {
            ids[at..at + rows as usize].fill(placeholder);
        }
        let inset = |at: usize, len: u32, feature: usize, row: u32| Inset {
            at: at as u32,
            len,
            feature: features[feature],
            row,
        };
        let mut own = sequence(0);
        let cut = second + 1;
        pair.extend_with(&mut own, &ids[..cut], &[inset(first, rows, 0, 0), inset(second, 1, 1, 0)]);
        pair.extend_with(&mut own, &ids[cut..], &[inset(0, rows - 1, 1, 1), inset(third - cut, rows, 2, 0)]);
        pair.extend(&mut own, &case.ids(51, 1));

        // A place that is given back holds the next tile; what was run before does not change.
        pair.device.release(&features[1..2]);
        pair.cpu.release(&features[1..2]);
        let next = both(&mut pair, &tiles(&case, 4)[3..]);
        assert_eq!(next[0], features[1]);
        let again = [inset(0, rows, 1, 0)];
        pair.extend_with(&mut own, &vec![placeholder; rows as usize], &again);
        // A row of an image alone is a span of one token, and run as decode is.
        pair.extend_with(&mut own, &[placeholder], &[inset(0, 1, 1, 2)]);
    }
}

#[test]
fn more_tiles_than_places_and_models_without_a_tower_are_refused() {
    let case = Case::made(Precision::Usual);
    let (mut device, _) = case.device();
    let text = device.encode(&tiles(&case, 4)).unwrap_err().to_string();
    assert_eq!(text, "tile features: 4 asked for, 3 there are");
    assert_eq!(device.encode(&tiles(&case, 3)).unwrap().len(), 3);
    let blind = Case::oracle("dense", Precision::Usual);
    assert!(matches!(blind.device().0.encode(&[]), Err(BackendError::NoVision)));
}
