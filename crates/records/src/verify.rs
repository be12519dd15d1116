//! Proves a data set from its files alone: invariants 1 to 4, every breach named by table, file, row, trajectory and step.
//!
//! Nothing here trusts the writer: rows are read as a stranger's, what was derived is derived again, prompts and hashes are rebuilt.
//! Memory is a few hundred bytes a trajectory, and one trajectory's tokens.

mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use furrow_rollout::{
    Component, End, Fault, GroupRecord, GroupStatistics, Mark, Observation, Split, Status, TokenTrace,
    TrajectoryRecord,
};
use serde::Serialize;

use crate::cell::Cell;
use crate::file::{TableFile, Trust};
use crate::read::DataSet;
use crate::rows::{Fate, RecordedStep, Rescore};
use crate::schema::{EvidenceCell, GroupRow, ScoreRow, StepRow, TrajectoryRow};
use crate::shard::local_files;
use crate::{RecordsError, Table, WrittenFile, chain};
use tokens::Memory;

/// Breaches that are written out; more are only counted.
const BREACHES_SHOWN: usize = 1_000;

/// What a data set was found to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Newest commit.
    pub version: u64,
    /// What was looked at.
    pub counts: Counts,
    /// All breaches, shown or not.
    pub breaches_total: u64,
    /// The first thousand.
    pub breaches: Vec<Breach>,
    /// What is no breach, but should be known.
    pub warnings: Vec<Warning>,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Files of the manifest.
    pub files: u64,
    /// Rows of `trajectories`.
    pub trajectories: u64,
    /// Rows of `steps`.
    pub steps: u64,
    /// Rows of `failed_steps`.
    pub failed_steps: u64,
    /// Rows of `groups`.
    pub groups: u64,
    /// Rows of `scores`.
    pub scores: u64,
    /// Prompts rebuilt from the kept tokens and the commits.
    pub prompts: u64,
    /// Tokens of these prompts and their responses.
    pub tokens: u64,
    /// Pictures whose pixels were hashed again and must agree.
    pub png_pictures: u64,
    /// Pictures whose pixels may differ from decoder to decoder.
    pub jpeg_pictures: u64,
    /// Those that did.
    pub jpeg_differing: u64,
}

/// One place that breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Breach {
    /// The rule.
    pub check: Check,
    /// The table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// The file, below `data/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The row within the file, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// The trajectory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<String>,
    /// The step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// Something to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The file or trajectory.
    pub about: String,
    /// What of it.
    pub what: String,
}

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Commits are contiguous, well formed and fit each other.
    Manifest,
    /// Every listed file is there with its length, hash, columns and rows.
    File,
    /// Every cell holds one of its words, and nulls stand together.
    Row,
    /// A trajectory has one row.
    TrajectoryOnce,
    /// A slot is scored at most once.
    SlotOnce,
    /// A group has one row.
    GroupOnce,
    /// A step has one row.
    StepOnce,
    /// A trajectory's steps lie together, 0, 1, 2 …
    StepOrder,
    /// There are as many steps as the trajectory says.
    StepCount,
    /// A step's trajectory has a row, and the same ids.
    StepParent,
    /// Steps of failed trajectories are in `failed_steps` only.
    FailedApart,
    /// Scored exactly when the end is the policy's own and there are evidence, score and reward.
    ScoredComplete,
    /// The scorer received the evidence that is stored.
    EvidenceSeen,
    /// Rewards are finite.
    RewardFinite,
    /// First, last, terminal, truncated, trainable and reward follow from the trajectory.
    StepPlace,
    /// A group counts its trajectories, and they are among its slots.
    GroupCounts,
    /// A group's statistics are those of its rewards.
    GroupRewards,
    /// Lists have one entry a token.
    TokenLengths,
    /// Forced, sampled and appended tokens are marked as such.
    TokenMarks,
    /// Log-probs are finite and at most 0, entropies finite and not negative.
    Logprobs,
    /// Kept ids lie between their offsets.
    KeptIds,
    /// Versions do not go back, and span the trajectory's range.
    Versions,
    /// Spans lie inside the prompt, in order, apart.
    SpanBounds,
    /// Spans cover the placeholders, and nothing else.
    Placeholders,
    /// A span's picture is the recorded one.
    Pictures,
    /// Marks are numbered from 1, and their boxes lie inside the picture.
    Marks,
    /// The kept tokens are those the commits made.
    Prefix,
    /// The prompt rebuilt from them has the recorded hash.
    PromptHash,
}

