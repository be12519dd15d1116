//! Folders and names of the data set that survive a power cut.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::RecordsError;

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), RecordsError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(RecordsError::io("fsync", dir))
}

/// Creates a folder and makes its name durable; does nothing where it exists. One whose name could
/// not be synced is removed again.
pub(crate) fn create_durable_dir(dir: &Path) -> Result<(), RecordsError> {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir).map_err(RecordsError::io("create", dir))?;
    let mut above = dir.ancestors().skip(1).take(2).filter(|above| !above.as_os_str().is_empty());
    above.try_for_each(sync_dir).inspect_err(|_| drop(std::fs::remove_dir(dir)))
}

/// Removes a file; `false` where it is not there.
pub(crate) fn remove(path: &Path) -> Result<bool, RecordsError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(RecordsError::io("remove", path)(error)),
    }
}
