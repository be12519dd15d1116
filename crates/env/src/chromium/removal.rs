//! Removal of folders that a browser writes in.

use std::fs;
use std::path::Path;

pub(super) fn remove_folder(folder: &Path) {
    // A dying renderer may write once more; the next worker's `remove_stale_profiles` removes what
    // is left.
    for _ in 0..3 {
        if fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
    }
}
