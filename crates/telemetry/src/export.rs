//! `metrics.jsonl`: one line with all metrics every few seconds, appended and never rewritten. A
//! full file is set aside in `logs/`.
//!
//! A line is one flat JSON object. Totals have the metric's name as key; values of the interval
//! have further keys: `<counter>_per_second`, `<histogram>/p50`. The last line of a process has
//! `final: true`, and its interval is the whole life of the process, so its rates and percentiles
//! describe all of it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::clock::TimeSource;
use crate::config::TelemetryConfig;
use crate::labels::{Label, Role};
use crate::metrics::HistogramBuckets;
use crate::names::{MetricPoint, MetricSample, ProcessMetrics, process_metrics};
use crate::process::{MemoryMeasure, process_usage, tree_usage};
use crate::rotation::{RotatingFile, RotationConfig};

/// Appends lines to one `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsExporter {
    file: RotatingFile,
    path: PathBuf,
    /// Whether the file ends with an incomplete line.
    torn: bool,
    role: Role,
    started: String,
    time: TimeSource,
    figures: &'static ProcessMetrics,
    first: MetricsReading,
    last: MetricsReading,
    /// Earliest time of the next measurement of PSS.
    pss_due_micros: u64,
}

/// Folder beside the file for those that were set aside.
pub(crate) const ASIDE: &str = "logs";

/// For PSS the kernel walks the page tables of every process below this one: 0.4 s for 60 browser
/// contexts. After a measurement the next one waits 200 times as long as it took, which keeps all
/// of them below half a percent of one core.
const PSS_PAUSE: u64 = 200;

/// The metrics at one moment.
#[derive(Debug, Clone)]
struct MetricsReading {
    micros: u64,
    points: Vec<MetricPoint>,
}

/// Why metrics cannot be written.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The file cannot be opened.
    #[error("cannot open the metrics file {path:?} for appending")]
    Open { path: PathBuf, source: io::Error },
    /// The endpoint cannot be used.
    #[error("telemetry.otlp_endpoint: {endpoint:?} cannot be used: {reason}")]
    Endpoint { endpoint: String, reason: String },
    /// A line cannot be written.
    #[error("cannot append to the metrics file {path:?}")]
    Append { path: PathBuf, source: io::Error },
}

/// Appends a line each interval until `stop`, then the final one. A line that cannot be written (a
/// full disk) is logged and left out: metrics never stop a farm.
pub async fn export(mut exporter: MetricsExporter, config: TelemetryConfig, stop: CancellationToken) {
    let mut ticks = interval(config.metrics_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await; // the first tick is immediate
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let Some(back) = blocking(exporter, MetricsExporter::append).await else { return };
        exporter = back;
    }
    blocking(exporter, MetricsExporter::append_final).await;
}

/// Reads /proc and writes the file on a blocking thread. `None` when the runtime shuts down.
async fn blocking(
    mut exporter: MetricsExporter,
    append: impl FnOnce(&mut MetricsExporter) -> Result<(), ExportError> + Send + 'static,
) -> Option<MetricsExporter> {
    let appended = tokio::task::spawn_blocking(move || {
        exporter.measure_process();
        let appended = append(&mut exporter);
        (exporter, appended)
    });
    let (exporter, appended) = appended.await.ok()?;
    if let Err(error) = appended {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        warn!(error = %error, source, "a line of metrics was not written");
    }
    Some(exporter)
}

impl MetricsExporter {
    /// Opens the file for appending, and creates it if it is missing. The first interval begins
    /// now.
    pub fn open(
        path: &Path,
        role: Role,
        time: TimeSource,
        rotation: RotationConfig,
    ) -> Result<Self, ExportError> {
        Self::open_with(path, role, time, process_metrics(), rotation)
    }

