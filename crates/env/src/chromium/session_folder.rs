//! The folder of one session's files: those that it may upload, and those that it downloads.
//!
//! Session folders lie in a folder of their browser, which only this process may write. A browser
//! that begins a download creates the missing folders of its path, even of a session that ended
//! meanwhile: as another user it cannot, and as the same user it leaves what goes with the browser.
//! That folder lies beside the browser's profile and has a name of the same form, so that the next
//! worker removes what a killed one left.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use furrow_rollout::UploadFile;

use super::profile::profile_path;
use super::removal::remove_folder;
use super::user::OwnerIds;

/// Permissions for a folder that the browser reads and only its owner writes.
const READABLE: u32 = 0o755;

/// The session folders of one browser. Removed with everything in it when it is dropped.
#[derive(Debug)]
pub(super) struct SessionFolders {
    path: PathBuf,
    created: AtomicU64,
}

impl SessionFolders {
    /// Creates the folder of the browser with this index, which no other browser of this process
    /// shares.
    pub(super) fn create(browser: u64) -> io::Result<Self> {
        let mut name = profile_path(browser).into_os_string();
        name.push("-files");
        let path = PathBuf::from(name);
        remove_folder(&path);
        create_readable(&path)?;
        Ok(Self { path, created: AtomicU64::new(0) })
    }

    /// Creates the folder of a session. The browser's user may write only where downloads go: files
    /// that this process writes cannot be redirected by a link.
    pub(super) fn open(&self, owner: OwnerIds) -> io::Result<SessionFolder> {
        let index = self.created.fetch_add(1, Ordering::Relaxed);
        let folder = SessionFolder(self.path.join(index.to_string()));
        for part in [folder.0.clone(), folder.uploads(), folder.downloads()] {
            create_readable(&part)?;
        }
        if let Some((user, group)) = owner {
            chown(folder.downloads(), Some(user), Some(group))?;
        }
        Ok(folder)
    }
}

impl Drop for SessionFolders {
    fn drop(&mut self) {
        remove_folder(&self.path);
    }
}

fn create_readable(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    // A creation mode would be subject to the process's mask.
    fs::set_permissions(path, Permissions::from_mode(READABLE))
}

/// Removed with everything in it when it is dropped.
#[derive(Debug)]
pub(super) struct SessionFolder(PathBuf);

impl SessionFolder {
    /// Where the browser puts downloads.
    pub(super) fn downloads(&self) -> PathBuf {
        self.0.join("downloads")
    }

    /// Writes a file for the browser to read, unless an earlier upload did.
    pub(super) fn write(&self, file: &UploadFile) -> io::Result<PathBuf> {
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
        remove_folder(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_folder_has_its_files_once_and_leaves_nothing() {
        // No browser has this index.
        let of_browser = SessionFolders::create(u64::MAX).unwrap();
        let folder = of_browser.open(None).unwrap();
        let path = folder.0.clone();
        let file = UploadFile { name: "cv.pdf".into(), content: Bytes::from_static(b"resume") };
        let written = folder.write(&file).unwrap();
        assert_eq!(folder.write(&file).unwrap(), written);
        assert_eq!(fs::read(&written).unwrap(), b"resume");
        assert!(folder.downloads().is_dir());
        let other = of_browser.open(None).unwrap();
        assert_ne!(other.0, path);
        drop(folder);
        assert!(!path.exists() && other.0.exists());
        // A download that begins after its session ended.
        fs::create_dir_all(path.join("downloads")).unwrap();
        let all = of_browser.path.clone();
        drop(of_browser);
        assert!(!all.exists());
    }
}
