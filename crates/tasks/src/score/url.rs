//! Conditions on the final address of a trajectory.

use std::collections::BTreeMap;

use furrow_rollout::{ErrorPage, FaultOwner};
use serde_json::Value;
use url::Url;

use super::verdict::{RuleVerdict, ScoreError, ScoreInput};
use crate::fields::{JsonFields, short};

const NAME: &str = "url";

/// All given conditions must hold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UrlRule {
    equals: Vec<Url>,
    prefix: Option<Url>,
    host: Option<String>,
    path: Option<String>,
    query: BTreeMap<String, String>,
}

impl UrlRule {
    /// Keys: `equals` (one address or several, any of which suffices), `prefix` (an address),
    /// `host` (`host` or `*.host`), `path`, `query` (an object of names and values that must be
    /// among the address's).
    pub(super) fn read(fields: &mut JsonFields) -> Option<Self> {
        let rule = Self {
            equals: fields.texts("equals", 100, 2048).map_or(Some(Vec::new()), |texts| {
                texts.iter().map(|text| web_address(fields, "equals", text)).collect()
            })?,
            prefix: match fields.text("prefix", 2048) {
                Some(text) => Some(web_address(fields, "prefix", &text)?),
                None => None,
            },
            host: read_host(fields),
            path: read_path(fields),
            query: read_query(fields),
        };
        let given = ["equals", "prefix", "host", "path", "query"].map(|key| fields.has(key)).contains(&true);
        if !given {
            fields.problem("kind", "url needs a condition; give equals, prefix, host, path or query");
        }
        given.then_some(rule)
    }

    pub(super) fn score(&self, case: &ScoreInput) -> Result<RuleVerdict, ScoreError> {
        // The address of an error page is the one that failed to load: it was not reached.
        match case.error_page() {
            Some(ErrorPage { fault: FaultOwner::Policy, url }) => {
                let why = format!("the policy's own navigation failed: {}", short(&url));
                return Ok(RuleVerdict::binary(false, why));
            }
            Some(ErrorPage { fault: FaultOwner::Farm, url }) => {
                let why = "the browser shows an error page, caused by the farm, instead of";
                return Err(unusable(format!("{why} {}", short(&url))));
            }
            None => {}
        }
        let text = case.evidence.url.as_deref();
        let text = text.ok_or(ScoreError::Missing { scorer: NAME, part: "the final address" })?;
        let url = Url::parse(text).map_err(|e| unusable(format!("{e}: {}", short(text))))?;
        if url.scheme() == "chrome-error" {
            return Err(unusable("the browser shows an error page instead of a page".to_owned()));
        }
        let failed = self.failed_condition(&url);
        let rationale = match failed {
            None => format!("the final address meets every condition: {}", short(text)),
            Some(condition) => format!("the final address does not meet `{condition}`: {}", short(text)),
        };
        Ok(RuleVerdict::binary(failed.is_none(), rationale))
    }

    fn failed_condition(&self, url: &Url) -> Option<&'static str> {
        let conditions = [
            ("equals", self.equals.is_empty() || self.equals.iter().any(|wanted| equal(wanted, url))),
            ("prefix", self.prefix.as_ref().is_none_or(|prefix| begins(prefix, url))),
            ("host", self.host.as_ref().is_none_or(|host| on_host(host, url))),
            ("path", self.path.as_ref().is_none_or(|path| bare(path) == bare(url.path()))),
            ("query", self.query.iter().all(|(name, value)| has_pair(url, name, value))),
        ];
        conditions.into_iter().find(|(_, holds)| !holds).map(|(name, _)| name)
    }
}

/// Same address, same query pairs in any order; a fragment counts only if one is expected.
fn equal(wanted: &Url, url: &Url) -> bool {
    let pairs = |url: &Url| {
        let mut pairs: Vec<_> = url.query_pairs().into_owned().collect();
        pairs.sort();
        pairs
    };
    wanted.origin() == url.origin()
        && bare(wanted.path()) == bare(url.path())
        && pairs(wanted) == pairs(url)
        && (wanted.fragment().is_none() || wanted.fragment() == url.fragment())
}

/// Same origin, and the path continues after a whole segment: `/cart` is a prefix of `/cart/2`, not
/// of `/cartoons`.
fn begins(prefix: &Url, url: &Url) -> bool {
    let start = prefix.path();
    let whole = url.path();
    let at_segment = |rest: &str| rest.is_empty() || rest.starts_with('/') || start.ends_with('/');
    prefix.origin() == url.origin()
        && whole.strip_prefix(start).is_some_and(at_segment)
        && prefix.query_pairs().all(|(name, value)| has_pair(url, &name, &value))
}

fn on_host(host: &str, url: &Url) -> bool {
    let Some(actual) = url.host_str() else { return false };
    match host.strip_prefix("*.") {
        Some(domain) => actual.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
        None => actual == host,
    }
}

fn has_pair(url: &Url, name: &str, value: &str) -> bool {
    url.query_pairs().any(|(n, v)| n == name && v == value)
}

/// A path with or without a final slash is the same page.
fn bare(path: &str) -> &str {
    path.trim_end_matches('/')
}

fn web_address(fields: &mut JsonFields, key: &'static str, text: &str) -> Option<Url> {
    let parsed = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    if parsed.is_none() {
        fields.problem(
            key,
            format!("{:?} is not an address; use an absolute http or https address", short(text)),
        );
    }
    parsed
}

fn read_host(fields: &mut JsonFields) -> Option<String> {
    let host = fields.text("host", 255)?;
    if !crate::config::is_host_pattern(&host) {
        fields.problem("host", format!("{host:?} is not a host; use host or *.host in lower case"));
    }
    Some(host)
}

fn read_path(fields: &mut JsonFields) -> Option<String> {
    let path = fields.text("path", 2048)?;
    if !path.starts_with('/') {
        fields.problem("path", format!("{path:?} is not a path; begin it with /"));
    }
    Some(path)
}

fn read_query(fields: &mut JsonFields) -> BTreeMap<String, String> {
    let Some(value) = fields.value("query") else { return BTreeMap::new() };
    let pair = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    let pairs = value.as_object().filter(|map| !map.is_empty()).map(|map| map.iter().map(pair).collect());
    let pairs: Option<Option<BTreeMap<_, _>>> = pairs;
    pairs.flatten().unwrap_or_else(|| {
        fields.problem("query", "is not an object of strings; write {\"name\": \"value\"}");
        BTreeMap::new()
    })
}

fn unusable(problem: String) -> ScoreError {
    ScoreError::Unusable { scorer: NAME, part: "the final address", problem }
}
