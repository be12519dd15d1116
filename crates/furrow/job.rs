//! The job file: reads, overrides, checks and resolves it before anything starts.
//!
//! Each section belongs to the crate that uses it (`TasksFile`, `PolicyFile` ..); this module puts
//! them together. `tree.rs` reads the file so that every value has a line, and applies `--set`;
//! `shape.rs` asks the sections' types for their keys; `check.rs` finds what no section could read;
//! then each section checks its own values. All problems are reported at once, by key and line.

mod check;
mod effects;
#[cfg(test)]
mod reference;
mod renamed;
pub(crate) mod served;
mod shape;
pub(crate) mod shared;
pub(crate) mod stored;
mod tree;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_coordinator::{LimitsConfig, LimitsFile, ScoreConfig, ScoreFile};
use furrow_dashboard::{DashboardConfig, DashboardFile};
use furrow_env::{EnvConfig, EnvFile, HookCommand};
use furrow_model::floor::{DEVICES, DeviceSpec};
use furrow_policy::{PolicyChoice, PolicyConfig, PolicyFile};
use furrow_records::{RecordsConfig, RecordsFile};
use furrow_rollout::{Id, Run};
use furrow_tasks::{EvalConfig, EvalFile, HookConfig, TasksConfig, TasksFile};
use furrow_telemetry::{TelemetryConfig, TelemetryFile};
use serde::{Deserialize, Serialize};

use check::CheckFindings;
use shape::KeyShape;
use stored::StoredJob;
use tree::ConfigNode;
pub(crate) use tree::{KeyProblem, SourceLocation};

/// A job file as written, every section with its defaults.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobFile {
    /// Name and directory of the run.
    pub run: RunFile,
    /// The tasks, and how often they are sampled ([TASKS.md](TASKS.md)).
    pub tasks: TasksFile,
    /// The policy that acts, and how its worker serves sessions.
    pub policy: PolicyFile,
    /// The browsers and sites that the policy acts in.
    pub env: EnvFile,
    /// How judges score finished trajectories, where rules are not enough.
    pub score: ScoreFile,
    /// How the data set is written ([DATASET.md](DATASET.md)).
    pub records: RecordsFile,
    /// Retries, deadlines and queues of the coordinator. A job rarely needs another value: those
    /// for a trainer are `trajectories_per_version` and `max_off_policy_versions`.
    pub limits: LimitsFile,
    /// The tasks on which policy versions are evaluated while the job runs.
    pub eval: EvalFile,
    /// What is logged and measured ([TELEMETRY.md](TELEMETRY.md)).
    pub telemetry: TelemetryFile,
    /// Where the dashboard is served ([DASHBOARD.md](DASHBOARD.md)).
    pub dashboard: DashboardFile,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunFile {
    /// Name of the run directory and prefix of every id of the run. Default: the file's name
    /// without its extension.
    pub name: String,
    /// Directory in which run directories are created. A
    /// screenshot takes up to 200 KB there.
    pub output_dir: PathBuf,
    /// Seed of every random choice: the default of `tasks.seed`, `eval.seed` and
    /// `policy.sampling.seed`.
    pub seed: u64,
}

/// A checked job, ready to run.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Name of the run: safe as a file name, short enough as a prefix of ids.
    pub run_name: Id<Run>,
    /// The run directory: `run.output_dir`, then `run.name`.
    pub run_dir: PathBuf,
    pub tasks: TasksConfig,
    pub policy: PolicyConfig,
    pub env: EnvConfig,
    pub score: ScoreConfig,
    pub records: RecordsConfig,
    pub limits: LimitsConfig,
    /// `[eval]`, if it names tasks.
    pub eval: Option<EvalConfig>,
    pub telemetry: TelemetryConfig,
    pub dashboard: DashboardConfig,
    /// The whole job as TOML: every key with its value, paths absolute. It yields the same job
    /// wherever it is read.
    pub resolved: String,
    /// Settings that are allowed and probably not intended.
    pub warnings: Vec<KeyProblem>,
    /// Dotted keys that the file or the command line gave a value.
    pub written: BTreeSet<String>,
    /// What a resumed job takes over from its run, for the user.
    pub notes: Vec<String>,
    /// The job that began the run, where this one resumes it and the run directory keeps it.
    pub began: Option<StoredJob>,
}

/// A job file with every key has 4 kB; one with a thousand sources 100 kB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Ids have at most 128 bytes and begin with the name;
/// `-g18446744073709551615-s4294967295-a4294967295` takes 46 of them.
const NAME_BYTES_MAX: usize = 64;

