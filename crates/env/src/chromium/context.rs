//! The environment of one trajectory: its own browser context behind its own filter, and the pages
//! in it.
//!
//! `tabs.rs` keeps the pages, `page_time.rs` the clock of the one in front. `start.rs` loads the
//! start page, `actions.rs` executes actions (with what they leave down in `pressed.rs`),
//! `side_effects.rs` says what else they caused, and
//! `evidence.rs` gathers the final state, with what scorers look up (`findings.rs`) and what a site
//! reports of it in another page (`grading.rs`). `files.rs` is what the context may upload and
//! download.

mod actions;
mod evidence;
mod files;
mod findings;
mod grading;
mod page_time;
mod pressed;
mod side_effects;
mod start;
mod tabs;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use furrow_rollout::{
    Action, ActionHint, DownloadReport, Evidence, Observation, Outcome, OutcomeName, Task, TrajectoryAncestry,
};
use serde_json::Value;

use super::network::NetworkInterceptor;
use super::observe::{self, ObservationRequest, Observed};
use super::page_errors::{self, EVENTS_DELAY};
use super::prewarm::PrewarmedContext;
use super::{blocked, navigate, script, settle};
use crate::config::BrowserConfig;
use crate::egress::EgressFilter;
use crate::environment::{Environment, EnvironmentError, PageError};
use crate::hosts::AllowList;
use crate::secrets::TrajectorySecrets;

use actions::ActionExecutor;
use evidence::EvidenceSource;
pub(super) use files::ContextFiles;
pub(in crate::chromium) use findings::ContextChecks;
pub(super) use grading::GradingParts;
use grading::{GradedSite, StepActions};
use page_time::PageTime;
use side_effects::SideEffects;
use tabs::ContextTabs;

pub(super) struct BrowserContext {
    config: Arc<BrowserConfig>,
    grading: GradingParts,
    /// Set by the start page of a site that is graded.
    graded: Option<GradedSite>,
    /// What the policy did in this step.
    step: StepActions,
    task: Task,
    checks: ContextChecks,
    egress: EgressFilter,
    /// The interceptor in front of it, if an archive is recorded or replayed.
    network: Option<NetworkInterceptor>,
    tabs: ContextTabs,
    time: PageTime,
    actions: ActionExecutor,
    /// The policy has acted: from now on it is responsible for where its page goes.
    acted: bool,
    side_effects: SideEffects,
    /// Hosts whose refusal was reported as an error of the page.
    refused_hosts: HashSet<String>,
    secrets: TrajectorySecrets,
    /// Why the picture of the last observation was withheld, until an outcome says so.
    withheld: Option<&'static str>,
    of: TrajectoryAncestry,
}

/// The task of a context: the hosts of its list, what its scorer looks up, what its pages may take
/// and give.
pub(super) struct ContextTask {
    pub of: TrajectoryAncestry,
    pub task: Task,
    pub allow: AllowList,
    pub checks: ContextChecks,
    pub files: ContextFiles,
    pub secrets: TrajectorySecrets,
}

impl BrowserContext {
    /// Turns a prewarmed context into the environment of a task.
    pub(super) fn new(
        prewarmed: PrewarmedContext,
        config: Arc<BrowserConfig>,
        grading: GradingParts,
        attempted: ContextTask,
        network: Option<NetworkInterceptor>,
    ) -> Self {
        let ContextTask { of, task, allow, checks, files, secrets } = attempted;
        let PrewarmedContext { browser, id, egress, changes, tab, .. } = prewarmed;
        Self {
            egress,
            network,
            time: PageTime::new(task.clock, config.settle.cap),
            actions: ActionExecutor::new(&task, allow, &config, files, secrets.clone()),
            secrets,
            withheld: None,
            of: of.clone(),
            acted: false,
            side_effects: SideEffects::new(of.clone(), config.tabs_max),
            tabs: ContextTabs::new(browser, id, config.clone(), of, task.viewport, tab, changes),
            refused_hosts: HashSet::new(),
            config,
            grading,
            graded: None,
            step: StepActions::default(),
            checks,
            task,
        }
    }

