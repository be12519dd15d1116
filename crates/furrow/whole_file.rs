//! Files that a command writes for people: a reader never opens half of one.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

/// Writes a temporary file and renames it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, |file| file.write_all(bytes)).map(drop)
}

/// The same for a file that is made while it is written; returns its length. One that could not be
/// made leaves nothing behind.
pub(crate) fn write_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<u64, E> {
    let unfinished = path.with_extension("unfinished");
    let length = fill_new(&unfinished, fill).and_then(|length| {
        std::fs::rename(&unfinished, path)?;
        Ok(length)
    });
    if length.is_err() {
        // The error above is the one to report; a file that was never made cannot be removed.
        std::fs::remove_file(&unfinished).ok();
    }
    length
}

fn fill_new<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut file = BufWriter::new(File::create(path)?);
    fill(&mut file)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(file.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_could_not_be_made_leaves_the_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gif");
        let length = write_with(&path, |file| file.write_all(b"whole")).unwrap();
        assert_eq!(length, 5);
        let error = write_with(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(error.unwrap_err().to_string(), "no more");
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
        assert!(write(&dir.path().join("none/a.html"), b"x").is_err());
    }
}
