//! What a scorer needs an environment worker to do: a hook before the trajectory, and what to look
//! up when it ends. The expected values stay with the scorer.

use serde_json::{Map, Value, json};

use crate::end::FaultOwner;

/// Most queries of one task.
pub const QUERIES_MAX: usize = 32;

/// Longest selector, key, name, address or pointer of a query.
pub const QUERY_TEXT_BYTES_MAX: usize = 2048;

/// Longest expression, and longest body of an HTTP check.
pub const EXPRESSION_BYTES_MAX: usize = 8 << 10;

/// Longest name of a hook.
pub(crate) const HOOK_NAME_BYTES_MAX: usize = 64;

/// Largest value that is looked up, as JSON. A longer one is the failure `too_large`.
pub const FOUND_BYTES_MAX: usize = 64 << 10;

/// Largest JSON of all findings of a trajectory.
pub const FINDINGS_BYTES_MAX: usize = 768 << 10;

/// What an environment worker does for a task's scorer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskChecks {
    /// The hook that resets the task's back end before each trajectory.
    pub reset: Option<String>,
    /// What is looked up at the end, each once.
    pub queries: Vec<FinalQuery>,
}

/// Something that is looked up at the end of a trajectory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinalQuery {
    /// In the final page.
    Page {
        /// What of the page.
        part: PagePart,
        /// The host that must serve it, `host` or `*.host`; `None`: the start page's own.
        host: Option<String>,
    },
    /// From a back end that the job pins.
    Http(HttpQuery),
    /// The exit status of a hook of the job.
    Command {
        /// Name of the hook in the job.
        hook: String,
    },
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PagePart {
    /// The text of the first element that fits a selector, or of the whole page.
    Text {
        /// CSS selector; `None` is the whole page.
        selector: Option<String>,
    },
    /// An item of the page's storage.
    Storage {
        /// In which of the two storages.
        area: StorageArea,
        /// Key of the item.
        key: String,
    },
    /// A cookie that the page's address would be sent.
    Cookie {
        /// Name of the cookie.
        name: String,
    },
    /// The value of an expression in the farm's own world of the page.
    Script {
        /// A JavaScript expression, which may be a promise.
        expression: String,
    },
}

/// A storage of a page's origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageArea {
    /// `localStorage`, which outlives its tab.
    Local,
    /// `sessionStorage`, which ends with its tab.
    Session,
}

/// A request to a back end, and which part of its JSON answer counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpQuery {
    /// Method of the request.
    pub method: HttpMethod,
    /// An absolute address of scheme http.
    pub url: String,
    /// The JSON that is sent.
    pub body: Option<String>,
    /// JSON pointer into the answer.
    pub pointer: Option<String>,
}

/// The methods of HTTP checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// Reads, as pages are read.
    Get,
    /// The status without a body.
    Head,
    /// A query that needs a body.
    Post,
}

/// The result of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What was looked up.
    pub query: FinalQuery,
    /// The value, or why there is none.
    pub result: Result<Value, FindingFailure>,
}

/// Why a query found nothing that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingFailure {
    /// The name of what went wrong.
    pub kind: FindingFailureKind,
    /// The cause, in a sentence.
    pub why: String,
}

/// What went wrong with a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingFailureKind {
    /// The final page is not one of the host that the query is about.
    Away,
    /// The expression, the selector or the storage threw.
    Threw,
    /// The page did not answer in time.
    TimedOut,
    /// The value is too large.
    TooLarge,
    /// The page was replaced by another while it was read.
    Replaced,
    /// The back end did not answer, or not with what it should.
    NoAnswer,
    /// The worker does not have the hook, or may not reach the host.
    Refused,
    /// The hook could not be run to its end.
    HookFailed,
}

impl StorageArea {
    /// Both storages, in their order.
    pub const ALL: [Self; 2] = [Self::Local, Self::Session];

    /// The name in task files, messages and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Session => "session",
        }
    }
}

impl HttpMethod {
    /// All methods, in their order.
    pub const ALL: [Self; 3] = [Self::Get, Self::Head, Self::Post];

    /// The name in task files, messages and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
        }
    }
}

impl FindingFailureKind {
    /// All failures, in their order.
    pub const ALL: [Self; 8] = [
        Self::Away,
        Self::Threw,
        Self::TimedOut,
        Self::TooLarge,
        Self::Replaced,
        Self::NoAnswer,
        Self::Refused,
        Self::HookFailed,
    ];

