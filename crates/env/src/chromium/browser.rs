//! A running browser: the contexts in it, and the changes of their tabs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::{
    CloseTargetParams, EventTargetCreated, EventTargetDestroyed, TargetId,
};
use chromiumoxide::listeners::EventStream;
use furrow_telemetry::{BrowserDeath, BrowserDied, BrowserLimit, BrowserStarted, BrowserStopped};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::command::BrowserKind;
use super::devtools_relay::DevToolsPipe;
use super::error::BrowserError;
use super::limits::LimitOverrun;
use super::link::{BrowserLink, link_error};
use super::process::BrowserProcess;
use super::walls::BrowserWalls;
use crate::config::BrowserConfig;

/// Most unprocessed tab changes; if a page opens and closes more than this in one step, the rest is
/// not reported. All windows that it opens still count against its tabs.
const CHANGES_MAX: usize = 64;

/// A change of the tabs of a context.
#[derive(Debug)]
pub(super) enum TabChange {
    /// A page opened another one.
    Opened(TargetId),
    /// A page beyond the limit was opened and is being closed.
    Refused,
    /// A page was closed.
    Closed(TargetId),
}

/// Most pages above the tab limit that are being closed at once. Further ones stay until their
/// context is disposed of.
const CLOSING_MAX: usize = 256;

/// Closing does not depend on the page: it took 5 ms where the page looped.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// A start takes 0.2 s; on a machine that starts a hundred contexts at once it took 3 s.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Time between the end of a browser's pipe and the end of its process.
const REAPED: Duration = Duration::from_secs(2);

/// A process with its link and the contexts in it.
#[derive(Debug)]
pub(super) struct RunningBrowser {
    pub link: BrowserLink,
    pub product: String,
    pub process: BrowserProcess,
    pub name: String,
    pub kind: BrowserKind,
    /// Contexts in it, with and without a task.
    pub contexts: AtomicUsize,
    /// Contexts without a task among them.
    prewarmed: AtomicUsize,
    /// Contexts that ever got a task.
    served: AtomicUsize,
    bounds: BrowserBounds,
    listeners: Mutex<HashMap<BrowserContextId, mpsc::Sender<TabChange>>>,
    stopped: CancellationToken,
}

/// Limits on the load of a browser.
#[derive(Debug, Clone, Copy)]
struct BrowserBounds {
    /// Most contexts with a task at once.
    contexts: usize,
    /// Most contexts with a task over its lifetime.
    served: usize,
    /// Most pages of one context.
    tabs: usize,
    /// Memory above which it accepts no further context: a browser that is three quarters full
    /// keeps the rest for its pages.
    memory_bytes: u64,
    /// Time within which a context must be disposed of.
    disposal: Duration,
}

impl RunningBrowser {
    pub(super) async fn start(
        config: &BrowserConfig,
        kind: BrowserKind,
        walls: &BrowserWalls,
    ) -> Result<Arc<Self>, BrowserError> {
        let began = Instant::now();
        let (process, pipe) = BrowserProcess::start(config, kind, walls).await?;
        let answered = tokio::select! {
            answered = timeout(START_DEADLINE, connect(pipe)) => answered.ok(),
            () = process.ended() => None,
        };
        let (link, product) = match answered {
            Some(Ok(connected)) => connected,
            // The link breaks a little before a dead browser is reaped, which then says more.
            Some(Err(error)) if timeout(REAPED, process.ended()).await.is_err() => return Err(error),
            Some(Err(_)) | None => return Err(process.explain_failed_start(config).await),
        };
        let (created, destroyed) = link.targets().await?;
        let running = Arc::new(Self {
            link,
            product,
            name: process.name(),
            process,
            kind,
            contexts: AtomicUsize::new(0),
            prewarmed: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            bounds: BrowserBounds::of(config, kind),
            listeners: Mutex::default(),
            stopped: CancellationToken::new(),
        });
        let micros = began.elapsed().as_micros() as u64;
        let browser = running.name.as_str();
        let pid = running.process.pid;
        BrowserStarted { browser, pid, product: &running.product, micros }.emit();
        tokio::spawn(watch(running.clone(), created, destroyed));
        Ok(running)
    }

    /// Sends the tab changes of a context to the receiver.
    pub(super) fn register(&self, id: &BrowserContextId) -> mpsc::Receiver<TabChange> {
        let (sender, receiver) = mpsc::channel(CHANGES_MAX);
        self.listeners().insert(id.clone(), sender);
        receiver
    }

    pub(super) fn forget(&self, id: &BrowserContextId) {
        self.listeners().remove(id);
    }

    /// Number of contexts that a trajectory uses.
    pub(super) fn assigned_contexts(&self) -> usize {
        self.contexts.load(Ordering::SeqCst).saturating_sub(self.prewarmed.load(Ordering::SeqCst))
    }

    /// Whether another trajectory may run here beside the current ones.
    pub(super) fn has_free_context(&self) -> bool {
        self.assigned_contexts() < self.bounds.contexts
    }

    /// Whether it is neither dead nor old nor full.
    pub(super) fn accepts_contexts(&self) -> bool {
        !self.link.dead.is_cancelled()
            && !self.is_old()
            && self.process.account.memory_bytes() < self.bounds.memory_bytes
    }

    /// Whether it served as many trajectories as it may; a restart releases what it leaked.
    fn is_old(&self) -> bool {
        self.served.load(Ordering::SeqCst) >= self.bounds.served
    }

    pub(super) fn disposal_deadline(&self) -> Duration {
        self.bounds.disposal
    }

