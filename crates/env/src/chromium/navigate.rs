//! Navigates a tab to another page, and handles pages that load only in part or not at all.
//!
//! The protocol library considers a page reached when it is loaded, and delays the next navigation
//! until then, for up to 30 s. A live page may load for ever: one missing picture is enough.
//! Therefore a page that shows something gets the time that settling gives it and is then used as
//! it is; the library's wait is ended when the next address is requested.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::network::LoaderId;
use chromiumoxide::cdp::browser_protocol::page::{
    ClientNavigationDisposition, EventFrameNavigated, EventFrameRequestedNavigation,
    EventFrameStartedNavigating, EventFrameStoppedLoading, EventNavigatedWithinDocument, FrameId,
    FrameStartedNavigatingNavigationType, GetFrameTreeParams, GetNavigationHistoryParams, NavigateParams,
    NavigateToHistoryEntryParams, ReloadParams, SetLifecycleEventsEnabledParams, StopLoadingParams,
};
use chromiumoxide::listeners::EventStream;
use furrow_rollout::{EMPTY_PAGE, Outcome, OutcomeName};
use futures::{FutureExt, StreamExt};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::link::listen;
use super::tab::BrowserTab;
use super::{clock, script};
use crate::environment::EnvironmentError;

/// Time between two checks of a loading page.
const LOADING_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// An HTML document without a body is not drawn, and a screenshot of it is never answered. A
/// document whose response is cut off early stays in that state and loads for ever (Chromium 156).
const HAS_CONTENT_SCRIPT: &str = "document.contentType !== 'text/html' || document.body !== null";

/// Replaces the document with an empty loaded one and notifies the library, which receives no event
/// when a page is stopped. The first script navigates within the document to its current address,
/// for the case that no other document came; the library must receive that event first, because
/// loading starts anew with it. Pending requests of a parsed document are cancelled: otherwise the
/// empty document would wait for them before it counts as loaded. A document that is still being
/// parsed cannot be opened after its parser was stopped.
const EMPTY_DOCUMENT_SCRIPTS: [&str; 2] = [
    "(document.readyState === 'loading' || window.stop(), history.replaceState(history.state, ''))",
    "(document.open(), document.write('<body></body>'), document.close())",
];

/// Time for the library to receive the first script's event. Wall time: page time may stand still.
const EMPTY_DOCUMENT_PAUSE: Duration = Duration::from_millis(50);

/// Page time for loading an empty document; nothing else runs in it.
const EMPTY_DOCUMENT_MILLIS: u32 = 1000;

/// The filter answers on behalf of a silent host by the same deadline. That answer is awaited: a
/// document that arrives while loading is stopped is never drawn (Chromium 156: both of two pages,
/// in one run of three).
const FILTER_ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Time until a navigation that a page requested starts: the browser receives the request a moment
/// later, or never if it is refused.
const NAVIGATION_START_DELAY: Duration = Duration::from_millis(100);

/// Whether the document is loaded; navigates within it to its current address to notify the
/// library.
const STAY_SCRIPT: &str =
    "document.readyState === 'complete' && (history.replaceState(history.state, ''), true)";

const LOADED_SCRIPT: &str = "document.readyState === 'complete'";

/// Navigates to an address within the current document, and returns whether the address is one.
const GO_WITHIN_SCRIPT: &str = "(url) => {
  const [here, there] = [new URL(location.href), new URL(url)];
  const within = there.href.includes('#');
  here.hash = there.hash = '';
  if (!within || here.href !== there.href) return false;
  location.href = url;
  return true;
}";