    fn open_with(
        path: &Path,
        role: Role,
        time: TimeSource,
        figures: &'static ProcessMetrics,
        rotation: RotationConfig,
    ) -> Result<Self, ExportError> {
        let aside = path.parent().unwrap_or(Path::new(".")).join(ASIDE);
        let opened = RotatingFile::open(path, &aside, rotation);
        let opened = opened.and_then(|mut file| Ok((is_torn(file.file())?, file)));
        let (torn, file) = opened.map_err(|source| ExportError::Open { path: path.to_owned(), source })?;
        let first = MetricsReading { micros: time.micros(), points: figures.points() };
        let last = first.clone();
        let started = rfc3339(time.wall_micros());
        let path = path.to_owned();
        Ok(Self { file, path, torn, role, started, time, figures, first, last, pss_due_micros: 0 })
    }

    /// Appends a line for the time since the last one.
    pub fn append(&mut self) -> Result<(), ExportError> {
        let now = self.read();
        let line = self.line(&now, &self.last, false);
        self.last = now;
        self.write(&line)
    }

    /// Appends the line for the whole time since the exporter was opened.
    pub(crate) fn append_final(&mut self) -> Result<(), ExportError> {
        let now = self.read();
        let line = self.line(&now, &self.first, true);
        self.write(&line)
    }

    /// Updates the metrics of the process itself. PSS stays unchanged until its next measurement is
    /// due.
    pub(crate) fn measure_process(&mut self) {
        let pid = std::process::id();
        if let Ok(own) = process_usage(pid, MemoryMeasure::Rss) {
            self.figures.process_cpu_micros.raise_to(own.cpu_micros);
            self.figures.process_rss_bytes.set(Some(own.rss_bytes));
        }
        let began = self.time.micros();
        let is_due = began >= self.pss_due_micros;
        let Ok(tree) = tree_usage(pid, if is_due { MemoryMeasure::RssAndPss } else { MemoryMeasure::Rss })
        else {
            return;
        };
        self.figures.tree_processes.set(Some(tree.processes));
        self.figures.tree_cpu_micros.raise_to(tree.cpu_micros);
        self.figures.tree_rss_bytes.set(Some(tree.rss_bytes));
        if is_due {
            self.figures.tree_pss_bytes.set(tree.pss_bytes);
            let ended = self.time.micros();
            self.pss_due_micros = ended + PSS_PAUSE * (ended - began);
        }
    }

    fn read(&self) -> MetricsReading {
        MetricsReading { micros: self.time.micros(), points: self.figures.points() }
    }

    fn line(&self, now: &MetricsReading, since: &MetricsReading, is_final: bool) -> Map<String, Value> {
        let interval_micros = now.micros.saturating_sub(since.micros);
        let mut line = Map::new();
        line.insert("time".into(), rfc3339(self.time.wall_micros()).into());
        line.insert("role".into(), self.role.value().into());
        line.insert("pid".into(), std::process::id().into());
        // Together with role and pid this identifies the process on any machine: in containers
        // every process has pid 1.
        line.insert("started".into(), self.started.as_str().into());
        line.insert("uptime_seconds".into(), seconds(now.micros.saturating_sub(self.first.micros)).into());
        line.insert("interval_seconds".into(), seconds(interval_micros).into());
        line.insert("final".into(), is_final.into());
        for (point, before) in now.points.iter().zip(&since.points) {
            describe(point, before, seconds(interval_micros), &mut line);
        }
        line
    }

    /// Writes one line with one write. After a failed write the next line starts on a new line, so
    /// that at most one is unreadable.
    fn write(&mut self, line: &Map<String, Value>) -> Result<(), ExportError> {
        let start = if self.torn { "\n" } else { "" };
        let text = format!("{start}{}\n", json!(line));
        let written = self.file.append(text.as_bytes());
        self.torn = written.is_err();
        written.map_err(|source| ExportError::Append { path: self.path.clone(), source })
    }
}

