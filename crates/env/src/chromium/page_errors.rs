//! What went wrong in a page by its own account: uncaught exceptions, errors on its console, files
//! that did not load. For the author of a site; a farm collects none of it, because the events
//! delay every page of the browser (docs/decisions/0015).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::log::{EventEntryAdded, LogEntryLevel, LogEntrySource};
use chromiumoxide::cdp::browser_protocol::network::EventRequestWillBeSent;
use chromiumoxide::cdp::js_protocol::runtime::{
    ConsoleApiCalledType, EventConsoleApiCalled, EventExceptionThrown, RemoteObject, StackTrace,
};
use chromiumoxide::listeners::EventStream;
use futures::StreamExt;
use tokio::task::JoinHandle;

use super::link::listen;
use crate::egress::BlockedRequests;
use crate::environment::{EnvironmentError, PageError, PageErrorKind};
use crate::hosts::HostPort;
use crate::secrets::{Scrubber, WorkerSecrets};

/// Most errors that are kept of one tab: an author repairs the first ones first.
const ERRORS_MAX: usize = 50;

/// Texts chosen by a page are cut to this many characters.
const TEXT_CHARS_MAX: usize = 500;

/// An address in a report is cut to this length.
const URL_CHARS_MAX: usize = 300;

/// Most requests whose origin is remembered.
const ORIGINS_MAX: usize = 1000;

/// Events pass two queues on their way here.
pub(super) const EVENTS_DELAY: Duration = Duration::from_millis(200);

/// Collects the errors of one tab until it is dropped.
#[derive(Debug)]
pub(super) struct PageErrorLog {
    found: Arc<Mutex<FoundErrors>>,
    watcher: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct FoundErrors {
    errors: Vec<PageError>,
    /// Where a page names the file that it requests, by the file's address.
    origins: BTreeMap<String, String>,
}

/// The events that report errors.
struct ErrorEvents {
    exceptions: EventStream<EventExceptionThrown>,
    console: EventStream<EventConsoleApiCalled>,
    log: EventStream<EventEntryAdded>,
    requests: EventStream<EventRequestWillBeSent>,
}

impl PageErrorLog {
    /// Listens to a page whose events are enabled.
    pub(super) async fn watch(page: &Page, secrets: Arc<WorkerSecrets>) -> Result<Self, EnvironmentError> {
        let events = ErrorEvents {
            exceptions: listen(page).await?,
            console: listen(page).await?,
            log: listen(page).await?,
            requests: listen(page).await?,
        };
        let found = Arc::new(Mutex::default());
        let watcher = tokio::spawn(watch(events, found.clone(), secrets));
        Ok(Self { found, watcher })
    }

