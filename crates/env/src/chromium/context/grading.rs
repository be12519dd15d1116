//! Grading: a site reports on its final state in a page that no policy acted in.
//!
//! A site whose pages define `furrow.grade` (those of `envs/web` get it from their kit) is asked
//! once, at the end, in a context of its own: with its storage as the task began and as it ended.
//! What a policy made of its pages cannot change the report, and the page in front is not asked. An
//! isolated world reads the storage, so that scripts of the page cannot pretend another one.
//!
//! Cost: one context and one start page for each trajectory.

use std::sync::Arc;
use std::time::Duration;

use furrow_rollout::{Action, Task, VoidState, mark_graded};
use http::Uri;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::start;
use super::tabs::ContextTabs;
use crate::chromium::browser::BrowserLease;
use crate::chromium::navigate;
use crate::chromium::prewarm::PrewarmedContext;
use crate::chromium::script::{self, ScriptFailure};
use crate::chromium::tab::BrowserTab;
use crate::config::BrowserConfig;
use crate::egress::{EgressFilter, EgressLimits};
use crate::environment::EnvironmentError;
use crate::hosts::AllowList;
use crate::sites::{STORAGE_PAGE, SiteServer};

/// Most bytes of a site's storage at the end. A visitor's carts, lists and notes have some
/// thousands; the scorer reads 64 KiB of report.
const STORAGE_BYTES_MAX: usize = 40 << 10;

/// Most bytes of its storage as a task begins.
const BEGUN_BYTES_MAX: usize = 256 << 10;

/// Most bytes of the site's report.
const REPORT_BYTES_MAX: usize = 60 << 10;

/// Whether the start page's site is graded.
const HAS_GRADE: &str = "typeof window.furrow?.grade === 'function'";

/// The storage of the origin, as an object of texts.
const READ_STORAGE: &str = "({ ...localStorage })";

/// How many entries the site's journal has, a list that its pages only add to; null on another
/// page.
const COUNT_ENTRIES: &str = "(origin) => {
  if (location.origin !== origin) return null;
  try { return JSON.parse(localStorage.getItem('journal') ?? '[]').length ?? null } catch { return null }
}";

/// Most steps of which the counts are kept.
const STEPS_MAX: usize = 2_000;

/// Asks the site; its library is there when the page's modules have run.
const GRADE: &str = "(async (begun, ended, steps) => {
  for (let wait = 0; wait < 40 && !window.furrow?.grade; wait++) await new Promise((resume) => setTimeout(resume, 50));
  return furrow.grade(begun, ended, steps);
})";

/// What a page for grading is made of.
pub(in crate::chromium) struct GradingParts {
    pub config: Arc<BrowserConfig>,
    pub sites: Arc<SiteServer>,
    pub limits: EgressLimits,
    /// Hosts that the trajectory's own pages may reach.
    pub reach: AllowList,
    /// Limits how many start pages load at once.
    pub turns: Arc<Semaphore>,
}

/// What is known of a site's storage before the end: how the task began, before the policy acted,
/// and how its journal grew.
pub(super) struct GradedSite {
    begun: Value,
    origin: String,
    /// For each step: its actions, how many of them are input to the page, and the entries of the
    /// journal after it.
    steps: Vec<Value>,
}

/// What the policy did in a step, as far as it bounds what the step can have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepActions {
    all: usize,
    /// Those that press or type something. Others change a state only by showing a page.
    inputs: usize,
}

impl StepActions {
    pub(super) fn of(action: &Action) -> Self {
        let is_input = |part: &&Action| {
            matches!(
                part,
                Action::Click { .. }
                    | Action::Write { .. }
                    | Action::PressKey { .. }
                    | Action::HoldKey { .. }
                    | Action::KeyDown { .. }
                    | Action::KeyUp { .. }
                    | Action::Drag { .. }
                    | Action::MouseDown { .. }
                    | Action::MouseUp { .. }
                    | Action::Upload { .. }
            )
        };
        let parts = action.parts();
        Self { all: parts.len(), inputs: parts.iter().filter(is_input).count() }
    }
}

impl GradedSite {
    /// Reads it from the start page; `None` if the site's pages report on themselves. A page that
    /// starts no task is not a suite's and is not asked.
    pub(super) async fn of_start_page(
        tab: &BrowserTab,
        task: &Task,
    ) -> Result<Option<Self>, EnvironmentError> {
        if task.hooks.start.is_none() {
            return Ok(None);
        }
        let deadline = tab.deadlines.input;
        let is_graded = script::evaluate_in_page(tab, HAS_GRADE, deadline, "whether the site grades").await?;
        if is_graded != Value::Bool(true) {
            return Ok(None);
        }
        let what = "the storage as the task begins";
        let world = script::isolated_world(tab, deadline, what).await?;
        let begun = script::evaluate(tab, READ_STORAGE, Some(&world), deadline, what, BEGUN_BYTES_MAX);
        let begun = begun.await?;
        Ok(Some(Self { begun, origin: origin_of(&task.start_url)?, steps: Vec::new() }))
    }

