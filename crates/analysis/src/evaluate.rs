//! Evaluates a policy: success, reward and pass@k with 95 % intervals, by suite, site and
//! difficulty, for `furrow report`.
//!
//! An attempt at which the farm failed says nothing about the policy: it is counted separately and
//! never as a 0. The metrics are computed from [`TaskAttempt`]s, so that an evaluation inside a job
//! can compute them from its own attempts; [`evaluate`] reads those of a data set.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use furrow_records::cell::columns;
use furrow_records::{DataSet, RecordsError, Table, hex};
use furrow_rollout::Split;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::attempt::{AttemptResult, TaskAttempt};
use crate::reasons::{FailureReason, ReasonTally};
use crate::statistics::{Estimate, TaskShare, TermKind, estimate, pass_at_k};
use crate::suite_versions::{MixedSuite, is_of_version, separate};

/// Parameters of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvaluationQuery {
    /// Only tasks of this split; empty for all.
    pub split: String,
    /// Only tasks of suites whose version begins with these digits; empty for all.
    pub suite_version: String,
    /// The values of k for pass@k; empty for 1, 2, 4, … up to the most attempts at one problem.
    pub k: Vec<u64>,
    /// Seed of the bootstraps.
    pub seed: u64,
}

/// Metrics of a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluationReport {
    /// Newest commit that was read.
    pub version: u64,
    /// The policy that acted.
    pub policy: ActingPolicy,
    /// All attempts first, then by suite, by site and by difficulty. Where a suite has several
    /// versions, each is a suite of its own, and no line is over all attempts.
    pub lines: Vec<EvaluationLine>,
    /// The suites that have several versions.
    pub mixed_suites: Vec<MixedSuite>,
    /// The attempts of split `eval`, in order of the policy versions that made them; empty where
    /// none has a version.
    pub versions: Vec<VersionLine>,
    /// Why the farm failed, the most frequent reasons first.
    pub failure_reasons: Vec<FailureReason>,
    /// Trajectories that were removed for good, because they were the oldest: no line counts them.
    pub expired: u64,
}

/// Metrics of the evaluation of a policy version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VersionLine {
    /// The version; `None` when no attempt of these groups has one.
    pub version: Option<i32>,
    /// All attempts on it.
    #[serde(flatten)]
    pub line: EvaluationLine,
}

/// The policy that acted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ActingPolicy {
    /// Names of the kinds of policies that acted, such as `model`; empty before the first attempt.
    pub kinds: BTreeSet<String>,
    /// Hashes of its weights.
    pub weights: BTreeSet<String>,
    /// Oldest and newest version that acted.
    pub versions: Option<(i32, i32)>,
    /// Whether there was at most one kind, one set of weights and one version: only then do the
    /// metrics describe one policy.
    pub is_fixed: bool,
}

/// How attempts are grouped into a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LineGrouping {
    /// One line over every attempt.
    All,
    /// A line for each suite, over all of its sites and difficulties.
    Suite,
    /// By site within a suite.
    Site,
    /// By difficulty within a suite.
    Difficulty,
}

/// Metrics of a set of attempts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluationLine {
    /// How its attempts are grouped.
    pub by: LineGrouping,
    /// The suite; empty for all.
    pub suite: String,
    /// The site or the difficulty; empty otherwise.
    pub name: String,
    /// Hexadecimal hash of the tasks' definitions: metrics of two data sets are comparable where it
    /// is equal.
    pub variant: String,
    /// Tasks with at least one attempt.
    pub tasks: u64,
    /// Pairs of a task and a seed, over which pass@k is averaged.
    pub problems: u64,
    /// Attempts with a reward.
    pub scored: u64,
    /// Of those, attempts whose scorer decides whether the task is solved.
    #[serde(rename = "judged")]
    pub success_known: u64,
    /// Share of those attempts that solved their task.
    pub success: Option<Estimate>,
    /// Mean reward of the scored attempts.
    pub reward: Option<Estimate>,
    /// pass@k for each k that some problem has enough attempts for.
    pub pass: Vec<PassAtK>,
    /// Attempts at which the farm failed, by their end. No rate counts them.
    pub failed: BTreeMap<String, u64>,
    /// Slots without any reward, which the rates cannot include.
    pub lost_slots: u64,
    /// The success rate if each of those slots had not been solved.
    pub success_lost_as_zero: Option<f64>,
    /// The success rate if no attempt at which the farm failed had solved its task, those that were
    /// tried again included: what a policy that chose to fail would have earned.
    pub success_failed_as_zero: Option<f64>,
}

