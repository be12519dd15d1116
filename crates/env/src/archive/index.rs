//! The index of a trajectory's archive: its lines, its name, and the names of the bodies.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{ArchiveError, io_error};

/// Most responses recorded for one trajectory; later ones are left out.
pub(crate) const EXCHANGES_MAX: usize = 20_000;

/// Longest line of an index: 64 KiB of headers and an address of the same length are more than
/// browsers accept.
const LINE_BYTES_MAX: u64 = 256 << 10;

/// The first line of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexHeader {
    /// Version of the format.
    pub furrow_archive: u32,
    pub trajectory_id: String,
    pub task_id: String,
    pub start_url: String,
    pub browser: String,
}

pub(super) const VERSION: u32 = 1;

/// One request and its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpExchange {
    /// HTTP method, such as `GET`.
    pub method: String,
    /// Address without its fragment, with secrets replaced.
    pub url: String,
    /// SHA-256 of the request's body, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
    /// Resource type as the browser names it: `Document`, `Script`, `Image`, ….
    pub resource: String,
    /// HTTP status; 0 if no response came.
    pub status: u16,
    /// Headers of the response with secrets replaced, without those about an encoding or a length
    /// that the stored body no longer has.
    pub headers: Vec<(String, String)>,
    /// SHA-256 of the body in hexadecimal, which is its name below `blobs/`. Absent if there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_sha256: Option<String>,
    /// Length of the body.
    #[serde(default)]
    pub body_bytes: u64,
    /// Why a body is not stored (`too_large`, `trajectory_full`, `stream`, `unfinished`), or the
    /// browser's reason why no response came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Reads an index line by line, with a limit on a line's length.
pub(super) struct IndexLines<'a> {
    reader: BufReader<File>,
    path: &'a Path,
    line: usize,
}

impl<'a> IndexLines<'a> {
    pub(super) fn of(file: File, path: &'a Path) -> Self {
        Self { reader: BufReader::new(file), path, line: 0 }
    }

    pub(super) fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, ArchiveError> {
        self.line += 1;
        let mut text = String::new();
        let mut capped = (&mut self.reader).take(LINE_BYTES_MAX);
        let read = capped.read_line(&mut text);
        let length = read.map_err(|source| io_error(self.path, "cannot be read", source))?;
        if length == 0 {
            return Ok(None);
        }
        if !text.ends_with('\n') {
            return Err(self.line_error("the line is cut off or too long"));
        }
        serde_json::from_str(&text).map(Some).map_err(|error| self.line_error(error.to_string()))
    }

    pub(super) fn line_error(&self, what: impl Into<String>) -> ArchiveError {
        ArchiveError::Line { path: self.path.to_owned(), line: self.line, what: what.into() }
    }
}

pub(super) fn index_path(folder: &Path, trajectory: &str) -> PathBuf {
    folder.join(format!("{trajectory}.jsonl"))
}

pub(super) fn unfinished_path(folder: &Path, trajectory: &str) -> PathBuf {
    folder.join(format!("{trajectory}.jsonl.part"))
}

/// The name is a hash that was validated or computed by this program.
pub(super) fn blob_path(folder: &Path, sha256: &str) -> PathBuf {
    folder.join("blobs").join(&sha256[..2]).join(sha256)
}

pub(super) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
