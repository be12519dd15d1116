//! Compares two data sets task by task: which policy is better, by how much, and at which tasks.
//!
//! Only tasks that both tried, with equal definitions, are compared. The difference of a task is
//! that of its two means; the difference of the runs is the mean over tasks, and its interval
//! resamples tasks. Two intervals of rates may overlap although one policy is surely better; that
//! of the difference takes the tasks as pairs.

use std::collections::BTreeMap;
use std::path::Path;

use furrow_records::RecordsError;
use serde::Serialize;

use crate::attempt::{AttemptResult, TaskAttempt};
use crate::evaluate::{EvaluationQuery, attempts};
use crate::statistics::{Estimate, TaskShare, TermKind, estimate, wilson};

/// How the second of two runs differs from the first.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RunComparison {
    /// Mean difference of the success rates of the tasks, second minus first; `None` where no task
    /// has a decided attempt in both.
    pub success: Option<Estimate>,
    /// The same of the mean rewards.
    pub reward: Option<Estimate>,
    /// Every compared task, those at which the second run is worst first.
    pub tasks: Vec<TaskDifference>,
    /// Tasks that only the first run tried.
    pub only_first: u64,
    /// Tasks that only the second run tried.
    pub only_second: u64,
    /// Tasks of both whose definitions differ: their rates say nothing about each other.
    pub redefined: u64,
}

/// The difference at one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskDifference {
    /// Suite of the task.
    pub suite: String,
    /// Id of the task.
    pub task_id: String,
    /// What the first run reached.
    pub first: TaskResult,
    /// What the second run reached.
    pub second: TaskResult,
    /// Success rate of the second minus that of the first.
    pub success: Option<f64>,
    /// 95 % interval of that difference, from the attempts at this task alone.
    pub success_interval: Option<(f64, f64)>,
    /// Mean reward of the second minus that of the first.
    pub reward: Option<f64>,
}

/// The attempts of a run at one task.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TaskResult {
    /// Attempts with a reward.
    pub scored: u64,
    /// Those whose scorer decides whether the task is solved.
    #[serde(rename = "judged")]
    pub success_known: u64,
    /// Those that solved it.
    pub successes: u64,
    /// Sum of the rewards.
    pub reward_sum: f64,
    #[serde(skip)]
    definition: [u8; 32],
}

/// What a comparison says about the second run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonVerdict {
    /// The interval of the difference is above 0.
    Better,
    /// The interval is below 0.
    Worse,
    /// The interval holds 0, or there is none.
    Undecided,
}

/// Reads two data sets and compares the second with the first.
pub fn compare_runs(
    first: &Path,
    second: &Path,
    question: &EvaluationQuery,
) -> Result<RunComparison, RecordsError> {
    Ok(compare(&attempts(first, question)?, &attempts(second, question)?, question.seed))
}

/// Compares the attempts of a second run with those of a first.
pub fn compare(first: &[TaskAttempt], second: &[TaskAttempt], seed: u64) -> RunComparison {
    let first = by_task(first);
    let second = by_task(second);
    let count = |tasks: usize| tasks as u64;
    let is_in_both = |key: &&(&str, &str)| second.contains_key(*key);
    let shared: Vec<_> = first.keys().filter(is_in_both).collect();
    let is_equal = |key: &&&(&str, &str)| first[**key].definition == second[**key].definition;
    let mut tasks: Vec<TaskDifference> = shared
        .iter()
        .filter(is_equal)
        .map(|&&key| TaskDifference::between(key, first[&key], second[&key]))
        .collect();
    let mean = |differences: Vec<f64>| {
        let shares: Vec<TaskShare> =
            differences.into_iter().map(|sum| TaskShare { sum, count: 1.0 }).collect();
        estimate(&shares, TermKind::Numbers, seed)
    };
    let success = mean(tasks.iter().filter_map(|task| task.success).collect());
    let reward = mean(tasks.iter().filter_map(|task| task.reward).collect());
    let redefined = count(shared.len() - tasks.len());
    let order = |task: &TaskDifference| (task.success.unwrap_or(0.0), task.reward.unwrap_or(0.0));
    tasks.sort_by(|a, b| order(a).0.total_cmp(&order(b).0).then(order(a).1.total_cmp(&order(b).1)));
    RunComparison {
        success,
        reward,
        tasks,
        only_first: count(first.len() - shared.len()),
        only_second: count(second.len() - shared.len()),
        redefined,
    }
}

impl RunComparison {
    /// Whether the second run is better, by success where the scorers decide it, else by reward.
    pub fn verdict(&self) -> ComparisonVerdict {
        let interval = self.success.or(self.reward).and_then(|difference| difference.interval);
        match interval {
            Some(interval) if interval.low > 0.0 => ComparisonVerdict::Better,
            Some(interval) if interval.high < 0.0 => ComparisonVerdict::Worse,
            _ => ComparisonVerdict::Undecided,
        }
    }
}

impl TaskDifference {
    fn between((suite, task_id): (&str, &str), first: TaskResult, second: TaskResult) -> Self {
        let difference = |of: fn(&TaskResult) -> Option<f64>| Some(of(&second)? - of(&first)?);
        Self {
            suite: suite.to_owned(),
            task_id: task_id.to_owned(),
            first,
            second,
            success: difference(TaskResult::success_rate),
            success_interval: difference_interval(&first, &second),
            reward: difference(TaskResult::reward_mean),
        }
    }
}

