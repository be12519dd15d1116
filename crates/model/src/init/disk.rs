//! Checks that a disk has the space for a checkpoint.

use std::fs;
use std::path::Path;

use rustix::fs::statvfs;

use super::error::InitError;

/// Bytes of a vocabulary's entry in `tokenizer.json`: 58,605 for 1,024 entries, doubled for longer
/// entries.
const ENTRY_BYTES: u64 = 115;
/// Bytes of index, configuration and template, and of file system blocks that are partly filled.
const SMALL_FILES_BYTES: u64 = 1 << 20;

/// Bytes in addition to the weights, for a model with this many entries in its vocabulary: 16 MB
/// for 131,072.
pub(super) fn other_files(vocabulary: usize) -> u64 {
    vocabulary as u64 * ENTRY_BYTES + SMALL_FILES_BYTES
}

/// A file of the finished checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedFile {
    pub bytes: u64,
    /// Bytes of it on the disk: all if it is complete, fewer if its writing was interrupted; then
    /// it is written again over them.
    pub there: u64,
}

/// Bytes of complete weight files, and bytes that the rest and `other` files still need on the
/// disk.
pub(super) fn to_write(files: impl IntoIterator<Item = PlannedFile>, other: u64) -> (u64, u64) {
    let mut whole = 0;
    let mut needed = other;
    for PlannedFile { bytes, there } in files {
        if there == bytes {
            whole += bytes;
        } else {
            needed += bytes - there.min(bytes);
        }
    }
    (whole, needed)
}

/// Refuses to begin if `free` bytes are less than what is still to be written.
pub(super) fn check(path: &Path, (there, needed): (u64, u64), free: u64) -> Result<(), InitError> {
    if needed <= free {
        return Ok(());
    }
    Err(InitError::DiskFull { path: path.into(), needed, there, free })
}

/// Bytes that an ordinary user may still write on the file system of `dir`; `None` where the file
/// system does not report them.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = statvfs(dir).ok()?;
    // Some network file systems report 0 for everything.
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes that a file takes on the disk; 0 if it does not exist. A file whose end was written before
/// its middle is longer than that.
pub(super) fn disk_bytes_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).map_or(0, |file| file.blocks().saturating_mul(512).min(file.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_to_be_written_must_be_free() {
        const GB: u64 = 1_000_000_000;
        let of = |files: &[(u64, u64)]| {
            let wanted = |(bytes, there): &(u64, u64)| PlannedFile { bytes: *bytes, there: *there };
            to_write(files.iter().map(wanted).collect::<Vec<_>>(), other_files(131_072))
        };
        let other = other_files(131_072);
        let none = [(5 * GB, 0); 5];
        let half = [(5 * GB, 5 * GB), (5 * GB, 2 * GB), (5 * GB, 0)];
        for (files, free, want) in [
            // No files exist.
            (&none[..], 25 * GB + other, None),
            (&none[..], 25 * GB + other - 1, Some((25 * GB + other, 0))),
            // A complete file needs nothing, a partial one the rest of it.
            (&half[..], 8 * GB + other, None),
            (&half[..], 8 * GB + other - 1, Some((8 * GB + other, 5 * GB))),
            // All files exist: the rest is small.
            (&half[..1], other, None),
            (&half[..1], 0, Some((other, 5 * GB))),
        ] {
            let refused = match check(Path::new("made/12b"), of(files), free) {
                Ok(()) => None,
                Err(InitError::DiskFull { needed, there, .. }) => Some((needed, there)),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(refused, want, "{files:?} on {free} bytes");
        }
        let text = check(Path::new("made/12b"), of(&half), 3 * GB).unwrap_err().to_string();
        assert_eq!(
            text,
            "made/12b needs 8.02 GB more on its disk, but 3.00 GB are free (the 5.00 GB from an earlier start are kept); \
             free 5.02 GB, or give a path on a larger disk"
        );
        let text = check(Path::new("made"), of(&none), 0).unwrap_err().to_string();
        assert!(
            text.starts_with("made needs 25.02 GB more on its disk, but 0.0 MB are free; free 25.02 GB"),
            "{text}"
        );
    }

    #[test]
    fn a_hole_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        assert_eq!(disk_bytes_of(&path), 0);
        let file = fs::File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        assert!(disk_bytes_of(&path) < 1 << 20);
        fs::write(&path, [1; 10_000]).unwrap();
        assert_eq!(disk_bytes_of(&path), 10_000);
        assert!(free_bytes(dir.path()).unwrap() > 0);
    }
}
