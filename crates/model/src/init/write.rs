//! Writes a checkpoint directory completely or not at all: first under another name, flushed to
//! disk, then renamed.
//!
//! All cores generate weights in parts of a few million values and write each to its position,
//! while the previous file is flushed. 16 cores generate about 1 GB of bfloat16 a second (a value
//! takes 8 bytes of ChaCha12 and about 10 ns), so the disk is the bottleneck. A process that is
//! killed leaves its complete files; the next process with the same settings continues after them.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use serde_json::{Map, json};

use super::error::InitError;
use super::spec::{InitSpec, ProgressFn};
use super::tensors::TensorSpec;
use super::{disk, values};

/// Values of one part of a tensor: 8 MB in bfloat16, so that a file of 5 GB has six hundred parts
/// to distribute.
const PART_VALUES: usize = if cfg!(test) { 777 } else { 4 << 20 };

/// A directory that is being written, and locked meanwhile. If it is dropped before `commit`, it
/// stays if a weight file is complete.
pub(super) struct DraftDirectory {
    dir: PathBuf,
    target: PathBuf,
    /// File beside the directory with its settings. Its lock ends with the process.
    settings: PathBuf,
    _lock: File,
    committed: bool,
}

/// A weight file, and the offset of its values.
struct ShardFile<'a> {
    name: String,
    header: String,
    tensors: &'a [TensorSpec],
}

/// A part of a tensor, and its offset in the file.
struct TensorPart<'a> {
    tensor: &'a TensorSpec,
    values: std::ops::Range<usize>,
    at: u64,
}

impl DraftDirectory {
    /// Creates a directory beside `target`, which must not exist, or continues one with the same
    /// settings.
    pub(super) fn begin(target: &Path, init: &InitSpec) -> Result<Self, InitError> {
        if target.symlink_metadata().is_ok() {
            return Err(InitError::Exists { path: target.into() });
        }
        let name = target.file_name().ok_or_else(|| InitError::Exists { path: target.into() })?;
        let name = name.to_string_lossy();
        let dir = target.with_file_name(format!(".{name}.partial"));
        let settings = target.with_file_name(format!(".{name}.partial.json"));
        let lock = File::options().read(true).write(true).create(true).truncate(false).open(&settings);
        let lock = lock.map_err(failed("create", &settings))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(InitError::Busy { path: dir }),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &settings)(error)),
        }
        let wanted = json!({
            "size": init.size.as_str(), "seed": init.seed, "dtype": init.dtype.name(), "shard_bytes_max": init.shard_bytes_max,
        })
        .to_string();
        let found = fs::read_to_string(&settings).map_err(failed("read", &settings))?;
        if dir.exists() && found != wanted {
            return Err(InitError::OtherDraft { path: dir, found: found.chars().take(200).collect() });
        }
        fs::write(&settings, wanted).map_err(failed("write", &settings))?;
        fs::create_dir_all(&dir).map_err(failed("create", &dir))?;
        Ok(Self { dir, target: target.into(), settings, _lock: lock, committed: false })
    }

    /// Writes a file and flushes it; returns its size.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<u64, InitError> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(failed("write", &path))?;
        sync(&path)
    }

    /// Refuses a disk without space for the files that are still to be written. Complete files of
    /// an earlier start are not written again.
    pub(super) fn check_disk(
        &self,
        init: &InitSpec,
        tensors: &[TensorSpec],
        other: u64,
    ) -> Result<(), InitError> {
        let Some(free) = disk::free_bytes(&self.dir) else { return Ok(()) };
        let wanted = |shard: &ShardFile<'_>| {
            let path = self.dir.join(&shard.name);
            let bytes = shard.bytes(init);
            let whole = path.metadata().is_ok_and(|found| found.len() == bytes);
            // A partial file is emptied before it is written again, so its bytes count as free.
            let there =
                if whole { bytes } else { disk::disk_bytes_of(&self.unfinished(shard)).min(bytes - 1) };
            disk::PlannedFile { bytes, there }
        };
        disk::check(&self.target, disk::to_write(planned(init, tensors).iter().map(wanted), other), free)
    }

    fn unfinished(&self, shard: &ShardFile<'_>) -> PathBuf {
        self.dir.join(format!("{}.part", shard.name))
    }

    /// Writes the weights, in one file if they fit the limit; returns the size of all files.
    pub(super) fn write_weights(
        &self,
        init: &InitSpec,
        tensors: &[TensorSpec],
        progress: &ProgressFn<'_>,
    ) -> Result<u64, InitError> {
        let shards = planned(init, tensors);
        let count = shards.len();
        let all: u64 = shards.iter().map(|shard| shard.bytes(init)).sum();
        let written = AtomicU64::new(0);
        let more = |bytes: u64| progress(written.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
        // A file is flushed while the next one is generated; one at a time, so that the disk has
        // one request at once.
        scope(|scope| {
            let mut flushing = None;
            for shard in &shards {
                let path = self.dir.join(&shard.name);
                if path.metadata().is_ok_and(|found| found.len() == shard.bytes(init)) {
                    more(shard.bytes(init));
                    continue;
                }
                let unfinished = self.unfinished(shard);
                shard.write(&unfinished, init, &more).map_err(failed("write", &unfinished))?;
                join(flushing.replace(scope.spawn(move || {
                    sync(&unfinished)?;
                    fs::rename(&unfinished, &path).map_err(failed("rename", &unfinished))
                })))?;
            }
            join(flushing)
        })?;
        let mut bytes = all;
        if count > 1 {
            bytes += self.write("model.safetensors.index.json", &index(init, &shards))?;
        }
        Ok(bytes)
    }

    /// Renames the directory to its final name. After a power cut, that name has either nothing or
    /// everything.
    pub(super) fn commit(mut self) -> Result<(), InitError> {
        sync(&self.dir)?;
        if self.target.symlink_metadata().is_ok() {
            return Err(InitError::Exists { path: self.target.clone() });
        }
        fs::rename(&self.dir, &self.target).map_err(failed("rename", &self.dir))?;
        self.committed = true;
        sync(parent(&self.target)).map(|_| ())
    }

    fn has_weights(&self) -> bool {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|end| end == "safetensors"))
    }
}

