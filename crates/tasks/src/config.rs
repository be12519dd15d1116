//! The job's `[tasks]` section: the suites, the selection of their tasks, and how often each is
//! used.

mod eval;
mod hooks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use furrow_rollout::Split;
use serde::{Deserialize, Serialize};
use time::Date;

use crate::BoxForm;
use crate::fields::{in_range, short};
use crate::score::date::read_day;

pub use eval::{EvalConfig, EvalFile};
pub use hooks::{HookConfig, HookFile};

/// Most patterns of a list: each is compared with every task, and no person writes more by hand.
const PATTERNS_MAX: usize = 10_000;

/// `[tasks]` as written in the job file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TasksFile {
    /// Trajectories of one task with one seed, which a trainer compares with one another; 1 where
    /// trajectories are only counted.
    pub group_size: u32,
    /// Extra slots of a group: it closes when `group_size` trajectories are scored, and the
    /// remaining ones are cancelled, so that the slowest do not delay the others. 0 disables them.
    pub group_spares: u32,
    /// Groups in the whole job; absent: one per task, times its source's `repeat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<u64>,
    /// Order of tasks: `sequential` (in order, repeating from the start), `uniform` (every task
    /// with equal probability), `weighted` (each source by its `weight`) or `curriculum` (the same
    /// weights, times how uncertain success is by measured success rates).
    pub sampler: String,
    /// Seed of the choice of tasks and of the seeds of their pages.
    pub seed: u64,
    /// Hosts that tasks may ask over HTTP after a trajectory, to check what a back end stored
    /// ([scorer `http`](TASKS.md#back-ends)). Each needs a pin in `env.pins`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub http_hosts: Vec<String>,
    /// A suite, and which of its tasks to use. Repeat the section for each suite.
    pub source: Vec<SourceFile>,
    /// Commands by name, which tasks may name to reset or to check a back end
    /// ([hooks](TASKS.md#back-ends)).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hooks: BTreeMap<String, HookFile>,
}

/// `[[tasks.source]]` as written in the job file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceFile {
    /// `starter`, `miniwob`, `webvoyager` or a name of your own. A folder of pages is served as
    /// `<suite>.test`.
    pub suite: String,
    /// A task file (JSON Lines), or a folder that contains `tasks.jsonl` and its pages.
    pub path: PathBuf,
    /// MiniWoB++: its wheel, or the folder it was unpacked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PathBuf>,
    /// MiniWoB++: also use the pages that `tasks.jsonl` does not list, as tasks of split `test`.
    pub unlisted: bool,
    /// MiniWoB++: `raw` (the page's own reward, -1 to 1) or `sparse` (1 if solved, else 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<String>,
    /// WebVoyager: the file of reference answers, stored with each task for a judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<PathBuf>,
    /// WebVoyager: a JSON list of the ids of tasks that are no longer possible; they are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible: Option<PathBuf>,
    /// WebVoyager: the first day that can still be booked, `YYYY-MM-DD`; travel tasks with earlier
    /// days are moved forward by whole years.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dates_from: Option<String>,
    /// Grounding sets: format of the boxes, `auto` (shares of the picture if no number is above 1,
    /// else pixels), `shares`, `pixels` (left, top, right, bottom) or `pixel_sizes` (left, top,
    /// width, height).
    pub boxes: String,
    /// Ids to use, at most 10,000 patterns; `*` and `?` are wildcards. Empty uses all.
    pub include: Vec<String>,
    /// Ids to leave out, with the same wildcards; at most 10,000 patterns, as of `include`.
    pub exclude: Vec<String>,
    /// `train`, `validation`, `test` or `eval` for all of its tasks; overrides their lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Splits to use, empty for all; for a suite whose tasks have their own splits, such as the
    /// offline web.
    pub splits: Vec<String>,
    /// Number of steps after which a trajectory is truncated; overrides the tasks' lines. Not set:
    /// the line's, else the suite's (30 for most).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Further hosts that the browser may reach for these tasks: `host`, `*.host`, or `*` for all
    /// public hosts. A host of the own network also needs `env.pins`.
    pub allow_hosts: Vec<String>,
    /// Share of this source among all sources under the `weighted` sampler.
    pub weight: f64,
    /// Times each task is planned, each time with a new seed.
    pub repeat: u32,
    /// Continue without this source if its files do not exist, with a note.
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TasksConfig {
    /// The section it was read from.
    pub section: TaskSection,
    /// Trajectories of one task with one seed.
    pub group_size: u32,
    /// Extra slots of a group.
    pub group_spares: u32,
    /// Groups in the whole job; `None`: one pass over the plan.
    pub groups: Option<u64>,
    /// How a group's task is chosen.
    pub sampler: SamplerKind,
    /// Seed of every random choice.
    pub seed: u64,
    /// Sources of tasks; never empty.
    pub sources: Vec<SourceConfig>,
    /// Hosts that tasks may ask over HTTP.
    pub http_hosts: Vec<String>,
    /// Commands that tasks may name.
    pub hooks: Vec<HookConfig>,
    /// Names of the job's secrets, which tasks may use. They are declared in another section, so
    /// the reader of the whole job fills them in.
    pub secrets: Vec<String>,
}

