//! Keeps the archives of a run below a total size: the oldest finished ones go first.
//!
//! Bodies belong to all trajectories, and one goes once no index names it. Several processes may
//! record into one folder, so removing relies on locks of files, which end with their process: a
//! recorder locks its unfinished index and a replay the index it reads, so neither is removed.
//! `lock` is shared while a body is stored and named, and exclusive while files are removed. It
//! contains how many bytes were added since the folder was last looked through.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::error::{ArchiveError, io_error};
use super::index::{IndexLines, is_hash};

/// Name of the lock in the folder of archives.
const LOCK: &str = "lock";
/// Parts of the limit: the folder is looked through after one of them was added, and one is freed
/// beyond the limit.
const PARTS: u64 = 16;
/// An unfinished archive without a recorder is removed once nothing wrote to it for so long: an
/// earlier release holds no lock on those that it records.
const ABANDONED: Duration = Duration::from_secs(24 * 3_600);

/// The folder of archives of a run whose total size is limited.
#[derive(Debug)]
pub(super) struct LimitedFolder {
    path: PathBuf,
    bytes_max: u64,
    lock: File,
}

/// What was removed to stay below the limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RemovedArchives {
    pub archives: u64,
    pub bodies: u64,
    pub bytes: u64,
}

/// The index of a trajectory that has ended.
struct FinishedIndex {
    path: PathBuf,
    finished_at: SystemTime,
    bytes: u64,
}

/// What lies in the folder.
#[derive(Default)]
struct FolderContents {
    /// Indexes of ended trajectories, the oldest first.
    finished: Vec<FinishedIndex>,
    /// Bodies by their hash, with their length.
    bodies: HashMap<String, u64>,
    bytes: u64,
}

/// What is to be removed, found without a lock.
#[derive(Default)]
struct RemovalPlan {
    indexes: Vec<FinishedIndex>,
    bodies: Vec<(String, u64)>,
}

impl LimitedFolder {
    pub(super) fn open(path: &Path, bytes_max: u64) -> Result<Self, ArchiveError> {
        let lock = path.join(LOCK);
        let options = OpenOptions::new().create(true).read(true).write(true).clone();
        let opened = furrow_storage::open(&lock, &options);
        let lock = opened.map_err(|source| io_error(&lock, "cannot be opened", source))?;
        Ok(Self { path: path.to_owned(), bytes_max, lock })
    }

    /// Does work during which no body is removed.
    pub(super) fn while_none_is_removed<T>(
        &self,
        work: impl FnOnce() -> Result<T, ArchiveError>,
    ) -> Result<T, ArchiveError> {
        self.lock.lock_shared().map_err(self.on_lock("cannot be locked"))?;
        let done = work();
        self.lock.unlock().map_err(self.on_lock("cannot be unlocked"))?;
        done
    }

    /// Counts bytes that an archive added. Where enough were added since the last time, the folder
    /// is looked through, and the oldest archives are removed while it is too large.
    pub(super) fn add(&self, bytes: u64) -> Result<RemovedArchives, ArchiveError> {
        if !self.is_due(bytes)? {
            return Ok(RemovedArchives::default());
        }
        let contents = FolderContents::read(&self.path)?;
        if contents.bytes <= self.bytes_max {
            return Ok(RemovedArchives::default());
        }
        let known: HashSet<PathBuf> = contents.finished.iter().map(|index| index.path.clone()).collect();
        let plan = contents.plan(self.bytes_max - self.bytes_max / PARTS)?;
        self.lock.lock().map_err(self.on_lock("cannot be locked"))?;
        let removed = self.remove(plan, &known);
        self.lock.unlock().map_err(self.on_lock("cannot be unlocked"))?;
        removed
    }

    fn on_lock(&self, what: &'static str) -> impl FnOnce(io::Error) -> ArchiveError {
        let path = self.path.join(LOCK);
        move |source| io_error(&path, what, source)
    }

    /// Whether it is time to look through the folder; from then on the count begins again.
    fn is_due(&self, bytes: u64) -> Result<bool, ArchiveError> {
        self.lock.lock().map_err(self.on_lock("cannot be locked"))?;
        let counted = self.count(bytes).map_err(self.on_lock("cannot be counted in"));
        self.lock.unlock().map_err(self.on_lock("cannot be unlocked"))?;
        counted
    }

    fn count(&self, bytes: u64) -> io::Result<bool> {
        let mut lock = &self.lock;
        let mut text = String::new();
        lock.rewind()?;
        lock.take(20).read_to_string(&mut text).ok();
        // Without a number nothing is known of the folder.
        let sum = text.trim().parse::<u64>().ok().map(|before| before.saturating_add(bytes));
        let next = sum.filter(|sum| *sum < self.bytes_max / PARTS);
        lock.rewind()?;
        lock.write_all(format!("{:>20}", next.unwrap_or(0)).as_bytes())?;
        Ok(next.is_none())
    }

