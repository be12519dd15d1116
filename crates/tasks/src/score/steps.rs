//! A penalty on steps: the reward of another scorer, minus a small amount for each step beyond the
//! free ones.

use furrow_rollout::ScoreComponent;

use super::rule::{DEPTH_MAX, ScoreRule, StepPenalty};
use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::JsonFields;

impl StepPenalty {
    /// Keys: `of` (a scorer), `per_step`, `free_steps` (0), `floor` (0).
    pub(super) fn read(fields: &mut JsonFields, depth: usize) -> Option<Self> {
        let Some(value) = fields.value("of") else {
            fields.problem("of", "is missing; name the scorer whose reward the steps reduce, {\"kind\": …}");
            return None;
        };
        let Some(depth) = depth.checked_sub(1) else {
            fields.problem("of", format!("combinations are nested more than {DEPTH_MAX} deep; flatten them"));
            return None;
        };
        let (prefix, problems) = fields.nested("of");
        let of = ScoreRule::read(value, &prefix, depth, problems);
        if !fields.has("per_step") {
            fields.problem("per_step", "is missing; give the penalty per step, such as 0.01");
        }
        let per_step = fields.number("per_step", 0.0..=1.0);
        let free_steps = fields.integer("free_steps", 0..=10_000).unwrap_or(0);
        let floor = fields.number("floor", -1.0..=1.0).unwrap_or(0.0);
        Some(Self { of: Box::new(of?), per_step: per_step?, free_steps, floor })
    }

    pub(super) fn inner(&self) -> &ScoreRule {
        &self.of
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let verdict = self.of.score(case)?;
        let paid = u64::from(case.facts.steps).saturating_sub(self.free_steps);
        let earned = f64::from(verdict.reward);
        let reward = (earned - self.per_step * paid as f64).max(self.floor.min(earned)).max(-1.0) as f32;
        let mut components = vec![
            ScoreComponent { name: self.of.name().to_owned(), value: verdict.reward },
            ScoreComponent { name: "step_penalty".to_owned(), value: reward - verdict.reward },
        ];
        components.extend(verdict.components);
        let rationale = format!(
            "{}; {paid} steps beyond the free {} cost {} each",
            verdict.rationale, self.free_steps, self.per_step
        );
        Ok(RuleVerdict { reward, success: verdict.success, components, rationale })
    }
}
