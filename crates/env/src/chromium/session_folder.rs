//! The folder of one session's files: those that it may upload, and those that it downloads.
//!
//! It lies beside the browsers' profiles and has a name of the same form, so that the next worker
//! removes what a killed one left.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use furrow_rollout::UploadFile;

use super::process::remove_folder;
use super::user::OwnerIds;

/// Folders created by this process in all its pools: no two sessions share one.
static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// Removed with everything in it when it is dropped.
#[derive(Debug)]
pub(super) struct SessionFolder(PathBuf);

impl SessionFolder {
    /// Creates the folder. The browser's user may write only where downloads go: files that this
    /// process writes cannot be redirected by a link.
    pub fn create(owner: OwnerIds) -> io::Result<Self> {
        let index = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("furrow-env-{}-files-{index}", std::process::id()));
        remove_folder(&path);
        fs::create_dir(&path)?;
        let folder = Self(path);
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(&folder.0, open.clone())?;
        for part in [folder.uploads(), folder.downloads()] {
            fs::create_dir(&part)?;
            fs::set_permissions(&part, open.clone())?;
        }
        if let Some((user, group)) = owner {
            chown(folder.downloads(), Some(user), Some(group))?;
        }
        Ok(folder)
    }

    /// Where the browser puts downloads.
    pub fn downloads(&self) -> PathBuf {
        self.0.join("downloads")
    }

    /// Writes a file for the browser to read, unless an earlier upload did.
    pub fn write(&self, file: &UploadFile) -> io::Result<PathBuf> {
        let path = self.uploads().join(&file.name);
        match File::create_new(&path) {
            Ok(mut created) => {
                created.set_permissions(Permissions::from_mode(0o644))?;
                created.write_all(&file.content)?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(path)
    }

    fn uploads(&self) -> PathBuf {
        self.0.join("uploads")
    }
}

impl Drop for SessionFolder {
    fn drop(&mut self) {
        remove_folder(Path::new(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_folder_has_its_files_once_and_leaves_nothing() {
        let folder = SessionFolder::create(None).unwrap();
        let path = folder.0.clone();
        let file = UploadFile { name: "cv.pdf".into(), content: Bytes::from_static(b"resume") };
        let written = folder.write(&file).unwrap();
        assert_eq!(folder.write(&file).unwrap(), written);
        assert_eq!(fs::read(&written).unwrap(), b"resume");
        assert!(folder.downloads().is_dir());
        let other = SessionFolder::create(None).unwrap();
        assert_ne!(other.0, path);
        drop(folder);
        assert!(!path.exists() && other.0.exists());
    }
}