/// A section of the job that configures tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskSection {
    Tasks,
    /// `[eval]`: its tasks have split `eval`, whatever their lines say.
    Eval,
}

/// How a group's task is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerKind {
    /// In order, repeating from the start.
    Sequential,
    /// Each planned task with equal probability, independently.
    Uniform,
    /// Each source by its weight, each of its tasks with equal probability.
    Weighted,
    /// By source weight and measured success.
    Curriculum,
}

/// The reward of a MiniWoB++ page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MiniwobReward {
    /// The page's raw reward, -1 to 1.
    #[default]
    Raw,
    /// 1 if the page is done with a raw reward of exactly 1, else 0.
    Sparse,
}

/// A validated `[[tasks.source]]`. Its files are not checked here: [`crate::load`] opens them.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceConfig {
    /// Key in the job file, such as `tasks.source[0]`, for errors.
    pub key: String,
    /// Name of the suite.
    pub suite: String,
    /// Task file or folder.
    pub path: PathBuf,
    pub pages: Option<PathBuf>,
    /// Whether to use MiniWoB++ pages that the list does not contain.
    pub unlisted: bool,
    /// Reward of MiniWoB++ pages.
    pub reward: MiniwobReward,
    pub answers: Option<PathBuf>,
    /// WebVoyager tasks that are no longer possible.
    pub impossible: Option<PathBuf>,
    /// First day that travel tasks may name.
    pub dates_from: Option<Date>,
    /// Format of the boxes.
    pub boxes: BoxForm,
    /// Patterns of the ids to use, empty for all.
    pub include: Vec<String>,
    /// Patterns of the ids to leave out.
    pub exclude: Vec<String>,
    /// Split of all its tasks.
    pub split: Option<Split>,
    /// Splits to use, empty for all.
    pub splits: Vec<Split>,
    /// Step limit of all its tasks.
    pub max_steps: Option<u32>,
    /// Hosts that all its tasks may reach besides their own.
    pub allow_hosts: Vec<String>,
    /// Share under the weighted sampler, above 0.
    pub weight: f64,
    /// Times each task is planned.
    pub repeat: u32,
    /// Whether its absence is allowed.
    pub optional: bool,
}

