//! A row of a grounding set, from whichever file it comes.

use serde_json::{Map, Value};

use super::picture::{PictureFile, PictureLocation};

/// Most rows of one source; GroundUI-18K has 18,026.
pub(super) const ROWS_MAX: usize = 100_000;

/// Text of other columns is cut to this length.
pub(super) const KEPT_BYTES_MAX: usize = 4096;

/// A row as read from its file.
pub(super) struct GroundingRow {
    /// File and line or row, for problems.
    pub location: String,
    pub line: usize,
    /// All columns except the picture.
    pub fields: Map<String, Value>,
    pub picture: PictureFile,
}

/// Whether to stop reporting problems of rows: a person reads only so many.
pub(super) fn too_many(problems: &[String]) -> bool {
    problems.len() >= 50
}

/// The readers of files pass the location of a row's picture.
pub(super) fn make_row(
    location: String,
    line: usize,
    fields: Map<String, Value>,
    at: PictureLocation,
    bytes: &[u8],
) -> Result<GroundingRow, String> {
    match PictureFile::from_bytes(at, bytes) {
        Ok(picture) => Ok(GroundingRow { location, line, fields, picture }),
        Err(problem) => Err(format!("{location}: image: {problem}")),
    }
}
