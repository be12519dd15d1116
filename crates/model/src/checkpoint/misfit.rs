//! Tensors that do not fit the configuration: all of them at once, and what would be right.

use std::collections::HashSet;
use std::fmt;

use safetensors::Dtype;

use super::shards::{INDEX, Shards};
use super::shown;

/// Misfits that one message repeats.
const SHOWN_MAX: usize = 20;

/// Everything about a checkpoint's tensors that does not fit its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Misfits(pub Vec<Misfit>);

/// One tensor that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// No file holds it.
    Missing {
        /// Its published name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Its shape is another one.
    Shape {
        /// Its name in the file.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// What the configuration asks for.
        wanted: Vec<usize>,
        /// Whether more rows would do.
        more_rows: bool,
    },
    /// Its numbers are of a type that is not read.
    Dtype {
        /// Its name in the file.
        name: String,
        /// Its type.
        dtype: Dtype,
    },
    /// Two tensors are the same one under two names.
    Twice {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// Nothing in the model is called so.
    Unknown {
        /// Its name in the file.
        name: String,
    },
    /// The index places it in a file that does not hold it.
    NotInShard {
        /// Its name.
        name: String,
        /// The file.
        file: String,
    },
    /// A file holds it, and the index places it elsewhere or nowhere.
    NotInIndex {
        /// Its name.
        name: String,
        /// The file.
        file: String,
    },
}

impl Misfits {
    /// Index and files must agree on where each tensor is.
    pub(super) fn check_index(&mut self, shards: &Shards) {
        let Some(index) = &shards.index else { return };
        let mut held = HashSet::new();
        for file in &shards.files {
            for entry in &file.entries {
                if index.get(&entry.name) == Some(&file.name) {
                    held.insert(entry.name.as_str());
                } else {
                    self.0.push(Misfit::NotInIndex { name: entry.name.clone(), file: file.name.clone() });
                }
            }
        }
        for (name, file) in index.iter().filter(|(name, _)| !held.contains(name.as_str())) {
            self.0.push(Misfit::NotInShard { name: name.clone(), file: file.clone() });
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, shape } => write!(f, "{} of shape {shape:?} is missing", shown(name)),
            Self::Shape { name, found, wanted, more_rows } => {
                let more = if *more_rows { " or more rows" } else { "" };
                write!(f, "{} has the shape {found:?}; config.json asks for {wanted:?}{more}", shown(name))
            }
            Self::Dtype { name, dtype } => {
                write!(
                    f,
                    "{} is of type {dtype}; convert it to BF16 or F32, the two that are read",
                    shown(name)
                )
            }
            Self::Twice { first, second } => {
                write!(f, "{} and {} are the same tensor; keep one", shown(first), shown(second))
            }
            Self::Unknown { name } => {
                write!(f, "{} is no tensor of this architecture; remove it", shown(name))
            }
            Self::NotInShard { name, file } => {
                write!(f, "{INDEX} places {} in {}, which does not hold it", shown(name), shown(file))
            }
            Self::NotInIndex { name, file } => {
                write!(f, "{} holds {}, which {INDEX} places elsewhere or nowhere", shown(file), shown(name))
            }
        }
    }
}

impl fmt::Display for Misfits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.len();
        write!(f, "{all} {} not fit: ", if all == 1 { "tensor does" } else { "tensors do" })?;
        for (index, misfit) in self.0.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{}{misfit}", if index == 0 { "" } else { "; " })?;
        }
        match all.saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