/// A place a breach can be found in.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    table: Table,
    file: &'a str,
    row: u64,
}

/// What must be remembered of a trajectory.
struct Facts {
    file: String,
    row: u64,
    group_id: String,
    sample_index: u32,
    attempt: u32,
    run_id: String,
    task: (String, String),
    group_size: u32,
    status: Status,
    end: End,
    split: Split,
    reward: Option<f32>,
    components: Vec<Component>,
    evidence_sha256: Option<[u8; 32]>,
    steps: u32,
    policy_versions: Option<(i32, i32)>,
    steps_seen: u32,
    versions_seen: Option<(i32, i32)>,
}

/// What a group's trajectories add up to.
#[derive(Default)]
struct Tally {
    rewards: Vec<f32>,
    failed: BTreeMap<String, u32>,
    versions: Option<(i32, i32)>,
    group_sizes: BTreeSet<u32>,
}

struct Verifier<'a> {
    set: &'a DataSet,
    report: Report,
    facts: BTreeMap<String, Facts>,
    scored_slots: BTreeMap<(String, u32), String>,
    groups: BTreeSet<String>,
    tallies: BTreeMap<String, Tally>,
}

/// The trajectory whose steps are being read.
#[derive(Default)]
struct Walk {
    trajectory: Option<String>,
    next: u32,
    memory: Memory,
    walked: BTreeSet<String>,
}

/// Checks a run directory or its `data` folder. Only what keeps it from looking is an error; what it finds is in the report.
pub fn verify(dir: &Path) -> Result<Report, RecordsError> {
    let set = match DataSet::open(dir) {
        Ok(set) => set,
        Err(RecordsError::Manifest { version, what }) => return Ok(Report::of_manifest(version, &what)),
        Err(error) => return Err(error),
    };
    let mut verifier = Verifier::new(&set);
    verifier.read();
    verifier.compare();
    verifier.look_for_strays()?;
    Ok(verifier.report)
}

impl Report {
    /// Whether nothing was found.
    pub fn is_sound(&self) -> bool {
        self.breaches_total == 0
    }

    fn new(version: u64) -> Self {
        Self {
            version,
            counts: Counts::default(),
            breaches_total: 0,
            breaches: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn of_manifest(version: u64, what: &str) -> Self {
        let mut report = Self::new(version);
        let what = format!("commit {version} {what}");
        report.breach(Breach {
            check: Check::Manifest,
            table: None,
            file: None,
            row: None,
            trajectory: None,
            step: None,
            what,
        });
        report
    }

    fn breach(&mut self, breach: Breach) {
        self.breaches_total += 1;
        if self.breaches.len() < BREACHES_SHOWN {
            self.breaches.push(breach);
        }
    }

    fn warn(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.warnings.push(Warning { about: about.into(), what: what.into() });
    }
}

impl Place<'_> {
    fn breach(&self, check: Check, trajectory: Option<&str>, step: Option<u32>, what: String) -> Breach {
        Breach {
            check,
            table: Some(self.table),
            file: Some(self.file.to_owned()),
            row: Some(self.row),
            trajectory: trajectory.map(str::to_owned),
            step,
            what,
        }
    }
}

impl<'a> Verifier<'a> {
    fn new(set: &'a DataSet) -> Self {
        Self {
            set,
            report: Report::new(set.snapshot().version()),
            facts: BTreeMap::new(),
            scored_slots: BTreeMap::new(),
            groups: BTreeSet::new(),
            tallies: BTreeMap::new(),
        }
    }

