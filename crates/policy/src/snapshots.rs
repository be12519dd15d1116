//! Snapshots: states kept on the device for sibling sessions to fork from, keyed by the tokens and
//! pixels that made them.
//!
//! A group's sessions share instructions, task and first page. The session that prefills them first
//! leaves a copy of its state at two fork points: after the task, and after the first image. The
//! copy takes a slot and shares its pages until a session writes to them. Its slots are reserved.
//! Its pages are freed when a session needs them, the least recently used snapshot first.

use std::collections::{HashMap, HashSet};

use furrow_rollout::PolicyVersion;
use sha2::{Digest, Sha256};

use crate::sequence::Sequence;
use crate::slots::Allocation;

/// SHA-256 of the weights' version and the ids up to a position, with the hash of the pixels after
/// each image's run of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SnapshotKey([u8; 32]);

#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its slot and pages.
    pub allocation: Allocation,
    pub tokens: u32,
    /// Oldest version of the weights that wrote a part of it.
    pub version_min: PolicyVersion,
    used: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SnapshotCache {
    kept: HashMap<SnapshotKey, Snapshot>,
    /// Snapshots that a running sequence is about to make.
    awaited: HashSet<SnapshotKey>,
    slots_max: usize,
    clock: u64,
}

impl SnapshotKey {
    /// The key of a sequence that has not begun, up to a position, for a version of the weights.
    pub(crate) fn of(sequence: &Sequence, position: u32, version: PolicyVersion) -> Self {
        let mut hash = Sha256::new();
        hash.update(version.0.to_le_bytes());
        sequence.visit_key_bytes(position, |part| hash.update(part));
        Self(hash.finalize().into())
    }
}

impl SnapshotCache {
    /// Creates an empty cache of at most this many slots.
    pub(crate) fn new(slots_max: u32) -> Self {
        Self { slots_max: slots_max as usize, ..Self::default() }
    }

    /// The state with this key.
    pub(crate) fn get(&mut self, name: &SnapshotKey) -> Option<&Snapshot> {
        self.clock += 1;
        let snapshot = self.kept.get_mut(name)?;
        snapshot.used = self.clock;
        Some(snapshot)
    }

    /// Whether a running sequence is about to make it.
    pub(crate) fn is_awaited(&self, name: &SnapshotKey) -> bool {
        self.awaited.contains(name)
    }

    /// Announces that a sequence will make it, so that siblings wait. Returns false if it exists,
    /// is awaited already, or no snapshots are kept.
    pub(crate) fn promise(&mut self, name: SnapshotKey) -> bool {
        self.slots_max > 0 && !self.kept.contains_key(&name) && self.awaited.insert(name)
    }

    /// Ends the wait for a snapshot that was made or never will be.
    pub(crate) fn settle(&mut self, name: &SnapshotKey) {
        self.awaited.remove(name);
    }

    /// How many snapshots are awaited.
    #[cfg(test)]
    pub(crate) fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Whether one more snapshot needs another's slot.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.len() >= self.slots_max
    }

    /// Reserved slots that no snapshot uses yet.
    pub(crate) fn slots_left(&self) -> u32 {
        (self.slots_max - self.kept.len()) as u32
    }

    pub(crate) fn keep(
        &mut self,
        name: SnapshotKey,
        allocation: Allocation,
        tokens: u32,
        version_min: PolicyVersion,
    ) {
        debug_assert!(!self.is_full() && !self.kept.contains_key(&name), "the caller frees a slot first");
        self.clock += 1;
        self.kept.insert(name, Snapshot { allocation, tokens, version_min, used: self.clock });
    }

    /// Whether it exists. This does not count as a use.
    pub(crate) fn has(&self, name: &SnapshotKey) -> bool {
        self.kept.contains_key(name)
    }

    /// Removes the least recently used snapshot.
    pub(crate) fn evict(&mut self) -> Option<Allocation> {
        let name = self.kept.iter().min_by_key(|(_, snapshot)| snapshot.used).map(|(name, _)| *name)?;
        self.kept.remove(&name).map(|snapshot| snapshot.allocation)
    }
}

#[cfg(test)]
mod tests {
    use furrow_model::backend::Slot;

    use super::*;
    use crate::sequence::TokenSegment;

    fn sequence(ids: &[u32]) -> Sequence {
        let mut sequence = Sequence::default();
        sequence.extend(TokenSegment { ids: ids.to_vec(), ..TokenSegment::default() }, 8);
        sequence
    }

    fn allocation(slot: u32) -> Allocation {
        Allocation { slot: Slot(slot), pages: Vec::new() }
    }

    #[test]
    fn a_snapshot_key_depends_on_the_prefix_alone() {
        let a = sequence(&[1, 2, 3]);
        let b = sequence(&[1, 2, 4]);
        let name = |sequence, position| SnapshotKey::of(sequence, position, PolicyVersion(0));
        assert_eq!(name(&a, 2), name(&b, 2));
        assert_ne!(name(&a, 3), name(&b, 3));
        assert_ne!(name(&a, 1), name(&a, 2));
        assert_ne!(
            name(&a, 2),
            SnapshotKey::of(&a, 2, PolicyVersion(1)),
            "the key depends on the version of the weights"
        );
    }

    #[test]
    fn the_snapshot_used_longest_ago_goes_first() {
        let mut snapshots = SnapshotCache::new(2);
        let names: Vec<SnapshotKey> =
            (1..4).map(|id| SnapshotKey::of(&sequence(&[id]), 1, PolicyVersion(0))).collect();
        assert!(snapshots.promise(names[0]));
        assert!(!snapshots.promise(names[0]), "a snapshot is promised once");
        snapshots.settle(&names[0]);
        snapshots.keep(names[0], allocation(0), 1, PolicyVersion(0));
        snapshots.keep(names[1], allocation(1), 1, PolicyVersion(0));
        assert!(snapshots.is_full() && snapshots.get(&names[0]).is_some());
        assert_eq!(snapshots.evict(), Some(allocation(1)));
        assert!(!snapshots.has(&names[1]) && snapshots.promise(names[1]));
        assert!(!SnapshotCache::new(0).promise(names[2]));
    }
}