impl Job {
    /// Reads a file, applies the `key=value` settings, and checks everything. Problems come as one
    /// line each, with location and remedy.
    pub(crate) fn read(path: &Path, settings: &[String]) -> Result<Self, Vec<String>> {
        Self::read_as(path, settings, false)
    }

    /// The same for a run that goes on: keys of its identity that are not set take over the run's
    /// values.
    pub(crate) fn read_to_resume(path: &Path, settings: &[String]) -> Result<Self, Vec<String>> {
        Self::read_as(path, settings, true)
    }

    fn read_as(path: &Path, settings: &[String], resumes: bool) -> Result<Self, Vec<String>> {
        let text = read_text(path).map_err(|why| vec![format!("{}: {why}", path.display())])?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let base = absolute.parent().unwrap_or(Path::new("/"));
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        Self::parse_as(&text, name, base, settings, resumes)
            .map_err(|problems| problems.iter().map(|problem| problem.with_location(path)).collect())
    }

    /// The same for a text: `name` is the default of `run.name`, `base` the directory of relative
    /// paths.
    #[cfg(test)]
    pub(crate) fn parse(
        text: &str,
        name: &str,
        base: &Path,
        settings: &[String],
    ) -> Result<Self, Vec<KeyProblem>> {
        Self::parse_as(text, name, base, settings, false)
    }

    fn parse_as(
        text: &str,
        name: &str,
        base: &Path,
        settings: &[String],
        resumes: bool,
    ) -> Result<Self, Vec<KeyProblem>> {
        let shape = KeyShape::of::<JobFile>();
        let mut tree = tree::parse(text)?;
        if text.starts_with(stored::HEADER) {
            renamed::apply(&mut tree);
        }
        let mut problems: Vec<_> =
            settings.iter().filter_map(|setting| tree.set(setting, &shape).err()).collect();
        let written = tree.written();
        let began = if resumes { began(&tree, name, base).map_err(|problem| vec![problem])? } else { None };
        let alone = if began.is_some() { unchecked(&tree, name) } else { toml::Table::new() };
        let inherited = began.as_ref().map(|began| stored::inherit(&mut tree, &began.table, &alone));
        let notes = inherited.unwrap_or_default();
        let findings = check::check(&mut tree, &shape);
        inherit(&mut tree, name);
        let checked = JobFile::deserialize(tree.clone().into_toml())
            .map_err(|error| {
                vec![KeyProblem {
                    location: SourceLocation::Default,
                    key: String::new(),
                    text: error.to_string(),
                }]
            })?
            .check(base);
        let CheckFindings { problems: found, named } = findings;
        problems.extend(found);
        match checked {
            Ok(job) if problems.is_empty() => {
                Ok(Self { warnings: warnings(&tree, &job, &written), written, notes, began, ..job })
            }
            Ok(_) => Err(sorted(problems)),
            Err(texts) => {
                let located = texts.iter().map(|text| locate(text, &tree));
                problems.extend(located.filter(|problem| !is_named(&problem.key, &named)));
                Err(sorted(problems))
            }
        }
    }
}

impl JobFile {
    /// The whole job of a text as TOML, every key with its value and paths absolute, or its
    /// problems. `name` is the default of `run.name`, `base` the directory of relative paths.
    pub fn resolve(text: &str, name: &str, base: &Path, settings: &[String]) -> Result<String, Vec<String>> {
        Job::parse_as(text, name, base, settings, false).map(|job| job.resolved).map_err(|problems| {
            problems.iter().map(|problem| problem.with_location(Path::new(name))).collect()
        })
    }