    /// Why a part of it was killed, if that was recently.
    pub(super) fn overrun(&self) -> Option<LimitOverrun> {
        self.process.account.overrun()
    }

    /// Kills the process, which ends every context in it.
    pub(super) fn kill(&self, why: &str) {
        tracing::warn!(browser = self.name, why, "a browser is killed");
        self.process.kill();
    }

    /// Ends the process in order. Always returns true, for `retain`.
    pub(super) fn stop(&self) -> bool {
        self.stopped.cancel();
        self.process.kill();
        true
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<BrowserContextId, mpsc::Sender<TabChange>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a change on to its context. A context with a full channel loses further changes.
    fn notify(&self, context: Option<&BrowserContextId>, change: TabChange) {
        if let Some(listener) = context.and_then(|id| self.listeners().get(id).cloned()) {
            listener.try_send(change).ok();
        }
    }
}

/// Connects to a browser and waits for its first answer, its product.
async fn connect(pipe: DevToolsPipe) -> Result<(BrowserLink, String), BrowserError> {
    let link = BrowserLink::connect(pipe).await?;
    let version = link.browser.version().await.map_err(link_error)?;
    Ok((link, version.product))
}

/// Watches a process until it ends, then notifies its contexts.
async fn watch(
    running: Arc<RunningBrowser>,
    mut created: EventStream<EventTargetCreated>,
    mut destroyed: EventStream<EventTargetDestroyed>,
) {
    let mut homes: HashMap<_, BrowserContextId> = HashMap::new();
    let mut closing = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = running.process.ended() => break,
            () = running.link.dead.cancelled() => break,
            Some(event) = created.next() => {
                let info = &event.target_info;
                let (true, Some(context)) = (info.r#type == "page", &info.browser_context_id) else { continue };
                // Enforced here and not in the context: while its policy computes, a page may open
                // windows without end.
                if homes.values().filter(|home| *home == context).count() >= running.bounds.tabs {
                    let close = CloseTargetParams::new(info.target_id.clone());
                    if closing.len() < CLOSING_MAX {
                        closing.push(running.link.call(close, CLOSE_DEADLINE, "closing a tab above the limit"));
                    }
                    running.notify(Some(context), TabChange::Refused);
                } else {
                    homes.insert(info.target_id.clone(), context.clone());
                    running.notify(Some(context), TabChange::Opened(info.target_id.clone()));
                }
            }
            // The page may have closed itself.
            Some(_) = closing.next() => {}
            Some(event) = destroyed.next() => {
                let home = homes.remove(&event.target_id);
                running.notify(home.as_ref(), TabChange::Closed(event.target_id.clone()));
            }
        }
    }
    running.link.dead.cancel();
    running.process.kill();
    let browser = running.name.as_str();
    let pid = running.process.pid;
    if running.stopped.is_cancelled() {
        BrowserStopped { browser, pid }.emit();
    } else {
        let (death, detail) = match running.overrun().filter(|overrun| overrun.whole) {
            Some(overrun) if overrun.limit == BrowserLimit::Memory => {
                (BrowserDeath::OverMemory, overrun.to_string())
            }
            Some(overrun) => (BrowserDeath::OverThreads, overrun.to_string()),
            None => (BrowserDeath::Exited, running.process.messages()),
        };
        BrowserDied { browser, pid, death, detail: &detail }.emit();
    }
}

impl BrowserBounds {
    fn of(config: &BrowserConfig, kind: BrowserKind) -> Self {
        let shared = |most: u32| if kind.is_alone { 1 } else { most as usize };
        Self {
            contexts: shared(config.contexts_per_browser),
            served: shared(config.trajectories_per_browser),
            tabs: config.tabs_max as usize,
            memory_bytes: config.limits.memory_bytes / 4 * 3,
            disposal: config.deadlines.navigation,
        }
    }
}

/// The lease of one context in a process, returned when it is dropped.
#[derive(Debug)]
pub(super) struct BrowserLease {
    browser: Arc<RunningBrowser>,
    is_prewarmed: bool,
}

impl BrowserLease {
    /// A lease for a trajectory, which is already counted.
    pub(super) fn for_trajectory(running: Arc<RunningBrowser>) -> Self {
        Self { browser: running, is_prewarmed: false }
    }

    /// A lease for a prewarmed context.
    pub(super) fn for_prewarm(running: Arc<RunningBrowser>) -> Self {
        running.contexts.fetch_add(1, Ordering::SeqCst);
        running.prewarmed.fetch_add(1, Ordering::SeqCst);
        Self { browser: running, is_prewarmed: true }
    }

    /// The browser of the lease.
    pub(super) fn process(&self) -> Arc<RunningBrowser> {
        self.browser.clone()
    }

    /// Marks the context as used by a trajectory.
    pub(super) fn assign(&mut self) {
        if std::mem::take(&mut self.is_prewarmed) {
            self.browser.prewarmed.fetch_sub(1, Ordering::SeqCst);
        }
        self.browser.served.fetch_add(1, Ordering::SeqCst);
    }
}

impl std::ops::Deref for BrowserLease {
    type Target = RunningBrowser;

    fn deref(&self) -> &RunningBrowser {
        &self.browser
    }
}

impl Drop for BrowserLease {
    fn drop(&mut self) {
        if self.is_prewarmed {
            self.browser.prewarmed.fetch_sub(1, Ordering::SeqCst);
        }
        let was_last = self.browser.contexts.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && (self.browser.is_old() || self.browser.kind.is_alone) {
            self.browser.stop();
        }
    }
}
