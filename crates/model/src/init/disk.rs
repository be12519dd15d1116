//! Whether a disk holds what is to be written on it.

use std::fs;
use std::path::Path;

use rustix::fs::statvfs;

use super::InitError;

/// Bytes of a vocabulary's entry in `tokenizer.json`: 58,605 for 1,024 entries, and as much again for longer ones.
const ENTRY_BYTES: u64 = 115;
/// Bytes of index, configuration and template, and of blocks of the file system that are not full.
const SMALL_FILES_BYTES: u64 = 1 << 20;

/// Bytes beside the weights of a model with so many entries in its vocabulary: 16 MB for 131,072.
pub(super) fn other_files(vocabulary: usize) -> u64 {
    vocabulary as u64 * ENTRY_BYTES + SMALL_FILES_BYTES
}

/// Bytes as people read them.
pub(super) fn size(bytes: u64) -> String {
    if bytes < 1_000_000_000 {
        format!("{:.1} MB", bytes as f64 / 1e6)
    } else {
        format!("{:.2} GB", bytes as f64 / 1e9)
    }
}

/// A file that is to be there in the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Its length.
    pub bytes: u64,
    /// Bytes of it that are on the disk: all where it is whole, fewer where its writing was cut off, which is written anew over them.
    pub there: u64,
}

/// Bytes of weights that are whole, and bytes that are still to be found on the disk for the rest and `other` files.
pub(super) fn to_write(files: impl IntoIterator<Item = Wanted>, other: u64) -> (u64, u64) {
    let (mut whole, mut needed) = (0, other);
    for Wanted { bytes, there } in files {
        if there == bytes {
            whole += bytes;
        } else {
            needed += bytes - there.min(bytes);
        }
    }
    (whole, needed)
}

/// Refuses to begin where `free` bytes are less than what is still to be written.
pub(super) fn check(path: &Path, (there, needed): (u64, u64), free: u64) -> Result<(), InitError> {
    if needed <= free {
        return Ok(());
    }
    Err(InitError::DiskFull { path: path.into(), needed, there, free })
}

/// Bytes that an ordinary user may still write beside the files of `dir`; `None` where the file system does not say.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = statvfs(dir).ok()?;
    // Some file systems of a network say 0 of everything.
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes that a file takes on the disk; 0 of none. A file whose end was written before its middle is longer than that.
pub(super) fn taken(path: &Path) -> u64 {
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
            let wanted = |(bytes, there): &(u64, u64)| Wanted { bytes: *bytes, there: *there };
            to_write(files.iter().map(wanted).collect::<Vec<_>>(), other_files(131_072))
        };
        let other = other_files(131_072);
        let (none, half) = ([(5 * GB, 0); 5], [(5 * GB, 5 * GB), (5 * GB, 2 * GB), (5 * GB, 0)]);
        for (files, free, want) in [
            // Nothing is there.
            (&none[..], 25 * GB + other, None),
            (&none[..], 25 * GB + other - 1, Some((25 * GB + other, 0))),
            // A whole file needs nothing, a part of one what it lacks.
            (&half[..], 8 * GB + other, None),
            (&half[..], 8 * GB + other - 1, Some((8 * GB + other, 5 * GB))),
            // All are there: what is left is small.
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
            "made/12b takes 8.02 GB more on its disk and 3.00 GB are free (5.00 GB are there from an earlier start and stay); \
             free 5.02 GB, or give a path on a larger disk"
        );
        let text = check(Path::new("made"), of(&none), 0).unwrap_err().to_string();
        assert!(
            text.starts_with("made takes 25.02 GB more on its disk and 0.0 MB are free; free 25.02 GB"),
            "{text}"
        );
    }

    #[test]
    fn a_hole_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        assert_eq!(taken(&path), 0);
        let file = fs::File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        assert!(taken(&path) < 1 << 20);
        fs::write(&path, [1; 10_000]).unwrap();
        assert_eq!(taken(&path), 10_000);
        assert!(free_bytes(dir.path()).unwrap() > 0);
    }
}
