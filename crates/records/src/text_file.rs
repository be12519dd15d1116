//! Small text files beside the tables: each appears whole or not at all.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::RecordsError;
use crate::durable::{create_durable_dir, remove, sync_dir};

/// Creates a file durably; `false` where something has its name.
pub(crate) fn create(path: &Path, text: &str) -> Result<bool, RecordsError> {
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let temp = write_temp(path, text)?;
    // A link, unlike a rename, never takes the name from a file that came meanwhile.
    let linked = std::fs::hard_link(&temp, path);
    remove(&temp)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        other => other.map_err(RecordsError::io("link (the file system must support hard links)", path))?,
    }
    // The next try must not find a name that is not durable.
    path.parent().map_or(Ok(()), sync_dir).inspect_err(|_| drop(remove(path)))?;
    Ok(true)
}

/// Replaces a file durably: a reader sees all of the old one or all of the new one.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), RecordsError> {
    let temp = write_temp(path, text)?;
    std::fs::rename(&temp, path).map_err(RecordsError::io("replace", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Reads a regular file of at most `bytes_max` bytes; `None` where it is missing, longer, no text
/// or no file.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Option<String> {
    if !path.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(bytes_max + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= bytes_max).then_some(text)
}

/// Begins with a dot, so that readers of a folder skip it. A killed process may have left one.
fn write_temp(path: &Path, text: &str) -> Result<PathBuf, RecordsError> {
    path.parent().map_or(Ok(()), create_durable_dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temp = path.with_file_name(format!(".{name}.tmp"));
    remove(&temp)?;
    let mut file = File::create_new(&temp).map_err(RecordsError::io("create", &temp))?;
    file.write_all(text.as_bytes()).map_err(RecordsError::io("write", &temp))?;
    file.sync_all().map_err(RecordsError::io("fsync", &temp))?;
    Ok(temp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs/a.toml");
        std::fs::create_dir(dir.path().join("jobs")).unwrap();
        // What a kill leaves behind is in nobody's way.
        std::fs::write(dir.path().join("jobs/.a.toml.tmp"), "half").unwrap();
        assert!(create(&path, "one").unwrap());
        assert!(!create(&path, "two").unwrap());
        assert_eq!(read(&path, 3).as_deref(), Some("one"));
        assert_eq!(read(&path, 2), None);
        replace(&path, "three").unwrap();
        assert_eq!(read(&path, 9).as_deref(), Some("three"));
        assert_eq!(std::fs::read_dir(dir.path().join("jobs")).unwrap().count(), 1);
        std::os::unix::fs::symlink("/nowhere", dir.path().join("link")).unwrap();
        assert!(!create(&dir.path().join("link"), "x").unwrap());
        assert_eq!(read(&dir.path().join("link"), 9), None);
    }
}
