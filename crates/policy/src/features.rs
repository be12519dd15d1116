//! A cache of tile features on the device, so that a repeated tile is not encoded again.
//!
//! Tiles are encoded independently of each other, so a cached feature equals the one that would be
//! computed. The key contains the pixels after preprocessing and the hash of the vision encoder's
//! weights. So features of another encoder are never found and are evicted first. The tiles that a
//! batch reads are pinned while it runs and can be evicted afterwards. No session holds features
//! between batches, so no session can wait for another's.

use std::collections::HashMap;

use furrow_model::backend::TileFeature;

/// Key of a feature: the encoded pixels, and the encoder's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TileKey {
    /// Hash of the tile's pixels after preprocessing (`ImageTile::hash`).
    pub pixels: [u8; 32],
    /// Hash of the vision encoder's weights.
    pub vision: [u8; 32],
}

/// The cache, with the least recently used features evicted first.
#[derive(Debug)]
pub(crate) struct FeatureCache {
    entries: HashMap<TileKey, FeatureEntry>,
    entries_max: usize,
    clock: u64,
}

#[derive(Debug)]
struct FeatureEntry {
    feature: TileFeature,
    used: u64,
    pins: u32,
}

/// What to do before some tiles are on the device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FeatureFetch {
    /// Encode these and [`FeatureCache::insert`] them; there are no duplicates.
    pub missing: Vec<TileKey>,
    pub evicted: Vec<TileFeature>,
}

impl FeatureCache {
    /// An empty cache for this many tiles, at least one.
    pub(crate) fn new(entries_max: u32) -> Self {
        Self { entries: HashMap::new(), entries_max: entries_max.max(1) as usize, clock: 0 }
    }

    /// The feature of a tile, if it is cached.
    pub(crate) fn get(&self, key: &TileKey) -> Option<TileFeature> {
        self.entries.get(key).map(|entry| entry.feature)
    }

    /// Pins all tiles or none: cached ones now, the others when they are inserted. `None` if the
    /// tiles that are pinned already leave no capacity.
    pub(crate) fn pin(&mut self, keys: &[TileKey]) -> Option<FeatureFetch> {
        let mut missing: Vec<TileKey> = Vec::new();
        for key in keys {
            if !self.entries.contains_key(key) && !missing.contains(key) {
                missing.push(*key);
            }
        }
        let wanted = |key: &TileKey| keys.contains(key);
        let idle = |(key, entry): &(&TileKey, &FeatureEntry)| entry.pins == 0 && !wanted(key);
        let over = (self.entries.len() + missing.len()).saturating_sub(self.entries_max);
        let mut oldest: Vec<(u64, TileKey)> =
            self.entries.iter().filter(idle).map(|(key, entry)| (entry.used, *key)).collect();
        if oldest.len() < over {
            return None;
        }
        oldest.sort_unstable();
        let evicted = oldest[..over].iter().filter_map(|(_, key)| self.entries.remove(key));
        let evicted = evicted.map(|entry| entry.feature).collect();
        self.clock += 1;
        for key in keys {
            if let Some(entry) = self.entries.get_mut(key) {
                (entry.used, entry.pins) = (self.clock, entry.pins + 1);
            }
        }
        Some(FeatureFetch { missing, evicted })
    }

    /// Adds a missing tile, pinned once.
    pub(crate) fn insert(&mut self, key: TileKey, feature: TileFeature) {
        self.entries.insert(key, FeatureEntry { feature, used: self.clock, pins: 1 });
    }

    /// Unpins everything after a batch.
    pub(crate) fn unpin_all(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.pins = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: u8) -> TileKey {
        TileKey { pixels: [name; 32], vision: [0; 32] }
    }

    /// Pins tiles and encodes the missing ones, with feature numbers equal to their names. Returns
    /// what was evicted.
    fn fetch(features: &mut FeatureCache, names: &[u8]) -> Option<Vec<u32>> {
        let keys: Vec<TileKey> = names.iter().copied().map(key).collect();
        let fetch = features.pin(&keys)?;
        for missing in &fetch.missing {
            features.insert(*missing, TileFeature(missing.pixels[0].into()));
        }
        Some(fetch.evicted.iter().map(|feature| feature.0).collect())
    }

    #[test]
    fn the_tile_used_longest_ago_goes_unless_a_batch_reads_it() {
        let mut features = FeatureCache::new(3);
        assert_eq!(fetch(&mut features, &[1, 2, 1]), Some(vec![]));
        assert_eq!(features.get(&key(2)), Some(TileFeature(2)));
        assert_eq!(fetch(&mut features, &[3]), Some(vec![]));
        assert_eq!(fetch(&mut features, &[4]), None, "all three are pinned");
        features.unpin_all();
        assert_eq!(fetch(&mut features, &[1]), Some(vec![]));
        features.unpin_all();
        assert_eq!(fetch(&mut features, &[4]), Some(vec![2]));
        assert_eq!(fetch(&mut features, &[1, 5]), Some(vec![3]));
        assert_eq!(fetch(&mut features, &[6, 7, 8, 9]), None, "more than the cache holds");
        features.unpin_all();
        assert_eq!(fetch(&mut features, &[4]), Some(vec![]));
    }
}