impl TasksFile {
    /// Validates the section. Paths are relative to `base`, the job file's folder.
    pub fn check(self, base: &Path) -> Result<TasksConfig, Vec<String>> {
        let mut problems = Vec::new();
        in_range(&mut problems, "tasks.group_size", u64::from(self.group_size), 1, 1024);
        in_range(&mut problems, "tasks.group_spares", u64::from(self.group_spares), 0, 1024);
        if let Some(groups) = self.groups {
            in_range(&mut problems, "tasks.groups", groups, 1, 100_000_000);
        }
        let sampler = SamplerKind::parse(&self.sampler);
        if sampler.is_none() {
            let given = short(&self.sampler);
            problems.push(format!(
                "tasks.sampler: {given:?} is not known; use sequential, uniform, weighted or curriculum"
            ));
        }
        if self.source.is_empty() || self.source.len() > 64 {
            let count = self.source.len();
            problems.push(format!("tasks.source: {count} sources; add 1 to 64 sections [[tasks.source]]"));
        }
        for host in self.http_hosts.iter().filter(|host| host.contains('*') || !is_host_pattern(host)) {
            let given = short(host);
            problems.push(format!("tasks.http_hosts: {given:?} is not a host; use a name in lower case"));
        }
        in_range(&mut problems, "tasks.http_hosts entries", self.http_hosts.len() as u64, 0, 1000);
        let hooks = hooks::check_all(self.hooks, base, &mut problems);
        let sources = check_sources(self.source, TaskSection::Tasks, base, &mut problems);
        match sampler {
            Some(sampler) if problems.is_empty() => Ok(TasksConfig {
                section: TaskSection::Tasks,
                group_size: self.group_size,
                group_spares: self.group_spares,
                groups: self.groups,
                sampler,
                seed: self.seed,
                sources,
                http_hosts: self.http_hosts,
                hooks,
                secrets: Vec::new(),
            }),
            _ => Err(problems),
        }
    }

    /// The same with absolute paths, so that the resolved job can be read from another folder.
    pub fn resolved(mut self, base: &Path) -> Self {
        self.source.iter_mut().for_each(|source| source.resolve(base));
        self.hooks.values_mut().for_each(|hook| hook.resolve(base));
        self
    }
}

fn check_sources(
    sources: Vec<SourceFile>,
    section: TaskSection,
    base: &Path,
    problems: &mut Vec<String>,
) -> Vec<SourceConfig> {
    let check = |(index, source): (usize, SourceFile)| {
        source.check(format!("{}.source[{index}]", section.as_str()), base, problems)
    };
    sources.into_iter().enumerate().map(check).collect()
}

impl TaskSection {
    /// Its name in job files.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskSection::Tasks => "tasks",
            TaskSection::Eval => "eval",
        }
    }
}

impl SourceFile {
    fn resolve(&mut self, base: &Path) {
        let Self { path, pages, answers, impossible, .. } = self;
        for path in [Some(path), pages.as_mut(), answers.as_mut(), impossible.as_mut()].into_iter().flatten()
        {
            *path = base.join(&path);
        }
    }

    /// Validates all keys; the result is only valid if no problem was added.
    fn check(self, key: String, base: &Path, problems: &mut Vec<String>) -> SourceConfig {
        self.check_names(&key, problems);
        self.check_numbers(&key, problems);
        let split = self.split.as_deref().and_then(Split::parse);
        if let (Some(given), None) = (&self.split, split) {
            let given = short(given);
            problems
                .push(format!("{key}.split: {given:?} is not known; use train, validation, test or eval"));
        }
        let boxes = BoxForm::parse(&self.boxes);
        if boxes.is_none() {
            let given = short(&self.boxes);
            let known = BoxForm::NAMES.map(|(name, _)| name).join(", ");
            problems.push(format!("{key}.boxes: {given:?} is not known; use one of {known}"));
        }
        let dates_from = self.dates_from.as_deref().and_then(read_day);
        if let (Some(given), None) = (&self.dates_from, dates_from) {
            let given = short(given);
            problems.push(format!("{key}.dates_from: {given:?} is not a day; write it as 2026-12-01"));
        }
        for given in self.splits.iter().filter(|given| Split::parse(given).is_none()) {
            let given = short(given);
            problems
                .push(format!("{key}.splits: {given:?} is not known; use train, validation, test or eval"));
        }
        SourceConfig {
            suite: self.suite,
            path: base.join(self.path),
            pages: self.pages.map(|path| base.join(path)),
            unlisted: self.unlisted,
            reward: self.reward.as_deref().and_then(MiniwobReward::parse).unwrap_or_default(),
            answers: self.answers.map(|path| base.join(path)),
            impossible: self.impossible.map(|path| base.join(path)),
            dates_from,
            boxes: boxes.unwrap_or(BoxForm::Auto),
            include: self.include,
            exclude: self.exclude,
            split,
            splits: self.splits.iter().filter_map(|given| Split::parse(given)).collect(),
            max_steps: self.max_steps,
            allow_hosts: self.allow_hosts,
            weight: self.weight,
            repeat: self.repeat,
            optional: self.optional,
            key,
        }
    }

