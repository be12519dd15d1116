//! Tile features: which exist, where their rows are, and their encoding beside running batches.

use std::collections::BTreeSet;

use furrow_model::backend::{BackendError, DeviceLost, SequenceSpan, TileFeature};
use furrow_model::config::VisionConfig;
use furrow_model::vision::ImageTile;

use crate::encode::{TileEncoder, VisionWork};
use crate::executor::ExecutionLane;
use crate::forward::FastKernels;
use crate::latch::ExecutorLatch;
use crate::launch::DeviceView;
use crate::types::ModelTypes;
use crate::weights::DeviceVisionWeights;

/// The memory of all tile features, and the workspace that encodes tiles into them.
pub(super) struct TileFeatures<P: ModelTypes> {
    table: FeatureTable,
    /// Rows of all tile features.
    rows: DeviceView<P::Value>,
    work: Option<VisionWork<P>>,
    /// Whether every tile is encoded alone.
    deterministic: bool,
    /// Features that the newest batch shows.
    in_batch: BTreeSet<TileFeature>,
}

/// Which tile features exist.
struct FeatureTable {
    occupied: Vec<bool>,
    free: Vec<u32>,
}

impl<P: ModelTypes> TileFeatures<P> {
    /// Memory for `count` features; `work` is there if the model has a tower.
    pub(super) fn new(
        count: u32,
        rows: DeviceView<P::Value>,
        work: Option<VisionWork<P>>,
        deterministic: bool,
    ) -> Self {
        Self { table: FeatureTable::new(count), rows, work, deterministic, in_batch: BTreeSet::new() }
    }

    /// Rows of all features.
    pub(super) fn rows(&self) -> DeviceView<P::Value> {
        self.rows
    }

    /// Whether tiles can be encoded.
    pub(super) fn has_tower(&self) -> bool {
        self.work.is_some()
    }

    pub(super) fn contains(&self, feature: TileFeature) -> bool {
        self.table.contains(feature)
    }

    /// Checks that this many more features fit.
    pub(super) fn check_capacity(&self, requested: usize) -> Result<(), BackendError> {
        self.table.check_capacity(requested)
    }

    pub(super) fn release(&mut self, feature: TileFeature) {
        self.table.release(feature);
    }

    /// Orders a batch and the encoding of tiles: tiles wait for earlier batches, and this batch
    /// waits for the tiles only if it shows one.
    pub(super) fn order_batch(
        &mut self,
        executor: &mut ExecutorLatch,
        batch: &[SequenceSpan<'_>],
    ) -> Result<(), DeviceLost> {
        if self.has_tower() {
            // Tiles that are encoded while this batch runs may overwrite features that earlier
            // batches read.
            executor.follow(ExecutionLane::Vision, ExecutionLane::Batch)?;
        }
        self.in_batch = batch.iter().flat_map(|span| span.insets).map(|inset| inset.feature).collect();
        if !self.in_batch.is_empty() {
            executor.follow(ExecutionLane::Batch, ExecutionLane::Vision)?;
        }
        Ok(())
    }
}

impl<P: FastKernels> TileFeatures<P> {
    /// Encodes tiles, whose number was checked; without a tower, none.
    pub(super) fn encode(
        &mut self,
        executor: &mut ExecutorLatch,
        config: &VisionConfig,
        weights: &DeviceVisionWeights<P::Value>,
        tiles: &[ImageTile],
    ) -> Result<Vec<TileFeature>, DeviceLost> {
        let Self { table, rows, work: Some(work), deterministic, in_batch } = self else {
            return Ok(Vec::new());
        };
        let encoded: Vec<TileFeature> = tiles.iter().map(|_| table.take()).collect();
        let values = config.rows_per_tile() * weights.projector.down.outputs;
        // The running batch may still read a released feature.
        if encoded.iter().any(|tile_feature| in_batch.contains(tile_feature)) {
            executor.follow(ExecutionLane::Vision, ExecutionLane::Batch)?;
            in_batch.clear();
        }
        let group = if *deterministic { 1 } else { work.group };
        for (tiles, group_features) in tiles.chunks(group).zip(encoded.chunks(group)) {
            let feature_rows = |feature: &TileFeature| rows.from(feature.0 as usize * values).first(values);
            let outputs: Vec<DeviceView<P::Value>> = group_features.iter().map(feature_rows).collect();
            let encoder = TileEncoder { config, weights, work, tiles: tiles.len() };
            executor.work(|executor| encoder.run(executor, tiles, &outputs))?;
        }
        Ok(encoded)
    }
}

impl FeatureTable {
    fn new(count: u32) -> Self {
        let occupied = vec![false; count as usize];
        let free = (0..count).rev().collect();
        Self { occupied, free }
    }

    fn contains(&self, feature: TileFeature) -> bool {
        self.occupied.get(feature.0 as usize).copied().unwrap_or(false)
    }

    fn check_capacity(&self, requested: usize) -> Result<(), BackendError> {
        let capacity = self.free.len();
        if requested > capacity {
            Err(BackendError::OverCapacity { what: "tile features", requested, capacity })
        } else {
            Ok(())
        }
    }

    fn take(&mut self) -> TileFeature {
        let index = self.free.pop().expect("the capacity was checked");
        self.occupied[index as usize] = true;
        TileFeature(index)
    }

    fn release(&mut self, feature: TileFeature) {
        let was_occupied = std::mem::replace(&mut self.occupied[feature.0 as usize], false);
        assert!(was_occupied, "feature {} does not exist", feature.0);
        self.free.push(feature.0);
    }
}
