//! The spool's files and the index over them. Only the spool's thread uses them.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use furrow_rollout::{Id, Trajectory};

use super::entry::{EntryHeader, EntryKey, HEADER_BYTES, MAGIC, SpoolEntry};
use super::error::{SpoolError, is_unreadable, storage};
use crate::crash;
use crate::durable::{DurableError, DurableFile, make_durable_dir};

const SUFFIX: &str = ".spool";

/// Whether an append was needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It is recorded now.
    New,
    /// It had been recorded before.
    Repeated,
}

/// A trajectory found in the spool at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredTrajectory {
    pub trajectory_id: Id<Trajectory>,
    /// Its steps with their digests, from 0 and without a gap.
    pub steps: Vec<(u32, [u8; 32])>,
    /// Digest of its ending, when it has one.
    pub ending: Option<[u8; 32]>,
    /// What follows these in its file. Nothing changes until the ledger shows what had been
    /// acknowledged.
    pub tail: SpoolTail,
}

/// What follows the whole entries of a spool file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpoolTail {
    #[default]
    None,
    /// An incomplete entry with nothing whole behind it: it was being written when the process
    /// died, unless the ledger records that more had been acknowledged.
    Torn { bytes: u64 },
    /// Something that was once whole: a whole entry follows it, or the disk cannot read it.
    Damaged { offset: u64, why: EntryFlaw },
}

impl SpoolTail {
    /// Bytes of an entry that was being written when the process died.
    pub(crate) fn torn_bytes(self) -> u64 {
        match self {
            SpoolTail::Torn { bytes } => bytes,
            SpoolTail::None | SpoolTail::Damaged { .. } => 0,
        }
    }
}

/// What is wrong with a damaged entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryFlaw {
    /// Its bytes are not those that were written; a whole entry follows.
    Changed,
    /// It does not follow the one before it.
    OutOfOrder,
    /// The disk cannot read it.
    Unreadable,
}

/// All spool files and their index.
#[derive(Debug)]
pub(super) struct SpoolFiles {
    dir: PathBuf,
    /// Open for as long as the spool is: new names are synced also when no descriptor is left.
    dir_handle: File,
    trajectories: HashMap<Id<Trajectory>, SpoolFile>,
    dirty: Vec<Id<Trajectory>>,
    names_changed: bool,
    open_files_max: usize,
    uses: u64,
    bytes: Arc<AtomicU64>,
    stopped: Option<DurableError>,
}

#[derive(Debug, Default)]
struct SpoolFile {
    steps: Vec<[u8; 32]>,
    ending: Option<[u8; 32]>,
    length: u64,
    sealed: bool,
    exists: bool,
    /// Found at the start: what was not acknowledged may be in memory alone.
    is_doubtful: bool,
    handle: Option<DurableFile>,
    last_use: u64,
}

impl SpoolFiles {
    /// Reads the directory. Changes nothing in it.
    pub(super) fn open(
        dir: &Path,
        open_files_max: usize,
        bytes: Arc<AtomicU64>,
    ) -> Result<(Self, Vec<RecoveredTrajectory>), SpoolError> {
        make_durable_dir(dir).map_err(SpoolError::Storage)?;
        let mut trajectories = HashMap::new();
        let mut recovered = Vec::new();
        for (trajectory_id, path) in spool_files(dir)? {
            let (file, mut tail) = SpoolFile::recover(&path)?;
            if tail != SpoolTail::None && crash::planted("bug.cut_before_compare") {
                drop(DurableFile::open(&path, file.length).map_err(SpoolError::Storage)?);
                tail = SpoolTail::None;
            }
            bytes.fetch_add(file.length, Ordering::Relaxed);
            recovered.push(file.report(trajectory_id.clone(), tail));
            trajectories.insert(trajectory_id, file);
        }
        let dir_handle = File::open(dir).map_err(|error| storage("open", dir, error))?;
        dir_handle.sync_all().map_err(|error| storage("sync directory", dir, error))?;
        recovered.sort_by(|a, b| a.trajectory_id.cmp(&b.trajectory_id));
        let files = Self {
            dir: dir.to_owned(),
            dir_handle,
            trajectories,
            dirty: Vec::new(),
            names_changed: false,
            open_files_max,
            uses: 0,
            bytes,
            stopped: None,
        };
        Ok((files, recovered))
    }

