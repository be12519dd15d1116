//! `furrow-bench walls`: what it costs to start a browser in a network of its own, and to give each
//! session a browser of its own.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use furrow::{CommandFailure, runtime};
use furrow_env::{
    ChromiumPool, EnvConfig, EnvFile, Environment, EnvironmentFactory, FileRoot, SiteServer, StaticSite,
};
use furrow_policy::PolicyFile;
use furrow_rollout::SessionSpec;
use furrow_telemetry::{MemoryMeasure, tree_usage};
use tokio::time::Instant;

use crate::BenchArgs;
use crate::pace::{self, BenchPage};
use crate::report::{BenchReport, percentile};

#[derive(Debug, Args)]
pub(crate) struct WallsArgs {
    /// Number of rounds; the result is the median over the rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of browsers started in each round, with and without a network of their own
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    starts: u32,
    /// Number of sessions whose memory is measured, in one browser and in one each
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    sessions: u32,
    /// Directory with the pages to open
    #[arg(long, default_value = "envs/bench")]
    pages: PathBuf,
    /// Browser program to use instead of the one that a farm would find
    #[arg(long, env = "FURROW_BROWSER")]
    browser: Option<PathBuf>,
    #[command(flatten)]
    bench: BenchArgs,
}

pub(crate) fn run(args: &WallsArgs) -> Result<(), CommandFailure> {
    let mut report = BenchReport::begin(&args.bench)?;
    let session = PolicyFile::default().check().map_err(CommandFailure::Input)?.session;
    runtime()?.block_on(async {
        for round in 0..args.rounds {
            starts(args, round, &session, &mut report).await?;
            memory(args, &session, &mut report).await?;
        }
        Ok::<_, CommandFailure>(())
    })?;
    report.print(&args.bench)
}

/// Starts browsers in turn, one with a network of its own and one in the machine's.
async fn starts(
    args: &WallsArgs,
    round: u32,
    session: &SessionSpec,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let one_each = |file: &mut EnvFile| file.trajectories_per_browser = 1;
    let own = pool(args, true, one_each).await?;
    let shared = pool(args, false, one_each).await?;
    report.note(format!("walls around the browsers of this worker: {}", own.health().walls.level.as_str()));
    let mut millis = [Vec::new(), Vec::new()];
    for start in 0..args.starts {
        // Whatever the first of a pair leaves in caches is the other one's in turn.
        let order = if (start + round).is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for which in order {
            let assignment = pace::assignment(start, BenchPage::Light, session)?;
            let began = Instant::now();
            let environment = [&own, &shared][which].open(&assignment).await?;
            millis[which].push(began.elapsed().as_secs_f64() * 1e3);
            environment.close().await;
        }
    }
    own.close().await;
    shared.close().await;
    let [own, shared] = millis.map(|times| percentile(&times, 50.0).unwrap_or_default());
    report.add("start, own network", "ms", own);
    report.add("start, machine's network", "ms", shared);
    report.add("start, own network / machine's", "x", own / shared);
    Ok(())
}

/// Opens sessions in one browser, then in a browser each, and measures what a session takes.
async fn memory(
    args: &WallsArgs,
    session: &SessionSpec,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    for (per_browser, memory, opened) in [
        (args.sessions, "memory a session, shared browser", "a session opened, shared browser"),
        (1, "memory a session, own browser", "a session opened, own browser"),
    ] {
        let pool = pool(args, true, |file| file.contexts_per_browser = per_browser).await?;
        let before = pss_bytes()?;
        let mut environments: Vec<Box<dyn Environment>> = Vec::new();
        let began = Instant::now();
        for index in 0..args.sessions {
            let assignment = pace::assignment(index, BenchPage::Light, session)?;
            let mut environment = pool.open(&assignment).await?;
            environment.begin().await?;
            environment.observe().await?;
            environments.push(environment);
        }
        let millis = began.elapsed().as_secs_f64() * 1e3 / f64::from(args.sessions);
        let bytes = pss_bytes()?.saturating_sub(before) as f64 / f64::from(args.sessions);
        report.add(memory, "MB", bytes / 1e6);
        report.add(opened, "ms", millis);
        for environment in environments {
            environment.close().await;
        }
        pool.close().await;
    }
    Ok(())
}

/// Memory of this process and all browsers, shared pages counted once.
fn pss_bytes() -> Result<u64, CommandFailure> {
    let usage = tree_usage(std::process::id(), MemoryMeasure::RssAndPss)?;
    Ok(usage.pss_bytes.unwrap_or(usage.rss_bytes))
}

async fn pool(
    args: &WallsArgs,
    may_have_network: bool,
    change: impl FnOnce(&mut EnvFile),
) -> Result<Arc<ChromiumPool>, CommandFailure> {
    let mut file = EnvFile { browser: args.browser.clone(), contexts_ready: 0, ..EnvFile::default() };
    change(&mut file);
    let EnvConfig { mut browser, egress, sites, .. } =
        file.check(&std::env::current_dir()?).map_err(CommandFailure::Input)?;
    browser.may_have_network = may_have_network;
    let root = FileRoot::Folder(std::path::absolute(&args.pages)?);
    let site = StaticSite { host: "bench.test".into(), root };
    let sites = Arc::new(SiteServer::open(&[site], sites)?);
    Ok(Arc::new(ChromiumPool::start(browser, sites, egress).await?))
}
