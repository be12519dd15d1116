//! Where a checkpoint's files hold the tensors that a model needs, under whichever names.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::Dtype;

use super::misfit::{Misfit, Misfits};
use super::names;
use super::shards::Shards;
use super::wanted::{Wanted, wanted};
use crate::config::Config;

/// Where a wanted tensor is.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) shape: Vec<usize>,
    /// One piece, or several that follow each other by row.
    pub(super) pieces: Vec<Piece>,
}

/// Bytes of one file that hold a wanted tensor, or some of its rows.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) shard: usize,
    pub(super) entry: usize,
    pub(super) dtype: Dtype,
    pub(super) bytes: Range<usize>,
}

/// Where everything is, and what was not asked for.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// By published name.
    pub(super) tensors: HashMap<String, Located>,
    /// Names in the files that belong to no part of this model.
    pub(super) ignored: Vec<String>,
}

/// Finds every tensor of a model in the files, and everything that does not fit.
pub(super) fn locate(config: &Config, shards: &Shards) -> (Layout, Misfits) {
    look(config, shards, true)
}

/// Finds the tensors that the files hold of a model, be they all or a few, and everything that does not fit.
pub(super) fn locate_some(config: &Config, shards: &Shards) -> (Layout, Misfits) {
    look(config, shards, false)
}

fn look(config: &Config, shards: &Shards, is_whole: bool) -> (Layout, Misfits) {
    let experts = config.text.moe.map_or(0, |moe| moe.experts);
    let mut search = Search::over(shards, experts);
    let mut layout = Layout::default();
    for wanted in wanted(config) {
        match search.find(&wanted) {
            Some(pieces) => {
                let rows = wanted.more_rows.then(|| search.rows(&pieces)).flatten();
                let shape = rows
                    .into_iter()
                    .chain(wanted.shape.iter().copied().skip(usize::from(rows.is_some())))
                    .collect();
                layout.tensors.insert(wanted.name, Located { shape, pieces });
            }
            None if is_whole => {
                search.misfits.0.push(Misfit::Missing { name: wanted.name, shape: wanted.shape });
            }
            None => {}
        }
    }
    layout.ignored = search.leftovers(config);
    (layout, search.misfits)
}

/// The files' tensors by the names this code knows them by.
struct Search<'a> {
    shards: &'a Shards,
    /// Experts of a layer: rows of a tensor that stacks them.
    experts: usize,
    by_name: HashMap<String, Found>,
    ignored: Vec<String>,
    misfits: Misfits,
}

#[derive(Clone, Copy)]
struct Found {
    shard: usize,
    entry: usize,
    used: bool,
}

impl<'a> Search<'a> {
    fn over(shards: &'a Shards, experts: usize) -> Self {
        let (by_name, ignored) = (HashMap::new(), Vec::new());
        let mut search = Self { shards, experts, by_name, ignored, misfits: Misfits::default() };
        search.misfits.check_index(shards);
        for (shard, file) in shards.files.iter().enumerate() {
            for (entry, tensor) in file.entries.iter().enumerate() {
                search.note(&tensor.name, Found { shard, entry, used: false });
            }
        }
        search
    }

    fn note(&mut self, name: &str, found: Found) {
        let Some(canonical) = names::canonical(name) else { return self.ignored.push(name.into()) };
        if let Some(first) = self.by_name.insert(canonical, found) {
            let first = self.shards.files[first.shard].entries[first.entry].name.clone();
            self.misfits.0.push(Misfit::Twice { first, second: name.into() });
        }
    }

    /// The pieces of a tensor: itself, or the variants that transformers writes.
    fn find(&mut self, wanted: &Wanted) -> Option<Vec<Piece>> {
        if self.by_name.contains_key(&wanted.name) {
            return self.whole(&wanted.name, &wanted.shape, wanted.more_rows).map(|piece| vec![piece]);
        }
        self.split_qkv(wanted).or_else(|| self.of_stack(wanted).map(|piece| vec![piece]))
    }

