//! Writes a checkpoint directory whole or not at all: under another name first, on disk, then renamed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::tensors::Tensor;
use super::{Init, InitError, values};

/// A directory that is being filled; dropped before it is published, it is removed.
pub(super) struct Draft {
    dir: PathBuf,
    target: PathBuf,
    published: bool,
}

impl Draft {
    /// Begins a directory beside `target`, which must not exist.
    pub(super) fn begin(target: &Path) -> Result<Self, InitError> {
        if target.symlink_metadata().is_ok() {
            return Err(InitError::Exists { path: target.into() });
        }
        let name = target.file_name().ok_or_else(|| InitError::Exists { path: target.into() })?;
        let dir = target.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
        fs::create_dir(&dir).map_err(failed("create", &dir))?;
        Ok(Self { dir, target: target.into(), published: false })
    }

    /// Writes a file and waits for the disk; gives its size.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<u64, InitError> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(failed("write", &path))?;
        sync(&path)
    }

    /// Writes the weights, in one file where they fit the cap; gives the size of all files.
    pub(super) fn write_weights(&self, init: &Init, tensors: &[Tensor]) -> Result<u64, InitError> {
        let shards = shards(tensors, init);
        let names: Vec<String> = (1..=shards.len()).map(|number| shard_name(number, shards.len())).collect();
        let mut bytes = 0;
        for (name, shard) in names.iter().zip(&shards) {
            bytes += self.write_shard(name, init, shard)?;
        }
        if shards.len() > 1 {
            bytes += self.write("model.safetensors.index.json", &index(init, &names, &shards))?;
        }
        Ok(bytes)
    }

    fn write_shard(&self, name: &str, init: &Init, tensors: &[Tensor]) -> Result<u64, InitError> {
        let path = self.dir.join(name);
        write_safetensors(&path, init, tensors).map_err(failed("write", &path))?;
        sync(&path)
    }

    /// Gives the directory its name. A power cut before the end leaves nothing under that name, or everything.
    pub(super) fn publish(mut self) -> Result<(), InitError> {
        sync(&self.dir)?;
        if self.target.symlink_metadata().is_ok() {
            return Err(InitError::Exists { path: self.target.clone() });
        }
        fs::rename(&self.dir, &self.target).map_err(failed("rename", &self.dir))?;
        self.published = true;
        sync(parent(&self.target)).map(|_| ())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is left to tell; a later run begins under another name.
            drop(fs::remove_dir_all(&self.dir));
        }
    }
}

/// Header length, header, values: a tensor is drawn when it is written, so that one is in memory at a time.
fn write_safetensors(path: &Path, init: &Init, tensors: &[Tensor]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    let header = header(init, tensors);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for tensor in tensors {
        file.write_all(&values::bytes(tensor, init.seed, init.dtype))?;
    }
    file.flush()
}

/// Filled up with spaces so that values begin at a multiple of eight bytes.
fn header(init: &Init, tensors: &[Tensor]) -> String {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.values() * init.dtype.bytes();
        let dtype = init.dtype.safetensors_name();
        let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
        start = end;
    }
    let header = json!(header).to_string();
    let padded = header.len().next_multiple_of(8);
    format!("{header:padded$}")
}

/// Consecutive tensors that stay within the cap; a tensor above it has a shard to itself.
fn shards<'a>(tensors: &'a [Tensor], init: &Init) -> Vec<&'a [Tensor]> {
    let bytes = |tensor: &Tensor| (tensor.values() * init.dtype.bytes()) as u64;
    let (mut shards, mut start, mut size) = (Vec::new(), 0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        if index > start && size + bytes(tensor) > init.shard_bytes_max {
            shards.push(&tensors[start..index]);
            (start, size) = (index, 0);
        }
        size += bytes(tensor);
    }
    shards.push(&tensors[start..]);
    shards
}

fn shard_name(number: usize, shards: usize) -> String {
    if shards == 1 {
        "model.safetensors".into()
    } else {
        format!("model-{number:05}-of-{shards:05}.safetensors")
    }
}

fn index(init: &Init, names: &[String], shards: &[&[Tensor]]) -> String {
    let placed =
        names.iter().zip(shards).flat_map(|(name, shard)| shard.iter().map(move |tensor| (tensor, name)));
    let map: BTreeMap<&str, &str> =
        placed.map(|(tensor, name)| (tensor.name.as_str(), name.as_str())).collect();
    let values: usize = shards.iter().flat_map(|shard| shard.iter()).map(Tensor::values).sum();
    let total = values * init.dtype.bytes();
    format!("{:#}\n", json!({"metadata": {"total_size": total}, "weight_map": map}))
}

/// Waits until a file or a directory is on disk; gives its size.
fn sync(path: &Path) -> Result<u64, InitError> {
    let file = File::open(path).map_err(failed("open", path))?;
    file.sync_all().map_err(failed("flush", path))?;
    Ok(file.metadata().map_err(failed("look at", path))?.len())
}

/// A path of one part lies in the current directory.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> InitError + 'a {
    move |source| InitError::Write { what, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn a_draft_that_is_not_published_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = Draft::begin(&target).unwrap();
        assert_eq!(draft.write("config.json", "{}").unwrap(), 2);
        drop(draft);
        assert!(left(dir.path()).is_empty());
    }

    #[test]
    fn a_draft_does_not_replace_what_came_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("checkpoint");
        let draft = Draft::begin(&target).unwrap();
        fs::write(&target, "somebody else's").unwrap();
        assert!(matches!(draft.publish(), Err(InitError::Exists { .. })));
        assert_eq!(
            (left(dir.path()), fs::read(&target).unwrap()),
            (vec!["checkpoint".into()], b"somebody else's".to_vec())
        );
    }
}
