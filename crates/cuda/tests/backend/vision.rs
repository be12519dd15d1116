//! Screenshots through the tower on the device, and their rows inside prompts.

use furrow_cuda::backend::{Device, Precision};
use furrow_cuda::executor::Lane;
use furrow_model::backend::{Backend, BackendError, Feature, Inset, Want};
use furrow_model::vision::Tile;

use crate::air::{Air, Planted};
use crate::case::{BYTES, Case, executor, on_a_gpu, sequence};
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

/// Tiles that take the places of others while batches run that show those: the bits of what sessions say afterwards.
fn places_taken(case: &Case, device: &mut dyn Device) -> Vec<u32> {
    let tiles = tiles(case, 5);
    let vision = case.weights.config.vision.as_ref().unwrap();
    let (rows, placeholder) = (vision.rows_per_tile() as u32, vision.image_token);
    let ids = vec![placeholder; rows as usize];
    let inset = |feature| [Inset { at: 0, len: rows, feature, row: 0 }];
    let mut own = [0, 1, 2, 3].map(sequence);
    let mut show = |device: &mut dyn Device, index: usize, feature: Feature| {
        device.run(&[own[index].span(&ids, &inset(feature), Want::Last)]).unwrap();
        own[index].advance(ids.len());
    };
    let held = device.encode(&tiles[..3]).unwrap();
    show(device, 0, held[0]);
    show(device, 1, held[1]);
    // While the second batch runs, a tile takes the place that it reads; the one after it takes a place that a batch before read.
    device.release(&held[1..2]);
    let next = device.encode(&tiles[3..4]).unwrap();
    assert_eq!(next[0], held[1]);
    show(device, 2, held[2]);
    device.release(&held[..1]);
    let last = device.encode(&tiles[4..]).unwrap();
    assert_eq!(last[0], held[0]);
    show(device, 3, last[0]);
    let said = own.iter().flat_map(|own| {
        device.run(&[own.span(&case.ids(60, 1), &[], Want::Last)]).unwrap();
        device.logits(0).unwrap().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
    });
    said.collect()
}

#[test]
fn tiles_and_batches_wait_for_each_other_whatever_is_late() {
    const BATCH: Lane = Lane::Batch;
    const VISION: Lane = Lane::Vision;
    const LATE: [&[Lane]; 3] = [&[VISION], &[BATCH], &[BATCH, VISION]];
    let case = Case::made(Precision::Usual);
    let want = places_taken(&case, &mut *case.device_on(case.options, executor()).0);
    assert!(want.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    if on_a_gpu() {
        return; // It has its own order.
    }
    let taken = |late, planted| {
        let (mut air, gauge) = Air::new(BYTES);
        (air.late, air.planted) = (late, planted);
        places_taken(&case, &mut *case.device_on(case.options, (Box::new(air), gauge)).0)
    };
    for late in LATE {
        assert!(taken(late, None) == want, "late: {late:?}");
    }
    for planted in [Planted::Deaf(BATCH, VISION), Planted::Deaf(VISION, BATCH)] {
        assert!(LATE.into_iter().any(|late| taken(late, Some(planted)) != want), "{planted:?} passes");
    }
}
