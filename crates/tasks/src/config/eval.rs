//! The job's `[eval]` section: the tasks on which policy versions are evaluated while the job runs,
//! and how often.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{SamplerKind, SourceFile, TaskSection, TasksConfig, check_sources};
use crate::fields::in_range;

/// `[eval]` as written in the job file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalFile {
    /// Policy versions between two evaluations; the first one evaluates the version with which the
    /// job begins.
    pub every_versions: u32,
    /// Trajectories of each problem: the largest k of pass@k.
    pub group_size: u32,
    /// Seed of the pages' seeds: every version gets the same problems, and `tasks.seed` never
    /// produces one of them.
    pub seed: u64,
    /// Longest time that newer weights wait for a running evaluation, which is cut then.
    pub hold_millis: u64,
    /// Sources of tasks as in `[[tasks.source]]`; each task is one problem, or as many as its
    /// source's `repeat`. Empty: no evaluation.
    pub source: Vec<SourceFile>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EvalConfig {
    /// Policy versions between two evaluations, at least 1.
    pub every_versions: u32,
    /// Longest time that newer weights wait.
    pub hold_millis: u64,
    /// Its tasks: all of them, in order.
    pub tasks: TasksConfig,
}

impl Default for EvalFile {
    fn default() -> Self {
        // Ten minutes: 100 problems of a minute each on 16 slots take six.
        Self { every_versions: 10, group_size: 1, seed: 0, hold_millis: 600_000, source: Vec::new() }
    }
}

impl EvalFile {
    /// Validates the section. Paths are relative to `base`, the job file's folder. `None` if there
    /// is no source.
    pub fn check(self, base: &Path) -> Result<Option<EvalConfig>, Vec<String>> {
        let mut problems = Vec::new();
        in_range(&mut problems, "eval.every_versions", u64::from(self.every_versions), 1, 1_000_000);
        in_range(&mut problems, "eval.group_size", u64::from(self.group_size), 1, 1024);
        in_range(&mut problems, "eval.hold_millis", self.hold_millis, 0, 24 * 3_600_000);
        if self.source.len() > 64 {
            let count = self.source.len();
            problems.push(format!("eval.source: {count} sources; use at most 64 sections [[eval.source]]"));
        }
        for (index, source) in self.source.iter().enumerate() {
            let given = [
                ("split", source.split.is_some(), "rows of an evaluation are of split eval"),
                ("weight", source.weight != 1.0, "an evaluation takes every task"),
            ];
            for (key, _, why) in given.into_iter().filter(|(_, is_given, _)| *is_given) {
                problems.push(format!("eval.source[{index}].{key}: {why}; remove it"));
            }
        }
        let sources = check_sources(self.source, TaskSection::Eval, base, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let tasks = TasksConfig {
            section: TaskSection::Eval,
            group_size: self.group_size,
            group_spares: 0,
            groups: None,
            sampler: SamplerKind::Sequential,
            seed: self.seed,
            sources,
            http_hosts: Vec::new(),
            hooks: Vec::new(),
            secrets: Vec::new(),
        };
        let every_versions = self.every_versions;
        let hold_millis = self.hold_millis;
        Ok((!tasks.sources.is_empty()).then_some(EvalConfig { every_versions, hold_millis, tasks }))
    }

    /// The same with absolute paths.
    pub fn resolved(mut self, base: &Path) -> Self {
        self.source.iter_mut().for_each(|source| source.resolve(base));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut EvalFile)) -> Result<Option<EvalConfig>, Vec<String>> {
        let source =
            SourceFile { suite: "starter".into(), path: "envs/starter".into(), ..SourceFile::default() };
        let mut file = EvalFile { source: vec![source], ..EvalFile::default() };
        change(&mut file);
        file.check(Path::new("/jobs"))
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut EvalFile), want: &str) {
        let problems = checked(change).unwrap_err();
        assert!(problems.len() == 1 && problems[0].starts_with(want), "{problems:?}, not {want:?}");
    }

    #[test]
    fn every_wrong_key_is_named_with_its_remedy() {
        let config = checked(|_| {}).unwrap().unwrap();
        assert_eq!((config.every_versions, config.hold_millis, config.tasks.sources.len()), (10, 600_000, 1));
        assert_eq!(config.tasks.sources[0].path, Path::new("/jobs/envs/starter"));
        assert_eq!(checked(|file| file.source.clear()).unwrap(), None);
        refused(|file| file.every_versions = 0, "eval.every_versions: 0 is out of range; use 1 to");
        refused(|file| file.group_size = 2000, "eval.group_size: 2000 is out of range; use 1 to 1024");
        refused(|file| file.hold_millis = u64::MAX, "eval.hold_millis: ");
        refused(
            |file| file.source[0].split = Some("test".into()),
            "eval.source[0].split: rows of an evaluation",
        );
        refused(|file| file.source[0].weight = 2.0, "eval.source[0].weight: ");
        refused(|file| file.source[0].suite = "My Suite".into(), "eval.source[0].suite: \"My Suite\"");
    }
}
