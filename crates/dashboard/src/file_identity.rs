//! Tells whether a file is still the one that was read, or another one took its name.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

/// Distinguishes a file from another one with the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    /// An inode number may be reused, a creation time is not; `None` if the file system has none.
    created: Option<SystemTime>,
}

impl FileIdentity {
    pub(crate) fn from_metadata(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), created: metadata.created().ok() }
    }
}
