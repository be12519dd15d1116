//! Finds the tensors that a model needs in the files of a checkpoint, under any of their names.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::Dtype;

use super::mismatch::{TensorMismatch, TensorMismatches};
use super::names;
use super::shards::WeightFiles;
use super::wanted::{RequiredTensor, required_tensors};
use crate::config::Config;

/// Location of a required tensor.
#[derive(Debug)]
pub(super) struct LocatedTensor {
    pub(super) shape: Vec<usize>,
    /// One piece, or several that are consecutive by row.
    pub(super) pieces: Vec<TensorPiece>,
}

/// Bytes of one file that hold a required tensor, or some of its rows.
#[derive(Debug, Clone)]
pub(super) struct TensorPiece {
    pub(super) shard: usize,
    pub(super) entry: usize,
    pub(super) dtype: Dtype,
    pub(super) bytes: Range<usize>,
}

/// Locations of all required tensors, and the names of the others.
#[derive(Debug, Default)]
pub(super) struct TensorLayout {
    pub(super) tensors: HashMap<String, LocatedTensor>,
    /// Names in the files that belong to no part of this model.
    pub(super) ignored: Vec<String>,
}

/// Finds every tensor of a model in the files, and every mismatch.
pub(super) fn locate(config: &Config, shards: &WeightFiles) -> (TensorLayout, TensorMismatches) {
    locate_tensors(config, shards, true)
}

/// Finds those tensors of a model that the files hold, all or some, and every mismatch.
pub(super) fn locate_some(config: &Config, shards: &WeightFiles) -> (TensorLayout, TensorMismatches) {
    locate_tensors(config, shards, false)
}

fn locate_tensors(config: &Config, shards: &WeightFiles, is_whole: bool) -> (TensorLayout, TensorMismatches) {
    let experts = config.text.moe.map_or(0, |moe| moe.experts);
    let mut search = TensorSearch::over(shards, experts);
    let mut layout = TensorLayout::default();
    for wanted in required_tensors(config) {
        match search.find(&wanted) {
            Some(pieces) => {
                let rows = wanted.more_rows.then(|| search.rows(&pieces)).flatten();
                let shape = rows
                    .into_iter()
                    .chain(wanted.shape.iter().copied().skip(usize::from(rows.is_some())))
                    .collect();
                layout.tensors.insert(wanted.name, LocatedTensor { shape, pieces });
            }
            None if is_whole => {
                search.mismatches.0.push(TensorMismatch::Missing { name: wanted.name, shape: wanted.shape });
            }
            None => {}
        }
    }
    layout.ignored = search.leftovers(config);
    (layout, search.mismatches)
}

/// The files' tensors by their canonical names.
struct TensorSearch<'a> {
    shards: &'a WeightFiles,
    /// Experts of a layer: rows of a tensor that stacks them.
    experts: usize,
    by_name: HashMap<String, FoundTensor>,
    ignored: Vec<String>,
    mismatches: TensorMismatches,
}

#[derive(Clone, Copy)]
struct FoundTensor {
    shard: usize,
    entry: usize,
    used: bool,
}

impl<'a> TensorSearch<'a> {
    fn over(shards: &'a WeightFiles, experts: usize) -> Self {
        let by_name = HashMap::new();
        let ignored = Vec::new();
        let mut search = Self { shards, experts, by_name, ignored, mismatches: TensorMismatches::default() };
        search.mismatches.check_index(shards);
        for (shard, file) in shards.files.iter().enumerate() {
            for (entry, tensor) in file.entries.iter().enumerate() {
                search.record(&tensor.name, FoundTensor { shard, entry, used: false });
            }
        }
        search
    }

    fn record(&mut self, name: &str, found: FoundTensor) {
        let Some(canonical) = names::canonical(name) else { return self.ignored.push(name.into()) };
        if let Some(first) = self.by_name.insert(canonical, found) {
            let first = self.shards.files[first.shard].entries[first.entry].name.clone();
            self.mismatches.0.push(TensorMismatch::Twice { first, second: name.into() });
        }
    }

    /// Finds the pieces of a tensor: the tensor itself, or one of the forms that transformers
    /// writes.
    fn find(&mut self, wanted: &RequiredTensor) -> Option<Vec<TensorPiece>> {
        if self.by_name.contains_key(&wanted.name) {
            return self.whole(&wanted.name, &wanted.shape, wanted.more_rows).map(|piece| vec![piece]);
        }
        self.split_qkv(wanted).or_else(|| self.expert_of_stack(wanted).map(|piece| vec![piece]))
    }

    /// The tower's q, k and v as three tensors.
    fn split_qkv(&mut self, wanted: &RequiredTensor) -> Option<Vec<TensorPiece>> {
        let (block, kind) = wanted.name.split_once(".attn.qkv.")?;
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{block}.attn.{part}.{kind}"));
        if !names.iter().any(|name| self.by_name.contains_key(name)) {
            return None;
        }
        let mut shape = wanted.shape.clone();
        shape[0] /= 3;
        Some(names.into_iter().filter_map(|name| self.part(name, &shape)).collect())
    }

