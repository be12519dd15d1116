//! What the page itself reports: the suite's probe, read at the end.

use furrow_rollout::{Component, End, ErrorPage, Fault};
use serde_json::{Map, Value};

use super::compare::Comparison;
use super::{Case, ScoreError, Verdict};
use crate::fields::{Fields, short, shown};

/// A probe is a handful of facts. Parsed, a list `[0,0,…]` takes 32 bytes for each 2 of its text: 1 MiB at most, and as
/// much again while it grows.
const PROBE_BYTES_MAX: usize = 64 << 10;

const NAME: &str = "probe";

/// Rewards with the value at a pointer, or 1 if it is what is expected.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProbeRule {
    pointer: String,
    wanted: Wanted,
}

/// What is to stand at the pointer.
#[derive(Debug, Clone, PartialEq)]
enum Wanted {
    /// The reward itself.
    Reward,
    /// This very value.
    Equal(Value),
    /// A text or a number that compares well with these.
    Match(Comparison, Vec<Value>),
}

/// What a suite's probe returned: a JSON object, not trusted.
pub(super) struct ProbeReport {
    object: Value,
}

impl ProbeRule {
    /// Keys: `pointer` (RFC 6901, `/correct` if absent); `equals` (any JSON value), or `match` and `value` with the keys that
    /// answers are compared by.
    pub(super) fn read(fields: &mut Fields) -> Option<Self> {
        let pointer = if fields.has("pointer") { fields.pointer("pointer")? } else { "/correct".to_owned() };
        let wanted = match (fields.value("equals"), fields.has("match")) {
            (Some(_), true) => {
                fields.problem("equals", "stands beside `match`; give one of the two");
                return None;
            }
            (Some(equal), false) => Wanted::Equal(equal.clone()),
            (None, true) => {
                let comparison = Comparison::read(fields)?;
                if !fields.has("value") {
                    fields.problem("value", "is missing; say what is right");
                }
                let value = comparison.read_value(fields)?;
                Wanted::Match(comparison, value)
            }
            (None, false) => Wanted::Reward,
        };
        Some(Self { pointer, wanted })
    }

    pub(super) fn judge(&self, case: &Case) -> Result<Verdict, ScoreError> {
        let report = case.probe(NAME)?;
        if let Some(why) = report.away("the final page is none of the task's") {
            return Ok(Verdict::binary(false, why));
        }
        let pointer = &self.pointer;
        let found = report.at(pointer);
        let found = found.ok_or_else(|| unusable(format!("it has nothing at {pointer}")))?;
        match &self.wanted {
            Wanted::Equal(wanted) => {
                let equal = same(found, wanted);
                let word = if equal { "equals" } else { "differs from" };
                Ok(Verdict::binary(
                    equal,
                    format!("{pointer} {word} the expected {}: {}", shown(wanted), shown(found)),
                ))
            }
            Wanted::Match(comparison, values) => {
                let said = said(found).ok_or_else(|| {
                    unusable(format!("{pointer} is no text and no number: {}", shown(found)))
                })?;
                let (right, why) = comparison.compare(&said, values).map_err(unusable)?;
                Ok(Verdict::binary(
                    right,
                    format!("{pointer}: {}: {}", why.replacen("the answer", "it", 1), shown(found)),
                ))
            }
            Wanted::Reward => self.rewarded(found),
        }
    }

    fn rewarded(&self, found: &Value) -> Result<Verdict, ScoreError> {
        let pointer = &self.pointer;
        let reward = match found {
            Value::Bool(right) => f64::from(u8::from(*right)),
            Value::Number(number) => number.as_f64().unwrap_or(f64::NAN),
            _ => {
                return Err(unusable(format!(
                    "{pointer} is neither true, false nor a number: {}",
                    shown(found)
                )));
            }
        };
        if !(-1.0..=1.0).contains(&reward) {
            return Err(unusable(format!("{pointer} is outside -1 to 1: {}", shown(found))));
        }
        let rationale = format!("{pointer} is {}", shown(found));
        let components =
            vec![Component { name: pointer.trim_start_matches('/').to_owned(), value: reward as f32 }];
        Ok(Verdict { reward: reward as f32, success: reward >= 1.0, components, rationale })
    }
}

impl ProbeReport {
    /// The door for what a page says: capped, an object, and not at odds with how the trajectory ended.
    pub(super) fn parse(json: &str, end: End) -> Result<Self, String> {
        if json.len() > PROBE_BYTES_MAX {
            return Err(format!("it has {} bytes, more than {PROBE_BYTES_MAX}", json.len()));
        }
        let object: Value = serde_json::from_str(json).map_err(|e| format!("it is no JSON: {e}"))?;
        if !object.is_object() {
            return Err(format!("it is no JSON object: {}", shown(&object)));
        }
        let report = Self { object };
        report.refuse_error_of_the_farm()?;
        report.refuse_contradiction(end)?;
        Ok(report)
    }

    /// Whether the page said that the task is over.
    pub(super) fn done(&self) -> bool {
        self.object.get("done") == Some(&Value::Bool(true))
    }

    /// Whether the page is none of the suite's, in these words: it said nothing, our script only saw where it is. Where the policy was led to the
    /// browser's error page, that is said too.
    pub(super) fn away(&self, words: &str) -> Option<String> {
        let away = self.object.get("away")?;
        if matches!(away, Value::Null | Value::Bool(false)) {
            return None;
        }
        Some(match self.fields().and_then(ErrorPage::of_report) {
            Some(page) => format!("{words}; the policy's own navigation failed: {}", short(&page.url)),
            None => words.to_owned(),
        })
    }

    /// What stands at a JSON pointer.
    pub(super) fn at(&self, pointer: &str) -> Option<&Value> {
        self.object.pointer(pointer)
    }

    pub(super) fn fields(&self) -> Option<&Map<String, Value>> {
        self.object.as_object()
    }

    /// An error page that the policy's own navigation led to is a page left behind. Any other shows that loading failed, not what the policy did;
    /// so does one whose report, an earlier build's, does not say whose doing it is.
    fn refuse_error_of_the_farm(&self) -> Result<(), String> {
        let Some(report) = self.fields().filter(|report| ErrorPage::is_reported(report)) else {
            return Ok(());
        };
        match ErrorPage::of_report(report) {
            Some(ErrorPage { fault: Fault::Policy, .. }) => Ok(()),
            Some(ErrorPage { fault: Fault::Farm, url }) => Err(format!(
                "the browser shows an error page, by the farm's doing, instead of {}",
                short(&url)
            )),
            None => Err("the browser shows an error page instead of a page".to_owned()),
        }
    }

    fn refuse_contradiction(&self, end: End) -> Result<(), String> {
        if end == End::Done && !self.done() {
            return Err(
                "the trajectory ended because the page was done, and now the page says it is not".to_owned()
            );
        }
        Ok(())
    }
}

/// A page's text, number or list of texts as an answer would give it.
fn said(found: &Value) -> Option<String> {
    match found {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(items) if items.iter().all(Value::is_string) => Some(found.to_string()),
        _ => None,
    }
}

/// Equality of JSON values in which 1 and 1.0 are one number.
fn same(a: &Value, b: &Value) -> bool {
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
