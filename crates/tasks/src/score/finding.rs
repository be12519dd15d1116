//! Scores what the environment worker looked up at the end: a part of the final page, an answer
//! of a back end, the exit status of a hook.
//!
//! A failure that a page or a policy can cause is a 0 under its name, and does not satisfy `not`;
//! any other failure gives no verdict.

use furrow_rollout::{ErrorPage, FaultOwner, FinalQuery, Finding, FindingFailure, PagePart, ScoreComponent};
use serde_json::Value;

use super::compare::AnswerComparison;
use super::finding_query::{self, QueryKind};
use super::probe::{answer_text, same};
use super::verdict::{RuleVerdict, SELF_REPORTED, ScoreError, ScoreInput};
use crate::fields::{JsonFields, quoted_value, short};

/// Exit status of a hook that means no.
const EXIT_NO: i64 = 1;

/// A query and what it must find.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FindingRule {
    query: FinalQuery,
    kind: QueryKind,
    wanted: WantedFinding,
}

/// What a query must find.
#[derive(Debug, Clone, PartialEq)]
enum WantedFinding {
    /// Something must be there, or nothing.
    Present(bool),
    Equal(Value),
    /// A text or a number that matches these values.
    Match(AnswerComparison, Vec<Value>),
    /// It must be the value `true`.
    True,
    /// This status, and in the answer what the rule says, if it says anything.
    Http {
        status: u64,
        answer: Option<Box<WantedFinding>>,
    },
    /// Exit status 0; 1 is a no.
    ExitZero,
}

/// What counts of a found value: the value, or why it is a 0 already.
type Counted<'a> = Result<&'a Value, String>;

impl FindingRule {
    /// Keys: those of the query, and what it must find: `match` with its keys and `value`,
    /// `equals`, `present`; of `http` also `status`.
    pub(super) fn read(kind: QueryKind, fields: &mut JsonFields) -> Option<Self> {
        let query = finding_query::read(kind, fields);
        let wanted = match kind {
            QueryKind::Command => Some(WantedFinding::ExitZero),
            QueryKind::Http => read_http(fields),
            _ => read_wanted(kind, fields),
        };
        Some(Self { query: query?, kind, wanted: wanted? })
    }

    pub(super) fn query(&self) -> &FinalQuery {
        &self.query
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.as_str()
    }

    pub(super) fn looks_at_page(&self) -> bool {
        matches!(self.query, FinalQuery::Page { .. })
    }

    /// Whether the query failed, so that its verdict is a 0 for another reason than the value.
    pub(super) fn found_nothing(&self, case: &ScoreInput) -> bool {
        self.finding(case).is_ok_and(|result| result.is_err())
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        let verdict = self.score_finding(case)?;
        let marked = self.looks_at_page().then(|| ScoreComponent { name: SELF_REPORTED.into(), value: 1.0 });
        Ok(RuleVerdict { components: marked.into_iter().collect(), ..verdict })
    }

    fn score_finding(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        if self.looks_at_page()
            && let Some(ErrorPage { fault, url }) = case.error_page()
        {
            let url = short(&url);
            return match fault {
                FaultOwner::Policy => {
                    let why = format!("the policy's own navigation failed: {url}");
                    Ok(RuleVerdict::binary(false, why))
                }
                FaultOwner::Farm => Err(self.unusable(format!(
                    "the browser shows an error page, caused by the farm, instead of {url}"
                ))),
            };
        }
        let found = match self.finding(case)? {
            Ok(found) => found,
            Err(FindingFailure { kind, why }) if kind.fault() == FaultOwner::Policy => {
                let name = kind.as_str();
                return Ok(RuleVerdict::binary(
                    false,
                    format!("{}: {name}: {}", self.subject(), short(&why)),
                ));
            }
            Err(FindingFailure { kind, why }) => {
                return Err(self.unusable(format!("{}: {}", kind.as_str(), short(&why))));
            }
        };
        self.compare(&self.wanted, &found)
    }

    fn compare(&self, wanted: &WantedFinding, found: &Value) -> Result<RuleVerdict, ScoreError> {
        let subject = self.subject();
        match wanted {
            WantedFinding::Present(present) => {
                let there = !found.is_null();
                let verb = if there { "is there" } else { "is not there" };
                Ok(RuleVerdict::binary(there == *present, format!("{subject} {verb}")))
            }
            WantedFinding::True => {
                let is_true = found == &Value::Bool(true);
                Ok(RuleVerdict::binary(is_true, format!("{subject} is {}", quoted_value(found))))
            }
            WantedFinding::Equal(equal) => {
                let is_equal = same(found, equal);
                let verb = if is_equal { "equals" } else { "differs from" };
                let found = quoted_value(found);
                let equal = quoted_value(equal);
                let why = format!("{subject} {verb} the expected {equal}: {found}");
                Ok(RuleVerdict::binary(is_equal, why))
            }
            WantedFinding::Match(comparison, values) => {
                let Some(text) = answer_text(found) else {
                    let why = format!("{subject} is neither a text nor a number: {}", quoted_value(found));
                    return Ok(RuleVerdict::binary(false, why));
                };
                let (right, why) = comparison.compare(&text, values).map_err(|why| self.unusable(why))?;
                let why = why.replacen("the answer", "it", 1);
                Ok(RuleVerdict::binary(right, format!("{subject}: {why}: {}", quoted_value(found))))
            }
            WantedFinding::Http { status, answer } => match self.count_answer(found, *status)? {
                Err(why) => Ok(RuleVerdict::binary(false, why)),
                Ok(value) => match answer {
                    Some(answer) => self.compare(answer, value),
                    None => Ok(RuleVerdict::binary(true, format!("{subject} answered with status {status}"))),
                },
            },
            WantedFinding::ExitZero => self.compare_exit(found),
        }
    }

