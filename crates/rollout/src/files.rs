//! The files that a task's pages may take from the farm and give to it.
//!
//! They are not part of [`Task`](crate::Task), which every row of a data set repeats: an assignment
//! carries their bytes, and a record the names and hashes in the task's line.

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// What a task allows its pages beyond looking at them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFiles {
    /// Files that a policy may choose in a page's file chooser; empty denies every chooser.
    pub uploads: Vec<UploadFile>,
    /// Most bytes that all downloads of a trajectory may have; `None` denies every download.
    pub download_bytes_max: Option<u64>,
}

/// A file for a page's file chooser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadFile {
    /// The name by which a policy chooses it and which the page sees; see [`is_file_name`].
    pub name: String,
    /// At most what all files of a suite may have together, because assignments carry it.
    pub content: Bytes,
}

impl UploadFile {
    /// SHA-256 of the content.
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.content).into()
    }
}

impl TaskFiles {
    /// The file with this name.
    pub fn find(&self, name: &str) -> Option<&UploadFile> {
        self.uploads.iter().find(|file| file.name == name)
    }
}

/// Longest name of a file in bytes: what Linux accepts is 255, less a margin for the browser's own
/// suffixes.
const NAME_BYTES_MAX: usize = 200;

/// Whether a text is the name of a file in one folder, without a path, a control character or a
/// leading dot.
pub fn is_file_name(text: &str) -> bool {
    let is_plain = |c: char| !c.is_control() && c != '/' && c != '\\';
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with('.') && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_file_of_one_folder() {
        let long = "n".repeat(NAME_BYTES_MAX);
        for good in ["cv.pdf", "Übersicht 2024 (1).txt", "a", "文件.txt", &long] {
            assert!(is_file_name(good), "{good:?}");
        }
        let longer = "n".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", ".", "..", ".profile", "a/b", "/a", "a\\b", "a\0b", "a\nb", &longer] {
            assert!(!is_file_name(bad), "{bad:?}");
        }
    }
}
