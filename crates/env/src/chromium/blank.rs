//! A browser context before it has a task: an empty tab behind a filter that lets nothing out. Made ahead of need, because making one takes a
//! hundred times as long as taking one over.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chromiumoxide::cdp::browser_protocol::browser::{
    BrowserContextId, SetDownloadBehaviorBehavior, SetDownloadBehaviorParams,
};
use chromiumoxide::cdp::browser_protocol::target::{
    CreateBrowserContextParams, CreateTargetParams, DisposeBrowserContextParams,
};
use furrow_rollout::{EMPTY_PAGE, Size};
use tokio::sync::mpsc;

use super::context::Change;
use super::link::within;
use super::pool::Seat;
use super::process::BrowserKind;
use super::tab::Tab;
use crate::config::BrowserConfig;
use crate::egress::Egress;
use crate::stage::StageError;

/// A context that nobody acts on yet.
pub(super) struct Blank {
    pub running: Seat,
    pub id: BrowserContextId,
    pub egress: Egress,
    pub changes: mpsc::Receiver<Change>,
    pub tab: Tab,
    pub kind: BrowserKind,
}

impl Blank {
    /// Makes one with one empty tab.
    pub async fn make(
        running: Seat,
        config: &BrowserConfig,
        kind: BrowserKind,
        egress: Egress,
    ) -> Result<Self, StageError> {
        let deadline = config.deadlines.navigation;
        let mut create = CreateBrowserContextParams { dispose_on_detach: Some(true), ..Default::default() };
        create.proxy_server = Some(format!("http://{}", egress.address()));
        // Without this rule loopback addresses go round the proxy.
        create.proxy_bypass_list = Some("<-loopback>".into());
        let id = running.link.call(create, deadline, "a browser context").await?.browser_context_id;
        let changes = running.register(&id);
        let mut deny = SetDownloadBehaviorParams::new(SetDownloadBehaviorBehavior::Deny);
        deny.browser_context_id = Some(id.clone());
        running.link.call(deny, config.deadlines.input, "denying downloads").await?;
        let tab = empty_tab(&running, &id, config, kind.viewport).await?;
        Ok(Self { running, id, egress, changes, tab, kind })
    }

    /// Whether a trajectory can begin in it.
    fn is_fit(&self) -> bool {
        self.tab.check().is_ok() && self.running.takes_more()
    }

    /// Throws it away.
    pub async fn close(self) {
        let Self { running, id, egress, tab, .. } = self;
        drop(tab);
        throw_away(&running, id).await;
        egress.close().await;
    }
}

/// Opens an empty tab in a context.
pub(super) async fn empty_tab(
    running: &Seat,
    id: &BrowserContextId,
    config: &BrowserConfig,
    viewport: Size,
) -> Result<Tab, StageError> {
    let mut create = CreateTargetParams::new(EMPTY_PAGE);
    create.browser_context_id = Some(id.clone());
    let link = &running.link;
    let new_page = link.browser.new_page(create);
    let page = within(config.deadlines.navigation, "a new page", &link.dead, new_page).await?;
    Tab::adopt(page, link, viewport, config).await
}

/// The last rung: a browser that cannot throw a context away is thrown away itself.
pub(super) async fn throw_away(running: &Seat, id: BrowserContextId) {
    running.forget(&id);
    let dispose = DisposeBrowserContextParams::new(id);
    let deadline = running.disposal_deadline();
    if let Err(StageError::PageHang { .. }) =
        running.link.call(dispose, deadline, "throwing a context away").await
    {
        running.kill("it could not throw a context away");
    }
}

/// Contexts that wait for a trajectory, oldest first.
#[derive(Default)]
pub(super) struct Shelf(Mutex<VecDeque<Blank>>);

impl Shelf {
    /// One of this kind, if one is there that is fit and whose browser has a place for it. The second part is what is of no use
    /// to anybody any more.
    pub fn take(&self, kind: BrowserKind) -> (Option<Blank>, Vec<Blank>) {
        let mut blanks = self.lock();
        let (fit, unfit) = std::mem::take(&mut *blanks).into_iter().partition(Blank::is_fit);
        *blanks = fit;
        let place = blanks.iter().position(|blank| blank.kind == kind && blank.running.has_a_place());
        let taken = place.and_then(|place| blanks.remove(place));
        (taken, Vec::from(unfit))
    }

    /// Puts one there.
    pub fn put(&self, blank: Blank) {
        self.lock().push_back(blank);
    }

    /// How many there are of this kind.
    pub fn count(&self, kind: BrowserKind) -> usize {
        self.lock().iter().filter(|blank| blank.kind == kind).count()
    }

    /// Takes the oldest of another kind, so that a kind that no task asks for any more does not keep memory.
    pub fn take_other(&self, kind: BrowserKind) -> Option<Blank> {
        let mut blanks = self.lock();
        let place = blanks.iter().position(|blank| blank.kind != kind)?;
        blanks.remove(place)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes all of them.
    pub fn clear(&self) -> Vec<Blank> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Blank>> {
        // Adding and removing cannot leave it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