    /// The part of a back end's answer that counts. A failure of the back end itself gives no
    /// verdict.
    fn count_answer<'a>(&self, found: &'a Value, wanted: u64) -> Result<Counted<'a>, ScoreError> {
        let Some(status) = found.get("status").and_then(Value::as_u64) else {
            return Err(self.unusable("it has no status".to_owned()));
        };
        if status != wanted {
            return match status {
                500..=599 => Err(self.unusable(format!("the back end failed with status {status}"))),
                _ => Ok(Err(format!("{} answered with status {status}, not {wanted}", self.subject()))),
            };
        }
        if found.get("is_json") == Some(&Value::Bool(false)) {
            return Err(self.unusable("the back end's answer is not JSON".to_owned()));
        }
        Ok(Ok(found.get("value").unwrap_or(&Value::Null)))
    }

    fn compare_exit(&self, found: &Value) -> Result<RuleVerdict, ScoreError> {
        let subject = self.subject();
        match found.get("exit").and_then(Value::as_i64) {
            Some(0) => Ok(RuleVerdict::binary(true, format!("{subject} ended with status 0"))),
            Some(EXIT_NO) => Ok(RuleVerdict::binary(false, format!("{subject} ended with status 1"))),
            other => {
                let output = found.get("output").and_then(Value::as_str).unwrap_or_default();
                let status = other.map_or("no status".to_owned(), |status| format!("status {status}"));
                Err(self.unusable(format!("it ended with {status}, not 0 or 1: {}", short(output))))
            }
        }
    }

    /// What the query found; an error if the evidence does not say.
    fn finding(&self, case: &ScoreInput) -> Result<Result<Value, FindingFailure>, ScoreError> {
        let json = case.evidence.findings_json.as_deref();
        let json = json.ok_or(ScoreError::Missing { scorer: self.name(), part: "what it looks up" })?;
        let findings = Finding::list_of_json(json).map_err(|why| self.unusable(why))?;
        let finding = findings.into_iter().find(|finding| finding.query == self.query);
        let finding = finding.ok_or(ScoreError::Missing { scorer: self.name(), part: "what it looks up" })?;
        Ok(finding.result)
    }

    /// What the rule is about, as the subject of a sentence.
    fn subject(&self) -> String {
        match &self.query {
            FinalQuery::Page { part, .. } => match part {
                PagePart::Text { selector: None } => "the page's text".to_owned(),
                PagePart::Text { selector: Some(selector) } => format!("the text of {}", short(selector)),
                PagePart::Storage { area, key } => format!("{} storage item {}", area.as_str(), short(key)),
                PagePart::Cookie { name } => format!("cookie {}", short(name)),
                PagePart::Script { expression } => format!("the expression {}", short(expression)),
            },
            FinalQuery::Http(query) => format!("{} {}", query.method.as_str(), short(&query.url)),
            FinalQuery::Command { hook } => format!("hook {hook}"),
        }
    }

    fn unusable(&self, problem: String) -> ScoreError {
        ScoreError::Unusable { scorer: self.name(), part: "what it looks up", problem }
    }
}

/// Keys: `match` with its keys and `value`, or `equals`, or `present`. Of a script none of them:
/// its value must be `true`.
fn read_wanted(kind: QueryKind, fields: &mut JsonFields) -> Option<WantedFinding> {
    let given = ["match", "equals", "present"].into_iter().filter(|key| fields.has(key)).count();
    if given > 1 {
        fields.problem("match", "is given together with `equals` or `present`; give one of them");
        return None;
    }
    if fields.has("present") {
        return match fields.value("present")? {
            Value::Bool(present) => Some(WantedFinding::Present(*present)),
            other => fields.refuse("present", other, "is not a boolean", "use true or false"),
        };
    }
    if let Some(equal) = fields.value("equals") {
        return Some(WantedFinding::Equal(equal.clone()));
    }
    if fields.has("match") {
        let comparison = AnswerComparison::read(fields)?;
        if !fields.has("value") {
            fields.problem("value", "is missing; give the expected value");
        }
        let value = comparison.read_value(fields)?;
        return Some(WantedFinding::Match(comparison, value));
    }
    if kind == QueryKind::Script {
        return Some(WantedFinding::True);
    }
    fields.problem("match", "is missing; give match with value, equals or present");
    None
}

fn read_http(fields: &mut JsonFields) -> Option<WantedFinding> {
    let status = match fields.has("status") {
        true => fields.integer("status", 100..=599)?,
        false => 200,
    };
    let compares = ["match", "equals", "present"].map(|key| fields.has(key)).contains(&true);
    let answer = match fields.has("pointer") {
        true => Some(Box::new(read_wanted(QueryKind::Http, fields)?)),
        false if compares => {
            fields
                .problem("pointer", "is missing; say where the answer's JSON has the value, such as /state");
            return None;
        }
        false => None,
    };
    Some(WantedFinding::Http { status, answer })
}
