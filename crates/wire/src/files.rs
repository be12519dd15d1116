//! The files of a task on the wire: assignments name them by their hashes, and the response that
//! leases them contains each content once.

use std::collections::HashMap;

use bytes::Bytes;
use furrow_rollout::{Assignment, TaskFiles, UPLOAD_FILES_MAX, UploadFile, is_file_name};
use sha2::{Digest, Sha256};

use crate::error::{WireError, cap, known_value, unknown};
use crate::v1;

/// The contents that came with a lease, by their SHA-256.
#[derive(Debug, Clone, Default)]
pub struct FileContents(HashMap<[u8; 32], Bytes>);

impl FileContents {
    /// Hashes the contents of a response.
    pub fn new(files: Vec<Bytes>) -> Self {
        Self(files.into_iter().map(|content| (Sha256::digest(&content).into(), content)).collect())
    }

    /// The contents that some assignments name, each once.
    pub fn of<'a>(assignments: impl IntoIterator<Item = &'a Assignment>) -> Vec<Bytes> {
        let files = assignments.into_iter().flat_map(|assignment| &assignment.files.uploads);
        let distinct: HashMap<_, _> = files.map(|file| (file.sha256(), &file.content)).collect();
        distinct.into_values().cloned().collect()
    }

    /// The files of one assignment: every name is a plain file name and every content is there.
    pub(crate) fn select(
        &self,
        uploads: Vec<v1::UploadFile>,
        download_bytes_max: Option<u64>,
    ) -> Result<TaskFiles, WireError> {
        cap(uploads.len(), UPLOAD_FILES_MAX, "assignment.uploads")?;
        let one = |upload: v1::UploadFile| {
            let named = is_file_name(&upload.name).then_some(());
            known_value(named, "assignment.uploads.name", &upload.name, "the name of a file without a path")?;
            let content = <[u8; 32]>::try_from(&upload.sha256[..]).ok().and_then(|hash| self.0.get(&hash));
            let content = content.cloned().ok_or_else(|| {
                unknown("assignment.uploads.sha256", &upload.name, "the hash of a file of the response")
            })?;
            Ok(UploadFile { name: upload.name, content })
        };
        Ok(TaskFiles { uploads: uploads.into_iter().map(one).collect::<Result<_, _>>()?, download_bytes_max })
    }
}

pub(crate) fn upload_into(value: &UploadFile) -> v1::UploadFile {
    v1::UploadFile { name: value.name.clone(), sha256: value.sha256().to_vec().into() }
}
