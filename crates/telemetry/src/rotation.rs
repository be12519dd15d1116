//! A file of lines that is set aside when it is full: `env.jsonl` becomes `env.1.jsonl`, which was
//! `env.2.jsonl` before, and so on up to the number of files that are kept.
//!
//! Several processes may append to one file. Each notices when another one has set it aside, and a
//! lock on the file lets one of them do it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// When a file is set aside, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationConfig {
    /// Length at which the file is set aside.
    pub bytes_max: u64,
    /// Files kept beside the current one.
    pub files_kept: u32,
}

/// A file that is appended to.
#[derive(Debug)]
pub(crate) struct RotatingFile {
    path: PathBuf,
    /// Folder of the files that were set aside.
    aside: PathBuf,
    config: RotationConfig,
    file: File,
    /// Bytes after which the file is looked at again.
    unchecked: u64,
}

/// The file may be longer than its limit by so much for each process, which a look at it for each
/// line would cost more than.
const CHECK_EVERY_BYTES: u64 = 64 << 10;

/// The file of this path and those of its kind that were set aside and are there, the newest first.
pub fn kept_files(path: &Path, aside: &Path) -> impl Iterator<Item = PathBuf> {
    let current = path.to_owned();
    let aside = aside.to_owned();
    let older = (1..).map({
        let path = current.clone();
        move |number| rotated_path(&path, &aside, number)
    });
    [current].into_iter().chain(older.take_while(|path| path.exists()))
}

/// Path of a file that was set aside; 1 is the newest.
fn rotated_path(path: &Path, aside: &Path, number: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    aside.join(format!("{stem}.{number}.{extension}"))
}

impl RotatingFile {
    /// Opens the file for appending; creates it and the folders where they are missing.
    pub(crate) fn open(path: &Path, aside: &Path, config: RotationConfig) -> io::Result<Self> {
        for folder in [path.parent().unwrap_or(Path::new(".")), aside] {
            furrow_storage::create_dir(folder)?;
        }
        let file = open(path)?;
        let path = path.to_owned();
        let aside = aside.to_owned();
        Ok(Self { path, aside, config, file, unchecked: u64::MAX })
    }

    /// Appends text with one write.
    pub(crate) fn append(&mut self, text: &[u8]) -> io::Result<()> {
        if self.unchecked >= CHECK_EVERY_BYTES.min(self.config.bytes_max / 16) {
            // A file that cannot be set aside grows on: its lines are worth more.
            self.follow().and_then(|()| self.set_aside_if_full()).ok();
            self.unchecked = 0;
        }
        self.unchecked += text.len() as u64;
        self.file.write_all(text)
    }

    /// The current file, for reading its end.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Opens the file anew where another process has set it aside.
    fn follow(&mut self) -> io::Result<()> {
        if !self.is_current()? {
            self.file = open(&self.path)?;
        }
        Ok(())
    }

    fn is_current(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match self.path.symlink_metadata() {
            Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn set_aside_if_full(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() < self.config.bytes_max {
            return Ok(());
        }
        match self.file.try_lock() {
            Ok(()) => {}
            // Another process is at it.
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if self.is_current()? {
            self.shift()?;
            // Closing the old one releases the lock.
            self.file = open(&self.path)?;
        }
        Ok(())
    }

    fn shift(&self) -> io::Result<()> {
        let name = |number| rotated_path(&self.path, &self.aside, number);
        let kept = self.config.files_kept;
        remove(&name(kept.max(1)))?;
        for number in (1..kept).rev() {
            match fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if kept == 0 { fs::remove_file(&self.path) } else { fs::rename(&self.path, name(1)) }
    }
}

fn open(path: &Path) -> io::Result<File> {
    furrow_storage::open(path, OpenOptions::new().create(true).read(true).append(true))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines in the order in which they were written.
    fn lines(path: &Path, kept: u32) -> Vec<u32> {
        let folder = path.parent().unwrap();
        let old = (1..=kept).rev().map(|number| rotated_path(path, folder, number));
        let texts = old.chain([path.to_owned()]).map(|path| fs::read_to_string(path).unwrap_or_default());
        texts.collect::<String>().lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    fn line(number: u32) -> Vec<u8> {
        format!("{number:>99}\n").into_bytes()
    }

    #[test]
    fn a_full_file_is_set_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env.jsonl");
        let config = RotationConfig { bytes_max: 1_000, files_kept: 3 };
        let mut file = RotatingFile::open(&path, dir.path(), config).unwrap();
        for number in 0..200 {
            file.append(&line(number)).unwrap();
        }
        let kept = lines(&path, 3);
        assert_eq!(kept.last(), Some(&199));
        assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{kept:?}");
        assert!((30..=50).contains(&kept.len()), "{}", kept.len());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
        // A start goes on with the file that is there.
        drop(file);
        RotatingFile::open(&path, dir.path(), config).unwrap().append(&line(200)).unwrap();
        assert_eq!(lines(&path, 3).last(), Some(&200));
    }

    #[test]
    fn two_writers_lose_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env.jsonl");
        let config = RotationConfig { bytes_max: 2_000, files_kept: 100 };
        let writers: Vec<_> = (0..2)
            .map(|of| {
                let mut file = RotatingFile::open(&path, dir.path(), config).unwrap();
                std::thread::spawn(move || {
                    for number in 0..300 {
                        file.append(&line(number * 2 + of)).unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut all = lines(&path, 100);
        all.sort_unstable();
        assert_eq!(all, (0..600).collect::<Vec<_>>());
        assert!(rotated_path(&path, dir.path(), 5).exists());
    }

    #[test]
    fn nothing_is_kept_where_nothing_shall_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env.jsonl");
        let config = RotationConfig { bytes_max: 1_000, files_kept: 0 };
        let mut file = RotatingFile::open(&path, dir.path(), config).unwrap();
        (0..100).for_each(|number| file.append(&line(number)).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(lines(&path, 1).last(), Some(&99));
    }
}
