//! Writes a checkpoint directory whole or not at all: under another name first, on disk, then renamed.
//!
//! Weights are made by all cores in parts of a few million values and written where they belong, while the file before is flushed: 16
//! cores draw some 1 GB of bfloat16 a second (a value takes 8 bytes of ChaCha12 and about 10 ns), so that the disk is what is waited for.
//! A process that is killed leaves the files that are whole; the next one of the same settings goes on behind them.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use serde_json::{Map, json};

use super::tensors::Tensor;
use super::{Init, InitError, Told, disk, values};

/// Values of one part of a tensor: 8 MB in bfloat16, so that a thousand parts share out a file of 5 GB.
const PART_VALUES: usize = if cfg!(test) { 777 } else { 4 << 20 };

/// A directory that is being filled. It is locked while it is; dropped before it is published, it stays if a file of weights is whole.
pub(super) struct Draft {
    dir: PathBuf,
    target: PathBuf,
    /// Beside the directory: which settings it is of. Its lock goes with the process.
    settings: PathBuf,
    _lock: File,
    published: bool,
}

/// A file of weights, and where its values begin.
struct Shard<'a> {
    name: String,
    header: String,
    tensors: &'a [Tensor],
}

/// A part of a tensor, and where it belongs in its file.
struct Part<'a> {
    tensor: &'a Tensor,
    values: std::ops::Range<usize>,
    at: u64,
}

impl Draft {
    /// Begins a directory beside `target`, which must not exist, or goes on with one of the same settings.
    pub(super) fn begin(target: &Path, init: &Init) -> Result<Self, InitError> {
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
        Ok(Self { dir, target: target.into(), settings, _lock: lock, published: false })
    }

    /// Writes a file and waits for the disk; gives its size.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<u64, InitError> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(failed("write", &path))?;
        sync(&path)
    }

    /// Refuses a disk that does not hold the files that are still to be written. What an earlier start left whole is not written again.
    pub(super) fn check_disk(&self, init: &Init, tensors: &[Tensor], other: u64) -> Result<(), InitError> {
        let Some(free) = disk::free_bytes(&self.dir) else { return Ok(()) };
        let wanted = |shard: &Shard<'_>| {
            let (path, bytes) = (self.dir.join(&shard.name), shard.bytes(init));
            let whole = path.metadata().is_ok_and(|found| found.len() == bytes);
            // A part is emptied before it is written again, so its bytes count as free.
            let there = if whole { bytes } else { disk::taken(&self.unfinished(shard)).min(bytes - 1) };
            disk::Wanted { bytes, there }
        };
        disk::check(&self.target, disk::to_write(planned(init, tensors).iter().map(wanted), other), free)
    }

    fn unfinished(&self, shard: &Shard<'_>) -> PathBuf {
        self.dir.join(format!("{}.part", shard.name))
    }

    /// Writes the weights, in one file where they fit the cap; gives the size of all files.
    pub(super) fn write_weights(
        &self,
        init: &Init,
        tensors: &[Tensor],
        told: &Told<'_>,
    ) -> Result<u64, InitError> {
        let shards = planned(init, tensors);
        let count = shards.len();
        let all: u64 = shards.iter().map(|shard| shard.bytes(init)).sum();
        let written = AtomicU64::new(0);
        let more = |bytes: u64| told(written.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
        // A file is flushed while the next one is drawn; one at a time, so that the disk is not asked for two things at once.
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

    /// Gives the directory its name. A power cut before the end leaves nothing under that name, or everything.
    pub(super) fn publish(mut self) -> Result<(), InitError> {
        sync(&self.dir)?;
        if self.target.symlink_metadata().is_ok() {
            return Err(InitError::Exists { path: self.target.clone() });
        }
        fs::rename(&self.dir, &self.target).map_err(failed("rename", &self.dir))?;
        self.published = true;
        sync(parent(&self.target)).map(|_| ())
    }

    fn has_weights(&self) -> bool {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|end| end == "safetensors"))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A failure here cannot be acted on: what stays is gone on with, or named when it is in the way.
        if !self.published && self.has_weights() {
            return;
        }
        if !self.published {
            drop(fs::remove_dir_all(&self.dir));
        }
        drop(fs::remove_file(&self.settings));
    }
}

type Flushing<'scope> = std::thread::ScopedJoinHandle<'scope, Result<(), InitError>>;

fn join(flushing: Option<Flushing<'_>>) -> Result<(), InitError> {
    match flushing.map(Flushing::join) {
        None => Ok(()),
        Some(Ok(flushed)) => flushed,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}

impl Shard<'_> {
    /// Its whole length.
    fn bytes(&self, init: &Init) -> u64 {
        let values: usize = self.tensors.iter().map(Tensor::values).sum();
        (8 + self.header.len() + values * init.dtype.bytes()) as u64
    }

    /// Header length, header, values; `more` hears of bytes as they are written.
    fn write(&self, path: &Path, init: &Init, more: &(impl Fn(u64) + Sync)) -> io::Result<()> {
        let file = File::create(path)?;
        let head = [&(self.header.len() as u64).to_le_bytes()[..], self.header.as_bytes()].concat();
        file.write_all_at(&head, 0)?;
        more(head.len() as u64);
        let parts = self.parts(init, head.len() as u64);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
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

    fn parts(&self, init: &Init, mut at: u64) -> Vec<Part<'_>> {
        let mut parts = Vec::new();
        for tensor in self.tensors {
            for start in (0..tensor.values()).step_by(PART_VALUES) {
                let values = start..(start + PART_VALUES).min(tensor.values());
                let bytes = (values.len() * init.dtype.bytes()) as u64;
                parts.push(Part { tensor, values, at });
                at += bytes;
            }
        }
        parts
    }
}

