//! A pool of browsers: contexts are the unit, a process serves about 25 of them, and a dead process
//! is replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chromiumoxide::cdp::browser_protocol::target::GetTargetsParams;
use furrow_rollout::{Assignment, EnvironmentFingerprint, Size, Task, TrajectoryAncestry};
use furrow_telemetry::{available_bytes, group_members};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::browser::{BrowserLease, RunningBrowser};
use super::command::BrowserKind;
use super::context::{BrowserContext, ContextChecks, ContextFiles, ContextTask, GradingParts};
use super::error::BrowserError;
use super::network::NetworkInterceptor;
use super::prewarm::{PrewarmedContext, WarmPool};
use super::process::{check_given, sandboxed};
use super::profile::remove_stale_profiles;
use super::selftest;
use super::walls::BrowserWalls;
use crate::archive::ArchiveMode;
use crate::back_end::{BackEnd, BackEndCall};
use crate::config::BrowserConfig;
use crate::egress::{EgressFilter, EgressLimits};
use crate::environment::{Capacity, Environment, EnvironmentError, EnvironmentFactory};
use crate::hosts::AllowList;
use crate::namespace::LoopbackNetwork;
use crate::secrets::{SecretGuard, TrajectorySecrets, scrubbed_error};
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

/// Number of failed starts after which a browser is given up for this attempt.
const STARTS_MAX: u32 = 3;

