//! Fork points: states kept on the device under the name of the tokens and pixels that made them, for siblings to start from.
//!
//! A group's sessions share instructions, task and first page. Whoever prefills them first leaves a copy of its state at two places: after
//! the task, and after the first picture. The copy costs a slot and shares its pages until somebody writes to them. Slots for it are set
//! apart; pages are given up to whoever needs them, the snapshot used longest ago first.

use std::collections::{HashMap, HashSet};

use furrow_rollout::PolicyVersion;
use sha2::{Digest, Sha256};

use crate::sequence::Sequence;
use crate::slots::Place;

/// SHA-256 of the version of the weights and the ids up to a position, each picture's run followed by the hash of its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name([u8; 32]);

/// A kept state.
#[derive(Debug)]
pub struct Snapshot {
    /// Where it lies.
    pub place: Place,
    /// Tokens in it.
    pub tokens: u32,
    /// Oldest version of the weights that wrote any of it.
    pub version_min: PolicyVersion,
    used: u64,
}

/// All snapshots.
#[derive(Debug, Default)]
pub struct Snapshots {
    kept: HashMap<Name, Snapshot>,
    /// Named by sequences that are running towards them.
    awaited: HashSet<Name>,
    slots_max: usize,
    clock: u64,
}

impl Name {
    /// Of a sequence that has not begun, up to a position, as weights of a version make it.
    pub fn of(sequence: &Sequence, position: u32, version: PolicyVersion) -> Self {
        let mut hash = Sha256::new();
        hash.update(version.0.to_le_bytes());
        sequence.name_up_to(position, |part| hash.update(part));
        Self(hash.finalize().into())
    }
}

impl Snapshots {
    /// None yet; at most so many slots will be used.
    pub fn new(slots_max: u32) -> Self {
        Self { slots_max: slots_max as usize, ..Self::default() }
    }

    /// The state of that name.
    pub fn get(&mut self, name: &Name) -> Option<&Snapshot> {
        self.clock += 1;
        let snapshot = self.kept.get_mut(name)?;
        snapshot.used = self.clock;
        Some(snapshot)
    }

    /// Whether somebody is running towards it.
    pub fn is_awaited(&self, name: &Name) -> bool {
        self.awaited.contains(name)
    }

    /// Somebody will make it, so siblings may wait. False when it is there, awaited already, or nothing is ever kept.
    pub fn promise(&mut self, name: Name) -> bool {
        self.slots_max > 0 && !self.kept.contains_key(&name) && self.awaited.insert(name)
    }

    /// It was made, or never will be.
    pub fn settle(&mut self, name: &Name) {
        self.awaited.remove(name);
    }

    /// How many are on their way.
    #[cfg(test)]
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Whether one more needs another's slot.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= self.slots_max
    }

    /// Slots set apart for snapshots that are not made yet.
    pub fn slots_left(&self) -> u32 {
        (self.slots_max - self.kept.len()) as u32
    }

    /// Keeps a state.
    pub fn keep(&mut self, name: Name, place: Place, tokens: u32, version_min: PolicyVersion) {
        debug_assert!(!self.is_full() && !self.kept.contains_key(&name), "room was made before");
        self.clock += 1;
        self.kept.insert(name, Snapshot { place, tokens, version_min, used: self.clock });
    }

    /// Whether it is there, without counting as a use.
    pub fn has(&self, name: &Name) -> bool {
        self.kept.contains_key(name)
    }

    /// Gives up the one used longest ago.
    pub fn evict(&mut self) -> Option<Place> {
        let name = self.kept.iter().min_by_key(|(_, snapshot)| snapshot.used).map(|(name, _)| *name)?;
        self.kept.remove(&name).map(|snapshot| snapshot.place)
    }
}

#[cfg(test)]
mod tests {
    use furrow_model::backend::Slot;

    use super::*;
    use crate::sequence::Stretch;

    fn sequence(ids: &[u32]) -> Sequence {
        let mut sequence = Sequence::default();
        sequence.lay(Stretch { ids: ids.to_vec(), ..Stretch::default() }, 8);
        sequence
    }

    fn place(slot: u32) -> Place {
        Place { slot: Slot(slot), pages: Vec::new() }
    }

    #[test]
    fn a_name_is_what_came_before_and_nothing_after() {
        let (a, b) = (sequence(&[1, 2, 3]), sequence(&[1, 2, 4]));
        let name = |sequence, position| Name::of(sequence, position, PolicyVersion(0));
        assert_eq!(name(&a, 2), name(&b, 2));
        assert_ne!(name(&a, 3), name(&b, 3));
        assert_ne!(name(&a, 1), name(&a, 2));
        assert_ne!(name(&a, 2), Name::of(&a, 2, PolicyVersion(1)), "other weights make another state");
    }

    #[test]
    fn the_snapshot_used_longest_ago_goes_first() {
        let mut snapshots = Snapshots::new(2);
        let names: Vec<Name> = (1..4).map(|id| Name::of(&sequence(&[id]), 1, PolicyVersion(0))).collect();
        assert!(snapshots.promise(names[0]));
        assert!(!snapshots.promise(names[0]), "one maker is enough");
        snapshots.settle(&names[0]);
        snapshots.keep(names[0], place(0), 1, PolicyVersion(0));
        snapshots.keep(names[1], place(1), 1, PolicyVersion(0));
        assert!(snapshots.is_full() && snapshots.get(&names[0]).is_some());
        assert_eq!(snapshots.evict(), Some(place(1)));
        assert!(!snapshots.has(&names[1]) && snapshots.promise(names[1]));
        assert!(!Snapshots::new(0).promise(names[2]));
    }
}
