//! The problems of a configuration: every wrong key at once, with its value and what is expected.

use std::fmt;
use std::path::PathBuf;

use crate::file::FileError;

/// Why a `config.json` was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not JSON, even with Python's three literals for special floats accepted.
    #[error("{} is not JSON", path.display())]
    NotJson { path: PathBuf, source: serde_json::Error },
    /// It describes a model that cannot be run here.
    #[error("{}: {problems}", path.display())]
    Invalid { path: PathBuf, problems: ConfigProblems },
}

/// Every problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigProblems(pub Vec<ConfigProblem>);

/// One key that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The key with its sections: `llm_config.hidden_size`.
    pub key: String,
    pub found: String,
    pub right: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}: {}", self.key, self.found, self.right)
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
