//! A score, and a row of `scores` that a later scoring added.

use furrow_rollout::{Score, Split, TrajectoryAncestry};

use super::error::RowError;
use super::parts::{component_cells, components};
use super::values::{ancestry, split, to_i16};
use crate::cell::TimestampMicros;
use crate::schema::{ScoreCell, ScoreRow};

/// A later verdict on a stored trajectory, one row of `scores`.
#[derive(Debug, Clone, PartialEq)]
pub struct RescoreRecord {
    /// Run, group and id of the trajectory.
    pub ancestry: TrajectoryAncestry,
    /// Id of its task.
    pub task_id: String,
    /// Suite of the task.
    pub suite: String,
    /// Split of the task.
    pub split: Split,
    /// The verdict of this scoring; the one in `trajectories` stays as it was.
    pub score: Score,
    /// Wall clock of the scoring, microseconds since the Unix epoch.
    pub scored_at_micros: i64,
}

impl From<&Score> for ScoreCell {
    fn from(score: &Score) -> Self {
        Self {
            success: score.success,
            components: component_cells(&score.components),
            scorer: score.scorer.clone(),
            version: score.version.cast_signed(),
            rationale: score.rationale.clone(),
            evidence_sha256: score.evidence_sha256,
        }
    }
}

impl ScoreCell {
    pub(super) fn into_domain(self, reward: Option<f32>) -> Score {
        Score {
            reward,
            success: self.success,
            components: components(self.components),
            scorer: self.scorer,
            version: self.version.cast_unsigned(),
            rationale: self.rationale,
            evidence_sha256: self.evidence_sha256,
        }
    }
}

impl ScoreRow {
    /// The row of one later score.
    pub(crate) fn new(rescore: &RescoreRecord) -> Result<Self, RowError> {
        let TrajectoryAncestry { run_id, group_id, sample_index, attempt, trajectory_id } = &rescore.ancestry;
        Ok(Self {
            run_id: run_id.to_string(),
            trajectory_id: trajectory_id.to_string(),
            attempt: to_i16("attempt", *attempt)?,
            group_id: group_id.to_string(),
            sample_index: sample_index.cast_signed(),
            task_id: rescore.task_id.clone(),
            suite: rescore.suite.clone(),
            split: rescore.split.as_str().into(),
            reward: rescore.score.reward,
            score: ScoreCell::from(&rescore.score),
            scored_at: TimestampMicros(rescore.scored_at_micros),
        })
    }

    /// Converts the row to a later score.
    pub(crate) fn into_domain(self) -> Result<RescoreRecord, RowError> {
        Ok(RescoreRecord {
            ancestry: ancestry(
                &self.run_id,
                &self.trajectory_id,
                &self.group_id,
                self.sample_index,
                self.attempt,
            )?,
            task_id: self.task_id,
            suite: self.suite,
            split: split(&self.split)?,
            score: self.score.into_domain(self.reward),
            scored_at_micros: self.scored_at.0,
        })
    }
}