    /// Trajectories first: every other table is compared with them.
    fn read(&mut self) {
        self.rows(Table::Trajectories, Self::trajectory);
        self.tally();
        self.rows(Table::Groups, Self::group);
        self.rows(Table::Scores, Self::rescore);
        for table in [Table::Steps, Table::FailedSteps] {
            let mut walk = Walk::default();
            self.rows(table, |this, place, row| this.step(&mut walk, place, row));
        }
    }

    fn rows<R: Cell>(&mut self, table: Table, mut look: impl FnMut(&mut Self, Place<'_>, R)) {
        let set = self.set;
        for file in set.snapshot().files(table) {
            self.report.counts.files += 1;
            if let Err(error) = self.rows_of(file, &mut look) {
                self.unreadable(file, &error);
            }
        }
    }

    fn rows_of<R: Cell>(
        &mut self,
        file: &WrittenFile,
        look: &mut impl FnMut(&mut Self, Place<'_>, R),
    ) -> Result<(), RecordsError> {
        let batches = self.set.file(file, Trust::Hash).and_then(TableFile::rows::<R>)?;
        let mut row = 0;
        for batch in batches {
            for cells in batch? {
                look(self, Place { table: file.table, file: &file.path, row }, cells);
                row += 1;
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, file: &WrittenFile, error: &RecordsError) {
        self.report.breach(Breach {
            check: Check::File,
            table: Some(file.table),
            file: Some(file.path.clone()),
            row: None,
            trajectory: None,
            step: None,
            what: chain(error),
        });
    }

    // Trajectories.

    fn trajectory(&mut self, place: Place<'_>, row: TrajectoryRow) {
        self.report.counts.trajectories += 1;
        let id = row.trajectory_id.clone();
        let evidence = row.evidence.clone();
        let record = match row.noun() {
            Ok(record) => record,
            Err(what) => return self.report.breach(place.breach(Check::Row, Some(&id), None, what)),
        };
        for (check, what) in judge(&record, evidence.as_ref()) {
            self.report.breach(place.breach(check, Some(&id), None, what));
        }
        if let Some(first) = self.facts.get(&id) {
            let what = format!("has a row in {}, row {}, before", first.file, first.row);
            return self.report.breach(place.breach(Check::TrajectoryOnce, Some(&id), None, what));
        }
        let facts = Facts::new(place, &record, evidence.map(|evidence| evidence.sha256));
        self.slot(place, &id, &facts);
        self.facts.insert(id, facts);
    }

    fn slot(&mut self, place: Place<'_>, id: &str, facts: &Facts) {
        if facts.status != Status::Scored {
            return;
        }
        let slot = (facts.group_id.clone(), facts.sample_index);
        if let Some(first) = self.scored_slots.insert(slot, id.to_owned()) {
            let what =
                format!("slot {} of group {} is scored by {first} too", facts.sample_index, facts.group_id);
            self.report.breach(place.breach(Check::SlotOnce, Some(id), None, what));
        }
    }

    fn tally(&mut self) {
        for facts in self.facts.values() {
            self.tallies.entry(facts.group_id.clone()).or_default().add(facts);
        }
    }

    // Groups and later scores.

    fn group(&mut self, place: Place<'_>, row: GroupRow) {
        self.report.counts.groups += 1;
        let group = match row.noun() {
            Ok(group) => group,
            Err(what) => return self.report.breach(place.breach(Check::Row, None, None, what)),
        };
        let id = group.group_id.as_str();
        if !self.groups.insert(id.to_owned()) {
            let what = format!("group {id} has a row before");
            self.report.breach(place.breach(Check::GroupOnce, None, None, what));
        }
        let none = Tally::default();
        let problems = self.tallies.get(id).unwrap_or(&none).compare(&group);
        for (check, what) in problems {
            let what = format!("group {id} {what}");
            if self.set.snapshot().has_expired() {
                self.report.warn(id, format!("{what}; rows of this data set have expired"));
            } else {
                self.report.breach(place.breach(check, None, None, what));
            }
        }
    }

    fn rescore(&mut self, place: Place<'_>, row: ScoreRow) {
        self.report.counts.scores += 1;
        let id = row.trajectory_id.clone();
        let problem = match row.noun() {
            Ok(rescore) => self.judge_rescore(&id, &rescore),
            Err(what) => Some((Check::Row, what)),
        };
        if let Some((check, what)) = problem {
            self.report.breach(place.breach(check, Some(&id), None, what));
        }
    }

    fn judge_rescore(&self, id: &str, rescore: &Rescore) -> Option<(Check, String)> {
        if rescore.score.reward.is_some_and(|reward| !reward.is_finite()) {
            return Some((Check::RewardFinite, "its reward is not a finite number".into()));
        }
        match self.facts.get(id) {
            None if self.set.snapshot().has_expired() => None,
            None => Some((Check::EvidenceSeen, "scores a trajectory that has no row".into())),
            Some(facts) if facts.evidence_sha256 == Some(rescore.score.evidence_sha256) => None,
            Some(_) => {
                Some((Check::EvidenceSeen, "its scorer received other evidence than is stored".into()))
            }
        }
    }

    // Steps.

    fn step(&mut self, walk: &mut Walk, place: Place<'_>, row: StepRow) {
        match place.table {
            Table::Steps => self.report.counts.steps += 1,
            _ => self.report.counts.failed_steps += 1,
        }
        let (id, step) = (row.trajectory_id.clone(), row.step.cast_unsigned());
        let mut problems = walk.arrive(&id, step);
        match row.noun() {
            Ok(recorded) => {
                problems.extend(self.judge_step(place.table, &recorded));
                problems.extend(walk.memory.step(&recorded.record, &mut self.report.counts));
                problems.extend(judge_marks(&recorded.record.observation));
            }
            Err(what) => problems.push((Check::Row, what)),
        }
        for (check, what) in problems {
            self.report.breach(place.breach(check, Some(&id), Some(step), what));
        }
    }

    fn judge_step(&mut self, table: Table, step: &RecordedStep) -> Vec<(Check, String)> {
        let Some(facts) = self.facts.get_mut(step.ancestry.trajectory_id.as_str()) else {
            let expired = self.set.snapshot().has_expired();
            let orphan = || (Check::StepParent, String::from("its trajectory has no row"));
            return (!expired).then(orphan).into_iter().collect();
        };
        facts.steps_seen += 1;
        facts.see_versions(step.record.trace.tokens.as_ref());
        let mut problems = facts.judge_table(table);
        if !facts.is_parent_of(step) {
            problems.push((Check::StepParent, "its ids differ from its trajectory's".into()));
        }
        let is_last = step.record.step + 1 == facts.steps;
        let wanted = facts.fate().place(&step.record, is_last);
        if wanted != step.place {
            problems.push((Check::StepPlace, format!("says {:?}, it should be {wanted:?}", step.place)));
        }
        problems
    }

    // The end.

    /// What only shows when everything was read.
    fn compare(&mut self) {
        let facts = std::mem::take(&mut self.facts);
        let expired = self.set.snapshot().has_expired();
        for (id, facts) in &facts {
            let place = Place { table: Table::Trajectories, file: &facts.file, row: facts.row };
            if expired && facts.steps_seen == 0 {
                continue;
            }
            for (check, what) in facts.judge_whole() {
                self.report.breach(place.breach(check, Some(id), None, what));
            }
        }
    }

    fn look_for_strays(&mut self) -> Result<(), RecordsError> {
        let snapshot = self.set.snapshot();
        for file in local_files(self.set.data_dir())? {
            if snapshot.holds(&file.name) {
                continue;
            }
            let what = match (file.temporary, snapshot.removed().contains_key(&file.name)) {
                (true, _) => "was never finished",
                (_, true) => "stands in a merged file too and was not set aside",
                (_, false) => "is in no commit",
            };
            self.report.warn(file.name, what);
        }
        Ok(())
    }
}

impl Facts {
    fn new(place: Place<'_>, record: &TrajectoryRecord, evidence_sha256: Option<[u8; 32]>) -> Self {
        let fate = Fate::of(record);
        Self {
            file: place.file.to_owned(),
            row: place.row,
            group_id: record.ancestry.group_id.to_string(),
            sample_index: record.ancestry.sample_index,
            attempt: record.ancestry.attempt,
            run_id: record.ancestry.run_id.to_string(),
            task: (record.task.suite.clone(), record.task.task_id.clone()),
            group_size: record.group_size,
            status: fate.status,
            end: fate.end,
            split: fate.split,
            reward: fate.reward,
            components: fate.components.to_vec(),
            evidence_sha256,
            steps: record.ending.steps,
            policy_versions: record.policy_versions,
            steps_seen: 0,
            versions_seen: None,
        }
    }

    fn fate(&self) -> Fate<'_> {
        let Self { status, end, split, reward, components, .. } = self;
        Fate { status: *status, end: *end, split: *split, reward: *reward, components }
    }

    fn see_versions(&mut self, tokens: Option<&TokenTrace>) {
        for &version in tokens.iter().flat_map(|tokens| &tokens.policy_versions) {
            widen(&mut self.versions_seen, (version, version));
        }
    }

    fn judge_table(&self, table: Table) -> Vec<(Check, String)> {
        let wanted = match self.status {
            Status::Scored => Table::Steps,
            Status::Failed => Table::FailedSteps,
        };
        let wrong =
            || (Check::FailedApart, format!("is in {table}, its trajectory is {}", self.status.as_str()));
        (table != wanted).then(wrong).into_iter().collect()
    }

    fn is_parent_of(&self, step: &RecordedStep) -> bool {
        let of = &step.ancestry;
        self.group_id == of.group_id.as_str()
            && self.run_id == of.run_id.as_str()
            && (self.sample_index, self.attempt) == (of.sample_index, of.attempt)
            && (&self.task.0, &self.task.1) == (&step.suite, &step.task_id)
            && self.split == step.split
    }

    fn judge_whole(&self) -> Vec<(Check, String)> {
        let mut problems = Vec::new();
        if self.steps_seen != self.steps {
            let what = format!("says {} steps, {} are there", self.steps, self.steps_seen);
            problems.push((Check::StepCount, what));
        }
        if self.versions_seen.is_some() && self.versions_seen != self.policy_versions {
            let (says, has) = (self.policy_versions, self.versions_seen);
            problems.push((Check::Versions, format!("says versions {says:?}, its tokens have {has:?}")));
        }
        problems
    }
}

impl Tally {
    fn add(&mut self, facts: &Facts) {
        self.group_sizes.insert(facts.group_size);
        match (facts.status, facts.reward) {
            (Status::Failed, _) => *self.failed.entry(facts.end.as_str().into()).or_default() += 1,
            (Status::Scored, reward) => {
                self.rewards.extend(reward);
                facts.policy_versions.into_iter().for_each(|range| widen(&mut self.versions, range));
            }
        }
    }

    fn compare(&self, group: &GroupRecord) -> Vec<(Check, String)> {
        let mut problems = Vec::new();
        let mut differ = |check, name: &str, says: String, has: String| {
            if says != has {
                problems.push((check, format!("says {name} {says}, its trajectories make it {has}")));
            }
        };
        differ(Check::GroupCounts, "valid", group.valid.to_string(), self.rewards.len().to_string());
        differ(Check::GroupCounts, "failed", format!("{:?}", group.failed), format!("{:?}", self.failed));
        differ(
            Check::Versions,
            "versions",
            format!("{:?}", group.policy_versions),
            format!("{:?}", self.versions),
        );
        let planned = BTreeSet::from([group.planned]);
        if !self.group_sizes.is_empty() && planned != self.group_sizes {
            let what = format!("says planned {}, its trajectories say {:?}", group.planned, self.group_sizes);
            problems.push((Check::GroupCounts, what));
        }
        if group.valid > group.planned {
            problems
                .push((Check::GroupCounts, format!("has {} of {} slots scored", group.valid, group.planned)));
        }
        let wanted = GroupStatistics::of(&self.rewards);
        if !alike(group.rewards, wanted) {
            problems.push((
                Check::GroupRewards,
                format!("says {:?}, its rewards make {wanted:?}", group.rewards),
            ));
        }
        problems
    }
}

impl Walk {
    /// Steps of a trajectory come one after another, and a trajectory comes once.
    fn arrive(&mut self, id: &str, step: u32) -> Vec<(Check, String)> {
        let mut problems = Vec::new();
        if self.trajectory.as_deref() != Some(id) {
            if !self.walked.insert(id.to_owned()) {
                problems.push((Check::StepOrder, "lies apart from the trajectory's other steps".into()));
            }
            *self = Self {
                trajectory: Some(id.to_owned()),
                walked: std::mem::take(&mut self.walked),
                ..Self::default()
            };
        }
        let next = std::mem::replace(&mut self.next, step.saturating_add(1));
        if step < next {
            problems.push((Check::StepOnce, format!("comes after step {}", next - 1)));
        } else if step > next {
            problems.push((Check::StepOrder, format!("comes where step {next} should be")));
        }
        problems
    }
}

/// What a trajectory's own row shows.
fn judge(record: &TrajectoryRecord, evidence: Option<&EvidenceCell>) -> Vec<(Check, String)> {
    let mut problems = Vec::new();
    let recomputed = record.ending.evidence.as_ref().map(furrow_rollout::Evidence::sha256);
    if evidence.map(|evidence| evidence.sha256) != recomputed {
        problems.push((Check::EvidenceSeen, "evidence.sha256 is not the hash of the evidence".into()));
    }
    let score = record.score.as_ref();
    if let Some(score) = score.filter(|score| Some(score.evidence_sha256) != recomputed) {
        let what = format!("scorer {:?} received other evidence than is stored", score.scorer);
        problems.push((Check::EvidenceSeen, what));
    }
    if score.and_then(|score| score.reward).is_some_and(|reward| !reward.is_finite()) {
        problems.push((Check::RewardFinite, "its reward is not a finite number".into()));
    }
    problems.extend(judge_status(record).map(|what| (Check::ScoredComplete, what)));
    let (sample, planned) = (record.ancestry.sample_index, record.group_size);
    if sample >= planned {
        problems.push((Check::GroupCounts, format!("slot {sample} is none of the {planned} planned")));
    }
    problems
}

fn judge_marks(observation: &Observation) -> Option<(Check, String)> {
    let problem = Mark::problem(observation.marks.as_deref()?, observation.screenshot.size)?;
    Some((Check::Marks, problem))
}

fn judge_status(record: &TrajectoryRecord) -> Option<String> {
    let end = record.ending.end;
    let has_reward = record.score.as_ref().is_some_and(|score| score.reward.is_some());
    match record.status {
        Status::Scored if end.fault(true) == Fault::Farm => {
            Some(format!("is scored and ended {}, which is the farm's fault", end.as_str()))
        }
        Status::Scored if record.ending.evidence.is_none() => Some("is scored without evidence".into()),
        Status::Scored if !has_reward => Some("is scored without a reward".into()),
        Status::Failed if record.score.is_some() => Some("is failed and has a score".into()),
        Status::Failed if end.fault(false) == Fault::Policy => {
            Some(format!("is failed and ended {}, which is the policy's own doing", end.as_str()))
        }
        _ => None,
    }
}

/// Sums of the same rewards in another order may differ in their last digits.
fn alike(says: Option<GroupStatistics>, wanted: Option<GroupStatistics>) -> bool {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).clamp(1.0, f64::MAX);
    match (says, wanted) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            near(a.mean, b.mean) && near(a.std, b.std) && a.zero_variance == b.zero_variance
        }
        _ => false,
    }
}

fn widen(range: &mut Option<(i32, i32)>, (oldest, newest): (i32, i32)) {
    let (from, to) = range.unwrap_or((oldest, newest));
    *range = Some((from.min(oldest), to.max(newest)));
}

#[cfg(test)]
mod cases;
