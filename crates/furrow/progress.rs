//! Progress of a run: a bar for people, lines for logs, JSON for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use furrow_dashboard::trajectories_per_hour;
use furrow_wire::v1::ProgressResponse;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::output;

/// Time between two lines of a log that is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Shows progress until dropped.
pub(crate) struct ProgressDisplay {
    show: ProgressOutput,
}

enum ProgressOutput {
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
    Json { last: Option<Value> },
}

impl ProgressDisplay {
    /// Shows a bar on a terminal, else a line now and then; with `as_json`, one JSON object per
    /// change.
    pub(crate) fn new(as_json: bool) -> Self {
        let show = match (as_json, std::io::stderr().is_terminal()) {
            (true, _) => ProgressOutput::Json { last: None },
            (false, true) => ProgressOutput::Bar(bar("groups")),
            (false, false) => ProgressOutput::Lines { last: None },
        };
        Self { show }
    }

    /// Takes the newest progress.
    pub(crate) fn update(&mut self, now: &ProgressResponse) -> Result<(), serde_json::Error> {
        let text = describe(now);
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
                    output::json_line(&with_rate(&value, now))?;
                    *last = Some(value);
                }
            }
        }
        Ok(())
    }

    /// Prints the last state.
    pub(crate) fn finish(self) {
        if let ProgressOutput::Bar(bar) = self.show {
            bar.finish_and_clear();
        }
    }
}

/// The progress of a run as JSON.
pub(crate) fn progress_json(now: &ProgressResponse) -> Value {
    json!({
        "run_id": now.run_id, "groups_planned": now.groups_planned, "groups_closed": now.groups_closed, "assigned": now.assigned,
        "scored": now.scored, "failed": now.failed, "published": now.committed, "discarded": now.discarded, "steps": now.steps,
        "reward_mean": mean(now), "successes": now.successes, "env_workers": now.env_workers, "policy_workers": now.policy_workers,
        "admission": now.admission, "run_over": now.run_over,
    })
}

/// The same with the rate of this start, which changes without any change to report.
pub(crate) fn with_rate(progress: &Value, now: &ProgressResponse) -> Value {
    let mut progress = progress.clone();
    progress["trajectories_per_hour"] = trajectories_per_hour(now).into();
    progress
}

/// Counts finished items on the error stream, so that the standard output keeps only results.
#[derive(Debug)]
pub(crate) struct ItemProgress {
    what: &'static str,
    done: u64,
    total: u64,
    bar: Option<ProgressBar>,
    last_report: Instant,
}

impl ItemProgress {
    /// Counts up to `total` items named `what`: a bar on a terminal, else a line now and then.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(what));
        if let Some(bar) = &bar {
            bar.set_length(total);
        }
        Self { what, done: 0, total, bar, last_report: Instant::now() }
    }

    /// Raises the total by items that were not foreseen.
    pub(crate) fn expect_more(&mut self, items: u64) {
        self.total += items;
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
        }
    }

    /// Counts one finished item.
    pub(crate) fn step(&mut self) {
        self.advance(1);
    }

    /// Counts several finished items.
    pub(crate) fn advance(&mut self, items: u64) {
        self.done += items;
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
    pub(crate) fn say(&self, text: &str) {
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
pub(crate) struct BytesProgress {
    what: &'static str,
    bar: Option<ProgressBar>,
    last_report: Instant,
}

impl BytesProgress {
    /// Counts the bytes of something named `what`.
    pub(crate) fn new(what: &'static str) -> Self {
        let template = format!("{{bar:24}} {{bytes}}/{{total_bytes}} of {what}  {{bytes_per_sec}}");
        let bar = std::io::stderr().is_terminal().then(|| styled(&template));
        Self { what, bar, last_report: Instant::now() }
    }

    /// Reports `done` of `all` bytes.
    pub(crate) fn update(&mut self, done: u64, all: u64) {
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

fn describe(now: &ProgressResponse) -> String {
    let mut text = format!("{} scored, {} failed, {} running", now.scored, now.failed, now.assigned);
    if let Some(rate) = trajectories_per_hour(now) {
        text.push_str(&format!(", {rate:.0} per hour"));
    }
    let mean = mean(now).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.2}"));
    text.push_str(&format!(", reward {mean}"));
    let is_done = now.groups_planned > 0 && now.groups_closed >= now.groups_planned;
    if !is_done && !matches!(now.admission.as_str(), "" | "open") {
        text.push_str(&format!(" (no new trajectories: {})", now.admission));
    }
    text
}

fn mean(now: &ProgressResponse) -> Option<f64> {
    (now.scored > 0).then(|| now.reward_sum / f64::from(now.scored))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 431 scored by an earlier start, none by this one after 1 s: no million an hour.
    #[test]
    fn progress_of_a_resumed_run_has_the_rate_of_this_start() {
        let mut now = ProgressResponse {
            groups_planned: 500,
            groups_closed: 431,
            scored: 431,
            scored_before: 431,
            uptime_millis: 1000,
            reward_sum: 431.0,
            admission: "open".into(),
            ..ProgressResponse::default()
        };
        assert_eq!(describe(&now), "431 scored, 0 failed, 0 running, 0 per hour, reward 1.00");
        assert_eq!(with_rate(&progress_json(&now), &now)["trajectories_per_hour"], 0.0);
        (now.scored, now.uptime_millis) = (441, 1_800_000);
        assert!(describe(&now).contains(", 20 per hour,"), "{}", describe(&now));
    }

    #[test]
    fn a_run_without_a_reward_has_no_mean_and_a_finished_one_no_pause() {
        let now = |groups_closed, admission: &str| ProgressResponse {
            groups_planned: 3,
            groups_closed,
            failed: 4,
            admission: admission.into(),
            ..ProgressResponse::default()
        };
        let reason = "no policy worker is registered";
        let text = describe(&now(1, reason));
        assert_eq!(text, format!("0 scored, 4 failed, 0 running, reward – (no new trajectories: {reason})"));
        assert_eq!(describe(&now(3, "every group is closed")), "0 scored, 4 failed, 0 running, reward –");
        assert_eq!(progress_json(&now(1, "open"))["reward_mean"], Value::Null);
    }
}
