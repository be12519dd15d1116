//! Compares the policy's answer with the correct one.

use serde_json::Value;

use super::compare::AnswerComparison;
use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::{JsonFields, short};
use furrow_rollout::EndKind;

const NAME: &str = "answer";

/// A longer answer is wrong; parsing it would cost more than the page did.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A comparison and its expected values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AnswerRule {
    comparison: AnswerComparison,
    expected: ExpectedAnswer,
}

/// Source of the correct answer.
#[derive(Debug, Clone, PartialEq)]
enum ExpectedAnswer {
    /// The task's line: texts, one number or one day.
    Here(Vec<Value>),
    /// The page's probe at this pointer, because the page generated it from the seed.
    Probe(String),
}

impl AnswerRule {
    /// Keys: those of the comparison; `value`, or `expected_pointer` (its pointer in the page's
    /// probe).
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        let comparison = AnswerComparison::read(fields)?;
        let expected = ExpectedAnswer::read(fields, &comparison)?;
        Some(Self { comparison, expected })
    }

    /// Whether the page's probe contains the correct answer.
    pub(super) fn needs_probe(&self) -> bool {
        matches!(self.expected, ExpectedAnswer::Probe(_))
    }

    /// A text that states the expected values; `None` where they do not say one, or the page that
    /// knows them does not.
    pub(super) fn expected_text(&self, case: &ScoreInput) -> Option<String> {
        self.comparison.stating(&self.expected.values(case).ok()?.ok()?)
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let Some(answer) = case.answer(NAME)? else {
            let end = case.facts.end;
            return Ok(RuleVerdict::binary(false, format!("no answer was given before {}", end.as_str())));
        };
        if answer.len() > ANSWER_BYTES_MAX {
            return Ok(RuleVerdict::binary(false, format!("the answer is too long: {} bytes", answer.len())));
        }
        let expected = match self.expected.values(case)? {
            Ok(expected) => expected,
            Err(why) => return Ok(RuleVerdict::binary(false, why)),
        };
        let (right, why) = self.comparison.compare(answer, &expected).map_err(unusable)?;
        Ok(RuleVerdict::binary(right, format!("{why}: {}", short(answer))))
    }
}

impl ScoreInput<'_> {
    /// The answer; `None` if the trajectory ended without one, an error if the answer was lost.
    pub(super) fn answer(&self, scorer: &'static str) -> Result<Option<&str>, ScoreError> {
        match self.evidence.answer.as_deref() {
            None if self.facts.end == EndKind::Answered => {
                Err(ScoreError::Missing { scorer, part: "the answer" })
            }
            answer => Ok(answer),
        }
    }
}

impl ExpectedAnswer {
    fn read(fields: &mut JsonFields, comparison: &AnswerComparison) -> Option<Self> {
        match (fields.has("value"), fields.has("expected_pointer")) {
            (true, false) => comparison.read_value(fields).map(Self::Here),
            (false, true) => fields.pointer("expected_pointer").map(Self::Probe),
            _ => {
                fields.problem(
                    "value",
                    "is missing, or there is `expected_pointer` as well; give one of the two",
                );
                None
            }
        }
    }

    /// The expected values, or why the page that knows them is no longer shown.
    fn values(&self, case: &ScoreInput) -> Result<Result<Vec<Value>, String>, ScoreError> {
        let pointer = match self {
            Self::Here(values) => return Ok(Ok(values.clone())),
            Self::Probe(pointer) => pointer,
        };
        let report = case.probe(NAME)?;
        if let Some(why) = report.away_message("the final page is not one of the task's") {
            return Ok(Err(why));
        }
        match report.at(pointer) {
            Some(Value::Array(values)) => Ok(Ok(values.clone())),
            Some(value) => Ok(Ok(vec![value.clone()])),
            None => Err(unusable(format!("it has nothing at {pointer}"))),
        }
    }
}

fn unusable(problem: String) -> ScoreError {
    ScoreError::Unusable { scorer: NAME, part: "the page probe", problem }
}