/// The probability that one of k attempts solves a problem.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PassAtK {
    /// How many attempts a problem gets: a value of the query, or else a power of two.
    pub k: u64,
    /// Problems with at least k attempts of known success; the others are left out.
    pub problems: u64,
    /// The mean over these problems.
    #[serde(flatten)]
    pub estimate: Estimate,
}

columns! {
    /// The columns that the metrics are computed from: no picture and no demonstration script.
    AttemptRow {
        group_id: String,
        sample_index: i32,
        task_id: String,
        suite: String,
        split: String,
        policy_kind: String,
        status: String,
        end: String,
        failure_reason: String,
        reward: Option<f32>,
        score: Option<SuccessCell>,
        policy_version_min: Option<i32>,
        policy_version_max: Option<i32>,
        hashes: WeightsCell,
        task: DefinitionCell,
        task_json: String,
    }

    SuccessCell { success: Option<bool> }

    WeightsCell { weights: Option<String> }

    /// The columns that define a task: all but its seed, its demonstration and its time limit,
    /// which concerns the farm.
    DefinitionCell {
        goal: Option<String>,
        start_url: String,
        seed: u64,
        max_steps: i32,
        viewport_width: i32,
        viewport_height: i32,
        allow_hosts: Vec<String>,
        hooks: StartCell,
        clock: String,
        clock_step_millis: Option<i32>,
    }

    StartCell { start: Option<String>, probe: Option<String> }
}

/// Reads a run directory or its `data` folder through its manifest and evaluates it.
pub fn evaluate(dir: &Path, question: &EvaluationQuery) -> Result<EvaluationReport, RecordsError> {
    let set = DataSet::open(dir)?;
    let reader = AttemptReader::read(&set, question)?;
    let version = set.snapshot().version();
    let versions = reader.versions(question);
    let AttemptReader { attempts, policy, reasons, mixed, .. } = reader;
    let mut lines = evaluation_lines(&attempts, question);
    lines.retain(|line| line.by != LineGrouping::All || mixed.is_empty());
    Ok(EvaluationReport {
        version,
        policy: policy.with_fixed(),
        lines,
        versions: if mixed.is_empty() { versions } else { Vec::new() },
        mixed_suites: mixed,
        failure_reasons: reasons.most_frequent(),
        expired: set.snapshot().expired_rows(Table::Trajectories),
    })
}

/// The attempts of a run directory or its `data` folder, in the order of its files.
pub(crate) fn attempts(dir: &Path, question: &EvaluationQuery) -> Result<Vec<TaskAttempt>, RecordsError> {
    Ok(AttemptReader::read(&DataSet::open(dir)?, question)?.attempts)
}

/// Metrics of these attempts: all, by suite, by site, by difficulty.
pub(crate) fn evaluation_lines(attempts: &[TaskAttempt], question: &EvaluationQuery) -> Vec<EvaluationLine> {
    let mut lines: BTreeMap<(LineGrouping, &str, &str), Vec<&TaskAttempt>> =
        BTreeMap::from([((LineGrouping::All, "", ""), Vec::new())]);
    for attempt in attempts {
        let suite = &*attempt.suite;
        let difficulty =
            attempt.difficulty.as_deref().map(|difficulty| (LineGrouping::Difficulty, suite, difficulty));
        let keys = [
            Some((LineGrouping::All, "", "")),
            Some((LineGrouping::Suite, suite, "")),
            Some((LineGrouping::Site, suite, &*attempt.site)),
            difficulty,
        ];
        keys.into_iter().flatten().for_each(|key| lines.entry(key).or_default().push(attempt));
    }
    lines.into_iter().map(|(key, attempts)| line(key, &attempts, question)).collect()
}

impl EvaluationLine {
    /// Every estimate that has an interval.
    pub fn estimates(&self) -> impl Iterator<Item = &Estimate> {
        self.success.iter().chain(&self.reward).chain(self.pass.iter().map(|pass| &pass.estimate))
    }
}

impl EvaluationQuery {
    fn includes_split(&self, split: &str) -> bool {
        self.split.is_empty() || self.split == split
    }