impl TaskResult {
    /// Share of the decided attempts that solved the task.
    pub fn success_rate(&self) -> Option<f64> {
        (self.success_known > 0).then(|| self.successes as f64 / self.success_known as f64)
    }

    /// Mean reward of the scored attempts.
    pub fn reward_mean(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.reward_sum / self.scored as f64)
    }
}

fn by_task(attempts: &[TaskAttempt]) -> BTreeMap<(&str, &str), TaskResult> {
    let mut tasks: BTreeMap<(&str, &str), TaskResult> = BTreeMap::new();
    for attempt in attempts {
        let AttemptResult::Scored { reward, success } = attempt.verdict else { continue };
        let task = tasks.entry((&attempt.suite, &attempt.task_id)).or_default();
        task.definition = attempt.definition;
        task.scored += 1;
        task.reward_sum += reward;
        task.success_known += u64::from(success.is_some());
        task.successes += u64::from(success == Some(true));
    }
    tasks
}

/// The hybrid score interval of a difference of two rates (R. G. Newcombe 1998, Statistics in
/// Medicine 17, 873–890, method 10): built of the two Wilson intervals.
fn difference_interval(first: &TaskResult, second: &TaskResult) -> Option<(f64, f64)> {
    let of = |task: &TaskResult| {
        let (low, high) = wilson(task.successes as f64, task.success_known as f64)?;
        Some((task.success_rate()?, low, high))
    };
    let (rate, low, high) = of(second)?;
    let (rate_before, low_before, high_before) = of(first)?;
    let difference = rate - rate_before;
    let below = (rate - low).hypot(high_before - rate_before);
    let above = (high - rate).hypot(rate_before - low_before);
    Some(((difference - below).max(-1.0), (difference + above).min(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(task: &str, definition: u8, results: &[(f64, bool)]) -> Vec<TaskAttempt> {
        let attempt = |&(reward, solved): &(f64, bool)| TaskAttempt {
            suite: "web".into(),
            suite_version: String::new(),
            task_id: task.into(),
            site: String::new(),
            difficulty: None,
            definition: [definition; 32],
            seed: 1,
            slot: "g 0".into(),
            verdict: AttemptResult::Scored { reward, success: Some(solved) },
        };
        results.iter().map(attempt).collect()
    }

    /// Newcombe 1998, table II, method 10: the published intervals of 56/70 and 48/80, 9/10 and
    /// 3/10, 10/10 and 0/20.
    #[test]
    fn the_interval_of_two_rates_is_the_published_one() {
        for (second, first, low, high) in [
            ((56, 70), (48, 80), 0.0524, 0.3339),
            ((9, 10), (3, 10), 0.1705, 0.8090),
            ((10, 10), (0, 20), 0.6791, 1.0),
        ] {
            let task = |(successes, success_known)| TaskResult {
                scored: success_known,
                success_known,
                successes,
                ..TaskResult::default()
            };
            let got = difference_interval(&task(first), &task(second)).unwrap();
            assert!((got.0 - low).abs() < 5e-5 && (got.1 - high).abs() < 5e-5, "{got:?}");
        }
    }

    #[test]
    fn tasks_are_paired_and_the_worst_comes_first() {
        let [lost, won] = [(0.0, false), (1.0, true)];
        let first = [
            tries("a", 1, &[lost, won]),
            tries("b", 1, &[won, won]),
            tries("old", 1, &[won]),
            tries("re", 1, &[won]),
        ]
        .concat();
        let second = [
            tries("a", 1, &[won, won]),
            tries("b", 1, &[lost, lost, lost]),
            tries("new", 1, &[won]),
            tries("re", 2, &[lost]),
        ]
        .concat();
        let found = compare(&first, &second, 0);
        let ids: Vec<&str> = found.tasks.iter().map(|task| task.task_id.as_str()).collect();
        assert_eq!(ids, ["b", "a"], "a task with another definition is none of them");
        assert_eq!((found.only_first, found.only_second, found.redefined), (1, 1, 1));
        assert_eq!(found.tasks[0].success, Some(-1.0));
        // Each task counts once, however often it was tried.
        assert_eq!(found.success.unwrap().value, -0.25);
        assert_eq!(found.verdict(), ComparisonVerdict::Undecided, "two tasks that disagree decide nothing");
        let mirrored = compare(&second, &first, 0);
        assert_eq!(mirrored.success.unwrap().value, 0.25);
    }

    #[test]
    fn a_difference_at_every_task_is_found_although_rates_overlap() {
        let solves = |count: usize| (0..10).map(|at| (f64::from(u8::from(at < count)), at < count)).collect();
        let run = |better: usize| -> Vec<TaskAttempt> {
            (0..9)
                .flat_map(|task| {
                    let results: Vec<(f64, bool)> = solves(task + better.min(1 + task % 2));
                    tries(&format!("task-{task}"), 1, &results)
                })
                .collect()
        };
        let found = compare(&run(0), &run(2), 0);
        assert_eq!(found.verdict(), ComparisonVerdict::Better, "{:?}", found.success);
        assert_eq!(compare(&run(2), &run(0), 0).verdict(), ComparisonVerdict::Worse);
        assert_eq!(compare(&run(1), &run(1), 0).verdict(), ComparisonVerdict::Undecided);
        assert_eq!(compare(&[], &run(1), 0).success, None);
    }
}