/// Navigates to an address. Waits for a page that has content no longer than `settle_timeout`.
pub(super) async fn navigate_to(
    tab: &BrowserTab,
    url: &str,
    settle_timeout: Duration,
) -> Result<Outcome, EnvironmentError> {
    if tab.take_unfinished() && !is_loaded(tab).await? {
        if navigate_within_unfinished(tab, url).await? {
            tab.mark_unfinished();
            return Ok(Outcome::named(OutcomeName::Ok));
        }
        // The current page is being left.
        replace_with_empty_document(tab).await?;
    }
    let arrived = AtomicBool::new(false);
    let shown = listen::<EventFrameNavigated>(&tab.page).await?;
    let within = listen::<EventNavigatedWithinDocument>(&tab.page).await?;
    let navigation = tab.call(NavigateParams::new(url), tab.deadlines.navigation, "the page to load");
    let answer = tokio::select! {
        answer = navigation => answer,
        loading = wait_until_shown_or_hung(tab, shown, &arrived, settle_timeout) => {
            tab.mark_unfinished();
            return loading.map(|()| Outcome::with_detail(OutcomeName::NotSettled, "the page was still loading"));
        }
        () = wait_same_document(tab, within, url) => {
            end_library_wait(tab).await?;
            return Ok(Outcome::named(OutcomeName::Ok));
        }
    };
    match answer {
        Ok(answer) => Ok(match answer.error_text {
            Some(_) if answer.is_download == Some(true) => Outcome::named(OutcomeName::Ok),
            Some(why) => Outcome::with_detail(OutcomeName::NavigationFailed, why),
            None => Outcome::named(OutcomeName::Ok),
        }),
        // A server that does not answer is the address's fault, not the page's.
        Err(EnvironmentError::PageHang { .. }) => {
            tab.clear_hung();
            if !arrived.load(Ordering::Relaxed) {
                // Otherwise the document could arrive later, in the middle of actions on the
                // current page.
                stop_loading(tab).await?;
                end_library_wait(tab).await?;
            } else {
                tab.mark_unfinished();
                ensure_content(tab).await?;
            }
            Ok(Outcome::with_detail(OutcomeName::NavigationFailed, "the address did not answer in time"))
        }
        Err(error) => Err(error),
    }
}

/// Resolves when the new page has had content for `settle_timeout` and is not loaded yet; or with
/// an error if it does not run scripts, because it hangs while it loads.
async fn wait_until_shown_or_hung(
    tab: &BrowserTab,
    mut shown: EventStream<EventFrameNavigated>,
    arrived: &AtomicBool,
    settle_timeout: Duration,
) -> Result<(), EnvironmentError> {
    let is_main = |event: &EventFrameNavigated| event.frame.parent_id.is_none();
    while let Some(event) = shown.next().await {
        if is_main(&event) {
            break;
        }
    }
    arrived.store(true, Ordering::Relaxed);
    let until = Instant::now() + settle_timeout;
    loop {
        sleep(LOADING_POLL_INTERVAL).await;
        if has_content(tab).await? && Instant::now() >= until {
            return Ok(());
        }
    }
}

