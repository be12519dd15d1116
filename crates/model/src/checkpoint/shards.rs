//! The weight files of a directory: one, or several under an index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Deref;
use std::path::{Component, Path, PathBuf};

use super::displayed::displayed_name;
use super::header::{self, HeaderError, TensorEntry};
use super::map::{MAPS_MAX, MappedFile};
use crate::file::{self, FileError};

/// Name of the weight file of a checkpoint that is not sharded.
pub(super) const SINGLE: &str = "model.safetensors";
/// Name of the index of a sharded checkpoint.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Largest index that is read: 6,000 tensors x 110 bytes = 0.7 MB.
const INDEX_BYTES_MAX: u64 = 16 << 20;
/// Most shards; each stays mapped, and two versions may be open. The 12B, 24.6 GB in files of 5 GB,
/// has five.
pub(super) const SHARDS_MAX: usize = MAPS_MAX / 2;

/// Why the weight files of a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There are no weight files.
    #[error("{} holds neither {SINGLE} nor {INDEX}; give the directory of a Hugging Face checkpoint", dir.display())]
    NoWeights { dir: PathBuf },
    /// A weight file that the index does not name: the directory mixes two checkpoints.
    #[error("{} is not in the index; delete it, or write the index again", path.display())]
    Unnamed { path: PathBuf },
    /// The index is not JSON of the expected form.
    #[error("{} is not a JSON object with a `weight_map` from tensor to file", path.display())]
    NotIndex { path: PathBuf, source: serde_json::Error },
    /// The index names something that is not a file of the directory.
    #[error("{} names the file {name}; use the plain name of a .safetensors file in the directory", path.display())]
    Outside { path: PathBuf, name: String },
    /// The index names a file that does not exist.
    #[error("{} names {name}, which does not exist; copy the missing shard", path.display())]
    Absent { path: PathBuf, name: String },
    /// More files than any checkpoint has.
    #[error("{} names {files} files; at most {SHARDS_MAX} are supported", path.display())]
    TooMany { path: PathBuf, files: usize },
    /// The operating system refused to map a file.
    #[error("cannot map {} into memory", path.display())]
    Map { path: PathBuf, source: io::Error },
    /// A file was truncated, or its disk failed, while its weights were read.
    #[error(
        "{file} was cut or became unreadable while it was read; write new weights under a new name, never over published ones"
    )]
    Cut { file: String },
    /// A file is not a valid safetensors file.
    #[error("{} is not a valid safetensors file", path.display())]
    Header {
        path: PathBuf,
        /// What is wrong with it.
        source: HeaderError,
    },
}

/// All weight files of a directory, mapped, headers checked.
#[derive(Debug)]
pub(super) struct WeightFiles {
    pub(super) files: Vec<WeightFile>,
    /// The file of each tensor, according to the index.
    pub(super) index: Option<BTreeMap<String, String>>,
}

#[derive(Debug)]
pub(super) struct WeightFile {
    pub(super) name: String,
    pub(super) map: FileBytes,
    pub(super) entries: Vec<TensorEntry>,
}

/// Where the bytes of a weight file are stored.
#[derive(Debug)]
pub(super) enum FileBytes {
    Mapped(MappedFile),
    /// In memory, because they were computed.
    Made(Vec<u8>),
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Made(bytes) => bytes,
        }
    }
}

#[derive(serde::Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl WeightFiles {
    /// Refuses files of which a byte was read that they no longer have.
    pub(super) fn check_uncut(&self) -> Result<(), ShardError> {
        self.files.iter().try_for_each(WeightFile::check_uncut)
    }

    /// Opens every file and stops at the first that fails.
    pub(super) fn open(dir: &Path) -> Result<Self, ShardError> {
        let (names, index) = list(dir)?;
        let files = names.iter().map(|name| WeightFile::open(dir, name)).collect::<Result<_, _>>()?;
        Ok(Self { files, index })
    }

    /// Opens every file that can be opened, and returns the errors of the others.
    pub(super) fn survey(dir: &Path) -> (Self, Vec<ShardError>) {
        let (names, index, mut errors) = match list(dir) {
            Ok((names, index)) => (names, index, Vec::new()),
            Err(error) => (BTreeSet::new(), None, vec![error]),
        };
        let mut files = Vec::new();
        for name in &names {
            match WeightFile::open(dir, name) {
                Ok(shard) => files.push(shard),
                Err(error) => errors.push(error),
            }
        }
        (Self { files, index }, errors)
    }
}