    /// A site that refuses the browser ends the trajectory: the policy could not influence what
    /// follows.
    async fn check_not_blocked(&self) -> Result<(), EnvironmentError> {
        if !self.config.refusals.pages.applies_to(&self.task) {
            return Ok(());
        }
        match blocked::detect_refusal(self.tabs.active()?, self.config.refusals).await? {
            Some(why) => Err(EnvironmentError::Blocked(why)),
            None => Ok(()),
        }
    }

    /// Waits until the page is quiet, or until its time is over and it has something to show.
    async fn wait_until_quiet(&self) -> Result<bool, EnvironmentError> {
        let settled =
            settle::settle(self.tabs.active()?, &mut self.egress.in_flight(), self.config.settle).await?;
        if !settled {
            navigate::wait_for_content(self.tabs.active()?).await?;
        }
        Ok(settled)
    }

    async fn settle_page(&mut self) -> Result<bool, EnvironmentError> {
        if self.time.is_stopped() {
            return self.time.end_step(&self.tabs).await;
        }
        let settled = self.wait_until_quiet().await?;
        self.tabs.apply_changes().await?;
        Ok(settled)
    }
}

/// The outcome with a word on the picture that its action was chosen by.
fn with_withheld(outcome: Outcome, withheld: Option<&'static str>) -> Outcome {
    let Some(why) = withheld else { return outcome };
    let Outcome { name, detail } = outcome;
    let gap = if detail.is_empty() { "" } else { "; " };
    Outcome::with_detail(name, format!("{detail}{gap}the screenshot before it was withheld: {why}"))
}

#[async_trait]
impl Environment for BrowserContext {
    fn browser(&self) -> &str {
        &self.tabs.browser().name
    }

    async fn begin(&mut self) -> Result<Option<String>, EnvironmentError> {
        let settle_timeout = self.config.settle.cap;
        let outcome = start::load_in_turn(
            self.tabs.active()?,
            &self.grading.turns,
            &self.task.start_url,
            settle_timeout,
        )
        .await?;
        if outcome.name == OutcomeName::NavigationFailed {
            return Err(start::not_loaded(&outcome.detail, &self.task.start_url, &self.egress));
        }
        self.wait_until_quiet().await?;
        self.check_not_blocked().await?;
        start::check_page(&self.tabs, &self.task.start_url, &self.egress).await?;
        let goal = start::start_task(&self.tabs, &self.task).await?;
        self.graded = GradedSite::of_start_page(self.tabs.active()?, &self.task).await?;
        self.time.take_control(&self.tabs).await?;
        Ok(goal)
    }

    async fn observe(&mut self) -> Result<Observation, EnvironmentError> {
        self.tabs.apply_changes().await?;
        let others = self.tabs.in_background();
        let look = ObservationRequest {
            tab: self.tabs.active()?,
            index: self.tabs.active_index(),
            others: &others,
            spec: &self.task.observation,
            viewport: self.task.viewport,
            with_axtree: self.config.axtree,
            with_marks: self.config.marks,
            scrubber: self.secrets.scrubber(),
        };
        let Observed { observation, withheld } = observe::observe(&look).await?;
        self.withheld = withheld;
        if let Some(why) = withheld {
            tracing::warn!(trajectory_id = %self.of.trajectory_id, why, "a screenshot is withheld");
        }
        Ok(observation)
    }

    async fn hint(&mut self, goal: &str, step: u32) -> Result<Option<ActionHint>, EnvironmentError> {
        let Some(solve) = &self.task.hooks.solve else { return Ok(None) };
        let goal = Value::String(goal.to_owned());
        let seed = self.task.seed;
        let call = format!("(async (goal, seed, step) => {{ {solve}\n }})({goal}, {seed}, {step})");
        let hint = script::evaluate_isolated(
            self.tabs.active()?,
            &call,
            self.config.deadlines.screenshot,
            "the demonstration",
        )
        .await?;
        Ok(Some(ActionHint { json: hint.to_string() }))
    }

