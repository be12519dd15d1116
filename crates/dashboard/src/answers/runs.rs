//! The answers of `/api/runs` and `/api/compare`.

use furrow_analysis::{ComparisonVerdict, Estimate, RunComparison, TaskDifference};
use serde::{Deserialize, Serialize};

/// The runs of a folder.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RunsAnswer {
    pub folder: String,
    pub runs: Vec<RunLine>,
    /// Runs beyond those that are listed.
    pub left_out: u64,
}

/// One run of a folder.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RunLine {
    /// Its pages are below `/run/KEY/`.
    pub key: String,
    pub name: String,
    /// Directory below the folder.
    pub dir: String,
    /// `running`, `complete`, `stopped` or `cut off`.
    pub state: String,
    pub policy: String,
    /// Wall clock of its first start, UTC.
    pub started: Option<String>,
    pub bytes: u64,
    /// Trajectories of its data set, failed ones included; `None` if it cannot be read.
    pub trajectories: Option<u64>,
    pub success_rate: Option<f64>,
    /// Scored trajectories whose scorer decides whether the task is solved, evaluations left out.
    pub judged: Option<u64>,
    pub reward_mean: Option<f64>,
}

/// How runs differ from the first of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct CompareAnswer {
    /// Keys of the runs; the first one is what the others are compared with.
    pub keys: Vec<String>,
    /// One for each run after the first.
    pub comparisons: Vec<ComparisonAnswer>,
}

/// How a run differs from another, as `docs/EVALUATION.md` explains.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct ComparisonAnswer {
    /// `better`, `worse` or `undecided`.
    pub verdict: String,
    /// The same with names and numbers.
    pub sentence: String,
    /// Mean difference of the success rates by task.
    pub success: Option<DifferenceAnswer>,
    /// Mean difference of the rewards by task.
    pub reward: Option<DifferenceAnswer>,
    /// Tasks that both tried, with equal definitions.
    pub shared_tasks: u64,
    /// The tasks with the largest losses first.
    pub tasks: Vec<TaskDifferenceLine>,
    /// Shared tasks that are not listed.
    pub tasks_left_out: u64,
    pub only_first: u64,
    pub only_second: u64,
    /// Tasks of both with different definitions.
    pub redefined: u64,
}

/// A difference and its 95 % interval, if the tasks give one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct DifferenceAnswer {
    pub value: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
}

/// The difference at one task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TaskDifferenceLine {
    pub suite: String,
    pub task_id: String,
    pub success_first: Option<f64>,
    pub success_second: Option<f64>,
    pub judged_first: u64,
    pub judged_second: u64,
    /// Of the success rates, with the interval of these attempts alone.
    pub success: Option<DifferenceAnswer>,
    /// Of the mean rewards.
    pub reward: Option<f64>,
}

/// Most tasks of an answer, half of them from either end.
const TASKS_MAX: usize = 400;

impl From<&RunComparison> for ComparisonAnswer {
    fn from(found: &RunComparison) -> Self {
        let verdict = match found.verdict() {
            ComparisonVerdict::Better => "better",
            ComparisonVerdict::Worse => "worse",
            ComparisonVerdict::Undecided => "undecided",
        };
        let shared = found.tasks.len();
        let ends = |at: &usize| shared <= TASKS_MAX || *at < TASKS_MAX / 2 || *at >= shared - TASKS_MAX / 2;
        let tasks: Vec<TaskDifferenceLine> =
            (0..shared).filter(ends).map(|at| TaskDifferenceLine::from(&found.tasks[at])).collect();
        Self {
            verdict: verdict.to_owned(),
            sentence: String::new(),
            success: found.success.map(DifferenceAnswer::from),
            reward: found.reward.map(DifferenceAnswer::from),
            shared_tasks: shared as u64,
            tasks_left_out: (shared - tasks.len()) as u64,
            tasks,
            only_first: found.only_first,
            only_second: found.only_second,
            redefined: found.redefined,
        }
    }
}

impl From<Estimate> for DifferenceAnswer {
    fn from(Estimate { value, interval }: Estimate) -> Self {
        Self { value, low: interval.map(|of| of.low), high: interval.map(|of| of.high) }
    }
}

impl From<&TaskDifference> for TaskDifferenceLine {
    fn from(task: &TaskDifference) -> Self {
        let interval = task.success_interval;
        Self {
            suite: task.suite.clone(),
            task_id: task.task_id.clone(),
            success_first: task.first.success_rate(),
            success_second: task.second.success_rate(),
            judged_first: task.first.success_known,
            judged_second: task.second.success_known,
            success: task.success.map(|value| DifferenceAnswer {
                value,
                low: interval.map(|(low, _)| low),
                high: interval.map(|(_, high)| high),
            }),
            reward: task.reward,
        }
    }
}