    /// The values of k to report, where a problem has at most `most` attempts.
    fn k_values(&self, most: u64) -> Vec<u64> {
        match self.k.is_empty() {
            false => self.k.iter().copied().filter(|k| *k <= most).collect(),
            true => (0..64).map(|power| 1 << power).take_while(|k| *k <= most).collect(),
        }
    }
}

/// Turns rows into attempts. Rows of one task repeat its definition; it is parsed once.
#[derive(Default)]
struct AttemptReader {
    attempts: Vec<TaskAttempt>,
    policy: ActingPolicy,
    /// Groups of split `eval`: the indices of their attempts, and the version of those with a
    /// reward.
    evaluated: BTreeMap<String, EvaluatedGroup>,
    known: HashMap<(String, String), TaskDefinition>,
    reasons: ReasonTally,
    mixed: Vec<MixedSuite>,
}

#[derive(Default)]
struct EvaluatedGroup {
    attempts: Vec<usize>,
    version: Option<i32>,
}

/// What a task's definition contains.
#[derive(Clone)]
struct TaskDefinition {
    text: String,
    suite_version: String,
    site: String,
    difficulty: Option<String>,
    definition: [u8; 32],
}

impl AttemptReader {
    fn read(set: &DataSet, question: &EvaluationQuery) -> Result<Self, RecordsError> {
        let mut reader = Self::default();
        for batch in set.rows::<AttemptRow>(Table::Trajectories) {
            let rows = batch?;
            for row in rows.iter().filter(|row| question.includes_split(&row.split)) {
                reader.add(row, &question.suite_version);
            }
        }
        reader.mixed = separate(&mut reader.attempts);
        Ok(reader)
    }

    fn add(&mut self, row: &AttemptRow, suite_version: &str) {
        let attempt = self.attempt(row);
        if !is_of_version(&attempt, suite_version) {
            return;
        }
        self.policy.add(row);
        if row.status == "failed" {
            self.reasons.add(&row.end, &row.failure_reason);
        }
        if row.split == Split::Eval.as_str() {
            let group = self.evaluated.entry(row.group_id.clone()).or_default();
            group.attempts.push(self.attempts.len());
            // A failed attempt may have begun on other weights, and no rate counts it.
            let is_scored = matches!(row.verdict(), AttemptResult::Scored { .. });
            let version = row.policy_version_max;
            group.version = if is_scored { version.or(group.version) } else { group.version.or(version) };
        }
        self.attempts.push(attempt);
    }

    fn attempt(&mut self, row: &AttemptRow) -> TaskAttempt {
        let key = (row.suite.clone(), row.task_id.clone());
        let known = match self.known.get(&key) {
            Some(known) if known.text == row.task_json => known.clone(),
            _ => {
                let known = TaskDefinition::read(row);
                self.known.insert(key, known.clone());
                known
            }
        };
        TaskAttempt {
            suite: row.suite.clone(),
            suite_version: known.suite_version,
            task_id: row.task_id.clone(),
            site: known.site,
            difficulty: known.difficulty,
            definition: known.definition,
            seed: row.task.seed,
            slot: format!("{} {}", row.group_id, row.sample_index),
            verdict: row.verdict(),
        }
    }

    /// Metrics of each evaluated version: a group of an evaluation belongs to one version.
    fn versions(&self, question: &EvaluationQuery) -> Vec<VersionLine> {
        let mut versions: BTreeMap<Option<i32>, Vec<&TaskAttempt>> = BTreeMap::new();
        for group in self.evaluated.values() {
            let attempts = group.attempts.iter().map(|index| &self.attempts[*index]);
            versions.entry(group.version).or_default().extend(attempts);
        }
        if versions.keys().all(Option::is_none) {
            return Vec::new();
        }
        let version_line = |(version, attempts): (Option<i32>, Vec<&TaskAttempt>)| VersionLine {
            version,
            line: line((LineGrouping::All, "", ""), &attempts, question),
        };
        versions.into_iter().map(version_line).collect()
    }
}

impl AttemptRow {
    fn verdict(&self) -> AttemptResult {
        match self.reward.filter(|_| self.status == "scored") {
            Some(reward) => AttemptResult::Scored {
                reward: reward.into(),
                success: self.score.as_ref().and_then(|score| score.success),
            },
            None => AttemptResult::Failed(self.end.clone()),
        }
    }
}

