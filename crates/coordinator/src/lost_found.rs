//! `<run>/lost+found/`: what a start could not account for, kept and never removed.
//!
//! What belongs to no shard, what a disk damaged, a manifest commit that cannot be read: each is
//! moved into the folder of this start (or copied, where the run continues with a part of it), and
//! `index.jsonl` records where it came from and why. `furrow doctor --run` lists it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable::{DurableError, make_durable_dir, sync_dir};

/// Name of the folder below a run directory.
const FOLDER: &str = "lost+found";
/// The index of the folder, one JSON object per line.
const INDEX: &str = "index.jsonl";
/// Most entries. A healthy run has none; a thousand means that another run's files were copied
/// here.
const ENTRIES_MAX: usize = 1_000;
/// Most bytes of copies; moves do not count.
const COPIED_BYTES_MAX: u64 = 1 << 30;
/// Bytes that are copied at once.
const COPY_PIECE_BYTES: usize = 64 << 10;
/// Most bytes of the index: a thousand entries of two paths and a sentence.
const INDEX_BYTES_MAX: u64 = 4 << 20;

/// The folder, and what this start adds to it.
#[derive(Debug)]
pub(crate) struct LostFound {
    run_dir: PathBuf,
    /// The folder of this start or scoring, below the run directory: no other one uses it.
    folder: PathBuf,
    usage: Option<FolderUsage>,
}

/// Contents of the folder before this start added to it.
#[derive(Debug, Clone, Copy)]
struct FolderUsage {
    entries: usize,
    copied_bytes: u64,
}

/// An entry of `lost+found/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutAside {
    /// Where it was, below the run directory.
    pub from: PathBuf,
    /// Where it is now, below the run directory.
    pub kept_as: PathBuf,
    /// Why it was moved or copied.
    pub why: String,
    /// Its length when it was copied; `None` when it was moved and no longer exists at `from`.
    pub copied_bytes: Option<u64>,
}

/// Why something could not be moved or copied. It stays where it was.
#[derive(Debug, thiserror::Error)]
pub enum LostFoundError {
    /// A file operation failed.
    #[error("cannot move or copy to lost+found")]
    File(#[from] DurableError),
    /// The folder is full.
    #[error(
        "{folder} is full ({contents}): list it with `furrow doctor --run`, remove what you do not need and \
         its lines in {INDEX}, and start again; {path} was not moved"
    )]
    Full {
        folder: PathBuf,
        contents: String,
        /// What did not fit.
        path: PathBuf,
    },
}

impl LostFound {
    /// For the `epoch`th start of a run. Creates nothing before the first entry.
    pub(crate) fn of_start(run_dir: &Path, epoch: u64) -> Self {
        Self::named(run_dir, &format!("start-{epoch:06}"))
    }

    /// For a scoring that began at this time, in microseconds since the Unix epoch.
    pub(crate) fn of_scoring(run_dir: &Path, at_micros: i64) -> Self {
        Self::named(run_dir, &format!("score-{at_micros}"))
    }

    fn named(run_dir: &Path, name: &str) -> Self {
        Self { run_dir: run_dir.to_owned(), folder: Path::new(FOLDER).join(name), usage: None }
    }

    /// Checks that this many more entries fit, and that every folder and file on the way is this
    /// run's own. Changes nothing: a start checks before it moves the first entry. `first` is one
    /// of the entries.
    pub(crate) fn check_capacity(&self, entries: usize, first: &Path) -> Result<(), LostFoundError> {
        for folder in [Path::new(FOLDER), &self.folder] {
            let folder = self.run_dir.join(folder);
            furrow_storage::check_dir(&folder).map_err(DurableError::on("use", &folder))?;
        }
        let index = self.run_dir.join(FOLDER).join(INDEX);
        furrow_storage::check_file(&index).map_err(DurableError::on("use", &index))?;
        let usage = FolderUsage::of(&self.run_dir)?;
        if usage.entries.saturating_add(entries) > ENTRIES_MAX {
            let contents =
                format!("{} of at most {ENTRIES_MAX} entries, and {entries} more to add", usage.entries);
            return Err(self.full(contents, first));
        }
        Ok(())
    }

    /// Moves a file or a folder out of the run directory's tree. Returns its new path.
    pub(crate) fn take(&mut self, path: &Path, why: &str) -> Result<PathBuf, LostFoundError> {
        let entry = self.entry(path, why, None)?;
        let to = self.run_dir.join(&entry.kept_as);
        self.record(&entry)?;
        fs::rename(path, &to).map_err(DurableError::on("move to lost+found", path))?;
        [to.parent(), path.parent()].into_iter().flatten().try_for_each(sync_dir)?;
        Ok(report(entry))
    }