    /// Removes what the plan names, less what is in use by now. The lock is exclusive.
    fn remove(&self, plan: RemovalPlan, known: &HashSet<PathBuf>) -> Result<RemovedArchives, ArchiveError> {
        let mut removed = RemovedArchives::default();
        let mut needed = HashSet::new();
        let mut leaving = Vec::new();
        for index in plan.indexes {
            match lock_of(&index.path) {
                Some(lock) => leaving.push((index, lock)),
                None => needed.extend(bodies_of(&index.path)),
            }
        }
        for path in files_in(&self.path)?.filter(|path| !known.contains(path)) {
            let is_unfinished = path.extension().is_some_and(|ending| ending == "part");
            match lock_of(&path).filter(|_| is_unfinished && is_abandoned(&path)) {
                Some(_) => remove_file(&path)?,
                None => needed.extend(bodies_of(&path)),
            }
        }
        // Without its index nothing asks for a body: a kill in between loses no archive that is
        // listed.
        for (index, _lock) in leaving {
            remove_file(&index.path)?;
            removed.archives += 1;
            removed.bytes += index.bytes;
        }
        for (name, bytes) in plan.bodies.into_iter().filter(|(name, _)| !needed.contains(name)) {
            remove_file(&self.path.join("blobs").join(&name[..2]).join(&name))?;
            removed.bodies += 1;
            removed.bytes += bytes;
        }
        Ok(removed)
    }
}

impl FolderContents {
    fn read(folder: &Path) -> Result<Self, ArchiveError> {
        let mut contents = Self::default();
        for path in files_in(folder)? {
            let Ok(found) = path.symlink_metadata() else { continue };
            contents.bytes += found.len();
            if path.extension().is_some_and(|ending| ending == "jsonl") {
                let finished_at = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                contents.finished.push(FinishedIndex { path, finished_at, bytes: found.len() });
            }
        }
        contents
            .finished
            .sort_by(|one, other| (one.finished_at, &one.path).cmp(&(other.finished_at, &other.path)));
        let blobs = folder.join("blobs");
        for path in folders_in(&blobs)?.map(|below| files_in(&below)).collect::<Result<Vec<_>, _>>()? {
            path.for_each(|path| contents.add_body(&path));
        }
        Ok(contents)
    }

    fn add_body(&mut self, path: &Path) {
        let Ok(found) = path.symlink_metadata() else { return };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_hash(&name) {
            self.bodies.insert(name.into_owned(), found.len());
        } else if is_abandoned(path) {
            // What a recorder that was killed had begun to write.
            fs::remove_file(path).ok();
            return;
        }
        self.bytes += found.len();
    }

    /// Removes bodies that no index names, and then the oldest archives, until so many bytes are
    /// left. What is not finished stays.
    fn plan(mut self, bytes_max: u64) -> Result<RemovalPlan, ArchiveError> {
        let mut uses: HashMap<String, u64> = HashMap::new();
        for index in &self.finished {
            bodies_of(&index.path).into_iter().for_each(|name| *uses.entry(name).or_default() += 1);
        }
        let mut plan = RemovalPlan::default();
        let unused: Vec<String> =
            self.bodies.keys().filter(|name| !uses.contains_key(*name)).cloned().collect();
        unused.iter().for_each(|name| self.leave(name, &mut plan));
        let mut oldest = std::mem::take(&mut self.finished).into_iter();
        while self.bytes > bytes_max
            && let Some(index) = oldest.next()
        {
            self.bytes = self.bytes.saturating_sub(index.bytes);
            for name in bodies_of(&index.path) {
                let Some(count) = uses.get_mut(&name) else { continue };
                *count -= 1;
                if *count == 0 {
                    self.leave(&name, &mut plan);
                }
            }
            plan.indexes.push(index);
        }
        Ok(plan)
    }

    fn leave(&mut self, name: &str, plan: &mut RemovalPlan) {
        let Some(bytes) = self.bodies.remove(name) else { return };
        self.bytes = self.bytes.saturating_sub(bytes);
        plan.bodies.push((name.to_owned(), bytes));
    }
}

/// Keeps an index from being removed while it is open. This fails where it is just being removed,
/// and where the file system has no locks: then nothing is removed either.
pub(super) fn keep(index: &File) {
    index.try_lock_shared().ok();
}

/// The lock of an index that no process records or replays.
fn lock_of(path: &Path) -> Option<File> {
    let file = furrow_storage::open_to_read(path).ok()?;
    file.try_lock().ok()?;
    Some(file)
}