    /// The tower's q, k and v as three tensors.
    fn split_qkv(&mut self, wanted: &Wanted) -> Option<Vec<Piece>> {
        let (block, kind) = wanted.name.split_once(".attn.qkv.")?;
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{block}.attn.{part}.{kind}"));
        if !names.iter().any(|name| self.by_name.contains_key(name)) {
            return None;
        }
        let mut shape = wanted.shape.clone();
        shape[0] /= 3;
        Some(names.into_iter().filter_map(|name| self.part(name, &shape)).collect())
    }

    /// A tensor that must be there because its neighbours are.
    fn part(&mut self, name: String, shape: &[usize]) -> Option<Piece> {
        let piece = self.whole(&name, shape, false);
        if piece.is_none() {
            self.misfits.0.push(Misfit::Missing { name, shape: shape.into() });
        }
        piece
    }

    /// One expert of a tensor that stacks them all: `experts.3.up_proj.weight` out of `experts.up_proj`.
    fn of_stack(&mut self, wanted: &Wanted) -> Option<Piece> {
        let (layer, rest) = wanted.name.split_once(".mixer.experts.")?;
        let (expert, matrix) = rest.split_once('.')?;
        let expert: usize = expert.parse().ok()?;
        let name = format!("{layer}.mixer.experts.{}", matrix.strip_suffix(".weight")?);
        let stack = self.whole(&name, &[self.experts, wanted.shape[0], wanted.shape[1]], false)?;
        let len = stack.bytes.len() / self.experts.max(1);
        let start = stack.bytes.start + expert * len;
        Some(Piece { bytes: start..start + len, ..stack })
    }

    /// A tensor as it is. When its shape or type is wrong, that is noted, once.
    fn whole(&mut self, name: &str, shape: &[usize], more_rows: bool) -> Option<Piece> {
        let found = self.by_name.get_mut(name)?;
        let seen = std::mem::replace(&mut found.used, true);
        let Found { shard, entry, .. } = *found;
        let tensor = &self.shards.files[shard].entries[entry];
        if !seen && !fits(&tensor.shape, shape, more_rows) {
            let (name, found) = (tensor.name.clone(), tensor.shape.clone());
            self.misfits.0.push(Misfit::Shape { name, found, wanted: shape.into(), more_rows });
        }
        if !seen && !matches!(tensor.dtype, Dtype::F32 | Dtype::BF16) {
            self.misfits.0.push(Misfit::Dtype { name: tensor.name.clone(), dtype: tensor.dtype });
        }
        Some(Piece { shard, entry, dtype: tensor.dtype, bytes: tensor.bytes.clone() })
    }

    /// Rows of a table as the file has it.
    fn rows(&self, pieces: &[Piece]) -> Option<usize> {
        let piece = pieces.first()?;
        let shape = &self.shards.files[piece.shard].entries[piece.entry].shape;
        shape.len().checked_sub(2).map(|index| shape[index])
    }

    /// What nobody asked for: parts of the tower are passed over, an unknown tensor of the language model is not.
    fn leftovers(&mut self, config: &Config) -> Vec<String> {
        let mut left: Vec<(&String, &Found)> = self.by_name.iter().filter(|(_, found)| !found.used).collect();
        left.sort_by_key(|(name, _)| *name);
        for (canonical, found) in left {
            let name = self.shards.files[found.shard].entries[found.entry].name.clone();
            let of_tower = canonical.starts_with("vision_model.")
                || (config.vision.is_none() && canonical.starts_with("mlp1."));
            match of_tower {
                true => self.ignored.push(name),
                false => self.misfits.0.push(Misfit::Unknown { name }),
            }
        }
        std::mem::take(&mut self.ignored)
    }
}

/// Whether a shape is the wanted one, leading ones aside: they change nothing of the order of the values.
fn fits(found: &[usize], wanted: &[usize], more_rows: bool) -> bool {
    let [found, wanted] = [found, wanted].map(|shape| {
        // A table keeps its two dimensions, even when it has a single row.
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
