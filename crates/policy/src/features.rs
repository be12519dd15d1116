//! Tile features kept on the device, so that a tile that was seen before is not encoded again.
//!
//! Tiles are encoded independently of each other, so a cached feature is exactly the one that would be made. A key names the pixels after
//! preprocessing and the vision encoder's weights: features of others are found by nobody and go first. What a batch reads is pinned while
//! it runs and evictable afterwards: no session holds features between batches, so none can wait for another's.

use std::collections::HashMap;

use furrow_model::backend::Feature;

/// Name of a feature: what was encoded, and by which weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileKey {
    /// The tile's pixels after preprocessing (`Tile::hash`).
    pub pixels: [u8; 32],
    /// The vision encoder's weights.
    pub vision: [u8; 32],
}

/// The cache.
#[derive(Debug)]
pub struct Features {
    entries: HashMap<TileKey, Entry>,
    entries_max: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    feature: Feature,
    used: u64,
    pins: u32,
}

/// What it takes to have some tiles on the device.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// To be encoded and then [`Features::insert`]ed, without repetition.
    pub missing: Vec<TileKey>,
    /// To be released first.
    pub evicted: Vec<Feature>,
}

impl Features {
    /// An empty cache of so many tiles, at least one.
    pub fn new(entries_max: u32) -> Self {
        Self { entries: HashMap::new(), entries_max: entries_max.max(1) as usize, clock: 0 }
    }

    /// A feature that is there.
    pub fn get(&self, key: &TileKey) -> Option<Feature> {
        self.entries.get(key).map(|entry| entry.feature)
    }

    /// Pins tiles, all or none: those that are there at once, the others when they are inserted. `None` when what is pinned already
    /// leaves no room.
    pub fn pin(&mut self, keys: &[TileKey]) -> Option<Fetch> {
        let mut missing: Vec<TileKey> = Vec::new();
        for key in keys {
            if !self.entries.contains_key(key) && !missing.contains(key) {
                missing.push(*key);
            }
        }
        let wanted = |key: &TileKey| keys.contains(key);
        let idle = |(key, entry): &(&TileKey, &Entry)| entry.pins == 0 && !wanted(key);
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
        Some(Fetch { missing, evicted })
    }

    /// A tile that was missing, pinned once.
    pub fn insert(&mut self, key: TileKey, feature: Feature) {
        self.entries.insert(key, Entry { feature, used: self.clock, pins: 1 });
    }

    /// After the batch: nothing is pinned.
    pub fn unpin_all(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.pins = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: u8) -> TileKey {
        TileKey { pixels: [name; 32], vision: [0; 32] }
    }

    /// Pins tiles and encodes what is missing, under feature numbers that are the names. Returns what was evicted.
    fn fetch(features: &mut Features, names: &[u8]) -> Option<Vec<u32>> {
        let keys: Vec<TileKey> = names.iter().copied().map(key).collect();
        let fetch = features.pin(&keys)?;
        for missing in &fetch.missing {
            features.insert(*missing, Feature(missing.pixels[0].into()));
        }
        Some(fetch.evicted.iter().map(|feature| feature.0).collect())
    }

    #[test]
    fn the_tile_used_longest_ago_goes_unless_a_batch_reads_it() {
        let mut features = Features::new(3);
        assert_eq!(fetch(&mut features, &[1, 2, 1]), Some(vec![]));
        assert_eq!(features.get(&key(2)), Some(Feature(2)));
        assert_eq!(fetch(&mut features, &[3]), Some(vec![]));
        assert_eq!(fetch(&mut features, &[4]), None, "all three are pinned");
        features.unpin_all();
        assert_eq!(fetch(&mut features, &[1]), Some(vec![]));
        features.unpin_all();
        assert_eq!(fetch(&mut features, &[4]), Some(vec![2]));
        assert_eq!(fetch(&mut features, &[1, 5]), Some(vec![3]));
        assert_eq!(fetch(&mut features, &[6, 7, 8, 9]), None, "more than there can be");
        features.unpin_all();
        assert_eq!(fetch(&mut features, &[4]), Some(vec![]));
    }
}
