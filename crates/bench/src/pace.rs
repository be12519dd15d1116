//! The bare browser loop: sessions that act once per period in real browsers, without policy
//! service, coordinator or records.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use furrow::CommandFailure;
use furrow_env::{
    ChromiumPool, EnvConfig, EnvFile, Environment, EnvironmentError, EnvironmentFactory, FileRoot,
    SiteServer, StaticSite,
};
use furrow_policy::{PolicyFile, RandomPolicy};
use furrow_rollout::{
    Action, Assignment, Id, ImageFormat, LEASE_SECRET_BYTES, LeaseSecret, Observation, ObservationSpec,
    PageClock, PageHooks, PagePoint, ScrollDirection, SessionSpec, Size, Split, Task, TaskChecks, TaskFiles,
    TrajectoryAncestry,
};
use furrow_telemetry::{MemoryMeasure, tree_usage};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::report::{BenchReport, percentile};

#[derive(Debug, Clone, Args)]
pub(crate) struct PaceArgs {
    /// Number of sessions, each a separate browser context
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub sessions: u32,
    /// Seconds to measure in each round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Milliseconds between two actions of a session
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub period_millis: u64,
    /// Number of browser processes that share the sessions
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub browsers: u32,
    /// Number of rounds; the result is the median over the rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Number of contexts created, and of sites reset, in each round before the loop
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub starts: u32,
    /// Directory with the pages to act on
    #[arg(long, default_value = "envs/bench")]
    pub pages: PathBuf,
    /// Page to act on
    #[arg(long, value_enum, default_value_t = BenchPage::Shop)]
    pub page: BenchPage,
    /// Browser program to use instead of the one that a farm would find
    #[arg(long, env = "FURROW_BROWSER")]
    pub browser: Option<PathBuf>,
}

/// The page that the loop acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchPage {
    /// Front page of a shop: 120 cards with pictures, shadows and gradients
    Shop,
    /// List of articles: text, and a few pictures that are drawn once
    Light,
}

/// The result of one round.
pub(crate) struct PaceMeasurement {
    /// Latency of each step.
    pub latencies_ms: Vec<f64>,
    /// CPU time of browsers and driver.
    pub cpu_micros: u64,
    /// Memory of browsers and driver at the end, shared pages counted once; `None` if the kernel
    /// does not report it.
    pub pss_bytes: Option<u64>,
}

/// Times of session starts, one after the other on an idle machine.
#[derive(Debug, Default)]
pub(crate) struct StartTimes {
    /// Creating a browser context with one empty tab.
    pub fresh_ms: Vec<f64>,
    /// Resetting a used page to an empty tab without any of its data.
    pub reset_ms: Vec<f64>,
    /// The same, with the start page loaded in it.
    pub loaded_ms: Vec<f64>,
}

/// What the loop's sessions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActionSource {
    /// Click, wheel and typing in turn, as the Playwright loop does.
    InTurn,
    /// Actions of the random policy. An answer ends the trajectory: its browser context is closed
    /// and the next one opened.
    AtRandom,
}

impl BenchPage {
    /// File name in the directory of pages.
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Shop => "shop.html",
            Self::Light => "light.html",
        }
    }

    /// URL under which a browser loads it.
    pub(crate) fn url(self) -> String {
        format!("http://bench.test/{}", self.file())
    }
}

impl PaceArgs {
    /// Refuses settings that cannot be measured.
    pub(crate) fn check(&self) -> Result<(), CommandFailure> {
        let mut wrong = Vec::new();
        if !self.pages.join(self.page.file()).is_file() {
            let folder = self.pages.display();
            let file = self.page.file();
            wrong.push(format!("--pages: {folder} has no {file}; use the repository's envs/bench"));
        }
        if self.sessions.div_ceil(self.browsers) > 200 {
            wrong.push(format!("--browsers: {}; use at most 200 sessions per browser", self.browsers));
        }
        if self.seconds * 1000 < self.period_millis {
            wrong.push(format!("--seconds: {}; use at least one period (--period-millis)", self.seconds));
        }
        if wrong.is_empty() { Ok(()) } else { Err(CommandFailure::Input(wrong)) }
    }

