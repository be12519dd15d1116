//! The job's tasks as the coordinator sees them: what each group draws, and what an assignment says of it.

use std::collections::BTreeMap;

use furrow_rollout::{Assignment, SessionSpec, Task};
use furrow_tasks::{EvalConfig, Measured, Sampler, TaskSet, TaskSpec, TasksConfig};

use crate::assign::FirstSteps;
use crate::core::{Drawn, Grant, Plan, Schedule, Tallies};
use crate::ledger::{Draw, Snapshot};

/// Tasks, the sampler over them, and how sessions are set up.
#[derive(Debug)]
pub struct JobPlan {
    set: TaskSet,
    sampler: Sampler,
    group_size: u32,
    group_spares: u32,
    session: SessionSpec,
    places: Places,
    eval: Option<EvalPlan>,
    first_steps: Option<FirstSteps>,
}

/// Where a task stands in its set, by suite and task id.
type Places = BTreeMap<(String, String), usize>;

/// What versions are evaluated on.
#[derive(Debug)]
struct EvalPlan {
    set: TaskSet,
    sampler: Sampler,
    schedule: Schedule,
    places: Places,
}

/// The ledger speaks of a task that the job does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "group {group_id} is about {suite}/{task_id}, which is not among the job's tasks any more; resume with the task files it began with"
)]
pub struct UnknownTask {
    /// The group.
    pub group_id: String,
    /// Suite of the task.
    pub suite: String,
    /// The task.
    pub task_id: String,
}

impl JobPlan {
    /// A plan over a loaded set.
    pub fn new(set: TaskSet, config: &TasksConfig, session: SessionSpec) -> Self {
        let sampler = Sampler::new(&set, config);
        let places = places(&set);
        let TasksConfig { group_size, group_spares, .. } = *config;
        Self { set, sampler, group_size, group_spares, session, places, eval: None, first_steps: None }
    }

    /// The same with evaluations.
    pub fn evaluated(self, eval: Option<(TaskSet, EvalConfig)>) -> Self {
        let plan = |(set, config): (TaskSet, EvalConfig)| {
            let sampler = Sampler::new(&set, &config.tasks);
            let schedule = Schedule {
                every_versions: config.every_versions,
                problems: sampler.groups(),
                group_size: config.tasks.group_size,
                hold_millis: config.hold_millis,
            };
            EvalPlan { places: places(&set), set, sampler, schedule }
        };
        Self { eval: eval.map(plan), ..self }
    }

    /// The same with step limits of the first trajectories spread.
    pub fn spread(self, first_steps: Option<FirstSteps>) -> Self {
        Self { first_steps, ..self }
    }

    /// The task of a group, drawn, as slot `sample_index` has it.
    pub fn task(&self, draw: &Draw, sample_index: u32) -> Result<Task, UnknownTask> {
        let mut task = self.spec(draw)?.drawn(draw.seed);
        task.max_steps = self.max_steps(draw, sample_index)?;
        Ok(task)
    }

    /// Steps that a trajectory may take.
    pub fn max_steps(&self, draw: &Draw, sample_index: u32) -> Result<u32, UnknownTask> {
        let max_steps = self.spec(draw)?.task.max_steps;
        let first = self.first_steps.filter(|_| draw.problem.is_none());
        Ok(first.map_or(max_steps, |first| first.limit(draw.index, draw.group_size, sample_index, max_steps)))
    }

    /// Whether every group of a resumed run is about a task of this job.
    pub fn check(&self, snapshot: &Snapshot) -> Result<(), UnknownTask> {
        snapshot.groups.iter().try_for_each(|row| self.spec(&row.draw).map(drop))
    }

    /// What an environment worker is told of a grant.
    pub fn assignment(&self, grant: Grant) -> Result<Assignment, UnknownTask> {
        Ok(Assignment {
            task: self.task(&grant.draw, grant.of.sample_index)?,
            ancestry: grant.of,
            token: grant.token,
            lease_millis: grant.lease_millis,
            session: self.session.clone(),
            policy_address: grant.policy_address,
        })
    }

    /// Upper bound of what one assignment takes on the wire: its texts and a little for the rest.
    pub fn assignment_bytes_max(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = |spec: &TaskSpec| {
            let Task { goal, start_url, allow_hosts, hooks, .. } = &spec.task;
            let hosts: usize = allow_hosts.iter().map(|host| host.len() + 8).sum();
            text(goal)
                + start_url.len()
                + hosts
                + text(&hooks.start)
                + text(&hooks.probe)
                + text(&hooks.solve)
        };
        let evaluated = self.eval.iter().flat_map(|eval| eval.set.specs());
        let largest = self.set.specs().iter().chain(evaluated).map(bytes).max().unwrap_or_default();
        largest + self.session.instructions.len() + 4096
    }

    /// How sessions are set up.
    pub fn session(&self) -> &SessionSpec {
        &self.session
    }

    /// The task of a group and how it is scored.
    pub fn spec(&self, draw: &Draw) -> Result<&TaskSpec, UnknownTask> {
        let (set, places) = match (draw.problem, &self.eval) {
            (None, _) => (Some(&self.set), Some(&self.places)),
            (Some(_), eval) => (eval.as_ref().map(|eval| &eval.set), eval.as_ref().map(|eval| &eval.places)),
        };
        let place = places.and_then(|places| places.get(&(draw.suite.clone(), draw.task_id.clone())));
        set.zip(place).map(|(set, place)| &set.specs()[*place]).ok_or_else(|| UnknownTask {
            group_id: draw.group_id.to_string(),
            suite: draw.suite.clone(),
            task_id: draw.task_id.clone(),
        })
    }
}

impl Plan for JobPlan {
    fn groups(&self) -> u64 {
        self.sampler.groups()
    }

    fn group_size(&self) -> u32 {
        self.group_size + self.group_spares
    }

    fn group_needs(&self) -> u32 {
        self.group_size
    }

    fn draw(&self, index: u64, tallies: &Tallies) -> Drawn {
        let measured = |place: usize| {
            let task = &self.set.specs()[place].task;
            let tally = tallies.get(&(task.suite.clone(), task.task_id.clone())).copied().unwrap_or_default();
            Measured { scored: tally.scored, succeeded: tally.succeeded }
        };
        let (draw, chance) = self.sampler.draw_measured(index, measured);
        drawn(&self.set.specs()[draw.spec], draw.seed, chance)
    }

    fn schedule(&self) -> Option<Schedule> {
        self.eval.as_ref().map(|eval| eval.schedule)
    }

    fn problem(&self, index: u64) -> Drawn {
        let (set, sampler) =
            self.eval.as_ref().map_or((&self.set, &self.sampler), |eval| (&eval.set, &eval.sampler));
        let draw = sampler.draw(index);
        drawn(&set.specs()[draw.spec], draw.seed, None)
    }
}

fn drawn(spec: &TaskSpec, seed: u64, chance: Option<f64>) -> Drawn {
    Drawn {
        suite: spec.task.suite.clone(),
        task_id: spec.task.task_id.clone(),
        split: spec.task.split,
        seed: spec.drawn(seed).seed,
        task_json: spec.json.clone(),
        chance,
    }
}

fn places(set: &TaskSet) -> Places {
    let name = |spec: &TaskSpec| (spec.task.suite.clone(), spec.task.task_id.clone());
    set.specs().iter().enumerate().map(|(place, spec)| (name(spec), place)).collect()
}
