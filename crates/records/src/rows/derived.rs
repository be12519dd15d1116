//! Columns of a step that follow from its trajectory: the writer fills them and the verifier
//! derives them again.

use furrow_rollout::{
    EndKind, PolicyKind, ScoreComponent, Split, StepRecord, Trace, TrajectoryRecord, TrajectoryStatus,
};

/// Columns of a step that are derived from its trajectory.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedColumns {
    /// Whether it is step 0.
    pub is_first: bool,
    /// Whether it is the trajectory's last step.
    pub is_last: bool,
    /// Whether it is the last step and the policy brought the trajectory to its end.
    pub is_terminal: bool,
    /// Whether it is the last step and the trajectory ended otherwise.
    pub is_truncated: bool,
    /// Usable for RL (see `schema.rs`).
    pub trainable_rl: bool,
    /// Usable for supervised training (see `schema.rs`).
    pub trainable_sft: bool,
    /// The trajectory's reward on the last step, 0 before it, `None` for a failed trajectory.
    pub reward: Option<f32>,
    /// Components of the reward, on the last step.
    pub reward_components: Vec<ScoreComponent>,
}

/// Columns of a trajectory that its steps repeat.
pub(crate) struct TrajectoryColumns<'a> {
    pub status: TrajectoryStatus,
    pub end: EndKind,
    pub split: Split,
    pub reward: Option<f32>,
    pub components: &'a [ScoreComponent],
}

impl<'a> TrajectoryColumns<'a> {
    pub(crate) fn of(trajectory: &'a TrajectoryRecord) -> Self {
        let score = trajectory.score.as_ref();
        Self {
            status: trajectory.status,
            end: trajectory.ending.end,
            split: trajectory.task.split,
            reward: score.and_then(|score| score.reward),
            components: score.map_or(&[], |score| &score.components),
        }
    }

    /// The derived columns of one step, defined only here.
    pub(crate) fn derive(&self, step: &StepRecord, is_last: bool) -> DerivedColumns {
        let scored = self.status == TrajectoryStatus::Scored;
        let is_terminal = is_last && scored && self.end.is_terminal();
        let trainable = scored && self.split == Split::Train;
        let paid = if is_last { self.reward } else { self.reward.map(|_| 0.0) };
        DerivedColumns {
            is_first: step.step == 0,
            is_last,
            is_terminal,
            is_truncated: is_last && !is_terminal,
            trainable_rl: trainable && trains_by_reward(&step.trace),
            trainable_sft: trainable && trains_by_imitation(step),
            reward: paid.filter(|_| scored),
            reward_components: if is_last && scored { self.components.to_vec() } else { Vec::new() },
        }
    }
}

fn trains_by_reward(trace: &Trace) -> bool {
    let has_logprobs = trace.tokens.as_ref().is_some_and(|tokens| tokens.logprobs.is_some());
    matches!(trace.policy_kind, PolicyKind::Model | PolicyKind::Openai) && has_logprobs
}

/// An unnamed action is a wait that the page's demonstration did not ask for.
fn trains_by_imitation(step: &StepRecord) -> bool {
    let is_chosen = step.reply.action.is_ok() && !step.reply.name.is_empty();
    is_chosen && step.trace.policy_kind != PolicyKind::Random
}