    fn check_names(&self, key: &str, problems: &mut Vec<String>) {
        if !is_suite_name(&self.suite) {
            let given = short(&self.suite);
            problems.push(format!(
                "{key}.suite: {given:?} is not a suite name; use 1 to 32 of a-z 0-9 -, with a letter first and no dash last"
            ));
        }
        if self.path.as_os_str().is_empty() {
            problems.push(format!("{key}.path: missing; name the task file or the suite's folder"));
        }
        if self.suite == "miniwob" && self.pages.is_none() {
            problems.push(format!(
                "{key}.pages: missing; name the wheel of `pip download --no-deps miniwob==1.1.0` or its unpacked folder"
            ));
        }
        if self.suite != "miniwob" && self.pages.is_some() {
            problems.push(format!(
                "{key}.pages: only suite miniwob has pages apart; other suites keep them beside tasks.jsonl"
            ));
        }
        if let Some(given) = self.reward.as_deref().filter(|given| MiniwobReward::parse(given).is_none()) {
            problems.push(format!("{key}.reward: {:?} is not known; use raw or sparse", short(given)));
        }
        if self.suite != "miniwob" && (self.unlisted || self.reward.is_some()) {
            let name = if self.unlisted { "unlisted" } else { "reward" };
            problems.push(format!("{key}.{name}: only suite miniwob has it; remove it"));
        }
        for (name, patterns) in [("include", &self.include), ("exclude", &self.exclude)] {
            in_range(
                problems,
                &format!("{key}.{name} entries"),
                patterns.len() as u64,
                0,
                PATTERNS_MAX as u64,
            );
            for pattern in patterns.iter().filter(|pattern| pattern.is_empty() || pattern.len() > 256) {
                let given = short(pattern);
                problems.push(format!("{key}.{name}: {given:?} has {} bytes; use 1 to 256", pattern.len()));
            }
        }
        for host in self.allow_hosts.iter().filter(|host| !is_host_pattern(host)) {
            let given = short(host);
            problems.push(format!(
                "{key}.allow_hosts: {given:?} is not a host; use host, *.host or * in lower case"
            ));
        }
    }

    fn check_numbers(&self, key: &str, problems: &mut Vec<String>) {
        in_range(problems, &format!("{key}.repeat"), u64::from(self.repeat), 1, 1000);
        if let Some(steps) = self.max_steps {
            in_range(problems, &format!("{key}.max_steps"), u64::from(steps), 1, 10_000);
        }
        if !(self.weight > 0.0 && self.weight <= 1e6) {
            problems.push(format!(
                "{key}.weight: {} is out of range; use a number above 0, at most 1000000",
                self.weight
            ));
        }
    }
}