    /// The name in task files, messages and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Threw => "threw",
            Self::TimedOut => "timed_out",
            Self::TooLarge => "too_large",
            Self::Replaced => "replaced",
            Self::NoAnswer => "no_answer",
            Self::Refused => "refused",
            Self::HookFailed => "hook_failed",
        }
    }

    /// Who is responsible. What a page or a policy can cause is the policy's: otherwise it could
    /// choose not to be scored.
    pub fn fault(self) -> FaultOwner {
        match self {
            Self::Away | Self::Threw | Self::TimedOut | Self::TooLarge | Self::Replaced => FaultOwner::Policy,
            Self::NoAnswer | Self::Refused | Self::HookFailed => FaultOwner::Farm,
        }
    }
}

impl FindingFailure {
    /// A failure; its cause is cut to what a record needs.
    pub fn new(kind: FindingFailureKind, why: impl Into<String>) -> Self {
        let why: String = why.into();
        Self { kind, why: why.chars().take(300).collect() }
    }
}

/// Whether a text can name a hook: it never becomes a path or an argument.
pub fn is_hook_name(name: &str) -> bool {
    let right = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    (1..=HOOK_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(right)
}

impl FinalQuery {
    /// The query as JSON, by which its finding is found again.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Page { part, host } => {
                let mut query = part.to_json();
                if let (Some(host), Some(object)) = (host, query.as_object_mut()) {
                    object.insert("host".to_owned(), json!(host));
                }
                query
            }
            Self::Http(HttpQuery { method, url, body, pointer }) => {
                json!({"kind": "http", "method": method.as_str(), "url": url, "body": body, "pointer": pointer})
            }
            Self::Command { hook } => json!({"kind": "command", "hook": hook}),
        }
    }

    /// Reads what [`FinalQuery::to_json`] writes, with every length capped; the error says what is
    /// wrong.
    pub fn of_json(query: &Value) -> Result<Self, String> {
        let fields = QueryFields(query.as_object().ok_or("a query is not an object")?);
        let part = match fields.required("kind", 16)?.as_str() {
            "text" => PagePart::Text { selector: fields.text("selector", QUERY_TEXT_BYTES_MAX)? },
            "storage" => PagePart::Storage {
                area: fields.named("area", &StorageArea::ALL.map(|area| (area.as_str(), area)))?,
                key: fields.required("key", QUERY_TEXT_BYTES_MAX)?,
            },
            "cookie" => PagePart::Cookie { name: fields.required("name", QUERY_TEXT_BYTES_MAX)? },
            "script" => PagePart::Script { expression: fields.required("expression", EXPRESSION_BYTES_MAX)? },
            "http" => {
                return Ok(Self::Http(HttpQuery {
                    method: fields
                        .named("method", &HttpMethod::ALL.map(|method| (method.as_str(), method)))?,
                    url: fields.required("url", QUERY_TEXT_BYTES_MAX)?,
                    body: fields.text("body", EXPRESSION_BYTES_MAX)?,
                    pointer: fields.text("pointer", QUERY_TEXT_BYTES_MAX)?,
                }));
            }
            "command" => {
                let hook = fields.required("hook", HOOK_NAME_BYTES_MAX)?;
                return match is_hook_name(&hook) {
                    true => Ok(Self::Command { hook }),
                    false => Err(format!("{hook:?} is not a hook's name")),
                };
            }
            other => return Err(format!("{other:?} is not a kind of query")),
        };
        Ok(Self::Page { part, host: fields.text("host", 255)? })
    }
}

impl PagePart {
    fn to_json(&self) -> Value {
        match self {
            Self::Text { selector } => json!({"kind": "text", "selector": selector}),
            Self::Storage { area, key } => json!({"kind": "storage", "area": area.as_str(), "key": key}),
            Self::Cookie { name } => json!({"kind": "cookie", "name": name}),
            Self::Script { expression } => json!({"kind": "script", "expression": expression}),
        }
    }
}

struct QueryFields<'a>(&'a Map<String, Value>);

