//! A price on steps: the reward of another scorer, less a little for each step beyond those that are free.

use furrow_rollout::Component;

use super::{Case, Rule, ScoreError, Verdict};
use crate::fields::Fields;

/// What each step costs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepPenalty {
    of: Box<Rule>,
    per_step: f64,
    free_steps: u64,
    /// The price never takes the reward below this; a reward that is lower by itself stays as it is.
    floor: f64,
}

impl StepPenalty {
    /// Keys: `of` (a scorer), `per_step`, `free_steps` (0), `floor` (0).
    pub(super) fn read(fields: &mut Fields, depth: usize) -> Option<Self> {
        let Some(value) = fields.value("of") else {
            fields.problem("of", "is missing; name the scorer whose reward the steps cost, {\"kind\": …}");
            return None;
        };
        let Some(depth) = depth.checked_sub(1) else {
            fields
                .problem("of", format!("combinations lie more than {} deep; flatten them", super::DEPTH_MAX));
            return None;
        };
        let (place, problems) = fields.inside("of");
        let of = Rule::read(value, &place, depth, problems);
        if !fields.has("per_step") {
            fields.problem("per_step", "is missing; say what a step costs, such as 0.01");
        }
        let per_step = fields.number("per_step", 0.0..=1.0);
        let free_steps = fields.integer("free_steps", 0..=10_000).unwrap_or(0);
        let floor = fields.number("floor", -1.0..=1.0).unwrap_or(0.0);
        Some(Self { of: Box::new(of?), per_step: per_step?, free_steps, floor })
    }

    pub(super) fn of(&self) -> &Rule {
        &self.of
    }

    pub(super) fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        let verdict = self.of.judge(case)?;
        let paid = u64::from(case.facts.steps).saturating_sub(self.free_steps);
        let earned = f64::from(verdict.reward);
        let reward = (earned - self.per_step * paid as f64).max(self.floor.min(earned)).max(-1.0) as f32;
        let mut components = vec![
            Component { name: self.of.name().to_owned(), value: verdict.reward },
            Component { name: "step_penalty".to_owned(), value: reward - verdict.reward },
        ];
        components.extend(verdict.components);
        let rationale = format!(
            "{}; {paid} steps beyond the free {} cost {} each",
            verdict.rationale, self.free_steps, self.per_step
        );
        Ok(Verdict { reward, success: verdict.success, components, rationale })
    }
}
