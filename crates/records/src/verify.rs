//! Verifies a data set from its files alone: invariants 1 to 4, with every breach located by table,
//! file, row, trajectory and step.
//!
//! Nothing here trusts the writer: rows are read as untrusted input, derived values are derived
//! again, prompts and hashes are rebuilt. It needs a few hundred bytes of memory per trajectory,
//! and one trajectory's tokens.

mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use furrow_rollout::{
    EndKind, FaultOwner, GroupRecord, GroupStatistics, Mark, Observation, ScoreComponent, Split, TokenTrace,
    TrajectoryRecord, TrajectoryStatus,
};
use serde::Serialize;

use crate::cell::ColumnCell;
use crate::file::{IntegrityCheck, TableFile};
use crate::read::DataSet;
use crate::rows::{RecordedStep, RescoreRecord, TrajectoryColumns};
use crate::schema::{EvidenceCell, GroupRow, ScoreRow, StepRow, TrajectoryRow};
use crate::shard::local_files;
use crate::{RecordsError, Table, WrittenFile, chain};
use tokens::SessionMemory;

/// Breaches that are listed; further ones are only counted.
const BREACHES_LISTED_MAX: usize = 1_000;

/// Result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Newest commit that was read.
    pub version: u64,
    /// Files and rows that the checks read: all zero for an empty data set, which has no breaches.
    pub counts: VerifyCounts,
    /// All breaches, listed or not.
    pub breaches_total: u64,
    /// The first thousand breaches.
    pub breaches: Vec<RuleBreach>,
    /// Findings that are not breaches but should be known.
    pub warnings: Vec<VerifyWarning>,
}

/// Amounts of what was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct VerifyCounts {
    /// Files in the manifest.
    pub files: u64,
    /// Rows of the table `trajectories`.
    pub trajectories: u64,
    /// Rows of the table `steps`.
    pub steps: u64,
    /// Rows of the table `failed_steps`.
    pub failed_steps: u64,
    /// Rows of the table `groups`.
    pub groups: u64,
    /// Rows of the table `scores`.
    pub scores: u64,
    /// Prompts rebuilt from the kept tokens and the commits.
    pub prompts: u64,
    /// Tokens of these prompts and their responses.
    pub tokens: u64,
    /// Pictures whose pixels were hashed again and must match.
    pub png_pictures: u64,
    /// Pictures whose pixels may differ from decoder to decoder.
    pub jpeg_pictures: u64,
    /// Of those, pictures whose pixels differ.
    pub jpeg_differing: u64,
}

/// One place that breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleBreach {
    /// The rule that is broken.
    pub check: VerifyCheck,
    /// The table of the row, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// Path of the file below `data/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The row within the file, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// Id of the trajectory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<String>,
    /// Index of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// A finding that is not a breach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyWarning {
    /// The file or trajectory it concerns.
    pub about: String,
    /// The finding as a sentence.
    pub what: String,
}