    /// Time between two actions of a session.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_millis(self.period_millis)
    }

    /// Duration of the measurement.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// `[env]` for these sessions.
    pub(crate) fn env_file(&self) -> EnvFile {
        EnvFile {
            sessions_max: self.sessions,
            contexts_per_browser: self.sessions.div_ceil(self.browsers),
            browser: self.browser.clone(),
            ..EnvFile::default()
        }
    }

    /// Number of steps of all sessions if none is late.
    fn ideal(&self) -> f64 {
        let starts = (0..self.sessions).map(|index| self.start(index));
        let steps =
            |start: Duration| ((self.time() - start).as_secs_f64() / self.period().as_secs_f64()).ceil();
        starts.map(steps).sum()
    }

    /// Starts are spread over one period, as when a policy answers the sessions one by one.
    fn start(&self, index: u32) -> Duration {
        self.period() * index / self.sessions
    }
}

impl PaceMeasurement {
    /// CPU time of one step in milliseconds.
    pub(crate) fn cpu_a_step(&self) -> f64 {
        self.cpu_micros as f64 / 1e3 / self.latencies_ms.len().max(1) as f64
    }

    /// Mean time of a step, waits included.
    pub(crate) fn mean_latency(&self) -> Duration {
        let sum: f64 = self.latencies_ms.iter().sum();
        Duration::from_secs_f64(sum / 1e3 / self.latencies_ms.len().max(1) as f64)
    }

