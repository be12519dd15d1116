//! The job's tasks for the coordinator: what each group draws, and what an assignment contains.

use std::collections::BTreeMap;

use furrow_rollout::{Assignment, SessionSpec, Task};
use furrow_tasks::{EvalConfig, MeasuredSuccess, TaskSampler, TaskSet, TaskSpec, TasksConfig};

use crate::assign::FirstSteps;
use crate::core::{EvaluationSchedule, GroupPlan, LeaseGrant, SampledTask, TaskTallies};
use crate::ledger::{LedgerSnapshot, TaskDraw};

/// Tasks, their sampler, and session settings.
#[derive(Debug)]
pub(crate) struct JobPlan {
    set: TaskSet,
    sampler: TaskSampler,
    group_size: u32,
    group_spares: u32,
    session: SessionSpec,
    task_indices: TaskIndices,
    eval: Option<EvalPlan>,
    first_steps: Option<FirstSteps>,
}

/// A task's index in its set, by suite and task id.
type TaskIndices = BTreeMap<(String, String), usize>;

/// The tasks that versions are evaluated on.
#[derive(Debug)]
struct EvalPlan {
    set: TaskSet,
    sampler: TaskSampler,
    schedule: EvaluationSchedule,
    task_indices: TaskIndices,
}

/// The ledger refers to a task that the job does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "group {group_id} is about {suite}/{task_id}, which the job does not have any more; resume with the task \
     files the run began with"
)]
pub struct UnknownTask {
    pub group_id: String,
    /// Suite of the task.
    pub suite: String,
    pub task_id: String,
}

impl JobPlan {
    /// A plan over a loaded set.
    pub(crate) fn new(set: TaskSet, config: &TasksConfig, session: SessionSpec) -> Self {
        let sampler = TaskSampler::new(&set, config);
        let task_indices = index_tasks(&set);
        let TasksConfig { group_size, group_spares, .. } = *config;
        Self { set, sampler, group_size, group_spares, session, task_indices, eval: None, first_steps: None }
    }

    /// The same plan with evaluations.
    pub(crate) fn with_evaluations(self, eval: Option<(TaskSet, EvalConfig)>) -> Self {
        let plan = |(set, config): (TaskSet, EvalConfig)| {
            let sampler = TaskSampler::new(&set, &config.tasks);
            let schedule = EvaluationSchedule {
                every_versions: config.every_versions,
                problems: sampler.groups(),
                group_size: config.tasks.group_size,
                hold_millis: config.hold_millis,
            };
            EvalPlan { task_indices: index_tasks(&set), set, sampler, schedule }
        };
        Self { eval: eval.map(plan), ..self }
    }

    /// The same plan with spread step limits of the first trajectories.
    pub(crate) fn with_first_steps(self, first_steps: Option<FirstSteps>) -> Self {
        Self { first_steps, ..self }
    }

    /// The task of a group's draw, as slot `sample_index` gets it.
    pub(crate) fn task(&self, draw: &TaskDraw, sample_index: u32) -> Result<Task, UnknownTask> {
        let mut task = self.spec(draw)?.with_seed(draw.seed);
        task.max_steps = self.max_steps(draw, sample_index)?;
        Ok(task)
    }

    /// Steps that a trajectory may take.
    pub(crate) fn max_steps(&self, draw: &TaskDraw, sample_index: u32) -> Result<u32, UnknownTask> {
        let max_steps = self.spec(draw)?.task.max_steps;
        let first = self.first_steps.filter(|_| draw.problem.is_none());
        Ok(first.map_or(max_steps, |first| first.limit(draw.index, draw.group_size, sample_index, max_steps)))
    }

    /// Checks that every group of a resumed run is about a task of this job.
    pub(crate) fn check(&self, snapshot: &LedgerSnapshot) -> Result<(), UnknownTask> {
        snapshot.groups.iter().try_for_each(|row| self.spec(&row.draw).map(drop))
    }

    /// The assignment an environment worker receives for a grant.
    pub(crate) fn assignment(&self, grant: LeaseGrant) -> Result<Assignment, UnknownTask> {
        Ok(Assignment {
            task: self.task(&grant.draw, grant.of.sample_index)?,
            files: self.spec(&grant.draw)?.files.clone(),
            checks: self.spec(&grant.draw)?.checks(),
            secrets: self.spec(&grant.draw)?.secrets.clone(),
            ancestry: grant.of,
            token: grant.token,
            secret: grant.secret,
            lease_millis: grant.lease_millis,
            session: self.session.clone(),
            policy_address: grant.policy_address,
        })
    }