    /// Writes an entry, unless it is already there. It is durable after the next
    /// [`sync`](Self::sync).
    pub(super) fn append(
        &mut self,
        trajectory: &Id<Trajectory>,
        entry: &SpoolEntry,
    ) -> Result<AppendOutcome, SpoolError> {
        self.check()?;
        let file = self.trajectories.entry(trajectory.clone()).or_default();
        match file.check_append(trajectory, entry)? {
            AppendOutcome::Repeated if crash::planted("bug.no_key") => {}
            AppendOutcome::Repeated => {
                let renewed = file.make_certain(&path_of(&self.dir, trajectory));
                return renewed.map(|()| AppendOutcome::Repeated).map_err(|error| self.failed(error));
            }
            AppendOutcome::New => {}
        }
        crash::point("spool.before_write");
        self.uses += 1;
        file.last_use = self.uses;
        self.names_changed |= !file.exists;
        let was_dirty = file.handle.as_ref().is_some_and(DurableFile::is_dirty);
        let path = path_of(&self.dir, trajectory);
        let mut written = file.write(&path, entry);
        if written.as_ref().is_err_and(DurableError::is_descriptor_shortage) {
            // Files that are closed here are opened again at their next step.
            self.trajectories.values_mut().for_each(SpoolFile::close_idle);
            written = self.trajectories.entry(trajectory.clone()).or_default().write(&path, entry);
        }
        written.map_err(|error| self.failed(error))?;
        self.bytes.fetch_add((HEADER_BYTES + entry.payload.len()) as u64, Ordering::Relaxed);
        if !was_dirty {
            self.dirty.push(trajectory.clone());
        }
        crash::point("spool.after_write");
        Ok(AppendOutcome::New)
    }

    /// Makes everything written durable, including new file names.
    pub(super) fn sync(&mut self) -> Result<(), SpoolError> {
        self.check()?;
        crash::point("spool.before_sync");
        if let Err(error) = self.sync_files() {
            self.stopped = Some(error.clone());
            return Err(SpoolError::Stopped(Some(error)));
        }
        self.close_some();
        crash::point("spool.after_sync");
        Ok(())
    }

    /// Durable bytes of a trajectory.
    pub(super) fn measure(&self, trajectory: &Id<Trajectory>) -> Result<u64, SpoolError> {
        self.check()?;
        Ok(self.trajectories.get(trajectory).map_or(0, |file| file.length))
    }

    /// The same, and the trajectory takes no more entries.
    pub(super) fn seal(&mut self, trajectory: &Id<Trajectory>) -> Result<u64, SpoolError> {
        self.check()?;
        let file = self.trajectories.entry(trajectory.clone()).or_default();
        file.sealed = true;
        file.handle = None;
        Ok(file.length)
    }

    /// Cuts what follows the whole entries.
    pub(super) fn cut(&mut self, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
        self.check()?;
        let Some(file) = self.trajectories.get_mut(trajectory) else { return Ok(()) };
        let cut = DurableFile::open(path_of(&self.dir, trajectory), file.length);
        file.handle = Some(cut.map_err(SpoolError::Storage)?);
        self.close_some();
        Ok(())
    }