impl QueryFields<'_> {
    fn text(&self, key: &str, bytes_max: usize) -> Result<Option<String>, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text.clone())),
            Some(_) => Err(format!("a query's {key} is not a text of at most {bytes_max} bytes")),
        }
    }

    fn required(&self, key: &str, bytes_max: usize) -> Result<String, String> {
        self.text(key, bytes_max)?.ok_or_else(|| format!("a query has no {key}"))
    }

    fn named<T: Copy>(&self, key: &str, known: &[(&str, T)]) -> Result<T, String> {
        let name = self.required(key, 16)?;
        let found = known.iter().find(|(known, _)| *known == name).map(|(_, meant)| *meant);
        found.ok_or_else(|| format!("a query's {key} is {name:?}"))
    }
}

impl Finding {
    /// All findings as the JSON of evidence.
    pub fn list_to_json(findings: &[Self]) -> String {
        let entry = |finding: &Self| match &finding.result {
            Ok(found) => json!({"query": finding.query.to_json(), "found": found}),
            Err(FindingFailure { kind, why }) => {
                json!({"query": finding.query.to_json(), "failure": kind.as_str(), "why": why})
            }
        };
        Value::Array(findings.iter().map(entry).collect()).to_string()
    }

    /// Reads what [`Finding::list_to_json`] writes.
    pub fn list_of_json(json: &str) -> Result<Vec<Self>, String> {
        if json.len() > FINDINGS_BYTES_MAX {
            return Err(format!("they have {} bytes, more than {FINDINGS_BYTES_MAX}", json.len()));
        }
        let entries: Vec<Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        entries.into_iter().map(Self::of_json).collect()
    }

    fn of_json(mut entry: Value) -> Result<Self, String> {
        let query = FinalQuery::of_json(&entry["query"])?;
        if let Some(found) = entry.get_mut("found") {
            return Ok(Self { query, result: Ok(found.take()) });
        }
        let name = entry["failure"].as_str().unwrap_or_default();
        let kind = FindingFailureKind::ALL.into_iter().find(|kind| kind.as_str() == name);
        let kind = kind.ok_or_else(|| format!("{name:?} is not a failure of a query"))?;
        Ok(Self { query, result: Err(FindingFailure::new(kind, entry["why"].as_str().unwrap_or_default())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(part: PagePart, host: Option<&str>) -> FinalQuery {
        FinalQuery::Page { part, host: host.map(str::to_owned) }
    }

    #[test]
    fn queries_and_findings_are_read_back() {
        let queries = [
            page(PagePart::Text { selector: None }, None),
            page(PagePart::Text { selector: Some("#a \"b\"".into()) }, Some("*.a.test")),
            page(PagePart::Storage { area: StorageArea::Session, key: "k".into() }, None),
            page(PagePart::Cookie { name: "c".into() }, None),
            page(PagePart::Script { expression: "1 + 1".into() }, None),
            FinalQuery::Http(HttpQuery {
                method: HttpMethod::Post,
                url: "http://a.test/x".into(),
                body: Some("{}".into()),
                pointer: Some("/a".into()),
            }),
            FinalQuery::Command { hook: "check-1".into() },
        ];
        let mut findings = Vec::new();
        for (query, kind) in queries.into_iter().zip(FindingFailureKind::ALL) {
            assert_eq!(FinalQuery::of_json(&query.to_json()), Ok(query.clone()));
            findings.push(Finding { query: query.clone(), result: Ok(json!([1, null])) });
            findings.push(Finding { query, result: Err(FindingFailure::new(kind, "why")) });
        }
        assert_eq!(Finding::list_of_json(&Finding::list_to_json(&findings)), Ok(findings));
    }

    #[test]
    fn what_is_not_a_query_is_refused() {
        for (bad, why) in [
            (json!([]), "not an object"),
            (json!({"kind": "shell"}), "not a kind"),
            (json!({"kind": "storage", "area": "other", "key": "k"}), "area"),
            (json!({"kind": "script", "expression": "x".repeat(9000)}), "at most 8192"),
            (json!({"kind": "command", "hook": "../bin/sh"}), "not a hook's name"),
            (json!({"kind": "command", "hook": ""}), "not a hook's name"),
            (json!({"kind": "http", "method": "DELETE", "url": "http://a.test/"}), "method"),
        ] {
            let got = FinalQuery::of_json(&bad).unwrap_err();
            assert!(got.contains(why), "{bad}: {why:?} not in {got:?}");
        }
        for bad in ["", "{}", "[1]", r#"[{"query":{"kind":"text"}}]"#] {
            assert!(Finding::list_of_json(bad).is_err(), "{bad}");
        }
    }
}
