//! The page's own report: the suite's probe, read at the end.

use furrow_rollout::{DownloadReport, EndKind, ErrorPage, FaultOwner, ScoreComponent};
use serde_json::{Map, Value};

use super::compare::AnswerComparison;
use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::{JsonFields, quoted_value, short};

/// Largest report: a probe returns a few facts. Parsed, a list `[0,0,…]` takes 32 bytes for each 2
/// of its text: 1 MiB at most, and twice that while it grows.
const PROBE_BYTES_MAX: usize = 64 << 10;

const NAME: &str = "probe";

/// Rewards with the value at a pointer, or with 1 if it has the expected value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProbeRule {
    pointer: String,
    wanted: ProbeTarget,
}

/// The expected value at the pointer.
#[derive(Debug, Clone, PartialEq)]
enum ProbeTarget {
    Reward,
    Equal(Value),
    /// A text or a number that matches these values.
    Match(AnswerComparison, Vec<Value>),
}

/// The result of a suite's probe: an untrusted JSON object.
pub(super) struct ProbeReport {
    object: Value,
}

impl ProbeRule {
    /// Keys: `pointer` (RFC 6901, `/correct` if absent); `equals` (any JSON value), or `match` and
    /// `value` with the keys of comparisons.
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        let pointer = if fields.has("pointer") { fields.pointer("pointer")? } else { "/correct".to_owned() };
        let wanted = match (fields.value("equals"), fields.has("match")) {
            (Some(_), true) => {
                fields.problem("equals", "cannot be combined with `match`; give one of the two");
                return None;
            }
            (Some(equal), false) => ProbeTarget::Equal(equal.clone()),
            (None, true) => {
                let comparison = AnswerComparison::read(fields)?;
                if !fields.has("value") {
                    fields.problem("value", "is missing; give the expected value");
                }
                let value = comparison.read_value(fields)?;
                ProbeTarget::Match(comparison, value)
            }
            (None, false) => ProbeTarget::Reward,
        };
        Some(Self { pointer, wanted })
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let report = case.probe(NAME)?;
        if let Some(why) = report.away_message("the final page is not one of the task's") {
            return Ok(RuleVerdict::binary(false, why));
        }
        let pointer = &self.pointer;
        let found = report.at(pointer);
        let found = found.ok_or_else(|| unusable(format!("it has nothing at {pointer}")))?;
        match &self.wanted {
            ProbeTarget::Equal(wanted) => {
                let equal = same(found, wanted);
                let relation = if equal { "equals" } else { "differs from" };
                Ok(RuleVerdict::binary(
                    equal,
                    format!(
                        "{pointer} {relation} the expected {}: {}",
                        quoted_value(wanted),
                        quoted_value(found)
                    ),
                ))
            }
            ProbeTarget::Match(comparison, values) => {
                let answer = answer_text(found).ok_or_else(|| {
                    unusable(format!("{pointer} is neither a text nor a number: {}", quoted_value(found)))
                })?;
                let (right, why) = comparison.compare(&answer, values).map_err(unusable)?;
                Ok(RuleVerdict::binary(
                    right,
                    format!("{pointer}: {}: {}", why.replacen("the answer", "it", 1), quoted_value(found)),
                ))
            }
            ProbeTarget::Reward => self.rewarded(found),
        }
    }

    fn rewarded(&self, found: &Value) -> Result<RuleVerdict, ScoreError> {
        let pointer = &self.pointer;
        let reward = match found {
            Value::Bool(right) => f64::from(u8::from(*right)),
            Value::Number(number) => number.as_f64().unwrap_or(f64::NAN),
            _ => {
                return Err(unusable(format!(
                    "{pointer} is neither true, false nor a number: {}",
                    quoted_value(found)
                )));
            }
        };
        if !(-1.0..=1.0).contains(&reward) {
            return Err(unusable(format!("{pointer} is outside -1 to 1: {}", quoted_value(found))));
        }
        let rationale = format!("{pointer} is {}", quoted_value(found));
        let components =
            vec![ScoreComponent { name: pointer.trim_start_matches('/').to_owned(), value: reward as f32 }];
        Ok(RuleVerdict { reward: reward as f32, success: reward >= 1.0, components, rationale })
    }
}

