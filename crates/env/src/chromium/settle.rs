//! Waits until a page is quiet, by its signals and not by sleeping: document loaded, requests answered, document unchanged.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::script;
use super::tab::Tab;
use crate::config::Settle;
use crate::stage::StageError;

/// Whether the page became quiet before the cap.
pub(super) async fn settle(tab: &Tab, rules: Settle) -> Result<bool, StageError> {
    let cap = Instant::now() + rules.cap;
    loop {
        let left = cap.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        match quiet(tab, rules.quiet, left).await {
            Ok(true) if answered(tab, cap).await => return Ok(true),
            Ok(_) => {}
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

/// Whether no request is in flight. If one is, waits for its answer or the cap: the document is looked at again after it.
async fn answered(tab: &Tab, cap: Instant) -> bool {
    let mut in_flight = tab.in_flight();
    if *in_flight.borrow() == 0 {
        return true;
    }
    // Late or not, the caller looks again and sees for itself.
    tokio::time::timeout_at(cap, in_flight.wait_for(|count| *count == 0)).await.ok();
    false
}

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
