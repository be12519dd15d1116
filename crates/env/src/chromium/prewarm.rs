//! A browser context without a task: an empty tab behind a filter that blocks all traffic. Contexts
//! are created in advance, because creating one takes a hundred times as long as assigning one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chromiumoxide::cdp::browser_protocol::browser::{BrowserContextId, SetDownloadBehaviorBehavior};
use chromiumoxide::cdp::browser_protocol::target::{
    CreateBrowserContextParams, CreateTargetParams, DisposeBrowserContextParams,
};
use furrow_rollout::{EMPTY_PAGE, Size};
use tokio::sync::mpsc;

use super::browser::{BrowserLease, TabChange};
use super::command::BrowserKind;
use super::downloads::behaviour;
use super::link::within;
use super::tab::BrowserTab;
use crate::config::BrowserConfig;
use crate::egress::EgressFilter;
use crate::environment::EnvironmentError;

/// A context that no trajectory uses yet.
pub(super) struct PrewarmedContext {
    pub browser: BrowserLease,
    pub id: BrowserContextId,
    pub egress: EgressFilter,
    pub changes: mpsc::Receiver<TabChange>,
    pub tab: BrowserTab,
    pub kind: BrowserKind,
}

impl PrewarmedContext {
    /// Creates a context with one empty tab.
    pub(super) async fn create(
        running: BrowserLease,
        config: &BrowserConfig,
        kind: BrowserKind,
        egress: EgressFilter,
    ) -> Result<Self, EnvironmentError> {
        let deadline = config.deadlines.navigation;
        let mut create = CreateBrowserContextParams { dispose_on_detach: Some(true), ..Default::default() };
        create.proxy_server = Some(format!("http://{}", egress.address()));
        // Without this rule, requests to loopback addresses bypass the proxy.
        create.proxy_bypass_list = Some("<-loopback>".into());
        let id = running.link.call(create, deadline, "a browser context").await?.browser_context_id;
        let changes = running.register(&id);
        let deny = behaviour(SetDownloadBehaviorBehavior::Deny, &id);
        running.link.call(deny, config.deadlines.input, "denying downloads").await?;
        let tab = open_empty_tab(&running, &id, config, kind.viewport).await?;
        Ok(Self { browser: running, id, egress, changes, tab, kind })
    }

    /// Whether a trajectory can start in it.
    fn is_usable(&self) -> bool {
        self.tab.check().is_ok() && self.browser.accepts_contexts()
    }

    pub(super) async fn close(self) {
        let Self { browser: running, id, egress, tab, .. } = self;
        drop(tab);
        dispose_context(&running, id).await;
        egress.close().await;
    }
}

pub(super) async fn open_empty_tab(
    running: &BrowserLease,
    id: &BrowserContextId,
    config: &BrowserConfig,
    viewport: Size,
) -> Result<BrowserTab, EnvironmentError> {
    let mut create = CreateTargetParams::new(EMPTY_PAGE);
    create.browser_context_id = Some(id.clone());
    let link = &running.link;
    let new_page = link.browser.new_page(create);
    let page = within(config.deadlines.navigation, "a new page", &link.dead, new_page).await?;
    BrowserTab::adopt(page, link, viewport, config).await
}

/// Disposes of a context. A browser that fails to do so is killed as the last resort.
pub(super) async fn dispose_context(running: &BrowserLease, id: BrowserContextId) {
    running.forget(&id);
    let dispose = DisposeBrowserContextParams::new(id);
    let deadline = running.disposal_deadline();
    if let Err(EnvironmentError::PageHang { .. }) =
        running.link.call(dispose, deadline, "disposing of a context").await
    {
        running.kill("it could not dispose of a context");
    }
}

/// Contexts that wait for a trajectory, oldest first.
#[derive(Default)]
pub(super) struct WarmPool(Mutex<VecDeque<PrewarmedContext>>);

impl WarmPool {
    /// Takes a context of this kind, if one is usable and its browser has a free context for it.
    /// The second part contains the contexts that are no longer usable.
    pub(super) fn take(&self, kind: BrowserKind) -> (Option<PrewarmedContext>, Vec<PrewarmedContext>) {
        let mut contexts = self.lock();
        let (fit, unfit) = std::mem::take(&mut *contexts).into_iter().partition(PrewarmedContext::is_usable);
        *contexts = fit;
        let position =
            contexts.iter().position(|context| context.kind == kind && context.browser.has_free_context());
        let taken = position.and_then(|position| contexts.remove(position));
        (taken, Vec::from(unfit))
    }

    pub(super) fn put(&self, context: PrewarmedContext) {
        self.lock().push_back(context);
    }

    /// Number of contexts of this kind.
    pub(super) fn count(&self, kind: BrowserKind) -> usize {
        self.lock().iter().filter(|context| context.kind == kind).count()
    }

    /// Takes the oldest of another kind, so that a kind that tasks no longer need does not keep
    /// memory.
    pub(super) fn take_other(&self, kind: BrowserKind) -> Option<PrewarmedContext> {
        let mut contexts = self.lock();
        let position = contexts.iter().position(|context| context.kind != kind)?;
        contexts.remove(position)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn clear(&self) -> Vec<PrewarmedContext> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<PrewarmedContext>> {
        // Additions and removals cannot leave an inconsistent state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