    /// Adds a round's results to the report under these names.
    pub(crate) fn add_to(&self, report: &mut BenchReport, args: &PaceArgs, names: [&'static str; 5]) {
        let latency = |percent| percentile(&self.latencies_ms, percent).unwrap_or(f64::NAN);
        report.add(names[0], "of ideal", self.latencies_ms.len() as f64 / args.ideal());
        report.add(names[1], "ms", latency(50.0));
        report.add(names[2], "ms", latency(99.0));
        report.add(names[3], "ms CPU", self.cpu_a_step());
        if let Some(bytes) = self.pss_bytes {
            report.add(names[4], "MB", bytes as f64 / 1e6);
        }
    }
}

impl StartTimes {
    /// Adds the medians of a round to the report under these names.
    pub(crate) fn add_to(&self, report: &mut BenchReport, names: [&'static str; 3]) {
        for (name, times) in names.into_iter().zip([&self.fresh_ms, &self.reset_ms, &self.loaded_ms]) {
            if let Some(median) = percentile(times, 50.0) {
                report.add(name, "ms", median);
            }
        }
    }
}

/// Creates contexts and resets a site, one after the other: first without prewarmed contexts, then
/// with them.
pub(crate) async fn start(args: &PaceArgs) -> Result<StartTimes, CommandFailure> {
    let mut starts = StartTimes::default();
    if args.starts == 0 {
        return Ok(starts);
    }
    let session = PolicyFile::default().check().map_err(CommandFailure::Input)?.session;
    let assignment = assignment(0, args.page, &session)?;
    let ms = |began: Instant| began.elapsed().as_secs_f64() * 1e3;
    let bare = pool(args, 0).await?;
    // The first session starts the browser, here as in the peer.
    bare.open(&assignment).await?.close().await;
    for _ in 0..args.starts {
        let began = Instant::now();
        let stage = bare.open(&assignment).await?;
        starts.fresh_ms.push(ms(began));
        stage.close().await;
    }
    bare.close().await;
    let ready = pool(args, READY).await?;
    let mut stage = ready.open(&assignment).await?;
    stage.begin().await?;
    for _ in 0..args.starts {
        while ready.ready_contexts() < READY as usize {
            sleep(Duration::from_millis(5)).await;
        }
        let began = Instant::now();
        let mut next = ready.open(&assignment).await?;
        starts.reset_ms.push(ms(began));
        next.begin().await?;
        starts.loaded_ms.push(ms(began));
        std::mem::replace(&mut stage, next).close().await;
    }
    stage.close().await;
    ready.close().await;
    Ok(starts)
}

/// Number of prewarmed contexts for the resets: a job's default.
const READY: u32 = 2;

/// Opens all pages, then acts on them for the given time. Opening and closing are not measured.
pub(crate) async fn run(args: &PaceArgs, acts: ActionSource) -> Result<PaceMeasurement, CommandFailure> {
    let pool = pool(args, args.env_file().contexts_ready).await?;
    let ran = act_on(&pool, args, acts).await;
    pool.close().await;
    ran
}

async fn pool(args: &PaceArgs, contexts_ready: u32) -> Result<Arc<ChromiumPool>, CommandFailure> {
    let EnvConfig { browser, egress, sites, .. } = EnvFile { contexts_ready, ..args.env_file() }
        .check(&std::env::current_dir()?)
        .map_err(CommandFailure::Input)?;
    let site =
        StaticSite { host: "bench.test".into(), root: FileRoot::Folder(std::path::absolute(&args.pages)?) };
    let sites = Arc::new(SiteServer::open(&[site], sites)?);
    Ok(Arc::new(ChromiumPool::start(browser, sites, egress).await?))
}

async fn act_on(
    pool: &Arc<ChromiumPool>,
    args: &PaceArgs,
    acts: ActionSource,
) -> Result<PaceMeasurement, CommandFailure> {
    let players = open_all(pool, args, acts).await?;
    let before = tree_usage(std::process::id(), MemoryMeasure::Rss)?;
    let began = Instant::now();
    let mut sessions = JoinSet::new();
    for player in players {
        sessions.spawn(run_paced(player, began, args.clone()));
    }
    let ran = sessions.join_all().await;
    let after = tree_usage(std::process::id(), MemoryMeasure::Rss)?;
    let pss_bytes = tree_usage(std::process::id(), MemoryMeasure::RssAndPss)?.pss_bytes;
    let mut latencies_ms = Vec::new();
    for (player, acted) in ran {
        player.environment.close().await;
        latencies_ms.extend(acted?);
    }
    Ok(PaceMeasurement {
        latencies_ms,
        cpu_micros: after.cpu_micros.saturating_sub(before.cpu_micros),
        pss_bytes,
    })
}

async fn open_all(
    pool: &Arc<ChromiumPool>,
    args: &PaceArgs,
    acts: ActionSource,
) -> Result<Vec<PacedSession>, CommandFailure> {
    let session = PolicyFile::default().check().map_err(CommandFailure::Input)?.session;
    let mut opening = JoinSet::new();
    for index in 0..args.sessions {
        let pool = pool.clone();
        let assignment = assignment(index, args.page, &session)?;
        opening.spawn(PacedSession::open(pool, assignment, index, acts));
    }
    Ok(opening.join_all().await.into_iter().collect::<Result<_, _>>()?)
}

struct PacedSession {
    pool: Arc<ChromiumPool>,
    assignment: Assignment,
    environment: Box<dyn Environment>,
    observation: Observation,
    acts: ActionSource,
    index: u32,
    /// Index of the session's next step.
    turn: u32,
}

impl PacedSession {
    async fn open(
        pool: Arc<ChromiumPool>,
        assignment: Assignment,
        index: u32,
        acts: ActionSource,
    ) -> Result<Self, EnvironmentError> {
        let (stage, observation) = enter(&pool, &assignment).await?;
        Ok(Self { pool, assignment, environment: stage, observation, acts, index, turn: 0 })
    }

    /// Acts, waits until the page is quiet, and takes a screenshot.
    async fn step(&mut self) -> Result<(), EnvironmentError> {
        let action = match self.acts {
            ActionSource::InTurn => action(self.index + self.turn),
            ActionSource::AtRandom => self.random_action()?,
        };
        self.turn += 1;
        if let Action::Answer { .. } = action {
            return self.restart().await;
        }
        let outcome = self.environment.act(&action).await?;
        self.environment.settle(outcome).await?;
        self.observation = self.environment.observe().await?;
        Ok(())
    }

    fn random_action(&self) -> Result<Action, EnvironmentError> {
        let Assignment { ancestry, session, .. } = &self.assignment;
        RandomPolicy
            .sample(ancestry, session, self.turn, self.observation.screenshot.size)
            .map_err(EnvironmentError::Failed)
    }

