//! Waits until a page is quiet, by its signals and not by sleeping: document loaded, requests answered, document unchanged.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::network::GetCookiesParams;
use serde_json::Value;
use tokio::time::Instant;

use super::script;
use super::tab::Tab;
use crate::config::Settle;
use crate::egress::InFlight;
use crate::stage::StageError;

/// Whether the page became quiet before the cap.
pub(super) async fn settle(tab: &Tab, in_flight: &mut InFlight, rules: Settle) -> Result<bool, StageError> {
    let cap = Instant::now() + rules.cap;
    loop {
        let left = cap.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        match quiet(tab, rules.quiet, left).await {
            Ok(true) => {
                arrived(tab).await?;
                if in_flight.is_quiet(cap).await {
                    return Ok(true);
                }
            }
            Ok(false) => {}
            // The document went away under the script: a navigation. The next one is waited for.
            Err(StageError::Failed(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return Err(error),
        }
    }
}

/// One look from inside: resolves when the document is loaded and has not changed for a while, or when the cap is reached.
async fn quiet(tab: &Tab, quiet: Duration, cap: Duration) -> Result<bool, StageError> {
    let expression = format!("({QUIET})({}, {})", quiet.as_millis(), cap.as_millis());
    // The script ends by itself at the cap; a page that lets no script run hangs.
    let answer = script::apart(tab, &expression, cap + tab.deadlines.input, "the page to settle").await?;
    Ok(answer == Value::Bool(true))
}

/// Waits until what the page has asked for has reached its filter. The question is for cookies that nobody has: it takes the way of a request, from
/// this page through the browser to the process that speaks with the network, and is answered behind the requests before it.
async fn arrived(tab: &Tab) -> Result<(), StageError> {
    let ask = GetCookiesParams { urls: Some(vec!["http://nowhere.invalid/".into()]) };
    tab.call(ask, tab.deadlines.input, "the page to settle").await?;
    tokio::time::sleep(FROM_SOCKET_TO_FILTER).await;
    Ok(())
}

/// Time in which the filter's task takes notice of a connection that is there.
const FROM_SOCKET_TO_FILTER: Duration = Duration::from_millis(2);

/// A document that is loaded already gets one frame (17 ms) to begin changing; one that changes is quiet when it stopped for `quiet`.
const QUIET: &str = r"(quiet, cap) => new Promise((done) => {
  const began = performance.now();
  let changed = document.readyState === 'complete' ? began - quiet + 17 : began;
  const watcher = new MutationObserver(() => { changed = performance.now(); });
  watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  const end = (answer) => { watcher.disconnect(); done(answer); };
  const look = () => {
    const now = performance.now();
    if (now - began >= cap) return end(false);
    if (document.readyState === 'complete' && now - changed >= quiet) return end(true);
    setTimeout(look, Math.max(4, Math.min(quiet, cap - (now - began))));
  };
  setTimeout(look, 17);
})";
