//! How a tab comes to another page, and what is done about one that comes by half or not at all.
//!
//! The protocol library takes a page as reached when it is loaded, and keeps the next address waiting until then, for up to 30 s. A page elsewhere
//! may load for ever: one picture that never comes is enough. So a page that shows something is given as long as settling gives it, and is then
//! taken as it is; what the library still waits for is ended when the next address is asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::page::{
    EventFrameNavigated, GetFrameTreeParams, GetNavigationHistoryParams, NavigateParams,
    NavigateToHistoryEntryParams, ReloadParams, StopLoadingParams,
};
use chromiumoxide::listeners::EventStream;
use furrow_rollout::{EMPTY_PAGE, Outcome, OutcomeName};
use futures::StreamExt;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::script;
use super::tab::{Tab, listen};
use crate::stage::StageError;

/// Time between two looks at a page that loads.
const LOADING_LOOK: Duration = Duration::from_secs(1);

/// A document of HTML without a body is not drawn, and a screenshot of it is never answered. One whose answer is cut off early stays so, loading
/// for ever (Chromium 156).
const SHOWS: &str = "document.contentType !== 'text/html' || document.body !== null";

/// Leaves an empty document that is loaded, and says so to the library, which does not hear that a page was stopped. The navigation within the
/// document, to where it is, is for where no other document came; it has to be heard first, since with it loading begins anew.
const EMPTY: &str = "(async () => {
  history.replaceState(history.state, '');
  await new Promise((done) => setTimeout(done, 50));
  document.open();
  document.write('<body></body>');
  document.close();
})()";

/// To an address. A page that is shown is waited for no longer than `patience`.
pub(super) async fn to(tab: &Tab, url: &str, patience: Duration) -> Result<Outcome, StageError> {
    if tab.take_unfinished() {
        // This page is being left.
        empty(tab).await?;
    }
    let arrived = AtomicBool::new(false);
    let shown = listen::<EventFrameNavigated>(&tab.page).await?;
    let asked = tab.call(NavigateParams::new(url), tab.deadlines.navigation, "the page to load");
    let answer = tokio::select! {
        answer = asked => answer,
        loading = loads_on(tab, shown, &arrived, patience) => {
            tab.leave_unfinished();
            return loading.map(|()| Outcome::told(OutcomeName::NotSettled, "the page was still loading"));
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
            tab.leave_unfinished();
            if !arrived.load(Ordering::Relaxed) {
                // It would come later, under the feet of whoever acts on the page that is there.
                let what = "the page to stop loading";
                tab.call(StopLoadingParams {}, tab.deadlines.input, what).await?;
            } else if !shows(tab).await? {
                empty(tab).await?;
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
    match script::apart(tab, EMPTY, tab.deadlines.input, "the page to stop loading").await {
        // A document that is no HTML forbids it: the library then ends its wait by its own deadline.
        Ok(_) | Err(StageError::Failed(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// To the page so many places on in the tab's history, -1 for the one before.
pub(super) async fn in_history(tab: &Tab, places: i64) -> Result<Outcome, StageError> {
    let history = tab.call(GetNavigationHistoryParams {}, tab.deadlines.input, "the history").await?;
    let there =
        usize::try_from(history.current_index + places).ok().and_then(|index| history.entries.get(index));
    match there {
        // The empty page every tab begins with is no page to go back to.
        Some(entry) if entry.url != EMPTY_PAGE => {
            let go = NavigateToHistoryEntryParams::new(entry.id);
            tab.call(go, tab.deadlines.navigation, "going through the history").await?;
            Ok(Outcome::named(OutcomeName::Ok))
        }
        _ => {
            let way = if places < 0 { "back" } else { "forward" };
            Ok(Outcome::told(OutcomeName::NoHistory, format!("there is no page to go {way} to")))
        }
    }
}

/// Loads the page again.
pub(super) async fn again(tab: &Tab) -> Result<Outcome, StageError> {
    tab.call(ReloadParams::default(), tab.deadlines.navigation, "reloading").await?;
    Ok(Outcome::named(OutcomeName::Ok))
}