/// Filled up with spaces so that values begin at a multiple of eight bytes.
fn header(init: &Init, tensors: &[Tensor]) -> String {
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
fn planned<'a>(init: &Init, tensors: &'a [Tensor]) -> Vec<Shard<'a>> {
    let parts = shards(tensors, init);
    let count = parts.len();
    let shard =
        |(number, tensors)| Shard { name: shard_name(number, count), header: header(init, tensors), tensors };
    (1..).zip(parts).map(shard).collect()
}

/// Consecutive tensors that stay within the cap; a tensor above it has a shard to itself.
fn shards<'a>(tensors: &'a [Tensor], init: &Init) -> Vec<&'a [Tensor]> {
    let bytes = |tensor: &Tensor| (tensor.values() * init.dtype.bytes()) as u64;
    let (mut shards, mut start, mut size) = (Vec::new(), 0, 0);
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

fn index(init: &Init, shards: &[Shard<'_>]) -> String {
    let placed =
        shards.iter().flat_map(|shard| shard.tensors.iter().map(move |tensor| (tensor, &shard.name)));
    let map: BTreeMap<&str, &str> =
        placed.map(|(tensor, name)| (tensor.name.as_str(), name.as_str())).collect();
    let values: usize = shards.iter().flat_map(|shard| shard.tensors.iter()).map(Tensor::values).sum();
    let total = values * init.dtype.bytes();
    format!("{:#}\n", json!({"metadata": {"total_size": total}, "weight_map": map}))
}

/// Waits until a file or a directory is on disk; gives its size.
fn sync(path: &Path) -> Result<u64, InitError> {
    let file = File::open(path).map_err(failed("open", path))?;
    file.sync_all().map_err(failed("flush", path))?;
    Ok(file.metadata().map_err(failed("look at", path))?.len())
}

/// A path of one part lies in the current directory.
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

    const INIT: Init = Init {
        size: crate::init::Size::Mini,
        seed: 3,
        dtype: crate::init::StoredType::Bfloat16,
        shard_bytes_max: 400_000,
    };

    fn tensors() -> Vec<Tensor> {
        let matrix = |name: &str, rows| Tensor {
            name: name.into(),
            shape: vec![rows, 100],
            draw: super::super::tensors::Draw::Spread(1.0),
        };
        vec![matrix("a", 1500), matrix("b", 1900), matrix("c", 100), matrix("d", 1800)]
    }

    fn silent(_: u64, _: u64) {}

    #[test]
    fn a_draft_that_is_not_published_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = Draft::begin(&target, &INIT).unwrap();
        assert_eq!(draft.write("config.json", "{}").unwrap(), 2);
        drop(draft);
        assert_eq!(left(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn a_draft_does_not_replace_what_came_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = Draft::begin(&target, &INIT).unwrap();
        fs::write(&target, "another's").unwrap();
        assert!(matches!(draft.publish(), Err(InitError::Exists { .. })));
        assert_eq!(
            (left(dir.path()), fs::read(&target).unwrap()),
            (vec!["checkpoint".into()], b"another's".to_vec())
        );
    }

    /// Whole files stay when a process dies, half ones are made again, and all is as if it had not died.
    #[test]
    fn a_draft_is_gone_on_with_at_its_first_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let (target, tensors) = (dir.path().join("checkpoint"), tensors());
        let whole = Draft::begin(&target, &INIT).unwrap();
        whole.write_weights(&INIT, &tensors, &silent).unwrap();
        whole.publish().unwrap();
        let wanted: Vec<(String, Vec<u8>)> = files(&target);
        assert_eq!(wanted.len(), 4, "three files of weights and an index");
        // Values lie where the header says, in however many parts they were drawn.
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
        // What a kill between the second file and the third leaves: the lock goes with the process.
        let draft = Draft::begin(&target, &INIT).unwrap();
        draft.write_weights(&INIT, &tensors, &silent).unwrap();
        let partial = draft.dir.clone();
        drop(draft);
        fs::remove_file(partial.join(&wanted[2].0)).unwrap();
        fs::write(partial.join(format!("{}.part", wanted[2].0)), "half of it").unwrap();
        let first = fs::metadata(partial.join(&wanted[0].0)).unwrap().modified().unwrap();
        let told = std::sync::Mutex::new(Vec::new());
        let draft = Draft::begin(&target, &INIT).unwrap();
        let bytes = draft
            .write_weights(&INIT, &tensors, &|done, all| told.lock().unwrap().push((done, all)))
            .unwrap();
        draft.publish().unwrap();
        assert!(files(&target) == wanted);
        assert_eq!(bytes, wanted.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
        assert_eq!(fs::metadata(target.join(&wanted[0].0)).unwrap().modified().unwrap(), first);
        let told = told.into_inner().unwrap();
        assert!(told.iter().any(|(done, all)| done == all), "{told:?}");
        assert_eq!(left(dir.path()), ["checkpoint"]);
    }

    #[test]
    fn a_draft_of_other_settings_or_another_process_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = Draft::begin(&target, &INIT).unwrap();
        draft.write_weights(&INIT, &tensors(), &silent).unwrap();
        assert!(matches!(Draft::begin(&target, &INIT).map(drop), Err(InitError::Busy { .. })));
        drop(draft);
        let other = Draft::begin(&target, &Init { seed: 4, ..INIT }).map(drop).unwrap_err().to_string();
        assert!(other.contains("other settings") && other.contains("\"seed\":3"), "{other}");
        Draft::begin(&target, &INIT).unwrap();
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
