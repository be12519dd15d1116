//! Settings of `[telemetry]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::LevelFilter;

/// The section as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryFile {
    /// How often a line is appended to `metrics.jsonl`.
    pub metrics_interval_millis: u64,
    /// Least severe level written to `logs/<role>.jsonl`. The events that say what was acknowledged and published are of level info.
    pub log_level: Level,
    /// Least severe level shown on the terminal.
    pub stderr_level: Level,
}

/// How severe a line must be to be written. What is named includes all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Checked settings; only [`TelemetryFile::check`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryConfig {
    pub(crate) metrics_interval: Duration,
    pub(crate) log_level: Level,
    pub(crate) stderr_level: Level,
}

impl Default for TelemetryFile {
    fn default() -> Self {
        Self {
            // A line is about 8 kB: 360 lines, 3 MB an hour.
            metrics_interval_millis: 10_000,
            log_level: Level::Info,
            stderr_level: Level::Warn,
        }
    }
}

impl TelemetryFile {
    /// Checks every value and names every problem.
    pub fn check(self) -> Result<TelemetryConfig, Vec<String>> {
        let millis = self.metrics_interval_millis;
        if !(100..=3_600_000).contains(&millis) {
            let remedy = "use 100 to 3600000 (an hour)";
            return Err(vec![format!(
                "telemetry.metrics_interval_millis: {millis} is out of range; {remedy}"
            )]);
        }
        Ok(TelemetryConfig {
            metrics_interval: Duration::from_millis(millis),
            log_level: self.log_level,
            stderr_level: self.stderr_level,
        })
    }
}

impl TelemetryConfig {
    /// The same settings with another level for the terminal, as `-v` and `--quiet` ask for.
    pub fn with_stderr_level(self, stderr_level: Level) -> Self {
        Self { stderr_level, ..self }
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(metrics_interval_millis: u64, want: Option<&str>) {
        let file = TelemetryFile { metrics_interval_millis, ..TelemetryFile::default() };
        let got = file.check().err().map(|problems| problems.join("\n"));
        assert_eq!(got.as_deref(), want);
    }

    #[test]
    fn values_are_checked() {
        check(100, None);
        check(10_000, None);
        check(3_600_000, None);
        let problem = "telemetry.metrics_interval_millis: 99 is out of range; use 100 to 3600000 (an hour)";
        check(99, Some(problem));
        check(3_600_001, Some(&problem.replace("99", "3600001")));
    }
}