    /// Ends a trajectory as the environment worker does, and begins the next.
    async fn restart(&mut self) -> Result<(), EnvironmentError> {
        self.environment.evidence().await;
        let (stage, observation) = enter(&self.pool, &self.assignment).await?;
        std::mem::replace(&mut self.environment, stage).close().await;
        self.observation = observation;
        Ok(())
    }
}

async fn enter(
    pool: &Arc<ChromiumPool>,
    assignment: &Assignment,
) -> Result<(Box<dyn Environment>, Observation), EnvironmentError> {
    let mut stage = pool.open(assignment).await?;
    stage.begin().await?;
    let observation = stage.observe().await?;
    Ok((stage, observation))
}

async fn run_paced(
    mut player: PacedSession,
    began: Instant,
    args: PaceArgs,
) -> (PacedSession, Result<Vec<f64>, EnvironmentError>) {
    let mut latencies = Vec::new();
    let mut due = began + args.start(player.index);
    loop {
        sleep_until(due).await;
        let start = Instant::now();
        if start >= began + args.time() {
            return (player, Ok(latencies));
        }
        if let Err(error) = player.step().await {
            return (player, Err(error));
        }
        latencies.push(start.elapsed().as_secs_f64() * 1e3);
        // A late step shifts the following ones, as a policy's would.
        due = (due + args.period()).max(Instant::now());
    }
}

/// The same actions as in tests/peers/playwright_loop.mjs.
fn action(turn: u32) -> Action {
    match turn % 3 {
        0 => {
            Action::click(PagePoint { x: (200 + turn * 37 % 800) as f32, y: (150 + turn * 53 % 400) as f32 })
        }
        1 => Action::scroll(if turn.is_multiple_of(2) { ScrollDirection::Up } else { ScrollDirection::Down }),
        _ => Action::Write { into: None, content: "abc".into(), press_enter: false },
    }
}

/// A session of its own, as any policy would request it.
pub(crate) fn assignment(
    index: u32,
    page: BenchPage,
    session: &SessionSpec,
) -> Result<Assignment, CommandFailure> {
    let run_id = Id::new("bench")?;
    let group_id = Id::nth(&run_id, index.into());
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Ok(Assignment {
        ancestry: TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: 1,
        // No coordinator leases it, so none asks for it.
        secret: LeaseSecret::new([0; LEASE_SECRET_BYTES]),
        lease_millis: 60_000,
        task: task(index, page),
        files: TaskFiles::default(),
        checks: TaskChecks::default(),
        secrets: Vec::new(),
        session: session.clone(),
        policy_address: String::new(),
    })
}

fn task(index: u32, page: BenchPage) -> Task {
    Task {
        task_id: "shop".into(),
        suite: "bench".into(),
        split: Split::Train,
        goal: Some("Look around.".into()),
        start_url: page.url(),
        seed: index.into(),
        max_steps: u32::MAX,
        time_limit_millis: u64::MAX,
        viewport: Size::new(1280, 720),
        observation: ObservationSpec { format: ImageFormat::Jpeg { quality: 80 }, clip: None, square: false },
        allow_hosts: Vec::new(),
        hooks: PageHooks::default(),
        clock: PageClock::Real,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(sessions: u32, seconds: u64, period_millis: u64) -> PaceArgs {
        let browsers = 1;
        let rounds = 1;
        let starts = 0;
        let page = BenchPage::Shop;
        let pages = PathBuf::new();
        let browser = None;
        PaceArgs { sessions, seconds, period_millis, browsers, rounds, starts, page, pages, browser }
    }

    #[track_caller]
    fn check(args: &PaceArgs, want: f64) {
        assert_eq!(args.ideal(), want, "{args:?}");
    }

    #[test]
    fn the_ideal_counts_the_steps_that_begin_in_time() {
        check(&args(1, 1, 1000), 1.0);
        check(&args(60, 20, 2000), 600.0);
        check(&args(4, 3, 2000), 6.0);
    }
}
