//! `furrow-bench dashboard`: measures what an open dashboard costs a run.
//!
//! The farm runs in one process on real pages, its dashboard in another, so that the kernel counts
//! the CPU of each: 2 % of a run is far less than the difference between two runs. A browser beside
//! both opens one page after another, and at last is stopped with its connections open. The CPU of
//! that browser counts for neither, but it takes processor time from the run: the step rates show
//! the effect.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use furrow::{CommandFailure, ScratchDir, headless, runtime};
use furrow_env::EnvFile;
use furrow_telemetry::{MemoryMeasure, process_usage};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::BenchArgs;
use crate::child::{FarmPathArgs, FarmPlan, FarmProcess, MetricsLine};
use crate::pace::BenchPage;
use crate::report::BenchReport;
use crate::viewer::PageViewer;

/// Size of the run and duration of the measurement.
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Number of concurrent trajectories
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// Steps of each trajectory
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Milliseconds that the policy takes for a reply
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=600_000))]
    think_millis: u64,
    /// Seconds that each page is open in a round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Number of rounds; the result is the median over the rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Page to act on
    #[arg(long, value_enum, default_value_t = BenchPage::Light)]
    page: BenchPage,
    #[command(flatten)]
    paths: FarmPathArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// The pages to open, in this order. The first case opens none: it is the baseline.
const VIEWER_CASES: [ViewerCase; 7] = [
    ViewerCase { name: "no page open", page: None, is_stopped: false },
    ViewerCase::page_at("Overview", "/"),
    ViewerCase::page_at("Sessions", "/sessions"),
    ViewerCase::page_at("Trajectories", "/trajectories"),
    ViewerCase::page_at("Learning", "/learning"),
    ViewerCase::page_at("Job", "/job"),
    ViewerCase {
        name: "Sessions, the browser stopped",
        page: Some(("Sessions", "/sessions")),
        is_stopped: true,
    },
];

/// Which page a viewer opens.
#[derive(Debug, Clone, Copy)]
struct ViewerCase {
    name: &'static str,
    /// Name and path of the page.
    page: Option<(&'static str, &'static str)>,
    /// Whether the browser is stopped with the page open.
    is_stopped: bool,
}

/// Commits are frequent enough that the pages have something new every few seconds.
const MAX_DELAY: Duration = Duration::from_secs(3);
/// Longest time for a dashboard to listen, and for a run to commit something.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The process of `furrow dashboard`.
struct DashboardProcess {
    child: Child,
    pid: u32,
    url: String,
}

/// Differences between two lines of the run's metrics, and what the dashboard took between them.
struct DashboardMeasurement {
    seconds: f64,
    steps: f64,
    run_micros: f64,
    dashboard_micros: f64,
}

pub(crate) fn run(args: &DashboardArgs) -> Result<(), CommandFailure> {
    let Some(browser) = headless::find(args.paths.browser.as_deref()) else {
        return Err(CommandFailure::Input(vec!["no browser found to open the pages; set --browser".into()]));
    };
    let program = args.paths.program.find()?;
    let mut report = BenchReport::begin(&args.bench)?;
    let scratch = ScratchDir::make(&args.paths.dir)?;
    runtime()?.block_on(measure(args, &program, &browser, &scratch, &mut report))?;
    report.note("CPU of the dashboard's process, relative to that of the run's process tree with its browsers; the viewing browser counts for neither");
    report.print(&args.bench)
}