impl SamplerKind {
    /// The name in job files.
    pub fn as_str(self) -> &'static str {
        match self {
            SamplerKind::Sequential => "sequential",
            SamplerKind::Uniform => "uniform",
            SamplerKind::Weighted => "weighted",
            SamplerKind::Curriculum => "curriculum",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        let all =
            [SamplerKind::Sequential, SamplerKind::Uniform, SamplerKind::Weighted, SamplerKind::Curriculum];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl MiniwobReward {
    /// The name in job files.
    pub fn as_str(self) -> &'static str {
        match self {
            MiniwobReward::Raw => "raw",
            MiniwobReward::Sparse => "sparse",
        }
    }

    /// Parses what `as_str` returns.
    pub fn parse(name: &str) -> Option<Self> {
        [MiniwobReward::Raw, MiniwobReward::Sparse].into_iter().find(|kind| kind.as_str() == name)
    }
}

impl Default for TasksFile {
    /// Groups of four, the smallest that still yield a useful advantage.
    fn default() -> Self {
        Self {
            group_size: 4,
            group_spares: 0,
            groups: None,
            sampler: "uniform".to_owned(),
            seed: 0,
            http_hosts: Vec::new(),
            source: Vec::new(),
            hooks: BTreeMap::new(),
        }
    }
}

impl Default for SourceFile {
    fn default() -> Self {
        Self {
            suite: String::new(),
            path: PathBuf::new(),
            pages: None,
            unlisted: false,
            reward: None,
            answers: None,
            impossible: None,
            dates_from: None,
            boxes: "auto".to_owned(),
            include: Vec::new(),
            exclude: Vec::new(),
            split: None,
            splits: Vec::new(),
            max_steps: None,
            allow_hosts: Vec::new(),
            weight: 1.0,
            repeat: 1,
            optional: false,
        }
    }
}

/// `host`, `*.host` or `*`, in lower-case ASCII.
pub(crate) fn is_host_pattern(pattern: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let host = pattern.strip_prefix("*.").unwrap_or(pattern);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
    };
    host.len() <= 253 && host.split('.').all(label)
}

