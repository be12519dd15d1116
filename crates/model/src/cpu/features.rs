//! Rows that stand in place of embeddings: encoded tiles, held until released.

use super::OpenError;
use crate::backend::{BackendError, Feature};

/// Places for features.
#[derive(Debug)]
pub(super) struct Features {
    width: usize,
    /// `[rows, width]` each; empty where nothing is held.
    places: Vec<Vec<f32>>,
    free: Vec<u32>,
}

impl Features {
    /// Room for `count` tiles of `rows` rows.
    pub fn new(count: u32, rows: usize, width: usize) -> Result<Self, OpenError> {
        let mut places = Vec::new();
        for _ in 0..count {
            let mut place = Vec::new();
            place.try_reserve_exact(rows * width).map_err(|_| {
                let bytes = (rows * width * size_of::<f32>()) as u64;
                OpenError::NoMemory { part: "the rows of an encoded tile", bytes }
            })?;
            places.push(place);
        }
        Ok(Self { width, places, free: (0..count).rev().collect() })
    }

    /// Whether so many more can be held.
    pub fn check_room(&self, count: usize) -> Result<(), BackendError> {
        if count > self.free.len() {
            return Err(BackendError::NoRoom { what: "tile features", asked: count, room: self.free.len() });
        }
        Ok(())
    }

    /// Takes in the rows of one.
    pub fn hold(&mut self, rows: &[f32]) -> Result<Feature, BackendError> {
        self.check_room(1)?;
        assert!(
            !rows.is_empty() && rows.len().is_multiple_of(self.width),
            "whole rows of {} values",
            self.width
        );
        let place = self.free.pop().expect("there was room");
        self.places[place as usize].extend_from_slice(rows);
        Ok(Feature(place))
    }

    /// Gives one back.
    pub fn release(&mut self, feature: Feature) {
        let place = &mut self.places[feature.0 as usize];
        assert!(!place.is_empty(), "feature {} is not held", feature.0);
        place.clear();
        self.free.push(feature.0);
    }

    /// How many rows one has; `None` when it is not held.
    pub fn rows(&self, feature: Feature) -> Option<usize> {
        let place = self.places.get(feature.0 as usize)?;
        (!place.is_empty()).then(|| place.len() / self.width)
    }

    /// One row.
    pub fn row(&self, feature: Feature, row: usize) -> &[f32] {
        &self.places[feature.0 as usize][row * self.width..(row + 1) * self.width]
    }
}