async fn measure(
    args: &DashboardArgs,
    program: &Path,
    browser: &Path,
    scratch: &ScratchDir,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let plan = FarmPlan {
        env: EnvFile {
            sessions_max: args.sessions,
            browser: args.paths.browser.clone(),
            ..EnvFile::default()
        },
        think: Duration::from_millis(args.think_millis),
        max_delay: MAX_DELAY,
        simulated_screenshot_bytes: None,
        steps_max: Some(args.steps),
    };
    let folder = scratch.fresh("dashboard")?;
    let mut farm = FarmProcess::start(program, folder.clone(), &args.paths.pages, args.page, &plan)?;
    // Each session has ended a trajectory, so ages are spread.
    let trajectories = f64::from(args.sessions);
    farm.until(|now| now.number("env/trajectories") >= trajectories, TIMEOUT).await?;
    let pages = DashboardProcess::start(program, &folder).await?;
    for round in 0..args.rounds {
        for (index, look) in VIEWER_CASES.into_iter().enumerate() {
            let folder = scratch.fresh(&format!("viewer-{round}-{index}"))?;
            let viewer = look.begin(browser, &folder, &pages.url).await?;
            let measured = watch(&mut farm, &pages, Duration::from_secs(args.seconds)).await?;
            if let Some(viewer) = viewer {
                viewer.close().await?;
            }
            measured.add_to(report, look.name);
        }
    }
    let memory = process_usage(pages.pid, MemoryMeasure::Rss)?.rss_bytes;
    report.add("memory of the dashboard", "MB", memory as f64 / 1e6);
    pages.stop().await?;
    let last = farm.stop().await?;
    report.add("trajectories of the run", "", last.number("env/trajectories"));
    Ok(())
}

impl ViewerCase {
    const fn page_at(name: &'static str, path: &'static str) -> Self {
        Self { name, page: Some((name, path)), is_stopped: false }
    }

    async fn begin(
        self,
        browser: &Path,
        folder: &Path,
        dashboard: &str,
    ) -> anyhow::Result<Option<PageViewer>> {
        let Some((name, path)) = self.page else { return Ok(None) };
        // The title has the run's name once the page's first answer is rendered.
        let title = format!("{name} · bench");
        let viewer = PageViewer::open(browser, folder, &format!("{dashboard}{path}"), &title).await?;
        if self.is_stopped {
            viewer.stall()?;
        }
        Ok(Some(viewer))
    }
}

/// Measures from one line of the run's metrics to the first one after `time`.
async fn watch(
    farm: &mut FarmProcess,
    pages: &DashboardProcess,
    time: Duration,
) -> anyhow::Result<DashboardMeasurement> {
    let newest = farm.now()?.map_or(0.0, |line| line.number("uptime_seconds"));
    let first = farm.until(|line| line.number("uptime_seconds") > newest, TIMEOUT).await?;
    let before = pages.cpu_micros()?;
    let enough = first.number("uptime_seconds") + time.as_secs_f64();
    let last = farm.until(|line| line.number("uptime_seconds") >= enough, time + TIMEOUT).await?;
    let between = |name| MetricsLine::number(&last, name) - first.number(name);
    Ok(DashboardMeasurement {
        seconds: between("uptime_seconds"),
        steps: between("env/steps"),
        run_micros: between("tree/cpu_micros"),
        dashboard_micros: pages.cpu_micros()? - before,
    })
}

impl DashboardMeasurement {
    fn add_to(&self, report: &mut BenchReport, name: &'static str) {
        report.add(
            format!("{name}: CPU of the dashboard"),
            "% of the run's",
            100.0 * self.dashboard_micros / self.run_micros,
        );
        report.add(format!("{name}: steps"), "1/s", self.steps / self.seconds);
    }
}

impl DashboardProcess {
    async fn start(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let log_path = folder.join("dashboard.txt");
        let mut command = Command::new(program);
        command.arg("dashboard").arg(folder.join("bench")).args(["--listen", "127.0.0.1:0"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log_path)?)
            .kill_on_drop(true);
        let mut child = command.spawn().context("starting a dashboard")?;
        let pid = child.id().context("the dashboard has ended")?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = fs::read_to_string(&log_path)?;
            let found_url = text.lines().find_map(|line| line.split_once("dashboard: ")).map(|(_, url)| url);
            if let Some(url) = found_url.filter(|_| text.ends_with('\n')) {
                return Ok(Self { child, pid, url: url.trim_end_matches('/').to_owned() });
            }
            if child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("the dashboard does not listen; its output: {text}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn cpu_micros(&self) -> anyhow::Result<f64> {
        Ok(process_usage(self.pid, MemoryMeasure::Rss)?.cpu_micros as f64)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}
