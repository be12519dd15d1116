//! Several scorers in one: all of them, any of them, or their weighted mean.
//!
//! Every part must come to a verdict; a combination of half the verdicts would be a reward for evidence nobody judged.

use furrow_rollout::Component;
use serde_json::Value;

use super::{Case, Rule, ScoreError, Verdict};
use crate::fields::Fields;

/// Parts of one combination.
const PARTS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Combination {
    way: Way,
    parts: Vec<Part>,
}

/// How the parts' rewards become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The smallest; solved when all are.
    All,
    /// The largest; solved when one is.
    Any,
    /// The mean by weight; solved when all are.
    Weighted,
}

#[derive(Debug, Clone, PartialEq)]
struct Part {
    weight: f64,
    rule: Rule,
}

impl Combination {
    /// Keys: `of`, a list of rules; under `weighted` each of them with its `weight` above 0.
    pub(super) fn read(fields: &mut Fields, way: Way, depth: usize) -> Option<Self> {
        let items = fields.value("of").and_then(Value::as_array).filter(|items| !items.is_empty());
        let Some(items) = items.filter(|items| items.len() <= PARTS_MAX) else {
            fields
                .problem("of", format!("is no list of 1 to {PARTS_MAX} scorers; write [{{\"kind\": …}}, …]"));
            return None;
        };
        let Some(depth) = depth.checked_sub(1) else {
            fields
                .problem("of", format!("combinations lie more than {} deep; flatten them", super::DEPTH_MAX));
            return None;
        };
        let parts: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let (place, problems) = fields.inside(&format!("of[{index}]"));
                let (item, weight) = without_weight(item, way, &place, problems);
                let rule = Rule::read(&item, &place, depth, problems);
                Some(Part { weight: weight?, rule: rule? })
            })
            .collect();
        let parts: Option<Vec<Part>> = parts.into_iter().collect();
        Some(Self { way, parts: parts? })
    }

    pub(super) fn name(&self) -> &'static str {
        match self.way {
            Way::All => "all",
            Way::Any => "any",
            Way::Weighted => "weighted",
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Rule> {
        self.parts.iter().map(|part| &part.rule)
    }

    pub(super) fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        let verdicts: Result<Vec<_>, _> = self.parts().map(|rule| rule.judge(case)).collect();
        let verdicts = verdicts?;
        let rewards = verdicts.iter().map(|verdict| verdict.reward);
        let reward = match self.way {
            Way::All => rewards.fold(f32::INFINITY, f32::min),
            Way::Any => rewards.fold(f32::NEG_INFINITY, f32::max),
            Way::Weighted => self.weighted(rewards),
        };
        let mut solved = verdicts.iter().map(|verdict| verdict.success);
        let success = if self.way == Way::Any { solved.any(|s| s) } else { solved.all(|s| s) };
        Ok(Verdict {
            reward,
            success,
            components: self.components(&verdicts),
            rationale: rationale(&verdicts),
        })
    }

    /// In f64, so that parts that all give 1 make exactly 1.
    fn weighted(&self, rewards: impl Iterator<Item = f32>) -> f32 {
        let total: f64 = self.parts.iter().map(|part| part.weight).sum();
        let sum: f64 =
            self.parts.iter().zip(rewards).map(|(part, reward)| part.weight * f64::from(reward)).sum();
        (sum / total) as f32
    }

    /// `0.probe` for the first part, `0.probe/raw` for what lies inside it.
    fn components(&self, verdicts: &[Verdict]) -> Vec<Component> {
        let mut components = Vec::new();
        for (index, (part, verdict)) in self.parts.iter().zip(verdicts).enumerate() {
            let name = format!("{index}.{}", part.rule.name());
            let inside = verdict
                .components
                .iter()
                .map(|inner| Component { name: format!("{name}/{}", inner.name), value: inner.value });
            components.push(Component { name: name.clone(), value: verdict.reward });
            components.extend(inside);
        }
        components
    }
}

fn rationale(verdicts: &[Verdict]) -> String {
    let said: Vec<_> = verdicts
        .iter()
        .enumerate()
        .map(|(index, verdict)| format!("{index}: {}", verdict.rationale))
        .collect();
    said.join("; ")
}

/// A part's own keys, and its weight: under `weighted` every part has one, elsewhere it is an unknown key.
fn without_weight(item: &Value, way: Way, place: &str, problems: &mut Vec<String>) -> (Value, Option<f64>) {
    let mut item = item.clone();
    if way != Way::Weighted {
        return (item, Some(1.0));
    }
    let given = item.as_object_mut().and_then(|keys| keys.shift_remove("weight"));
    let weight = given.and_then(|weight| weight.as_f64()).filter(|weight| *weight > 0.0 && *weight <= 1e6);
    if weight.is_none() {
        problems.push(format!("{place}weight: every part needs one; use a number above 0, at most 1000000"));
    }
    (item, weight)
}
