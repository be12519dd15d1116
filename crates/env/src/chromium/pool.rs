//! A pool of browsers: contexts are the unit, a process holds about 25 of them, a dead process is replaced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chromiumoxide::cdp::browser_protocol::browser::BrowserContextId;
use chromiumoxide::cdp::browser_protocol::target::{EventTargetCreated, EventTargetDestroyed};
use furrow_rollout::{Assignment, EnvironmentFingerprint, Size, Task};
use furrow_telemetry::{
    BrowserDeath, BrowserDied, BrowserLimit, BrowserStarted, BrowserStopped, available_bytes, group_members,
};
use futures::StreamExt;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::context::{CHANGES_MAX, Change, Context, Reach};
use super::limits::Overrun;
use super::link::Link;
use super::network::Network;
use super::process::{BrowserError, Process, sandboxed, sweep};
use super::selftest;
use crate::archive::Archives;
use crate::config::BrowserConfig;
use crate::egress::{Egress, EgressLimits};
use crate::hosts::AllowList;
use crate::sites::Sites;
use crate::stage::{Room, Stage, StageError, Stages};

/// Contexts made at once: each costs 0.2 s of CPU, and a hundred together starve each other.
const OPENING_MAX: usize = 4;

/// What a new trajectory is taken to need: a light page holds 35 MB, an idle browser 110 MB, a heavy page more than either.
const SESSION_BYTES: u64 = 128 << 20;

/// A process that starts again and again is given up for this attempt.
const STARTS_MAX: u32 = 3;

/// No host of this name can be, by RFC 2606.
const NOWHERE: &str = "http://nowhere.invalid/";

/// A pool of headless Chromium processes.
pub struct Chromium {
    config: Arc<BrowserConfig>,
    sites: Arc<Sites>,
    egress: EgressLimits,
    archives: Option<Archives>,
    health: Health,
    processes: tokio::sync::Mutex<Vec<Arc<Running>>>,
    opening: Semaphore,
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
    screen: Size,
    contexts: AtomicUsize,
    listeners: Mutex<HashMap<BrowserContextId, mpsc::Sender<Change>>>,
    stopped: CancellationToken,
}

impl Chromium {
    /// Removes what dead workers left, starts a browser and tests it. `sites` are served to every context that may reach them.
    pub async fn start(
        config: BrowserConfig,
        sites: Arc<Sites>,
        egress: EgressLimits,
    ) -> Result<Self, BrowserError> {
        sweep();
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
        Ok(Self {
            config,
            sites,
            egress,
            archives: None,
            health,
            processes: tokio::sync::Mutex::default(),
            opening: Semaphore::new(OPENING_MAX),
        })
    }

    /// Records the network of its trajectories, or acts them from what was recorded. Each then has a browser process to itself.
    pub fn with_archives(self, archives: Archives) -> Self {
        Self { archives: Some(archives), ..self }
    }

    /// Contexts in one process.
    fn contexts_max(&self) -> usize {
        if self.archives.is_some() { 1 } else { self.config.contexts_per_browser as usize }
    }

    /// Version, sandbox and self-test.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// A process with room for one more context whose pages are of this size.
    async fn place(&self, screen: Size) -> Result<Arc<Running>, BrowserError> {
        let mut processes = self.processes.lock().await;
        processes.retain(|running| !running.link.dead.is_cancelled());
        let room = |running: &&Arc<Running>| {
            running.screen == screen
                && running.contexts.load(Ordering::SeqCst) < self.contexts_max()
                && running.has_memory_left(&self.config)
        };
        if let Some(running) =
            processes.iter().filter(room).min_by_key(|running| running.contexts.load(Ordering::SeqCst))
        {
            running.contexts.fetch_add(1, Ordering::SeqCst);
            return Ok(running.clone());
        }
        // What nobody uses and nobody can use makes room: its screen is of another size, or it kept the memory of pages that are gone.
        processes.retain(|running| running.contexts.load(Ordering::SeqCst) > 0 || !running.stop());
        let mut starts = 0;
        loop {
            starts += 1;
            match Running::start(&self.config, screen).await {
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
            locale: self.config.locale.clone(),
            timezone: self.config.timezone.clone(),
            viewport: task.map(|task| task.viewport),
        }
    }

    fn room(&self) -> Room {
        let reserve_bytes = self.config.memory_reserve_bytes;
        match available_bytes() {
            Some(available_bytes) if reserve_bytes > 0 => {
                Room { stages: sessions(available_bytes, reserve_bytes), available_bytes, reserve_bytes }
            }
            _ => Room::AMPLE,
        }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Stage>, StageError> {
        let failed = |error: &dyn std::error::Error| StageError::Failed(error.to_string());
        let task = assignment.task.clone();
        let allow = AllowList::new(&task.start_url, &task.allow_hosts).map_err(|bad| failed(&bad))?;
        let _turn = self.opening.acquire().await.map_err(|closed| failed(&closed))?;
        let running = self.place(task.viewport).await.map_err(|error| failed(&error))?;
        let seat = Seat(running);
        let reach = match self.archives {
            // What an archive does not answer reaches nobody: the list of nowhere.
            Some(Archives::Replay { .. }) => AllowList::new(NOWHERE, &[]).map_err(|bad| failed(&bad))?,
            _ => allow.clone(),
        };
        let network = match &self.archives {
            None => None,
            Some(archives) => {
                let (running, deadline) = (seat.0.clone(), self.config.deadlines.navigation);
                Some(Network::begin(archives, running, &assignment.ancestry, &task, deadline).await?)
            }
        };
        let egress = Egress::open(self.sites.clone(), reach, Some(assignment.ancestry.clone()), self.egress)
            .await
            .map_err(|error| failed(&error))?;
        let of = assignment.ancestry.clone();
        Ok(Box::new(
            Context::open(seat, self.config.clone(), of, task, Reach { allow, egress, network }).await?,
        ))
    }

    async fn close(&self) {
        self.processes.lock().await.drain(..).for_each(|running| {
            running.stop();
        });
    }
}

impl Running {
    async fn start(config: &BrowserConfig, screen: Size) -> Result<Arc<Self>, BrowserError> {
        let began = Instant::now();
        let process = Process::start(config, screen).await?;
        let link = Link::connect(&process.address).await?;
        let version = link.browser.version().await.map_err(super::link::broken)?;
        let (created, destroyed) = link.targets().await?;
        let running = Arc::new(Self {
            link,
            product: version.product,
            name: process.name(),
            process,
            screen,
            contexts: AtomicUsize::new(0),
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

    /// Whether another context fits: a browser three quarters full keeps the rest for the pages it has.
    fn has_memory_left(&self, config: &BrowserConfig) -> bool {
        self.process.account.held_bytes() < config.limits.memory_bytes / 4 * 3
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
    let running = Running::start(config, Size::new(1280, 720)).await?;
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
    let mut homes = HashMap::new();
    loop {
        tokio::select! {
            () = running.process.ended() => break,
            () = running.link.dead.cancelled() => break,
            Some(event) = created.next() => {
                let info = &event.target_info;
                if info.r#type == "page" && let Some(context) = &info.browser_context_id {
                    homes.insert(info.target_id.clone(), context.clone());
                    running.tell(Some(context), Change::Opened(info.target_id.clone()));
                }
            }
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

/// A context's place in its process, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Seat(Arc<Running>);

impl std::ops::Deref for Seat {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.contexts.fetch_sub(1, Ordering::SeqCst);
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
