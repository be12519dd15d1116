//! What is durable on a disk, and what waits for a sync. Knows nothing of real files.

use std::collections::{BTreeMap, BTreeSet};

/// What a name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file by its number.
    File(u64),
    Folder,
}

/// A change of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataChange {
    Write { at: u64, bytes: Vec<u8> },
    Truncate(u64),
}

/// A change of one name, or of two at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameChange {
    /// Names and what they refer to afterwards.
    pub sets: Vec<(String, Option<Target>)>,
}

/// Content of a file: as of its last sync, and the changes since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileContent {
    pub durable: Vec<u8>,
    pub pending: Vec<DataChange>,
}

/// Names and contents, durable and pending. Names are paths from the root, without a slash in
/// front; the root itself is the empty name.
#[derive(Debug, Default)]
pub(crate) struct DiskModel {
    pub files: BTreeMap<u64, FileContent>,
    /// Names as a running process sees them.
    pub live: BTreeMap<String, Target>,
    pub durable: BTreeMap<String, Target>,
    pub pending: Vec<NameChange>,
}

/// The folder that holds a name.
pub(crate) fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl DataChange {
    pub(crate) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            DataChange::Write { at, bytes } => {
                let at = *at as usize;
                let end = at + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at..end].copy_from_slice(bytes);
            }
            DataChange::Truncate(length) => content.resize(*length as usize, 0),
        }
    }
}

impl NameChange {
    fn is_in(&self, folder: &str) -> bool {
        self.sets.iter().any(|(name, _)| parent(name) == folder)
    }

    fn shares_name(&self, other: &NameChange) -> bool {
        self.sets.iter().any(|(name, _)| other.sets.iter().any(|(same, _)| same == name))
    }

    pub(crate) fn apply(&self, names: &mut BTreeMap<String, Target>) {
        for (name, target) in &self.sets {
            match target {
                Some(target) => names.insert(name.clone(), *target),
                None => names.remove(name),
            };
        }
    }
}

impl FileContent {
    /// What the file holds once all changes are applied.
    pub(crate) fn current(&self) -> Vec<u8> {
        let mut content = self.durable.clone();
        self.pending.iter().for_each(|change| change.apply(&mut content));
        content
    }
}

impl DiskModel {
    /// Records a change of names. It is durable once a folder of these names is synced.
    pub(crate) fn change_names(&mut self, sets: Vec<(String, Option<Target>)>) {
        let change = NameChange { sets };
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    pub(crate) fn change_data(&mut self, file: u64, change: DataChange) {
        self.files.entry(file).or_default().pending.push(change);
    }

    /// Makes a file's content durable.
    pub(crate) fn sync_file(&mut self, file: u64) {
        let content = self.files.entry(file).or_default();
        let FileContent { durable, pending } = content;
        pending.drain(..).for_each(|change| change.apply(durable));
    }

    /// Makes the names in a folder durable. A rename between two folders is one change, durable
    /// with either, and with it the earlier changes of its names.
    pub(crate) fn sync_folder(&mut self, folder: &str) {
        let mut chosen: Vec<bool> = self.pending.iter().map(|change| change.is_in(folder)).collect();
        for later in (0..self.pending.len()).rev().filter(|at| self.pending[*at].sets.len() > 1) {
            if chosen[later] {
                for (earlier, taken) in chosen.iter_mut().enumerate().take(later) {
                    *taken |= self.pending[earlier].shares_name(&self.pending[later]);
                }
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, is_durable) in pending.into_iter().zip(chosen) {
            if is_durable { change.apply(&mut self.durable) } else { self.pending.push(change) }
        }
    }

    /// Forgets files that no name refers to, now or after a power cut.
    pub(crate) fn forget_unnamed(&mut self) {
        let named = |names: &BTreeMap<String, Target>| -> Vec<u64> {
            let file = |target: &Target| match target {
                Target::File(file) => Some(*file),
                Target::Folder => None,
            };
            names.values().filter_map(file).collect()
        };
        let mut needed: BTreeSet<u64> = named(&self.live).into_iter().chain(named(&self.durable)).collect();
        for change in &self.pending {
            for (_, target) in &change.sets {
                if let Some(Target::File(file)) = target {
                    needed.insert(*file);
                }
            }
        }
        self.files.retain(|file, _| needed.contains(file));
    }
}
