//! Reads the ended trajectories of a spool, for readers other than the coordinator. It changes
//! nothing and skips what is still being written.

use std::path::Path;

use furrow_rollout::{Id, Trajectory};

use super::entry::{EntryKey, SpoolEntry};
use super::error::{SpoolError, storage};
use super::files::spool_files;
use super::reader::SpoolReader;

/// Receives a trajectory, the entries of its steps, and the entry of its ending.
pub(super) type FinishedVisitor<'a> = &'a mut dyn FnMut(&Id<Trajectory>, Vec<SpoolEntry>, SpoolEntry);

/// Visits each ended trajectory in the spool `dir`, one at a time. Skips those whose file is
/// damaged or not whole, and those that are committed and removed meanwhile. A missing folder
/// counts as empty.
///
/// # Errors
/// When the folder cannot be listed.
pub fn read_finished(dir: &Path, each: FinishedVisitor<'_>) -> Result<(), SpoolError> {
    if !dir.try_exists().map_err(|error| storage("look for", dir, error))? {
        return Ok(());
    }
    for (trajectory, path) in spool_files(dir)? {
        let Ok(extent) = path.metadata().map(|file| file.len()) else { continue };
        let Ok(reader) = SpoolReader::open(dir, &trajectory, extent) else { continue };
        let entries: Result<Vec<SpoolEntry>, SpoolError> = reader.collect();
        let Ok(mut entries) = entries else { continue };
        if let Some(ending) = entries.pop_if(|entry| entry.key == EntryKey::End) {
            each(&trajectory, entries, ending);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicU64;

    use bytes::Bytes;
    use sha2::{Digest, Sha256};

    use super::super::files::{SpoolFiles, path_of};
    use super::*;

    fn entry(key: EntryKey, payload: &'static [u8]) -> SpoolEntry {
        SpoolEntry { key, digest: Sha256::digest(payload).into(), payload: Bytes::from_static(payload) }
    }

    #[test]
    fn what_ended_whole_is_read_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let id = |name: &str| Id::<Trajectory>::new(name).unwrap();
        let (mut files, _) = SpoolFiles::open(dir.path(), 8, std::sync::Arc::new(AtomicU64::new(0))).unwrap();
        for name in ["ended", "open", "torn", "damaged"] {
            files.append(&id(name), &entry(EntryKey::Step(0), b"first")).unwrap();
            files.append(&id(name), &entry(EntryKey::Step(1), b"second")).unwrap();
            if name != "open" {
                files.append(&id(name), &entry(EntryKey::End, b"end")).unwrap();
            }
        }
        files.sync().unwrap();
        let torn = path_of(dir.path(), &id("torn"));
        let whole = fs::read(&torn).unwrap();
        fs::write(&torn, &whole[..whole.len() - 1]).unwrap();
        let mut damaged = whole.clone();
        damaged[60] ^= 1;
        fs::write(path_of(dir.path(), &id("damaged")), damaged).unwrap();
        fs::write(dir.path().join("another's"), "file").unwrap();

        let mut visited = Vec::new();
        read_finished(dir.path(), &mut |id, steps, ending| {
            visited.push((id.to_string(), steps.len(), ending.payload));
        })
        .unwrap();
        assert_eq!(visited, [("ended".to_owned(), 2, Bytes::from_static(b"end"))]);
        assert_eq!(fs::metadata(&torn).unwrap().len() as usize, whole.len() - 1);
        read_finished(&dir.path().join("none"), &mut |_, _, _| panic!("no trajectory is there")).unwrap();
    }
}