impl Drop for DraftDirectory {
    fn drop(&mut self) {
        // A failure here cannot be handled: a later start continues what stays, or reports it if it
        // is in the way.
        if !self.committed && self.has_weights() {
            return;
        }
        if !self.committed {
            drop(fs::remove_dir_all(&self.dir));
        }
        drop(fs::remove_file(&self.settings));
    }
}

type FlushThread<'scope> = std::thread::ScopedJoinHandle<'scope, Result<(), InitError>>;

fn join(flushing: Option<FlushThread<'_>>) -> Result<(), InitError> {
    match flushing.map(FlushThread::join) {
        None => Ok(()),
        Some(Ok(flushed)) => flushed,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}

impl ShardFile<'_> {
    fn bytes(&self, init: &InitSpec) -> u64 {
        let values: usize = self.tensors.iter().map(TensorSpec::values).sum();
        (8 + self.header.len() + values * init.dtype.bytes()) as u64
    }

    /// Writes header length, header and values; calls `more` with the bytes written.
    fn write(&self, path: &Path, init: &InitSpec, more: &(impl Fn(u64) + Sync)) -> io::Result<()> {
        let file = File::create(path)?;
        let head = [&(self.header.len() as u64).to_le_bytes()[..], self.header.as_bytes()].concat();
        file.write_all_at(&head, 0)?;
        more(head.len() as u64);
        let parts = self.parts(init, head.len() as u64);
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let work = || {
            let mut bytes = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                values::fill(part.tensor, part.values.clone(), init.seed, init.dtype, &mut bytes);
                file.write_all_at(&bytes, part.at).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                more(bytes.len() as u64);
            }
            Ok(())
        };
        let threads = available_parallelism().map_or(1, usize::from).min(parts.len().max(1));
        scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            others.into_iter().fold(own, |result, other| match other.join() {
                Ok(other) => result.and(other),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn parts(&self, init: &InitSpec, mut at: u64) -> Vec<TensorPart<'_>> {
        let mut parts = Vec::new();
        for tensor in self.tensors {
            for start in (0..tensor.values()).step_by(PART_VALUES) {
                let values = start..(start + PART_VALUES).min(tensor.values());
                let bytes = (values.len() * init.dtype.bytes()) as u64;
                parts.push(TensorPart { tensor, values, at });
                at += bytes;
            }
        }
        parts
    }
}

/// Padded with spaces so that values begin at a multiple of eight bytes.
fn header(init: &InitSpec, tensors: &[TensorSpec]) -> String {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.values() * init.dtype.bytes();
        let dtype = init.dtype.safetensors_name();
        let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
        start = end;
    }
    let header = json!(header).to_string();
    let padded = header.len().next_multiple_of(8);
    format!("{header:padded$}")
}

