//! The columns that the view reads of each table.

use furrow_records::cell::{TimestampMicros, columns};
use furrow_rollout::Split;

use crate::timing::TimingCell;

columns! {
    /// Columns kept of a trajectory: no page text, no picture.
    ViewRow {
        trajectory_id: String,
        attempt: i16,
        group_id: String,
        sample_index: i32,
        task_id: String,
        suite: String,
        split: String,
        policy_kind: String,
        status: String,
        end: String,
        reward: Option<f32>,
        score: Option<VerdictCell>,
        num_steps: i32,
        num_prompt_tokens: i64,
        num_response_tokens: i64,
        num_invalid_actions: i32,
        policy_version_min: Option<i32>,
        policy_version_max: Option<i32>,
        staleness: Option<i32>,
        timing: TimingCell,
        gpu_micros: i64,
        cost_usd: Option<f64>,
        started_at: TimestampMicros,
        ended_at: TimestampMicros,
    }

    VerdictCell { success: Option<bool> }

    /// Columns summed for a step.
    StepSumRow {
        trajectory_id: String,
        split: String,
        response_mask: Option<Vec<bool>>,
        finish_reason: Option<String>,
        logprobs: Option<Vec<Option<f32>>>,
        entropy: Option<Vec<Option<f32>>>,
        policy_version: Option<i32>,
        action: ValidCell,
        outcome: OutcomeNameCell,
        engine: EngineSumCell,
    }

    ValidCell { valid: bool }

    OutcomeNameCell { name: String }

    EngineSumCell { state_origin: Option<String>, prefill_tokens: i32, reused_tokens: i32 }

    /// Columns summed for a group.
    GroupSumRow { split: String, zero_variance: Option<bool>, policy_version_max: Option<i32> }
}

impl ViewRow {
    /// The reward of a scored trajectory.
    pub(super) fn scored(&self) -> Option<f32> {
        self.reward.filter(|_| self.status == "scored")
    }

    pub(super) fn success(&self) -> Option<bool> {
        self.score.as_ref().and_then(|score| score.success)
    }
}

/// Whether rows of a split belong to an evaluation inside a job, which trainers do not use.
pub(super) fn is_eval(split: &str) -> bool {
    Split::parse(split) == Some(Split::Eval)
}
