//! Results of several rounds, with the machine they were measured on.

use std::borrow::Cow;
use std::fs;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use furrow::{CommandFailure, output};
use serde_json::{Value, json};

/// Options of every benchmark.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Measure although other work loads the machine; the results are then less reliable
    #[arg(long)]
    pub anyway: bool,
    /// Print conditions, results and notes as one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// The report of a benchmark: conditions first, then results.
pub(crate) struct BenchReport {
    conditions: MachineConditions,
    figures: Vec<MeasuredSeries>,
    notes: Vec<String>,
}

/// Machine and time of the measurement.
struct MachineConditions {
    cpu: String,
    cores: usize,
    kernel: String,
    commit: Option<String>,
    load: f64,
}

/// One result, with a value per round.
struct MeasuredSeries {
    name: Cow<'static, str>,
    unit: &'static str,
    rounds: Vec<f64>,
}

/// Above this load, other work affects the results.
const LOAD_MAX: f64 = 1.0;

impl BenchReport {
    /// Reads the conditions; refuses a busy machine, on which results are unreliable.
    pub(crate) fn begin(args: &BenchArgs) -> Result<Self, CommandFailure> {
        let conditions = MachineConditions::detect();
        if cfg!(debug_assertions) {
            output::error_line("warning: this is a debug build; measure with `cargo build --release`");
        }
        if conditions.load > LOAD_MAX {
            let busy = format!("the load of the last minute is {:.2}, more than {LOAD_MAX}", conditions.load);
            if !args.anyway {
                return Err(CommandFailure::Input(vec![format!("{busy}; wait, or measure with --anyway")]));
            }
            output::error_line(&format!("warning: {busy}: the results are those of a busy machine"));
        }
        Ok(Self { conditions, figures: Vec::new(), notes: Vec::new() })
    }

    /// Adds this round's value of a result.
    pub(crate) fn add(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64) {
        let name = name.into();
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.rounds.push(value),
            None => self.figures.push(MeasuredSeries { name, unit, rounds: vec![value] }),
        }
    }

    /// Adds a note that the results need.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Prints the conditions, results and notes.
    pub(crate) fn print(&self, args: &BenchArgs) -> Result<(), CommandFailure> {
        if args.json {
            return Ok(output::json(&self.value())?);
        }
        output::line(self.conditions.line());
        let rows: Vec<Vec<String>> = self.figures.iter().map(MeasuredSeries::row).collect();
        output::table(&["result", "median", "least", "most", "rounds", "unit"], &rows);
        for note in &self.notes {
            output::line(format!("note: {note}"));
        }
        Ok(())
    }

    fn value(&self) -> Value {
        let figures: serde_json::Map<String, Value> =
            self.figures.iter().map(|figure| (figure.name.to_string(), figure.value())).collect();
        json!({ "conditions": self.conditions.value(), "figures": figures, "notes": self.notes })
    }
}

impl MachineConditions {
    fn detect() -> Self {
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into()),
            cores: cores(),
            kernel: first_field("/proc/sys/kernel/osrelease").unwrap_or_default(),
            commit: commit(),
            load: first_field("/proc/loadavg").and_then(|load| load.parse().ok()).unwrap_or_default(),
        }
    }

    fn line(&self) -> String {
        let Self { cpu, cores, kernel, load, .. } = self;
        let commit = self.commit.as_deref().unwrap_or("unknown");
        format!("{cores} cores of {cpu}, Linux {kernel}, load {load:.2} at the start, commit {commit}")
    }

    fn value(&self) -> Value {
        json!({
            "cpu": self.cpu, "cores": self.cores, "kernel": self.kernel, "commit": self.commit, "load": self.load,
            "version": env!("CARGO_PKG_VERSION"), "debug_build": cfg!(debug_assertions),
        })
    }
}

impl MeasuredSeries {
    fn row(&self) -> Vec<String> {
        let sorted = sorted(&self.rounds);
        let ends = [self.median(), sorted.first().copied(), sorted.last().copied()];
        let mut row = vec![self.name.to_string()];
        row.extend(ends.map(|value| value.map_or("–".into(), three_digits)));
        row.extend([self.rounds.len().to_string(), self.unit.to_owned()]);
        row
    }

    fn value(&self) -> Value {
        json!({ "median": self.median(), "unit": self.unit, "rounds": self.rounds })
    }

    fn median(&self) -> Option<f64> {
        percentile(&self.rounds, 50.0)
    }
}

/// The value that `percent` % of all do not exceed; with an even number of values, the 50th is the
/// mean of the middle two.
pub(crate) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    if percent == 50.0 && !sorted.is_empty() && sorted.len().is_multiple_of(2) {
        let upper = sorted.len() / 2;
        return Some(sorted[upper - 1].midpoint(sorted[upper]));
    }
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

pub(crate) fn megabytes_a_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Formats three significant digits.
fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Cores of this machine, which is the number of threads where none is given.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn first_field(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.split_whitespace().next()?.to_owned())
}

fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The commit of the current directory, if it is in a repository.
fn commit() -> Option<String> {
    let args = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[f64], percent: f64, want: Option<f64>) {
        assert_eq!(percentile(values, percent), want, "{percent} of {values:?}");
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        check(&[], 50.0, None);
        check(&[], 99.0, None);
        check(&[4.0], 50.0, Some(4.0));
        check(&[4.0], 99.0, Some(4.0));
        check(&[3.0, 1.0, 2.0], 50.0, Some(2.0));
        check(&[4.0, 1.0, 3.0, 2.0], 50.0, Some(2.5));
        check(&(1..=200).map(f64::from).collect::<Vec<_>>(), 99.0, Some(198.0));
    }

    #[test]
    fn a_figure_gathers_its_rounds() {
        let mut report =
            BenchReport { conditions: MachineConditions::detect(), figures: vec![], notes: vec![] };
        for value in [3.0, 1.0, 2.0] {
            report.add("rate", "1/s", value);
        }
        report.add("p99", "ms", 7.0);
        let value = report.value();
        assert_eq!(
            value["figures"]["rate"],
            json!({ "median": 2.0, "unit": "1/s", "rounds": [3.0, 1.0, 2.0] })
        );
        assert_eq!(value["figures"]["p99"]["median"], 7.0);
    }
}
