//! A pool of browsers: contexts are the unit, a process holds about 25 of them, a dead process is replaced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::{
    CloseTargetParams, EventTargetCreated, EventTargetDestroyed,
};
use furrow_rollout::{Ancestry, Assignment, EnvironmentFingerprint, Size, Task};
use furrow_telemetry::{
    BrowserDeath, BrowserDied, BrowserLimit, BrowserStarted, BrowserStopped, available_bytes, group_members,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::blank::{Blank, Shelf};
use super::context::{CHANGES_MAX, Change, Context};
use super::limits::Overrun;
use super::link::Link;
use super::network::Network;
use super::process::{BrowserError, BrowserKind, Process, check_given, sandboxed, sweep};
use super::selftest;
use crate::archive::Archives;
use crate::config::BrowserConfig;
use crate::egress::{Egress, EgressLimits};
use crate::hosts::AllowList;
use crate::sites::Sites;
use crate::stage::{Room, Stage, StageError, Stages};

/// Contexts made at once: each costs 0.2 s of CPU, and a hundred together starve each other.
const OPENING_MAX: usize = 4;

/// Start pages loaded at once: each costs 0.1 to 0.3 s of CPU, and a hundred together take longer than a page may.
const BEGINNING_MAX: usize = 8;

/// What a new trajectory is taken to need: a light page holds 35 MB, an idle browser 110 MB, a heavy page more than either.
const SESSION_BYTES: u64 = 128 << 20;

/// Windows of pages that have enough of them, being closed at once. What comes beyond stays until its context is thrown away.
const CLOSING_MAX: usize = 256;

/// Closing asks nothing of the page: it took 5 ms where the page looped.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// A process that starts again and again is given up for this attempt.
const STARTS_MAX: u32 = 3;

/// The browser that is tested before a worker joins. Pages of either clock depend on what it is tested for.
const TESTED: BrowserKind = BrowserKind { viewport: Size::new(1280, 720), virtual_time: false };

/// No host of this name can be, by RFC 2606.
const NOWHERE: &str = "http://nowhere.invalid/";

/// A pool of headless Chromium processes.
pub struct Chromium {
    pool: Arc<Pool>,
    health: Health,
    /// Contexts being made ahead of need, one task at a time.
    refills: TaskTracker,
    stop: CancellationToken,
}

/// What makes contexts.
struct Pool {
    config: Arc<BrowserConfig>,
    sites: Arc<Sites>,
    egress: EgressLimits,
    archives: Option<Archives>,
    processes: tokio::sync::Mutex<Vec<Arc<Running>>>,
    opening: Semaphore,
    beginning: Arc<Semaphore>,
    ready: Shelf,
    /// Held by the task that makes contexts ahead of need.
    refilling: Semaphore,
}

/// What the pool says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Product and version.
    pub product: String,
    /// Whether renderers run under a seccomp filter.
    pub sandbox: bool,
    /// How long the self-test took.
    pub self_test: Duration,
    /// Memory that the browser held after its test; `None` where its processes cannot be seen, and so cannot be held to a limit.
    pub held_bytes: Option<u64>,
}

/// A process with its link and the contexts in it.
#[derive(Debug)]
pub(super) struct Running {
    pub link: Link,
    pub product: String,
    process: Process,
    /// Its name in the log.
    pub name: String,
    kind: BrowserKind,
    /// Contexts in it, with and without a task.
    contexts: AtomicUsize,
    /// Of those, contexts without a task.
    blanks: AtomicUsize,
    /// Contexts that were ever given a task.
    served: AtomicUsize,
    bounds: Bounds,
    listeners: Mutex<HashMap<BrowserContextId, mpsc::Sender<Change>>>,
    stopped: CancellationToken,
}

/// What a browser is asked to bear.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Contexts with a task at once.
    contexts: usize,
    /// Contexts with a task in its life.
    served: usize,
    /// Pages of one context.
    tabs: usize,
    /// Memory beyond which it takes no further context: a browser three quarters full keeps the rest for the pages it has.
    memory_bytes: u64,
    /// A context is thrown away within this time.
    disposal: Duration,
}