/// All files of weights.
fn planned<'a>(init: &InitSpec, tensors: &'a [TensorSpec]) -> Vec<ShardFile<'a>> {
    let parts = shards(tensors, init);
    let count = parts.len();
    let shard = |(number, tensors)| ShardFile {
        name: shard_name(number, count),
        header: header(init, tensors),
        tensors,
    };
    (1..).zip(parts).map(shard).collect()
}

/// Groups consecutive tensors within the limit; a tensor above it has a shard to itself.
fn shards<'a>(tensors: &'a [TensorSpec], init: &InitSpec) -> Vec<&'a [TensorSpec]> {
    let bytes = |tensor: &TensorSpec| (tensor.values() * init.dtype.bytes()) as u64;
    let mut shards = Vec::new();
    let mut start = 0;
    let mut size = 0;
    for (index, tensor) in tensors.iter().enumerate() {
        if index > start && size + bytes(tensor) > init.shard_bytes_max {
            shards.push(&tensors[start..index]);
            (start, size) = (index, 0);
        }
        size += bytes(tensor);
    }
    shards.push(&tensors[start..]);
    shards
}

fn shard_name(number: usize, shards: usize) -> String {
    if shards == 1 {
        "model.safetensors".into()
    } else {
        format!("model-{number:05}-of-{shards:05}.safetensors")
    }
}