    async fn act(&mut self, action: &Action) -> Result<Outcome, EnvironmentError> {
        if self.actions.is_outside(action) {
            return Ok(Outcome::with_detail(OutcomeName::OutsidePage, "the point lies outside the page"));
        }
        self.acted = true;
        self.step = StepActions::of(action);
        self.time.begin_step(&self.tabs, action.parts().len()).await?;
        self.actions.execute(action, &mut self.tabs, &mut self.time).await
    }

    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, EnvironmentError> {
        let mut settled = self.settle_page().await?;
        self.check_not_blocked().await?;
        let chosen = self.actions.files.choose_only_file(self.tabs.active()?).await?;
        if chosen.is_some() {
            self.time.begin_step(&self.tabs, 1).await?;
            settled = self.settle_page().await?;
        }
        self.actions.files.wait_downloaded(self.config.settle.cap).await;
        let outcome = self.side_effects.report(&mut self.tabs, &mut self.actions.files, chosen, outcome);
        let outcome = match !settled && outcome.name == OutcomeName::Ok {
            true => Outcome::with_detail(OutcomeName::NotSettled, "the page was still changing"),
            false => outcome,
        };
        let outcome = self.actions.release_if_left(&self.tabs, outcome).await?;
        Ok(with_withheld(outcome, self.withheld.take()))
    }

    async fn probe(&mut self) -> Result<Option<String>, EnvironmentError> {
        // A graded site reports at the end alone, and no page of it can end a trajectory.
        if let Some(graded) = &mut self.graded {
            // Also a step without an action ends.
            let step = std::mem::take(&mut self.step);
            graded.end_step(self.tabs.active()?, step).await?;
            return Ok(None);
        }
        evidence::probe(&self.tabs, &self.task).await
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        let source = EvidenceSource {
            tabs: &self.tabs,
            task: &self.task,
            checks: &self.checks,
            egress: &self.egress,
            is_clock_stopped: self.time.is_stopped(),
            has_acted: self.acted,
            graded: self.graded.as_ref().map(|site| (site, &self.grading)),
            scrubber: self.secrets.scrubber(),
        };
        source.gather().await
    }

    async fn has_looping_script(&mut self) -> bool {
        self.acted && evidence::has_looping_script(&self.tabs, &self.egress).await
    }

    async fn downloads(&mut self) -> Option<DownloadReport> {
        self.actions.files.wait_downloaded(self.config.settle.cap).await;
        self.actions.files.download_report().await
    }

    fn unrecorded(&mut self) -> Vec<String> {
        self.network.as_ref().map_or_else(Vec::new, NetworkInterceptor::unrecorded)
    }

    async fn page_errors(&mut self) -> Vec<PageError> {
        if !self.config.page_errors {
            return Vec::new();
        }
        tokio::time::sleep(EVENTS_DELAY).await;
        let (mut errors, origins) = self.tabs.take_errors();
        let blocked = self.egress.blocked();
        page_errors::explain_refusals(&mut errors, &origins, &blocked, &mut self.refused_hosts);
        errors
    }

    fn death_cause(&self) -> Option<String> {
        self.tabs.browser().overrun().map(|overrun| overrun.to_string())
    }

    async fn close(self: Box<Self>) {
        let BrowserContext { tabs, network, egress, actions, .. } = *self;
        let browser = tabs.dispose().await;
        // The session's folder goes after everything that may write into it.
        drop(actions);
        if let Some(network) = network {
            network.close().await;
        }
        egress.close().await;
        // A browser that is due to be replaced ends with its last lease.
        drop(browser);
    }
}
