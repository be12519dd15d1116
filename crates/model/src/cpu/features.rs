//! Rows that replace embeddings: encoded tiles, stored until they are released.

use super::error::CpuOpenError;
use crate::backend::{BackendError, TileFeature};

#[derive(Debug)]
pub(super) struct FeatureStore {
    width: usize,
    /// `[rows, width]` each; empty if unused.
    entries: Vec<Vec<f32>>,
    free: Vec<u32>,
}

impl FeatureStore {
    /// Allocates for `count` tiles of `rows` rows.
    pub(super) fn new(count: u32, rows: usize, width: usize) -> Result<Self, CpuOpenError> {
        let mut entries = Vec::new();
        for _ in 0..count {
            let mut entry = Vec::new();
            entry.try_reserve_exact(rows * width).map_err(|_| {
                let bytes = (rows * width * size_of::<f32>()) as u64;
                CpuOpenError::NoMemory { part: "the rows of an encoded tile", bytes }
            })?;
            entries.push(entry);
        }
        Ok(Self { width, entries, free: (0..count).rev().collect() })
    }

    /// Checks that this many more can be stored.
    pub(super) fn check_capacity(&self, count: usize) -> Result<(), BackendError> {
        if count > self.free.len() {
            return Err(BackendError::OverCapacity {
                what: "tile features",
                requested: count,
                capacity: self.free.len(),
            });
        }
        Ok(())
    }

    /// Stores the rows of one feature.
    pub(super) fn store(&mut self, rows: &[f32]) -> Result<TileFeature, BackendError> {
        self.check_capacity(1)?;
        assert!(
            !rows.is_empty() && rows.len().is_multiple_of(self.width),
            "whole rows of {} values",
            self.width
        );
        let index = self.free.pop().expect("the capacity was checked");
        self.entries[index as usize].extend_from_slice(rows);
        Ok(TileFeature(index))
    }

    pub(super) fn release(&mut self, feature: TileFeature) {
        let entry = &mut self.entries[feature.0 as usize];
        assert!(!entry.is_empty(), "feature {} does not exist", feature.0);
        entry.clear();
        self.free.push(feature.0);
    }

    /// Rows of a feature; `None` if it does not exist.
    pub(super) fn rows(&self, feature: TileFeature) -> Option<usize> {
        let entry = self.entries.get(feature.0 as usize)?;
        (!entry.is_empty()).then(|| entry.len() / self.width)
    }

    pub(super) fn row(&self, feature: TileFeature, row: usize) -> &[f32] {
        &self.entries[feature.0 as usize][row * self.width..(row + 1) * self.width]
    }
}
