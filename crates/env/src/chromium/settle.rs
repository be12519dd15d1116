//! Waits until a page is quiet, based on its signals and not on a fixed pause: documents loaded,
//! requests answered, documents unchanged. Nested frames count: those of the page's origin like the
//! page itself. One of another origin runs in another process that is not asked; what it requests
//! passes the same filter, which must then have been quiet for a while.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::network::GetCookiesParams;
use tokio::time::Instant;

use super::script;
use super::tab::BrowserTab;
use crate::config::SettleRules;
use crate::egress::InFlight;
use crate::environment::EnvironmentError;

/// Whether the page became quiet before the cap.
pub(super) async fn settle(
    tab: &BrowserTab,
    in_flight: &mut InFlight,
    rules: SettleRules,
) -> Result<bool, EnvironmentError> {
    let cap = Instant::now() + rules.cap;
    loop {
        let left = cap.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        match is_quiet(tab, rules.quiet, left).await {
            Ok(PageState::Busy) => {}
            Ok(quiet) => {
                flush_requests(tab).await?;
                let pause = if quiet == PageState::QuietButForeign { rules.quiet } else { Duration::ZERO };
                if in_flight.is_quiet(pause, cap).await {
                    return Ok(true);
                }
            }
            // The document was replaced under the script by a navigation. Wait for the next one.
            Err(EnvironmentError::Failed(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return Err(error),
        }
    }
}

/// What a check inside the page found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageState {
    /// Still loading or changing at the cap.
    Busy,
    Quiet,
    /// Quiet, apart from frames of other origins.
    QuietButForeign,
}

/// One check inside the page: resolves when its documents are loaded and have not changed for a
/// while, or when the cap is reached.
async fn is_quiet(tab: &BrowserTab, quiet: Duration, cap: Duration) -> Result<PageState, EnvironmentError> {
    let expression = format!("({QUIET_SCRIPT})({}, {})", quiet.as_millis(), cap.as_millis());
    // The script ends by itself at the cap; a page that does not run scripts hangs.
    let answer =
        script::evaluate_isolated(tab, &expression, cap + tab.deadlines.input, "the page to settle").await?;
    Ok(match answer.as_str() {
        Some("quiet") => PageState::Quiet,
        Some("quiet but foreign") => PageState::QuietButForeign,
        _ => PageState::Busy,
    })
}

/// Waits until the page's pending requests have reached its filter. The command asks for cookies
/// that do not exist: it takes the path of a request, from this page through the browser to the
/// network process, and is answered after the requests before it.
async fn flush_requests(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    let ask = GetCookiesParams { urls: Some(vec!["http://nowhere.invalid/".into()]) };
    tab.call(ask, tab.deadlines.input, "the page to settle").await?;
    tokio::time::sleep(FILTER_NOTICE_DELAY).await;
    Ok(())
}

/// Time in which the filter's task notices an accepted connection.
const FILTER_NOTICE_DELAY: Duration = Duration::from_millis(2);

/// A loaded document gets one frame (17 ms) to begin a change; a changing one is quiet when it has
/// not changed for `quiet`. A frame's document that appears meanwhile is a change. A page with more
/// frames than that is watched in part.
const QUIET_SCRIPT: &str = r"(quiet, cap) => new Promise((done) => {
  const DOCUMENTS_MAX = 64;
  const began = performance.now();
  const known = new Set();
  let changed = began - quiet + 17;
  const watcher = new MutationObserver(() => { changed = performance.now(); });
  const end = (answer) => { watcher.disconnect(); done(answer); };
  const documents = () => {
    const all = [document];
    let foreign = false;
    for (let at = 0; at < all.length; at++)
      for (const frame of all[at].querySelectorAll('iframe, frame')) {
        if (all.length >= DOCUMENTS_MAX) break;
        if (frame.contentDocument) all.push(frame.contentDocument);
        else foreign = true;
      }
    return { all, foreign };
  };
  const look = (isFirst) => {
    const now = performance.now();
    const { all, foreign } = documents();
    const loaded = all.every((one) => one.readyState === 'complete');
    if (!loaded && isFirst) changed = began;
    for (const one of all) {
      if (known.has(one)) continue;
      known.add(one);
      watcher.observe(one, { subtree: true, childList: true, attributes: true, characterData: true });
      if (!isFirst) changed = now;
    }
    if (now - began >= cap) return end('busy');
    if (!isFirst && loaded && now - changed >= quiet) return end(foreign ? 'quiet but foreign' : 'quiet');
    setTimeout(look, isFirst ? 17 : Math.max(4, Math.min(quiet, cap - (now - began))));
  };
  look(true);
})";
