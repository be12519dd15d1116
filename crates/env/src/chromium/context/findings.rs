//! Findings: what a scorer's queries find in the final page, and in back ends at the same moment.
//!
//! Queries run in the farm's own world of the page, which the page's scripts can neither see nor
//! replace. Named elements of a page can hide members of `document` and of forms from every world,
//! so what the farm calls itself it takes from the prototypes of its own world.

use std::sync::Arc;
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::network::GetCookiesParams;
use furrow_rollout::{
    FINDINGS_BYTES_MAX, FOUND_BYTES_MAX, FinalQuery, Finding, FindingFailure, FindingFailureKind, PagePart,
    Task,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::back_end::{BackEnd, BackEndCall};
use crate::chromium::script::{self, ScriptFailure};
use crate::chromium::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// Time for all queries of a trajectory together, hooks aside, which have deadlines of their own: a
/// page that loops in each of them would hold its browser for minutes.
const TOTAL: Duration = Duration::from_secs(20);

/// Bytes of a finding besides its query and its value: its failure's sentence, escaped.
const FAILURE_BYTES_MAX: usize = 2_000;

/// Bytes of an answer besides the value: the page's protocol and host.
const LOCATION_BYTES_MAX: usize = 512;

/// Takes the text of the first element that fits, or of the page; of a field its value.
const TEXT_SCRIPT: &str = r"((selector) => {
  const getter = (type, name) => Object.getOwnPropertyDescriptor(type.prototype, name).get;
  const read = (type, name, node) => getter(type, name).call(node);
  const found = selector === null
    ? read(Document, 'body', document) ?? read(Document, 'documentElement', document)
    : Document.prototype.querySelector.call(document, selector);
  if (found === null) return null;
  for (const type of [HTMLInputElement, HTMLTextAreaElement, HTMLSelectElement]) {
    if (found instanceof type) return read(type, 'value', found);
  }
  if (found instanceof HTMLElement) return read(HTMLElement, 'innerText', found);
  return read(Node, 'textContent', found);
})";

/// What a scorer looks up, and the back ends in which it may.
pub(in crate::chromium) struct ContextChecks {
    pub queries: Vec<FinalQuery>,
    pub back_end: Arc<BackEnd>,
    pub call: BackEndCall,
}

/// What queries are answered from.
pub(super) struct FindingSource<'a> {
    pub tab: &'a BrowserTab,
    pub task: &'a Task,
    pub checks: &'a ContextChecks,
}

/// Result of a query, or the death of the page.
type Looked = Result<Result<Value, FindingFailure>, EnvironmentError>;