/// Whether an earlier process was stopped in the middle of a line.
fn is_torn(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Adds a metric's total, and its values of the interval, to the line.
fn describe(point: &MetricPoint, before: &MetricPoint, interval_seconds: f64, line: &mut Map<String, Value>) {
    let key = match point.label {
        Some((_, value)) => format!("{}/{value}", point.name),
        None => point.name.to_owned(),
    };
    match (&point.sample, &before.sample) {
        (MetricSample::Counter(now), MetricSample::Counter(then)) => {
            let added = now.saturating_sub(*then) as f64;
            let rate = (interval_seconds > 0.0).then(|| added / interval_seconds);
            line.insert(key.clone(), (*now).into());
            line.insert(format!("{key}_per_second"), rate.into());
        }
        (MetricSample::Gauge(now), _) => {
            line.insert(key, (*now).into());
        }
        (
            MetricSample::Average { sum, count },
            MetricSample::Average { sum: sum_before, count: count_before },
        ) => {
            let added = count.saturating_sub(*count_before);
            let mean = (added > 0).then(|| (sum - sum_before) / added as f64);
            line.insert(format!("{key}/count"), (*count).into());
            line.insert(format!("{key}/mean"), mean.into());
        }
        (MetricSample::Histogram(now), MetricSample::Histogram(then)) => {
            line.insert(format!("{key}/count"), now.count().into());
            describe_interval(&key, &now.since(then), line);
        }
        _ => unreachable!("a metric never changes its kind: {key}"),
    }
}

fn describe_interval(key: &str, added: &HistogramBuckets, line: &mut Map<String, Value>) {
    line.insert(format!("{key}/mean"), added.mean().into());
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)] {
        line.insert(format!("{key}/{name}"), added.quantile(share).into());
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// A time outside of the calendar is given as a number.
fn rfc3339(wall_micros: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(wall_micros) * 1000)
        .ok()
        .and_then(|moment| moment.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{wall_micros} microseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TelemetryFile;
    use furrow_rollout::{EndKind, TimeCause};
    use std::fs;
    use std::time::Duration;

    fn rotation() -> RotationConfig {
        TelemetryFile::default().check().unwrap().rotation
    }

    /// Runs `happens` in an interval of two seconds and returns its line.
    fn line_about(happens: impl Fn(&ProcessMetrics)) -> Map<String, Value> {
        let figures: &'static ProcessMetrics = Box::leak(Box::new(ProcessMetrics::new()));
        // What happened before the interval counts only in totals.
        happens(figures);
        let folder = tempfile::tempdir().unwrap();
        let (time, hand) = TimeSource::manual(1_000_000);
        let mut exporter =
            MetricsExporter::open_with(&folder.path().join("m.jsonl"), Role::Run, time, figures, rotation())
                .unwrap();
        hand.advance(2_000_000);
        happens(figures);
        exporter.append().unwrap();
        read_lines(&folder.path().join("m.jsonl")).remove(0)
    }

    fn read_lines(path: &Path) -> Vec<Map<String, Value>> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    fn check(happens: impl Fn(&ProcessMetrics), want: Value) {
        let (line, Value::Object(want)) = (line_about(happens), want) else {
            panic!("the expected value must be an object")
        };
        for (key, value) in want {
            assert_eq!(line.get(&key), Some(&value), "{key}");
        }
    }

    #[test]
    fn pss_is_measured_only_when_it_is_due() {
        let figures: &'static ProcessMetrics = Box::leak(Box::new(ProcessMetrics::new()));
        let folder = tempfile::tempdir().unwrap();
        let (time, hand) = TimeSource::manual(0);
        let mut exporter =
            MetricsExporter::open_with(&folder.path().join("m.jsonl"), Role::Run, time, figures, rotation())
                .unwrap();
        figures.tree_pss_bytes.set(Some(1));
        exporter.pss_due_micros = 10;
        exporter.measure_process();
        assert_eq!(figures.tree_pss_bytes.get(), Some(1), "9 us too early");
        assert!(figures.tree_rss_bytes.get() > Some(1), "RSS is measured every time");
        hand.advance(10);
        exporter.measure_process();
        assert!(figures.tree_pss_bytes.get() > Some(1));
    }

    #[test]
    fn totals_are_of_the_process_and_rates_of_the_interval() {
        check(
            |_| (),
            json!({"time": "1970-01-01T00:00:03Z", "role": "run", "uptime_seconds": 2.0, "interval_seconds": 2.0,
                   "final": false, "pid": std::process::id()}),
        );
        check(
            |f| f.trajectories.add(3),
            json!({"rollout/trajectories": 6, "rollout/trajectories_per_second": 1.5}),
        );
        check(
            |f| f.ends.at(EndKind::Done).add(1),
            json!({"rollout/ends/done": 2, "rollout/ends/answered": 0}),
        );
        check(
            |f| f.session_micros.at(TimeCause::Policy).add(500),
            json!({"env/session_micros/policy": 1000, "env/session_micros/policy_per_second": 250.0}),
        );
        check(|f| f.running.set(7), json!({"rollout/running": 7}));
        check(|_| (), json!({"tree/pss_bytes": null, "rollout/running": 0}));
        check(|f| f.reward.record(-0.5), json!({"rollout/reward/count": 2, "rollout/reward/mean": -0.5}));
        check(|_| (), json!({"rollout/reward/count": 0, "rollout/reward/mean": null}));
        check(
            |f| (1..=10).for_each(|value| f.step_micros.record(value)),
            json!({"env/step_micros/count": 20, "env/step_micros/mean": 5.5, "env/step_micros/p50": 5,
                   "env/step_micros/p90": 9, "env/step_micros/p99": 10, "env/step_micros/max": 10}),
        );
        check(|_| (), json!({"env/step_micros/count": 0, "env/step_micros/p99": null}));
    }

    #[test]
    fn no_two_metrics_share_a_key() {
        let figures = ProcessMetrics::new();
        let mut all_keys = std::collections::BTreeSet::new();
        for point in figures.points() {
            let mut keys = Map::new();
            describe(&point, &point, 1.0, &mut keys);
            for key in keys.keys() {
                assert!(all_keys.insert(key.clone()), "{key}");
            }
        }
    }

    #[test]
    fn the_final_line_is_about_the_whole_life() {
        let figures: &'static ProcessMetrics = Box::leak(Box::new(ProcessMetrics::new()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/m.jsonl");
        let (time, hand) = TimeSource::manual(0);
        let mut exporter = MetricsExporter::open_with(&path, Role::Env, time, figures, rotation()).unwrap();
        for _ in 0..4 {
            hand.advance(1_000_000);
            figures.env_steps.add(2);
            exporter.append().unwrap();
        }
        hand.advance(4_000_000);
        exporter.append_final().unwrap();
        let lines = read_lines(&path);
        let rates: Vec<_> = lines.iter().map(|line| line["env/steps_per_second"].as_f64().unwrap()).collect();
        assert_eq!(rates, [2.0, 2.0, 2.0, 2.0, 1.0]);
        assert_eq!((&lines[4]["final"], &lines[4]["interval_seconds"]), (&json!(true), &json!(8.0)));
    }

    #[test]
    fn a_torn_line_spoils_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        fs::write(&path, "{\"whole\":1}\n{\"to").unwrap();
        let mut exporter = MetricsExporter::open(&path, Role::Run, TimeSource::system(), rotation()).unwrap();
        exporter.append().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[1]), (3, "{\"whole\":1}", "{\"to"));
        assert!(serde_json::from_str::<Value>(lines[2]).is_ok());
    }

    #[tokio::test]
    async fn lines_come_until_the_stop_and_the_last_is_final() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        let exporter = MetricsExporter::open(&path, Role::Run, TimeSource::system(), rotation()).unwrap();
        let config =
            TelemetryFile { metrics_interval_millis: 100, ..TelemetryFile::default() }.check().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(export(exporter, config, stop.clone()));
        let two_lines = async {
            while read_lines(&path).len() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), two_lines).await.expect("two lines");
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(30), task).await.expect("the export ends").unwrap();
        let lines = read_lines(&path);
        let finals: Vec<_> = lines.iter().map(|line| line["final"] == true).collect();
        assert_eq!(finals.iter().filter(|last| **last).count(), 1);
        assert_eq!(finals.last(), Some(&true));
        assert!(lines[0]["process/rss_bytes"].as_u64().unwrap() > 0);
        assert!(lines[0]["tree/pss_bytes"].as_u64().unwrap() > 0);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            MetricsExporter::open(folder.path(), Role::Run, TimeSource::system(), rotation()).unwrap_err();
        assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
    }
}