fn index(init: &InitSpec, shards: &[ShardFile<'_>]) -> String {
    let placed =
        shards.iter().flat_map(|shard| shard.tensors.iter().map(move |tensor| (tensor, &shard.name)));
    let map: BTreeMap<&str, &str> =
        placed.map(|(tensor, name)| (tensor.name.as_str(), name.as_str())).collect();
    let values: usize = shards.iter().flat_map(|shard| shard.tensors.iter()).map(TensorSpec::values).sum();
    let total = values * init.dtype.bytes();
    format!("{:#}\n", json!({"metadata": {"total_size": total}, "weight_map": map}))
}

/// Flushes a file or a directory to disk; returns its size.
fn sync(path: &Path) -> Result<u64, InitError> {
    let file = File::open(path).map_err(failed("open", path))?;
    file.sync_all().map_err(failed("flush", path))?;
    Ok(file.metadata().map_err(failed("look at", path))?.len())
}

/// A path of one component is in the current directory.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> InitError + 'a {
    move |source| InitError::Write { what, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    const INIT: InitSpec = InitSpec {
        size: crate::init::ModelSize::Mini,
        seed: 3,
        dtype: crate::init::StoredType::Bfloat16,
        shard_bytes_max: 400_000,
    };

    fn tensors() -> Vec<TensorSpec> {
        let matrix = |name: &str, rows| TensorSpec {
            name: name.into(),
            shape: vec![rows, 100],
            distribution: super::super::tensors::ValueDistribution::Spread(1.0),
        };
        vec![matrix("a", 1500), matrix("b", 1900), matrix("c", 100), matrix("d", 1800)]
    }

    fn no_progress(_: u64, _: u64) {}

    #[test]
    fn an_uncommitted_draft_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = DraftDirectory::begin(&target, &INIT).unwrap();
        assert_eq!(draft.write("config.json", "{}").unwrap(), 2);
        drop(draft);
        assert_eq!(left(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn a_draft_does_not_replace_a_directory_made_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = DraftDirectory::begin(&target, &INIT).unwrap();
        fs::write(&target, "another's").unwrap();
        assert!(matches!(draft.commit(), Err(InitError::Exists { .. })));
        assert_eq!(
            (left(dir.path()), fs::read(&target).unwrap()),
            (vec!["checkpoint".into()], b"another's".to_vec())
        );
    }

    /// Complete files stay when a process is killed, partial ones are written again, and the result
    /// is the same.
    #[test]
    fn a_draft_resumes_at_its_first_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let tensors = tensors();
        let whole = DraftDirectory::begin(&target, &INIT).unwrap();
        whole.write_weights(&INIT, &tensors, &no_progress).unwrap();
        whole.commit().unwrap();
        let wanted: Vec<(String, Vec<u8>)> = files(&target);
        assert_eq!(wanted.len(), 4, "three weight files and an index");
        // Values are where the header says, in any number of parts.
        let mut whole = Vec::new();
        let header = usize::try_from(u64::from_le_bytes(wanted[1].1[..8].try_into().unwrap())).unwrap();
        let mut at = 8 + header;
        for tensor in &tensors[1..3] {
            values::fill(tensor, 0..tensor.values(), INIT.seed, INIT.dtype, &mut whole);
            assert!(wanted[1].1[at..at + whole.len()] == whole, "{}", tensor.name);
            at += whole.len();
        }
        assert_eq!(at, wanted[1].1.len());
        fs::remove_dir_all(&target).unwrap();
        // What a kill between the second file and the third leaves: the lock ends with the process.
        let draft = DraftDirectory::begin(&target, &INIT).unwrap();
        draft.write_weights(&INIT, &tensors, &no_progress).unwrap();
        let partial = draft.dir.clone();
        drop(draft);
        fs::remove_file(partial.join(&wanted[2].0)).unwrap();
        fs::write(partial.join(format!("{}.part", wanted[2].0)), "half of it").unwrap();
        let first = fs::metadata(partial.join(&wanted[0].0)).unwrap().modified().unwrap();
        let progress = std::sync::Mutex::new(Vec::new());
        let draft = DraftDirectory::begin(&target, &INIT).unwrap();
        let bytes = draft
            .write_weights(&INIT, &tensors, &|done, all| progress.lock().unwrap().push((done, all)))
            .unwrap();
        draft.commit().unwrap();
        assert!(files(&target) == wanted);
        assert_eq!(bytes, wanted.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
        assert_eq!(fs::metadata(target.join(&wanted[0].0)).unwrap().modified().unwrap(), first);
        let progress = progress.into_inner().unwrap();
        assert!(progress.iter().any(|(done, all)| done == all), "{progress:?}");
        assert_eq!(left(dir.path()), ["checkpoint"]);
    }

    #[test]
    fn a_draft_of_other_settings_or_another_process_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = DraftDirectory::begin(&target, &INIT).unwrap();
        draft.write_weights(&INIT, &tensors(), &no_progress).unwrap();
        assert!(matches!(DraftDirectory::begin(&target, &INIT).map(drop), Err(InitError::Busy { .. })));
        drop(draft);
        let other =
            DraftDirectory::begin(&target, &InitSpec { seed: 4, ..INIT }).map(drop).unwrap_err().to_string();
        assert!(other.contains("other settings") && other.contains("\"seed\":3"), "{other}");
        DraftDirectory::begin(&target, &INIT).unwrap();
    }

    fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }
}
