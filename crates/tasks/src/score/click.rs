//! Grounding: whether the first click was inside the box.
//!
//! The page that shows the picture reports the click (`/click/x`, `/click/y`, in pixels of the
//! picture); the box never leaves the coordinator. The edges belong to the box, as in the published
//! evaluations of click accuracy.

use serde_json::Value;

use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::JsonFields;

const NAME: &str = "click";

/// Left, top, right, bottom in pixels of the picture.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClickRule {
    edges: [f64; 4],
}

impl ClickRule {
    /// Key: `box`, `[left, top, right, bottom]` in pixels.
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        let Some(value) = fields.value("box") else {
            fields.problem("box", "is missing; write [left, top, right, bottom] in pixels of the picture");
            return None;
        };
        let number = |side: &Value| side.as_f64().filter(|side| (0.0..=100_000.0).contains(side));
        let sides: Option<Vec<f64>> = value.as_array().and_then(|sides| sides.iter().map(number).collect());
        match sides.as_deref() {
            Some(&[left, top, right, bottom]) if left <= right && top <= bottom => {
                Some(Self { edges: [left, top, right, bottom] })
            }
            _ => {
                let remedy = "use [left, top, right, bottom] in pixels, left <= right and top <= bottom";
                fields.refuse("box", value, "is not a box", remedy)
            }
        }
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let report = case.probe(NAME)?;
        if let Some(why) = report.away_message("the final page no longer shows the picture") {
            return Ok(RuleVerdict::binary(false, why));
        }
        if !report.done() {
            return Ok(RuleVerdict::binary(false, "the picture was not clicked".to_owned()));
        }
        let at = |pointer: &str| report.at(pointer).and_then(Value::as_f64).filter(|at| at.is_finite());
        let (Some(x), Some(y)) = (at("/click/x"), at("/click/y")) else {
            let problem = "it is done but does not report where it was clicked".to_owned();
            return Err(ScoreError::Unusable { scorer: NAME, part: "the page probe", problem });
        };
        let [left, top, right, bottom] = self.edges;
        let inside = (left..=right).contains(&x) && (top..=bottom).contains(&y);
        let relation = if inside { "inside" } else { "outside" };
        Ok(RuleVerdict::binary(
            inside,
            format!("the click at {x}, {y} is {relation} the box {left}, {top}, {right}, {bottom}"),
        ))
    }
}