/// The kind of browser that is tested before a worker joins. Pages with either clock depend on what
/// is tested.
const SELF_TEST_KIND: BrowserKind =
    BrowserKind { viewport: Size::new(1280, 720), virtual_time: false, is_alone: false };

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
    walls: BrowserWalls,
    sites: Arc<SiteServer>,
    egress: EgressLimits,
    back_end: Arc<BackEnd>,
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
    /// How far browsers are shut off from the machine.
    pub walls: BrowserWalls,
    /// Duration of the self-test.
    pub self_test: Duration,
    /// Memory that the browser used after its test; `None` if its processes are not visible, so
    /// that no limit can be enforced.
    pub memory_bytes: Option<u64>,
    /// Scripts that the browser's fonts lack, such as `emoji` or `Chinese`: pages show empty boxes
    /// instead.
    pub missing_scripts: Vec<&'static str>,
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
        let walls = survey(&config).await?;
        let mut starts = 1;
        let health = loop {
            match test_browser(&config, &walls).await {
                Ok(health) => break health,
                // A browser may be killed during its test, like any other process.
                Err(error) if starts < STARTS_MAX && error.is_transient() => {
                    tracing::warn!(%error, starts, "the first browser failed; trying another");
                    starts += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let pins = egress.live.as_ref().map(|live| live.pins.clone()).unwrap_or_default();
        let back_end = Arc::new(BackEnd::new(&config.hooks, pins, config.secrets.clone()));
        let pool = ContextPool {
            config,
            walls,
            sites,
            egress,
            back_end,
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

    /// Number of pages in a browser, as the browser itself counts them.
    pub async fn open_pages(&self, browser: &str) -> Option<usize> {
        let processes = self.pool.processes.lock().await;
        let running = processes.iter().find(|running| running.name == browser)?;
        let deadline = self.pool.config.deadlines.input;
        let targets = running.link.call(GetTargetsParams::default(), deadline, "its pages").await.ok()?;
        Some(targets.target_infos.iter().filter(|target| target.r#type == "page").count())
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
        let network = lease.process().process.network.clone();
        let opened = EgressFilter::open_blocked(self.sites.clone(), self.egress.clone(), network).await;
        let egress = opened.map_err(|error| {
            // Without its network nothing can reach it any more.
            if matches!(lease.process().process.network, LoopbackNetwork::Namespace(_)) {
                lease.kill("no filter could be opened in its network namespace");
            }
            failed(&error)
        })?;
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
        let secrets = self.config.secrets.archived().clone();
        NetworkInterceptor::begin(archives, running, flight, (of, task), secrets, deadline).await.map(Some)
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
        if kind.is_alone {
            // Others need not wait while it starts.
            let running = self.start_browser(kind).await?;
            let mut processes = self.processes.lock().await;
            processes.retain(|running| !running.link.dead.is_cancelled());
            processes.push(running.clone());
            return Ok(running);
        }
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
        let running = self.start_browser(kind).await?;
        processes.push(running.clone());
        Ok(running)
    }

    /// Starts a browser, whose first context is already counted as used.
    async fn start_browser(&self, kind: BrowserKind) -> Result<Arc<RunningBrowser>, BrowserError> {
        let mut starts = 0;
        loop {
            starts += 1;
            match RunningBrowser::start(&self.config, kind, &self.walls).await {
                Ok(running) => {
                    running.contexts.fetch_add(1, Ordering::SeqCst);
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
            walls: Some(self.health.walls.level),
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
        let worker = self.pool.config.secrets.clone();
        let secrets =
            TrajectorySecrets::new(worker, &assignment.secrets).map_err(EnvironmentError::Failed)?;
        let scrubber = secrets.scrubber();
        let opened = self.open_context(assignment, secrets.clone()).await;
        let context = opened.map_err(|error| scrubbed_error(scrubber, error))?;
        Ok(match scrubber.is_empty() {
            true => context,
            false => Box::new(SecretGuard::new(context, secrets)),
        })
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

impl ChromiumPool {
    async fn open_context(
        &self,
        assignment: &Assignment,
        secrets: TrajectorySecrets,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        let task = &assignment.task;
        let allow = AllowList::new(&task.start_url, &task.allow_hosts).map_err(|bad| failed(&bad))?;
        let call = BackEndCall::of(assignment);
        if let Some(hook) = &assignment.checks.reset {
            self.pool.back_end.reset(hook, &call).await.map_err(EnvironmentError::Failed)?;
        }
        let kind = BrowserKind::of(task, &self.pool.config);
        let prewarmed = self.pool.take_context(kind).await?;
        if !kind.is_alone {
            self.refill(kind);
        }
        let network = match self.pool.network(&prewarmed, &assignment.ancestry, task).await {
            Ok(network) => network,
            Err(error) => {
                prewarmed.close().await;
                return Err(error);
            }
        };
        let files = match ContextFiles::open(&prewarmed, &self.pool.config, assignment).await {
            Ok(files) => files,
            Err(error) => {
                if let Some(network) = network {
                    network.close().await;
                }
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
        let of = Some(assignment.ancestry.clone());
        prewarmed.egress.allow_task(reach.clone(), of, self.pool.config.secrets.clone());
        let ContextPool { config, beginning, back_end, sites, egress, .. } = &*self.pool;
        let grading = GradingParts {
            config: config.clone(),
            sites: sites.clone(),
            limits: egress.clone(),
            reach,
            turns: beginning.clone(),
        };
        let checks =
            ContextChecks { queries: assignment.checks.queries.clone(), back_end: back_end.clone(), call };
        Ok(Box::new(BrowserContext::new(
            prewarmed,
            config.clone(),
            grading,
            ContextTask {
                of: assignment.ancestry.clone(),
                task: task.clone(),
                allow,
                checks,
                files,
                secrets,
            },
            network,
        )))
    }
}

/// The walls around the browsers of this worker, if they suffice for the job.
async fn survey(config: &Arc<BrowserConfig>) -> Result<BrowserWalls, BrowserError> {
    let surveyed = config.clone();
    let walls = tokio::task::spawn_blocking(move || BrowserWalls::survey(&surveyed)).await;
    let walls = walls.map_err(|why| BrowserError::Io {
        what: "find out what browsers can be shut off from",
        source: std::io::Error::other(why),
    })??;
    walls.check(config)?;
    for wall in &walls.missing {
        tracing::info!(level = walls.level.as_str(), "browsers lack {wall}");
    }
    Ok(walls)
}

/// Starts a browser, tests it and ends it: the test crashes pages on purpose, so trajectories get
/// other browsers.
async fn test_browser(config: &BrowserConfig, walls: &BrowserWalls) -> Result<BrowserHealth, BrowserError> {
    let began = Instant::now();
    let running = RunningBrowser::start(config, SELF_TEST_KIND, walls).await?;
    let outcome = selftest::run(&running, config, walls.level).await;
    let sandbox = sandboxed(running.process.pid);
    let memory_bytes = memory_bytes(running.process.pid);
    running.stop();
    let missing_scripts = outcome?;
    if memory_bytes.is_none() {
        tracing::warn!("the browser's processes are not visible in /proc: its limits are not enforced");
    }
    let product = running.product.clone();
    let walls = walls.clone();
    Ok(BrowserHealth { product, sandbox, walls, self_test: began.elapsed(), memory_bytes, missing_scripts })
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

fn failed(error: &dyn std::error::Error) -> EnvironmentError {
    EnvironmentError::Failed(error.to_string())
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
