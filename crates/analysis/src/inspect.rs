//! Metrics of a data set, for `furrow records inspect`.

use std::collections::BTreeMap;
use std::path::Path;

use furrow_records::cell::columns;
use furrow_records::{DataSet, LogprobGap, RecordsError, Table};
use serde::Serialize;

use crate::timing::TimingCell;

/// Metrics over a whole data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataSetSummary {
    /// Newest commit that was read.
    pub version: u64,
    /// Size of each table.
    pub tables: Vec<TableTotals>,
    /// Rewards by suite and policy.
    pub suites: Vec<RewardLine>,
    /// Rewards by suite, task and policy.
    pub tasks: Vec<RewardLine>,
    /// Trajectories by their end.
    pub ends: Vec<EndLine>,
    /// Steps of all trajectories, including failed ones.
    pub steps: u64,
    /// Prompt tokens of all steps.
    pub prompt_tokens: u64,
    /// Response tokens of all steps.
    pub response_tokens: u64,
    /// Oldest and newest policy version.
    pub policy_versions: Option<(i32, i32)>,
    /// Device time of all trajectories.
    pub gpu_micros: u64,
    /// Time of the trajectories by cause, largest first.
    pub timing: Vec<TimeLine>,
    /// For each file of steps with tokens rescored by the prefill path, the gap between their
    /// log-probs and the recorded ones.
    pub prefill_gaps: Vec<ShardGap>,
}

/// The log-prob gap of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardGap {
    /// Path of the file below `data/`.
    pub path: String,
    /// Recorded log-probs minus those of the prefill path.
    #[serde(flatten)]
    pub gap: LogprobGap,
}

/// Size of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableTotals {
    /// The table this size belongs to.
    pub table: Table,
    /// Number of its files.
    pub files: u64,
    /// Number of its rows.
    pub rows: u64,
    /// Bytes of its files on disk.
    pub bytes: u64,
    /// Rows that were removed for good, because they were the oldest.
    pub expired: u64,
}

/// Rewards of one kind of trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardLine {
    /// Suite of the tasks.
    pub suite: String,
    /// Task; absent where a line sums up a suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Kind of policy that acted.
    pub policy_kind: String,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Attempts that ended by the farm's fault.
    pub failed: u64,
    /// Mean reward of the scored ones.
    pub reward_mean: Option<f64>,
    /// Share of successes among the scored trajectories with a known success.
    pub success_rate: Option<f64>,
}

/// Trajectories with the same end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndLine {
    /// Name of the end.
    pub end: String,
    /// `scored` if a scorer received this end, `failed` if the farm caused it.
    pub status: String,
    /// Trajectories with this end and status, evaluations included.
    pub trajectories: u64,
}

/// Time of one cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeLine {
    /// A cause, `queue` or `score`.
    pub cause: String,
    /// Sum over all trajectories, in microseconds.
    pub micros: u64,
    /// Share of the total, 0 to 1.
    pub share: f64,
}

columns! {
    /// The columns that the metrics are computed from: no picture is read.
    MetricRow {
        task_id: String,
        suite: String,
        policy_kind: String,
        status: String,
        end: String,
        reward: Option<f32>,
        score: Option<VerdictCell>,
        num_steps: i32,
        num_prompt_tokens: i64,
        num_response_tokens: i64,
        policy_version_min: Option<i32>,
        policy_version_max: Option<i32>,
        timing: TimingCell,
        gpu_micros: i64,
    }

    VerdictCell { success: Option<bool> }
}

/// Sums for a `RewardLine`.
#[derive(Default)]
struct RewardSums {
    scored: u64,
    failed: u64,
    sum: f64,
    success_known: u64,
    successes: u64,
}

#[derive(Default)]
struct SummarySums {
    rewards: BTreeMap<(String, Option<String>, String), RewardSums>,
    ends: BTreeMap<(String, String), u64>,
    steps: u64,
    prompt_tokens: u64,
    response_tokens: u64,
    policy_versions: Option<(i32, i32)>,
    gpu_micros: u64,
    micros: BTreeMap<&'static str, u64>,
}

