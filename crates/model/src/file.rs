//! Reads small files of a checkpoint directory, with a limit on their size that is checked before
//! reading.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A directory, a pipe or a device.
    #[error("{} is not a regular file; replace it by the checkpoint's file", path.display())]
    NotRegular { path: PathBuf },
    /// Larger than the limit.
    #[error("{} has {bytes} bytes; at most {max} are accepted for this file", path.display())]
    TooLarge { path: PathBuf, bytes: u64, max: u64 },
}

/// Reads the whole of a regular file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // One byte more than the limit, so that a file that grows meanwhile is detected as well.
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| FileError::Read { path: path.into(), source })?;
    match bytes.len() as u64 {
        read if read > max => {
            let bytes = path.metadata().map_or(read, |metadata| metadata.len().max(read));
            Err(FileError::TooLarge { path: path.into(), bytes, max })
        }
        _ => Ok(bytes),
    }
}

/// Opens a regular file. Checks the kind first, because opening a pipe would wait for a writer.
pub(crate) fn open(path: &Path) -> Result<File, FileError> {
    let failed = |source| FileError::Read { path: path.into(), source };
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(FileError::NotRegular { path: path.into() });
    }
    File::open(path).map_err(failed)
}
