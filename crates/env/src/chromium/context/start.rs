//! The start page: it loads when its turn comes, must be there, and starts the task.

use std::pin::pin;
use std::time::Duration;

use furrow_rollout::{Outcome, Task};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::tabs::ContextTabs;
use crate::chromium::tab::BrowserTab;
use crate::chromium::{navigate, script};
use crate::egress::EgressFilter;
use crate::environment::EnvironmentError;

/// A start page that takes longer gives up its turn.
const START_PAGE_TURN: Duration = Duration::from_secs(5);

/// Loads the start page when its turn comes. A slow one gives up its turn: it uses little of this
/// machine while it waits.
pub(super) async fn load_in_turn(
    tab: &BrowserTab,
    turns: &Semaphore,
    start_url: &str,
    settle_timeout: Duration,
) -> Result<Outcome, EnvironmentError> {
    let turn = turns.acquire().await.map_err(|closed| EnvironmentError::Failed(closed.to_string()))?;
    let mut loading = pin!(navigate::navigate_to(tab, start_url, settle_timeout));
    if let Ok(outcome) = timeout(START_PAGE_TURN, &mut loading).await {
        return outcome;
    }
    drop(turn);
    loading.await
}

/// The error of a start page that did not load: what happened, and which server did not answer.
pub(super) fn not_loaded(what: &str, start_url: &str, egress: &EgressFilter) -> EnvironmentError {
    let failure = egress.connect_failure(start_url).map_or_else(String::new, |why| format!("; {why}"));
    EnvironmentError::Failed(format!("the start page did not load: {what}{failure}"))
}

/// A missing or refused start page is an error of the suite: a policy must not earn a reward for
/// what it could not do.
pub(super) async fn check_page(
    tabs: &ContextTabs,
    start_url: &str,
    egress: &EgressFilter,
) -> Result<(), EnvironmentError> {
    let tab = tabs.active()?;
    let status = "performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0";
    let deadline = tab.deadlines.screenshot;
    let status = script::evaluate_isolated(tab, status, deadline, "the start page's status").await?;
    match status.as_u64() {
        Some(200..=299) => Ok(()),
        _ => {
            let blocked = egress.blocked();
            Err(not_loaded(&format!("HTTP status {status}; {blocked}"), start_url, egress))
        }
    }
}

/// Starts the task in its page. Returns the goal if the page generated one.
pub(super) async fn start_task(tabs: &ContextTabs, task: &Task) -> Result<Option<String>, EnvironmentError> {
    let Some(start) = task.hooks.start_with(task.seed) else { return Ok(None) };
    let tab = tabs.active()?;
    let returned =
        script::evaluate_in_page(tab, &start, tab.deadlines.navigation, "the task to start").await?;
    Ok(returned.as_str().map(str::to_owned))
}
