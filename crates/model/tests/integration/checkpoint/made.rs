//! Checkpoints for tests: an oracle checkpoint, loaded, changed, and written to a directory of its
//! own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Directory of an oracle checkpoint: `oracle/dense`.
pub(super) fn oracle(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(case)
}

/// A checkpoint in memory.
#[derive(Clone)]
pub(super) struct MadeCheckpoint {
    pub config: Value,
    pub tensors: BTreeMap<String, StoredTensor>,
}

/// A tensor as stored in a file.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct StoredTensor {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl MadeCheckpoint {
    /// Loads an oracle checkpoint.
    pub(super) fn of(case: &str) -> Self {
        let dir = oracle(case);
        let config = fs::read_to_string(dir.join("config.json"))
            .unwrap()
            .replace("Infinity\n", "{\"__float__\": \"Infinity\"}\n");
        let mut tensors = BTreeMap::new();
        for file in fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()) {
            let name = file.file_name().unwrap().to_str().unwrap();
            if name.starts_with("model") && name.ends_with(".safetensors") {
                take_apart(&fs::read(&file).unwrap(), &mut tensors);
            }
        }
        Self { config: serde_json::from_str(&config).unwrap(), tensors }
    }

    pub(super) fn rename(mut self, name: impl Fn(&str) -> String) -> Self {
        self.tensors = self.tensors.into_iter().map(|(old, tensor)| (name(&old), tensor)).collect();
        self
    }

    pub(super) fn edited(mut self, edit: impl Fn(&mut Self)) -> Self {
        edit(&mut self);
        self
    }

    pub(super) fn tensor(&mut self, name: &str) -> &mut StoredTensor {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(super) fn write(&self) -> TempDir {
        let dir = self.write_config();
        fs::write(dir.path().join("model.safetensors"), put_together(self.tensors.iter())).unwrap();
        dir
    }

    /// Writes two shards and their index.
    pub(super) fn write_sharded(&self) -> TempDir {
        let dir = self.write_config();
        let mut map = serde_json::Map::new();
        for shard in 0..2 {
            let name = format!("model-{:05}-of-00002.safetensors", shard + 1);
            let part = || {
                self.tensors.iter().enumerate().filter(|(at, _)| at % 2 == shard).map(|(_, tensor)| tensor)
            };
            part().for_each(|(tensor, _)| drop(map.insert(tensor.clone(), json!(name))));
            fs::write(dir.path().join(&name), put_together(part())).unwrap();
        }
        let index = json!({"metadata": {}, "weight_map": map});
        fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        dir
    }

    fn write_config(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        dir
    }
}

impl StoredTensor {
    pub(super) fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: "F32".into(), shape: shape.into(), bytes }
    }

    /// Rows `rows` of the tensor.
    pub(super) fn rows(&self, rows: std::ops::Range<usize>) -> Self {
        let len = self.bytes.len() / self.shape[0];
        let shape = std::iter::once(rows.len()).chain(self.shape[1..].iter().copied()).collect();
        Self { shape, bytes: self.bytes[rows.start * len..rows.end * len].into(), ..self.clone() }
    }
}

fn take_apart(file: &[u8], tensors: &mut BTreeMap<String, StoredTensor>) {
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&file[8..data]).unwrap();
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let [start, end] = [0, 1].map(|at| data + entry["data_offsets"][at].as_u64().unwrap() as usize);
        let shape =
            entry["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
        let dtype = entry["dtype"].as_str().unwrap().into();
        tensors.insert(name.clone(), StoredTensor { dtype, shape, bytes: file[start..end].into() });
    }
}

/// Serialises tensors to the bytes of a file.
pub(super) fn put_together<'a>(tensors: impl Iterator<Item = (&'a String, &'a StoredTensor)>) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry =
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// The bytes of a file with this header, padded as writers pad it.
pub(super) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let padded = header.len().next_multiple_of(8);
    let mut file = (padded as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(8 + padded, b' ');
    file.extend_from_slice(data);
    file
}