    /// A tensor that is required because tensors that belong with it are present.
    fn part(&mut self, name: String, shape: &[usize]) -> Option<TensorPiece> {
        let piece = self.whole(&name, shape, false);
        if piece.is_none() {
            self.mismatches.0.push(TensorMismatch::Missing { name, shape: shape.into() });
        }
        piece
    }

    /// One expert of a tensor that stacks them all: `experts.3.up_proj.weight` out of
    /// `experts.up_proj`.
    fn expert_of_stack(&mut self, wanted: &RequiredTensor) -> Option<TensorPiece> {
        let (layer, rest) = wanted.name.split_once(".mixer.experts.")?;
        let (expert, matrix) = rest.split_once('.')?;
        let expert: usize = expert.parse().ok()?;
        let name = format!("{layer}.mixer.experts.{}", matrix.strip_suffix(".weight")?);
        let stack = self.whole(&name, &[self.experts, wanted.shape[0], wanted.shape[1]], false)?;
        let len = stack.bytes.len() / self.experts.max(1);
        let start = stack.bytes.start + expert * len;
        Some(TensorPiece { bytes: start..start + len, ..stack })
    }

    /// A tensor as one piece. Records a wrong shape or type once.
    fn whole(&mut self, name: &str, shape: &[usize], more_rows: bool) -> Option<TensorPiece> {
        let found = self.by_name.get_mut(name)?;
        let was_used = std::mem::replace(&mut found.used, true);
        let FoundTensor { shard, entry, .. } = *found;
        let tensor = &self.shards.files[shard].entries[entry];
        if !was_used && !fits(&tensor.shape, shape, more_rows) {
            let name = tensor.name.clone();
            let found = tensor.shape.clone();
            self.mismatches.0.push(TensorMismatch::Shape { name, found, wanted: shape.into(), more_rows });
        }
        if !was_used && !matches!(tensor.dtype, Dtype::F32 | Dtype::BF16) {
            self.mismatches.0.push(TensorMismatch::Dtype { name: tensor.name.clone(), dtype: tensor.dtype });
        }
        Some(TensorPiece { shard, entry, dtype: tensor.dtype, bytes: tensor.bytes.clone() })
    }

    /// Rows of a table in the file.
    fn rows(&self, pieces: &[TensorPiece]) -> Option<usize> {
        let piece = pieces.first()?;
        let shape = &self.shards.files[piece.shard].entries[piece.entry].shape;
        shape.len().checked_sub(2).map(|index| shape[index])
    }

    /// Names that no required tensor matched: unknown parts of the tower are ignored, an unknown
    /// tensor of the language model is a mismatch.
    fn leftovers(&mut self, config: &Config) -> Vec<String> {
        let mut left: Vec<(&String, &FoundTensor)> =
            self.by_name.iter().filter(|(_, found)| !found.used).collect();
        left.sort_by_key(|(name, _)| *name);
        for (canonical, found) in left {
            let name = self.shards.files[found.shard].entries[found.entry].name.clone();
            let of_tower = canonical.starts_with("vision_model.")
                || (config.vision.is_none() && canonical.starts_with("mlp1."));
            match of_tower {
                true => self.ignored.push(name),
                false => self.mismatches.0.push(TensorMismatch::Unknown { name }),
            }
        }
        std::mem::take(&mut self.ignored)
    }
}

/// Whether a shape is the required one. Leading ones do not count: they do not change the order of
/// the values.
fn fits(found: &[usize], wanted: &[usize], more_rows: bool) -> bool {
    let [found, wanted] = [found, wanted].map(|shape| {
        // A table keeps its two dimensions, even if it has a single row.
        let ones = shape.iter().take_while(|dimension| **dimension == 1).count();
        &shape[ones.min(shape.len().saturating_sub(if more_rows { 2 } else { 1 }))..]
    });
    match (more_rows, found, wanted) {
        (true, [rows, width], [rows_min, wanted]) => rows >= rows_min && width == wanted,
        _ => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_ones_and_more_rows_fit() {
        let check = |found: &[usize], wanted: &[usize], more_rows, expected| {
            assert_eq!(fits(found, wanted, more_rows), expected, "{found:?} for {wanted:?}, {more_rows}");
        };
        check(&[3, 4], &[3, 4], false, true);
        check(&[4, 3], &[3, 4], false, false);
        check(&[12], &[3, 4], false, false);
        check(&[1, 9, 4], &[9, 4], false, true);
        check(&[9, 4], &[1, 9, 4], false, true);
        check(&[4], &[1, 4], false, true);
        check(&[1], &[1], false, true);
        check(&[], &[1], false, false);
        check(&[4, 3], &[3, 3], false, false);
        check(&[4, 3], &[3, 3], true, true);
        check(&[2, 3], &[3, 3], true, false);
        check(&[1, 16, 8], &[1, 8], true, true);
        check(&[1, 8], &[1, 8], true, true);
        check(&[0, 8], &[1, 8], true, false);
        check(&[8], &[1, 8], true, false);
    }
}
