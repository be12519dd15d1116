//! How a tab comes to another page, and what is done about one that comes by half or not at all.
//!
//! The protocol library takes a page as reached when it is loaded, and keeps the next address waiting until then, for up to 30 s. A page elsewhere
//! may load for ever: one picture that never comes is enough. So a page that shows something is given as long as settling gives it, and is then
//! taken as it is; what the library still waits for is ended when the next address is asked for.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

use super::tab::{Tab, listen};
use super::{clock, script};
use crate::stage::StageError;

/// Time between two looks at a page that loads.
const LOADING_LOOK: Duration = Duration::from_secs(1);

/// A document of HTML without a body is not drawn, and a screenshot of it is never answered. One whose answer is cut off early stays so, loading
/// for ever (Chromium 156).
const SHOWS: &str = "document.contentType !== 'text/html' || document.body !== null";

/// Leaves an empty document that is loaded, and says so to the library, which does not hear that a page was stopped. The navigation within the
/// document, to where it is, is for where no other document came; it has to be heard first, since with it loading begins anew. What a document
/// that is read still waits for is given up: it would be waited for before the empty one counts as loaded. One that is being read cannot be opened
/// once its parser was stopped.
const EMPTY: [&str; 2] = [
    "(document.readyState === 'loading' || window.stop(), history.replaceState(history.state, ''))",
    "(document.open(), document.write('<body></body>'), document.close())",
];

/// Time in which the first of the two is heard. Not the page's time: that may stand still.
const EMPTY_HEARD: Duration = Duration::from_millis(50);

/// Page time in which an empty document is loaded; nothing else is left in it.
const EMPTY_MILLIS: u32 = 1000;

/// The filter answers for a host that does not, by the same deadline. Its answer is waited for: a document that comes while loading is stopped is never
/// drawn (Chromium 156: both of two pages, in one run of three).
const BEYOND_FILTER: Duration = Duration::from_secs(1);

/// Time in which a navigation that a page asked for begins: the browser hears of the wish a moment later, or never where it is refused.
const ASKED_TO_BEGUN: Duration = Duration::from_millis(100);

/// Whether the document is loaded, and a navigation within it, to where it is, for the library to hear.
const STAYS: &str = "document.readyState === 'complete' && (history.replaceState(history.state, ''), true)";

/// Whether the document is loaded.
const LOADED: &str = "document.readyState === 'complete'";

/// Goes to an address that is a place in the document that is there, and says whether it is one.
const GO_WITHIN: &str = "(url) => {
  const [here, there] = [new URL(location.href), new URL(url)];
  const within = there.href.includes('#');
  here.hash = there.hash = '';
  if (!within || here.href !== there.href) return false;
  location.href = url;
  return true;
}";

/// To an address. A page that is shown is waited for no longer than `patience`.
pub(super) async fn to(tab: &Tab, url: &str, patience: Duration) -> Result<Outcome, StageError> {
    if tab.take_unfinished() && !is_loaded(tab).await? {
        if goes_within_unfinished(tab, url).await? {
            tab.leave_unfinished();
            return Ok(Outcome::named(OutcomeName::Ok));
        }
        // This page is being left.
        empty(tab).await?;
    }
    let arrived = AtomicBool::new(false);
    let shown = listen::<EventFrameNavigated>(&tab.page).await?;
    let within = listen::<EventNavigatedWithinDocument>(&tab.page).await?;
    let asked = tab.call(NavigateParams::new(url), tab.deadlines.navigation, "the page to load");
    let answer = tokio::select! {
        answer = asked => answer,
        loading = loads_on(tab, shown, &arrived, patience) => {
            tab.leave_unfinished();
            return loading.map(|()| Outcome::told(OutcomeName::NotSettled, "the page was still loading"));
        }
        () = goes_within(tab, within, url) => {
            stays(tab).await?;
            return Ok(Outcome::named(OutcomeName::Ok));
        }
    };
    match answer {
        Ok(answer) => Ok(match answer.error_text {
            Some(_) if answer.is_download == Some(true) => Outcome::named(OutcomeName::Ok),
            Some(why) => Outcome::told(OutcomeName::NavigationFailed, why),
            None => Outcome::named(OutcomeName::Ok),
        }),
        // A server that does not answer is the address's doing, not the page's.
        Err(StageError::PageHang { .. }) => {
            tab.excuse();
            if !arrived.load(Ordering::Relaxed) {
                // It would come later, under the feet of whoever acts on the page that is there.
                stop_loading(tab).await?;
                stays(tab).await?;
            } else {
                tab.leave_unfinished();
                show_something(tab).await?;
            }
            Ok(Outcome::told(OutcomeName::NavigationFailed, "the address did not answer in time"))
        }
        Err(error) => Err(error),
    }
}

