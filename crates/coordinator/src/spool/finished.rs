//! Trajectories that have ended and wait in a spool to be published, read by others than the coordinator: nothing is changed, and what is still being written
//! is passed over.

use std::path::Path;

use furrow_rollout::{Id, Trajectory};

use super::entry::{Entry, Key};
use super::files::spool_files;
use super::reader::SpoolReader;
use super::{SpoolError, storage};

/// Takes a trajectory, the entries of its steps, and the one of its ending.
pub type Each<'a> = &'a mut dyn FnMut(&Id<Trajectory>, Vec<Entry>, Entry);

/// Hands on the steps and the ending of each trajectory in the spool `dir` that has ended, one trajectory at a time. One whose file is damaged or not whole is
/// left out, and so is one that is published and removed meanwhile; a folder that is not there holds none.
///
/// # Errors
/// When the folder cannot be listed.
pub fn finished(dir: &Path, each: Each<'_>) -> Result<(), SpoolError> {
    if !dir.try_exists().map_err(|error| storage("look for", dir, error))? {
        return Ok(());
    }
    for (trajectory, path) in spool_files(dir)? {
        let Ok(extent) = path.metadata().map(|file| file.len()) else { continue };
        let Ok(reader) = SpoolReader::open(dir, &trajectory, extent) else { continue };
        let entries: Result<Vec<Entry>, SpoolError> = reader.collect();
        let Ok(mut entries) = entries else { continue };
        if let Some(ending) = entries.pop_if(|entry| entry.key == Key::End) {
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

    fn entry(key: Key, payload: &'static [u8]) -> Entry {
        Entry { key, digest: Sha256::digest(payload).into(), payload: Bytes::from_static(payload) }
    }

    #[test]
    fn what_ended_whole_is_read_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let id = |name: &str| Id::<Trajectory>::new(name).unwrap();
        let (mut files, _) = SpoolFiles::open(dir.path(), 8, std::sync::Arc::new(AtomicU64::new(0))).unwrap();
        for name in ["ended", "open", "torn", "damaged"] {
            files.append(&id(name), &entry(Key::Step(0), b"first")).unwrap();
            files.append(&id(name), &entry(Key::Step(1), b"second")).unwrap();
            if name != "open" {
                files.append(&id(name), &entry(Key::End, b"end")).unwrap();
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

        let mut seen = Vec::new();
        finished(dir.path(), &mut |id, steps, ending| {
            seen.push((id.to_string(), steps.len(), ending.payload));
        })
        .unwrap();
        assert_eq!(seen, [("ended".to_owned(), 2, Bytes::from_static(b"end"))]);
        assert_eq!(fs::metadata(&torn).unwrap().len() as usize, whole.len() - 1);
        finished(&dir.path().join("none"), &mut |_, _, _| panic!("there is none")).unwrap();
    }
}