/// Bodies that an index names, each once; of a damaged one, those before the damage.
fn bodies_of(path: &Path) -> HashSet<String> {
    #[derive(Deserialize)]
    struct NamedBody {
        #[serde(default)]
        body_sha256: Option<String>,
    }
    let Ok(file) = furrow_storage::open_to_read(path) else { return HashSet::new() };
    let mut lines = IndexLines::of(file, path);
    let mut names = HashSet::new();
    while let Ok(Some(NamedBody { body_sha256 })) = lines.next() {
        names.extend(body_sha256.filter(|name| is_hash(name)));
    }
    names
}

fn is_abandoned(path: &Path) -> bool {
    let modified = path.symlink_metadata().and_then(|found| found.modified());
    modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= ABANDONED))
}

fn files_in(folder: &Path) -> Result<impl Iterator<Item = PathBuf> + use<>, ArchiveError> {
    Ok(entries_in(folder)?.filter(|(_, kind)| kind.is_file()).map(|(path, _)| path))
}

fn folders_in(folder: &Path) -> Result<impl Iterator<Item = PathBuf> + use<>, ArchiveError> {
    Ok(entries_in(folder)?.filter(|(_, kind)| kind.is_dir()).map(|(path, _)| path))
}

fn entries_in(folder: &Path) -> Result<impl Iterator<Item = (PathBuf, fs::FileType)> + use<>, ArchiveError> {
    let entries = fs::read_dir(folder).map_err(|source| io_error(folder, "cannot be listed", source))?;
    let with_kind = |entry: fs::DirEntry| entry.file_type().ok().map(|kind| (entry.path(), kind));
    Ok(entries.flatten().filter_map(with_kind))
}

