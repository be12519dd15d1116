//! Files that a command writes for people: a reader never opens half of one.

use std::path::Path;

/// Writes a temporary file and renames it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(&unfinished, path)
}