/// A suite's name becomes part of a host name.
fn is_suite_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> SourceFile {
        SourceFile { suite: "starter".to_owned(), path: "envs/starter".into(), ..SourceFile::default() }
    }

    fn checked(change: impl FnOnce(&mut TasksFile)) -> Result<TasksConfig, Vec<String>> {
        let mut file = TasksFile { source: vec![source()], ..TasksFile::default() };
        change(&mut file);
        file.check(Path::new("/jobs"))
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut TasksFile), want: &str) {
        let problems = checked(change).unwrap_err();
        assert!(problems.iter().any(|problem| problem.starts_with(want)), "{want:?} not in {problems:?}");
    }

    #[test]
    fn paths_are_relative_to_the_job_file() {
        let config = checked(|file| file.source[0].answers = Some("/data/answers.json".into())).unwrap();
        assert_eq!(config.sources[0].path, Path::new("/jobs/envs/starter"));
        assert_eq!(config.sources[0].answers.as_deref(), Some(Path::new("/data/answers.json")));
        let file = TasksFile { source: vec![source()], ..TasksFile::default() };
        let resolved = file.clone().resolved(Path::new("/jobs"));
        assert_eq!(resolved.check(Path::new("/elsewhere")), file.check(Path::new("/jobs")));
    }

    #[test]
    fn every_wrong_key_is_named_with_its_remedy() {
        refused(|file| file.group_size = 0, "tasks.group_size: 0 is out of range; use 1 to 1024");
        refused(|file| file.groups = Some(0), "tasks.groups: 0 is out of range");
        refused(
            |file| file.sampler = "random".into(),
            "tasks.sampler: \"random\" is not known; use sequential",
        );
        refused(|file| file.source.clear(), "tasks.source: 0 sources");
        refused(|file| file.source[0].suite = "My Suite".into(), "tasks.source[0].suite: \"My Suite\"");
        refused(|file| file.source[0].suite = "miniwob".into(), "tasks.source[0].pages: missing");
        refused(|file| file.source[0].pages = Some("x".into()), "tasks.source[0].pages: only suite miniwob");
        refused(|file| file.source[0].unlisted = true, "tasks.source[0].unlisted: only suite miniwob");
        refused(
            |file| file.source[0].reward = Some("raw".into()),
            "tasks.source[0].reward: only suite miniwob",
        );
        refused(|file| file.source[0].reward = Some("dense".into()), "tasks.source[0].reward: \"dense\"");
        refused(|file| file.source[0].path = PathBuf::new(), "tasks.source[0].path: missing");
        refused(|file| file.source[0].split = Some("dev".into()), "tasks.source[0].split: \"dev\"");
        refused(|file| file.source[0].splits.push("dev".into()), "tasks.source[0].splits: \"dev\"");
        for day in ["2026-2-1", "tomorrow", "2026-02-30"] {
            refused(|file| file.source[0].dates_from = Some(day.into()), "tasks.source[0].dates_from: ");
        }
        refused(|file| file.source[0].boxes = "xywh".into(), "tasks.source[0].boxes: \"xywh\" is not known");
        refused(|file| file.source[0].repeat = 0, "tasks.source[0].repeat: 0 is out of range");
        refused(|file| file.source[0].max_steps = Some(0), "tasks.source[0].max_steps: 0");
        refused(
            |file| file.source[0].include.push(String::new()),
            "tasks.source[0].include: \"\" has 0 bytes",
        );
        refused(|file| file.source[0].allow_hosts.push("**".into()), "tasks.source[0].allow_hosts: \"**\"");
        refused(|file| file.source[0].allow_hosts.push("https://a.b".into()), "tasks.source[0].allow_hosts:");
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            refused(|file| file.source[0].weight = weight, "tasks.source[0].weight: ");
        }
    }

    type HookChange = fn(&mut HookFile);

    #[test]
    fn a_hook_is_a_command_of_the_job_under_a_plain_name() {
        let hook = |change: HookChange| {
            let mut hook = HookFile { argv: vec!["true".into()], ..HookFile::default() };
            change(&mut hook);
            hook
        };
        let config = checked(|file| {
            let inherits =
                |hook: &mut HookFile| (hook.folder, hook.env) = ("db".into(), vec!["DB_URL".into()]);
            file.hooks = BTreeMap::from([("reset-1".to_owned(), hook(inherits))]);
        });
        let config = config.unwrap();
        assert_eq!(config.hooks[0].folder, Path::new("/jobs/db"));
        assert_eq!((config.hooks[0].name.as_str(), config.hooks[0].concurrent), ("reset-1", 1));
        let table: [(&str, HookChange, &str); 10] = [
            ("../bin/sh", |_| {}, "tasks.hooks.../bin/sh: \"../bin/sh\" is not a name"),
            ("", |_| {}, "tasks.hooks.: \"\" is not a name"),
            ("Reset", |_| {}, "tasks.hooks.Reset: "),
            ("a", |hook| hook.argv.clear(), "tasks.hooks.a.argv: missing"),
            ("a", |hook| hook.argv = vec![String::new()], "tasks.hooks.a.argv: missing"),
            ("a", |hook| hook.argv.push("x\0".into()), "tasks.hooks.a.argv: "),
            ("a", |hook| hook.env.push("A=B".into()), "tasks.hooks.a.env: \"A=B\" is not a variable"),
            ("a", |hook| hook.env.push("PATH".into()), "tasks.hooks.a.env: \"PATH\""),
            ("a", |hook| hook.deadline_millis = 0, "tasks.hooks.a.deadline_millis: 0 is out of range"),
            ("a", |hook| hook.concurrent = 0, "tasks.hooks.a.concurrent: 0 is out of range"),
        ];
        for (name, change, want) in table {
            refused(|file| file.hooks = BTreeMap::from([(name.to_owned(), hook(change))]), want);
        }
        refused(|file| file.http_hosts.push("*".into()), "tasks.http_hosts: \"*\" is not a host");
    }

    #[test]
    fn all_problems_come_at_once() {
        let problems = checked(|file| {
            file.group_size = 0;
            file.sampler = "x".into();
            file.source.push(SourceFile::default());
        })
        .unwrap_err();
        let keys: Vec<_> = problems.iter().filter_map(|problem| problem.split(": ").next()).collect();
        assert_eq!(
            keys,
            ["tasks.group_size", "tasks.sampler", "tasks.source[1].suite", "tasks.source[1].path"]
        );
    }

    #[test]
    fn host_patterns_are_plain_names() {
        let table = [
            ("shop.test", true),
            ("*.shop.test", true),
            ("*", true),
            ("127.0.0.1", true),
            ("", false),
            ("*.", false),
            ("a..b", false),
            ("Shop.test", false),
            ("a.b:80", false),
            ("*.*.a", false),
            ("a b", false),
        ];
        for (pattern, want) in table {
            assert_eq!(is_host_pattern(pattern), want, "{pattern:?}");
        }
    }
}