    /// Copies a file durably; the original stays. Returns the path of the copy.
    pub(crate) fn copy(&mut self, path: &Path, why: &str) -> Result<PathBuf, LostFoundError> {
        let failed = |operation| move |error| LostFoundError::from(DurableError::on(operation, path)(error));
        let bytes = fs::symlink_metadata(path).map_err(failed("measure"))?.len();
        let entry = self.entry(path, why, Some(bytes))?;
        let to = self.run_dir.join(&entry.kept_as);
        let mut from = furrow_storage::open(path, OpenOptions::new().read(true)).map_err(failed("open"))?;
        self.record(&entry)?;
        // The name is free: `entry` numbers repeated names.
        let mut copy = furrow_storage::create(&to).map_err(DurableError::on("create", &to))?;
        copy_readable(&mut from, &mut copy, path).map_err(DurableError::on("write to", &to))?;
        copy.sync_all().map_err(DurableError::on("sync", &to))?;
        to.parent().into_iter().try_for_each(sync_dir)?;
        Ok(report(entry))
    }

    fn entry(
        &mut self,
        path: &Path,
        why: &str,
        copied_bytes: Option<u64>,
    ) -> Result<PutAside, LostFoundError> {
        self.reserve_entry(path, copied_bytes)?;
        let from = path.strip_prefix(&self.run_dir).unwrap_or(path);
        // No component leads upwards: a path outside the run directory keeps its names below the
        // folder.
        let below: PathBuf = from.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let from = in_utf8(from);
        let below = in_utf8(&below);
        let mut kept_as = self.folder.join(&below);
        // One start may move the same name twice: a commit and its successor, for example.
        let mut copies = 1;
        while self.run_dir.join(&kept_as).symlink_metadata().is_ok() {
            copies += 1;
            let name = below.file_name().unwrap_or_default().to_string_lossy();
            kept_as = self.folder.join(below.with_file_name(format!("{name}.{copies}")));
        }
        Ok(PutAside { from, kept_as, why: why.to_owned(), copied_bytes })
    }

    fn reserve_entry(&mut self, path: &Path, copied_bytes: Option<u64>) -> Result<(), LostFoundError> {
        let folder = self.run_dir.join(FOLDER);
        furrow_storage::check_dir(&folder).map_err(DurableError::on("use", &folder))?;
        let usage = match self.usage {
            Some(usage) => usage,
            None => FolderUsage::of(&self.run_dir)?,
        };
        let more = FolderUsage {
            entries: usage.entries + 1,
            copied_bytes: usage.copied_bytes.saturating_add(copied_bytes.unwrap_or(0)),
        };
        if more.entries > ENTRIES_MAX || more.copied_bytes > COPIED_BYTES_MAX {
            let contents = format!(
                "{} of at most {ENTRIES_MAX} entries, {} of at most {COPIED_BYTES_MAX} bytes of copies",
                usage.entries, usage.copied_bytes
            );
            return Err(self.full(contents, path));
        }
        self.usage = Some(more);
        Ok(())
    }

    fn full(&self, contents: String, path: &Path) -> LostFoundError {
        LostFoundError::Full { folder: self.run_dir.join(FOLDER), contents, path: path.to_owned() }
    }

    /// The index comes first: after a crash in between, a line describes something that was not
    /// moved.
    fn record(&self, entry: &PutAside) -> Result<(), LostFoundError> {
        // Each folder on the way must be this run's own: a link would lead out of the run
        // directory.
        let above: Vec<&Path> = entry.kept_as.ancestors().skip(1).collect();
        for folder in above.iter().rev().map(|below| self.run_dir.join(below)).skip(1) {
            furrow_storage::check_dir(&folder).map_err(DurableError::on("use", &folder))?;
            make_durable_dir(&folder)?;
        }
        let path = self.run_dir.join(FOLDER).join(INDEX);
        let line = serde_json::to_string(entry).unwrap_or_default();
        let mut file = furrow_storage::open(&path, OpenOptions::new().read(true).append(true).create(true))
            .map_err(DurableError::on("open", &path))?;
        // A kill may have cut the last line: the next one must not become part of it.
        ends_a_line(&mut file)
            .map(|ends| if ends { "" } else { "\n" })
            .and_then(|before| file.write_all(format!("{before}{line}\n").as_bytes()))
            .and_then(|()| file.sync_all())
            .map_err(DurableError::on("write to", &path))?;
        Ok(sync_dir(&self.run_dir.join(FOLDER))?)
    }
}