    /// Lets every section check its values, and collects the problems.
    fn check(self, base: &Path) -> Result<Job, Vec<String>> {
        let resolved = self.clone().resolved(base).text()?;
        let mut problems = Vec::new();
        let output_dir = base.join(&self.run.output_dir);
        let gpu_name = self.dashboard.gpu.clone();
        let run_name = collect_problems(self.run.check(), &mut problems);
        let tasks = collect_problems(self.tasks.check(base), &mut problems);
        let policy = collect_problems(self.policy.resolved(base).check(), &mut problems);
        let env = collect_problems(self.env.check(base), &mut problems);
        let score = collect_problems(self.score.check(base), &mut problems);
        let records = collect_problems(self.records.check(), &mut problems);
        let limits = collect_problems(self.limits.check(), &mut problems);
        let eval = collect_problems(self.eval.check(base), &mut problems);
        let telemetry = collect_problems(self.telemetry.check(), &mut problems);
        let dashboard = collect_problems(self.dashboard.resolved(base).check(), &mut problems);
        // The model knows which GPUs exist, the dashboard does not.
        let known = if gpu_name.is_empty() { Ok(()) } else { gpu("dashboard.gpu", &gpu_name).map(drop) };
        let known = collect_problems(known, &mut problems);
        let (
            Some(run_name),
            Some(tasks),
            Some(policy),
            Some(env),
            Some(score),
            Some(records),
            Some(limits),
            Some(eval),
            Some(telemetry),
            Some(dashboard),
            Some(()),
        ) = (run_name, tasks, policy, env, score, records, limits, eval, telemetry, dashboard, known)
        else {
            return Err(problems);
        };
        problems.extend(unpinned(&tasks, &env));
        if !problems.is_empty() {
            return Err(problems);
        }
        let (env, eval) = with_back_ends(&tasks, env, eval);
        let (tasks, eval) = with_secrets(&env, tasks, eval);
        let grammar = &policy.session.grammar.name;
        if furrow_policy::grammar::needs_marks(grammar) && !env.browser.marks {
            return Err(vec![format!(
                "policy.grammar.name: {grammar:?} needs marks on screenshots; set env.marks = true"
            )]);
        }
        if limits.spreads_first_steps() && eval.is_some() {
            return Err(vec![
                "limits.spread_first_steps: true, and [eval] has tasks; shortened trajectories cannot be evaluated, remove one of the two".into(),
            ]);
        }
        let run_dir = output_dir.join(run_name.as_str());
        Ok(Job {
            run_name,
            run_dir,
            tasks,
            policy,
            env,
            score,
            records,
            limits,
            eval,
            telemetry,
            dashboard,
            resolved,
            warnings: Vec::new(),
            written: BTreeSet::new(),
            notes: Vec::new(),
            began: None,
        })
    }

    /// The same with every path absolute.
    fn resolved(self, base: &Path) -> Self {
        Self {
            run: self.run.resolved(base),
            tasks: self.tasks.resolved(base),
            policy: self.policy.resolved(base),
            env: self.env.resolved(base),
            score: self.score.resolved(base),
            eval: self.eval.resolved(base),
            dashboard: self.dashboard.resolved(base),
            ..self
        }
    }

    fn text(&self) -> Result<String, Vec<String>> {
        let text =
            toml::to_string(self).map_err(|error| vec![format!("cannot write the resolved job: {error}")])?;
        Ok(format!(
            "{}every key with its value, defaults included, paths absolute.\n\n{text}",
            stored::HEADER
        ))
    }
}

/// Hosts that tasks may ask and that no pin leads to.
fn unpinned(tasks: &TasksConfig, env: &EnvConfig) -> Vec<String> {
    let is_pinned = |host: &str| env.egress.live.as_ref().is_some_and(|live| live.pins.has(host));
    let unpinned = tasks.http_hosts.iter().filter(|host| !is_pinned(host));
    unpinned
        .map(|host| {
            format!(
                "tasks.http_hosts: {host:?} is not pinned; add its address to env.pins, such as \"{host}=10.0.0.5:8080\", with env.live = true"
            )
        })
        .collect()
}

/// The hooks of `[tasks]` for the environment worker, and for the tasks of `[eval]`.
fn with_back_ends(
    tasks: &TasksConfig,
    mut env: EnvConfig,
    eval: Option<EvalConfig>,
) -> (EnvConfig, Option<EvalConfig>) {
    let command = |hook: &HookConfig| HookCommand {
        name: hook.name.clone(),
        argv: hook.argv.clone(),
        folder: hook.folder.clone(),
        deadline: Duration::from_millis(hook.deadline_millis),
        env: hook.env.clone(),
        concurrent: hook.concurrent,
    };
    env.browser.hooks = tasks.hooks.iter().map(command).collect();
    let eval = eval.map(|mut eval| {
        eval.tasks.hooks.clone_from(&tasks.hooks);
        eval.tasks.http_hosts.clone_from(&tasks.http_hosts);
        eval
    });
    (env, eval)
}

/// The names of the secrets of `[env]` for all tasks.
fn with_secrets(
    env: &EnvConfig,
    mut tasks: TasksConfig,
    eval: Option<EvalConfig>,
) -> (TasksConfig, Option<EvalConfig>) {
    tasks.secrets = env.secrets.iter().map(|secret| secret.name.clone()).collect();
    let eval = eval.map(|mut eval| {
        eval.tasks.secrets.clone_from(&tasks.secrets);
        eval
    });
    (tasks, eval)
}

impl RunFile {
    fn check(self) -> Result<Id<Run>, Vec<String>> {
        let right = format!("use 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - and do not start with a dot");
        let short = self.name.len() <= NAME_BYTES_MAX;
        Id::new(&self.name).ok().filter(|_| short).ok_or_else(|| {
            let name: String = self.name.chars().take(80).collect();
            vec![format!("run.name: {name:?}; {right}")]
        })
    }