impl TaskDefinition {
    fn read(row: &AttemptRow) -> Self {
        let line: Value = serde_json::from_str(&row.task_json).unwrap_or_default();
        let difficulty = match &line["difficulty"] {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(level) => Some(level.to_string()),
            _ => None,
        };
        let site = line["web_name"].as_str().map_or_else(|| host(&row.task.start_url), str::to_owned);
        let suite_version = line["suite_version"].as_str().unwrap_or_default().to_owned();
        let definition = definition(row);
        Self { text: row.task_json.clone(), suite_version, site, difficulty, definition }
    }
}

/// The host of a start page's address.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#', ':']).next().unwrap_or_default().to_owned()
}

/// SHA-256 over the task's line and limits, each length-prefixed.
fn definition(row: &AttemptRow) -> [u8; 32] {
    let task = &row.task;
    let or_none = |text: &Option<String>| text.clone().unwrap_or_default();
    let parts = [
        row.suite.clone(),
        row.task_id.clone(),
        row.split.clone(),
        row.task_json.clone(),
        or_none(&task.goal),
        task.start_url.clone(),
        task.max_steps.to_string(),
        format!("{}x{}", task.viewport_width, task.viewport_height),
        task.allow_hosts.join(" "),
        or_none(&task.hooks.start),
        or_none(&task.hooks.probe),
        format!("{} {}", task.clock, task.clock_step_millis.unwrap_or_default()),
    ];
    digest(parts.iter().map(String::as_bytes))
}

fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

impl ActingPolicy {
    fn add(&mut self, row: &AttemptRow) {
        if !self.kinds.contains(&row.policy_kind) {
            self.kinds.insert(row.policy_kind.clone());
        }
        self.weights.extend(row.hashes.weights.clone());
        if let Some((oldest, newest)) = row.policy_version_min.zip(row.policy_version_max) {
            let (min, max) = self.versions.unwrap_or((oldest, newest));
            self.versions = Some((min.min(oldest), max.max(newest)));
        }
    }

    fn with_fixed(mut self) -> Self {
        let one_version = self.versions.is_none_or(|(oldest, newest)| oldest == newest);
        self.is_fixed = self.kinds.len() <= 1 && self.weights.len() <= 1 && one_version;
        self
    }
}

/// Attempts at one problem with a known success.
#[derive(Default)]
struct ProblemTally {
    tried: u64,
    right: u64,
}

fn line(
    (by, suite, name): (LineGrouping, &str, &str),
    attempts: &[&TaskAttempt],
    question: &EvaluationQuery,
) -> EvaluationLine {
    let mut rewards: BTreeMap<(&str, &str), TaskShare> = BTreeMap::new();
    let mut successes: BTreeMap<(&str, &str), TaskShare> = BTreeMap::new();
    let mut problems: BTreeMap<(&str, &str, u64), ProblemTally> = BTreeMap::new();
    let mut definitions = BTreeSet::new();
    let mut failed = BTreeMap::new();
    let mut slots = BTreeSet::new();
    let mut scored_slots = BTreeSet::new();
    for attempt in attempts {
        let task = (&*attempt.suite, &*attempt.task_id);
        definitions.insert((task, attempt.definition));
        slots.insert(&*attempt.slot);
        let tally = problems.entry((task.0, task.1, attempt.seed)).or_default();
        let (reward, success) = match &attempt.verdict {
            AttemptResult::Scored { reward, success } => (*reward, *success),
            AttemptResult::Failed(end) => {
                *failed.entry(end.clone()).or_default() += 1;
                continue;
            }
        };
        scored_slots.insert(&*attempt.slot);
        rewards.entry(task).or_default().add(reward);
        if let Some(success) = success {
            successes.entry(task).or_default().add(f64::from(u8::from(success)));
            tally.tried += 1;
            tally.right += u64::from(success);
        }
    }
    let shares = |of: &BTreeMap<_, TaskShare>| of.values().copied().collect::<Vec<_>>();
    let terms = |of: &BTreeMap<_, TaskShare>| of.values().map(|share| share.count as u64).sum();
    let lost_slots = (slots.len() - scored_slots.len()) as u64;
    let solved: f64 = successes.values().map(|share| share.sum).sum();
    let known = terms(&successes);
    let with_zeros = |zeros: u64| (known + zeros > 0).then(|| solved / (known + zeros) as f64);
    let variant = digest(definitions.iter().map(|(_, definition)| &definition[..]));
    EvaluationLine {
        by,
        suite: suite.to_owned(),
        name: name.to_owned(),
        variant: hex(&variant[..6]),
        tasks: definitions.iter().map(|(task, _)| task).collect::<BTreeSet<_>>().len() as u64,
        problems: problems.len() as u64,
        scored: terms(&rewards),
        success_known: known,
        success: estimate(&shares(&successes), TermKind::Trials, question.seed),
        reward: estimate(&shares(&rewards), TermKind::Numbers, question.seed),
        pass: pass_rates(&problems, question),
        success_lost_as_zero: with_zeros(lost_slots),
        success_failed_as_zero: with_zeros(failed.values().sum()),
        failed,
        lost_slots,
    }
}