fn remove_file(path: &Path) -> Result<(), ArchiveError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(io_error(path, "cannot be removed", source))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;

    use furrow_rollout::{Id, Trajectory};

    use super::*;
    use crate::archive::index::{index_path, unfinished_path};
    use crate::archive::{
        ArchiveLimits, ArchiveMetadata, ArchiveRecorder, ArchiveRequest, ArchiveResponse, HttpExchange,
        TrajectoryArchive,
    };

    const BODY_BYTES: usize = 1_000;

    fn limits(bytes_max: u64) -> ArchiveLimits {
        ArchiveLimits {
            response_bytes_max: 1 << 20,
            trajectory_bytes_max: 1 << 20,
            bytes_max: Some(bytes_max),
        }
    }

    fn id(number: usize) -> Id<Trajectory> {
        Id::new(format!("r-g{number:06}-s0-a0")).unwrap()
    }

    fn url(body: u64) -> String {
        format!("http://a.test/{body}")
    }

    fn body(number: u64) -> Vec<u8> {
        format!("{number} ").repeat(BODY_BYTES).into_bytes()[..BODY_BYTES].to_vec()
    }

    fn begin(folder: &Path, number: usize, bytes_max: u64) -> ArchiveRecorder {
        let trajectory = &id(number);
        let about = ArchiveMetadata { trajectory, task_id: "t", start_url: "http://a.test/", browser: "b 1" };
        ArchiveRecorder::create(folder, about, limits(bytes_max)).unwrap()
    }

    fn add(recorder: &mut ArchiveRecorder, number: u64) {
        let exchange = HttpExchange {
            method: "GET".into(),
            url: url(number),
            request_sha256: None,
            resource: "Fetch".into(),
            status: 200,
            headers: Vec::new(),
            body_sha256: None,
            body_bytes: 0,
            missing: None,
        };
        recorder.add(exchange, Some(&body(number))).unwrap();
    }

    /// Records an archive with these bodies, finished a second after the one before it.
    fn record(folder: &Path, number: usize, bodies: &[u64], bytes_max: u64) {
        let mut recorder = begin(folder, number, bytes_max);
        bodies.iter().for_each(|body| add(&mut recorder, *body));
        recorder.finish().unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + number as u64);
        if let Ok(index) = File::options().append(true).open(index_path(folder, id(number).as_str())) {
            index.set_times(FileTimes::new().set_modified(at)).unwrap();
        }
    }

    /// Numbers of the archives that are there; each must be whole.
    fn whole(folder: &Path, bodies_of_number: impl Fn(usize) -> Vec<u64>, count: usize) -> Vec<usize> {
        let mut there = Vec::new();
        for number in (0..count).filter(|number| TrajectoryArchive::exists(folder, &id(*number))) {
            let mut archive = TrajectoryArchive::open(folder, &id(number)).unwrap();
            for wanted in bodies_of_number(number) {
                check_body(&mut archive, wanted);
            }
            there.push(number);
        }
        there
    }

    #[track_caller]
    fn check_body(archive: &mut TrajectoryArchive, number: u64) {
        let request = ArchiveRequest { method: "GET".into(), url: url(number), body_sha256: None };
        let Some(ArchiveResponse::Response { body: found, .. }) = archive.find_response(&request).unwrap()
        else {
            panic!("no body {number}")
        };
        assert_eq!(found, body(number));
    }

    fn size(folder: &Path) -> u64 {
        FolderContents::read(folder).unwrap().bytes
    }

    #[test]
    fn the_oldest_archives_go_first_and_shared_bodies_with_the_last_that_names_them() {
        let folder = tempfile::tempdir().unwrap();
        // Each has a body of its own, and all share one.
        let bodies = |number: usize| vec![1_000, number as u64];
        let most = 12_000;
        for number in 0..30 {
            record(folder.path(), number, &bodies(number), most);
            assert!(size(folder.path()) <= most + most / PARTS + 3_000, "{}", size(folder.path()));
        }
        let there = whole(folder.path(), bodies, 30);
        assert!((5..=9).contains(&there.len()), "{there:?}");
        assert_eq!(there, (30 - there.len()..30).collect::<Vec<_>>());
        let kept = FolderContents::read(folder.path()).unwrap().bodies.len();
        assert_eq!(kept, there.len() + 1, "bodies without an archive were left");
    }

    #[test]
    fn what_is_recorded_or_replayed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let most = 5_000;
        let mut recorded = begin(folder.path(), 100, most);
        add(&mut recorded, 7);
        record(folder.path(), 0, &[7, 8], most);
        let mut replayed = TrajectoryArchive::open(folder.path(), &id(0)).unwrap();
        (1..20).for_each(|number| record(folder.path(), number, &[number as u64 + 50], most));
        assert!(TrajectoryArchive::exists(folder.path(), &id(0)), "it is being replayed");
        assert!(!TrajectoryArchive::exists(folder.path(), &id(1)));
        check_body(&mut replayed, 7);
        check_body(&mut replayed, 8);
        drop(replayed);
        (20..30).for_each(|number| record(folder.path(), number, &[number as u64 + 50], most));
        assert!(!TrajectoryArchive::exists(folder.path(), &id(0)));
        // The body that only the unfinished one names is still there.
        add(&mut recorded, 9);
        recorded.finish().unwrap();
        let mut archive = TrajectoryArchive::open(folder.path(), &id(100)).unwrap();
        check_body(&mut archive, 7);
        check_body(&mut archive, 9);
    }

    #[test]
    fn what_a_killed_recorder_left_goes_after_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let most = 4_000;
        let mut killed = begin(folder.path(), 0, most);
        add(&mut killed, 1);
        drop(killed);
        let path = unfinished_path(folder.path(), id(0).as_str());
        (1..10).for_each(|number| record(folder.path(), number, &[number as u64 + 50], most));
        assert!(path.exists(), "an earlier release may still be recording it");
        let yesterday = SystemTime::now() - ABANDONED;
        let index = File::options().append(true).open(&path).unwrap();
        index.set_times(FileTimes::new().set_modified(yesterday)).unwrap();
        drop(index);
        (10..20).for_each(|number| record(folder.path(), number, &[number as u64 + 50], most));
        assert!(!path.exists());
        // Its body is found to be without an index the next time.
        (20..30).for_each(|number| record(folder.path(), number, &[number as u64 + 50], most));
        let name = super::super::index::hex(&<sha2::Sha256 as sha2::Digest>::digest(body(1)));
        assert!(!FolderContents::read(folder.path()).unwrap().bodies.contains_key(&name));
    }

    #[test]
    fn without_a_limit_nothing_goes_and_nothing_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let trajectory = &id(0);
        let about = ArchiveMetadata { trajectory, task_id: "t", start_url: "http://a.test/", browser: "b 1" };
        let none = ArchiveLimits { bytes_max: None, ..limits(0) };
        ArchiveRecorder::create(folder.path(), about, none).unwrap().finish().unwrap();
        assert!(!folder.path().join(LOCK).exists());
    }

    /// Recorders of several processes, with bodies that many of them share.
    #[test]
    fn every_archive_that_is_left_is_whole_however_many_record_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let most = 30_000;
        let bodies = |number: usize| -> Vec<u64> {
            let seed = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (0..5).map(|at| (seed >> (at * 8)) % 40).collect()
        };
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let folder = folder.path().to_owned();
                std::thread::spawn(move || {
                    for number in (0..200).filter(|number| number % 4 == thread) {
                        let mut recorder = begin(&folder, number, most);
                        bodies(number).iter().for_each(|body| add(&mut recorder, *body));
                        recorder.finish().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let there = whole(folder.path(), bodies, 200);
        assert!((3..200).contains(&there.len()), "{} archives", there.len());
        assert!(size(folder.path()) <= most + most / PARTS + 4 * 7_000, "{}", size(folder.path()));
    }
}
