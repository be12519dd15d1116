//! A pool of browsers: contexts are the unit, a process serves about 25 of them, and a dead process
//! is replaced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::{
    CloseTargetParams, EventTargetCreated, EventTargetDestroyed,
};
use furrow_rollout::{Assignment, EnvironmentFingerprint, Size, Task, TrajectoryAncestry};
use furrow_telemetry::{
    BrowserDeath, BrowserDied, BrowserLimit, BrowserStarted, BrowserStopped, available_bytes, group_members,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::context::{BrowserContext, CHANGES_MAX, TabChange};
use super::limits::LimitOverrun;
use super::link::BrowserLink;
use super::network::NetworkInterceptor;
use super::prewarm::{PrewarmedContext, WarmPool};
use super::process::{
    BrowserError, BrowserKind, BrowserProcess, check_given, remove_stale_profiles, sandboxed,
};
use super::selftest;
use crate::archive::ArchiveMode;
use crate::config::BrowserConfig;
use crate::egress::{EgressFilter, EgressLimits};
use crate::environment::{Capacity, Environment, EnvironmentError, EnvironmentFactory};
use crate::hosts::AllowList;
use crate::sites::SiteServer;

/// Most contexts created at once: each costs 0.2 s of CPU, and a hundred together starve each
/// other.
const OPENING_MAX: usize = 4;

/// Most start pages loaded at once: each costs 0.1 to 0.3 s of CPU, and a hundred together take
/// longer than a page may.
const BEGINNING_MAX: usize = 8;

/// Memory that a new trajectory is assumed to need: a light page uses 35 MB, an idle browser 110
/// MB, a heavy page more than either.
const SESSION_BYTES: u64 = 128 << 20;

/// Most pages above the tab limit that are being closed at once. Further ones stay until their
/// context is disposed of.
const CLOSING_MAX: usize = 256;

/// Closing does not depend on the page: it took 5 ms where the page looped.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// Number of failed starts after which a browser is given up for this attempt.
const STARTS_MAX: u32 = 3;

/// The kind of browser that is tested before a worker joins. Pages with either clock depend on what
/// is tested.
const SELF_TEST_KIND: BrowserKind = BrowserKind { viewport: Size::new(1280, 720), virtual_time: false };

/// A host name that can never resolve, by RFC 2606.
const UNRESOLVABLE_URL: &str = "http://nowhere.invalid/";

/// A pool of headless Chromium processes.
pub struct ChromiumPool {
    pool: Arc<ContextPool>,
    health: BrowserHealth,
    /// Contexts being created in advance, one task at a time.
    refills: TaskTracker,
    stop: CancellationToken,
}

struct ContextPool {
    config: Arc<BrowserConfig>,
    sites: Arc<SiteServer>,
    egress: EgressLimits,
    archives: Option<ArchiveMode>,
    processes: tokio::sync::Mutex<Vec<Arc<RunningBrowser>>>,
    opening: Semaphore,
    beginning: Arc<Semaphore>,
    warm_pool: WarmPool,
    /// Acquired by the task that creates contexts in advance.
    refilling: Semaphore,
}

/// Facts about the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserHealth {
    /// Product and version of the browser.
    pub product: String,
    /// Whether renderers run under a seccomp filter.
    pub sandbox: bool,
    /// Duration of the self-test.
    pub self_test: Duration,
    /// Memory that the browser used after its test; `None` if its processes are not visible, so
    /// that no limit can be enforced.
    pub memory_bytes: Option<u64>,
}

/// A process with its link and the contexts in it.
#[derive(Debug)]
pub(super) struct RunningBrowser {
    pub link: BrowserLink,
    pub product: String,
    process: BrowserProcess,
    pub name: String,
    kind: BrowserKind,
    /// Contexts in it, with and without a task.
    contexts: AtomicUsize,
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

impl ChromiumPool {
    /// Removes the remains of dead workers, starts a browser and tests it. Every context can reach
    /// `sites` if its task allows them.
    pub async fn start(
        config: BrowserConfig,
        sites: Arc<SiteServer>,
        egress: EgressLimits,
    ) -> Result<Self, BrowserError> {
        Self::begin(config, sites, egress, None).await
    }

    /// The same, but records the network of its trajectories or replays recorded traffic. Each
    /// trajectory has its own browser process, because a browser does not say which context a
    /// request belongs to.
    pub async fn start_archived(
        config: BrowserConfig,
        sites: Arc<SiteServer>,
        egress: EgressLimits,
        archives: ArchiveMode,
    ) -> Result<Self, BrowserError> {
        let config = BrowserConfig { contexts_per_browser: 1, contexts_ready: 0, ..config };
        Self::begin(config, sites, egress, Some(archives)).await
    }

