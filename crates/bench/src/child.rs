//! A whole farm in its own process, as `furrow run` starts it, and the metrics that it writes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use furrow::{JobFile, RunFile};
use furrow_dashboard::DashboardFile;
use furrow_env::EnvFile;
use furrow_policy::PolicyFile;
use furrow_records::RecordsFile;
use furrow_tasks::{SourceFile, TasksFile};
use furrow_telemetry::TelemetryFile;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::pace::BenchPage;
use crate::program::ProgramArgs;

/// The program of a farm, where it finds its pages and its browser, and where it writes.
#[derive(Debug, Args)]
pub(crate) struct FarmPathArgs {
    /// Directory with the pages to act on
    #[arg(long, default_value = "envs/bench")]
    pub pages: PathBuf,
    /// Directory on the disk to write to; everything written is removed at the end
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Browser program to use instead of the one that a farm would find
    #[arg(long, env = "FURROW_BROWSER")]
    pub browser: Option<PathBuf>,
    #[command(flatten)]
    pub program: ProgramArgs,
}

/// The settings of a farm.
pub(crate) struct FarmPlan {
    pub env: EnvFile,
    /// Time that the policy takes for a reply.
    pub think: Duration,
    /// Longest time until an ended trajectory is committed.
    pub max_delay: Duration,
    /// Simulated browsers with screenshots of this many bytes, instead of real ones.
    pub simulated_screenshot_bytes: Option<usize>,
    /// Number of steps after which a trajectory ends; `None`: it ends when the policy answers.
    pub steps_max: Option<u32>,
}

pub(crate) struct FarmProcess {
    child: Child,
    folder: PathBuf,
}

/// One line of the farm's `metrics.jsonl`.
pub(crate) struct MetricsLine(Value);

/// Longest time for sessions to start, and for a farm to end.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Measuring a farm's memory walks the page tables of all its browsers: once every 5 s takes less
/// than 1 % of a core.
const INTERVAL: Duration = Duration::from_secs(5);

impl FarmProcess {
    /// Starts `furrow run` in an empty directory, on the page of the bare loop.
    pub(crate) fn start(
        program: &Path,
        folder: PathBuf,
        pages: &Path,
        page: BenchPage,
        plan: &FarmPlan,
    ) -> anyhow::Result<Self> {
        write_tasks(&folder, pages, page, plan.steps_max.unwrap_or(10_000))?;
        let job = folder.join("job.toml");
        fs::write(&job, toml::to_string(&plan.job())?)?;
        let mut command = Command::new(program);
        command.arg("run").arg(&job).arg("--json");
        if let Some(bytes) = plan.simulated_screenshot_bytes {
            command.arg(format!("--simulate-browser={bytes}"));
        }
        let output = File::create(folder.join("said.txt"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).kill_on_drop(true);
        let child = command.spawn().context("starting a farm")?;
        Ok(Self { child, folder })
    }

    /// Process id of the farm.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the farm has ended")
    }

    /// The newest line of metrics.
    pub(crate) fn now(&mut self) -> anyhow::Result<Option<MetricsLine>> {
        match self.child.try_wait()? {
            Some(status) => Err(self.exit_error(status)),
            None => Ok(self.lines()?.pop()),
        }
    }

    /// Waits for a line of metrics that satisfies `is_so`.
    pub(crate) async fn until(
        &mut self,
        is_so: impl Fn(&MetricsLine) -> bool,
        limit: Duration,
    ) -> anyhow::Result<MetricsLine> {
        let deadline = Instant::now() + limit + TIMEOUT;
        loop {
            if let Some(line) = self.lines()?.into_iter().find(&is_so) {
                return Ok(line);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(self.exit_error(status));
            }
            if Instant::now() > deadline {
                return Err(anyhow!(
                    "the farm wrote no such metrics in time; its output: {}",
                    self.captured_output()
                ));
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Drains the farm; returns its final metrics.
    pub(crate) async fn stop(mut self) -> anyhow::Result<MetricsLine> {
        let pid = self.child.id().context("the farm has ended")?.to_string();
        Command::new("kill").args(["-TERM", &pid]).status().await.context("kill -TERM")?;
        let Ok(status) = timeout(TIMEOUT, self.child.wait()).await else {
            self.child.kill().await?;
            return Err(anyhow!("the farm did not end in time; its output: {}", self.captured_output()));
        };
        let status = status?;
        if !status.success() {
            return Err(self.exit_error(status));
        }
        let last = self.lines()?.pop().filter(|line| line.0["final"] == true);
        last.context("the farm wrote no final metrics")
    }

    fn lines(&self) -> anyhow::Result<Vec<MetricsLine>> {
        let path = self.folder.join("bench/metrics.jsonl");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let text = fs::read_to_string(path)?;
        // The last line may be incomplete.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).map(MetricsLine).collect())
    }

    fn exit_error(&self, status: ExitStatus) -> anyhow::Error {
        anyhow!("the farm ended early ({status}); its output: {}", self.captured_output())
    }

    fn captured_output(&self) -> String {
        fs::read_to_string(self.folder.join("said.txt")).unwrap_or_default().trim().to_owned()
    }
}

impl MetricsLine {
    /// The value of this metric; 0 if the line lacks it.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or_default()
    }
}

impl FarmPlan {
    fn job(&self) -> JobFile {
        JobFile {
            run: RunFile { name: "bench".into(), output_dir: ".".into(), ..RunFile::default() },
            tasks: tasks(),
            policy: PolicyFile {
                kind: "random".into(),
                think_millis: self.think.as_millis() as u64,
                sessions_max: self.env.sessions_max,
                ..PolicyFile::default()
            },
            env: EnvFile { drain_grace_millis: 0, ..self.env.clone() },
            records: RecordsFile {
                max_delay_millis: Some(self.max_delay.as_millis() as u64),
                ..RecordsFile::default()
            },
            // `furrow-bench dashboard` measures the dashboard.
            dashboard: DashboardFile { enabled: false, ..DashboardFile::default() },
            telemetry: TelemetryFile {
                metrics_interval_millis: INTERVAL.as_millis() as u64,
                ..TelemetryFile::default()
            },
            ..JobFile::default()
        }
    }
}

/// More trajectories than a benchmark can run. The second source is never sampled; it only serves
/// the page.
fn tasks() -> TasksFile {
    let source = |suite: &str, path: &str, repeat| SourceFile {
        suite: suite.into(),
        path: path.into(),
        repeat,
        ..SourceFile::default()
    };
    TasksFile {
        group_size: 1024,
        groups: Some(1000),
        source: vec![source("loop", "loop.jsonl", 1000), source("bench", "pages", 1)],
        ..TasksFile::default()
    }
}

fn write_tasks(folder: &Path, pages: &Path, page: BenchPage, max_steps: u32) -> anyhow::Result<()> {
    let served = folder.join("pages");
    fs::create_dir(&served)?;
    let file = page.file();
    fs::copy(pages.join(file), served.join(file)).with_context(|| format!("copying {file}"))?;
    let task = json!({
        "task_id": "shop", "goal": "Look around.", "start_url": page.url(), "max_steps": max_steps, "viewport": [1280, 720],
        "score": { "kind": "url", "host": "bench.test" },
    });
    fs::write(folder.join("loop.jsonl"), format!("{task}\n"))?;
    fs::write(served.join("tasks.jsonl"), format!("{task}\n"))?;
    Ok(())
}
