//! The keys of a task's line that allow files.

use std::path::{Path, PathBuf};

use furrow_rollout::UPLOAD_FILES_MAX;
use serde_json::Value;

use crate::fields::JsonFields;

/// Most bytes of all downloads where a task says `true`.
const DOWNLOAD_BYTES: u64 = 16 << 20;

/// Most bytes that a task may allow its downloads: each session of a worker may use as many.
const DOWNLOAD_BYTES_MAX: u64 = 256 << 20;

/// What a line says of files.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct FileKeys {
    /// Paths below the folder, as written.
    pub(crate) files: Vec<String>,
    /// The folder, where it is not the source's own.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) download_bytes_max: Option<u64>,
}

impl FileKeys {
    /// Keys: `files`, paths below the suite's or the site's folder; `downloads`, true or a number
    /// of bytes.
    pub(crate) fn read(fields: &mut JsonFields) -> Self {
        let files = fields.texts("files", UPLOAD_FILES_MAX, 1024).unwrap_or_default();
        let download_bytes_max = match fields.value("downloads") {
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(DOWNLOAD_BYTES),
            Some(_) => fields.integer("downloads", 1..=DOWNLOAD_BYTES_MAX),
        };
        Self { files, folder: None, download_bytes_max }
    }

    /// The same keys with paths below this folder.
    pub(crate) fn below(&self, folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()), ..self.clone() }
    }
}