impl WeightFile {
    /// Refuses the file if a byte was read that it no longer has.
    pub(super) fn check_uncut(&self) -> Result<(), ShardError> {
        match &self.map {
            FileBytes::Mapped(map) if map.is_damaged() => Err(ShardError::Cut { file: self.name.clone() }),
            _ => Ok(()),
        }
    }

    pub(super) fn open(dir: &Path, name: &str) -> Result<Self, ShardError> {
        let path = dir.join(name);
        let file = file::open(&path)?;
        let map = MappedFile::new(&file).map_err(|source| ShardError::Map { path: path.clone(), source })?;
        let entries = header::read(&map).map_err(|source| ShardError::Header { path, source })?;
        Ok(Self { name: name.into(), map: FileBytes::Mapped(map), entries })
    }
}

type FileListing = (BTreeSet<String>, Option<BTreeMap<String, String>>);

/// Names of the files, and the index if there is one.
fn list(dir: &Path) -> Result<FileListing, ShardError> {
    let path = dir.join(INDEX);
    let index = path.exists().then(|| read_index(&path)).transpose()?;
    let names: BTreeSet<String> = match &index {
        Some(index) => index.values().cloned().collect(),
        None if dir.join(SINGLE).exists() => BTreeSet::from([SINGLE.into()]),
        None => return Err(ShardError::NoWeights { dir: dir.into() }),
    };
    if names.len() > SHARDS_MAX {
        return Err(ShardError::TooMany { path, files: names.len() });
    }
    if let Some(name) = names.iter().find(|name| !is_plain(name)) {
        return Err(ShardError::Outside { path, name: displayed_name(name) });
    }
    if let Some(name) = names.iter().find(|name| !dir.join(name).exists()) {
        return Err(ShardError::Absent { path, name: displayed_name(name) });
    }
    refuse_unnamed(dir, &names)?;
    Ok((names, index))
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ShardError> {
    let text = file::read(path, INDEX_BYTES_MAX)?;
    let index: Result<ShardIndex, _> = serde_json::from_slice(&text);
    Ok(index.map_err(|source| ShardError::NotIndex { path: path.into(), source })?.weight_map)
}

/// Whether a name is that of a weight file in the directory itself, on any operating system.
pub(super) fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let alone = matches!((components.next(), components.next()), (Some(Component::Normal(part)), None) if part == name);
    alone && name.ends_with(".safetensors") && !name.contains(['\\', ':', '\0'])
}

/// A weight file that is not in the index means that two checkpoints were mixed; without this check
/// either half would load unnoticed.
fn refuse_unnamed(dir: &Path, names: &BTreeSet<String>) -> Result<(), ShardError> {
    let failed = |source| FileError::Read { path: dir.into(), source };
    for found in fs::read_dir(dir).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name().to_string_lossy().into_owned();
        let weights = name.ends_with(".safetensors") && (name == SINGLE || name.starts_with("model-"));
        if weights && !names.contains(&name) {
            return Err(ShardError::Unnamed { path: found.path() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_stay_inside() {
        let check = |name: &str, plain: bool| assert_eq!(is_plain(name), plain, "{name:?}");
        check("model-00001-of-00002.safetensors", true);
        check("../model.safetensors", false);
        check("/etc/model.safetensors", false);
        check("sub/model.safetensors", false);
        check("./model.safetensors", false);
        check("model.safetensors/", false);
        check("..\\model.safetensors", false);
        check("c:model.safetensors", false);
        check("model.bin", false);
        check("", false);
        check("..", false);
    }
}