    /// Moves the errors since the last call to `errors`, and adds where files were requested.
    pub(super) fn take(&self, errors: &mut Vec<PageError>, origins: &mut BTreeMap<String, String>) {
        let mut found = lock(&self.found);
        errors.append(&mut found.errors);
        origins.extend(found.origins.iter().map(|(url, origin)| (url.clone(), origin.clone())));
    }
}

impl Drop for PageErrorLog {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Reports the requests that the egress filter refused as such, with the reason. A browser reports
/// some of them as failed for another reason, and some not at all. `reported` are the hosts of
/// earlier calls.
pub(super) fn explain_refusals(
    errors: &mut Vec<PageError>,
    origins: &BTreeMap<String, String>,
    blocked: &BlockedRequests,
    reported: &mut HashSet<String>,
) {
    let host_of = |url: &str| HostPort::parse_url(url).ok().map(|target| target.host.to_string());
    let is_refused = |error: &PageError| {
        let url = error.text.split(": ").next().unwrap_or_default();
        error.kind == PageErrorKind::Request
            && host_of(url).is_some_and(|host| blocked.hosts.contains_key(&host))
    };
    errors.retain(|error| !is_refused(error));
    for (host, reason) in blocked.refusals().filter(|(host, _)| reported.insert((*host).to_owned())) {
        let requests = origins.iter().filter(|(url, _)| host_of(url).as_deref() == Some(host));
        let refused = |what: &str, location: Option<String>| PageError {
            kind: PageErrorKind::Refused,
            location,
            text: format!(
                "{}: refused, because {reason}",
                what.chars().take(URL_CHARS_MAX).collect::<String>()
            ),
        };
        let before = errors.len();
        let requests = requests.take(ERRORS_MAX);
        errors.extend(requests.map(|(url, origin)| refused(url, Some(origin.clone()))));
        if errors.len() == before {
            errors.push(refused(host, None));
        }
    }
}

async fn watch(mut events: ErrorEvents, found: Arc<Mutex<FoundErrors>>, secrets: Arc<WorkerSecrets>) {
    let scrubber = secrets.scrubber();
    loop {
        // In this order, so that a request is known before its failure.
        let error = tokio::select! {
            biased;
            Some(request) = events.requests.next() => {
                let mut found = lock(&found);
                if let Some(origin) = origin_of(&request, scrubber)
                    && found.origins.len() < ORIGINS_MAX
                {
                    found.origins.insert(cut(scrubber, &request.request.url, URL_CHARS_MAX), origin);
                }
                continue;
            }
            Some(thrown) = events.exceptions.next() => exception(&thrown, scrubber),
            Some(call) = events.console.next() => match call.r#type {
                ConsoleApiCalledType::Error | ConsoleApiCalledType::Assert => console(&call, scrubber),
                _ => continue,
            },
            Some(added) = events.log.next() => match log_entry(&added, &lock(&found).origins, scrubber) {
                Some(error) => error,
                None => continue,
            },
            else => return,
        };
        let errors = &mut lock(&found).errors;
        if errors.len() < ERRORS_MAX && !errors.contains(&error) {
            errors.push(error);
        }
    }
}

fn exception(thrown: &EventExceptionThrown, scrubber: &Scrubber) -> PageError {
    let details = &thrown.exception_details;
    let described = details.exception.as_ref().map(text_of).filter(|text| !text.is_empty());
    let line = details.line_number;
    let location =
        details.url.as_deref().filter(|url| !url.is_empty()).map(|url| source_line(scrubber, url, line));
    PageError {
        kind: PageErrorKind::Exception,
        location: location.or_else(|| top(scrubber, details.stack_trace.as_ref())),
        text: cut(scrubber, &described.unwrap_or_else(|| details.text.clone()), TEXT_CHARS_MAX),
    }
}

fn console(call: &EventConsoleApiCalled, scrubber: &Scrubber) -> PageError {
    let texts: Vec<String> = call.args.iter().map(text_of).collect();
    PageError {
        kind: PageErrorKind::Console,
        location: top(scrubber, call.stack_trace.as_ref()),
        text: cut(scrubber, &texts.join(" "), TEXT_CHARS_MAX),
    }
}

/// An error of the browser about the page: a file that did not load, a violated policy.
fn log_entry(
    added: &EventEntryAdded,
    origins: &BTreeMap<String, String>,
    scrubber: &Scrubber,
) -> Option<PageError> {
    let entry = &added.entry;
    if entry.level != LogEntryLevel::Error {
        return None;
    }
    let url = cut(scrubber, entry.url.as_deref().unwrap_or_default(), URL_CHARS_MAX);
    if entry.source == LogEntrySource::Network {
        return Some(PageError {
            kind: PageErrorKind::Request,
            location: origins.get(&url).cloned(),
            text: cut(scrubber, &format!("{url}: {}", entry.text), TEXT_CHARS_MAX),
        });
    }
    let line = entry.line_number.unwrap_or_default();
    let location = (!url.is_empty()).then(|| source_line(scrubber, &url, line));
    Some(PageError {
        kind: PageErrorKind::Browser,
        location: location.or_else(|| top(scrubber, entry.stack_trace.as_ref())),
        text: cut(scrubber, &entry.text, TEXT_CHARS_MAX),
    })
}

/// Where a page names the file that it requests.
fn origin_of(request: &EventRequestWillBeSent, scrubber: &Scrubber) -> Option<String> {
    let initiator = &request.initiator;
    let line = initiator.line_number.unwrap_or_default() as i64;
    let written = initiator.url.as_deref().map(|url| source_line(scrubber, url, line));
    written.or_else(|| top(scrubber, initiator.stack.as_ref()))
}

/// The first line of a thrown or printed value; a stack follows on the others.
fn text_of(object: &RemoteObject) -> String {
    let text = match (&object.description, &object.value) {
        (Some(description), _) => description.clone(),
        (None, Some(serde_json::Value::String(text))) => text.clone(),
        (None, Some(value)) => value.to_string(),
        (None, None) => String::new(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

fn top(scrubber: &Scrubber, stack: Option<&StackTrace>) -> Option<String> {
    let frame = stack?.call_frames.iter().find(|frame| !frame.url.is_empty())?;
    Some(source_line(scrubber, &frame.url, frame.line_number))
}

/// A file and a line; the browser counts lines from 0, people from 1.
fn source_line(scrubber: &Scrubber, url: &str, line: i64) -> String {
    format!("{}:{}", cut(scrubber, url, URL_CHARS_MAX), line.saturating_add(1))
}

/// A text is searched for values before it is cut.
fn cut(scrubber: &Scrubber, text: &str, chars_max: usize) -> String {
    scrubber.text(text).chars().take(chars_max).collect()
}

fn lock(found: &Mutex<FoundErrors>) -> MutexGuard<'_, FoundErrors> {
    // An addition cannot leave an inconsistent state.
    found.lock().unwrap_or_else(PoisonError::into_inner)
}