impl ProbeReport {
    /// Parses the page's report: limited in size, an object, and consistent with the trajectory's
    /// end.
    pub(super) fn parse(json: &str, end: EndKind) -> Result<Self, String> {
        if json.len() > PROBE_BYTES_MAX {
            return Err(format!("it has {} bytes, more than {PROBE_BYTES_MAX}", json.len()));
        }
        let object: Value = serde_json::from_str(json).map_err(|e| format!("it is not JSON: {e}"))?;
        if !object.is_object() {
            return Err(format!("it is not a JSON object: {}", quoted_value(&object)));
        }
        let report = Self { object };
        report.refuse_error_of_the_farm()?;
        report.refuse_contradiction(end)?;
        Ok(report)
    }

    /// Whether the page reported that the task is over.
    pub(super) fn done(&self) -> bool {
        self.object.get("done") == Some(&Value::Bool(true))
    }

    /// Whether the page is not one of the suite's; the result begins with `message`. The page
    /// reported nothing, and Furrow's script only saw its address. If the policy navigated to the
    /// browser's error page, the text says so.
    pub(super) fn away_message(&self, message: &str) -> Option<String> {
        let away = self.object.get("away")?;
        if matches!(away, Value::Null | Value::Bool(false)) {
            return None;
        }
        Some(match self.fields().and_then(ErrorPage::of_report) {
            Some(page) => format!("{message}; the policy's own navigation failed: {}", short(&page.url)),
            None => message.to_owned(),
        })
    }

    /// The value at a JSON pointer.
    pub(super) fn at(&self, pointer: &str) -> Option<&Value> {
        self.object.pointer(pointer)
    }

    pub(super) fn fields(&self) -> Option<&Map<String, Value>> {
        self.object.as_object()
    }

    /// An error page that the policy's own navigation led to counts as leaving the page. Any other
    /// error page shows that loading failed, which the policy did not cause; the same holds for a
    /// report of an earlier build, which does not name the cause.
    fn refuse_error_of_the_farm(&self) -> Result<(), String> {
        let Some(report) = self.fields().filter(|report| ErrorPage::is_reported(report)) else {
            return Ok(());
        };
        match ErrorPage::of_report(report) {
            Some(ErrorPage { fault: FaultOwner::Policy, .. }) => Ok(()),
            Some(ErrorPage { fault: FaultOwner::Farm, url }) => Err(format!(
                "the browser shows an error page, caused by the farm, instead of {}",
                short(&url)
            )),
            None => Err("the browser shows an error page instead of a page".to_owned()),
        }
    }

    fn refuse_contradiction(&self, end: EndKind) -> Result<(), String> {
        if end == EndKind::Done && !self.done() {
            return Err(
                "the trajectory ended because the page was done, but now the page reports that it is not"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// A page's text, number or list of texts in the form of an answer.
pub(super) fn answer_text(found: &Value) -> Option<String> {
    match found {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(items) if items.iter().all(Value::is_string) => Some(found.to_string()),
        _ => None,
    }
}

/// Equality of JSON values in which 1 and 1.0 are equal.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn unusable(problem: String) -> ScoreError {
    ScoreError::Unusable { scorer: NAME, part: "the page probe", problem }
}

impl ScoreInput<'_> {
    /// The page's report, parsed and checked against the trajectory's end.
    pub(super) fn probe(&self, scorer: &'static str) -> Result<ProbeReport, ScoreError> {
        let json = self.evidence.probe_json.as_deref();
        let json = json.ok_or(ScoreError::Missing { scorer, part: "the page probe" })?;
        let json = &DownloadReport::strip(json);
        ProbeReport::parse(json, self.facts.end).map_err(|problem| ScoreError::Unusable {
            scorer,
            part: "the page probe",
            problem,
        })
    }
}
