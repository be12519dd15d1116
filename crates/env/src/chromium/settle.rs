//! Waits until a page is quiet, based on its signals and not on a fixed pause: document loaded,
//! requests answered, document unchanged.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::network::GetCookiesParams;
use serde_json::Value;
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
            Ok(true) => {
                flush_requests(tab).await?;
                if in_flight.is_quiet(cap).await {
                    return Ok(true);
                }
            }
            Ok(false) => {}
            // The document was replaced under the script by a navigation. Wait for the next one.
            Err(EnvironmentError::Failed(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return Err(error),
        }
    }
}

/// One check inside the page: resolves when the document is loaded and has not changed for a while,
/// or when the cap is reached.
async fn is_quiet(tab: &BrowserTab, quiet: Duration, cap: Duration) -> Result<bool, EnvironmentError> {
    let expression = format!("({QUIET_SCRIPT})({}, {})", quiet.as_millis(), cap.as_millis());
    // The script ends by itself at the cap; a page that does not run scripts hangs.
    let answer =
        script::evaluate_isolated(tab, &expression, cap + tab.deadlines.input, "the page to settle").await?;
    Ok(answer == Value::Bool(true))
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
/// not changed for `quiet`.
const QUIET_SCRIPT: &str = r"(quiet, cap) => new Promise((done) => {
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
