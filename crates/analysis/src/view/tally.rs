//! The sums behind the metrics of a data set. They are defined here, once; the ratios of them are
//! defined in the dashboard.
//!
//! A tally grows by whole files, in any order, and never needs a row twice.

use std::collections::BTreeMap;

use furrow_records::GapSum;

use super::rows::{GroupSumRow, StepSumRow, ViewRow, is_eval};

/// Sums over the trajectories of a data set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DataSetTally {
    /// Counts of all trajectories.
    pub all: TrajectoryCounts,
    /// All but those of evaluations: what a policy learns from, and the basis of every map below by
    /// version, suite and task.
    pub training: TrajectoryCounts,
    /// Those of evaluations inside a job (split `eval`).
    pub evaluated: TrajectoryCounts,
    /// By the newest version that acted; −1 without one.
    pub by_version: BTreeMap<i32, TrajectoryCounts>,
    /// By the name of the suite, evaluations excluded.
    pub by_suite: BTreeMap<String, TrajectoryCounts>,
    /// Counts by suite and task.
    pub by_task: BTreeMap<(String, String), TrajectoryCounts>,
    /// Trajectories by end and status.
    pub ends: BTreeMap<(String, String), u64>,
    /// Scored trajectories by the number of versions behind, evaluations excluded.
    pub staleness: BTreeMap<i32, u64>,
    /// Scored trajectories by their number of steps, evaluations excluded.
    pub lengths: BTreeMap<i32, u64>,
    /// By the minute (since the Unix epoch) of their end.
    pub minutes: BTreeMap<i64, MinuteCounts>,
    /// Microseconds of all trajectories by cause: `queue`, the causes of a session, `score`.
    pub session_micros: BTreeMap<&'static str, u64>,
    /// Earliest start, microseconds since the Unix epoch.
    pub started_at: Option<i64>,
    /// Latest end, microseconds since the Unix epoch.
    pub ended_at: Option<i64>,
    /// Sums over steps, including those of failed trajectories.
    pub steps: StepSums,
    /// The same without evaluations.
    pub training_steps: StepSums,
    /// The latter by the version that acted; −1 without one.
    pub steps_by_version: BTreeMap<i32, StepSums>,
    /// Closed groups, evaluations excluded.
    pub groups: u64,
    /// Those of them whose rewards are all equal.
    pub groups_zero_variance: u64,
    /// Closed groups and those without spread, by the newest version that acted.
    pub groups_by_version: BTreeMap<i32, (u64, u64)>,
    /// Gap between log-probs of scored trajectories and those of the prefill path, evaluations
    /// included, because files store it as a whole.
    pub prefill_gap: GapSum,
}

/// Sums over a set of trajectories.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrajectoryCounts {
    /// Trajectories with a reward.
    pub scored: u64,
    /// Trajectories that failed by the farm's fault; no rate counts them.
    pub failed: u64,
    /// Scored trajectories whose scorer decides whether the task is solved.
    pub success_known: u64,
    /// Those of them that solved it.
    pub successes: u64,
    /// Sum of the rewards of scored trajectories.
    pub reward_sum: f64,
    /// Steps, including those of failed trajectories.
    pub steps: u64,
    /// Response tokens, including those of failed trajectories.
    pub response_tokens: u64,
    /// Replies without an action, including those of failed trajectories.
    pub invalid_actions: u64,
    /// Device time that the trajectories caused, failed ones included, in microseconds.
    pub gpu_micros: u64,
    /// Cost of judges and remote policies in US dollars, where a price is known.
    pub cost_usd: f64,
}

/// Trajectories that ended in one minute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MinuteCounts {
    /// Number of scored trajectories.
    pub scored: u64,
    /// Number of failed trajectories.
    pub failed: u64,
    /// Those with a known success, evaluations excluded.
    pub success_known: u64,
    /// Solved ones among the latter.
    pub successes: u64,
}

/// Sums over a set of steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepSums {
    /// Steps read so far: while files are left, the sums cover a part of the data set.
    pub steps: u64,
    /// Replies without an action.
    pub invalid: u64,
    /// Tokens generated: those of the response, including forced and appended ones.
    pub generated_tokens: u64,
    /// Tokens that the engine prefilled.
    pub prefill_tokens: u64,
    /// Tokens whose state was reused.
    pub reused_tokens: u64,
    /// Sum of the known entropies.
    pub entropy_sum: f64,
    /// Number of known entropies.
    pub entropy_count: u64,
    /// Sum of the known log-probs.
    pub logprob_sum: f64,
    /// Number of known log-probs.
    pub logprob_count: u64,
    /// Steps by the reason why their response ended.
    pub finish_reasons: BTreeMap<String, u64>,
    /// Steps by the outcome of their action.
    pub outcomes: BTreeMap<String, u64>,
    /// Steps by the origin of their state.
    pub state_origins: BTreeMap<String, u64>,
}

/// Most keys of a map over a damaged data set; later ones count as `other`.
const KEYS_MAX: usize = 10_000;

