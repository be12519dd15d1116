//! The sums that figures over a data set are made of. What is summed is said here, once; what is divided by what, in the dashboard.
//!
//! A tally grows by whole files, in any order, and never needs to see a row twice.

use std::collections::BTreeMap;

use crate::GapSum;

use super::{GroupSumRow, StepSumRow, ViewRow, is_eval};

/// Sums over the trajectories of a data set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tally {
    /// All of them.
    pub all: Counts,
    /// All but those of evaluations: what a policy learns from, and what every map below by version, suite and task is made of.
    pub training: Counts,
    /// Those of evaluations inside a job (split `eval`).
    pub evaluated: Counts,
    /// By the newest version that acted; −1 where there is none.
    pub by_version: BTreeMap<i32, Counts>,
    /// By suite.
    pub by_suite: BTreeMap<String, Counts>,
    /// By suite and task.
    pub by_task: BTreeMap<(String, String), Counts>,
    /// By end and status.
    pub ends: BTreeMap<(String, String), u64>,
    /// Scored trajectories by the versions they were behind, evaluations left out.
    pub staleness: BTreeMap<i32, u64>,
    /// Scored trajectories by their steps, evaluations left out.
    pub lengths: BTreeMap<i32, u64>,
    /// By the minute (since the Unix epoch) in which they ended.
    pub minutes: BTreeMap<i64, Minute>,
    /// Time of all trajectories by what it went to, microseconds: `queue`, the causes of a session, `score`.
    pub session_micros: BTreeMap<&'static str, u64>,
    /// When the first began, microseconds since the Unix epoch.
    pub started_at: Option<i64>,
    /// When the last ended.
    pub ended_at: Option<i64>,
    /// Sums over steps, failed trajectories' included.
    pub steps: StepSums,
    /// The same without those of evaluations.
    pub training_steps: StepSums,
    /// These by the version that acted; −1 where there is none.
    pub steps_by_version: BTreeMap<i32, StepSums>,
    /// Closed groups, those of evaluations left out.
    pub groups: u64,
    /// Of these, with rewards that are all equal.
    pub groups_zero_variance: u64,
    /// Closed groups and those without spread, by the newest version that acted.
    pub groups_by_version: BTreeMap<i32, (u64, u64)>,
    /// How far log-probs of scored trajectories lie from those of the prefill path, evaluations included: files tell it as a whole.
    pub prefill_gap: GapSum,
}

/// Sums over some trajectories.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counts {
    /// With a reward.
    pub scored: u64,
    /// Failed by the farm's fault: in no rate.
    pub failed: u64,
    /// Of the scored ones, those whose scorer says whether the task is solved.
    pub judged: u64,
    /// Of the judged ones, those that solved it.
    pub successes: u64,
    /// Of the scored ones.
    pub reward_sum: f64,
    /// Steps, failed trajectories' included.
    pub steps: u64,
    /// Response tokens, failed trajectories' included.
    pub response_tokens: u64,
    /// Replies without an action, failed trajectories' included.
    pub invalid_actions: u64,
    /// Device time that the trajectories themselves caused, failed ones' included, microseconds.
    pub gpu_micros: u64,
    /// What judges and remote policies cost, where a price is known.
    pub cost_usd: f64,
}

/// What ended in one minute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Minute {
    /// Scored trajectories.
    pub scored: u64,
    /// Failed ones.
    pub failed: u64,
    /// Judged ones, evaluations left out.
    pub judged: u64,
    /// Solved ones of these.
    pub successes: u64,
}

/// Sums over some steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepSums {
    /// Steps.
    pub steps: u64,
    /// Replies without an action.
    pub invalid: u64,
    /// Tokens generated: the response's, forced and appended ones included.
    pub generated_tokens: u64,
    /// Tokens the engine read.
    pub prefill_tokens: u64,
    /// Tokens whose state was still there.
    pub reused_tokens: u64,
    /// Sum of the entropies that are known.
    pub entropy_sum: f64,
    /// How many are known.
    pub entropy_count: u64,
    /// Sum of the log-probs that are known.
    pub logprob_sum: f64,
    /// How many are known.
    pub logprob_count: u64,
    /// Steps by why their response ended.
    pub finish_reasons: BTreeMap<String, u64>,
    /// Steps by what came of their action.
    pub outcomes: BTreeMap<String, u64>,
    /// Steps by where their state came from.
    pub state_origins: BTreeMap<String, u64>,
}

/// Most words that a map of a damaged data set may grow to; what comes later counts as `other`.
const WORDS_MAX: usize = 10_000;

impl Tally {
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
        let (started, ended) = (row.started_at.0, row.ended_at.0);
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

impl Counts {
    /// Attempts, scored and failed.
    pub fn trajectories(&self) -> u64 {
        self.scored + self.failed
    }

    /// Whether the row is scored.
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
            self.judged += 1;
            self.successes += u64::from(success);
        }
        true
    }
}

impl Minute {
    fn add(&mut self, row: &ViewRow) {
        if row.scored().is_none() {
            self.failed += 1;
            return;
        }
        self.scored += 1;
        if let Some(success) = row.success().filter(|_| !is_eval(&row.split)) {
            self.judged += 1;
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

fn count(words: &mut BTreeMap<String, u64>, word: Option<&str>) {
    let Some(word) = word else { return };
    if let Some(count) = words.get_mut(word) {
        *count += 1;
    } else {
        let word = if words.len() < WORDS_MAX { word } else { "other" };
        *words.entry(word.to_owned()).or_default() += 1;
    }
}

/// Sums of a damaged data set must not be a panic.
fn more(sum: &mut u64, value: i64) {
    *sum = sum.saturating_add(u64::try_from(value).unwrap_or(0));
}
