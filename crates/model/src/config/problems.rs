//! What is wrong with a configuration: every key at once, with its value and what would be right.

use std::fmt;
use std::path::PathBuf;

use crate::file::FileError;

/// Why a `config.json` was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not JSON, Python's three words for unusual floats allowed.
    #[error("{} is not JSON", path.display())]
    NotJson {
        /// Which file.
        path: PathBuf,
        /// Where it stops being JSON.
        source: serde_json::Error,
    },
    /// It describes no model that can be run here.
    #[error("{}: {problems}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Everything that is wrong.
        problems: Problems,
    },
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems(pub Vec<Problem>);

/// One key that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, with the sections it lies in: `llm_config.hidden_size`.
    pub key: String,
    /// Its value, shortened.
    pub found: String,
    /// What would be right.
    pub right: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}: {}", self.key, self.found, self.right)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