    /// Upper bound of an assignment's size on the wire: its texts and a margin.
    pub(crate) fn assignment_bytes_max(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = |spec: &TaskSpec| {
            let Task { goal, start_url, allow_hosts, hooks, .. } = &spec.task;
            let names: usize = spec.files.uploads.iter().map(|file| file.name.len() + 64).sum();
            let secrets: usize = spec.secrets.iter().map(|name| name.len() + 8).sum();
            let checks = spec.checks();
            let queries: usize =
                checks.queries.iter().map(|query| query.to_json().to_string().len() + 8).sum();
            let hosts: usize = allow_hosts.iter().map(|host| host.len() + 8).sum();
            text(goal)
                + start_url.len()
                + hosts
                + names
                + secrets
                + text(&hooks.start)
                + text(&hooks.probe)
                + text(&hooks.solve)
                + text(&checks.reset)
                + queries
        };
        let evaluated = self.eval.iter().flat_map(|eval| eval.set.specs());
        let largest = self.set.specs().iter().chain(evaluated).map(bytes).max().unwrap_or_default();
        largest + self.session.instructions.len() + 4096
    }

    /// Upper bound of the file contents beside the assignments of one response.
    pub(crate) fn file_bytes_max(&self) -> usize {
        let evaluated = self.eval.as_ref().map_or(0, |eval| eval.set.file_bytes());
        self.set.file_bytes() + evaluated
    }

    /// How sessions are set up.
    pub(crate) fn session(&self) -> &SessionSpec {
        &self.session
    }

    /// The task of a group and its scorer.
    pub(crate) fn spec(&self, draw: &TaskDraw) -> Result<&TaskSpec, UnknownTask> {
        let (set, task_indices) = match (draw.problem, &self.eval) {
            (None, _) => (Some(&self.set), Some(&self.task_indices)),
            (Some(_), eval) => {
                (eval.as_ref().map(|eval| &eval.set), eval.as_ref().map(|eval| &eval.task_indices))
            }
        };
        let index = task_indices
            .and_then(|task_indices| task_indices.get(&(draw.suite.clone(), draw.task_id.clone())));
        set.zip(index).map(|(set, index)| &set.specs()[*index]).ok_or_else(|| UnknownTask {
            group_id: draw.group_id.to_string(),
            suite: draw.suite.clone(),
            task_id: draw.task_id.clone(),
        })
    }
}

impl GroupPlan for JobPlan {
    fn groups(&self) -> u64 {
        self.sampler.groups()
    }

    fn group_size(&self) -> u32 {
        self.group_size + self.group_spares
    }

    fn group_needs(&self) -> u32 {
        self.group_size
    }

    fn draw(&self, index: u64, tallies: &TaskTallies) -> SampledTask {
        let measured = |task_index: usize| {
            let task = &self.set.specs()[task_index].task;
            let tally = tallies.get(&(task.suite.clone(), task.task_id.clone())).copied().unwrap_or_default();
            MeasuredSuccess { scored: tally.scored, succeeded: tally.succeeded }
        };
        let (draw, chance) = self.sampler.draw_measured(index, measured);
        sampled_task(&self.set.specs()[draw.spec], draw.seed, chance)
    }

    fn schedule(&self) -> Option<EvaluationSchedule> {
        self.eval.as_ref().map(|eval| eval.schedule)
    }

    fn problem(&self, index: u64) -> SampledTask {
        let (set, sampler) =
            self.eval.as_ref().map_or((&self.set, &self.sampler), |eval| (&eval.set, &eval.sampler));
        let draw = sampler.draw(index);
        sampled_task(&set.specs()[draw.spec], draw.seed, None)
    }
}

fn sampled_task(spec: &TaskSpec, seed: u64, chance: Option<f64>) -> SampledTask {
    SampledTask {
        suite: spec.task.suite.clone(),
        task_id: spec.task.task_id.clone(),
        split: spec.task.split,
        seed: spec.with_seed(seed).seed,
        task_json: spec.record(),
        chance,
    }
}

fn index_tasks(set: &TaskSet) -> TaskIndices {
    let name = |spec: &TaskSpec| (spec.task.suite.clone(), spec.task.task_id.clone());
    set.specs().iter().enumerate().map(|(index, spec)| (name(spec), index)).collect()
}
