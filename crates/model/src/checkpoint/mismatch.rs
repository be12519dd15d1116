//! Tensors that do not match the configuration: all of them at once, each with what is expected.

use std::collections::HashSet;
use std::fmt;

use safetensors::Dtype;

use super::displayed::displayed_name;
use super::shards::{INDEX, WeightFiles};

/// Mismatches that one message lists.
const LISTED_MAX: usize = 20;

/// Every mismatch between a checkpoint's tensors and its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TensorMismatches(pub Vec<TensorMismatch>);

/// One tensor that does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorMismatch {
    /// No file holds it.
    Missing { name: String, shape: Vec<usize> },
    /// It has another shape.
    Shape {
        /// Its name in the file.
        name: String,
        found: Vec<usize>,
        /// Shape of the configuration.
        wanted: Vec<usize>,
        /// Whether more rows are accepted.
        more_rows: bool,
    },
    /// Its numbers have a type that cannot be read.
    Dtype {
        /// Its name in the file.
        name: String,
        dtype: Dtype,
    },
    /// The same tensor under two names.
    Twice { first: String, second: String },
    /// The model has no tensor of this name.
    Unknown {
        /// Its name in the file.
        name: String,
    },
    /// The index assigns it to a file that does not hold it.
    NotInShard { name: String, file: String },
    /// A file holds it, but the index assigns it to another file or to none.
    NotInIndex { name: String, file: String },
}

impl TensorMismatches {
    /// Records every tensor for which index and files disagree.
    pub(super) fn check_index(&mut self, shards: &WeightFiles) {
        let Some(index) = &shards.index else { return };
        let mut found_names = HashSet::new();
        for file in &shards.files {
            for entry in &file.entries {
                if index.get(&entry.name) == Some(&file.name) {
                    found_names.insert(entry.name.as_str());
                } else {
                    self.0.push(TensorMismatch::NotInIndex {
                        name: entry.name.clone(),
                        file: file.name.clone(),
                    });
                }
            }
        }
        for (name, file) in index.iter().filter(|(name, _)| !found_names.contains(name.as_str())) {
            self.0.push(TensorMismatch::NotInShard { name: name.clone(), file: file.clone() });
        }
    }
}

impl fmt::Display for TensorMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, shape } => {
                write!(f, "{} of shape {shape:?} is missing", displayed_name(name))
            }
            Self::Shape { name, found, wanted, more_rows } => {
                let more = if *more_rows { " or more rows" } else { "" };
                write!(
                    f,
                    "{} has the shape {found:?}; config.json needs {wanted:?}{more}",
                    displayed_name(name)
                )
            }
            Self::Dtype { name, dtype } => {
                write!(f, "{} has the type {dtype}; convert it to BF16 or F32", displayed_name(name))
            }
            Self::Twice { first, second } => {
                write!(
                    f,
                    "{} and {} are the same tensor; keep one",
                    displayed_name(first),
                    displayed_name(second)
                )
            }
            Self::Unknown { name } => {
                write!(f, "{} is not a tensor of this architecture; remove it", displayed_name(name))
            }
            Self::NotInShard { name, file } => {
                write!(
                    f,
                    "{INDEX} places {} in {}, which does not hold it",
                    displayed_name(name),
                    displayed_name(file)
                )
            }
            Self::NotInIndex { name, file } => {
                write!(
                    f,
                    "{} holds {}, which {INDEX} places elsewhere or nowhere",
                    displayed_name(file),
                    displayed_name(name)
                )
            }
        }
    }
}

impl fmt::Display for TensorMismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.len();
        write!(f, "{all} {} not fit: ", if all == 1 { "tensor does" } else { "tensors do" })?;
        for (index, mismatch) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}{mismatch}", if index == 0 { "" } else { "; " })?;
        }
        match all.saturating_sub(LISTED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