/// Whether a page that was left unfinished has finished loading since. The library has received
/// that event then, and the page may be the one that stays.
async fn is_loaded(tab: &BrowserTab) -> Result<bool, EnvironmentError> {
    match script::evaluate_isolated(tab, LOADED_SCRIPT, tab.deadlines.input, "the page to load").await {
        Ok(loaded) => Ok(loaded == Value::Bool(true)),
        // The tab is between two documents.
        Err(EnvironmentError::Failed(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Navigates within a document that is still loading, without the library, which would wait until
/// it is loaded. Returns whether the address is within the document.
async fn navigate_within_unfinished(tab: &BrowserTab, url: &str) -> Result<bool, EnvironmentError> {
    let go = format!("({GO_WITHIN_SCRIPT})({})", Value::from(url));
    match script::evaluate_isolated(tab, &go, tab.deadlines.input, "the page to load").await {
        Ok(went) => Ok(went == Value::Bool(true)),
        Err(EnvironmentError::Failed(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Resolves when an address turns out to be within the current document.
async fn wait_same_document(
    tab: &BrowserTab,
    mut within: EventStream<EventNavigatedWithinDocument>,
    url: &str,
) {
    let fragment = |url: &str| url.split_once('#').map(|(_, fragment)| fragment.to_owned());
    let main = main_frame(tab);
    let wanted = fragment(url);
    while let Some(event) = within.next().await {
        // A page may also navigate within itself meanwhile.
        if wanted.is_some() && event.frame_id == main && fragment(&event.url) == wanted {
            return;
        }
    }
    futures::future::pending::<()>().await;
}

/// Ends the library's wait for a new document if none comes: it receives a navigation within the
/// current one, and once more that it is loaded. A document that is not loaded is marked as
/// unfinished.
async fn end_library_wait(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    let what = "the page to stay";
    match script::evaluate_isolated(tab, STAY_SCRIPT, tab.deadlines.input, what).await {
        Ok(Value::Bool(true)) => {
            let enable_events = SetLifecycleEventsEnabledParams::new(true);
            tab.call(enable_events, tab.deadlines.input, what).await.map(drop)
        }
        Ok(_) | Err(EnvironmentError::Failed(_)) => {
            tab.mark_unfinished();
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Cancels loading and pending navigations of a page. The browser process answers, whatever the
/// page does.
pub(super) async fn stop_loading(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    tab.call(StopLoadingParams {}, tab.deadlines.input, "the page to stop loading").await.map(drop)
}

/// Waits until a page that did not settle has content, at most as long as for an address; after
/// that it is replaced with an empty document, as a person would see it.
pub(super) async fn wait_for_content(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    let until = Instant::now() + tab.deadlines.navigation;
    while !has_content(tab).await? {
        if Instant::now() >= until {
            return replace_with_empty_document(tab).await;
        }
        sleep(LOADING_POLL_INTERVAL).await;
    }
    Ok(())
}

/// Replaces a partly loaded document that is not drawn with an empty one.
pub(super) async fn ensure_content(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    if has_content(tab).await? { Ok(()) } else { replace_with_empty_document(tab).await }
}

/// Identifies a document of a tab: another one has another id, the same address or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DocumentId(LoaderId);

pub(super) async fn document_id(tab: &BrowserTab) -> Result<DocumentId, EnvironmentError> {
    let tree = tab.call(GetFrameTreeParams {}, tab.deadlines.input, "the page's frames").await?;
    Ok(DocumentId(tree.frame_tree.frame.loader_id))
}

/// The address that could not be loaded, if the browser shows its error page in its place.
pub(super) async fn unreachable_url(tab: &BrowserTab) -> Result<Option<String>, EnvironmentError> {
    let tree = tab.call(GetFrameTreeParams {}, tab.deadlines.input, "the page's frames").await?;
    Ok(tree.frame_tree.frame.unreachable_url)
}

async fn has_content(tab: &BrowserTab) -> Result<bool, EnvironmentError> {
    match script::evaluate_isolated(tab, HAS_CONTENT_SCRIPT, tab.deadlines.input, "the page to load").await {
        Ok(shows) => Ok(shows == Value::Bool(true)),
        // The tab is between two documents.
        Err(EnvironmentError::Failed(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces the current document with an empty one.
async fn replace_with_empty_document(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    for part in EMPTY_DOCUMENT_SCRIPTS {
        match script::evaluate_isolated(tab, part, tab.deadlines.input, "the page to stop loading").await {
            Ok(_) => sleep(EMPTY_DOCUMENT_PAUSE).await,
            // A document that is not HTML forbids it: the library's own deadline then ends its
            // wait.
            Err(EnvironmentError::Failed(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    if tab.has_stopped_clock() { clock::advance(tab, EMPTY_DOCUMENT_MILLIS).await } else { Ok(()) }
}

/// The main frame of a page has the id of its target.
fn main_frame(tab: &BrowserTab) -> FrameId {
    FrameId::new(tab.target().inner().clone())
}

/// A page of the tab's history.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryEntry(i64);

/// The page at this offset in the tab's history, -1 for the previous one; if there is none, the
/// outcome that says so.
pub(super) async fn history_entry(
    tab: &BrowserTab,
    offset: i64,
) -> Result<Result<HistoryEntry, Outcome>, EnvironmentError> {
    let history = tab.call(GetNavigationHistoryParams {}, tab.deadlines.input, "the history").await?;
    let there =
        usize::try_from(history.current_index + offset).ok().and_then(|index| history.entries.get(index));
    Ok(match there {
        // The empty page that every tab begins with is not a page to go back to.
        Some(entry) if entry.url != EMPTY_PAGE => Ok(HistoryEntry(entry.id)),
        _ => {
            let way = if offset < 0 { "back" } else { "forward" };
            Err(Outcome::with_detail(OutcomeName::NoHistory, format!("there is no page to go {way} to")))
        }
    })
}

/// Navigates to a page of the tab's history.
pub(super) async fn navigate_to_entry(
    tab: &BrowserTab,
    entry: HistoryEntry,
) -> Result<Outcome, EnvironmentError> {
    let go = NavigateToHistoryEntryParams::new(entry.0);
    tab.call(go, tab.deadlines.navigation, "going through the history").await?;
    Ok(Outcome::named(OutcomeName::Ok))
}

pub(super) async fn reload(tab: &BrowserTab) -> Result<Outcome, EnvironmentError> {
    tab.call(ReloadParams::default(), tab.deadlines.navigation, "reloading").await?;
    Ok(Outcome::named(OutcomeName::Ok))
}

/// Watches a tab's navigation events to detect a new document. Created before the action that may
/// cause one.
pub(super) struct NavigationWatch {
    requests: EventStream<EventFrameRequestedNavigation>,
    starts: EventStream<EventFrameStartedNavigating>,
    documents: EventStream<EventFrameNavigated>,
    within: EventStream<EventNavigatedWithinDocument>,
    ends: EventStream<EventFrameStoppedLoading>,
    main: FrameId,
}

/// The result of a page's navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NavigationOutcome {
    /// No navigation to another document began.
    NotStarted,
    /// A new document replaced the page.
    NewDocument,
    /// The page stays, because nothing came: a download, or a response without content.
    SameDocument,
    /// The address did not answer in time; the navigation is cancelled.
    TimedOut,
}

impl NavigationWatch {
    pub(super) async fn listen(tab: &BrowserTab) -> Result<Self, EnvironmentError> {
        Ok(Self {
            requests: listen(&tab.page).await?,
            starts: listen(&tab.page).await?,
            documents: listen(&tab.page).await?,
            within: listen(&tab.page).await?,
            ends: listen(&tab.page).await?,
            main: main_frame(tab),
        })
    }

    /// Whether it watches this tab.
    pub(super) fn watches_tab(&self, tab: &BrowserTab) -> bool {
        self.main == main_frame(tab)
    }

    /// Waits for the result of a navigation that the page itself started. A link, a form or a
    /// script did that, so no command of this program completes with it; and until the navigation
    /// is over the page answers no command at all (Chromium 156, with either clock).
    pub(super) async fn wait_outcome(
        &mut self,
        tab: &BrowserTab,
    ) -> Result<NavigationOutcome, EnvironmentError> {
        if self.has_new_document() {
            return Ok(NavigationOutcome::NewDocument);
        }
        if !self.has_started(tab).await? {
            return Ok(NavigationOutcome::NotStarted);
        }
        let until = Instant::now() + tab.deadlines.navigation + FILTER_ANSWER_GRACE;
        let over = async {
            loop {
                tokio::select! {
                    biased;
                    Some(event) = self.documents.next() => if event.frame.parent_id.is_none() { return NavigationOutcome::NewDocument },
                    Some(event) = self.ends.next() => if event.frame_id == self.main { return NavigationOutcome::SameDocument },
                    else => return NavigationOutcome::SameDocument,
                }
            }
        };
        match timeout_at(until, over).await {
            Ok(NavigationOutcome::SameDocument) => {
                // The event may belong to an earlier navigation: an answer shows that none is in
                // progress any more.
                match tab.call(GetFrameTreeParams {}, tab.deadlines.navigation, "the page to be left").await {
                    Ok(_) if self.has_new_document() => Ok(NavigationOutcome::NewDocument),
                    Ok(_) => Ok(NavigationOutcome::SameDocument),
                    Err(EnvironmentError::PageHang { .. }) => self.give_up(tab).await,
                    Err(error) => Err(error),
                }
            }
            Ok(left) => Ok(left),
            Err(_) => self.give_up(tab).await,
        }
    }

    /// Keeps a page whose navigation goes to an address that does not answer.
    async fn give_up(&mut self, tab: &BrowserTab) -> Result<NavigationOutcome, EnvironmentError> {
        // The fault is the address's, not the page's.
        tab.clear_hung();
        stop_loading(tab).await?;
        end_library_wait(tab).await?;
        // The address may have answered at the last moment.
        Ok(if self.has_new_document() { NavigationOutcome::NewDocument } else { NavigationOutcome::TimedOut })
    }

    fn has_new_document(&mut self) -> bool {
        let mut came = false;
        while let Some(Some(event)) = self.documents.next().now_or_never() {
            came |= event.frame.parent_id.is_none();
        }
        came
    }

    /// Whether the page is being left.
    async fn has_started(&mut self, tab: &BrowserTab) -> Result<bool, EnvironmentError> {
        if self.has_start_event() {
            return Ok(true);
        }
        // The page's process answers this after the events that it sent before. A page that is
        // being left does not answer.
        let behind = tab.call(GetFrameTreeParams {}, tab.deadlines.input, "the page to answer");
        tokio::select! {
            biased;
            () = self.wait_start() => return Ok(true),
            answer = behind => drop(answer?),
        }
        if self.has_start_event() {
            return Ok(true);
        }
        let mut requested = false;
        while let Some(Some(event)) = self.requests.next().now_or_never() {
            requested |=
                event.frame_id == self.main && event.disposition == ClientNavigationDisposition::CurrentTab;
        }
        Ok(requested && timeout(NAVIGATION_START_DELAY, self.wait_start()).await.is_ok())
    }

    fn has_start_event(&mut self) -> bool {
        self.wait_start().now_or_never().is_some()
    }

    /// Resolves when a navigation of the main frame to another document starts.
    async fn wait_start(&mut self) {
        use FrameStartedNavigatingNavigationType::{HistorySameDocument, SameDocument};
        while let Some(event) = self.starts.next().await {
            let within = matches!(event.navigation_type, HistorySameDocument | SameDocument);
            if event.frame_id == self.main && !within {
                return;
            }
        }
        futures::future::pending::<()>().await;
    }

    /// Whether a new document replaced the current one: false once the navigation ended without
    /// one. The browser may acknowledge a navigation before it starts it; after `load_done`
    /// resolves, a navigation without an event gets `start_timeout` more time.
    pub(super) async fn wait_new_document(
        &mut self,
        load_done: impl Future<Output = ()>,
        start_timeout: Duration,
    ) -> bool {
        let mut load_done = pin!(load_done.fuse());
        let mut given_up = pin!(futures::future::pending::<()>().left_future());
        let mut load_is_done = false;
        let mut has_ended = false;
        while !(load_is_done && has_ended) {
            tokio::select! {
                biased;
                Some(event) = self.documents.next() => if event.frame.parent_id.is_none() { return true },
                Some(event) = self.within.next() => has_ended |= event.frame_id == self.main,
                Some(event) = self.ends.next() => has_ended |= event.frame_id == self.main,
                () = &mut load_done => {
                    load_is_done = true;
                    given_up.set(sleep(start_timeout).right_future());
                }
                () = &mut given_up => return false,
                else => return false,
            }
        }
        false
    }
}
