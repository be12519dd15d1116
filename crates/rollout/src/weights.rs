//! Published weights: which version a worker shall run, and from which directories it is made.

use crate::PolicyVersion;

/// What a directory of weights holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightsForm {
    /// A whole checkpoint.
    Full,
    /// Full new values of some tensors.
    Delta,
    /// A LoRA adapter as PEFT saves it.
    Adapter,
}

/// One directory, laid over what came before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsLink {
    /// What it holds.
    pub form: WeightsForm,
    /// Absolute path, the same on every machine of the job.
    pub directory: String,
}

/// Weights that policy workers shall run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsOrder {
    /// Their version.
    pub version: PolicyVersion,
    /// Laid over the job's own checkpoint in order; one that is whole takes the place of all before it. None: the job's own checkpoint.
    pub links: Vec<WeightsLink>,
    /// What they hash to, once a worker has loaded them: others must find the same.
    pub weights_sha256: Option<String>,
    /// Whether a worker runs them or ran them: then they can be run, and whoever could not tries again. Else another may be about to
    /// say that nobody can.
    pub taken: bool,
}

/// Directories that one version is made of at most. Each is opened when a worker starts; 64 deltas of 100 MB are 6.4 GB to read.
pub const WEIGHTS_LINKS_MAX: usize = 64;

impl WeightsForm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Adapter];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Delta => "delta",
            Self::Adapter => "adapter",
        }
    }

    /// The form of that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.as_str() == word)
    }
}