    fn resolved(self, base: &Path) -> Self {
        Self { output_dir: base.join(self.output_dir), ..self }
    }
}

impl Default for RunFile {
    fn default() -> Self {
        Self { name: String::new(), output_dir: "runs".into(), seed: 0 }
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => {
            Err(format!("larger than {FILE_BYTES_MAX} bytes: this is not a job file"))
        }
        Ok(_) => Ok(text),
        Err(why) if why.kind() == io::ErrorKind::InvalidData => {
            Err("not UTF-8 text: this is not a job file".into())
        }
        Err(why) => Err(format!("cannot read the job file: {why}")),
    }
}

/// A job with its defaults as far as it can be read: wrong keys are found later.
fn unchecked(tree: &ConfigNode, name: &str) -> toml::Table {
    let mut tree = tree.clone();
    inherit(&mut tree, name);
    let file = JobFile::deserialize(tree.into_toml()).unwrap_or_default();
    toml::Table::try_from(file).unwrap_or_default()
}

/// The stored job of the run that a job resumes.
fn began(tree: &ConfigNode, name: &str, base: &Path) -> Result<Option<StoredJob>, KeyProblem> {
    let text = |key| tree.plain(key).and_then(toml::Value::as_str);
    let name = text("run.name").unwrap_or(name);
    // A name that cannot be one is refused with everything else that is wrong.
    let Ok(name) = Id::<Run>::new(name) else { return Ok(None) };
    let folder = text("run.output_dir").map_or_else(|| RunFile::default().output_dir, PathBuf::from);
    stored::read(&base.join(folder).join(name.as_str())).map_err(|text| KeyProblem {
        location: SourceLocation::Default,
        key: String::new(),
        text,
    })
}

/// Defaults that depend on other keys.
fn inherit(tree: &mut ConfigNode, name: &str) {
    tree.default_to("run.name", name.into());
    if let Some(seed) = tree.plain("run.seed").cloned() {
        tree.default_to("tasks.seed", seed.clone());
        tree.default_to("eval.seed", seed.clone());
        tree.default_to("policy.sampling.seed", seed);
    }
}

fn collect_problems<T>(checked: Result<T, Vec<String>>, problems: &mut Vec<String>) -> Option<T> {
    checked.map_err(|lines| problems.extend(lines)).ok()
}

/// A section's problem begins with a dotted key, which gives its location.
fn locate(text: &str, tree: &ConfigNode) -> KeyProblem {
    let (key, text) = text.split_once(": ").unwrap_or(("", text));
    let bare = key.split(' ').next().unwrap_or_default();
    KeyProblem { location: tree.location_of(bare), key: key.to_owned(), text: text.to_owned() }
}

/// Whether a problem was already reported for this key, or for one above or below it.
fn is_named(key: &str, named: &[String]) -> bool {
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    named.iter().any(|other| within(key, other) || within(other, key))
}

/// Sorts by line, the command line last.
fn sorted(mut problems: Vec<KeyProblem>) -> Vec<KeyProblem> {
    problems.sort_by_key(|problem| match problem.location {
        SourceLocation::Line(line) => line,
        SourceLocation::Default => usize::MAX - 1,
        SourceLocation::Set => usize::MAX,
    });
    problems
}

fn warnings(tree: &ConfigNode, job: &Job, written: &BTreeSet<String>) -> Vec<KeyProblem> {
    let mut warnings = truncated_sampling_warnings(job);
    let resolved: toml::Table = job.resolved.parse().unwrap_or_default();
    let defaults = toml::Table::try_from(JobFile::default()).unwrap_or_default();
    let is_set = |key: &str| tree.location_of(key) == SourceLocation::Set;
    warnings.extend(effects::without_effect(&resolved, &defaults, written, is_set));
    warnings.extend(effects::user_without_effect(written, furrow_env::is_root()));
    let wanted = job.env.sessions_max;
    let supported = job.policy.sessions_max;
    if wanted > supported {
        let text = format!(
            "{wanted} concurrent trajectories, but a policy worker takes {supported} (policy.sessions_max); start several policy workers"
        );
        warnings.push(("env.sessions_max".to_owned(), text));
    }
    warnings.extend(late_reply_warning(job));
    warnings.extend(workload_warnings(job));
    warnings
        .into_iter()
        .map(|(key, text)| KeyProblem { location: tree.location_of(&key), key, text })
        .collect()
}