    /// Removes the file, if there is one.
    pub(super) fn delete(&mut self, trajectory: &Id<Trajectory>) -> Result<(), SpoolError> {
        crash::point("spool.before_delete");
        let path = path_of(&self.dir, trajectory);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(storage("remove", &path, error));
            }
            _ => {}
        }
        if let Some(file) = self.trajectories.remove(trajectory) {
            self.bytes.fetch_sub(file.length, Ordering::Relaxed);
        }
        crash::point("spool.after_delete");
        Ok(())
    }

    fn check(&self) -> Result<(), SpoolError> {
        self.stopped.clone().map_or(Ok(()), |cause| Err(SpoolError::Stopped(Some(cause))))
    }

    fn sync_files(&mut self) -> Result<(), DurableError> {
        for trajectory in std::mem::take(&mut self.dirty) {
            if let Some(handle) = self.trajectories.get_mut(&trajectory).and_then(|file| file.handle.as_mut())
            {
                handle.sync()?;
            }
        }
        if std::mem::take(&mut self.names_changed) && !crash::planted("bug.no_folder_sync") {
            self.dir_handle.sync_all().map_err(DurableError::on("sync directory", &self.dir))?;
        }
        Ok(())
    }

    /// A full disk or the want of a descriptor leaves the file as it was and the spool usable;
    /// after any other error neither is certain.
    fn failed(&mut self, error: DurableError) -> SpoolError {
        if error.is_full() {
            return SpoolError::DiskFull(error);
        }
        if error.is_descriptor_shortage() {
            tracing::warn!(%error, "no file descriptor left for the spool: a step waits");
            return SpoolError::NoDescriptor(error);
        }
        self.stopped = Some(error.clone());
        SpoolError::Stopped(Some(error))
    }

    /// Closes files that have their ending, and beyond the limit the least recently used of the
    /// others.
    fn close_some(&mut self) {
        let mut open: Vec<_> = self.trajectories.values_mut().filter(|file| file.handle.is_some()).collect();
        open.iter_mut().filter(|file| file.ending.is_some()).for_each(|file| file.handle = None);
        if open.len() > self.open_files_max {
            open.sort_by_key(|file| file.last_use);
            let excess = open.len() - self.open_files_max;
            open.iter_mut().take(excess).for_each(|file| file.handle = None);
        }
    }
}

impl SpoolFile {
    /// Scans a file for its whole entries and returns what follows them.
    fn recover(path: &Path) -> Result<(Self, SpoolTail), SpoolError> {
        let failed = |operation| move |error| storage(operation, path, error);
        let file = furrow_storage::open(path, OpenOptions::new().read(true)).map_err(failed("open"))?;
        let length = file.metadata().map_err(failed("measure"))?.len();
        let mut kept = Self { exists: true, is_doubtful: true, ..Self::default() };
        let flaw = match kept.scan(&file) {
            Ok(None) if kept.length == length => return Ok((kept, SpoolTail::None)),
            Ok(None) => None,
            Ok(flaw) => flaw,
            Err(error) if is_unreadable(&error) => Some(EntryFlaw::Unreadable),
            Err(error) => return Err(failed("read")(error)),
        };
        let flaw = match flaw {
            Some(flaw) => Some(flaw),
            None if whole_entry_follows(&file, kept.length, length).map_err(failed("read"))? => {
                Some(EntryFlaw::Changed)
            }
            None => None,
        };
        let offset = kept.length;
        // Writing here would cut what may be all that is left of acknowledged steps.
        kept.sealed = flaw.is_some();
        let tail =
            flaw.map_or(SpoolTail::Torn { bytes: length - offset }, |why| SpoolTail::Damaged { offset, why });
        Ok((kept, tail))
    }

    /// Indexes the whole entries from the start. Returns a flaw where it stopped for anything but a
    /// torn entry.
    fn scan(&mut self, file: &File) -> io::Result<Option<EntryFlaw>> {
        let mut scan = BufReader::with_capacity(1 << 18, file);
        while let Some((header, bytes)) = next_whole(&mut scan)? {
            if !self.index_entry(&header) {
                return Ok(Some(EntryFlaw::OutOfOrder));
            }
            self.length += bytes;
        }
        Ok(None)
    }