impl DataSetTally {
    pub(crate) fn add_trajectory(&mut self, row: &ViewRow) {
        self.all.add(row);
        if is_eval(&row.split) {
            self.evaluated.add(row);
        } else {
            self.add_training(row);
        }
        *self.ends.entry((row.end.clone(), row.status.clone())).or_default() += 1;
        self.minutes.entry(row.ended_at.0.div_euclid(60_000_000)).or_default().add(row);
        for (cause, micros) in row.timing.causes() {
            more(self.session_micros.entry(cause).or_default(), micros);
        }
        let started = row.started_at.0;
        let ended = row.ended_at.0;
        self.started_at = Some(self.started_at.map_or(started, |first| first.min(started)));
        self.ended_at = Some(self.ended_at.map_or(ended, |last| last.max(ended)));
    }

    fn add_training(&mut self, row: &ViewRow) {
        let version = row.policy_version_max.unwrap_or(-1);
        let scored = self.training.add(row);
        self.by_version.entry(version).or_default().add(row);
        self.by_suite.entry(row.suite.clone()).or_default().add(row);
        self.by_task.entry((row.suite.clone(), row.task_id.clone())).or_default().add(row);
        if scored {
            if let Some(behind) = row.staleness {
                *self.staleness.entry(behind).or_default() += 1;
            }
            *self.lengths.entry(row.num_steps).or_default() += 1;
        }
    }

    pub(crate) fn add_step(&mut self, row: &StepSumRow) {
        self.steps.add(row);
        if is_eval(&row.split) {
            return;
        }
        self.training_steps.add(row);
        self.steps_by_version.entry(row.policy_version.unwrap_or(-1)).or_default().add(row);
    }

    pub(crate) fn add_group(&mut self, row: &GroupSumRow) {
        if is_eval(&row.split) {
            return;
        }
        let flat = u64::from(row.zero_variance == Some(true));
        let of_version = self.groups_by_version.entry(row.policy_version_max.unwrap_or(-1)).or_default();
        *of_version = (of_version.0 + 1, of_version.1 + flat);
        self.groups += 1;
        self.groups_zero_variance += flat;
    }
}

impl TrajectoryCounts {
    /// Number of attempts, scored and failed.
    pub fn trajectories(&self) -> u64 {
        self.scored + self.failed
    }

    /// Adds a row. Returns whether it is scored.
    fn add(&mut self, row: &ViewRow) -> bool {
        more(&mut self.steps, row.num_steps.into());
        more(&mut self.response_tokens, row.num_response_tokens);
        more(&mut self.invalid_actions, row.num_invalid_actions.into());
        more(&mut self.gpu_micros, row.gpu_micros);
        self.cost_usd += row.cost_usd.unwrap_or_default();
        let Some(reward) = row.scored() else {
            self.failed += 1;
            return false;
        };
        self.scored += 1;
        self.reward_sum += f64::from(reward);
        if let Some(success) = row.success() {
            self.success_known += 1;
            self.successes += u64::from(success);
        }
        true
    }
}

impl MinuteCounts {
    fn add(&mut self, row: &ViewRow) {
        if row.scored().is_none() {
            self.failed += 1;
            return;
        }
        self.scored += 1;
        if let Some(success) = row.success().filter(|_| !is_eval(&row.split)) {
            self.success_known += 1;
            self.successes += u64::from(success);
        }
    }
}

impl StepSums {
    fn add(&mut self, row: &StepSumRow) {
        self.steps += 1;
        self.invalid += u64::from(!row.action.valid);
        let tokens = row.response_mask.as_ref().map_or(0, Vec::len);
        self.generated_tokens += tokens as u64;
        more(&mut self.prefill_tokens, row.engine.prefill_tokens.into());
        more(&mut self.reused_tokens, row.engine.reused_tokens.into());
        add_known(row.entropy.as_deref(), &mut self.entropy_sum, &mut self.entropy_count);
        add_known(row.logprobs.as_deref(), &mut self.logprob_sum, &mut self.logprob_count);
        count(&mut self.finish_reasons, row.finish_reason.as_deref());
        count(&mut self.outcomes, Some(&row.outcome.name));
        count(&mut self.state_origins, row.engine.state_origin.as_deref());
    }
}

fn add_known(values: Option<&[Option<f32>]>, sum: &mut f64, count: &mut u64) {
    for value in values.into_iter().flatten().flatten() {
        *sum += f64::from(*value);
        *count += 1;
    }
}

fn count(counts: &mut BTreeMap<String, u64>, key: Option<&str>) {
    let Some(key) = key else { return };
    if let Some(count) = counts.get_mut(key) {
        *count += 1;
    } else {
        let key = if counts.len() < KEYS_MAX { key } else { "other" };
        *counts.entry(key.to_owned()).or_default() += 1;
    }
}

/// Saturates: sums of a damaged data set must not panic.
fn more(sum: &mut u64, value: i64) {
    *sum = sum.saturating_add(u64::try_from(value).unwrap_or(0));
}
