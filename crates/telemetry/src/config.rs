//! Settings of `[telemetry]`: the section as a job file has it, and the checked form that a process
//! runs with.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::LevelFilter;

use crate::rotation::RotationConfig;

/// The section as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryFile {
    /// Milliseconds between two lines in `metrics.jsonl`.
    pub metrics_interval_millis: u64,
    /// Least severe level written to `logs/<role>.jsonl`. The events for acknowledged steps and
    /// committed shards have level info.
    pub log_level: Level,
    /// Length in bytes at which a file of `logs/`, and `metrics.jsonl`, is set aside under a number
    /// in `logs/`. A smaller one bounds the disk they take.
    pub log_file_bytes: u64,
    /// Files that are kept beside each current one; then the oldest is removed.
    pub log_files_kept: u32,
    /// Least severe level shown on the terminal.
    pub stderr_level: Level,
    /// Endpoint that gets metrics and spans over OTLP/gRPC, such as `http://127.0.0.1:4317`; none
    /// if absent or empty. Needs a build with the feature `otel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
}

/// The least severe level to write; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Checked settings; only [`TelemetryFile::check`] creates them.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryConfig {
    pub(crate) metrics_interval: Duration,
    pub(crate) log_level: Level,
    /// When log files and `metrics.jsonl` are set aside.
    pub rotation: RotationConfig,
    pub stderr_level: Level,
    pub(crate) otlp_endpoint: Option<String>,
}

impl Default for TelemetryFile {
    fn default() -> Self {
        Self {
            // A line has about 8 kB: 360 lines are 3 MB per hour.
            metrics_interval_millis: 10_000,
            log_level: Level::Info,
            // At 50 steps a second a file of 256 MiB is three hours; nine of them are 2.3 GB.
            log_file_bytes: 256 << 20,
            log_files_kept: 8,
            stderr_level: Level::Warn,
            otlp_endpoint: None,
        }
    }
}

impl TelemetryFile {
    /// Checks every value and reports every problem.
    pub fn check(self) -> Result<TelemetryConfig, Vec<String>> {
        self.check_for(cfg!(feature = "otel"))
    }