impl Chromium {
    /// Removes what dead workers left, starts a browser and tests it. `sites` are served to every context that may reach them.
    pub async fn start(
        config: BrowserConfig,
        sites: Arc<Sites>,
        egress: EgressLimits,
    ) -> Result<Self, BrowserError> {
        Self::begin(config, sites, egress, None).await
    }

    /// The same, recording the network of its trajectories or acting them from what was recorded. Each has a browser process to itself, since
    /// a browser does not say whose request it is.
    pub async fn start_archived(
        config: BrowserConfig,
        sites: Arc<Sites>,
        egress: EgressLimits,
        archives: Archives,
    ) -> Result<Self, BrowserError> {
        let config = BrowserConfig { contexts_per_browser: 1, contexts_ready: 0, ..config };
        Self::begin(config, sites, egress, Some(archives)).await
    }

    async fn begin(
        config: BrowserConfig,
        sites: Arc<Sites>,
        egress: EgressLimits,
        archives: Option<Archives>,
    ) -> Result<Self, BrowserError> {
        sweep();
        check_given(&config).await?;
        let config = Arc::new(config);
        let mut starts = 1;
        let health = loop {
            match tested(&config).await {
                Ok(health) => break health,
                // A browser may be killed while it is tested, like any other process.
                Err(error) if starts < STARTS_MAX && error.may_pass() => {
                    tracing::warn!(%error, starts, "the first browser failed; trying another");
                    starts += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let pool = Pool {
            config,
            sites,
            egress,
            archives,
            processes: tokio::sync::Mutex::default(),
            opening: Semaphore::new(OPENING_MAX),
            beginning: Arc::new(Semaphore::new(BEGINNING_MAX)),
            ready: Shelf::default(),
            refilling: Semaphore::new(1),
        };
        let (refills, stop) = (TaskTracker::new(), CancellationToken::new());
        Ok(Self { pool: Arc::new(pool), health, refills, stop })
    }

    /// Version, sandbox and self-test.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Contexts that are ready for a trajectory.
    pub fn ready(&self) -> usize {
        self.pool.ready.len()
    }

    /// Makes contexts for the trajectories to come while this one is acted out.
    fn refill(&self, kind: BrowserKind) {
        let (pool, stop) = (self.pool.clone(), self.stop.clone());
        self.refills.spawn(async move {
            stop.run_until_cancelled(pool.refill(kind)).await;
        });
    }
}

impl Pool {
    /// A context that nobody used: one that is ready, or a new one.
    async fn blank(&self, kind: BrowserKind) -> Result<Blank, StageError> {
        let (ready, unfit) = self.ready.take(kind);
        for blank in unfit {
            blank.close().await;
        }
        let mut blank = match ready {
            Some(blank) => blank,
            None => {
                let _turn = self.opening.acquire().await.map_err(|closed| failed(&closed))?;
                let running = self.place(kind).await.map_err(|error| failed(&error))?;
                self.make(Seat::lent(running), kind).await?
            }
        };
        blank.running.lend();
        Ok(blank)
    }

    async fn make(&self, seat: Seat, kind: BrowserKind) -> Result<Blank, StageError> {
        let egress =
            Egress::shut(self.sites.clone(), self.egress.clone()).await.map_err(|error| failed(&error))?;
        Blank::make(seat, &self.config, kind, egress).await
    }

    /// What stands between a trajectory's pages and the world, where archives are made or used.
    async fn network(
        &self,
        blank: &Blank,
        of: &Ancestry,
        task: &Task,
    ) -> Result<Option<Network>, StageError> {
        let Some(archives) = &self.archives else { return Ok(None) };
        let deadline = self.config.deadlines.navigation;
        let (running, flight) = (blank.running.process(), blank.egress.counter());
        Network::begin(archives, running, flight, of, task, deadline).await.map(Some)
    }

    /// Has as many contexts ready as the job asks for, all of this kind. No browser is started for them.
    async fn refill(&self, kind: BrowserKind) {
        let Ok(_only) = self.refilling.try_acquire() else { return };
        let most = self.config.contexts_ready as usize;
        while self.ready.count(kind) < most {
            if self.ready.len() >= most
                && let Some(other) = self.ready.take_other(kind)
            {
                other.close().await;
            }
            // Behind everybody who waits for a context now.
            let Ok(_turn) = self.opening.acquire().await else { return };
            let Some(seat) = self.place_for_blank(kind).await else { return };
            match self.make(seat, kind).await {
                Ok(blank) => self.ready.put(blank),
                Err(error) => {
                    tracing::debug!(%error, "no context could be made ahead of need");
                    return;
                }
            }
        }
    }

    /// A browser that can hold another context until a trajectory needs it.
    async fn place_for_blank(&self, kind: BrowserKind) -> Option<Seat> {
        let processes = self.processes.lock().await;
        let fit = processes.iter().filter(|running| running.kind == kind && running.takes_more());
        fit.min_by_key(|running| running.contexts.load(Ordering::SeqCst)).cloned().map(Seat::blank)
    }

    /// A process of this kind with room for one more context; it is counted there already.
    async fn place(&self, kind: BrowserKind) -> Result<Arc<Running>, BrowserError> {
        let mut processes = self.processes.lock().await;
        processes.retain(|running| !running.link.dead.is_cancelled());
        let room =
            |running: &&Arc<Running>| running.kind == kind && running.takes_more() && running.has_a_place();
        if let Some(running) = processes.iter().filter(room).min_by_key(|running| running.lent()) {
            running.contexts.fetch_add(1, Ordering::SeqCst);
            return Ok(running.clone());
        }
        // A browser without sessions that no waiting session can use makes room: it is of another kind, or it kept the memory of pages that are gone.
        processes.retain(|running| running.lent() > 0 || !running.stop());
        let mut starts = 0;
        loop {
            starts += 1;
            match Running::start(&self.config, kind).await {
                Ok(running) => {
                    running.contexts.fetch_add(1, Ordering::SeqCst);
                    processes.push(running.clone());
                    return Ok(running);
                }
                Err(error) if starts == STARTS_MAX => return Err(error),
                Err(error) => tracing::warn!(%error, starts, "a browser did not start; trying again"),
            }
        }
    }
}

#[async_trait]
impl Stages for Chromium {
    fn environment(&self, task: Option<&Task>) -> EnvironmentFingerprint {
        EnvironmentFingerprint {
            worker: String::new(),
            browser: self.health.product.clone(),
            sandbox: self.health.sandbox,
            locale: self.pool.config.locale.clone(),
            timezone: self.pool.config.timezone.clone(),
            viewport: task.map(|task| task.viewport),
        }
    }

    fn room(&self) -> Room {
        let reserve_bytes = self.pool.config.memory_reserve_bytes;
        match available_bytes() {
            Some(available_bytes) if reserve_bytes > 0 => {
                Room { stages: sessions(available_bytes, reserve_bytes), available_bytes, reserve_bytes }
            }
            _ => Room::AMPLE,
        }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Stage>, StageError> {
        let task = assignment.task.clone();
        let allow = AllowList::new(&task.start_url, &task.allow_hosts).map_err(|bad| failed(&bad))?;
        let blank = self.pool.blank(BrowserKind::of(&task)).await?;
        self.refill(BrowserKind::of(&task));
        let of = assignment.ancestry.clone();
        let network = match self.pool.network(&blank, &of, &task).await {
            Ok(network) => network,
            Err(error) => {
                blank.close().await;
                return Err(error);
            }
        };
        let reach = match self.pool.archives {
            // What an archive does not answer reaches nobody: the list of nowhere.
            Some(Archives::Replay { .. }) => AllowList::new(NOWHERE, &[]).map_err(|bad| failed(&bad))?,
            _ => allow.clone(),
        };
        blank.egress.admit(reach, Some(of.clone()));
        let Pool { config, beginning, .. } = &*self.pool;
        Ok(Box::new(Context::of(blank, config.clone(), beginning.clone(), of, task, allow, network)))
    }

    async fn close(&self) {
        self.stop.cancel();
        self.refills.close();
        self.refills.wait().await;
        // They go with their browsers.
        drop(self.pool.ready.clear());
        self.pool.processes.lock().await.drain(..).for_each(|running| {
            running.stop();
        });
    }
}

impl Running {
    async fn start(config: &BrowserConfig, kind: BrowserKind) -> Result<Arc<Self>, BrowserError> {
        let began = Instant::now();
        let process = Process::start(config, kind).await?;
        let link = Link::connect(&process.address).await?;
        let version = link.browser.version().await.map_err(super::link::broken)?;
        let (created, destroyed) = link.targets().await?;
        let running = Arc::new(Self {
            link,
            product: version.product,
            name: process.name(),
            process,
            kind,
            contexts: AtomicUsize::new(0),
            blanks: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            bounds: Bounds::of(config),
            listeners: Mutex::default(),
            stopped: CancellationToken::new(),
        });
        let micros = began.elapsed().as_micros() as u64;
        let (browser, pid) = (running.name.as_str(), running.process.pid);
        BrowserStarted { browser, pid, product: &running.product, micros }.emit();
        tokio::spawn(watch(running.clone(), created, destroyed));
        Ok(running)
    }

    /// Tells a context of tabs that come and go in it.
    pub fn register(&self, id: &BrowserContextId) -> mpsc::Receiver<Change> {
        let (sender, receiver) = mpsc::channel(CHANGES_MAX);
        self.listeners().insert(id.clone(), sender);
        receiver
    }

    /// Stops telling.
    pub fn forget(&self, id: &BrowserContextId) {
        self.listeners().remove(id);
    }

    /// Contexts with a task.
    fn lent(&self) -> usize {
        self.contexts.load(Ordering::SeqCst).saturating_sub(self.blanks.load(Ordering::SeqCst))
    }

    /// Whether another trajectory may live here beside those that do.
    pub fn has_a_place(&self) -> bool {
        self.lent() < self.bounds.contexts
    }

    /// Whether it is neither dead nor old nor full.
    pub fn takes_more(&self) -> bool {
        !self.link.dead.is_cancelled()
            && !self.is_old()
            && self.process.account.held_bytes() < self.bounds.memory_bytes
    }

    /// Whether it served as many trajectories as it may: what it leaked goes with it.
    fn is_old(&self) -> bool {
        self.served.load(Ordering::SeqCst) >= self.bounds.served
    }

    /// A context is thrown away within this time.
    pub fn disposal_deadline(&self) -> Duration {
        self.bounds.disposal
    }

    /// Why something of it was ended, if that was lately.
    pub fn overrun(&self) -> Option<Overrun> {
        self.process.account.overrun()
    }

    /// Kills the process; every context in it dies.
    pub fn kill(&self, why: &str) {
        tracing::warn!(browser = self.name, why, "a browser is killed");
        self.process.kill();
    }

    /// Ends the process in order. Always true, for `retain`.
    fn stop(&self) -> bool {
        self.stopped.cancel();
        self.process.kill();
        true
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<BrowserContextId, mpsc::Sender<Change>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a change on to its context. A context that does not look loses what is too much.
    fn tell(&self, context: Option<&BrowserContextId>, change: Change) {
        if let Some(listener) = context.and_then(|id| self.listeners().get(id).cloned()) {
            listener.try_send(change).ok();
        }
    }
}

/// Starts a browser, tests it and ends it: the test crashes pages on purpose, and trajectories get browsers that saw none of it.
async fn tested(config: &BrowserConfig) -> Result<Health, BrowserError> {
    let began = Instant::now();
    let running = Running::start(config, TESTED).await?;
    let outcome = selftest::run(&running, config).await;
    let sandbox = sandboxed(running.process.pid);
    let held_bytes = held_bytes(running.process.pid);
    running.stop();
    outcome?;
    if held_bytes.is_none() {
        tracing::warn!("the browser's processes cannot be seen in /proc: nothing holds it to its limits");
    }
    Ok(Health { product: running.product.clone(), sandbox, self_test: began.elapsed(), held_bytes })
}

/// What a browser holds, if its processes can be seen.
fn held_bytes(pid: u32) -> Option<u64> {
    let members = group_members(pid).ok()?;
    let sees_it = members.iter().any(|member| member.pid == pid) && members.len() > 1;
    sees_it.then(|| members.iter().map(|member| member.held_bytes).sum())
}

/// Sessions that fit into what is left beside the reserve.
fn sessions(available_bytes: u64, reserve_bytes: u64) -> u32 {
    u32::try_from(available_bytes.saturating_sub(reserve_bytes) / SESSION_BYTES).unwrap_or(u32::MAX)
}

/// Follows a process until it is gone, then says so to everybody.
async fn watch(
    running: Arc<Running>,
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
                // Here and not where the context is acted on: while its policy thinks, a page may open windows without end.
                if homes.values().filter(|home| *home == context).count() >= running.bounds.tabs {
                    let close = CloseTargetParams::new(info.target_id.clone());
                    if closing.len() < CLOSING_MAX {
                        closing.push(running.link.call(close, CLOSED_WITHIN, "closing a tab too many"));
                    }
                    running.tell(Some(context), Change::Refused);
                } else {
                    homes.insert(info.target_id.clone(), context.clone());
                    running.tell(Some(context), Change::Opened(info.target_id.clone()));
                }
            }
            // It may have closed itself.
            Some(_) = closing.next() => {}
            Some(event) = destroyed.next() => {
                let home = homes.remove(&event.target_id);
                running.tell(home.as_ref(), Change::Closed(event.target_id.clone()));
            }
        }
    }
    running.link.dead.cancel();
    running.process.kill();
    let (browser, pid) = (running.name.as_str(), running.process.pid);
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

impl Bounds {
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

fn failed(error: &dyn std::error::Error) -> StageError {
    StageError::Failed(error.to_string())
}

/// A context's place in its process, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    running: Arc<Running>,
    is_blank: bool,
}

impl Seat {
    /// For a trajectory; it is counted already.
    fn lent(running: Arc<Running>) -> Self {
        Self { running, is_blank: false }
    }

    /// For a context that waits.
    fn blank(running: Arc<Running>) -> Self {
        running.contexts.fetch_add(1, Ordering::SeqCst);
        running.blanks.fetch_add(1, Ordering::SeqCst);
        Self { running, is_blank: true }
    }

    /// The browser it is a place in.
    pub fn process(&self) -> Arc<Running> {
        self.running.clone()
    }

    /// From now on a trajectory lives here.
    fn lend(&mut self) {
        if std::mem::take(&mut self.is_blank) {
            self.running.blanks.fetch_sub(1, Ordering::SeqCst);
        }
        self.running.served.fetch_add(1, Ordering::SeqCst);
    }
}

impl std::ops::Deref for Seat {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.is_blank {
            self.running.blanks.fetch_sub(1, Ordering::SeqCst);
        }
        let was_last = self.running.contexts.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.running.is_old() {
            self.running.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_fit_beside_the_reserve() {
        let gib = 1 << 30;
        assert_eq!(sessions(gib, gib), 0);
        assert_eq!(sessions(gib / 2, gib), 0);
        assert_eq!(sessions(gib + SESSION_BYTES - 1, gib), 0);
        assert_eq!(sessions(gib + SESSION_BYTES, gib), 1);
        assert_eq!(sessions(3 * gib, gib), 16);
        assert_eq!(sessions(u64::MAX, 0), u32::MAX);
    }
}
