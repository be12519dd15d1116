//! The jobs that wrote a data set: each once, as `jobs/<SHA-256>.toml`. The footer of a file names
//! its job by this hash.
//!
//! The text comes without secrets and without paths of its machine, because a data set is shared.
//! Files of schema version 1 hold the whole job in their footers.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::schema::hex;
use crate::{RecordsError, text_file};

/// Name of the folder below the data set's.
pub(crate) const FOLDER: &str = "jobs";

/// A job file has at most 1 MiB; with all defaults written out it stays below ten times that.
const JOB_BYTES_MAX: u64 = 16 << 20;

/// The hash by which files name a job.
pub(crate) fn sha256(job_toml: &str) -> String {
    hex(&Sha256::digest(job_toml))
}

/// Path of a job below the data set's folder.
pub(crate) fn name(sha256: &str) -> String {
    format!("{FOLDER}/{sha256}.toml")
}

/// Stores a job where no earlier file did. Returns its hash.
pub(crate) fn store(data_dir: &Path, job_toml: &str) -> Result<String, RecordsError> {
    let sha256 = sha256(job_toml);
    text_file::create(&path(data_dir, &sha256), job_toml)?;
    Ok(sha256)
}

/// The job of this hash; `None` where it is missing, `Err` with its hash where it is another.
pub(crate) fn read(data_dir: &Path, sha256: &str) -> Option<Result<String, String>> {
    // The hash comes from a file, and must not lead out of the folder.
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let text = text_file::read(&path(data_dir, sha256), JOB_BYTES_MAX)?;
    let found = self::sha256(&text);
    Some(if found == sha256 { Ok(text) } else { Err(found) })
}

/// Jobs of a data set that are not what their names say. A folder that cannot be read has none.
pub fn changed_jobs(data_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join(FOLDER)).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_changed = |path: &PathBuf| {
        let name =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".toml"));
        name.is_some_and(|name| matches!(read(data_dir, name), Some(Err(_))))
    };
    let mut changed: Vec<PathBuf> = paths.filter(is_changed).collect();
    changed.sort();
    changed
}

fn path(data_dir: &Path, sha256: &str) -> PathBuf {
    data_dir.join(name(sha256))
}