    /// Counts the journal after a step.
    pub(super) async fn end_step(
        &mut self,
        tab: &BrowserTab,
        step: StepActions,
    ) -> Result<(), EnvironmentError> {
        let origin = Value::String(self.origin.clone());
        let count = format!("({COUNT_ENTRIES})({origin})");
        let entries =
            script::evaluate_isolated(tab, &count, tab.deadlines.input, "the site's journal").await?;
        if self.steps.len() < STEPS_MAX {
            let StepActions { all, inputs } = step;
            self.steps.push(json!({ "actions": all, "inputs": inputs, "entries": entries }));
        }
        Ok(())
    }
}

/// The site's report on the state that a trajectory ended in.
pub(super) async fn grade(
    site: &GradedSite,
    tabs: &ContextTabs,
    task: &Task,
    parts: &GradingParts,
) -> Result<String, EnvironmentError> {
    let Some(ended) = read_ended(tabs.active()?, &site.origin, parts.config.settle.cap).await? else {
        return Ok(mark_graded(VoidState::Oversized.report()));
    };
    let running = tabs.browser().process();
    let network = running.process.network.clone();
    let opened = EgressFilter::open_blocked(parts.sites.clone(), parts.limits.clone(), network).await;
    let egress = opened.map_err(|why| EnvironmentError::Failed(why.to_string()))?;
    let kind = running.kind;
    let lease = BrowserLease::for_prewarm(running);
    let context = PrewarmedContext::create(lease, &parts.config, kind, egress).await?;
    context.egress.allow_task(parts.reach.clone(), None, parts.config.secrets.clone());
    let GradedSite { begun, steps, .. } = site;
    let call = format!("{GRADE}({begun}, {ended}, {})", Value::Array(steps.clone()));
    let start_url = task.start_url.clone();
    let turns = parts.turns.clone();
    let settle_timeout = parts.config.settle.cap;
    // A task of its own closes the context even if the caller stops waiting. Each of its calls has
    // a deadline.
    let grading = tokio::spawn(async move {
        let report = ask(&context.tab, &start_url, &turns, settle_timeout, &call).await;
        context.close().await;
        report
    });
    let report = grading.await.map_err(|why| EnvironmentError::Failed(why.to_string()))?;
    report.map(mark_graded)
}

/// The storage of the start page's origin; `None` if it has more bytes than a state may have.
async fn read_ended(
    tab: &BrowserTab,
    origin: &str,
    settle_timeout: Duration,
) -> Result<Option<Value>, EnvironmentError> {
    let what = "the storage at the end";
    let deadline = tab.deadlines.input;
    let shown = script::evaluate_isolated(tab, "location.origin", deadline, what).await;
    if shown.ok().as_ref().and_then(Value::as_str) != Some(origin) {
        navigate::navigate_to(tab, &format!("{origin}{STORAGE_PAGE}"), settle_timeout).await?;
    }
    let world = script::isolated_world(tab, deadline, what).await?;
    let read = script::try_evaluate(tab, READ_STORAGE, Some(&world), deadline, what, STORAGE_BYTES_MAX);
    match read.await? {
        Ok(ended) => Ok(Some(ended)),
        Err(ScriptFailure::TooLarge(_)) => Ok(None),
        Err(ScriptFailure::Threw(why)) => Err(EnvironmentError::Failed(format!("{what}: {why}"))),
    }
}

fn origin_of(start_url: &str) -> Result<String, EnvironmentError> {
    let parsed = start_url.parse::<Uri>().ok();
    let origin = parsed.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?.as_str())));
    let (scheme, authority) = origin
        .ok_or_else(|| EnvironmentError::Failed(format!("{start_url:?} has no origin to read storage of")))?;
    // As a page's `location.origin` writes it.
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let authority = authority.strip_suffix(usual).unwrap_or(authority).to_ascii_lowercase();
    Ok(format!("{scheme}://{authority}"))
}

async fn ask(
    tab: &BrowserTab,
    start_url: &str,
    turns: &Semaphore,
    settle_timeout: Duration,
    call: &str,
) -> Result<Map<String, Value>, EnvironmentError> {
    let what = "the site's report on its final state";
    start::load_in_turn(tab, turns, start_url, settle_timeout).await?;
    let answer = script::try_evaluate(tab, call, None, tab.deadlines.navigation, what, REPORT_BYTES_MAX);
    match answer.await? {
        Ok(Value::Object(report)) => Ok(report),
        Ok(other) => {
            let found = json!(other).to_string().chars().take(80).collect::<String>();
            Err(EnvironmentError::Failed(format!("{what} is no object: {found}")))
        }
        Err(ScriptFailure::TooLarge(_)) => Ok(VoidState::Oversized.report()),
        Err(ScriptFailure::Threw(why)) => Err(EnvironmentError::Failed(format!("{what}: {why}"))),
    }
}
