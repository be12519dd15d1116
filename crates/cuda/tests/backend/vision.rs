//! Screenshots through the tower on the device, and their rows in prompts.

use furrow_cuda::backend::{DeviceBackend, ModelPrecision};
use furrow_cuda::executor::ExecutionLane;
use furrow_model::backend::{Backend, BackendError, ImageInset, LogitRows, TileFeature};
use furrow_model::vision::ImageTile;

use crate::case::{BYTES, BackendCase, executor, on_a_gpu, sequence};
use crate::host_executor::{HostExecutor, PlantedFault};
use crate::pair::BackendPair;

fn tiles(case: &BackendCase, count: u32) -> Vec<ImageTile> {
    let side = case.weights.config.vision.as_ref().unwrap().tile;
    let pixel = |value: u32| value as f32 / 48.0 - 1.0;
    (0..count)
        .map(|seed| ImageTile {
            pixels: case.ids(100 + seed, 3 * side * side).into_iter().map(pixel).collect(),
            hash: [seed as u8; 32],
        })
        .collect()
}

fn both(pair: &mut BackendPair, tiles: &[ImageTile]) -> Vec<TileFeature> {
    let features = pair.device.encode(tiles).unwrap();
    assert_eq!(features, pair.cpu.encode(tiles).unwrap(), "both number features in the same order");
    features
}

#[test]
fn tiles_stand_in_prompts_as_on_the_cpu() {
    for case in [
        BackendCase::made(ModelPrecision::Usual),
        BackendCase::made(ModelPrecision::WideResidual),
        BackendCase::of_float32(),
    ] {
        let mut pair = BackendPair::open(&case);
        let features = both(&mut pair, &tiles(&case, 3));
        let rows = case.weights.config.vision.as_ref().unwrap().rows_per_tile() as u32;
        let placeholder = case.weights.config.vision.as_ref().unwrap().image_token;
        // Text, a tile, text, two tiles; cut inside the second tile.
        let mut ids = case.ids(50, 30);
        let [first, second, third] = [2, 9, 9 + rows].map(|at| at as usize);
        for at in [first, second, third] {
            ids[at..at + rows as usize].fill(placeholder);
        }
        let inset = |at: usize, len: u32, feature: usize, row: u32| ImageInset {
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

        // A released feature is reused for the next tile; the earlier results do not change.
        pair.device.release(&features[1..2]);
        pair.cpu.release(&features[1..2]);
        let next = both(&mut pair, &tiles(&case, 4)[3..]);
        assert_eq!(next[0], features[1]);
        let second_inset = [inset(0, rows, 1, 0)];
        pair.extend_with(&mut own, &vec![placeholder; rows as usize], &second_inset);
        // A single image row is a span of one token, and runs as decode.
        pair.extend_with(&mut own, &[placeholder], &[inset(0, 1, 1, 2)]);
    }
}

#[test]
fn too_many_tiles_and_models_without_a_tower_are_refused() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let (mut device, _) = case.device();
    let text = device.encode(&tiles(&case, 4)).unwrap_err().to_string();
    assert_eq!(text, "tile features: 4 requested, 3 available");
    assert_eq!(device.encode(&tiles(&case, 3)).unwrap().len(), 3);
    let blind = BackendCase::oracle("dense", ModelPrecision::Usual);
    assert!(matches!(blind.device().0.encode(&[]), Err(BackendError::NoVision)));
}

/// Tiles that overwrite the features of others while batches run that show those; returns the bits
/// of later results.
fn run_with_reused_features(case: &BackendCase, device: &mut dyn DeviceBackend) -> Vec<u32> {
    let tiles = tiles(case, 5);
    let vision = case.weights.config.vision.as_ref().unwrap();
    let rows = vision.rows_per_tile() as u32;
    let placeholder = vision.image_token;
    let ids = vec![placeholder; rows as usize];
    let inset = |feature| [ImageInset { at: 0, len: rows, feature, row: 0 }];
    let mut own = [0, 1, 2, 3].map(sequence);
    let mut show = |device: &mut dyn DeviceBackend, index: usize, feature: TileFeature| {
        device.run(&[own[index].span(&ids, &inset(feature), LogitRows::Last)]).unwrap();
        own[index].advance(ids.len());
    };
    let features = device.encode(&tiles[..3]).unwrap();
    show(device, 0, features[0]);
    show(device, 1, features[1]);
    // While the second batch runs, a tile overwrites a feature that it reads; the next tile
    // overwrites one that an earlier batch read.
    device.release(&features[1..2]);
    let next = device.encode(&tiles[3..4]).unwrap();
    assert_eq!(next[0], features[1]);
    show(device, 2, features[2]);
    device.release(&features[..1]);
    let last = device.encode(&tiles[4..]).unwrap();
    assert_eq!(last[0], features[0]);
    show(device, 3, last[0]);
    let bits = own.iter().flat_map(|own| {
        device.run(&[own.span(&case.ids(60, 1), &[], LogitRows::Last)]).unwrap();
        device.logits(0).unwrap().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
    });
    bits.collect()
}

#[test]
fn tiles_and_batches_wait_for_each_other_whatever_is_late() {
    const BATCH: ExecutionLane = ExecutionLane::Batch;
    const VISION: ExecutionLane = ExecutionLane::Vision;
    const LATE: [&[ExecutionLane]; 3] = [&[VISION], &[BATCH], &[BATCH, VISION]];
    let case = BackendCase::made(ModelPrecision::Usual);
    let want = run_with_reused_features(&case, &mut *case.device_on(case.options, executor()).0);
    assert!(want.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    if on_a_gpu() {
        return; // A GPU has its own order.
    }
    let taken = |late, planted| {
        let (mut host, gauge) = HostExecutor::new(BYTES);
        (host.late, host.planted) = (late, planted);
        run_with_reused_features(&case, &mut *case.device_on(case.options, (Box::new(host), gauge)).0)
    };
    for late in LATE {
        assert!(taken(late, None) == want, "late: {late:?}");
    }
    for planted in [PlantedFault::Deaf(BATCH, VISION), PlantedFault::Deaf(VISION, BATCH)] {
        assert!(
            LATE.into_iter().any(|late| taken(late, Some(planted)) != want),
            "{planted:?} is not detected"
        );
    }
}
