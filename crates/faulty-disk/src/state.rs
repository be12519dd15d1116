//! The state of a disk: what is durable, the faults to come, and what happened so far.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rand::rngs::ChaCha12Rng;

use crate::coverage::Coverage;
use crate::fault::{Crash, FaultKind, FaultRate, Operation, Site, Verdict};
use crate::model::{DiskModel, FileContent, Target};
use crate::raw::{self, Outcome, c_path};
use crate::survival::{Mercy, surviving_content, surviving_names};

/// Folder syncs between two looks for files that no name refers to.
const FORGET_EVERY: u32 = 32;

/// What the code under test keeps under which names.
#[derive(Debug, Clone, Copy)]
pub struct DiskLabels {
    /// The kind of file that a name belongs to. `None`: its operations are not counted and never
    /// fail, and a power cut loses it.
    pub kind: fn(&str) -> Option<&'static str>,
    /// How much more often a site meets faults than one of weight 1.
    pub weight: fn(Site) -> u32,
}

#[derive(Debug)]
pub(crate) struct DiskState {
    pub(crate) model: DiskModel,
    pub(crate) labels: DiskLabels,
    pub(crate) chance: ChaCha12Rng,
    pub(crate) rate: FaultRate,
    /// Sites whose next operation fails, and with which error.
    pub(crate) forced: Vec<(Site, i32)>,
    pub(crate) down: Option<Crash>,
    /// Where the power was cut, until its losses are known.
    pub(crate) cut_at: Option<Site>,
    /// Our own numbers of the files that have one on the real file system, which gives a number
    /// again once it is free.
    pub(crate) numbers: BTreeMap<u64, u64>,
    pub(crate) next_number: u64,
    /// The names by which files were opened, by number: they say what kind a file is.
    pub(crate) names: BTreeMap<u64, String>,
    pub(crate) folders: BTreeMap<u64, String>,
    pub(crate) folder_syncs: u32,
    pub(crate) coverage: Coverage,
    pub(crate) digest: u64,
    pub(crate) trace: Option<Vec<String>>,
}

impl DiskState {
    /// Our number of a file, which gets one where it has none.
    pub(crate) fn number(&mut self, real: u64) -> u64 {
        match self.numbers.get(&real) {
            Some(file) => *file,
            None => self.number_anew(real),
        }
    }

    /// A number for a file that was just created.
    pub(crate) fn number_anew(&mut self, real: u64) -> u64 {
        self.next_number += 1;
        self.numbers.insert(real, self.next_number);
        self.next_number
    }

    pub(crate) fn name_of(&self, file: u64) -> String {
        self.names.get(&file).cloned().unwrap_or_default()
    }

    /// Does an operation as it is judged. `undo` gives back what an operation of a process that
    /// ended had taken.
    pub(crate) fn perform<T>(
        &mut self,
        site: (Operation, &str),
        extent: (u64, u64),
        call: impl FnOnce(&mut Self) -> Outcome<T>,
        undo: impl FnOnce(&T),
    ) -> Outcome<T> {
        match self.judge(site, extent) {
            Verdict::Pass | Verdict::Short => call(self),
            Verdict::Fail(error) => Err(error),
            Verdict::Crash { crash, is_done } => {
                if is_done {
                    undo(&call(self)?);
                }
                self.go_down(site, crash);
                Err(libc::EIO)
            }
        }
    }

