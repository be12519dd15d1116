//! The bare browser loop: sessions that act once a period on stages of real browsers, without policy service, coordinator or records.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use furrow_env::{Chromium, EnvConfig, EnvFile, Root, Site, Sites, Stage, StageError, Stages};
use furrow_policy::{PolicyFile, Random};
use furrow_rollout::{
    Action, Ancestry, Assignment, Clock, Direction, Id, ImageFormat, Observation, ObservationSpec, PageHooks,
    PagePoint, SessionSpec, Size, Split, Task,
};
use furrow_telemetry::{Memory, tree_usage};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::report::{Report, percentile};
use crate::Failure;

/// The loop's settings.
#[derive(Debug, Clone, Args)]
pub struct PaceArgs {
    /// Sessions, each a browser context of its own
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub sessions: u32,
    /// Seconds that are measured in each round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Milliseconds from one action of a session to its next
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub period_millis: u64,
    /// Browser processes that share the sessions
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub browsers: u32,
    /// Rounds; each figure is the median of theirs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Contexts made, and sites reset, in each round before the loop
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub starts: u32,
    /// Folder that holds the pages
    #[arg(long, default_value = "envs/bench")]
    pub pages: PathBuf,
    /// The page that is acted on
    #[arg(long, value_enum, default_value_t = Page::Shop)]
    pub page: Page,
    /// Browser to use instead of the one that would be found
    #[arg(long, env = "FURROW_BROWSER")]
    pub browser: Option<PathBuf>,
}

/// What the loop acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Page {
    /// A shop's front page: 120 cards with pictures, shadows and gradients
    Shop,
    /// A list of articles: text, and a few pictures that are drawn once
    Light,
}

/// What one round came to.
pub struct Ran {
    /// Steps and their latencies.
    pub latencies_ms: Vec<f64>,
    /// CPU time of browsers and driver.
    pub cpu_micros: u64,
    /// Memory of browsers and driver at the end, what they share counted once; `None` where the kernel does not tell.
    pub pss_bytes: Option<u64>,
}

/// How long beginnings took, one after the other on an idle machine.
#[derive(Debug, Default)]
pub struct Starts {
    /// A browser context with one empty tab, made from nothing.
    pub fresh_ms: Vec<f64>,
    /// From a page that was used to an empty tab in which nothing of that is left.
    pub reset_ms: Vec<f64>,
    /// The same, and the start page loaded in it.
    pub shown_ms: Vec<f64>,
}

/// What the loop's sessions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acts {
    /// Click, wheel and typing in turn, as the Playwright loop does.
    InTurn,
    /// What the random policy draws. An answer ends the trajectory: its browser context is thrown away and the next one opened.
    AtRandom,
}

impl Page {
    /// Its file in the folder of pages.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Shop => "shop.html",
            Self::Light => "light.html",
        }
    }

    /// Where a browser finds it.
    pub fn url(self) -> String {
        format!("http://bench.test/{}", self.file())
    }
}

impl PaceArgs {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<(), Failure> {
        let mut wrong = Vec::new();
        if !self.pages.join(self.page.file()).is_file() {
            let (folder, file) = (self.pages.display(), self.page.file());
            wrong.push(format!("--pages: {folder} holds no {file}; name the repository's envs/bench"));
        }
        if self.sessions.div_ceil(self.browsers) > 200 {
            wrong.push(format!("--browsers: {}; use at most 200 sessions a browser", self.browsers));
        }
        if self.seconds * 1000 < self.period_millis {
            wrong.push(format!("--seconds: {}; use at least one period", self.seconds));
        }
        if wrong.is_empty() { Ok(()) } else { Err(Failure::Input(wrong)) }
    }

    /// Time from one action of a session to its next.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_millis)
    }

    /// How long is measured.
    pub fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// `[env]` for these sessions.
    pub fn env_file(&self) -> EnvFile {
        EnvFile {
            sessions_max: self.sessions,
            contexts_per_browser: self.sessions.div_ceil(self.browsers),
            browser: self.browser.clone(),
            ..EnvFile::default()
        }
    }

    /// Steps of all sessions when none is ever late.
    fn ideal(&self) -> f64 {
        let starts = (0..self.sessions).map(|index| self.start(index));
        let steps =
            |start: Duration| ((self.time() - start).as_secs_f64() / self.period().as_secs_f64()).ceil();
        starts.map(steps).sum()
    }

    /// Sessions begin spread over one period, as they do when a policy answers them one by one.
    fn start(&self, index: u32) -> Duration {
        self.period() * index / self.sessions
    }
}

