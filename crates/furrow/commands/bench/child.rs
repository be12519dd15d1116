//! A whole farm in a process of its own, as `furrow run` starts it, and the figures it writes of itself.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use furrow_dashboard::DashboardFile;
use furrow_env::EnvFile;
use furrow_policy::PolicyFile;
use furrow_records::RecordsFile;
use furrow_tasks::{SourceFile, TasksFile};
use furrow_telemetry::TelemetryFile;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::pace::Page;
use crate::job::{JobFile, RunFile};

/// Where a farm finds its pages and its browser, and where it writes.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Folder that holds the pages
    #[arg(long, default_value = "envs/bench")]
    pub pages: PathBuf,
    /// Folder whose disk the farm writes to; what it writes is removed
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Browser to use instead of the one that would be found
    #[arg(long, env = "FURROW_BROWSER")]
    pub browser: Option<PathBuf>,
}

/// What the farm is like.
pub struct Plan {
    /// Where its browsers act.
    pub env: EnvFile,
    /// Time the policy takes for a reply.
    pub think: Duration,
    /// Oldest that an unpublished trajectory may grow.
    pub max_delay: Duration,
    /// Air instead of browsers, with screenshots of this many bytes.
    pub air: Option<usize>,
    /// Steps after which a trajectory ends; `None`: it ends when the policy answers.
    pub steps_max: Option<u32>,
}

/// A farm at work.
pub struct Farm {
    child: Child,
    folder: PathBuf,
}

/// One line of its `metrics.jsonl`.
pub struct Figures(Value);

/// For sessions to come up, and for a farm to end.
const PATIENCE: Duration = Duration::from_secs(180);

/// Measuring a farm's own memory walks the page tables of all its browsers: every 5 s that is less than 1 % of a core.
const INTERVAL: Duration = Duration::from_secs(5);

impl Farm {
    /// Starts it in an empty folder, on the page of the bare loop.
    pub fn start(folder: PathBuf, pages: &Path, page: Page, plan: &Plan) -> anyhow::Result<Self> {
        write_tasks(&folder, pages, page, plan.steps_max.unwrap_or(10_000))?;
        let job = folder.join("job.toml");
        fs::write(&job, toml::to_string(&plan.job())?)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").arg(&job).arg("--json");
        if let Some(bytes) = plan.air {
            command.arg(format!("--air={bytes}"));
        }
        let said = File::create(folder.join("said.txt"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).kill_on_drop(true);
        let child = command.spawn().context("starting a farm")?;
        Ok(Self { child, folder })
    }

    /// Its process.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the farm is gone")
    }

    /// The newest line of figures.
    pub fn now(&mut self) -> anyhow::Result<Option<Figures>> {
        match self.child.try_wait()? {
            Some(status) => Err(self.ended(status)),
            None => Ok(self.lines()?.pop()),
        }
    }

    /// Waits for a line of figures of which this is true.
    pub async fn until(
        &mut self,
        is_so: impl Fn(&Figures) -> bool,
        limit: Duration,
    ) -> anyhow::Result<Figures> {
        let deadline = Instant::now() + limit + PATIENCE;
        loop {
            if let Some(line) = self.lines()?.into_iter().find(&is_so) {
                return Ok(line);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(self.ended(status));
            }
            if Instant::now() > deadline {
                return Err(anyhow!("the farm's figures did not come; it said: {}", self.said()));
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Has it drained; returns the figures of its whole life.
    pub async fn stop(mut self) -> anyhow::Result<Figures> {
        let pid = self.child.id().context("the farm is gone")?.to_string();
        Command::new("kill").args(["-TERM", &pid]).status().await.context("kill -TERM")?;
        let Ok(status) = timeout(PATIENCE, self.child.wait()).await else {
            self.child.kill().await?;
            return Err(anyhow!("the farm did not end; it said: {}", self.said()));
        };
        let status = status?;
        if !status.success() {
            return Err(self.ended(status));
        }
        let last = self.lines()?.pop().filter(|line| line.0["final"] == true);
        last.context("the farm wrote no last figures")
    }

    fn lines(&self) -> anyhow::Result<Vec<Figures>> {
        let path = self.folder.join("bench/metrics.jsonl");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let text = fs::read_to_string(path)?;
        // A line that is being written is not whole yet.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).map(Figures).collect())
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        anyhow!("the farm ended by itself ({status}); it said: {}", self.said())
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join("said.txt")).unwrap_or_default().trim().to_owned()
    }
}

impl Figures {
    /// The number of that name; 0 where there is none yet.
    pub fn of(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or_default()
    }
}

impl Plan {
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
            // What a dashboard costs is measured by itself (`furrow bench dashboard`).
            dashboard: DashboardFile { enabled: false, ..DashboardFile::default() },
            telemetry: TelemetryFile {
                metrics_interval_millis: INTERVAL.as_millis() as u64,
                ..TelemetryFile::default()
            },
            ..JobFile::default()
        }
    }
}

/// More trajectories than a benchmark lasts. The second source only brings the page: it is never reached.
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

fn write_tasks(folder: &Path, pages: &Path, page: Page, max_steps: u32) -> anyhow::Result<()> {
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