/// Settings that force a workload: the job measures a farm, and its data is of no use to a trainer.
fn workload_warnings(job: &Job) -> Vec<(String, String)> {
    let rules = job.policy.model.as_ref().and_then(|model| model.constrain.as_ref());
    let forced = [
        (
            "limits.spread_first_steps",
            job.limits.spreads_first_steps(),
            "cuts the first trajectories short: this job is a measurement, do not train on its data",
        ),
        (
            "policy.constrain.exact_tokens",
            rules.is_some_and(|rules| rules.exact_tokens.is_some()),
            "fills every reply to one length: this job is a measurement, do not train on its data",
        ),
        (
            "policy.constrain.endings",
            rules.is_some_and(|rules| !rules.endings),
            "prevents every answer: this job is a measurement, its rewards and success rates do not describe the policy",
        ),
    ];
    forced
        .into_iter()
        .filter(|(_, on, _)| *on)
        .map(|(key, _, text)| (key.to_owned(), text.to_owned()))
        .collect()
}

/// The environment worker stops waiting for a reply before the endpoint's deadline: a later reply
/// is paid for and discarded.
fn late_reply_warning(job: &Job) -> Option<(String, String)> {
    let deadline = job.policy.remote.as_ref()?.deadline();
    let waits = job.env.worker.policy_deadline;
    let text = || {
        format!(
            "{} is not below env.policy_millis = {}, after which the environment worker discards a reply; use less",
            deadline.as_millis(),
            waits.as_millis()
        )
    };
    (deadline >= waits).then(|| ("policy.remote.deadline_millis".to_owned(), text()))
}

/// A trainer needs the probability of each sampled token under the whole distribution; these
/// settings truncate it.
fn truncated_sampling_warnings(job: &Job) -> Vec<(String, String)> {
    if !matches!(job.policy.choice, PolicyChoice::Model | PolicyChoice::Openai) {
        // Nothing is sampled, and the keys have no effect.
        return Vec::new();
    }
    let sampling = &job.policy.session.sampling;
    let cuts = [
        ("top_p", sampling.top_p != 1.0, "1"),
        ("top_k", sampling.top_k != 0, "0"),
        ("min_p", sampling.min_p != 0.0, "0"),
    ];
    let warn = |(name, _, whole): (&str, bool, &str)| {
        let text = format!("cuts the distribution that a trainer learns from; {whole} keeps all of it");
        (format!("policy.sampling.{name}"), text)
    };
    cuts.into_iter().filter(|(_, cut, _)| *cut).map(warn).collect()
}

impl KeyProblem {
    /// The problem with its location in the form that editors and terminals link: `job.toml:12:
    /// tasks.grup_size: unknown key ..`.
    pub(crate) fn with_location(&self, path: &Path) -> String {
        let message =
            if self.key.is_empty() { self.text.clone() } else { format!("{}: {}", self.key, self.text) };
        match self.location {
            SourceLocation::Line(line) => format!("{}:{line}: {message}", path.display()),
            SourceLocation::Default => format!("{}: {message}", path.display()),
            SourceLocation::Set => format!("--set: {message}"),
        }
    }
}