fn pass_rates(
    problems: &BTreeMap<(&str, &str, u64), ProblemTally>,
    question: &EvaluationQuery,
) -> Vec<PassAtK> {
    let most = problems.values().map(|tally| tally.tried).max().unwrap_or_default();
    let at = |k: u64| {
        let mut tasks: BTreeMap<(&str, &str), TaskShare> = BTreeMap::new();
        let mut counted = 0;
        for ((suite, task, _), tally) in problems {
            if let Some(pass) = pass_at_k(tally.tried, tally.right, k) {
                tasks.entry((suite, task)).or_default().add(pass);
                counted += 1;
            }
        }
        // A problem tried exactly k times is passed or not: a trial like any other.
        let terms = match problems.values().all(|tally| tally.tried <= k) {
            true => TermKind::Trials,
            false => TermKind::Chances,
        };
        let shares: Vec<TaskShare> = tasks.into_values().collect();
        estimate(&shares, terms, question.seed).map(|estimate| PassAtK { k, problems: counted, estimate })
    };
    question.k_values(most).into_iter().filter_map(at).collect()
}

impl TaskShare {
    fn add(&mut self, term: f64) {
        self.sum += term;
        self.count += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::IntervalMethod;

    #[test]
    fn the_metric_columns_are_columns_of_the_table() {
        assert!(Table::Trajectories.has_columns::<AttemptRow>());
    }

    /// `shop/a 7 0 1` is the first slot of task a of suite shop under seed 7, scored 1; `-` instead
    /// of the reward is a page crash.
    fn attempts(table: &[&str]) -> Vec<TaskAttempt> {
        let attempt = |row: &&str| {
            let fields: Vec<&str> = row.split(' ').collect();
            let (site, task) = fields[0].split_once('/').unwrap();
            let verdict = match fields[3] {
                "-" => AttemptResult::Failed("page_crash".into()),
                reward => {
                    let reward: f64 = reward.parse().unwrap();
                    AttemptResult::Scored { reward, success: Some(reward >= 1.0) }
                }
            };
            TaskAttempt {
                suite: "web".into(),
                suite_version: fields.get(4).copied().unwrap_or_default().into(),
                task_id: fields[0].into(),
                site: site.into(),
                difficulty: Some(if task == "hard" { "hard" } else { "easy" }.into()),
                definition: [site.len() as u8; 32],
                seed: fields[1].parse().unwrap(),
                slot: format!("{} {} {}", fields[0], fields[1], fields[2]),
                verdict,
            }
        };
        table.iter().map(attempt).collect()
    }

    #[test]
    fn a_failure_of_the_farms_is_no_zero() {
        let rows = [
            "shop/a 1 0 1",
            "shop/b 1 0 1",
            "shop/b 1 1 -",
            "shop/c 1 0 -",
            "shop/d 1 0 -",
            "shop/d 1 0 0.5",
        ];
        let lines = evaluation_lines(&attempts(&rows), &EvaluationQuery::default());
        let all = &lines[0];
        assert_eq!(
            (all.by, all.tasks, all.problems, all.scored, all.success_known),
            (LineGrouping::All, 4, 4, 3, 3)
        );
        assert_eq!(all.success.unwrap().value, 2.0 / 3.0);
        assert_eq!(all.reward.unwrap().value, 2.5 / 3.0);
        assert_eq!(all.failed, BTreeMap::from([("page_crash".to_owned(), 3)]));
        // The second slot of b and the only one of c; d was retried.
        assert_eq!(all.lost_slots, 2);
        assert_eq!(all.success_lost_as_zero, Some(2.0 / 5.0));
        assert_eq!(all.success_failed_as_zero, Some(2.0 / 6.0));
        assert_eq!(all.success.unwrap().interval.unwrap().method, IntervalMethod::Wilson);
    }

    #[test]
    fn versions_of_a_suite_are_kept_apart() {
        let rows = ["shop/a 1 0 1 aa11", "shop/a 1 0 0 aa11", "shop/a 1 0 1 bb22", "shop/a 1 0 1"];
        let mut mixed = attempts(&rows);
        let found = separate(&mut mixed);
        let versions = [("aa11", 2), ("bb22", 1), ("unnamed", 1)].map(|(name, n)| (name.to_owned(), n));
        assert_eq!(found, [MixedSuite { suite: "web".into(), versions: versions.into() }]);
        let lines = evaluation_lines(&mixed, &EvaluationQuery::default());
        let suites: Vec<_> = lines.iter().filter(|line| line.by == LineGrouping::Suite).collect();
        let got: Vec<_> = suites.iter().map(|line| (&*line.suite, line.success.unwrap().value)).collect();
        assert_eq!(got, [("web@aa11", 0.5), ("web@bb22", 1.0), ("web@unnamed", 1.0)]);
        let wanted = |digits| mixed.iter().filter(|attempt| is_of_version(attempt, digits)).count();
        assert_eq!((wanted(""), wanted("aa"), wanted("bb22"), wanted("cc")), (4, 2, 1, 0));
        let mut alike = attempts(&rows[..2]);
        assert_eq!(separate(&mut alike), []);
        assert_eq!(alike[0].suite, "web", "a single version needs no name");
    }

    #[test]
    fn lines_are_by_suite_site_and_difficulty() {
        let rows = ["shop/a 1 0 1", "shop/hard 1 0 0", "maps/hard 1 0 1"];
        let lines = evaluation_lines(&attempts(&rows), &EvaluationQuery::default());
        let got: Vec<_> = lines
            .iter()
            .map(|line| (line.by, &*line.name, line.tasks, line.success.unwrap().value))
            .collect();
        assert_eq!(
            got,
            [
                (LineGrouping::All, "", 3, 2.0 / 3.0),
                (LineGrouping::Suite, "", 3, 2.0 / 3.0),
                (LineGrouping::Site, "maps", 1, 1.0),
                (LineGrouping::Site, "shop", 2, 0.5),
                (LineGrouping::Difficulty, "easy", 1, 1.0),
                (LineGrouping::Difficulty, "hard", 2, 0.5),
            ]
        );
        assert_eq!(lines[0].variant, lines[1].variant);
        assert_ne!(lines[1].variant, lines[2].variant, "other tasks give another variant");
    }

    #[test]
    fn pass_at_k_is_a_mean_over_problems_with_attempts_enough() {
        // Task a: 1 of 4 under seed 1, 2 of 2 under seed 2. Task b: 0 of 1.
        let rows = [
            "shop/a 1 0 1",
            "shop/a 1 1 0",
            "shop/a 1 2 0",
            "shop/a 1 3 0",
            "shop/a 2 0 1",
            "shop/a 2 1 1",
            "shop/b 1 0 0",
            "shop/b 1 1 -",
        ];
        let all = &evaluation_lines(&attempts(&rows), &EvaluationQuery::default())[0];
        let got: Vec<_> = all.pass.iter().map(|pass| (pass.k, pass.problems, pass.estimate.value)).collect();
        assert_eq!(got, [(1, 3, (0.25 + 1.0 + 0.0) / 3.0), (2, 2, (0.5 + 1.0) / 2.0), (4, 1, 1.0)]);
        assert_eq!(all.success.unwrap().value, 3.0 / 7.0);
        let some = &evaluation_lines(
            &attempts(&rows),
            &EvaluationQuery { k: vec![2, 3, 8], ..EvaluationQuery::default() },
        )[0];
        assert_eq!(some.pass.iter().map(|pass| pass.k).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn nothing_is_no_rate() {
        let lines = evaluation_lines(&attempts(&["shop/a 1 0 -"]), &EvaluationQuery::default());
        assert_eq!((lines[0].success, lines[0].reward, lines[0].pass.len()), (None, None, 0));
        assert_eq!(evaluation_lines(&[], &EvaluationQuery::default()).len(), 1);
    }

    #[test]
    fn a_site_is_the_host_of_the_start_page() {
        for (url, want) in [
            ("http://shop.web.test/x", "shop.web.test"),
            ("https://a.test:8080", "a.test"),
            ("https://a.test?q", "a.test"),
            ("x", "x"),
        ] {
            assert_eq!(host(url), want);
        }
    }
}
