//! Keeps attempts under different versions of a suite apart: they are attempts at different
//! benchmarks, and a rate over both would be a rate of neither.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::attempt::TaskAttempt;

/// How a version is called that records do not name, because an earlier build wrote them.
const UNNAMED: &str = "unnamed";

/// A suite of which the attempts have more than one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MixedSuite {
    /// Name of the suite.
    pub suite: String,
    /// Attempts by version; `unnamed` for records of builds that named none.
    pub versions: BTreeMap<String, u64>,
}

/// Gives attempts of a suite with several versions the suite `name@version`, and names such suites.
pub(crate) fn separate(attempts: &mut [TaskAttempt]) -> Vec<MixedSuite> {
    let mut suites: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    for attempt in attempts.iter() {
        *suites.entry(&attempt.suite).or_default().entry(version(attempt).to_owned()).or_default() += 1;
    }
    let mixed: Vec<MixedSuite> = suites
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(suite, versions)| MixedSuite { suite: suite.to_owned(), versions })
        .collect();
    let names: BTreeSet<&str> = mixed.iter().map(|mixed| mixed.suite.as_str()).collect();
    for attempt in attempts.iter_mut().filter(|attempt| names.contains(attempt.suite.as_str())) {
        attempt.suite = format!("{}@{}", attempt.suite, version(attempt));
    }
    mixed
}

/// Whether an attempt has the version that a query asks for by its first digits.
pub(crate) fn is_of_version(attempt: &TaskAttempt, wanted: &str) -> bool {
    wanted.is_empty() || version(attempt).starts_with(wanted)
}

fn version(attempt: &TaskAttempt) -> &str {
    match attempt.suite_version.as_str() {
        "" => UNNAMED,
        named => named,
    }
}
