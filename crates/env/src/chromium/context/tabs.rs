//! The tabs of a context: which are open, and which one is in front.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::TargetId;
use furrow_rollout::{Outcome, OutcomeName, Size, TrajectoryAncestry};
use furrow_telemetry::PopupClosed;
use tokio::sync::mpsc;

use crate::chromium::browser::{BrowserLease, TabChange};
use crate::chromium::prewarm::{dispose_context, open_empty_tab};
use crate::chromium::tab::BrowserTab;
use crate::config::BrowserConfig;
use crate::environment::{EnvironmentError, PageError};

pub(super) struct ContextTabs {
    browser: BrowserLease,
    id: BrowserContextId,
    config: Arc<BrowserConfig>,
    of: TrajectoryAncestry,
    viewport: Size,
    tabs: Vec<BrowserTab>,
    active: usize,
    changes: mpsc::Receiver<TabChange>,
    popups_closed: u32,
}

impl ContextTabs {
    /// The tabs of a context that has one so far.
    pub(super) fn new(
        browser: BrowserLease,
        id: BrowserContextId,
        config: Arc<BrowserConfig>,
        of: TrajectoryAncestry,
        viewport: Size,
        tab: BrowserTab,
        changes: mpsc::Receiver<TabChange>,
    ) -> Self {
        Self { browser, id, config, of, viewport, tabs: vec![tab], active: 0, changes, popups_closed: 0 }
    }

    pub(super) fn browser(&self) -> &BrowserLease {
        &self.browser
    }

    /// The tab in front.
    pub(super) fn active(&self) -> Result<&BrowserTab, EnvironmentError> {
        let tab = self
            .tabs
            .get(self.active)
            .ok_or_else(|| EnvironmentError::Failed("the context has no page".into()))?;
        tab.check().map(|()| tab)
    }

    /// An open tab, unless it crashed.
    pub(super) fn find(&self, target: &TargetId) -> Option<&BrowserTab> {
        self.tabs.iter().find(|tab| tab.target() == target && !tab.has_crashed())
    }

    pub(super) fn active_index(&self) -> usize {
        self.active
    }

    /// The other tabs with their indices, crashed ones left out.
    pub(super) fn in_background(&self) -> Vec<(usize, &BrowserTab)> {
        self.tabs
            .iter()
            .enumerate()
            .filter(|(index, tab)| *index != self.active && !tab.has_crashed())
            .collect()
    }

    pub(super) fn count(&self) -> usize {
        self.tabs.len()
    }

    /// How often an event happened in any tab, and the text of one of the last times.
    pub(super) fn sum(&self, so_far: impl Fn(&BrowserTab) -> (u32, String)) -> (u32, String) {
        self.tabs.iter().map(so_far).fold((0, String::new()), |all, one| {
            (all.0 + one.0, if one.1.is_empty() { all.1 } else { one.1 })
        })
    }

    /// The errors of all tabs since the last call, and where their files were requested.
    pub(super) fn take_errors(&self) -> (Vec<PageError>, BTreeMap<String, String>) {
        let mut errors = Vec::new();
        let mut origins = BTreeMap::new();
        for log in self.tabs.iter().filter_map(BrowserTab::errors) {
            log.take(&mut errors, &mut origins);
        }
        (errors, origins)
    }

    /// How many tabs above the limit were closed since the last call.
    pub(super) fn take_popups_closed(&mut self) -> u32 {
        std::mem::take(&mut self.popups_closed)
    }

    /// Opens an empty tab and brings it to the front.
    pub(super) async fn add(&mut self) -> Result<(), EnvironmentError> {
        let tab = open_empty_tab(&self.browser, &self.id, &self.config, self.viewport).await?;
        self.tabs.push(tab);
        self.active = self.tabs.len() - 1;
        Ok(())
    }

    pub(super) fn select(&mut self, index: u32) -> Outcome {
        let position = index as usize;
        if position >= self.tabs.len() {
            let why = format!("there is no tab {index}; there are {}", self.tabs.len());
            return Outcome::with_detail(OutcomeName::NoSuchTab, why);
        }
        self.active = position;
        Outcome::named(OutcomeName::Ok)
    }

    /// Processes tab changes: a new tab comes to the front, as for a person.
    pub(super) async fn apply_changes(&mut self) -> Result<(), EnvironmentError> {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                TabChange::Opened(target) if self.tabs.iter().any(|tab| *tab.target() == target) => {}
                TabChange::Opened(target) => self.adopt(target).await?,
                TabChange::Refused => {
                    self.popups_closed += 1;
                    PopupClosed { of: &self.of }.emit();
                }
                TabChange::Closed(target) => self.remove(&target),
            }
        }
        if self.tabs.is_empty() {
            self.add().await?;
        }
        Ok(())
    }

    async fn adopt(&mut self, target: TargetId) -> Result<(), EnvironmentError> {
        let link = &self.browser.link;
        // The protocol library attaches to a new page by itself, shortly after the page is
        // announced.
        for _ in 0..40 {
            if let Ok(page) = link.browser.get_page(target.clone()).await {
                let tab = BrowserTab::adopt(page, link, self.viewport, &self.config).await?;
                self.tabs.push(tab);
                self.active = self.tabs.len() - 1;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    fn remove(&mut self, target: &TargetId) {
        let Some(gone) = self.tabs.iter().position(|tab| tab.target() == target) else { return };
        self.tabs.remove(gone);
        if self.active >= gone && self.active > 0 {
            self.active -= 1;
        }
    }

    /// Disposes of the tabs and their context, and returns the lease of the browser, which may end
    /// with its last one.
    pub(super) async fn dispose(self) -> BrowserLease {
        let Self { browser, id, tabs, .. } = self;
        drop(tabs);
        dispose_context(&browser, id).await;
        browser
    }
}