/// Rules of a sound data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyCheck {
    /// Commits are contiguous, well formed and consistent.
    Manifest,
    /// Every listed file exists with its length, hash, columns and rows.
    File,
    /// Every cell holds an allowed value, and related cells are null together.
    Row,
    /// A trajectory has one row.
    TrajectoryOnce,
    /// A slot is scored at most once.
    SlotOnce,
    /// A group has one row.
    GroupOnce,
    /// A trajectory has exactly one row.
    StepOnce,
    /// A trajectory's steps are adjacent and numbered 0, 1, 2 …
    StepOrder,
    /// The number of steps is the one in the trajectory's row.
    StepCount,
    /// A step's trajectory has a row with the same ids.
    StepParent,
    /// Steps of failed trajectories are in `failed_steps` only.
    FailedApart,
    /// A trajectory is scored exactly when its end is the policy's own and it has evidence, score
    /// and reward.
    ScoredComplete,
    /// The scorer received the evidence that is stored.
    #[serde(rename = "evidence_seen")]
    EvidenceReceived,
    /// The reward of a trajectory or of a later score is a finite number.
    RewardFinite,
    /// First, last, terminal, truncated, trainable and reward follow from the trajectory.
    #[serde(rename = "step_place")]
    DerivedValues,
    /// A group's counts match its trajectories, whose slots are all among its own.
    GroupCounts,
    /// A group's statistics match its rewards.
    GroupRewards,
    /// Token lists have one entry per token.
    TokenLengths,
    /// Forced, sampled and appended tokens are marked as such.
    TokenMarks,
    /// Log-probs are finite and at most 0, entropies finite and not negative.
    Logprobs,
    /// Kept ids match their offsets.
    KeptIds,
    /// Versions do not go back, and lie within the trajectory's range.
    Versions,
    /// Image spans are inside the prompt, in order, and do not overlap.
    SpanBounds,
    /// Image spans cover exactly the placeholders.
    Placeholders,
    /// A span's picture is the recorded one.
    Pictures,
    /// Marks are numbered from 1, and their boxes are inside the picture.
    Marks,
    /// The kept tokens are those that the commits produced.
    Prefix,
    /// The rebuilt prompt has the recorded hash.
    PromptHash,
}

/// The location of a row.
#[derive(Debug, Clone, Copy)]
struct RowLocation<'a> {
    table: Table,
    file: &'a str,
    row: u64,
}

/// What later checks need to know of a trajectory.
struct TrajectoryChecks {
    file: String,
    row: u64,
    group_id: String,
    sample_index: u32,
    attempt: u32,
    run_id: String,
    task: (String, String),
    group_size: u32,
    status: TrajectoryStatus,
    end: EndKind,
    split: Split,
    reward: Option<f32>,
    components: Vec<ScoreComponent>,
    evidence_sha256: Option<[u8; 32]>,
    steps: u32,
    policy_versions: Option<(i32, i32)>,
    steps_read: u32,
    versions_read: Option<(i32, i32)>,
}

/// Totals over a group's trajectories.
#[derive(Default)]
struct GroupTally {
    rewards: Vec<f32>,
    failed: BTreeMap<String, u32>,
    versions: Option<(i32, i32)>,
    group_sizes: BTreeSet<u32>,
}

struct Verifier<'a> {
    set: &'a DataSet,
    report: VerifyReport,
    facts: BTreeMap<String, TrajectoryChecks>,
    scored_slots: BTreeMap<(String, u32), String>,
    groups: BTreeSet<String>,
    tallies: BTreeMap<String, GroupTally>,
}

/// The trajectory whose steps are being read.
#[derive(Default)]
struct StepWalk {
    trajectory: Option<String>,
    next: u32,
    memory: SessionMemory,
    walked: BTreeSet<String>,
}

/// Checks a run directory or its `data` folder. It fails only when it cannot check; its findings
/// are in the report.
pub fn verify(dir: &Path) -> Result<VerifyReport, RecordsError> {
    let set = match DataSet::open(dir) {
        Ok(set) => set,
        Err(RecordsError::Manifest { version, what }) => {
            return Ok(VerifyReport::of_manifest(version, &what));
        }
        Err(error) => return Err(error),
    };
    let mut verifier = Verifier::new(&set);
    verifier.read();
    verifier.compare();
    verifier.look_for_strays()?;
    Ok(verifier.report)
}

impl VerifyReport {
    /// Whether there are no breaches.
    pub fn is_sound(&self) -> bool {
        self.breaches_total == 0
    }