    /// Adds an entry to the index if it can follow the existing ones.
    fn index_entry(&mut self, header: &EntryHeader) -> bool {
        let next = self.steps.len() as u32;
        match header.key {
            EntryKey::Step(step) if step == next && self.ending.is_none() => self.steps.push(header.digest),
            EntryKey::End if self.ending.is_none() => self.ending = Some(header.digest),
            _ => return crash::planted("bug.no_key"),
        }
        true
    }

    fn report(&self, trajectory_id: Id<Trajectory>, tail: SpoolTail) -> RecoveredTrajectory {
        let steps = (0..).zip(self.steps.iter().copied()).collect();
        RecoveredTrajectory { trajectory_id, steps, ending: self.ending, tail }
    }

    /// Checks whether the entry exists already, comes next or cannot follow.
    fn check_append(
        &self,
        trajectory: &Id<Trajectory>,
        entry: &SpoolEntry,
    ) -> Result<AppendOutcome, SpoolError> {
        let expected = self.steps.len() as u32;
        let recorded = match entry.key {
            EntryKey::Step(step) => self.steps.get(step as usize),
            EntryKey::End => self.ending.as_ref(),
        };
        let trajectory = trajectory.clone();
        match (recorded, entry.key) {
            (Some(digest), _) if *digest == entry.digest => Ok(AppendOutcome::Repeated),
            (Some(_), key) => Err(SpoolError::Conflict { trajectory, key }),
            // without fencing nothing stops a former lease holder
            (None, _) if self.ending.is_some() || self.sealed && !crash::planted("bug.no_fencing") => {
                Err(SpoolError::Over { trajectory })
            }
            (None, EntryKey::Step(got)) if got != expected => {
                Err(SpoolError::Gap { trajectory, expected, got })
            }
            (None, _) => Ok(AppendOutcome::New),
        }
    }

    /// Makes durable what an earlier process wrote, before any of it is acknowledged: its sync may
    /// have failed, or not have happened.
    fn make_certain(&mut self, path: &Path) -> Result<(), DurableError> {
        if self.is_doubtful {
            furrow_storage::write_again(path).map_err(DurableError::on("write again", path))?;
            self.is_doubtful = false;
        }
        Ok(())
    }

    /// Closes the file where all of it is durable.
    fn close_idle(&mut self) {
        if self.handle.as_ref().is_some_and(|handle| !handle.is_dirty()) {
            self.handle = None;
        }
    }

    fn write(&mut self, path: &Path, entry: &SpoolEntry) -> Result<(), DurableError> {
        let handle = match self.handle.take() {
            Some(handle) => handle,
            None if self.exists => DurableFile::open(path, self.length)?,
            None => DurableFile::create(path)?,
        };
        self.exists = true;
        let handle = self.handle.insert(handle);
        handle.write(&[&entry.header(), &entry.payload])?;
        self.length = handle.written();
        match entry.key {
            EntryKey::Step(step) if step as usize == self.steps.len() => self.steps.push(entry.digest),
            EntryKey::Step(_) => {}
            EntryKey::End => self.ending = Some(entry.digest),
        }
        Ok(())
    }
}

/// What a spool directory holds, in order of ids. Changes nothing; a missing directory is empty.
pub(crate) fn scan(dir: &Path) -> Result<Vec<RecoveredTrajectory>, SpoolError> {
    if !dir.try_exists().map_err(|error| storage("look for", dir, error))? {
        return Ok(Vec::new());
    }
    let scanned = |(trajectory_id, path): (Id<Trajectory>, PathBuf)| {
        let (file, tail) = SpoolFile::recover(&path)?;
        Ok(file.report(trajectory_id, tail))
    };
    let mut found: Vec<_> = spool_files(dir)?.into_iter().map(scanned).collect::<Result<_, SpoolError>>()?;
    found.sort_by(|a, b| a.trajectory_id.cmp(&b.trajectory_id));
    Ok(found)
}

