//! Copies files durably and by hash: a copy has its name once it is whole.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use furrow_records::hex;
use sha2::{Digest as _, Sha256};

use super::error::BackupError;
use super::list::BackupFile;
use crate::durable::{DurableError, make_durable_dir};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Whether a copy follows a link in the place of the source. Readers of a data set follow links to
/// its files, whose hashes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Refused,
    Followed,
}

/// Copies what a file holds now, unless the copy is there already. Returns `None` where the source
/// does not exist.
pub(super) fn copy_file(from: &Path, to: &Path, links: Links) -> Result<Option<BackupFile>, BackupError> {
    let failed = |operation| move |error| BackupError::from(DurableError::on(operation, from)(error));
    let source = match open_source(from, links) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed("open"))?,
    };
    // A file that grows is copied to where it ends now.
    let bytes = source.metadata().map_err(failed("measure"))?.len();
    if let Some(there) = hash_of_length(to, bytes)? {
        let now = hash(open_source(from, links).map_err(failed("open"))?.take(bytes));
        if now.map_err(failed("read"))? == there {
            return Ok(Some(there));
        }
    }
    write_copy(source.take(bytes), from, to).map(Some)
}

/// Copies a file whose hash is known, unless the copy is there already. The file is returned as it
/// was found.
pub(super) fn copy_known(
    from: &Path,
    to: &Path,
    known: &BackupFile,
) -> Result<Option<BackupFile>, BackupError> {
    if hash_of_length(to, known.bytes)?.is_some_and(|there| there == *known) {
        return Ok(Some(known.clone()));
    }
    let source = match open_source(from, Links::Followed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(DurableError::on("open", from))?,
    };
    write_copy(source, from, to).map(Some)
}

/// Length and hash of a file, not through a link; `None` without one.
pub(super) fn measure(path: &Path) -> Result<Option<BackupFile>, BackupError> {
    match furrow_storage::open_to_read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => {
            let file = other.map_err(DurableError::on("open", path))?;
            Ok(Some(hash(file).map_err(DurableError::on("read", path))?))
        }
    }
}

fn hash_of_length(path: &Path, bytes: u64) -> Result<Option<BackupFile>, BackupError> {
    if !path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == bytes) {
        return Ok(None);
    }
    measure(path)
}

fn open_source(path: &Path, links: Links) -> io::Result<File> {
    match links {
        Links::Refused => furrow_storage::open_to_read(path),
        Links::Followed => {
            let whole = fs::canonicalize(path)?;
            furrow_storage::open_to_read(&whole)
        }
    }
}

/// Writes under a temporary name, syncs and renames.
fn write_copy(mut source: impl Read, from: &Path, to: &Path) -> Result<BackupFile, BackupError> {
    if let Some(folder) = to.parent() {
        make_durable_dir(folder)?;
    }
    let part = part_of(to);
    let on_part = |operation| DurableError::on(operation, &part);
    let mut copy = furrow_storage::create(&part).map_err(on_part("create"))?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    loop {
        let read = match source.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other.map_err(DurableError::on("read", from))?,
        };
        if read == 0 {
            break;
        }
        hasher.update(&piece[..read]);
        copy.write_all(&piece[..read]).map_err(on_part("write to"))?;
        bytes += read as u64;
    }
    copy.sync_all().map_err(on_part("sync"))?;
    fs::rename(&part, to).map_err(DurableError::on("rename to", to))?;
    Ok(BackupFile { bytes, sha256: hex(&hasher.finalize()) })
}

fn part_of(to: &Path) -> PathBuf {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    to.with_file_name(format!(".{name}.part"))
}

fn hash(mut source: impl Read) -> io::Result<BackupFile> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    loop {
        match source.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                hasher.update(&piece[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(BackupFile { bytes, sha256: hex(&hasher.finalize()) })
}

/// All files below a folder by their path below it, in order, and what is no file and no folder. A
/// folder that is a link is not entered. A missing folder is empty.
pub(super) fn files_below(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DurableError> {
    let mut files = Vec::new();
    let mut others = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let dir = folder.join(&below);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(DurableError::on("list", &dir))?,
        };
        for entry in entries {
            let entry = entry.map_err(DurableError::on("list", &dir))?;
            let path = below.join(entry.file_name());
            let kind = entry.file_type().map_err(DurableError::on("inspect", &dir))?;
            match () {
                () if kind.is_dir() => folders.push(path),
                () if kind.is_file() => files.push(path),
                () => others.push(path),
            }
        }
    }
    files.sort();
    others.sort();
    Ok((files, others))
}

/// Makes the names in a folder and in all folders below it durable.
pub(super) fn sync_below(folder: &Path) -> Result<(), DurableError> {
    for entry in fs::read_dir(folder).map_err(DurableError::on("list", folder))? {
        let entry = entry.map_err(DurableError::on("list", folder))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_below(&entry.path())?;
        }
    }
    crate::durable::sync_dir(folder)
}
