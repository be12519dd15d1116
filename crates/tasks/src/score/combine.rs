//! Combines several scorers: all of them, any of them, or their weighted mean.
//!
//! Every part must reach a verdict; a combination of half the verdicts would be a reward for
//! evidence that was not scored.

use furrow_rollout::ScoreComponent;
use serde_json::Value;

use super::rule::{CombineMode, DEPTH_MAX, RuleCombination, ScoreRule, WeightedRule};
use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::JsonFields;

/// Most parts of one combination.
const PARTS_MAX: usize = 32;

impl RuleCombination {
    /// Keys: `of`, a list of rules; under `weighted` each of them with its `weight` above 0.
    pub(super) fn read(fields: &mut JsonFields, way: CombineMode, depth: usize) -> Option<Self> {
        let items = fields.value("of").and_then(Value::as_array).filter(|items| !items.is_empty());
        let Some(items) = items.filter(|items| items.len() <= PARTS_MAX) else {
            fields.problem(
                "of",
                format!("is not a list of 1 to {PARTS_MAX} scorers; write [{{\"kind\": …}}, …]"),
            );
            return None;
        };
        let Some(depth) = depth.checked_sub(1) else {
            fields.problem("of", format!("combinations are nested more than {DEPTH_MAX} deep; flatten them"));
            return None;
        };
        let parts: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let (prefix, problems) = fields.nested(&format!("of[{index}]"));
                let (item, weight) = without_weight(item, way, &prefix, problems);
                let rule = ScoreRule::read(&item, &prefix, depth, problems);
                Some(WeightedRule { weight: weight?, rule: rule? })
            })
            .collect();
        let parts: Option<Vec<WeightedRule>> = parts.into_iter().collect();
        Some(Self { way, parts: parts? })
    }

    pub(super) fn name(&self) -> &'static str {
        match self.way {
            CombineMode::All => "all",
            CombineMode::Any => "any",
            CombineMode::Weighted => "weighted",
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &ScoreRule> {
        self.parts.iter().map(|part| &part.rule)
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let verdicts: Result<Vec<_>, _> = self.parts().map(|rule| rule.score(case)).collect();
        let verdicts = verdicts?;
        let rewards = verdicts.iter().map(|verdict| verdict.reward);
        let reward = match self.way {
            CombineMode::All => rewards.fold(f32::INFINITY, f32::min),
            CombineMode::Any => rewards.fold(f32::NEG_INFINITY, f32::max),
            CombineMode::Weighted => self.weighted(rewards),
        };
        let mut solved = verdicts.iter().map(|verdict| verdict.success);
        let success = if self.way == CombineMode::Any { solved.any(|s| s) } else { solved.all(|s| s) };
        Ok(RuleVerdict {
            reward,
            success,
            components: self.components(&verdicts),
            rationale: rationale(&verdicts),
        })
    }

    /// Computed in f64, so that parts with reward 1 yield exactly 1.
    fn weighted(&self, rewards: impl Iterator<Item = f32>) -> f32 {
        let total: f64 = self.parts.iter().map(|part| part.weight).sum();
        let sum: f64 =
            self.parts.iter().zip(rewards).map(|(part, reward)| part.weight * f64::from(reward)).sum();
        (sum / total) as f32
    }

    /// `0.probe` for the first part, `0.probe/raw` for its components.
    fn components(&self, verdicts: &[RuleVerdict]) -> Vec<ScoreComponent> {
        let mut components = Vec::new();
        for (index, (part, verdict)) in self.parts.iter().zip(verdicts).enumerate() {
            let name = format!("{index}.{}", part.rule.name());
            let inside = verdict
                .components
                .iter()
                .map(|inner| ScoreComponent { name: format!("{name}/{}", inner.name), value: inner.value });
            components.push(ScoreComponent { name: name.clone(), value: verdict.reward });
            components.extend(inside);
        }
        components
    }
}

fn rationale(verdicts: &[RuleVerdict]) -> String {
    let parts: Vec<_> = verdicts
        .iter()
        .enumerate()
        .map(|(index, verdict)| format!("{index}: {}", verdict.rationale))
        .collect();
    parts.join("; ")
}

/// Separates a part's own keys from its weight: under `weighted` every part has one, elsewhere it
/// is an unknown key.
fn without_weight(
    item: &Value,
    way: CombineMode,
    prefix: &str,
    problems: &mut Vec<String>,
) -> (Value, Option<f64>) {
    let mut item = item.clone();
    if way != CombineMode::Weighted {
        return (item, Some(1.0));
    }
    let given = item.as_object_mut().and_then(|keys| keys.shift_remove("weight"));
    let weight = given.and_then(|weight| weight.as_f64()).filter(|weight| *weight > 0.0 && *weight <= 1e6);
    if weight.is_none() {
        problems.push(format!("{prefix}weight: every part needs one; use a number above 0, at most 1000000"));
    }
    (item, weight)
}
