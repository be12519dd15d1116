//! What every loader of a source works with: its defaults, the tasks that it makes, its result.

use std::collections::HashSet;

use furrow_rollout::{ObservationSpec, PageClock, PageHooks, Size, Split, Task, TaskChecks, TaskFiles};
use serde_json::{Map, Value};

use crate::file_keys::FileKeys;
use crate::jsonl::CommonKeys;
use crate::{Scorer, SiteSpec, SourceConfig, glob};

/// A task, its scorer, and the line it came from.
#[derive(Debug, Clone)]
pub struct TaskSpec {
    /// The task; its seed is only valid after [`TaskSpec::with_seed`] has set it.
    pub task: Task,
    /// The scorer that turns evidence into a reward.
    pub scorer: Scorer,
    /// The task's line in its file, a JSON object with at least the key `score`, from which
    /// [`Scorer::of_task_json`] rebuilds the scorer.
    pub json: String,
    /// Version of its suite: the same lines and the same pages have the same.
    pub suite_version: Option<String>,
    /// The line's difficulty: a name or a level.
    pub difficulty: Option<String>,
    /// Success rate of the best known policy that looks at nothing, from 0 to 1, as the line
    /// declares it.
    pub chance_level: Option<f64>,
    /// The line's own seed, which overrides the sampler's.
    pub fixed_seed: Option<u64>,
    /// The files that its pages may take and give.
    pub files: TaskFiles,
    /// The line's keys about them, until they are read.
    pub(crate) file_keys: FileKeys,
    /// Name of the job's hook that resets the task's back end before each trajectory.
    pub reset: Option<String>,
    /// Names of the job's secrets that its trajectories may use.
    pub secrets: Vec<String>,
    /// Weight of one planned repetition under the weighted sampler.
    pub(crate) weight: f64,
    /// Number of repetitions in the plan.
    pub(crate) repeat: u32,
}

/// Defaults of a suite's tasks where neither their lines nor the job set a value.
pub(crate) struct SuiteDefaults {
    pub(crate) split: Split,
    pub(crate) max_steps: u32,
    pub(crate) time_limit_millis: u64,
    pub(crate) viewport: Size,
    pub(crate) observation: ObservationSpec,
    pub(crate) clock: PageClock,
}

/// The result of loading one source.
#[derive(Default)]
pub(crate) struct LoadedSource {
    pub(crate) specs: Vec<TaskSpec>,
    pub(crate) sites: Vec<SiteSpec>,
    /// The file's name in problems, and the line of each row, in the order of `specs` if nothing
    /// was wrong.
    pub(crate) location: String,
    pub(crate) lines: Vec<usize>,
    /// Ids that are left out.
    pub(crate) left_out: HashSet<String>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

impl TaskSpec {
    /// The task with a group's seed. A seed fixed by the line stays.
    pub fn with_seed(&self, seed: u64) -> Task {
        Task { seed: self.fixed_seed.unwrap_or(seed), ..self.task.clone() }
    }

    /// What records keep of the task: its line, and the version of its suite as `suite_version`.
    pub fn record(&self) -> String {
        let line = || serde_json::from_str::<Map<String, Value>>(&self.json).ok();
        let Some((version, mut record)) = self.suite_version.as_deref().zip(line()) else {
            return self.json.clone();
        };
        record.insert("suite_version".to_owned(), version.into());
        Value::Object(record).to_string()
    }

    /// What an environment worker does for the scorer.
    pub fn checks(&self) -> TaskChecks {
        TaskChecks { reset: self.reset.clone(), queries: self.scorer.queries() }
    }

    /// Whether its id, or suite and id, matches one of these patterns with `*` and `?`.
    pub fn fits_any(&self, patterns: &[String]) -> bool {
        glob::any_fits(patterns, &self.task.task_id) || glob::any_fits(patterns, &self.name())
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.task.suite, self.task.task_id)
    }

    /// Suite and id of the template that it was made of: tasks of several splits may share one.
    /// Other tasks are their own template.
    pub fn template(&self) -> String {
        let line: Option<Map<String, Value>> = serde_json::from_str(&self.json).ok();
        let template = line.as_ref().and_then(|line| line.get("template")?.as_str());
        format!("{}/{}", self.task.suite, template.unwrap_or(&self.task.task_id))
    }

    /// Precedence: the line overrides the suite's defaults, and the job overrides both.
    pub(crate) fn assembled(
        line: CommonKeys,
        scorer: Scorer,
        hooks: PageHooks,
        json: String,
        source: &SourceConfig,
        defaults: &SuiteDefaults,
    ) -> Self {
        let mut allow_hosts = line.allow_hosts;
        allow_hosts.extend(source.allow_hosts.iter().cloned());
        let task = Task {
            task_id: line.task_id,
            suite: source.suite.clone(),
            split: source.split.or(line.split).unwrap_or(defaults.split),
            goal: line.goal,
            start_url: line.start_url.into(),
            seed: line.seed.unwrap_or_default(),
            max_steps: source.max_steps.or(line.max_steps).unwrap_or(defaults.max_steps),
            time_limit_millis: line.time_limit_millis.unwrap_or(defaults.time_limit_millis),
            viewport: line.viewport.unwrap_or(defaults.viewport),
            observation: defaults.observation.clone(),
            allow_hosts,
            hooks,
            clock: defaults.clock,
        };
        let difficulty = line.difficulty;
        let chance_level = line.chance_level;
        let fixed_seed = line.seed;
        let files = TaskFiles::default();
        let file_keys = line.files;
        let reset = line.reset;
        let secrets = line.secrets;
        Self {
            task,
            scorer,
            json,
            suite_version: None,
            difficulty,
            chance_level,
            fixed_seed,
            reset,
            secrets,
            files,
            file_keys,
            weight: 0.0,
            repeat: source.repeat,
        }
    }
}
