//! Progress of a run: a bar for people, lines for logs, JSON for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use furrow_wire::v1::ProgressResponse;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::output;

/// Time between two lines of a log that is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Shows progress until dropped.
pub struct ProgressDisplay {
    show: ProgressOutput,
    began: Instant,
}

enum ProgressOutput {
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
    Json { last: Option<Value> },
}

impl ProgressDisplay {
    /// Shows a bar on a terminal, else a line now and then; with `as_json`, one JSON object per
    /// change.
    pub fn new(as_json: bool) -> Self {
        let show = match (as_json, std::io::stderr().is_terminal()) {
            (true, _) => ProgressOutput::Json { last: None },
            (false, true) => ProgressOutput::Bar(bar("groups")),
            (false, false) => ProgressOutput::Lines { last: None },
        };
        Self { show, began: Instant::now() }
    }

    /// Takes the newest progress.
    pub fn update(&mut self, now: &ProgressResponse) -> Result<(), serde_json::Error> {
        let text = describe(now, self.began.elapsed());
        match &mut self.show {
            ProgressOutput::Bar(bar) => {
                bar.set_length(u64::from(now.groups_planned));
                bar.set_position(u64::from(now.groups_closed));
                bar.set_message(text);
            }
            ProgressOutput::Lines { last } => {
                if last.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
                    *last = Some(Instant::now());
                    output::line(format!("{} of {} groups, {text}", now.groups_closed, now.groups_planned));
                }
            }
            ProgressOutput::Json { last } => {
                let value = progress_json(now);
                if last.as_ref() != Some(&value) {
                    output::json(&value)?;
                    *last = Some(value);
                }
            }
        }
        Ok(())
    }

    /// Prints the last state.
    pub fn finish(self) {
        if let ProgressOutput::Bar(bar) = self.show {
            bar.finish_and_clear();
        }
    }
}

/// The progress of a run as JSON.
pub fn progress_json(now: &ProgressResponse) -> Value {
    json!({
        "run_id": now.run_id, "groups_planned": now.groups_planned, "groups_closed": now.groups_closed, "assigned": now.assigned,
        "scored": now.scored, "failed": now.failed, "published": now.committed, "discarded": now.discarded, "steps": now.steps,
        "reward_mean": mean(now), "successes": now.successes, "env_workers": now.env_workers, "policy_workers": now.policy_workers,
        "admission": now.admission, "run_over": now.run_over,
    })
}

/// Counts finished items on the error stream, so that the standard output keeps only results.
#[derive(Debug)]
pub struct ItemProgress {
    what: &'static str,
    done: u64,
    total: u64,
    bar: Option<ProgressBar>,
    last_report: Instant,
}

impl ItemProgress {
    /// Counts up to `total` items named `what`: a bar on a terminal, else a line now and then.
    pub fn new(what: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(what));
        if let Some(bar) = &bar {
            bar.set_length(total);
        }
        Self { what, done: 0, total, bar, last_report: Instant::now() }
    }

    /// Counts one finished item.
    pub fn step(&mut self) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.last_report.elapsed() >= LINE_EVERY => {
                self.last_report = Instant::now();
                output::progress_line(format!("{} of {} {}", self.done, self.total, self.what));
            }
            None => {}
        }
    }

    /// Prints a line about an item, above the bar.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => output::progress_line(text),
        }
    }
}

impl Drop for ItemProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Counts written bytes on the error stream: a bar on a terminal, else a line now and then.
#[derive(Debug)]
pub struct BytesProgress {
    what: &'static str,
    bar: Option<ProgressBar>,
    last_report: Instant,
}

impl BytesProgress {
    /// Counts the bytes of something named `what`.
    pub fn new(what: &'static str) -> Self {
        let template = format!("{{bar:24}} {{bytes}}/{{total_bytes}} of {what}  {{bytes_per_sec}}");
        let bar = std::io::stderr().is_terminal().then(|| styled(&template));
        Self { what, bar, last_report: Instant::now() }
    }

    /// Reports `done` of `all` bytes.
    pub fn update(&mut self, done: u64, all: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(all);
                // Threads report their parts in any order.
                bar.set_position(done.max(bar.position()));
            }
            None if self.last_report.elapsed() >= LINE_EVERY => {
                self.last_report = Instant::now();
                output::progress_line(format!(
                    "{} of {} of {}",
                    output::bytes(done),
                    output::bytes(all),
                    self.what
                ));
            }
            None => {}
        }
    }
}

impl Drop for BytesProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &str) -> ProgressBar {
    styled(&format!("{{bar:24}} {{pos}}/{{len}} {what}  {{msg}}"))
}

fn styled(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn describe(now: &ProgressResponse, elapsed: Duration) -> String {
    let rate = f64::from(now.scored) / elapsed.as_secs_f64().max(1.0) * 3600.0;
    let mut text =
        format!("{} scored, {} failed, {} running, {rate:.0} per hour", now.scored, now.failed, now.assigned);
    if let Some(mean) = mean(now) {
        text.push_str(&format!(", reward {mean:.2}"));
    }
    if !matches!(now.admission.as_str(), "" | "open") {
        text.push_str(&format!(" (no new trajectories: {})", now.admission));
    }
    text
}

fn mean(now: &ProgressResponse) -> Option<f64> {
    (now.scored > 0).then(|| now.reward_sum / f64::from(now.scored))
}