impl Ran {
    /// CPU time of one step in milliseconds.
    pub fn cpu_a_step(&self) -> f64 {
        self.cpu_micros as f64 / 1e3 / self.latencies_ms.len().max(1) as f64
    }

    /// Time a step took, waits of its own included.
    pub fn mean_latency(&self) -> Duration {
        let sum: f64 = self.latencies_ms.iter().sum();
        Duration::from_secs_f64(sum / 1e3 / self.latencies_ms.len().max(1) as f64)
    }

    /// Tells a round under names of its own.
    pub fn tell(&self, report: &mut Report, args: &PaceArgs, names: [&'static str; 5]) {
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

impl Starts {
    /// Tells the medians of a round under names of their own.
    pub fn tell(&self, report: &mut Report, names: [&'static str; 3]) {
        for (name, times) in names.into_iter().zip([&self.fresh_ms, &self.reset_ms, &self.shown_ms]) {
            if let Some(median) = percentile(times, 50.0) {
                report.add(name, "ms", median);
            }
        }
    }
}

/// Makes contexts and resets a site, one after the other: first without contexts that are ready, then with.
pub async fn start(args: &PaceArgs) -> Result<Starts, Failure> {
    let mut starts = Starts::default();
    if args.starts == 0 {
        return Ok(starts);
    }
    let session = PolicyFile::default().check().map_err(Failure::Input)?.session;
    let assignment = assignment(0, args.page, &session)?;
    let ms = |began: Instant| began.elapsed().as_secs_f64() * 1e3;
    let bare = pool(args, 0).await?;
    // The first of all starts the browser, here as there.
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
        while ready.ready() < READY as usize {
            sleep(Duration::from_millis(5)).await;
        }
        let began = Instant::now();
        let mut next = ready.open(&assignment).await?;
        starts.reset_ms.push(ms(began));
        next.begin().await?;
        starts.shown_ms.push(ms(began));
        std::mem::replace(&mut stage, next).close().await;
    }
    stage.close().await;
    ready.close().await;
    Ok(starts)
}

/// Contexts that are ready when a site is reset: what a job has by default.
const READY: u32 = 2;

/// Opens all pages, then acts on them for the time given. Opening and closing are not measured.
pub async fn run(args: &PaceArgs, acts: Acts) -> Result<Ran, Failure> {
    let pool = pool(args, args.env_file().contexts_ready).await?;
    let ran = act_on(&pool, args, acts).await;
    pool.close().await;
    ran
}

async fn pool(args: &PaceArgs, contexts_ready: u32) -> Result<Arc<Chromium>, Failure> {
    let EnvConfig { browser, egress, sites, .. } = EnvFile { contexts_ready, ..args.env_file() }
        .check(&std::env::current_dir()?)
        .map_err(Failure::Input)?;
    let site = Site { host: "bench.test".into(), root: Root::Folder(std::path::absolute(&args.pages)?) };
    let sites = Arc::new(Sites::open(&[site], sites)?);
    Ok(Arc::new(Chromium::start(browser, sites, egress).await?))
}

async fn act_on(pool: &Arc<Chromium>, args: &PaceArgs, acts: Acts) -> Result<Ran, Failure> {
    let players = open_all(pool, args, acts).await?;
    let before = tree_usage(std::process::id(), Memory::Rss)?;
    let began = Instant::now();
    let mut sessions = JoinSet::new();
    for player in players {
        sessions.spawn(paced(player, began, args.clone()));
    }
    let ran = sessions.join_all().await;
    let after = tree_usage(std::process::id(), Memory::Rss)?;
    let pss_bytes = tree_usage(std::process::id(), Memory::RssAndPss)?.pss_bytes;
    let mut latencies_ms = Vec::new();
    for (player, acted) in ran {
        player.stage.close().await;
        latencies_ms.extend(acted?);
    }
    Ok(Ran { latencies_ms, cpu_micros: after.cpu_micros.saturating_sub(before.cpu_micros), pss_bytes })
}

async fn open_all(pool: &Arc<Chromium>, args: &PaceArgs, acts: Acts) -> Result<Vec<Player>, Failure> {
    let session = PolicyFile::default().check().map_err(Failure::Input)?.session;
    let mut opening = JoinSet::new();
    for index in 0..args.sessions {
        let (pool, assignment) = (pool.clone(), assignment(index, args.page, &session)?);
        opening.spawn(Player::open(pool, assignment, index, acts));
    }
    Ok(opening.join_all().await.into_iter().collect::<Result<_, _>>()?)
}

/// A session of the loop.
struct Player {
    pool: Arc<Chromium>,
    assignment: Assignment,
    stage: Box<dyn Stage>,
    seen: Observation,
    acts: Acts,
    index: u32,
    /// Steps of this session.
    turn: u32,
}

impl Player {
    async fn open(
        pool: Arc<Chromium>,
        assignment: Assignment,
        index: u32,
        acts: Acts,
    ) -> Result<Self, StageError> {
        let (stage, seen) = enter(&pool, &assignment).await?;
        Ok(Self { pool, assignment, stage, seen, acts, index, turn: 0 })
    }

    /// An action; then quiet; then a picture.
    async fn step(&mut self) -> Result<(), StageError> {
        let action = match self.acts {
            Acts::InTurn => action(self.index + self.turn),
            Acts::AtRandom => self.drawn()?,
        };
        self.turn += 1;
        if let Action::Answer { .. } = action {
            return self.anew().await;
        }
        let outcome = self.stage.act(&action).await?;
        self.stage.settle(outcome).await?;
        self.seen = self.stage.observe().await?;
        Ok(())
    }

    fn drawn(&self) -> Result<Action, StageError> {
        let Assignment { ancestry, session, .. } = &self.assignment;
        Random.draw(ancestry, session, self.turn, self.seen.screenshot.size).map_err(StageError::Failed)
    }

    /// The end of a trajectory, as the environment worker ends it, and the beginning of the next.
    async fn anew(&mut self) -> Result<(), StageError> {
        self.stage.evidence().await;
        let (stage, seen) = enter(&self.pool, &self.assignment).await?;
        std::mem::replace(&mut self.stage, stage).close().await;
        self.seen = seen;
        Ok(())
    }
}

async fn enter(
    pool: &Arc<Chromium>,
    assignment: &Assignment,
) -> Result<(Box<dyn Stage>, Observation), StageError> {
    let mut stage = pool.open(assignment).await?;
    stage.begin().await?;
    let seen = stage.observe().await?;
    Ok((stage, seen))
}

async fn paced(mut player: Player, began: Instant, args: PaceArgs) -> (Player, Result<Vec<f64>, StageError>) {
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
        // A late step is not made up for: the loop keeps its distance, as a policy would.
        due = (due + args.period()).max(Instant::now());
    }
}

/// The very actions of tests/peers/playwright_loop.mjs.
fn action(turn: u32) -> Action {
    match turn % 3 {
        0 => {
            Action::click(PagePoint { x: (200 + turn * 37 % 800) as f32, y: (150 + turn * 53 % 400) as f32 })
        }
        1 => Action::scroll(if turn.is_multiple_of(2) { Direction::Up } else { Direction::Down }),
        _ => Action::Write { into: None, content: "abc".into(), press_enter: false },
    }
}

/// A session of its own, as any policy would ask for it.
pub fn assignment(index: u32, page: Page, session: &SessionSpec) -> Result<Assignment, Failure> {
    let run_id = Id::new("bench")?;
    let group_id = Id::nth(&run_id, index.into());
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Ok(Assignment {
        ancestry: Ancestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: 1,
        lease_millis: 60_000,
        task: task(index, page),
        session: session.clone(),
        policy_address: String::new(),
    })
}

fn task(index: u32, page: Page) -> Task {
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
        clock: Clock::Real,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(sessions: u32, seconds: u64, period_millis: u64) -> PaceArgs {
        let (browsers, rounds, starts, page, pages, browser) = (1, 1, 0, Page::Shop, PathBuf::new(), None);
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