/// Copies a file, or as much of it as the disk can read.
///
/// # Errors
/// Only when the copy cannot be written: what follows may cut the original.
fn copy_readable(from: &mut fs::File, copy: &mut fs::File, path: &Path) -> io::Result<()> {
    let mut piece = vec![0; COPY_PIECE_BYTES];
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "copied only a part of a file to lost+found");
                return Ok(());
            }
        };
        copy.write_all(&piece[..read])?;
    }
}

fn ends_a_line(file: &mut fs::File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Names that JSON can hold: what is not UTF-8 becomes U+FFFD, also in the folder, so that the
/// index matches it.
fn in_utf8(path: &Path) -> PathBuf {
    PathBuf::from(path.to_string_lossy().into_owned())
}

/// Logs the entry and returns its path.
fn report(entry: PutAside) -> PathBuf {
    let PutAside { from, kept_as, why, .. } = entry;
    tracing::warn!(from = %from.display(), kept_as = %kept_as.display(), %why, "kept in lost+found");
    kept_as
}

impl FolderUsage {
    fn of(run_dir: &Path) -> Result<Self, LostFoundError> {
        let path = run_dir.join(FOLDER).join(INDEX);
        let entries = lost_and_found(run_dir).map_err(DurableError::on("read", &path))?;
        let copied_bytes = entries.iter().filter_map(|entry| entry.copied_bytes).sum();
        Ok(Self { entries: entries.len(), copied_bytes })
    }
}

/// What starts of a run moved or copied to `lost+found/` and is still there, in order.
///
/// # Errors
/// Fails when the index cannot be read. Lines that are not entries are skipped.
pub fn lost_and_found(run_dir: &Path) -> io::Result<Vec<PutAside>> {
    let index = match furrow_storage::read(&run_dir.join(FOLDER).join(INDEX), INDEX_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut entries = Vec::new();
    for line in index.split(|byte| *byte == b'\n') {
        let Ok(entry) = serde_json::from_slice::<PutAside>(line) else { continue };
        // The index is a file like any other: a name in it may point anywhere, and only names
        // inside the folder are listed.
        let stays = entry.kept_as.components().all(|part| matches!(part, Component::Normal(_)));
        if stays && run_dir.join(&entry.kept_as).symlink_metadata().is_ok() {
            entries.push(entry);
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, *name).unwrap();
        }
        dir
    }

    #[test]
    fn what_is_put_aside_is_listed_until_it_is_taken_away() {
        let dir = run_with(&["data/steps/notes.txt", "spool/a.spool"]);
        let mut lost = LostFound::of_start(dir.path(), 3);
        let notes = lost.take(&dir.path().join("data/steps/notes.txt"), "it belongs to no shard").unwrap();
        let spool = lost.copy(&dir.path().join("spool/a.spool"), "damaged").unwrap();
        assert_eq!(notes, Path::new("lost+found/start-000003/data/steps/notes.txt"));
        assert_eq!(fs::read_to_string(dir.path().join(&notes)).unwrap(), "data/steps/notes.txt");
        assert!(!dir.path().join("data/steps/notes.txt").exists());
        assert!(dir.path().join("spool/a.spool").exists());
        let listed = lost_and_found(dir.path()).unwrap();
        assert_eq!(listed.iter().map(|entry| &entry.kept_as).collect::<Vec<_>>(), [&notes, &spool]);
        assert_eq!(listed[1].copied_bytes, Some(13));
        fs::remove_file(dir.path().join(&notes)).unwrap();
        assert_eq!(lost_and_found(dir.path()).unwrap().len(), 1);
    }

    /// The caller cuts the original next, so a copy that does not fit is an error.
    #[test]
    fn a_copy_that_does_not_fit_is_no_copy() {
        let test = "lost_found::tests::a_copy_that_does_not_fit_is_no_copy";
        crate::small_disk::on_small_disk(test, |disk| {
            if crate::small_disk::is_limited() {
                return;
            }
            fs::create_dir(disk.join("spool")).unwrap();
            let path = disk.join("spool/a.spool");
            fs::write(&path, vec![7; 1 << 20]).unwrap();
            let free = crate::disk::free_bytes(disk).unwrap() as usize;
            fs::write(disk.join("filler"), vec![0; free - (300 << 10)]).unwrap();
            let copied = LostFound::of_start(disk, 1).copy(&path, "damaged");
            assert!(matches!(copied, Err(LostFoundError::File(_))), "{copied:?}");
            fs::remove_file(disk.join("filler")).unwrap();
            let kept = LostFound::of_start(disk, 2).copy(&path, "damaged").unwrap();
            assert_eq!(fs::read(disk.join(kept)).unwrap(), vec![7; 1 << 20]);
        });
    }

    #[test]
    fn the_same_name_twice_is_two_entries() {
        let dir = run_with(&["spool/a.spool"]);
        let mut lost = LostFound::of_start(dir.path(), 1);
        let path = dir.path().join("spool/a.spool");
        let first = lost.copy(&path, "x").unwrap();
        let second = lost.copy(&path, "x").unwrap();
        assert_ne!(first, second);
        assert_eq!(lost_and_found(dir.path()).unwrap().len(), 2);
    }

    #[test]
    fn a_full_folder_is_reported_and_nothing_is_moved() {
        let dir = run_with(&["data/steps/one"]);
        let mut lost = LostFound::of_start(dir.path(), 1);
        lost.usage = Some(FolderUsage { entries: ENTRIES_MAX, copied_bytes: 0 });
        let path = dir.path().join("data/steps/one");
        let why = lost.take(&path, "x").unwrap_err().to_string();
        assert!(why.contains("is full (1000 of at most 1000 entries"), "{why}");
        assert!(path.exists());
    }

    #[test]
    fn an_index_that_a_kill_cut_takes_the_next_entry_on_a_line_of_its_own() {
        let dir = run_with(&["data/steps/one", "data/steps/two"]);
        let mut lost = LostFound::of_start(dir.path(), 1);
        lost.take(&dir.path().join("data/steps/one"), "x").unwrap();
        let index = dir.path().join("lost+found/index.jsonl");
        let whole = fs::read(&index).unwrap();
        fs::write(&index, [&whole, &whole[..20]].concat()).unwrap();
        lost.take(&dir.path().join("data/steps/two"), "x").unwrap();
        assert_eq!(lost_and_found(dir.path()).unwrap().len(), 2);
    }

    #[test]
    fn a_name_that_is_no_text_is_kept_and_listed() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = run_with(&["data/steps/one"]);
        let path = dir.path().join("data/steps").join(std::ffi::OsStr::from_bytes(b"a\xff"));
        fs::write(&path, "kept").unwrap();
        let kept = LostFound::of_start(dir.path(), 1).take(&path, "x").unwrap();
        assert_eq!(lost_and_found(dir.path()).unwrap()[0].kept_as, kept);
        assert_eq!(fs::read_to_string(dir.path().join(kept)).unwrap(), "kept");
    }

    #[test]
    fn capacity_is_checked_before_the_first_entry_is_moved() {
        let dir = run_with(&["data/steps/one"]);
        let lost = LostFound::of_start(dir.path(), 1);
        let path = dir.path().join("data/steps/one");
        lost.check_capacity(ENTRIES_MAX, &path).unwrap();
        let why = lost.check_capacity(ENTRIES_MAX + 1, &path).unwrap_err().to_string();
        assert!(why.contains("0 of at most 1000 entries, and 1001 more"), "{why}");
        assert!(!dir.path().join("lost+found").exists());
        fs::create_dir_all(dir.path().join("lost+found")).unwrap();
        std::os::unix::fs::symlink("elsewhere", dir.path().join("lost+found/start-000001")).unwrap();
        assert!(lost.check_capacity(1, &path).is_err());
    }

    #[test]
    fn an_index_cannot_lead_out_of_the_run() {
        let dir = run_with(&["lost+found/index.jsonl"]);
        let line = r#"{"from":"a","kept_as":"../../etc/passwd","why":"x","copied_bytes":null}"#;
        fs::write(dir.path().join("lost+found/index.jsonl"), format!("{line}\ngarbage\n")).unwrap();
        assert_eq!(lost_and_found(dir.path()).unwrap(), []);
    }

    #[test]
    fn a_folder_that_is_a_link_is_refused() {
        for link in ["lost+found", "lost+found/start-000001", "lost+found/start-000001/data/steps"] {
            let dir = run_with(&["run/data/steps/one", "elsewhere/x"]);
            let run = dir.path().join("run");
            fs::create_dir_all(run.join(link).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(dir.path().join("elsewhere"), run.join(link)).unwrap();
            let path = run.join("data/steps/one");
            assert!(LostFound::of_start(&run, 1).take(&path, "x").is_err(), "{link}");
            assert!(path.exists(), "{link}");
            assert_eq!(fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 1, "{link}");
        }
    }
}
