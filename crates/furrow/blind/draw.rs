//! A draw: one task under one seed, before anything was done in it, and what a policy that acts
//! blindly would earn there.

use furrow_rollout::{EndKind, Evidence};
use furrow_tasks::{EndFacts, Scorer};

use super::goal::GoalText;

/// A task under one seed.
#[derive(Debug, Clone)]
pub(super) struct Draw {
    pub goal: GoalText,
    /// What the untouched page gives as evidence, without an answer.
    pub idle: Evidence,
    /// An answer that earns the reward on the untouched page, if there is one.
    pub right_answer: Option<String>,
}

/// How a policy that looks at nothing ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlindEnd {
    /// It does nothing until the trajectory is over.
    Idle,
    Answer(String),
}

/// Scores draws of one task.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrawScorer<'a> {
    pub scorer: &'a Scorer,
    pub max_steps: u32,
}

impl DrawScorer<'_> {
    /// A draw with its right answer, as far as the scorer knows one.
    pub(super) fn draw(&self, goal: &str, idle: Evidence) -> Draw {
        let goal = GoalText::read(goal);
        let mut draw = Draw { goal, idle, right_answer: None };
        draw.right_answer = self
            .scorer
            .expected_answer(&draw.idle)
            .filter(|answer| self.earns(&draw, &BlindEnd::Answer(answer.clone())));
        draw
    }

    /// Whether ending so earns a reward. No verdict is no reward.
    pub(super) fn earns(&self, draw: &Draw, end: &BlindEnd) -> bool {
        let answer = match end {
            BlindEnd::Idle => None,
            BlindEnd::Answer(answer) => Some(answer.clone()),
        };
        let evidence = Evidence { answer, ..draw.idle.clone() };
        // An end that pays, with an answer or without.
        let facts = EndFacts { end: EndKind::Answered, steps: 1, max_steps: self.max_steps };
        let score = self.scorer.score(&evidence, &facts);
        score.is_ok_and(|score| score.reward.is_some_and(|reward| reward > 0.0))
    }
}
