//! `furrow bench dashboard`: what looking at a run costs it.
//!
//! The farm runs in a process of its own on real pages, its dashboard in another one, so that the CPU of each is the kernel's count and not a difference
//! of two runs: 2 % of a run lie far below what two runs differ by. A browser beside both has one page open after another, and at last stands still
//! with its connections open. That browser's own CPU is nobody's share, but it takes the run's processors: the rates say what is left.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use furrow_env::EnvFile;
use furrow_telemetry::{Memory, process_usage};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::BenchArgs;
use super::child::{Farm, Figures, PlaceArgs, Plan};
use super::pace::Page;
use super::report::Report;
use super::viewer::Viewer;
use crate::commands::headless;
use crate::commands::scratch::Scratch;
use crate::{Failure, launch};

/// How large the run is and how long it is looked at.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Trajectories at once
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// Steps of each
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Milliseconds that the policy takes for a reply
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=600_000))]
    think_millis: u64,
    /// Seconds that each page is open in a round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Rounds; each figure is the median of theirs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The page that is acted on
    #[arg(long, value_enum, default_value_t = Page::Light)]
    page: Page,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// What is looked at, in this order: nothing first, so that rates have something to be compared with.
const LOOKS: [Look; 7] = [
    Look { name: "nobody looks", page: None, is_stopped: false },
    Look::at("Overview", "/"),
    Look::at("Sessions", "/sessions"),
    Look::at("Trajectories", "/trajectories"),
    Look::at("Learning", "/learning"),
    Look::at("Job", "/job"),
    Look { name: "Sessions, the browser stopped", page: Some(("Sessions", "/sessions")), is_stopped: true },
];

/// Who looks at what.
#[derive(Debug, Clone, Copy)]
struct Look {
    name: &'static str,
    /// Name and path of the page that is open.
    page: Option<(&'static str, &'static str)>,
    /// Whether the browser stands still with it open.
    is_stopped: bool,
}

/// Trajectories are published so soon that the pages have something new to tell every few seconds.
const MAX_DELAY: Duration = Duration::from_secs(3);
/// For a dashboard to listen, and for a run to have published something.
const PATIENCE: Duration = Duration::from_secs(120);

/// The dashboard as `furrow dashboard` starts it.
struct Pages {
    child: Child,
    pid: u32,
    url: String,
}

/// What two lines of the run's figures lie apart, and what the dashboard took between them.
struct Measured {
    seconds: f64,
    steps: f64,
    run_micros: f64,
    dashboard_micros: f64,
}

/// Runs the command.
pub fn run(args: &DashboardArgs) -> Result<(), Failure> {
    let Some(program) = headless::find(args.place.browser.as_deref()) else {
        return Err(Failure::Input(vec!["no browser to look with: give --browser".into()]));
    };
    let mut report = Report::begin(&args.bench)?;
    let scratch = Scratch::make(&args.place.dir)?;
    launch::runtime()?.block_on(measure(args, &program, &scratch, &mut report))?;
    report.note("CPU of the dashboard's process beside that of the run's whole tree, its browsers with it; the browser that looks is in neither");
    report.print(&args.bench)
}

async fn measure(
    args: &DashboardArgs,
    program: &Path,
    scratch: &Scratch,
    report: &mut Report,
) -> Result<(), Failure> {
    let plan = Plan {
        env: EnvFile {
            sessions_max: args.sessions,
            browser: args.place.browser.clone(),
            ..EnvFile::default()
        },
        think: Duration::from_millis(args.think_millis),
        max_delay: MAX_DELAY,
        air: None,
        steps_max: Some(args.steps),
    };
    let folder = scratch.fresh("dashboard")?;
    let mut farm = Farm::start(folder.clone(), &args.place.pages, args.page, &plan)?;
    // Every session has ended a trajectory, so that they are of all ages.
    let trajectories = f64::from(args.sessions);
    farm.until(|now| now.of("env/trajectories") >= trajectories, PATIENCE).await?;
    let pages = Pages::start(&folder).await?;
    for round in 0..args.rounds {
        for (index, look) in LOOKS.into_iter().enumerate() {
            let folder = scratch.fresh(&format!("viewer-{round}-{index}"))?;
            let viewer = look.begin(program, &folder, &pages.url).await?;
            let measured = watch(&mut farm, &pages, Duration::from_secs(args.seconds)).await?;
            if let Some(viewer) = viewer {
                viewer.close().await?;
            }
            measured.tell(report, look.name);
        }
    }
    let memory = process_usage(pages.pid, Memory::Rss)?.rss_bytes;
    report.add("memory of the dashboard", "MB", memory as f64 / 1e6);
    pages.stop().await?;
    let last = farm.stop().await?;
    report.add("trajectories of the run", "", last.of("env/trajectories"));
    Ok(())
}

impl Look {
    const fn at(name: &'static str, path: &'static str) -> Self {
        Self { name, page: Some((name, path)), is_stopped: false }
    }

    async fn begin(self, program: &Path, folder: &Path, dashboard: &str) -> anyhow::Result<Option<Viewer>> {
        let Some((name, path)) = self.page else { return Ok(None) };
        // A title has the run's name when the page's first answer is drawn.
        let title = format!("{name} · bench");
        let viewer = Viewer::open(program, folder, &format!("{dashboard}{path}"), &title).await?;
        if self.is_stopped {
            viewer.stall()?;
        }
        Ok(Some(viewer))
    }
}

/// From one line of the run's figures to one that is so much later.
async fn watch(farm: &mut Farm, pages: &Pages, time: Duration) -> anyhow::Result<Measured> {
    let newest = farm.now()?.map_or(0.0, |line| line.of("uptime_seconds"));
    let first = farm.until(|line| line.of("uptime_seconds") > newest, PATIENCE).await?;
    let before = pages.cpu_micros()?;
    let enough = first.of("uptime_seconds") + time.as_secs_f64();
    let last = farm.until(|line| line.of("uptime_seconds") >= enough, time + PATIENCE).await?;
    let between = |name| Figures::of(&last, name) - first.of(name);
    Ok(Measured {
        seconds: between("uptime_seconds"),
        steps: between("env/steps"),
        run_micros: between("tree/cpu_micros"),
        dashboard_micros: pages.cpu_micros()? - before,
    })
}

impl Measured {
    fn tell(&self, report: &mut Report, name: &'static str) {
        report.add(
            format!("{name}: CPU of the dashboard"),
            "% of the run's",
            100.0 * self.dashboard_micros / self.run_micros,
        );
        report.add(format!("{name}: steps"), "1/s", self.steps / self.seconds);
    }
}

impl Pages {
    async fn start(folder: &Path) -> anyhow::Result<Self> {
        let said = folder.join("dashboard.txt");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("dashboard").arg(folder.join("bench")).args(["--listen", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?).kill_on_drop(true);
        let mut child = command.spawn().context("starting a dashboard")?;
        let pid = child.id().context("the dashboard is gone")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&said)?;
            let told = text.lines().find_map(|line| line.split_once("dashboard: ")).map(|(_, url)| url);
            if let Some(url) = told.filter(|_| text.ends_with('\n')) {
                return Ok(Self { child, pid, url: url.trim_end_matches('/').to_owned() });
            }
            if child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("the dashboard does not listen; it said: {text}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn cpu_micros(&self) -> anyhow::Result<f64> {
        Ok(process_usage(self.pid, Memory::Rss)?.cpu_micros as f64)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}