/// The file of a trajectory.
pub(super) fn path_of(dir: &Path, trajectory: &Id<Trajectory>) -> PathBuf {
    dir.join(format!("{trajectory}{SUFFIX}"))
}

pub(super) fn spool_files(dir: &Path) -> Result<Vec<(Id<Trajectory>, PathBuf)>, SpoolError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| storage("list", dir, error))? {
        let path = entry.map_err(|error| storage("list", dir, error))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(SUFFIX));
        match name.and_then(|name| Id::new(name).ok()) {
            Some(trajectory) => files.push((trajectory, path)),
            None => tracing::warn!(path = %path.display(), "ignoring a file that is not a spool file"),
        }
    }
    Ok(files)
}

/// The next entry that is there from its first to its last byte, and its size; `None` at the end or
/// a torn tail.
fn next_whole(file: &mut impl Read) -> io::Result<Option<(EntryHeader, u64)>> {
    let mut bytes = [0; HEADER_BYTES];
    if !filled(file, &mut bytes)? {
        return Ok(None);
    }
    let Some(header) = EntryHeader::parse(&bytes) else { return Ok(None) };
    let mut crc = header.crc();
    let mut left = header.length as usize;
    let mut piece = vec![0; left.min(1 << 18)];
    while left > 0 {
        let part = &mut piece[..left.min(1 << 18)];
        if !filled(file, part)? {
            return Ok(None);
        }
        crc.update(part);
        left -= part.len();
    }
    let size = HEADER_BYTES as u64 + u64::from(header.length);
    Ok(header.agrees(crc).then_some((header, size)))
}

/// Whether a whole entry starts somewhere after `from`: then an incomplete entry before it was not
/// the last write.
///
/// A payload may hold what looks like headers, each claiming to be long. Reading is bounded by a
/// few times the file size; beyond that the answer is yes, which costs one trajectory and no other.
fn whole_entry_follows(file: &File, from: u64, length: u64) -> io::Result<bool> {
    let mut left = length.saturating_mul(4).max(1 << 20);
    let mut offsets = MagicOffsets { file, length, next: from + 1, piece: Vec::new(), piece_at: from + 1 };
    while let Some(found) = offsets.next()? {
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, found)?;
        if let Some(header) = EntryHeader::parse(&bytes)
            && found + HEADER_BYTES as u64 + u64::from(header.length) <= length
        {
            let Some(still) = left.checked_sub(u64::from(header.length)) else { return Ok(true) };
            left = still;
            let mut rest = BufReader::new(file);
            rest.seek(SeekFrom::Start(found))?;
            if next_whole(&mut rest)?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Offsets of possible headers. Each piece of the file is read once, however many are in it.
struct MagicOffsets<'a> {
    file: &'a File,
    length: u64,
    /// Where to look on.
    next: u64,
    piece: Vec<u8>,
    /// Offset of the piece.
    piece_at: u64,
}

impl MagicOffsets<'_> {
    fn next(&mut self) -> io::Result<Option<u64>> {
        const PIECE: u64 = 1 << 18;
        while self.next + (HEADER_BYTES as u64) <= self.length {
            let rest = self.piece.get((self.next - self.piece_at) as usize..).unwrap_or_default();
            if let Some(found) = rest.windows(MAGIC.len()).position(|window| window == MAGIC) {
                let found = self.next + found as u64;
                self.next = found + 1;
                return Ok(Some(found).filter(|found| found + HEADER_BYTES as u64 <= self.length));
            }
            // The pieces overlap, so that a magic across their border is found.
            self.next += rest.len().saturating_sub(MAGIC.len() - 1) as u64;
            self.piece_at = self.next;
            self.piece.clear();
            let mut file = self.file;
            file.seek(SeekFrom::Start(self.next))?;
            file.take(PIECE).read_to_end(&mut self.piece)?;
            if self.piece.len() < MAGIC.len() {
                break;
            }
        }
        Ok(None)
    }
}

fn filled(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
