//! The browser loop in Playwright, started as a process and measured with its whole process tree.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use furrow::headless;
use furrow_telemetry::{MemoryMeasure, tree_usage};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::pace::{PaceArgs, PaceMeasurement, StartTimes};

/// A peer that can be started.
pub(crate) struct PlaywrightPeer {
    folder: PathBuf,
    browser: PathBuf,
}

/// Longest time for all pages to open, and for the last steps after the measured time.
const TIMEOUT: Duration = Duration::from_secs(120);

impl PlaywrightPeer {
    /// The peer in a directory, or why it cannot start.
    pub(crate) fn find(folder: &Path, args: &PaceArgs) -> Result<Self, String> {
        let folder_text = folder.display();
        if !folder.join("playwright_loop.mjs").is_file() {
            return Err(format!(
                "--peer: {folder_text} has no playwright_loop.mjs, so only furrow's loop is measured; use the repository's tests/peers"
            ));
        }
        if !folder.join("node_modules/playwright-core").is_dir() {
            return Err(format!(
                "Playwright is not installed, so only furrow's loop is measured; run `cd {folder_text} && npm install`"
            ));
        }
        let node = std::process::Command::new("node").arg("--version").output();
        if !node.is_ok_and(|output| output.status.success()) {
            return Err(
                "node is not installed, so only furrow's loop is measured; install Node 18 or newer".into()
            );
        }
        let browser =
            headless::find(args.browser.as_deref()).ok_or("no browser found for the peer; set --browser")?;
        Ok(Self { folder: folder.to_owned(), browser })
    }

    pub(crate) async fn run(&self, args: &PaceArgs) -> anyhow::Result<(StartTimes, PaceMeasurement)> {
        let mut child = self.command(args)?.spawn().context("starting node")?;
        let ran = measure(&mut child, args).await;
        // The end of its input makes the peer close its browsers; a process that hangs is killed.
        drop(child.stdin.take());
        if timeout(TIMEOUT, child.wait()).await.is_err() {
            child.kill().await?;
        }
        ran
    }

    fn command(&self, args: &PaceArgs) -> anyhow::Result<Command> {
        let page = std::path::absolute(args.pages.join(args.page.file()))?;
        let mut command = Command::new("node");
        command.arg("playwright_loop.mjs").arg(std::path::absolute(&self.browser)?);
        command.arg(format!("file://{}", page.display()));
        command.args([u64::from(args.sessions), args.seconds, args.period_millis].map(|n| n.to_string()));
        command.args([args.browsers, args.starts].map(|n| n.to_string())).current_dir(&self.folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        Ok(command)
    }
}

async fn measure(child: &mut Child, args: &PaceArgs) -> anyhow::Result<(StartTimes, PaceMeasurement)> {
    let pid = child.id().context("the peer has ended")?;
    let stdout = child.stdout.take().context("the peer has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let begun = read_line(&mut lines, "started", TIMEOUT).await?;
    let starts = StartTimes {
        fresh_ms: numbers(&begun["fresh_ms"])?,
        reset_ms: numbers(&begun["reset_ms"])?,
        loaded_ms: numbers(&begun["loaded_ms"])?,
    };
    read_line(&mut lines, "ready", TIMEOUT).await?;
    let before = tree_usage(pid, MemoryMeasure::Rss)?;
    let done = read_line(&mut lines, "done", args.time() + TIMEOUT).await?;
    let after = tree_usage(pid, MemoryMeasure::Rss)?;
    let pss_bytes = tree_usage(pid, MemoryMeasure::RssAndPss)?.pss_bytes;
    let latencies_ms = numbers(&done["latencies_ms"])?;
    let cpu_micros = after.cpu_micros.saturating_sub(before.cpu_micros);
    Ok((starts, PaceMeasurement { latencies_ms, cpu_micros, pss_bytes }))
}

fn numbers(line: &Value) -> anyhow::Result<Vec<f64>> {
    let line = line.as_array().context("the peer reported no times")?;
    Ok(line.iter().filter_map(Value::as_f64).collect())
}

/// Reads the next line, which must report `what`.
async fn read_line(
    lines: &mut Lines<BufReader<ChildStdout>>,
    what: &str,
    limit: Duration,
) -> anyhow::Result<Value> {
    let line = timeout(limit, lines.next_line()).await;
    let line =
        line.with_context(|| format!("the peer did not report {what} within {} s", limit.as_secs()))??;
    let value: Value = serde_json::from_str(&line.context("the peer ended; see its output above")?)?;
    if value[what] == true { Ok(value) } else { Err(anyhow!("the peer reported {value}, not {what}")) }
}