/// Reads the metrics of a run directory or its `data` folder.
pub fn inspect(dir: &Path) -> Result<DataSetSummary, RecordsError> {
    let set = DataSet::open(dir)?;
    let mut sums = SummarySums::default();
    for batch in set.rows::<MetricRow>(Table::Trajectories) {
        batch?.iter().for_each(|row| sums.add(row));
    }
    let mut summary = sums.summary(&set);
    for file in set.snapshot().files(Table::Steps) {
        let gap = set.prefill_gap(file)?;
        summary.prefill_gaps.extend(gap.map(|gap| ShardGap { path: file.path.clone(), gap }));
    }
    Ok(summary)
}

impl SummarySums {
    fn add(&mut self, row: &MetricRow) {
        for task in [None, Some(row.task_id.clone())] {
            self.rewards.entry((row.suite.clone(), task, row.policy_kind.clone())).or_default().add(row);
        }
        *self.ends.entry((row.end.clone(), row.status.clone())).or_default() += 1;
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        add(&mut self.steps, count(row.num_steps.into()));
        add(&mut self.prompt_tokens, count(row.num_prompt_tokens));
        add(&mut self.response_tokens, count(row.num_response_tokens));
        add(&mut self.gpu_micros, count(row.gpu_micros));
        for (cause, micros) in row.timing.causes() {
            add(self.micros.entry(cause).or_default(), count(micros));
        }
        if let Some((min, max)) = row.policy_version_min.zip(row.policy_version_max) {
            let (oldest, newest) = self.policy_versions.unwrap_or((min, max));
            self.policy_versions = Some((oldest.min(min), newest.max(max)));
        }
    }

    fn summary(self, set: &DataSet) -> DataSetSummary {
        let (suites, tasks) =
            self.rewards.into_iter().partition::<Vec<_>, _>(|((_, task, _), _)| task.is_none());
        let lines = |sums: Vec<_>| sums.into_iter().map(|(key, sums)| RewardSums::line(key, &sums)).collect();
        let end = |((end, status), trajectories)| EndLine { end, status, trajectories };
        DataSetSummary {
            version: set.snapshot().version(),
            tables: Table::ALL.map(|table| table_totals(set, table)).to_vec(),
            suites: lines(suites),
            tasks: lines(tasks),
            ends: self.ends.into_iter().map(end).collect(),
            steps: self.steps,
            prompt_tokens: self.prompt_tokens,
            response_tokens: self.response_tokens,
            policy_versions: self.policy_versions,
            gpu_micros: self.gpu_micros,
            timing: time_lines(&self.micros),
            prefill_gaps: Vec::new(),
        }
    }
}

impl RewardSums {
    fn add(&mut self, row: &MetricRow) {
        let Some(reward) = row.reward.filter(|_| row.status == "scored") else {
            self.failed += 1;
            return;
        };
        self.scored += 1;
        self.sum += f64::from(reward);
        if let Some(success) = row.score.as_ref().and_then(|score| score.success) {
            self.success_known += 1;
            self.successes += u64::from(success);
        }
    }

    fn line((suite, task_id, policy_kind): (String, Option<String>, String), sums: &Self) -> RewardLine {
        let share = |part: f64, whole: u64| (whole > 0).then(|| part / whole as f64);
        RewardLine {
            suite,
            task_id,
            policy_kind,
            scored: sums.scored,
            failed: sums.failed,
            reward_mean: share(sums.sum, sums.scored),
            success_rate: share(sums.successes as f64, sums.success_known),
        }
    }
}

/// Saturates: sums of a damaged data set must not panic.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

fn time_lines(micros: &BTreeMap<&'static str, u64>) -> Vec<TimeLine> {
    let whole: f64 = micros.values().map(|&micros| micros as f64).sum();
    let share = |micros: u64| if whole > 0.0 { micros as f64 / whole } else { 0.0 };
    let line =
        |(&cause, &micros): (&&str, &u64)| TimeLine { cause: cause.into(), micros, share: share(micros) };
    let mut lines: Vec<TimeLine> = micros.iter().map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.micros));
    lines
}

fn table_totals(set: &DataSet, table: Table) -> TableTotals {
    let expired = set.snapshot().expired_rows(table);
    let zero = TableTotals { table, files: 0, rows: 0, bytes: 0, expired };
    set.snapshot().files(table).fold(zero, |mut sum, file| {
        sum.files += 1;
        add(&mut sum.rows, file.rows);
        add(&mut sum.bytes, file.bytes);
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_columns_are_columns_of_the_table() {
        assert!(Table::Trajectories.has_columns::<MetricRow>());
    }
}
