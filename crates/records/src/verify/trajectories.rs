//! Checks of a trajectory: of its own row, and of its steps against it.

use furrow_rollout::{
    EndKind, Evidence, FaultOwner, ScoreComponent, Split, TokenTrace, TrajectoryRecord, TrajectoryStatus,
};

use super::report::{RowLocation, VerifyCheck};
use crate::Table;
use crate::rows::{RecordedStep, TrajectoryColumns};
use crate::schema::EvidenceCell;

/// What later checks need to know of a trajectory.
pub(super) struct TrajectoryChecks {
    pub file: String,
    pub row: u64,
    pub group_id: String,
    pub sample_index: u32,
    attempt: u32,
    run_id: String,
    task: (String, String),
    pub group_size: u32,
    pub status: TrajectoryStatus,
    pub end: EndKind,
    split: Split,
    pub reward: Option<f32>,
    components: Vec<ScoreComponent>,
    pub evidence_sha256: Option<[u8; 32]>,
    pub steps: u32,
    pub policy_versions: Option<(i32, i32)>,
    pub steps_read: u32,
    versions_read: Option<(i32, i32)>,
}

impl TrajectoryChecks {
    pub(super) fn new(
        location: RowLocation<'_>,
        record: &TrajectoryRecord,
        evidence_sha256: Option<[u8; 32]>,
    ) -> Self {
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

    pub(super) fn trajectory_columns(&self) -> TrajectoryColumns<'_> {
        let Self { status, end, split, reward, components, .. } = self;
        TrajectoryColumns { status: *status, end: *end, split: *split, reward: *reward, components }
    }

    pub(super) fn add_versions(&mut self, tokens: Option<&TokenTrace>) {
        for &version in tokens.iter().flat_map(|tokens| &tokens.policy_versions) {
            widen(&mut self.versions_read, (version, version));
        }
    }

    pub(super) fn check_table(&self, table: Table) -> Vec<(VerifyCheck, String)> {
        let wanted = match self.status {
            TrajectoryStatus::Scored => Table::Steps,
            TrajectoryStatus::Failed => Table::FailedSteps,
        };
        let wrong = || {
            (VerifyCheck::FailedApart, format!("is in {table}, its trajectory is {}", self.status.as_str()))
        };
        (table != wanted).then(wrong).into_iter().collect()
    }

    pub(super) fn is_parent_of(&self, step: &RecordedStep) -> bool {
        let of = &step.ancestry;
        self.group_id == of.group_id.as_str()
            && self.run_id == of.run_id.as_str()
            && (self.sample_index, self.attempt) == (of.sample_index, of.attempt)
            && (&self.task.0, &self.task.1) == (&step.suite, &step.task_id)
            && self.split == step.split
    }

    pub(super) fn check_whole(&self) -> Vec<(VerifyCheck, String)> {
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

/// Checks a trajectory's own row.
pub(super) fn check_trajectory(
    record: &TrajectoryRecord,
    evidence: Option<&EvidenceCell>,
) -> Vec<(VerifyCheck, String)> {
    let mut problems = Vec::new();
    let recomputed = record.ending.evidence.as_ref().map(Evidence::sha256);
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

/// Extends a range of versions by another one.
pub(super) fn widen(range: &mut Option<(i32, i32)>, (oldest, newest): (i32, i32)) {
    let (from, to) = range.unwrap_or((oldest, newest));
    *range = Some((from.min(oldest), to.max(newest)));
}