/// The GPU with this name, if its rates are known; `key` is the key or option that named it.
pub(crate) fn gpu(key: &str, name: &str) -> Result<&'static DeviceSpec, Vec<String>> {
    let known = || DEVICES.map(|device| device.name).join(", ");
    DeviceSpec::named(name)
        .ok_or_else(|| vec![format!("{key}: {name:?} is not known; use one of {}", known())])
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str =
        "[run]\nname = \"quick\"\n\n[[tasks.source]]\nsuite = \"starter\"\npath = \"envs/starter\"\n";

    fn parse(text: &str, settings: &[&str]) -> Result<Job, Vec<KeyProblem>> {
        let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
        Job::parse(text, "by-file", Path::new("/jobs"), &settings)
    }

    #[track_caller]
    fn check(text: &str, settings: &[&str], want: &[&str]) {
        let problems = parse(text, settings).err().unwrap_or_default();
        let got: Vec<_> =
            problems.iter().map(|problem| problem.with_location(Path::new("job.toml"))).collect();
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn everything_wrong_comes_at_once_in_the_order_of_the_file() {
        check(JOB, &[], &[]);
        let text = "[run]\nname = \"a b\"\n[tasks]\ngrup_size = 4\nsampler = \"uniforn\"\n[eval]\nevery = 4\n\
                    [policy.sampling]\ntemperature = \"hot\"\ntop_p = 0\n[telemetry]\nmetrics_interval_millis = 1";
        check(
            text,
            &["limits.lease_milis=4", "run.seed"],
            &[
                "job.toml:2: run.name: \"a b\"; use 1 to 64 of A-Z a-z 0-9 . _ - and do not start with a dot",
                "job.toml:3: tasks.source: 0 sources; add 1 to 64 sections [[tasks.source]]",
                "job.toml:4: tasks.grup_size: unknown key; did you mean tasks.group_size?",
                "job.toml:5: tasks.sampler: \"uniforn\" is not known; use sequential, uniform, weighted or curriculum",
                "job.toml:7: eval.every: unknown key; [eval] knows every_versions, group_size, seed, hold_millis, source",
                "job.toml:9: policy.sampling.temperature: \"hot\"; use a number",
                "job.toml:10: policy.sampling.top_p: 0; use more than 0, at most 1 (1 keeps all)",
                "job.toml:12: telemetry.metrics_interval_millis: 1 is out of range; use 100 to 3600000 (an hour)",
                "--set: run.seed: no value; write key=value, such as run.seed=7",
                "--set: limits.lease_milis: unknown key; did you mean limits.lease_millis?",
            ],
        );
    }

    #[test]
    fn a_grammar_asks_of_other_keys_what_it_needs() {
        let wants = |settings: &[&str], want: &str| {
            let problems = parse(JOB, settings).err().unwrap_or_default();
            let got: Vec<_> =
                problems.into_iter().map(|problem| format!("{}: {}", problem.key, problem.text)).collect();
            assert!(got.concat().contains(want), "{got:?}");
        };
        let voyager = "policy.grammar.name=web_voyager";
        wants(&[voyager], "needs marks on screenshots; set env.marks = true");
        assert!(parse(JOB, &[voyager, "env.marks=true"]).is_ok());
        wants(
            &["policy.grammar.name=morse"],
            "use one of holo_navigation, holo_navigation_pixels, holo_step",
        );
        wants(&["policy.grammar.name=ui_tars", "policy.grammar.extra=[\"drag\"]"], "has no extra actions");
        wants(&["policy.grammar.name=ui_tars", "policy.constrain.enabled=true"], "have no single layout");
    }

    #[test]
    fn a_gpu_without_known_rates_is_refused() {
        let known = "use one of h200, h100, b200, a100, l40s";
        check(
            JOB,
            &["dashboard.gpu=h300"],
            &[&format!("--set: dashboard.gpu: \"h300\" is not known; {known}")],
        );
        assert!(parse(JOB, &["dashboard.gpu=h200"]).is_ok());
    }

    #[test]
    fn one_problem_is_reported_once() {
        // No "0 sources" in addition: the sources exist but cannot be read.
        check(
            "[tasks]\nsource = \"starter\"",
            &[],
            &["job.toml:2: tasks.source: \"starter\"; write [[tasks.source]] for each entry"],
        );
        check("[[tasks.sorce]]", &[], &["job.toml:1: tasks.sorce: unknown key; did you mean tasks.source?"]);
    }

    #[test]
    fn a_section_points_at_the_line_it_speaks_of() {
        let source = "[[tasks.source]]\nsuite = \"starter\"\n";
        let missing = "path: missing; name the task file or the suite's folder";
        check(source, &[], &[&format!("job.toml:1: tasks.source[0].{missing}")]);
        check(
            &format!("{JOB}{source}"),
            &["tasks.group_size=0"],
            &[
                &format!("job.toml:7: tasks.source[1].{missing}"),
                "--set: tasks.group_size: 0 is out of range; use 1 to 1024",
            ],
        );
    }

    #[test]
    fn settings_go_on_top() {
        let job = |settings: &[&str]| parse(JOB, settings).unwrap();
        assert_eq!(job(&["run.name=123"]).run_name.as_str(), "123");
        assert_eq!(job(&["policy.sampling.temperature=0.7"]).policy.session.sampling.temperature, 0.7);
        assert_eq!(job(&["policy.sampling.temperature=0"]).policy.session.sampling.temperature, 0.0);
        assert_eq!(job(&["tasks.group_size=2", "tasks.group_size=3"]).tasks.group_size, 3);
        assert_eq!(job(&["tasks.source[0].repeat=5"]).tasks.sources[0].repeat, 5);
        assert_eq!(job(&["policy.grammar.extra=[\"drag\"]"]).policy.session.grammar.extra.len(), 1);
    }

    #[test]
    fn one_seed_is_enough() {
        let seeds = |text: &str, settings: &[&str]| {
            let job = parse(text, settings).unwrap();
            (job.tasks.seed, job.policy.session.sampling.seed)
        };
        assert_eq!(seeds(JOB, &[]), (0, 0));
        assert_eq!(seeds(JOB, &["run.seed=7"]), (7, 7));
        assert_eq!(seeds(JOB, &["run.seed=7", "tasks.seed=8"]), (8, 7));
    }

    #[test]
    fn a_run_is_called_as_its_file_and_made_beside_it() {
        let unnamed = JOB.replace("name = \"quick\"", "");
        assert_eq!(parse(&unnamed, &[]).unwrap().run_dir, Path::new("/jobs/runs/by-file"));
        assert_eq!(parse(JOB, &[]).unwrap().run_dir, Path::new("/jobs/runs/quick"));
        assert_eq!(parse(JOB, &["run.output_dir=/data"]).unwrap().run_dir, Path::new("/data/quick"));
        assert_eq!(
            parse(JOB, &[&format!("run.name={}", "x".repeat(64))]).unwrap().run_name.as_str().len(),
            64
        );
        assert!(parse(JOB, &[&format!("run.name={}", "x".repeat(65))]).is_err());
        assert!(parse(JOB, &["run.name=../up"]).is_err());
    }

    #[test]
    fn the_resolved_job_is_the_job() {
        let settings =
            ["run.seed=7", "policy.sampling.temperature=0.7", "limits.trajectories_per_version=64"];
        let job = parse(JOB, &settings).unwrap();
        // Read from another directory, under another name, without the settings.
        let parsed = Job::parse(&job.resolved, "other", Path::new("/elsewhere"), &[]).unwrap();
        assert_eq!((&parsed.resolved, &parsed.run_dir), (&job.resolved, &job.run_dir));
        assert!(job.resolved.contains("\ntemperature = 0.7\n"), "{}", job.resolved);
        assert!(job.resolved.contains("path = \"/jobs/envs/starter\"\n"), "{}", job.resolved);
    }

    #[test]
    fn the_resolved_job_names_every_key() {
        let file: toml::Table = parse(JOB, &[]).unwrap().resolved.parse().unwrap();
        let written = |key: &str| {
            let mut parts = key.split('.');
            let first = file.get(parts.next().unwrap());
            parts.try_fold(first?, |value, part| value.get(part)).map(drop)
        };
        let shape = KeyShape::of::<JobFile>();
        let missing: Vec<_> =
            shape.keys().into_iter().filter(|key| !key.contains("[]") && written(key).is_none()).collect();
        // Keys that are absent unless chosen.
        assert_eq!(
            missing,
            [
                "tasks.groups",
                "tasks.http_hosts",
                "tasks.hooks",
                "policy.remote.key_env",
                "policy.remote.image_token_id",
                "policy.remote.usd_per_million_prompt_tokens",
                "policy.remote.usd_per_million_completion_tokens",
                "policy.serve.token_file",
                "env.browser",
                "env.browser_fonts",
                "env.archive_bytes_max",
                "env.secrets",
                "score.judge.key_env",
                "score.judge.key_file",
                "score.judge.usd_per_million_prompt_tokens",
                "score.judge.usd_per_million_completion_tokens",
                "records.max_delay_millis",
                "records.merge_below_bytes",
                "records.retention_bytes",
                "records.retention_hours",
                "limits.failures_free",
                "limits.trajectories_per_version",
                "telemetry.otlp_endpoint",
                "dashboard.token_file"
            ]
        );
    }

    #[test]
    fn the_shape_of_a_job_is_known_to_the_last_key() {
        fn unknown(shape: &KeyShape) -> bool {
            match shape {
                KeyShape::Unknown => true,
                KeyShape::List(each) | KeyShape::Map(each) => unknown(each),
                KeyShape::Section(keys) => keys.iter().any(|(_, shape)| unknown(shape)),
                _ => false,
            }
        }
        let shape = KeyShape::of::<JobFile>();
        assert!(!unknown(&shape), "{shape:?}");
        let keys = shape.keys();
        for key in ["run.seed", "tasks.source[].path", "policy.sampling.top_p", "telemetry.log_level"] {
            assert!(keys.iter().any(|known| known == key), "{key} is missing among {keys:?}");
        }
    }

    #[test]
    fn what_is_probably_not_meant_is_warned_of() {
        let warned = |settings: &[&str]| {
            let warnings = parse(JOB, settings).unwrap().warnings;
            warnings.into_iter().map(|problem| problem.key).collect::<Vec<_>>()
        };
        assert_eq!(warned(&[]), [""; 0]);
        let remote = |settings: &[&str]| {
            let endpoint = ["policy.kind=openai", "policy.remote.endpoint=http://127.0.0.1:8000/v1"];
            let others = ["policy.remote.model=m", "policy.context.keep=last_image"];
            warned(&[&endpoint[..], &others, settings].concat())
        };
        assert_eq!(remote(&["policy.sampling.temperature=0.5"]), [""; 0]);
        assert_eq!(
            remote(&["policy.sampling.top_p=0.9", "policy.sampling.top_k=5", "policy.sampling.min_p=0.1"]),
            ["policy.sampling.top_p", "policy.sampling.top_k", "policy.sampling.min_p"]
        );
        assert_eq!(warned(&["policy.sampling.top_p=0.9"]), ["policy.sampling.top_p"], "it has no effect");
        assert_eq!(warned(&["env.sessions_max=9", "policy.sessions_max=8"]), ["env.sessions_max"]);
        assert_eq!(warned(&["limits.spread_first_steps=true"]), ["limits.spread_first_steps"]);
        assert_eq!(remote(&["policy.remote.deadline_millis=119999"]), [""; 0]);
        assert_eq!(remote(&["policy.remote.deadline_millis=120000"]), ["policy.remote.deadline_millis"]);
        assert_eq!(remote(&["env.policy_millis=110000"]), ["policy.remote.deadline_millis"], "the default");
    }

    #[test]
    fn a_measurement_is_not_evaluated_and_not_trained_on() {
        let eval = format!("{JOB}\n[[eval.source]]\nsuite = \"starter\"\npath = \"envs/starter\"\n");
        assert!(parse(&eval, &[]).is_ok());
        let on = "limits.spread_first_steps=true";
        check(
            &eval,
            &[on],
            &[
                "--set: limits.spread_first_steps: true, and [eval] has tasks; shortened trajectories cannot be evaluated, remove one of the two",
            ],
        );
        let problems = parse(JOB, &[on, "limits.trajectories_per_version=8"]).unwrap_err();
        assert!(problems[0].text.contains("conflicts with limits.trajectories_per_version"), "{problems:?}");
    }

    #[test]
    fn an_unreadable_job_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.toml");
        let check = |bytes: Option<&[u8]>, want: &str| {
            bytes.into_iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
            let lines = Job::read(&path, &[]).unwrap_err();
            assert!(lines[0].starts_with(&format!("{}{want}", path.display())), "{lines:?}");
        };
        check(None, ": cannot read the job file: No such file");
        check(Some(b"run = 1\n"), ":1: run: 1; write a section [run]");
        check(Some(b"\n[run\n"), ":2: not valid TOML: ");
        check(Some(b"\xff\xfe"), ": not UTF-8 text");
        check(Some(&vec![b'\n'; 1 + (1 << 20)]), ": larger than 1048576 bytes");
    }

    /// A run that began with `began`, resumed by `now`: the values of these keys and the notes.
    fn resumed(began: &str, now: &str, keys: &[&str]) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("runs/quick");
        std::fs::create_dir_all(&run).unwrap();
        let began = Job::parse(&format!("{JOB}{began}"), "job", folder.path(), &[]).unwrap();
        std::fs::write(run.join("job.toml"), &began.resolved).unwrap();
        let path = folder.path().join("job.toml");
        std::fs::write(&path, format!("{JOB}{now}")).unwrap();
        let job = Job::read_to_resume(&path, &[]).unwrap();
        let resolved: toml::Table = job.resolved.parse().unwrap();
        let value = |key: &&str| crate::identity::at(&resolved, key).unwrap().to_string();
        (keys.iter().map(value).collect(), job.notes)
    }

    #[test]
    fn a_resumed_job_takes_over_what_it_does_not_set() {
        let keys = ["policy.sampling.top_p", "policy.sampling.temperature", "env.sessions_max"];
        let began = "[policy.sampling]\ntop_p = 0.5\ntemperature = 0.25\n[env]\nsessions_max = 3\n";
        let (values, notes) = resumed(began, "[policy.sampling]\ntop_p = 0.75\n", &keys);
        // What may change in a run, such as env.sessions_max, is what the job says today.
        assert_eq!(values[..2], ["0.75", "0.25"]);
        assert_ne!(values[2], "3");
        assert_eq!(
            notes,
            ["policy.sampling.temperature: 0.25, as when the run began; this job does not set it"]
        );
        assert_eq!(resumed("", "", &["run.seed"]), (vec!["0".to_owned()], Vec::new()));
    }

    #[test]
    fn an_old_key_is_refused_in_a_users_file_and_read_in_a_stored_job() {
        let old = "[env]\nblocked_patience_millis = 7000\n";
        let problem = "env.blocked_patience_millis: renamed; write env.blocked_timeout_millis";
        check(&format!("{JOB}{old}"), &[], &[&format!("job.toml:8: {problem}")]);
        check(JOB, &["env.blocked_patience_millis=7000"], &[&format!("--set: {problem}")]);
        let stored = format!("{}every key.\n\n{JOB}{old}", stored::HEADER);
        check(&stored, &[], &[]);
        let resolved = parse(&stored, &[]).unwrap().resolved;
        assert!(resolved.contains("blocked_timeout_millis = 7000\n"), "{resolved}");
        check(&stored, &["env.blocked_patience_millis=7000"], &[&format!("--set: {problem}")]);
    }
}
