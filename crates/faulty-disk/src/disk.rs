//! A disk as tests use it: armed, crashed, revived and damaged.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rand::SeedableRng;
use rand::rngs::ChaCha12Rng;

use crate::calls;
use crate::coverage::Coverage;
use crate::fault::{Crash, FaultRate, Site};
use crate::interpose;
use crate::model::{DiskModel, FileContent, Target};
use crate::raw::{self, c_path};
use crate::shared::SharedDisk;
use crate::state::{DiskLabels, DiskState};

/// Variable of the environment: with it a disk keeps the text of every operation.
const TRACE: &str = "FURROW_DISK_TRACE";

/// How a file is damaged at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// This bit of the file is another.
    Bit(u64),
    /// The file ends here.
    Cut(u64),
}

/// A folder whose files may fail, until dropped.
#[derive(Debug)]
pub struct FaultyDisk {
    shared: Arc<SharedDisk>,
}

impl FaultyDisk {
    /// Makes a disk of an existing folder, an absolute path without links in it. What it holds
    /// already is durable. Nothing fails until [`arm`](Self::arm).
    pub fn new(root: &Path, seed: u64, labels: DiskLabels) -> Self {
        interpose::keep();
        let mut state = DiskState {
            model: DiskModel::default(),
            labels,
            chance: ChaCha12Rng::seed_from_u64(seed),
            rate: FaultRate::default(),
            forced: Vec::new(),
            down: None,
            cut_at: None,
            numbers: BTreeMap::new(),
            next_number: 1,
            names: BTreeMap::new(),
            folders: BTreeMap::new(),
            folder_syncs: 0,
            coverage: Coverage::default(),
            digest: 0xcbf2_9ce4_8422_2325,
            trace: std::env::var_os(TRACE).map(|_| Vec::new()),
        };
        let facts = raw::facts_of_path(&c_path(root.as_os_str().as_bytes()));
        state.folders.extend(facts.map(|facts| (facts.number, String::new())));
        state.adopt(root, "");
        let shared = Arc::new(SharedDisk { root: root.to_owned(), state: Mutex::new(state) });
        calls::register(&shared);
        Self { shared }
    }

    /// From now on one operation of weight 1 in so many fails; 0 ends all faults.
    pub fn arm(&self, one_in: u32) {
        self.shared.lock().rate = FaultRate { one_in, full_left: 0 };
    }

    /// Lets the next operation of a site fail with this error of the system.
    pub fn fail_next(&self, site: Site, error: i32) {
        self.shared.lock().forced.push((site, error));
    }

    /// Ends the process from outside, between two operations.
    pub fn crash(&self, crash: Crash) {
        self.shared.lock().down = Some(crash);
    }

    /// How the process ended: from then on every change fails, until [`revive`](Self::revive).
    pub fn is_down(&self) -> Option<Crash> {
        self.shared.lock().down
    }

    /// Makes the files what a crash left of them, and the disk usable. No file may be open.
    pub fn revive(&self) {
        let mut state = self.shared.lock();
        if state.down.take() == Some(Crash::PowerCut) {
            state.rebuild(&self.shared.root);
        }
    }

    /// Changes a file on the disk itself. Returns whether there was something to change.
    pub fn damage(&self, name: &str, damage: Damage) -> bool {
        let mut state = self.shared.lock();
        let Some(Target::File(file)) = state.model.live.get(name).copied() else { return false };
        let content = state.model.files.entry(file).or_default();
        let mut bytes = content.current();
        match damage {
            Damage::Bit(bit) if bit / 8 < bytes.len() as u64 => bytes[(bit / 8) as usize] ^= 1 << (bit % 8),
            Damage::Cut(length) if length < bytes.len() as u64 => bytes.truncate(length as usize),
            _ => return false,
        }
        *content = FileContent { durable: bytes.clone(), pending: Vec::new() };
        self.shared.put(name, &bytes);
        true
    }

    /// Names of the files that a process sees, in order, with their lengths.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.shared.lock();
        let length = |file: &u64| state.model.files.get(file).map_or(0, |content| content.current().len());
        let files = state.model.live.iter().filter_map(|(name, target)| match target {
            Target::File(file) => Some((name.clone(), length(file) as u64)),
            Target::Folder => None,
        });
        files.collect()
    }

    /// A number that two runs share only if they did the same operations with the same results.
    pub fn digest(&self) -> u64 {
        self.shared.lock().digest
    }

    pub fn coverage(&self) -> Coverage {
        self.shared.lock().coverage.clone()
    }

    /// The text of every operation so far, where `FURROW_DISK_TRACE` is set.
    pub fn trace(&self) -> Vec<String> {
        self.shared.lock().trace.clone().unwrap_or_default()
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        calls::unregister(&self.shared);
    }
}