    async fn begin(
        config: BrowserConfig,
        sites: Arc<SiteServer>,
        egress: EgressLimits,
        archives: Option<ArchiveMode>,
    ) -> Result<Self, BrowserError> {
        remove_stale_profiles();
        check_given(&config).await?;
        let config = Arc::new(config);
        let mut starts = 1;
        let health = loop {
            match test_browser(&config).await {
                Ok(health) => break health,
                // A browser may be killed during its test, like any other process.
                Err(error) if starts < STARTS_MAX && error.is_transient() => {
                    tracing::warn!(%error, starts, "the first browser failed; trying another");
                    starts += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let pool = ContextPool {
            config,
            sites,
            egress,
            archives,
            processes: tokio::sync::Mutex::default(),
            opening: Semaphore::new(OPENING_MAX),
            beginning: Arc::new(Semaphore::new(BEGINNING_MAX)),
            warm_pool: WarmPool::default(),
            refilling: Semaphore::new(1),
        };
        let refills = TaskTracker::new();
        let stop = CancellationToken::new();
        Ok(Self { pool: Arc::new(pool), health, refills, stop })
    }

    /// Version, sandbox and self-test of the browser.
    pub fn health(&self) -> &BrowserHealth {
        &self.health
    }

    /// Number of contexts that are ready for a trajectory.
    pub fn ready_contexts(&self) -> usize {
        self.pool.warm_pool.len()
    }

    /// Creates contexts for later trajectories while the current ones run.
    fn refill(&self, kind: BrowserKind) {
        let pool = self.pool.clone();
        let stop = self.stop.clone();
        self.refills.spawn(async move {
            stop.run_until_cancelled(pool.refill(kind)).await;
        });
    }
}

impl ContextPool {
    /// Returns an unused context: a prewarmed one or a new one.
    async fn take_context(&self, kind: BrowserKind) -> Result<PrewarmedContext, EnvironmentError> {
        let (ready, unfit) = self.warm_pool.take(kind);
        for prewarmed in unfit {
            prewarmed.close().await;
        }
        let mut prewarmed = match ready {
            Some(prewarmed) => prewarmed,
            None => {
                let _turn = self.opening.acquire().await.map_err(|closed| failed(&closed))?;
                let running = self.browser_for_session(kind).await.map_err(|error| failed(&error))?;
                self.create_context(BrowserLease::for_trajectory(running), kind).await?
            }
        };
        prewarmed.browser.assign();
        Ok(prewarmed)
    }

    async fn create_context(
        &self,
        lease: BrowserLease,
        kind: BrowserKind,
    ) -> Result<PrewarmedContext, EnvironmentError> {
        let egress = EgressFilter::open_blocked(self.sites.clone(), self.egress.clone())
            .await
            .map_err(|error| failed(&error))?;
        PrewarmedContext::create(lease, &self.config, kind, egress).await
    }

    /// The interceptor of a trajectory's requests, if archives are recorded or replayed.
    async fn network(
        &self,
        prewarmed: &PrewarmedContext,
        of: &TrajectoryAncestry,
        task: &Task,
    ) -> Result<Option<NetworkInterceptor>, EnvironmentError> {
        let Some(archives) = &self.archives else { return Ok(None) };
        let deadline = self.config.deadlines.navigation;
        let running = prewarmed.browser.process();
        let flight = prewarmed.egress.counter();
        NetworkInterceptor::begin(archives, running, flight, of, task, deadline).await.map(Some)
    }

    /// Keeps as many contexts ready as the job asks for, all of this kind. It starts no browser for
    /// them.
    async fn refill(&self, kind: BrowserKind) {
        let Ok(_only) = self.refilling.try_acquire() else { return };
        let most = self.config.contexts_ready as usize;
        while self.warm_pool.count(kind) < most {
            if self.warm_pool.len() >= most
                && let Some(other) = self.warm_pool.take_other(kind)
            {
                other.close().await;
            }
            // Queue behind every caller that waits for a context now.
            let Ok(_turn) = self.opening.acquire().await else { return };
            let Some(lease) = self.browser_for_prewarm(kind).await else { return };
            match self.create_context(lease, kind).await {
                Ok(prewarmed) => self.warm_pool.put(prewarmed),
                Err(error) => {
                    tracing::debug!(%error, "no context could be created in advance");
                    return;
                }
            }
        }
    }

    /// A browser that can keep another context until a trajectory needs it.
    async fn browser_for_prewarm(&self, kind: BrowserKind) -> Option<BrowserLease> {
        let processes = self.processes.lock().await;
        let fit = processes.iter().filter(|running| running.kind == kind && running.accepts_contexts());
        fit.min_by_key(|running| running.contexts.load(Ordering::SeqCst))
            .cloned()
            .map(BrowserLease::for_prewarm)
    }

    /// A process of this kind with a free context, which is already counted as used.
    async fn browser_for_session(&self, kind: BrowserKind) -> Result<Arc<RunningBrowser>, BrowserError> {
        let mut processes = self.processes.lock().await;
        processes.retain(|running| !running.link.dead.is_cancelled());
        let has_capacity = |running: &&Arc<RunningBrowser>| {
            running.kind == kind && running.accepts_contexts() && running.has_free_context()
        };
        if let Some(running) =
            processes.iter().filter(has_capacity).min_by_key(|running| running.assigned_contexts())
        {
            running.contexts.fetch_add(1, Ordering::SeqCst);
            return Ok(running.clone());
        }
        // A browser without sessions that no waiting session can use is stopped: it is of another
        // kind, or it kept the memory of closed pages.
        processes.retain(|running| running.assigned_contexts() > 0 || !running.stop());
        let mut starts = 0;
        loop {
            starts += 1;
            match RunningBrowser::start(&self.config, kind).await {
                Ok(running) => {
                    running.contexts.fetch_add(1, Ordering::SeqCst);
                    processes.push(running.clone());
                    return Ok(running);
                }
                Err(error) if starts == STARTS_MAX => return Err(error),
                Err(error) => tracing::warn!(%error, starts, "a browser did not start; starting another"),
            }
        }
    }
}

#[async_trait]
impl EnvironmentFactory for ChromiumPool {
    fn fingerprint(&self, task: Option<&Task>) -> EnvironmentFingerprint {
        EnvironmentFingerprint {
            worker: String::new(),
            browser: self.health.product.clone(),
            sandbox: self.health.sandbox,
            locale: self.pool.config.locale.clone(),
            timezone: self.pool.config.timezone.clone(),
            viewport: task.map(|task| task.viewport),
        }
    }

    fn capacity(&self) -> Capacity {
        let reserve_bytes = self.pool.config.memory_reserve_bytes;
        match available_bytes() {
            Some(available_bytes) if reserve_bytes > 0 => Capacity {
                environments: sessions_that_fit(available_bytes, reserve_bytes),
                available_bytes,
                reserve_bytes,
            },
            _ => Capacity::UNLIMITED,
        }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Environment>, EnvironmentError> {
        let task = assignment.task.clone();
        let allow = AllowList::new(&task.start_url, &task.allow_hosts).map_err(|bad| failed(&bad))?;
        let prewarmed = self.pool.take_context(BrowserKind::of(&task)).await?;
        self.refill(BrowserKind::of(&task));
        let of = assignment.ancestry.clone();
        let network = match self.pool.network(&prewarmed, &of, &task).await {
            Ok(network) => network,
            Err(error) => {
                prewarmed.close().await;
                return Err(error);
            }
        };
        let reach = match self.pool.archives {
            // Requests that an archive does not answer must reach no host: the list contains only
            // an unresolvable one.
            Some(ArchiveMode::Replay { .. }) => {
                AllowList::new(UNRESOLVABLE_URL, &[]).map_err(|bad| failed(&bad))?
            }
            _ => allow.clone(),
        };
        prewarmed.egress.allow_task(reach, Some(of.clone()));
        let ContextPool { config, beginning, .. } = &*self.pool;
        Ok(Box::new(BrowserContext::new(
            prewarmed,
            config.clone(),
            beginning.clone(),
            of,
            task,
            allow,
            network,
        )))
    }

    async fn close(&self) {
        self.stop.cancel();
        self.refills.close();
        self.refills.wait().await;
        // The contexts are closed with their browsers.
        drop(self.pool.warm_pool.clear());
        self.pool.processes.lock().await.drain(..).for_each(|running| {
            running.stop();
        });
    }
}

impl RunningBrowser {
    async fn start(config: &BrowserConfig, kind: BrowserKind) -> Result<Arc<Self>, BrowserError> {
        let began = Instant::now();
        let process = BrowserProcess::start(config, kind).await?;
        let link = BrowserLink::connect(&process.address).await?;
        let version = link.browser.version().await.map_err(super::link::link_error)?;
        let (created, destroyed) = link.targets().await?;
        let running = Arc::new(Self {
            link,
            product: version.product,
            name: process.name(),
            process,
            kind,
            contexts: AtomicUsize::new(0),
            prewarmed: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            bounds: BrowserBounds::of(config),
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
    pub fn register(&self, id: &BrowserContextId) -> mpsc::Receiver<TabChange> {
        let (sender, receiver) = mpsc::channel(CHANGES_MAX);
        self.listeners().insert(id.clone(), sender);
        receiver
    }

    pub fn forget(&self, id: &BrowserContextId) {
        self.listeners().remove(id);
    }

    fn assigned_contexts(&self) -> usize {
        self.contexts.load(Ordering::SeqCst).saturating_sub(self.prewarmed.load(Ordering::SeqCst))
    }

    /// Whether another trajectory may run here beside the current ones.
    pub fn has_free_context(&self) -> bool {
        self.assigned_contexts() < self.bounds.contexts
    }

    /// Whether it is neither dead nor old nor full.
    pub fn accepts_contexts(&self) -> bool {
        !self.link.dead.is_cancelled()
            && !self.is_old()
            && self.process.account.memory_bytes() < self.bounds.memory_bytes
    }

    /// Whether it served as many trajectories as it may; a restart releases what it leaked.
    fn is_old(&self) -> bool {
        self.served.load(Ordering::SeqCst) >= self.bounds.served
    }

    pub fn disposal_deadline(&self) -> Duration {
        self.bounds.disposal
    }

    /// Why a part of it was killed, if that was recently.
    pub fn overrun(&self) -> Option<LimitOverrun> {
        self.process.account.overrun()
    }

    /// Kills the process, which ends every context in it.
    pub fn kill(&self, why: &str) {
        tracing::warn!(browser = self.name, why, "a browser is killed");
        self.process.kill();
    }

    /// Ends the process in order. Always returns true, for `retain`.
    fn stop(&self) -> bool {
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

/// Starts a browser, tests it and ends it: the test crashes pages on purpose, so trajectories get
/// other browsers.
async fn test_browser(config: &BrowserConfig) -> Result<BrowserHealth, BrowserError> {
    let began = Instant::now();
    let running = RunningBrowser::start(config, SELF_TEST_KIND).await?;
    let outcome = selftest::run(&running, config).await;
    let sandbox = sandboxed(running.process.pid);
    let memory_bytes = memory_bytes(running.process.pid);
    running.stop();
    outcome?;
    if memory_bytes.is_none() {
        tracing::warn!("the browser's processes are not visible in /proc: its limits are not enforced");
    }
    Ok(BrowserHealth { product: running.product.clone(), sandbox, self_test: began.elapsed(), memory_bytes })
}

/// Memory that a browser uses, if its processes are visible.
fn memory_bytes(pid: u32) -> Option<u64> {
    let members = group_members(pid).ok()?;
    let sees_it = members.iter().any(|member| member.pid == pid) && members.len() > 1;
    sees_it.then(|| members.iter().map(|member| member.footprint_bytes).sum())
}

/// Number of sessions that fit into the memory beside the reserve.
fn sessions_that_fit(available_bytes: u64, reserve_bytes: u64) -> u32 {
    u32::try_from(available_bytes.saturating_sub(reserve_bytes) / SESSION_BYTES).unwrap_or(u32::MAX)
}

/// Watches a process until it ends, then notifies its contexts.
async fn watch(
    running: Arc<RunningBrowser>,
    mut created: chromiumoxide::listeners::EventStream<EventTargetCreated>,
    mut destroyed: chromiumoxide::listeners::EventStream<EventTargetDestroyed>,
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
    fn of(config: &BrowserConfig) -> Self {
        Self {
            contexts: config.contexts_per_browser as usize,
            served: config.trajectories_per_browser as usize,
            tabs: config.tabs_max as usize,
            memory_bytes: config.limits.memory_bytes / 4 * 3,
            disposal: config.deadlines.navigation,
        }
    }
}

fn failed(error: &dyn std::error::Error) -> EnvironmentError {
    EnvironmentError::Failed(error.to_string())
}

/// The lease of one context in a process, returned when it is dropped.
#[derive(Debug)]
pub(super) struct BrowserLease {
    browser: Arc<RunningBrowser>,
    is_prewarmed: bool,
}

impl BrowserLease {
    /// A lease for a trajectory, which is already counted.
    fn for_trajectory(running: Arc<RunningBrowser>) -> Self {
        Self { browser: running, is_prewarmed: false }
    }

    /// A lease for a prewarmed context.
    fn for_prewarm(running: Arc<RunningBrowser>) -> Self {
        running.contexts.fetch_add(1, Ordering::SeqCst);
        running.prewarmed.fetch_add(1, Ordering::SeqCst);
        Self { browser: running, is_prewarmed: true }
    }

    /// The browser of the lease.
    pub fn process(&self) -> Arc<RunningBrowser> {
        self.browser.clone()
    }

    /// Marks the context as used by a trajectory.
    fn assign(&mut self) {
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
        if was_last && self.browser.is_old() {
            self.browser.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_fit_beside_the_reserve() {
        let gib = 1 << 30;
        assert_eq!(sessions_that_fit(gib, gib), 0);
        assert_eq!(sessions_that_fit(gib / 2, gib), 0);
        assert_eq!(sessions_that_fit(gib + SESSION_BYTES - 1, gib), 0);
        assert_eq!(sessions_that_fit(gib + SESSION_BYTES, gib), 1);
        assert_eq!(sessions_that_fit(3 * gib, gib), 16);
        assert_eq!(sessions_that_fit(u64::MAX, 0), u32::MAX);
    }
}
