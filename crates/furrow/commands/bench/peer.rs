//! The browser loop in Playwright, started as a process and measured with everything it started.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use furrow_telemetry::{Memory, tree_usage};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::pace::{PaceArgs, Ran, Starts};
use crate::commands::headless;

/// A peer that can be started.
pub struct Peer {
    folder: PathBuf,
    browser: PathBuf,
}

/// For all pages to open, and for the last steps after the time is over.
const PATIENCE: Duration = Duration::from_secs(120);

impl Peer {
    /// The peer in a folder, or what is missing to start it.
    pub fn find(folder: &Path, args: &PaceArgs) -> Result<Self, String> {
        let shown = folder.display();
        if !folder.join("playwright_loop.mjs").is_file() {
            return Err(format!(
                "--peer: {shown} holds no playwright_loop.mjs: only our own loop is measured"
            ));
        }
        if !folder.join("node_modules/playwright-core").is_dir() {
            return Err(format!(
                "Playwright is not there: only our own loop is measured; install it by `cd {shown} && npm install`"
            ));
        }
        let node = std::process::Command::new("node").arg("--version").output();
        if !node.is_ok_and(|told| told.status.success()) {
            return Err("node is not there: only our own loop is measured; install Node 18 or newer".into());
        }
        let browser =
            headless::find(args.browser.as_deref()).ok_or("no browser for the peer: give --browser")?;
        Ok(Self { folder: folder.to_owned(), browser })
    }

    /// One round.
    pub async fn run(&self, args: &PaceArgs) -> anyhow::Result<(Starts, Ran)> {
        let mut child = self.command(args)?.spawn().context("starting node")?;
        let ran = measure(&mut child, args).await;
        // The end of its input lets it close its browsers; whatever hangs is ended with it.
        drop(child.stdin.take());
        if timeout(PATIENCE, child.wait()).await.is_err() {
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

async fn measure(child: &mut Child, args: &PaceArgs) -> anyhow::Result<(Starts, Ran)> {
    let pid = child.id().context("the peer is gone")?;
    let stdout = child.stdout.take().context("the peer has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let begun = told(&mut lines, "started", PATIENCE).await?;
    let starts = Starts {
        fresh_ms: numbers(&begun["fresh_ms"])?,
        reset_ms: numbers(&begun["reset_ms"])?,
        shown_ms: numbers(&begun["shown_ms"])?,
    };
    told(&mut lines, "ready", PATIENCE).await?;
    let before = tree_usage(pid, Memory::Rss)?;
    let done = told(&mut lines, "done", args.time() + PATIENCE).await?;
    let after = tree_usage(pid, Memory::Rss)?;
    let pss_bytes = tree_usage(pid, Memory::RssAndPss)?.pss_bytes;
    let latencies_ms = numbers(&done["latencies_ms"])?;
    let cpu_micros = after.cpu_micros.saturating_sub(before.cpu_micros);
    Ok((starts, Ran { latencies_ms, cpu_micros, pss_bytes }))
}

fn numbers(told: &Value) -> anyhow::Result<Vec<f64>> {
    let told = told.as_array().context("the peer told no times")?;
    Ok(told.iter().filter_map(Value::as_f64).collect())
}

/// The next line, which must say this.
async fn told(
    lines: &mut Lines<BufReader<ChildStdout>>,
    what: &str,
    limit: Duration,
) -> anyhow::Result<Value> {
    let line = timeout(limit, lines.next_line()).await;
    let line = line.with_context(|| format!("the peer was not {what} within {} s", limit.as_secs()))??;
    let value: Value = serde_json::from_str(&line.context("the peer ended; see what it said above")?)?;
    if value[what] == true { Ok(value) } else { Err(anyhow!("the peer said {value}, not {what}")) }
}
