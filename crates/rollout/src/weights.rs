//! Published weights: the version that a worker must run, and the directories it is built from.

use std::path::{Component, Path, PathBuf};

use crate::PolicyVersion;

/// What a directory of weights contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightsForm {
    /// A whole checkpoint, which replaces all weights before it.
    Full,
    /// Full new values of some tensors.
    Delta,
    /// A LoRA adapter as PEFT saves it.
    Adapter,
}

/// One directory, applied on top of the ones before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsLink {
    /// What the directory contains.
    pub form: WeightsForm,
    /// Absolute path, the same on every machine of the job.
    pub directory: String,
}

/// An order to policy workers to run certain weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsOrder {
    /// Version of the weights.
    pub version: PolicyVersion,
    /// Directories applied in order to the job's own checkpoint; a full checkpoint replaces
    /// everything before it. An empty list means the job's own checkpoint.
    pub links: Vec<WeightsLink>,
    /// Hash of the weights, set once a worker has loaded them; every other worker must find the
    /// same.
    pub weights_sha256: Option<String>,
    /// Whether a worker runs these weights or has run them. If so, they can be run, and a worker
    /// that failed to load them tries again. If not, another worker may still report that no worker
    /// can load them.
    pub taken: bool,
}

/// Most directories that one version is built from. Each is opened when a worker starts; 64 deltas
/// of 100 MB are 6.4 GB to read.
pub const WEIGHTS_LINKS_MAX: usize = 64;

impl WeightsForm {
    /// Every form, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Adapter];

    /// The form's name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Delta => "delta",
            Self::Adapter => "adapter",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.as_str() == name)
    }
}

/// Directories below which published weights must lie; without any they may lie anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WeightRoots(Vec<PathBuf>);

impl WeightRoots {
    /// These directories, which are absolute and without links.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self(roots)
    }

    /// Why a directory is outside, if it is. Compares names alone: who opens the directory resolves
    /// its links first.
    pub fn refusal(&self, directory: &Path) -> Option<String> {
        let climbs = directory.components().any(|part| part == Component::ParentDir);
        let inside = self.0.iter().any(|root| directory.starts_with(root));
        if self.0.is_empty() || (inside && !climbs) {
            return None;
        }
        let roots: Vec<String> = self.0.iter().map(|root| root.display().to_string()).collect();
        Some(format!(
            "{} is outside of policy.weights.roots ({}); put the weights below one of them, or add their directory \
             to the key",
            directory.display(),
            roots.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_lie_below_a_root_or_nowhere_near() {
        let roots = WeightRoots::new(vec!["/data/weights".into(), "/scratch".into()]);
        let cases = [
            ("/data/weights", true),
            ("/data/weights/7", true),
            ("/scratch/a/b", true),
            ("/data/weights-of-others/7", false),
            ("/data/weights/../keys", false),
            ("/data/weights/7/..", false),
            ("/etc", false),
            ("/", false),
            ("data/weights/7", false),
        ];
        for (directory, want) in cases {
            assert_eq!(roots.refusal(Path::new(directory)).is_none(), want, "{directory}");
        }
        assert_eq!(WeightRoots::default().refusal(Path::new("/etc")), None);
    }
}