/// Resolves when the page that was navigated to has shown something for so long, and is not loaded yet; or, as an error, when it lets no
/// script run: it hangs while it loads.
async fn loads_on(
    tab: &Tab,
    mut shown: EventStream<EventFrameNavigated>,
    arrived: &AtomicBool,
    patience: Duration,
) -> Result<(), StageError> {
    let is_main = |event: &EventFrameNavigated| event.frame.parent_id.is_none();
    while let Some(event) = shown.next().await {
        if is_main(&event) {
            break;
        }
    }
    arrived.store(true, Ordering::Relaxed);
    let until = Instant::now() + patience;
    loop {
        sleep(LOADING_LOOK).await;
        if shows(tab).await? && Instant::now() >= until {
            return Ok(());
        }
    }
}

/// Whether a page that was left unfinished has been loaded since. The library has heard of it then, and the page may be the one that stays.
async fn is_loaded(tab: &Tab) -> Result<bool, StageError> {
    match script::apart(tab, LOADED, tab.deadlines.input, "the page to load").await {
        Ok(loaded) => Ok(loaded == Value::Bool(true)),
        // Between two documents.
        Err(StageError::Failed(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Goes to a place in a document that is still loading, without the library, which would wait until it is loaded. Whether the address is one.
async fn goes_within_unfinished(tab: &Tab, url: &str) -> Result<bool, StageError> {
    let go = format!("({GO_WITHIN})({})", Value::from(url));
    match script::apart(tab, &go, tab.deadlines.input, "the page to load").await {
        Ok(went) => Ok(went == Value::Bool(true)),
        Err(StageError::Failed(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Resolves when an address turned out to be a place in the document that is there.
async fn goes_within(tab: &Tab, mut within: EventStream<EventNavigatedWithinDocument>, url: &str) {
    let fragment = |url: &str| url.split_once('#').map(|(_, fragment)| fragment.to_owned());
    let (main, wanted) = (main_frame(tab), fragment(url));
    while let Some(event) = within.next().await {
        // A page may go to places of its own meanwhile.
        if wanted.is_some() && event.frame_id == main && fragment(&event.url) == wanted {
            return;
        }
    }
    futures::future::pending::<()>().await;
}

/// Ends the library's wait for another document where none comes: it hears of a navigation within this one, and once more that it is loaded. One
/// that is not loaded is left unfinished.
async fn stays(tab: &Tab) -> Result<(), StageError> {
    let what = "the page to stay";
    match script::apart(tab, STAYS, tab.deadlines.input, what).await {
        Ok(Value::Bool(true)) => {
            let tell = SetLifecycleEventsEnabledParams::new(true);
            tab.call(tell, tab.deadlines.input, what).await.map(drop)
        }
        Ok(_) | Err(StageError::Failed(_)) => {
            tab.leave_unfinished();
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Gives up what a page loads or is being left for. The browser process answers, whatever the page does.
pub(super) async fn stop_loading(tab: &Tab) -> Result<(), StageError> {
    tab.call(StopLoadingParams {}, tab.deadlines.input, "the page to stop loading").await.map(drop)
}

/// Waits until a page that did not settle has something to show, as long as for an address; then it is shown empty, as a person would see it.
pub(super) async fn until_it_shows(tab: &Tab) -> Result<(), StageError> {
    let until = Instant::now() + tab.deadlines.navigation;
    while !shows(tab).await? {
        if Instant::now() >= until {
            return empty(tab).await;
        }
        sleep(LOADING_LOOK).await;
    }
    Ok(())
}

/// Shows a document that came by half and is not drawn as an empty one.
pub(super) async fn show_something(tab: &Tab) -> Result<(), StageError> {
    if shows(tab).await? { Ok(()) } else { empty(tab).await }
}

/// The address that could not be loaded, where the browser shows its error page in its place.
pub(super) async fn unreached(tab: &Tab) -> Result<Option<String>, StageError> {
    let tree = tab.call(GetFrameTreeParams {}, tab.deadlines.input, "the page's frames").await?;
    Ok(tree.frame_tree.frame.unreachable_url)
}

/// Whether there is anything to show.
async fn shows(tab: &Tab) -> Result<bool, StageError> {
    match script::apart(tab, SHOWS, tab.deadlines.input, "the page to load").await {
        Ok(shows) => Ok(shows == Value::Bool(true)),
        // Between two documents.
        Err(StageError::Failed(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes an empty document of the one that is there.
async fn empty(tab: &Tab) -> Result<(), StageError> {
    for part in EMPTY {
        match script::apart(tab, part, tab.deadlines.input, "the page to stop loading").await {
            Ok(_) => sleep(EMPTY_HEARD).await,
            // A document that is no HTML forbids it: the library then ends its wait by its own deadline.
            Err(StageError::Failed(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    if tab.has_stopped_clock() { clock::advance(tab, EMPTY_MILLIS).await } else { Ok(()) }
}

/// The main frame of a page bears the id of its target.
fn main_frame(tab: &Tab) -> FrameId {
    FrameId::new(tab.target().inner().clone())
}

/// A page of the tab's history.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryEntry(i64);

/// The page so many places on in the tab's history, -1 for the one before; where there is none, the outcome that says so.
pub(super) async fn history_entry(
    tab: &Tab,
    places: i64,
) -> Result<Result<HistoryEntry, Outcome>, StageError> {
    let history = tab.call(GetNavigationHistoryParams {}, tab.deadlines.input, "the history").await?;
    let there =
        usize::try_from(history.current_index + places).ok().and_then(|index| history.entries.get(index));
    Ok(match there {
        // The empty page every tab begins with is no page to go back to.
        Some(entry) if entry.url != EMPTY_PAGE => Ok(HistoryEntry(entry.id)),
        _ => {
            let way = if places < 0 { "back" } else { "forward" };
            Err(Outcome::told(OutcomeName::NoHistory, format!("there is no page to go {way} to")))
        }
    })
}

/// To a page of the tab's history.
pub(super) async fn to_entry(tab: &Tab, entry: HistoryEntry) -> Result<Outcome, StageError> {
    let go = NavigateToHistoryEntryParams::new(entry.0);
    tab.call(go, tab.deadlines.navigation, "going through the history").await?;
    Ok(Outcome::named(OutcomeName::Ok))
}

/// Loads the page again.
pub(super) async fn again(tab: &Tab) -> Result<Outcome, StageError> {
    tab.call(ReloadParams::default(), tab.deadlines.navigation, "reloading").await?;
    Ok(Outcome::named(OutcomeName::Ok))
}

/// What a tab tells of navigations: whether another document comes of them. Made before what may cause one.
pub(super) struct Arrival {
    requests: EventStream<EventFrameRequestedNavigation>,
    starts: EventStream<EventFrameStartedNavigating>,
    documents: EventStream<EventFrameNavigated>,
    within: EventStream<EventNavigatedWithinDocument>,
    ends: EventStream<EventFrameStoppedLoading>,
    main: FrameId,
}

/// What came of a page that was being left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing began that would lead elsewhere.
    No,
    /// Another document is in its place.
    Came,
    /// It stays, because nothing came: a download, an answer without content.
    Stays,
    /// The address did not answer in time; what it still sends is given up.
    Late,
}

impl Arrival {
    pub async fn listen(tab: &Tab) -> Result<Self, StageError> {
        Ok(Self {
            requests: listen(&tab.page).await?,
            starts: listen(&tab.page).await?,
            documents: listen(&tab.page).await?,
            within: listen(&tab.page).await?,
            ends: listen(&tab.page).await?,
            main: main_frame(tab),
        })
    }

    /// Whether it tells of this tab.
    pub fn is_of(&self, tab: &Tab) -> bool {
        self.main == main_frame(tab)
    }

    /// Waits for what a page that is left by itself is left for. A link, a form or a script of its own did that, so no command of ours ends with it;
    /// and until it is over a page answers no command at all (Chromium 156, on either clock).
    pub async fn outcome(&mut self, tab: &Tab) -> Result<Left, StageError> {
        if self.has_come() {
            return Ok(Left::Came);
        }
        if !self.has_begun(tab).await? {
            return Ok(Left::No);
        }
        let until = Instant::now() + tab.deadlines.navigation + BEYOND_FILTER;
        let over = async {
            loop {
                tokio::select! {
                    biased;
                    Some(event) = self.documents.next() => if event.frame.parent_id.is_none() { return Left::Came },
                    Some(event) = self.ends.next() => if event.frame_id == self.main { return Left::Stays },
                    else => return Left::Stays,
                }
            }
        };
        match timeout_at(until, over).await {
            Ok(Left::Stays) => {
                // It may have been the end of something earlier: an answer says that nothing is under way any more.
                match tab.call(GetFrameTreeParams {}, tab.deadlines.navigation, "the page to be left").await {
                    Ok(_) if self.has_come() => Ok(Left::Came),
                    Ok(_) => Ok(Left::Stays),
                    Err(StageError::PageHang { .. }) => self.give_up(tab).await,
                    Err(error) => Err(error),
                }
            }
            Ok(left) => Ok(left),
            Err(_) => self.give_up(tab).await,
        }
    }

    /// Keeps a page that is being left for an address that does not answer.
    async fn give_up(&mut self, tab: &Tab) -> Result<Left, StageError> {
        // The address's doing, not the page's.
        tab.excuse();
        stop_loading(tab).await?;
        stays(tab).await?;
        // It may have answered at the last moment.
        Ok(if self.has_come() { Left::Came } else { Left::Late })
    }

    fn has_come(&mut self) -> bool {
        let mut came = false;
        while let Some(Some(event)) = self.documents.next().now_or_never() {
            came |= event.frame.parent_id.is_none();
        }
        came
    }

    /// Whether the page is being left.
    async fn has_begun(&mut self, tab: &Tab) -> Result<bool, StageError> {
        if self.was_told_of_a_start() {
            return Ok(true);
        }
        // The page's process answers this behind what it told the browser of before. One that is being left does not answer.
        let behind = tab.call(GetFrameTreeParams {}, tab.deadlines.input, "the page to answer");
        tokio::select! {
            biased;
            () = self.start() => return Ok(true),
            answer = behind => drop(answer?),
        }
        if self.was_told_of_a_start() {
            return Ok(true);
        }
        let mut asked = false;
        while let Some(Some(event)) = self.requests.next().now_or_never() {
            asked |=
                event.frame_id == self.main && event.disposition == ClientNavigationDisposition::CurrentTab;
        }
        Ok(asked && timeout(ASKED_TO_BEGUN, self.start()).await.is_ok())
    }

    fn was_told_of_a_start(&mut self) -> bool {
        self.start().now_or_never().is_some()
    }

    /// Resolves when the main frame's document begins to be left, and not only a place in it.
    async fn start(&mut self) {
        use FrameStartedNavigatingNavigationType::{HistorySameDocument, SameDocument};
        while let Some(event) = self.starts.next().await {
            let within = matches!(event.navigation_type, HistorySameDocument | SameDocument);
            if event.frame_id == self.main && !within {
                return;
            }
        }
        futures::future::pending::<()>().await;
    }

    /// Whether another document has come in the place of the one that was there: false once the navigation ended without. The browser may take a
    /// navigation as asked for before it begins, so one that was `asked` for and is not heard of has so much patience left.
    pub async fn is_another_document(&mut self, asked: impl Future<Output = ()>, patience: Duration) -> bool {
        let mut asked = pin!(asked.fuse());
        let mut given_up = pin!(futures::future::pending::<()>().left_future());
        let (mut is_asked, mut has_ended) = (false, false);
        while !(is_asked && has_ended) {
            tokio::select! {
                biased;
                Some(event) = self.documents.next() => if event.frame.parent_id.is_none() { return true },
                Some(event) = self.within.next() => has_ended |= event.frame_id == self.main,
                Some(event) = self.ends.next() => has_ended |= event.frame_id == self.main,
                () = &mut asked => {
                    is_asked = true;
                    given_up.set(sleep(patience).right_future());
                }
                () = &mut given_up => return false,
                else => return false,
            }
        }
        false
    }
}