impl FindingSource<'_> {
    /// Answers every query; an error says that the page died meanwhile.
    pub(super) async fn gather(&self) -> Result<String, EnvironmentError> {
        let ContextChecks { queries, back_end, call } = self.checks;
        let until = Instant::now() + TOTAL;
        let sizes = queries.iter().map(|query| query.to_json().to_string().len() + FAILURE_BYTES_MAX);
        let mut budget = FINDINGS_BYTES_MAX.saturating_sub(sizes.sum());
        let mut findings = Vec::new();
        for query in queries {
            let result = match query {
                FinalQuery::Page { part, host } => self.look(part, host.as_deref(), until).await?,
                FinalQuery::Http(query) => back_end.ask(query, until).await,
                FinalQuery::Command { hook } => back_end.check(hook, call).await,
            };
            let result = result.and_then(|found| {
                let size = found.to_string().len();
                let fits = size <= FOUND_BYTES_MAX && size <= budget;
                budget -= if fits { size } else { 0 };
                if fits { Ok(found) } else { Err(too_large(&size.to_string())) }
            });
            findings.push(Finding { query: query.clone(), result });
        }
        Ok(Finding::list_to_json(&findings))
    }

    /// Looks twice where the page was replaced meanwhile, as by a redirect after the last action.
    async fn look(&self, part: &PagePart, host: Option<&str>, until: Instant) -> Looked {
        let first = self.look_once(part, host, until).await?;
        match first {
            Err(FindingFailure { kind: FindingFailureKind::Replaced, .. }) => {
                self.look_once(part, host, until).await
            }
            first => Ok(first),
        }
    }

    async fn look_once(&self, part: &PagePart, host: Option<&str>, until: Instant) -> Looked {
        // The page is known to be the right one before anything of it runs.
        if let Err(failure) = self.evaluate("location.href", host, until).await? {
            return Ok(Err(failure));
        }
        match part {
            PagePart::Text { selector } => {
                let selector = selector.as_ref().map_or(Value::Null, |text| Value::from(text.as_str()));
                self.evaluate(&format!("{TEXT_SCRIPT}({selector})"), host, until).await
            }
            PagePart::Storage { area, key } => {
                let area = area.as_str();
                let key = Value::from(key.as_str());
                let read = format!("Storage.prototype.getItem.call({area}Storage, {key})");
                self.evaluate(&read, host, until).await
            }
            PagePart::Cookie { name } => self.cookie(name, host, until).await,
            PagePart::Script { expression } => self.evaluate(expression, host, until).await,
        }
    }

    /// The value of an expression in the farm's world, if the page is one of the host.
    async fn evaluate(&self, expression: &str, host: Option<&str>, until: Instant) -> Looked {
        let left = until.saturating_duration_since(Instant::now()).min(self.tab.deadlines.input);
        if left.is_zero() {
            let why = format!("all queries together took {} s", TOTAL.as_secs());
            return Ok(Err(FindingFailure::new(FindingFailureKind::TimedOut, why)));
        }
        let located = format!("[location.protocol, location.hostname, await ({expression}\n)]");
        let bytes_max = FOUND_BYTES_MAX + LOCATION_BYTES_MAX;
        let what = "what the scorer looks up";
        let evaluated = async {
            let world = script::isolated_world(self.tab, left, what).await?;
            script::try_evaluate(self.tab, &located, Some(&world), left, what, bytes_max).await
        };
        let answer = match evaluated.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(ScriptFailure::Threw(why))) => {
                return Ok(Err(FindingFailure::new(FindingFailureKind::Threw, why)));
            }
            Ok(Err(ScriptFailure::TooLarge(size))) => return Ok(Err(too_large(&size))),
            Err(EnvironmentError::PageHang { .. }) => {
                // Its script must not run on: the browser serves other trajectories.
                self.tab.stop_script().await.ok();
                let why = format!("no value within {} ms", left.as_millis());
                return Ok(Err(FindingFailure::new(FindingFailureKind::TimedOut, why)));
            }
            Err(EnvironmentError::Failed(why)) => {
                return Ok(Err(FindingFailure::new(FindingFailureKind::Replaced, why)));
            }
            Err(died) => return Err(died),
        };
        let part = |index: usize| answer.get(index).and_then(Value::as_str).unwrap_or_default();
        if !self.is_page_of(part(0), part(1), host) {
            let why = format!("the final page is of {:?}", format!("{}//{}", part(0), part(1)));
            return Ok(Err(FindingFailure::new(FindingFailureKind::Away, why)));
        }
        Ok(Ok(answer.get(2).cloned().unwrap_or(Value::Null)))
    }

    /// Whether a page is one of the host that a query names, or else of the start page's.
    fn is_page_of(&self, protocol: &str, page_host: &str, host: Option<&str>) -> bool {
        let is_right = match host.map(|host| (host, host.strip_prefix("*."))) {
            Some((_, Some(parent))) => {
                page_host.strip_suffix(parent).is_some_and(|below| below.len() > 1 && below.ends_with('.'))
            }
            Some((host, None)) => page_host == host,
            None => {
                let start = self.task.start_url.parse::<http::Uri>().ok();
                start.as_ref().and_then(http::Uri::host) == Some(page_host)
            }
        };
        is_right && matches!(protocol, "http:" | "https:")
    }

    /// The value of a cookie that the page's address is sent, also of one that scripts cannot read.
    async fn cookie(&self, name: &str, host: Option<&str>, until: Instant) -> Looked {
        let url = match self.evaluate("location.href", host, until).await? {
            Ok(Value::String(url)) => url,
            Ok(_) => return Ok(Ok(Value::Null)),
            Err(failure) => return Ok(Err(failure)),
        };
        let request = GetCookiesParams { urls: Some(vec![url]) };
        let listed = self.tab.call(request, self.tab.deadlines.input, "the page's cookies").await;
        let cookies = match listed {
            Ok(answer) => answer.cookies,
            Err(EnvironmentError::PageHang { .. }) => {
                let why = "the browser did not list its cookies in time";
                return Ok(Err(FindingFailure::new(FindingFailureKind::TimedOut, why)));
            }
            Err(EnvironmentError::Failed(why)) => {
                return Ok(Err(FindingFailure::new(FindingFailureKind::Replaced, why)));
            }
            Err(died) => return Err(died),
        };
        let named = cookies.into_iter().filter(|cookie| cookie.name == name);
        // The browser sends the one of the longest path first.
        let value = named.max_by_key(|cookie| cookie.path.len()).map(|cookie| cookie.value);
        Ok(Ok(value.map_or(Value::Null, Value::from)))
    }
}

fn too_large(size: &str) -> FindingFailure {
    let why = format!("it has {size} bytes; {FOUND_BYTES_MAX} are kept, fewer beside other findings");
    FindingFailure::new(FindingFailureKind::TooLarge, why)
}