    fn check_for(self, exports: bool) -> Result<TelemetryConfig, Vec<String>> {
        let mut problems = Vec::new();
        let millis = self.metrics_interval_millis;
        if !(100..=3_600_000).contains(&millis) {
            let remedy = "use 100 to 3600000 (an hour)";
            problems.push(format!("telemetry.metrics_interval_millis: {millis} is out of range; {remedy}"));
        }
        let bytes_max = self.log_file_bytes;
        if !(65_536..=1 << 40).contains(&bytes_max) {
            let remedy = "use 65536 to 1099511627776";
            problems.push(format!("telemetry.log_file_bytes: {bytes_max} is out of range; {remedy}"));
        }
        let files_kept = self.log_files_kept;
        if files_kept > 1_000 {
            problems.push(format!("telemetry.log_files_kept: {files_kept} is out of range; use 0 to 1000"));
        }
        let otlp_endpoint = self.otlp_endpoint.filter(|endpoint| !endpoint.is_empty());
        if let Some(endpoint) = &otlp_endpoint {
            let problem = if exports { endpoint_problem(endpoint) } else { Some(NOT_BUILT_IN) };
            let cut_endpoint: String = endpoint.chars().take(ENDPOINT_BYTES_MAX).collect();
            problems.extend(
                problem.map(|problem| format!("telemetry.otlp_endpoint: {cut_endpoint:?}; {problem}")),
            );
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(TelemetryConfig {
            metrics_interval: Duration::from_millis(millis),
            log_level: self.log_level,
            rotation: RotationConfig { bytes_max, files_kept },
            stderr_level: self.stderr_level,
            otlp_endpoint,
        })
    }
}

const NOT_BUILT_IN: &str = "this furrow was built without OpenTelemetry; build it with `cargo build --release --features otel`, \
                            or leave the key empty";

/// A host name has at most 253 bytes, and the rest of the URL is short.
const ENDPOINT_BYTES_MAX: usize = 300;

/// Why an endpoint is refused: it must be `http://`, a name or an address, a port, and nothing
/// else.
fn endpoint_problem(endpoint: &str) -> Option<&'static str> {
    if endpoint.starts_with("https://") {
        return Some(
            "TLS is not supported; use http:// with a collector on this machine that forwards over TLS",
        );
    }
    let right = Some("use http://HOST:PORT, such as http://127.0.0.1:4317");
    let Some(address) = endpoint.strip_prefix("http://") else { return right };
    let Some((host, port)) = address.strip_suffix('/').unwrap_or(address).rsplit_once(':') else {
        return right;
    };
    let is_named = |host: &str| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(numbers) => numbers.parse::<Ipv6Addr>().is_ok(),
        None => is_named(host),
    };
    let is_port =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_host && is_port && endpoint.len() <= ENDPOINT_BYTES_MAX { None } else { right }
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

    #[test]
    fn files_are_neither_tiny_nor_countless() {
        let file = TelemetryFile { log_file_bytes: 1, log_files_kept: 1_001, ..TelemetryFile::default() };
        let problems = [
            "telemetry.log_file_bytes: 1 is out of range; use 65536 to 1099511627776",
            "telemetry.log_files_kept: 1001 is out of range; use 0 to 1000",
        ];
        assert_eq!(file.check().unwrap_err(), problems);
    }

    #[track_caller]
    fn check_endpoint(endpoint: &str, exports: bool, want: Option<&str>) {
        let file = TelemetryFile { otlp_endpoint: Some(endpoint.into()), ..TelemetryFile::default() };
        let got = file.check_for(exports).err().map(|problems| problems.join("\n"));
        assert!(got.is_some() == want.is_some(), "{endpoint:?}: {got:?}");
        let got = got.unwrap_or_default();
        let want = want.unwrap_or_default();
        assert!(got.contains(want), "{got:?} does not contain {want:?}");
        let key = format!("telemetry.otlp_endpoint: {endpoint:?}; ");
        assert!(got.is_empty() || endpoint.len() > ENDPOINT_BYTES_MAX || got.starts_with(&key), "{got}");
    }

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        for good in [
            "http://127.0.0.1:4317",
            "http://collector.telemetry:4317/",
            "http://a_b-c:1",
            "http://[::1]:65535",
        ] {
            check_endpoint(good, true, None);
        }
        let right = Some("use http://HOST:PORT, such as http://127.0.0.1:4317");
        for bad in [
            "127.0.0.1:4317",
            "http://",
            "http://:4317",
            "http://host",
            "http://host:",
            "http://host:0",
            "http://host:+7",
            "http://host:65536",
            "http://host:4317/v1/traces",
            "http://user:secret@host:4317",
            "http://::1:4317",
            "http://[x]:4317",
            "grpc://host:4317",
            "http://ho st:4317",
            "http://höst:4317",
        ] {
            check_endpoint(bad, true, right);
        }
        check_endpoint(&format!("http://{}:4317", "x".repeat(300)), true, right);
        check_endpoint("https://host:4317", true, Some("TLS is not supported"));
    }

    #[test]
    fn a_build_that_cannot_export_says_how_to_build_one_that_can() {
        check_endpoint("http://127.0.0.1:4317", false, Some("--features otel"));
        // A run that another build collected can be resumed without the key: `--set
        // telemetry.otlp_endpoint=`.
        check_endpoint("", false, None);
        let none = TelemetryFile { otlp_endpoint: Some(String::new()), ..TelemetryFile::default() };
        assert_eq!(none.check_for(false).unwrap().otlp_endpoint, None);
    }

    #[test]
    fn both_problems_come_at_once() {
        let file = TelemetryFile {
            metrics_interval_millis: 1,
            otlp_endpoint: Some("x".into()),
            ..TelemetryFile::default()
        };
        assert_eq!(file.check_for(true).unwrap_err().len(), 2);
    }
}
