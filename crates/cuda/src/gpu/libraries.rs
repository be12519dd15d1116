//! Looks for NVIDIA's libraries in the folders that the user names.

use std::path::Path;

/// Whether a folder has a library of this name in any version.
pub(super) fn has_library(folder: &Path, name: &str) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(name))
}
