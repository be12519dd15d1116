//! A delta: full new values of some tensors, and a small manifest with the base version and the
//! hash of each file.
//!
//! ```text
//! delta.json                  {"format": "furrow.delta", "format_version": 1, "base_version": 3,
//!                              "files": {
//!                                "delta-00001.safetensors": {
//!                                  "bytes": 8192, "sha256": "…64 digits…"
//!                                }
//!                              },
//!                              "weights_sha256": "…64 digits…"}
//! delta-00001.safetensors     tensors under any name the checkpoint itself could use, each whole
//! ```
//!
//! `weights_sha256` may be absent. It is the hash of all weights after the change, as
//! [`Checkpoint::weights_sha256`] computes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::displayed::{displayed_name, hex};
use super::shards::{SHARDS_MAX, WeightFile, WeightFiles, is_plain};
use super::update::{DELTA_MANIFEST, UpdateError};
use super::{Checkpoint, layout};
use crate::file::{self, FileError};
use crate::kernels::ThreadPool;

/// Largest manifest that is read: 4,096 files x 150 bytes = 0.6 MB.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// The only format version so far.
const FORMAT_VERSION: u32 = 1;
/// Digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// The manifest: the contents of `delta.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaManifest {
    pub format: DeltaFormat,
    /// Version of the format: 1.
    pub format_version: u32,
    /// Policy version that the delta applies to; 0 is the checkpoint that the job names.
    pub base_version: u32,
    /// Weight files by name, all of them in the same directory.
    pub files: BTreeMap<String, DeltaFile>,
    /// Hash of all weights after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_sha256: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaFormat {
    /// A delta of this program.
    #[serde(rename = "furrow.delta")]
    Furrow,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaFile {
    pub bytes: u64,
    /// Its SHA-256, 64 hexadecimal digits.
    pub sha256: String,
}

impl DeltaManifest {
    /// Reads and checks the manifest of a directory. Does not open its weight files.
    ///
    /// # Errors
    /// If a key is missing or unknown, or its value is not accepted.
    pub fn read(dir: &Path) -> Result<Self, UpdateError> {
        let path = dir.join(DELTA_MANIFEST);
        let text = file::read(&path, MANIFEST_BYTES_MAX)?;
        let delta: Self = serde_json::from_slice(&text)
            .map_err(|source| UpdateError::Json { path: path.clone(), source })?;
        match delta.find_problem() {
            None => Ok(delta),
            Some((key, value, right)) => Err(UpdateError::Key { path, key, value, right: right.into() }),
        }
    }

    /// A key, its value, and what it must be.
    fn find_problem(&self) -> Option<(String, String, &'static str)> {
        if self.format_version != FORMAT_VERSION {
            let value = self.format_version.to_string();
            return Some(("format_version".into(), value, "only format version 1 can be read"));
        }
        if self.files.is_empty() || self.files.len() > SHARDS_MAX {
            return Some(("files".into(), format!("{} files", self.files.len()), "name 1 to 4096"));
        }
        if let Some(name) = self.files.keys().find(|name| !is_plain(name)) {
            return Some((
                "files".into(),
                displayed_name(name),
                "give the plain name of a .safetensors file in this directory",
            ));
        }
        let is_hash =
            |text: &str| text.len() == HASH_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let hashes = self
            .files
            .iter()
            .map(|(name, file)| (format!("files.{}.sha256", displayed_name(name)), &file.sha256));
        let whole = self.weights_sha256.iter().map(|hash| ("weights_sha256".to_owned(), hash));
        let (key, value) = hashes.chain(whole).find(|(_, hash)| !is_hash(hash))?;
        Some((key, displayed_name(value), "give the 64 hexadecimal digits of a SHA-256"))
    }
}

impl Checkpoint {
    /// Replaces tensors of this checkpoint by those of a delta. `team` hashes the files.
    ///
    /// # Errors
    /// If the manifest is refused, a file differs from what it describes, or a tensor does not
    /// exist in this model. Values are checked when they are loaded.
    pub fn with_delta(mut self, dir: &Path, team: &ThreadPool) -> Result<Self, UpdateError> {
        let delta = DeltaManifest::read(dir)?;
        refuse_unnamed(dir, &delta)?;
        let files: Vec<WeightFile> =
            delta.files.keys().map(|name| WeightFile::open(dir, name)).collect::<Result<_, _>>()?;
        check_files(dir, &files, &delta, team)?;
        let shards = WeightFiles { files, index: None };
        let (layout, mismatches) = layout::locate_some(self.config(), &shards);
        if !mismatches.0.is_empty() {
            return Err(UpdateError::Mismatches { dir: dir.into(), mismatches });
        }
        if layout.tensors.is_empty() {
            return Err(UpdateError::Empty { dir: dir.into() });
        }
        // A table may have more rows than its configuration needs, but not another number than the
        // table in use.
        for (name, located) in &layout.tensors {
            let own = &self.layout.tensors[name].shape;
            if *own != located.shape {
                let path = dir.join(&shards.files[located.pieces[0].shard].name);
                let why = format!("has the shape {:?}; the base version has {own:?}", located.shape);
                return Err(UpdateError::Tensor { path, name: name.clone(), why });
            }
        }
        shards.check_uncut()?;
        self.overlay(shards.files, layout);
        match delta.weights_sha256 {
            None => Ok(self),
            Some(expected) => {
                let found = self.weights_sha256(team);
                let same = found.eq_ignore_ascii_case(&expected);
                if same {
                    Ok(self)
                } else {
                    Err(UpdateError::OtherWeights { dir: dir.into(), expected, found })
                }
            }
        }
    }
}

/// A weight file that the manifest does not name means that two deltas were mixed.
fn refuse_unnamed(dir: &Path, delta: &DeltaManifest) -> Result<(), UpdateError> {
    let failed = |source| FileError::Read { path: dir.into(), source };
    for found in fs::read_dir(dir).map_err(failed)? {
        let found: PathBuf = found.map_err(failed)?.path();
        let name = found.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".safetensors") && !delta.files.contains_key(&name) {
            return Err(UpdateError::Unnamed { path: found });
        }
    }
    Ok(())
}

/// Checks sizes, then hashes, as many files at a time as `team` has threads.
fn check_files(
    dir: &Path,
    files: &[WeightFile],
    delta: &DeltaManifest,
    team: &ThreadPool,
) -> Result<(), UpdateError> {
    for file in files {
        let expected = delta.files[&file.name].bytes;
        let found = file.map.len() as u64;
        if expected != found {
            return Err(file_mismatch(dir, file, "size", expected.to_string(), found.to_string()));
        }
    }
    let mut hashes = vec![String::new(); files.len()];
    team.pieces(&mut hashes, 1, |index, hash| hash[0] = hex(&Sha256::digest(&*files[index].map)));
    let wrong = files
        .iter()
        .zip(hashes)
        .find(|(file, hash)| !delta.files[&file.name].sha256.eq_ignore_ascii_case(hash));
    wrong.map_or(Ok(()), |(file, found)| {
        Err(file_mismatch(dir, file, "SHA-256", delta.files[&file.name].sha256.clone(), found))
    })
}

fn file_mismatch(
    dir: &Path,
    file: &WeightFile,
    what: &'static str,
    expected: String,
    found: String,
) -> UpdateError {
    UpdateError::OtherFile { path: dir.join(&file.name), what, expected, found }
}
