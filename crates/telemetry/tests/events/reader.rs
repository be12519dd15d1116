//! The log of this process, read beside its metrics.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use furrow_telemetry::{MetricPoint, MetricSample, process_metrics};
use serde_json::{Map, Value};

/// Reads the log of this process, one event at a time.
pub(crate) struct LogReader {
    pub(crate) path: PathBuf,
    /// Names of the events that were checked.
    pub(crate) recorded_events: BTreeSet<String>,
}

impl LogReader {
    /// Emits, and compares the one new line (without times and messages) and its changes of the
    /// metrics.
    #[track_caller]
    pub(crate) fn check(&mut self, emit: impl FnOnce(), level: &str, want: Value, moved: &[(&str, i64)]) {
        let lines = self.lines().len();
        let before = totals();
        emit();
        let mut new = self.lines().split_off(lines);
        assert_eq!(new.len(), 1, "one event, one line: {new:?}");
        let mut line = new.remove(0);
        assert_eq!(line.remove("level").unwrap(), level, "{line:?}");
        for key in ["timestamp", "target", "message"] {
            assert!(line.remove(key).unwrap().is_string());
        }
        let name = want["event"].as_str().unwrap().to_owned();
        let Value::Object(want) = want else { panic!("the expected value must be an object: {want}") };
        assert_eq!(line, want);
        assert_eq!(changed(&before), moved.iter().map(|&(key, by)| (key.to_owned(), by)).collect::<Vec<_>>());
        self.recorded_events.insert(name);
    }

    fn lines(&self) -> Vec<Map<String, Value>> {
        let text = fs::read_to_string(&self.path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Every metric as one whole number: means and histograms by their counts.
fn totals() -> Vec<(String, i64)> {
    let total = |point: MetricPoint| {
        let key = point
            .label
            .map_or(point.name.to_owned(), |(_, label_value)| format!("{}/{label_value}", point.name));
        let number = match point.sample {
            MetricSample::Counter(value) => value as i64,
            MetricSample::Gauge(value) => value.unwrap_or(-1),
            MetricSample::Average { count, .. } => count as i64,
            MetricSample::Histogram(buckets) => buckets.count() as i64,
        };
        (key, number)
    };
    process_metrics().points().into_iter().map(total).collect()
}

fn changed(before: &[(String, i64)]) -> Vec<(String, i64)> {
    let now = totals();
    let moved = now.into_iter().zip(before).map(|((key, now), (_, then))| (key, now - then));
    moved.filter(|(_, by)| *by != 0).collect()
}
