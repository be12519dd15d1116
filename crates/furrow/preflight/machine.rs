//! The directory and the disk of a run.

use std::fs;
use std::path::Path;

use crate::output;

/// Why a directory cannot be made or written; `None` if it can. Makes a directory beside it and
/// removes it again, because permissions alone do not show a read-only disk.
pub(super) fn directory_problem(dir: &Path) -> Option<String> {
    let existing = dir.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    let key = "run.output_dir, run.name";
    if !existing.is_dir() {
        return Some(format!(
            "{key}: {} cannot be made: {} is not a directory; choose another output_dir",
            dir.display(),
            existing.display()
        ));
    }
    let probe = existing.join(format!(".furrow-check-{}", std::process::id()));
    match fs::create_dir(&probe) {
        Ok(()) => {
            // It is empty; if it cannot be removed, the next check reports it.
            fs::remove_dir(&probe).ok();
            None
        }
        Err(why) => Some(format!(
            "{key}: {} cannot be made: nothing can be written to {} ({why}); choose another output_dir",
            dir.display(),
            existing.display()
        )),
    }
}

/// Whether the disk of a run is below its reserve already; `None` if it is not.
pub(super) fn disk_problem(dir: &Path, reserve_bytes: u64) -> Option<String> {
    let free = furrow_storage::free_bytes(dir).ok()?;
    (free < reserve_bytes).then(|| {
        format!(
            "records.disk_reserve_bytes: {} are free on the disk of {}, less than the reserve of {}; no \
             trajectory would start: free space, lower the reserve, or choose another run.output_dir",
            output::bytes(free),
            dir.display(),
            output::bytes(reserve_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_made_is_named_and_nothing_stays() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(directory_problem(&folder.path().join("runs/new")), None);
        assert_eq!(directory_problem(folder.path()), None);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let problem = directory_problem(&file.join("runs/new")).unwrap();
        assert!(problem.contains("is not a directory") && problem.contains("run.output_dir"), "{problem}");
        let problem = directory_problem(Path::new("/proc/runs/new")).unwrap();
        assert!(problem.contains("/proc/runs/new cannot be made"), "{problem}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_disk_below_its_reserve_is_named_in_units_of_people() {
        assert_eq!(disk_problem(Path::new("/tmp/none/yet"), 1), None);
        let problem = disk_problem(Path::new("/tmp/none/yet"), u64::MAX).unwrap();
        assert!(problem.contains("records.disk_reserve_bytes") && problem.contains("GB"), "{problem}");
    }
}
