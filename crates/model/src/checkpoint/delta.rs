//! A delta: full new values of some tensors, and a small manifest that says over which version they go and what each file must hash to.
//!
//! ```text
//! delta.json                  {"format": "furrow.delta", "format_version": 1, "base_version": 3,
//!                              "files": {"delta-00001.safetensors": {"bytes": 8192, "sha256": "…64 digits…"}},
//!                              "weights_sha256": "…64 digits…"}
//! delta-00001.safetensors     tensors under any name the checkpoint itself could use, each whole
//! ```
//!
//! `weights_sha256` may be left out. It is the hash of all weights after the change, as [`Checkpoint::weights_sha256`] makes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::shards::{SHARDS_MAX, Shard, Shards, is_plain};
use super::update::UpdateError;
use super::{Checkpoint, hex, layout, shown};
use crate::file::{self, FileError};
use crate::kernels::Team;

/// Name of the manifest.
pub const DELTA_MANIFEST: &str = "delta.json";
/// Largest manifest that is read: 4,096 files x 150 bytes = 0.6 MB.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// The only version of the format there is.
const FORMAT_VERSION: u32 = 1;
/// Digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// A manifest: what `delta.json` holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delta {
    /// Always `furrow.delta`.
    pub format: DeltaFormat,
    /// Of the format: 1.
    pub format_version: u32,
    /// Policy version over whose weights it goes; 0 is the checkpoint that the job names.
    pub base_version: u32,
    /// Its weight files by name, all of them in the same directory.
    pub files: BTreeMap<String, DeltaFile>,
    /// What all weights hash to afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_sha256: Option<String>,
}

/// The word that says what the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaFormat {
    /// A delta of this program.
    #[serde(rename = "furrow.delta")]
    Furrow,
}

/// One weight file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaFile {
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, 64 hexadecimal digits.
    pub sha256: String,
}

impl Delta {
    /// Reads and checks the manifest of a directory; its weight files are not looked at.
    ///
    /// # Errors
    /// When a key is missing, unknown or has a value that is not taken.
    pub fn read(dir: &Path) -> Result<Self, UpdateError> {
        let path = dir.join(DELTA_MANIFEST);
        let text = file::read(&path, MANIFEST_BYTES_MAX)?;
        let delta: Self = serde_json::from_slice(&text)
            .map_err(|source| UpdateError::Json { path: path.clone(), source })?;
        match delta.flaw() {
            None => Ok(delta),
            Some((key, value, right)) => Err(UpdateError::Key { path, key, value, right: right.into() }),
        }
    }

    /// A key, its value, and what would be right.
    fn flaw(&self) -> Option<(String, String, &'static str)> {
        if self.format_version != FORMAT_VERSION {
            let value = self.format_version.to_string();
            return Some(("format_version".into(), value, "1 is the only one that is read"));
        }
        if self.files.is_empty() || self.files.len() > SHARDS_MAX {
            return Some(("files".into(), format!("{} files", self.files.len()), "name 1 to 4096"));
        }
        if let Some(name) = self.files.keys().find(|name| !is_plain(name)) {
            return Some((
                "files".into(),
                shown(name),
                "only a plain name that ends in .safetensors, inside the directory, is read",
            ));
        }
        let is_hash =
            |text: &str| text.len() == HASH_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let hashes =
            self.files.iter().map(|(name, file)| (format!("files.{}.sha256", shown(name)), &file.sha256));
        let whole = self.weights_sha256.iter().map(|hash| ("weights_sha256".to_owned(), hash));
        let (key, value) = hashes.chain(whole).find(|(_, hash)| !is_hash(hash))?;
        Some((key, shown(value), "give the 64 hexadecimal digits of a SHA-256"))
    }
}

impl Checkpoint {
    /// This checkpoint with a delta's tensors in place of its own. `team` hashes the files.
    ///
    /// # Errors
    /// When the manifest is refused, a file is not the one it tells of, or a tensor is none of this model's. Values are looked at when they
    /// are loaded.
    pub fn with_delta(mut self, dir: &Path, team: &Team) -> Result<Self, UpdateError> {
        let delta = Delta::read(dir)?;
        refuse_unnamed(dir, &delta)?;
        let files: Vec<Shard> =
            delta.files.keys().map(|name| Shard::open(dir, name)).collect::<Result<_, _>>()?;
        check_files(dir, &files, &delta, team)?;
        let shards = Shards { files, index: None };
        let (layout, misfits) = layout::locate_some(self.config(), &shards);
        if !misfits.0.is_empty() {
            return Err(UpdateError::Misfits { dir: dir.into(), misfits });
        }
        if layout.tensors.is_empty() {
            return Err(UpdateError::Empty { dir: dir.into() });
        }
        // A table may have more rows than its configuration asks for, but never others than those in use.
        for (name, located) in &layout.tensors {
            let own = &self.layout.tensors[name].shape;
            if *own != located.shape {
                let path = dir.join(&shards.files[located.pieces[0].shard].name);
                let why =
                    format!("has the shape {:?}; that of the version it goes over is {own:?}", located.shape);
                return Err(UpdateError::Tensor { path, name: name.clone(), why });
            }
        }
        self.lay_over(shards.files, layout);
        match delta.weights_sha256 {
            None => Ok(self),
            Some(said) => {
                let found = self.weights_sha256(team);
                let same = found.eq_ignore_ascii_case(&said);
                if same { Ok(self) } else { Err(UpdateError::OtherWeights { dir: dir.into(), said, found }) }
            }
        }
    }
}

/// A weight file beside the named ones means that two deltas were mixed.
fn refuse_unnamed(dir: &Path, delta: &Delta) -> Result<(), UpdateError> {
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

/// Sizes, then hashes, as many files at a time as the team has threads.
fn check_files(dir: &Path, files: &[Shard], delta: &Delta, team: &Team) -> Result<(), UpdateError> {
    for file in files {
        let (said, found) = (delta.files[&file.name].bytes, file.map.len() as u64);
        if said != found {
            return Err(other_file(dir, file, "size", said.to_string(), found.to_string()));
        }
    }
    let mut hashes = vec![String::new(); files.len()];
    team.pieces(&mut hashes, 1, |index, hash| hash[0] = hex(&Sha256::digest(&*files[index].map)));
    let wrong = files
        .iter()
        .zip(hashes)
        .find(|(file, hash)| !delta.files[&file.name].sha256.eq_ignore_ascii_case(hash));
    wrong.map_or(Ok(()), |(file, found)| {
        Err(other_file(dir, file, "SHA-256", delta.files[&file.name].sha256.clone(), found))
    })
}

fn other_file(dir: &Path, file: &Shard, what: &'static str, said: String, found: String) -> UpdateError {
    UpdateError::OtherFile { path: dir.join(&file.name), what, said, found }
}