    /// Decides about an operation, and remembers it.
    pub(crate) fn judge(
        &mut self,
        (operation, name): (Operation, &str),
        (at, length): (u64, u64),
    ) -> Verdict {
        if self.down.is_some() {
            return Verdict::Fail(libc::EIO);
        }
        let Some(kind) = (self.labels.kind)(name) else { return Verdict::Pass };
        let site = (operation, kind);
        self.coverage.sites.entry(site).or_default().reached += 1;
        if let Some(at) = self.forced.iter().position(|(forced, _)| *forced == site) {
            return Verdict::Fail(self.forced.remove(at).1);
        }
        let weight = (self.labels.weight)(site);
        let (verdict, fault) = self.rate.decide(operation, weight, &mut self.chance);
        if let (Verdict::Fail(_), Some(fault)) = (verdict, fault) {
            self.count((operation, name), fault);
        }
        let text = format!("{operation:?} {name} {at} {length} {verdict:?}");
        for byte in text.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(text);
        }
        verdict
    }

    pub(crate) fn count(&mut self, (operation, name): (Operation, &str), fault: FaultKind) {
        if let Some(kind) = (self.labels.kind)(name) {
            let site = self.coverage.sites.entry((operation, kind)).or_default();
            *site.faults.entry(fault).or_default() += 1;
        }
    }

    pub(crate) fn count_loss(&mut self, what: &'static str, name: &str, count: u64) {
        if let Some(kind) = (self.labels.kind)(name).filter(|_| count > 0) {
            *self.coverage.losses.entry((what, kind)).or_default() += count;
        }
    }

    pub(crate) fn go_down(&mut self, (operation, name): (Operation, &str), crash: Crash) {
        self.down = Some(crash);
        match crash {
            Crash::Kill => self.count((operation, name), FaultKind::Kill),
            Crash::PowerCut => self.cut_at = (self.labels.kind)(name).map(|kind| (operation, kind)),
        }
    }

    pub(crate) fn sync_folder(&mut self, name: &str) {
        self.model.sync_folder(name);
        self.folder_syncs += 1;
        if self.folder_syncs.is_multiple_of(FORGET_EVERY) {
            self.model.forget_unnamed();
        }
    }

    /// Takes what a real folder holds as durable.
    pub(crate) fn adopt(&mut self, root: &Path, folder: &str) {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { return };
        for entry in entries.flatten() {
            let file_name = entry.file_name().to_string_lossy().into_owned();
            let name = if folder.is_empty() { file_name } else { format!("{folder}/{file_name}") };
            let path = root.join(&name);
            let Some(facts) = raw::facts_of_path(&c_path(path.as_os_str().as_bytes())) else { continue };
            let target = if facts.is_folder {
                self.folders.insert(facts.number, name.clone());
                self.adopt(root, &name);
                Target::Folder
            } else {
                let durable = std::fs::read(&path).unwrap_or_default();
                let file = self.number(facts.number);
                self.model.files.insert(file, FileContent { durable, pending: Vec::new() });
                self.names.insert(file, name.clone());
                Target::File(file)
            };
            self.model.live.insert(name.clone(), target);
            self.model.durable.insert(name, target);
        }
    }

    /// Replaces everything below the root by what a power cut leaves.
    pub(crate) fn rebuild(&mut self, root: &Path) {
        let mercy = Mercy::draw(&mut self.chance);
        let (names, lost) = surviving_names(&self.model, mercy, &mut self.chance);
        let was_something_lost = !lost.is_empty();
        for name in lost {
            self.count_loss("names", &name, 1);
        }
        let mut contents: BTreeMap<u64, (Vec<u8>, Vec<String>)> = BTreeMap::new();
        let mut pages_lost = 0;
        let mercy = Mercy::draw(&mut self.chance);
        for (name, target) in &names {
            let Target::File(file) = target else { continue };
            if (self.labels.kind)(name).is_none() {
                continue;
            }
            if let Some((_, names)) = contents.get_mut(file) {
                names.push(name.clone());
                continue;
            }
            let content = self.model.files.entry(*file).or_default();
            let (bytes, losses) = surviving_content(content, mercy, &mut self.chance);
            contents.insert(*file, (bytes, vec![name.clone()]));
            pages_lost += losses.pages + losses.torn + losses.truncations;
            self.count_loss("pages", name, losses.pages);
            self.count_loss("parts of pages", name, losses.torn);
            self.count_loss("truncations", name, losses.truncations);
        }
        if let Some((operation, kind)) = self.cut_at.take()
            && (was_something_lost || pages_lost > 0)
        {
            let site = self.coverage.sites.entry((operation, kind)).or_default();
            *site.faults.entry(FaultKind::PowerCut).or_default() += 1;
        }
        self.clear(root);
        let of = |name: &str| c_path(root.join(name).as_os_str().as_bytes());
        for (name, _) in names.iter().filter(|(_, target)| **target == Target::Folder) {
            raw::make_folder(libc::AT_FDCWD, &of(name), 0o755).ok();
        }
        for (bytes, names) in contents.values() {
            put_file(&of(&names[0]), bytes);
            for other in &names[1..] {
                let from = of(&names[0]);
                raw::link((libc::AT_FDCWD, &from), (libc::AT_FDCWD, &of(other)), 0).ok();
            }
        }
        self.adopt(root, "");
    }

    /// Removes everything below the root.
    pub(crate) fn clear(&mut self, root: &Path) {
        for (name, target) in std::mem::take(&mut self.model).live.iter().rev() {
            let flags = if *target == Target::Folder { libc::AT_REMOVEDIR } else { 0 };
            raw::unlink(libc::AT_FDCWD, &c_path(root.join(name).as_os_str().as_bytes()), flags).ok();
        }
        let number = self.folders.iter().find(|(_, name)| name.is_empty()).map(|(number, _)| *number);
        self.folders = number.map(|number| (number, String::new())).into_iter().collect();
        self.names.clear();
        self.numbers.clear();
    }
}

/// Gives a real file this content, whatever its name held.
pub(crate) fn put_file(path: &CStr, bytes: &[u8]) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    let Ok(descriptor) = raw::open(libc::AT_FDCWD, path, flags, 0o644) else { return };
    let mut rest = bytes;
    while let Ok(count) = raw::write(descriptor, rest)
        && count > 0
    {
        rest = &rest[count..];
    }
    raw::close(descriptor);
}