    fn new(version: u64) -> Self {
        Self {
            version,
            counts: VerifyCounts::default(),
            breaches_total: 0,
            breaches: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn of_manifest(version: u64, what: &str) -> Self {
        let mut report = Self::new(version);
        let what = format!("commit {version} {what}");
        report.breach(RuleBreach {
            check: VerifyCheck::Manifest,
            table: None,
            file: None,
            row: None,
            trajectory: None,
            step: None,
            what,
        });
        report
    }

    fn breach(&mut self, breach: RuleBreach) {
        self.breaches_total += 1;
        if self.breaches.len() < BREACHES_LISTED_MAX {
            self.breaches.push(breach);
        }
    }

    fn warn(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.warnings.push(VerifyWarning { about: about.into(), what: what.into() });
    }
}

impl RowLocation<'_> {
    fn breach(
        &self,
        check: VerifyCheck,
        trajectory: Option<&str>,
        step: Option<u32>,
        what: String,
    ) -> RuleBreach {
        RuleBreach {
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
            report: VerifyReport::new(set.snapshot().version()),
            facts: BTreeMap::new(),
            scored_slots: BTreeMap::new(),
            groups: BTreeSet::new(),
            tallies: BTreeMap::new(),
        }
    }

    /// Trajectories come first: every other table is compared with them.
    fn read(&mut self) {
        self.rows(Table::Trajectories, Self::trajectory);
        self.tally();
        self.rows(Table::Groups, Self::group);
        self.rows(Table::Scores, Self::rescore);
        for table in [Table::Steps, Table::FailedSteps] {
            let mut walk = StepWalk::default();
            self.rows(table, |this, location, row| this.step(&mut walk, location, row));
        }
    }

    fn rows<R: ColumnCell>(&mut self, table: Table, mut look: impl FnMut(&mut Self, RowLocation<'_>, R)) {
        let set = self.set;
        for file in set.snapshot().files(table) {
            self.report.counts.files += 1;
            if let Err(error) = self.rows_of(file, &mut look) {
                self.unreadable(file, &error);
            }
        }
    }

    fn rows_of<R: ColumnCell>(
        &mut self,
        file: &WrittenFile,
        look: &mut impl FnMut(&mut Self, RowLocation<'_>, R),
    ) -> Result<(), RecordsError> {
        let batches = self.set.file(file, IntegrityCheck::Hash).and_then(TableFile::rows::<R>)?;
        let mut row = 0;
        for batch in batches {
            for cells in batch? {
                look(self, RowLocation { table: file.table, file: &file.path, row }, cells);
                row += 1;
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, file: &WrittenFile, error: &RecordsError) {
        self.report.breach(RuleBreach {
            check: VerifyCheck::File,
            table: Some(file.table),
            file: Some(file.path.clone()),
            row: None,
            trajectory: None,
            step: None,
            what: chain(error),
        });
    }

    // Trajectories.

    fn trajectory(&mut self, location: RowLocation<'_>, row: TrajectoryRow) {
        self.report.counts.trajectories += 1;
        let id = row.trajectory_id.clone();
        let evidence = row.evidence.clone();
        let record = match row.into_domain() {
            Ok(record) => record,
            Err(what) => return self.report.breach(location.breach(VerifyCheck::Row, Some(&id), None, what)),
        };
        for (check, what) in check_trajectory(&record, evidence.as_ref()) {
            self.report.breach(location.breach(check, Some(&id), None, what));
        }
        if let Some(first) = self.facts.get(&id) {
            let what = format!("already has a row in {}, row {}", first.file, first.row);
            return self.report.breach(location.breach(VerifyCheck::TrajectoryOnce, Some(&id), None, what));
        }
        let facts = TrajectoryChecks::new(location, &record, evidence.map(|evidence| evidence.sha256));
        self.slot(location, &id, &facts);
        self.facts.insert(id, facts);
    }

    fn slot(&mut self, location: RowLocation<'_>, id: &str, facts: &TrajectoryChecks) {
        if facts.status != TrajectoryStatus::Scored {
            return;
        }
        let slot = (facts.group_id.clone(), facts.sample_index);
        if let Some(first) = self.scored_slots.insert(slot, id.to_owned()) {
            let what =
                format!("slot {} of group {} is also scored by {first}", facts.sample_index, facts.group_id);
            self.report.breach(location.breach(VerifyCheck::SlotOnce, Some(id), None, what));
        }
    }

    fn tally(&mut self) {
        for facts in self.facts.values() {
            self.tallies.entry(facts.group_id.clone()).or_default().add(facts);
        }
    }

    // Groups and later scores.

    fn group(&mut self, location: RowLocation<'_>, row: GroupRow) {
        self.report.counts.groups += 1;
        let group = match row.into_domain() {
            Ok(group) => group,
            Err(what) => return self.report.breach(location.breach(VerifyCheck::Row, None, None, what)),
        };
        let id = group.group_id.as_str();
        if !self.groups.insert(id.to_owned()) {
            let what = format!("group {id} already has a row");
            self.report.breach(location.breach(VerifyCheck::GroupOnce, None, None, what));
        }
        let none = GroupTally::default();
        let problems = self.tallies.get(id).unwrap_or(&none).compare(&group);
        for (check, what) in problems {
            let what = format!("group {id} {what}");
            if self.set.snapshot().has_expired() {
                self.report.warn(id, format!("{what}; rows of this data set have expired"));
            } else {
                self.report.breach(location.breach(check, None, None, what));
            }
        }
    }

    fn rescore(&mut self, location: RowLocation<'_>, row: ScoreRow) {
        self.report.counts.scores += 1;
        let id = row.trajectory_id.clone();
        let problem = match row.into_domain() {
            Ok(rescore) => self.check_rescore(&id, &rescore),
            Err(what) => Some((VerifyCheck::Row, what)),
        };
        if let Some((check, what)) = problem {
            self.report.breach(location.breach(check, Some(&id), None, what));
        }
    }

    fn check_rescore(&self, id: &str, rescore: &RescoreRecord) -> Option<(VerifyCheck, String)> {
        if rescore.score.reward.is_some_and(|reward| !reward.is_finite()) {
            return Some((VerifyCheck::RewardFinite, "its reward is not a finite number".into()));
        }
        match self.facts.get(id) {
            None if self.set.snapshot().has_expired() => None,
            None => Some((VerifyCheck::EvidenceReceived, "scores a trajectory that has no row".into())),
            Some(facts) if facts.evidence_sha256 == Some(rescore.score.evidence_sha256) => None,
            Some(_) => Some((
                VerifyCheck::EvidenceReceived,
                "its scorer received other evidence than is stored".into(),
            )),
        }
    }

    // Steps.

    fn step(&mut self, walk: &mut StepWalk, location: RowLocation<'_>, row: StepRow) {
        match location.table {
            Table::Steps => self.report.counts.steps += 1,
            _ => self.report.counts.failed_steps += 1,
        }
        let id = row.trajectory_id.clone();
        let step = row.step.cast_unsigned();
        let mut problems = walk.arrive(&id, step);
        match row.into_domain() {
            Ok(recorded) => {
                problems.extend(self.check_step(location.table, &recorded));
                problems.extend(walk.memory.step(&recorded.record, &mut self.report.counts));
                problems.extend(check_marks(&recorded.record.observation));
            }
            Err(what) => problems.push((VerifyCheck::Row, what)),
        }
        for (check, what) in problems {
            self.report.breach(location.breach(check, Some(&id), Some(step), what));
        }
    }

    fn check_step(&mut self, table: Table, step: &RecordedStep) -> Vec<(VerifyCheck, String)> {
        let Some(facts) = self.facts.get_mut(step.ancestry.trajectory_id.as_str()) else {
            let expired = self.set.snapshot().has_expired();
            let orphan = || (VerifyCheck::StepParent, String::from("its trajectory has no row"));
            return (!expired).then(orphan).into_iter().collect();
        };
        facts.steps_read += 1;
        facts.add_versions(step.record.trace.tokens.as_ref());
        let mut problems = facts.check_table(table);
        if !facts.is_parent_of(step) {
            problems.push((VerifyCheck::StepParent, "its ids differ from its trajectory's".into()));
        }
        let is_last = step.record.step + 1 == facts.steps;
        let wanted = facts.trajectory_columns().derive(&step.record, is_last);
        if wanted != step.derived {
            problems.push((
                VerifyCheck::DerivedValues,
                format!("says {:?}, it should be {wanted:?}", step.derived),
            ));
        }
        problems
    }

    // The end.

    /// Checks that need all rows.
    fn compare(&mut self) {
        let facts = std::mem::take(&mut self.facts);
        let expired = self.set.snapshot().has_expired();
        for (id, facts) in &facts {
            let location = RowLocation { table: Table::Trajectories, file: &facts.file, row: facts.row };
            if expired && facts.steps_read == 0 {
                continue;
            }
            for (check, what) in facts.check_whole() {
                self.report.breach(location.breach(check, Some(id), None, what));
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
                (_, true) => "is also in a merged file and was not set aside",
                (_, false) => "is in no commit",
            };
            self.report.warn(file.name, what);
        }
        Ok(())
    }
}

impl TrajectoryChecks {
    fn new(location: RowLocation<'_>, record: &TrajectoryRecord, evidence_sha256: Option<[u8; 32]>) -> Self {
        let fate = TrajectoryColumns::of(record);
        Self {
            file: location.file.to_owned(),
            row: location.row,
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
            steps_read: 0,
            versions_read: None,
        }
    }

    fn trajectory_columns(&self) -> TrajectoryColumns<'_> {
        let Self { status, end, split, reward, components, .. } = self;
        TrajectoryColumns { status: *status, end: *end, split: *split, reward: *reward, components }
    }

    fn add_versions(&mut self, tokens: Option<&TokenTrace>) {
        for &version in tokens.iter().flat_map(|tokens| &tokens.policy_versions) {
            widen(&mut self.versions_read, (version, version));
        }
    }

    fn check_table(&self, table: Table) -> Vec<(VerifyCheck, String)> {
        let wanted = match self.status {
            TrajectoryStatus::Scored => Table::Steps,
            TrajectoryStatus::Failed => Table::FailedSteps,
        };
        let wrong = || {
            (VerifyCheck::FailedApart, format!("is in {table}, its trajectory is {}", self.status.as_str()))
        };
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

    fn check_whole(&self) -> Vec<(VerifyCheck, String)> {
        let mut problems = Vec::new();
        if self.steps_read != self.steps {
            let what = format!("says {} steps, {} exist", self.steps, self.steps_read);
            problems.push((VerifyCheck::StepCount, what));
        }
        if self.versions_read.is_some() && self.versions_read != self.policy_versions {
            let says = self.policy_versions;
            let has = self.versions_read;
            problems
                .push((VerifyCheck::Versions, format!("says versions {says:?}, its tokens have {has:?}")));
        }
        problems
    }
}

impl GroupTally {
    fn add(&mut self, facts: &TrajectoryChecks) {
        self.group_sizes.insert(facts.group_size);
        match (facts.status, facts.reward) {
            (TrajectoryStatus::Failed, _) => *self.failed.entry(facts.end.as_str().into()).or_default() += 1,
            (TrajectoryStatus::Scored, reward) => {
                self.rewards.extend(reward);
                facts.policy_versions.into_iter().for_each(|range| widen(&mut self.versions, range));
            }
        }
    }

    fn compare(&self, group: &GroupRecord) -> Vec<(VerifyCheck, String)> {
        let mut problems = Vec::new();
        let mut differ = |check, name: &str, says: String, has: String| {
            if says != has {
                problems.push((check, format!("says {name} {says}, its trajectories give {has}")));
            }
        };
        differ(VerifyCheck::GroupCounts, "valid", group.valid.to_string(), self.rewards.len().to_string());
        differ(
            VerifyCheck::GroupCounts,
            "failed",
            format!("{:?}", group.failed),
            format!("{:?}", self.failed),
        );
        differ(
            VerifyCheck::Versions,
            "versions",
            format!("{:?}", group.policy_versions),
            format!("{:?}", self.versions),
        );
        let planned = BTreeSet::from([group.planned]);
        if !self.group_sizes.is_empty() && planned != self.group_sizes {
            let what = format!("says planned {}, its trajectories say {:?}", group.planned, self.group_sizes);
            problems.push((VerifyCheck::GroupCounts, what));
        }
        if group.valid > group.planned {
            problems.push((
                VerifyCheck::GroupCounts,
                format!("has {} of {} slots scored", group.valid, group.planned),
            ));
        }
        let wanted = GroupStatistics::of(&self.rewards);
        if !alike(group.rewards, wanted) {
            problems.push((
                VerifyCheck::GroupRewards,
                format!("says {:?}, its rewards give {wanted:?}", group.rewards),
            ));
        }
        problems
    }
}

impl StepWalk {
    /// Records that a step follows: steps of a trajectory must be adjacent, and a trajectory comes
    /// once.
    fn arrive(&mut self, id: &str, step: u32) -> Vec<(VerifyCheck, String)> {
        let mut problems = Vec::new();
        if self.trajectory.as_deref() != Some(id) {
            if !self.walked.insert(id.to_owned()) {
                problems.push((VerifyCheck::StepOrder, "is apart from the trajectory's other steps".into()));
            }
            *self = Self {
                trajectory: Some(id.to_owned()),
                walked: std::mem::take(&mut self.walked),
                ..Self::default()
            };
        }
        let next = std::mem::replace(&mut self.next, step.saturating_add(1));
        if step < next {
            problems.push((VerifyCheck::StepOnce, format!("comes after step {}", next - 1)));
        } else if step > next {
            problems.push((VerifyCheck::StepOrder, format!("comes where step {next} should be")));
        }
        problems
    }
}

/// Checks a trajectory's own row.
fn check_trajectory(
    record: &TrajectoryRecord,
    evidence: Option<&EvidenceCell>,
) -> Vec<(VerifyCheck, String)> {
    let mut problems = Vec::new();
    let recomputed = record.ending.evidence.as_ref().map(furrow_rollout::Evidence::sha256);
    if evidence.map(|evidence| evidence.sha256) != recomputed {
        problems
            .push((VerifyCheck::EvidenceReceived, "evidence.sha256 is not the hash of the evidence".into()));
    }
    let score = record.score.as_ref();
    if let Some(score) = score.filter(|score| Some(score.evidence_sha256) != recomputed) {
        let what = format!("scorer {:?} received other evidence than is stored", score.scorer);
        problems.push((VerifyCheck::EvidenceReceived, what));
    }
    if score.and_then(|score| score.reward).is_some_and(|reward| !reward.is_finite()) {
        problems.push((VerifyCheck::RewardFinite, "its reward is not a finite number".into()));
    }
    problems.extend(check_status(record).map(|what| (VerifyCheck::ScoredComplete, what)));
    let sample = record.ancestry.sample_index;
    let planned = record.group_size;
    if sample >= planned {
        problems
            .push((VerifyCheck::GroupCounts, format!("slot {sample} is not among the {planned} planned")));
    }
    problems
}

fn check_marks(observation: &Observation) -> Option<(VerifyCheck, String)> {
    let problem = Mark::problem(observation.marks.as_deref()?, observation.screenshot.size)?;
    Some((VerifyCheck::Marks, problem))
}

fn check_status(record: &TrajectoryRecord) -> Option<String> {
    let end = record.ending.end;
    let has_reward = record.score.as_ref().is_some_and(|score| score.reward.is_some());
    match record.status {
        TrajectoryStatus::Scored if end.fault(true) == FaultOwner::Farm => {
            Some(format!("is scored and ended {}, which is the farm's fault", end.as_str()))
        }
        TrajectoryStatus::Scored if record.ending.evidence.is_none() => {
            Some("is scored without evidence".into())
        }
        TrajectoryStatus::Scored if !has_reward => Some("is scored without a reward".into()),
        TrajectoryStatus::Failed if record.score.is_some() => Some("is failed and has a score".into()),
        TrajectoryStatus::Failed if end.fault(false) == FaultOwner::Policy => {
            Some(format!("is failed and ended {}, which is the policy's own end", end.as_str()))
        }
        _ => None,
    }
}

/// Compares with a tolerance: sums of the same rewards in another order may differ in their last
/// digits.
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
