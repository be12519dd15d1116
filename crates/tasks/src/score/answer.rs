//! What the policy answered, compared with what is right.

use serde_json::Value;

use super::compare::Comparison;
use super::{Case, ScoreError, Verdict};
use crate::fields::{Fields, short};
use furrow_rollout::End;

const NAME: &str = "answer";

/// An answer longer than this is no answer; reading it whole would cost more than the page did.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A comparison, and what is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AnswerRule {
    comparison: Comparison,
    expected: Expected,
}

/// Where the right answer stands.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    /// In the task's line: texts, one number or one day.
    Here(Vec<Value>),
    /// In the page's probe at this pointer, because the page drew it from the seed.
    Probe(String),
}

impl AnswerRule {
    /// Keys: those of the comparison; `value`, or `expected_pointer` (where the page's probe holds it).
    pub(super) fn read(fields: &mut Fields) -> Option<Self> {
        let comparison = Comparison::read(fields)?;
        let expected = Expected::read(fields, &comparison)?;
        Some(Self { comparison, expected })
    }

    /// Whether the page's probe holds the right answer.
    pub(super) fn needs_probe(&self) -> bool {
        matches!(self.expected, Expected::Probe(_))
    }

    pub(super) fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        let Some(answer) = case.answer(NAME)? else {
            let end = case.facts.end;
            return Ok(Verdict::binary(false, format!("no answer was given before {}", end.as_str())));
        };
        if answer.len() > ANSWER_BYTES_MAX {
            return Ok(Verdict::binary(false, format!("the answer is too long: {} bytes", answer.len())));
        }
        let expected = match self.expected.of(case)? {
            Ok(expected) => expected,
            Err(why) => return Ok(Verdict::binary(false, why)),
        };
        let (right, why) = self.comparison.compare(answer, &expected).map_err(unusable)?;
        Ok(Verdict::binary(right, format!("{why}: {}", short(answer))))
    }
}

impl Case<'_> {
    /// What was answered; `None` where the trajectory ended without an answer, an error where one was lost.
    pub(super) fn answer(&self, scorer: &'static str) -> Result<Option<&str>, ScoreError> {
        match self.evidence.answer.as_deref() {
            None if self.facts.end == End::Answered => {
                Err(ScoreError::Missing { scorer, part: "the answer" })
            }
            answer => Ok(answer),
        }
    }
}

impl Expected {
    fn read(fields: &mut Fields, comparison: &Comparison) -> Option<Self> {
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

    /// The values to compare with, or why the page that knows them is no longer there.
    fn of(&self, case: &Case) -> Result<Result<Vec<Value>, String>, ScoreError> {
        let pointer = match self {
            Self::Here(values) => return Ok(Ok(values.clone())),
            Self::Probe(pointer) => pointer,
        };
        let report = case.probe(NAME)?;
        if let Some(why) = report.away("the final page is none of the task's") {
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
