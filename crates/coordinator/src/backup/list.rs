//! `backup.json`: every file of a backup with its length and hash.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::BackupError;

/// Name of the list, beside the folder of the run.
pub(super) const LIST: &str = "backup.json";
/// Present while a backup is incomplete; names the run.
pub(super) const INCOMPLETE: &str = "backup.incomplete";
/// The folder with the copy of the run directory.
pub(super) const RUN: &str = "run";

/// Raised when the layout changes.
const FORMAT: u32 = 1;
/// A million files of 200 bytes a line fit.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupList {
    format: u32,
    pub run_id: String,
    /// When the run was first opened, microseconds since the Unix epoch: tells two runs of one name
    /// apart.
    pub opened_at_micros: i64,
    /// Wall clock of the ledger's copy, microseconds since the Unix epoch.
    pub taken_at_micros: i64,
    /// Files by their path below the run directory.
    pub files: BTreeMap<String, BackupFile>,
    /// What was damaged in the run directory already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<BackupDamage>,
}

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupFile {
    pub bytes: u64,
    pub sha256: String,
}

/// Damage that a backup found in the run directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupDamage {
    /// Below the run directory.
    pub path: String,
    pub why: String,
}

/// The run of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackedUpRun {
    pub run_id: String,
    pub opened_at_micros: i64,
}

impl BackupList {
    pub(super) fn new(run: BackedUpRun, taken_at_micros: i64) -> Self {
        let BackedUpRun { run_id, opened_at_micros } = run;
        let files = BTreeMap::new();
        Self { format: FORMAT, run_id, opened_at_micros, taken_at_micros, files, damaged: Vec::new() }
    }

    /// Reads and checks the list of a backup.
    pub(super) fn read(backup: &Path) -> Result<Self, BackupError> {
        let path = backup.join(LIST);
        let refuse = |why: String| BackupError::List { path: path.clone(), why };
        let text = furrow_storage::read(&path, LIST_BYTES_MAX).map_err(|error| {
            let is_incomplete = backup.join(INCOMPLETE).exists();
            let why =
                if is_incomplete { "the backup is incomplete: repeat `furrow backup`" } else { "no backup" };
            refuse(format!("{why} ({error})"))
        })?;
        let list: Self = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
        if list.format != FORMAT {
            return Err(refuse(format!("format {}, and this furrow reads {FORMAT}", list.format)));
        }
        if let Some(name) = list.files.keys().find(|name| checked_path(name).is_none()) {
            return Err(refuse(format!("{name:?} is not a path below a run directory")));
        }
        Ok(list)
    }
}

/// The path of a listed name; `None` where it would lead out of the run directory.
pub(super) fn checked_path(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    // A name that is normalised: no "./", no "//", no trailing slash.
    let whole: PathBuf = path.components().collect();
    (is_plain && !name.is_empty() && whole.as_os_str() == name).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_below_the_run_directory_are_listed() {
        for name in ["job.toml", "data/steps/a.parquet", "lost+found/..x"] {
            assert!(checked_path(name).is_some(), "{name}");
        }
        for name in ["", "/etc/passwd", "..", "../x", "data/../../x", "./x", "a//b", "a/", "a/./b"] {
            assert!(checked_path(name).is_none(), "{name}");
        }
    }
}
