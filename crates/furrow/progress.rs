//! How far a run is: a bar for people, lines for logs, JSON for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use furrow_wire::v1::ProgressResponse;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::output;

/// How often a log that is no terminal gets a line.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Shows progress until it is dropped.
pub struct Progress {
    show: Show,
    began: Instant,
}

enum Show {
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
    Json { last: Option<Value> },
}

impl Progress {
    /// A bar on a terminal, else a line now and then; with `as_json` one JSON object a change.
    pub fn new(as_json: bool) -> Self {
        let show = match (as_json, std::io::stderr().is_terminal()) {
            (true, _) => Show::Json { last: None },
            (false, true) => Show::Bar(bar("groups")),
            (false, false) => Show::Lines { last: None },
        };
        Self { show, began: Instant::now() }
    }

    /// Takes the newest figures.
    pub fn update(&mut self, now: &ProgressResponse) -> Result<(), serde_json::Error> {
        let text = describe(now, self.began.elapsed());
        match &mut self.show {
            Show::Bar(bar) => {
                bar.set_length(u64::from(now.groups_planned));
                bar.set_position(u64::from(now.groups_closed));
                bar.set_message(text);
            }
            Show::Lines { last } => {
                if last.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
                    *last = Some(Instant::now());
                    output::line(format!("{} of {} groups, {text}", now.groups_closed, now.groups_planned));
                }
            }
            Show::Json { last } => {
                let value = figures(now);
                if last.as_ref() != Some(&value) {
                    output::json(&value)?;
                    *last = Some(value);
                }
            }
        }
        Ok(())
    }

    /// The last word.
    pub fn finish(self) {
        if let Show::Bar(bar) = self.show {
            bar.finish_and_clear();
        }
    }
}

/// The figures of a run, for programs.
pub fn figures(now: &ProgressResponse) -> Value {
    json!({
        "run_id": now.run_id, "groups_planned": now.groups_planned, "groups_closed": now.groups_closed, "assigned": now.assigned,
        "scored": now.scored, "failed": now.failed, "published": now.published, "discarded": now.discarded, "steps": now.steps,
        "reward_mean": mean(now), "successes": now.successes, "env_workers": now.env_workers, "policy_workers": now.policy_workers,
        "admission": now.admission, "run_over": now.run_over,
    })
}

/// How many of so many things are done: on the error stream, so that what a command prints stays what it found.
#[derive(Debug)]
pub struct Count {
    what: &'static str,
    done: u64,
    total: u64,
    bar: Option<ProgressBar>,
    told: Instant,
}

impl Count {
    /// Of `total` things called `what`: a bar on a terminal, else a line now and then.
    pub fn new(what: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(what));
        if let Some(bar) = &bar {
            bar.set_length(total);
        }
        Self { what, done: 0, total, bar, told: Instant::now() }
    }

    /// One more is done.
    pub fn step(&mut self) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.told.elapsed() >= LINE_EVERY => {
                self.told = Instant::now();
                output::aside(format!("{} of {} {}", self.done, self.total, self.what));
            }
            None => {}
        }
    }

    /// Says something about one of them, above the bar.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => output::aside(text),
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How many bytes of something are written: a bar on a terminal, else a line now and then, on the error stream.
#[derive(Debug)]
pub struct BytesDone {
    what: &'static str,
    bar: Option<ProgressBar>,
    told: Instant,
}

impl BytesDone {
    /// Of something called `what`.
    pub fn new(what: &'static str) -> Self {
        let template = format!("{{bar:24}} {{bytes}}/{{total_bytes}} of {what}  {{bytes_per_sec}}");
        let bar = std::io::stderr().is_terminal().then(|| styled(&template));
        Self { what, bar, told: Instant::now() }
    }

    /// So many bytes of so many.
    pub fn update(&mut self, done: u64, all: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(all);
                // Threads tell of their parts in any order.
                bar.set_position(done.max(bar.position()));
            }
            None if self.told.elapsed() >= LINE_EVERY => {
                self.told = Instant::now();
                output::aside(format!("{} of {} of {}", output::bytes(done), output::bytes(all), self.what));
            }
            None => {}
        }
    }
}

impl Drop for BytesDone {
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
        format!("{} scored, {} failed, {} running, {rate:.0} an hour", now.scored, now.failed, now.assigned);
    if let Some(mean) = mean(now) {
        text.push_str(&format!(", reward {mean:.2}"));
    }
    if !matches!(now.admission.as_str(), "" | "open") {
        text.push_str(&format!(" (nothing new: {})", now.admission));
    }
    text
}

fn mean(now: &ProgressResponse) -> Option<f64> {
    (now.scored > 0).then(|| now.reward_sum / f64::from(now.scored))
}
