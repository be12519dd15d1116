//! The rows of a report's table of metrics.

use super::run_metrics::RunMetrics;
use crate::format::{count, dollars, number, percent, seconds};

pub(super) struct MetricRow {
    /// Its name; `{hour}` is the name of a device-hour.
    pub name: &'static str,
    /// Where the answers of a run have it, as a JSON pointer.
    pub pointer: &'static str,
    /// Its value, if known.
    pub read: fn(&RunMetrics) -> Option<f64>,
    pub format: ValueFormat,
}

/// How a value is formatted: the name of the format in `pages/format.js`, and the function.
pub(super) type ValueFormat = (&'static str, fn(Option<f64>) -> String);

const NUMBER: ValueFormat = ("number", number);
const COUNT: ValueFormat = ("count", count);
const PERCENT: ValueFormat = ("percent", percent);
const DOLLARS: ValueFormat = ("dollars", dollars);
const SECONDS: ValueFormat = ("seconds", seconds);

/// A row whose value is this field of the metrics. The pointer is made of the same names.
macro_rules! row {
    ($name:literal, learning.prefill_gap.$field:ident, $format:ident) => {
        MetricRow {
            name: $name,
            pointer: concat!("/learning/prefill_gap/", stringify!($field)),
            read: |run| run.learning.metrics.prefill_gap.and_then(|gap| gap.$field.known()),
            format: $format,
        }
    };
    ($name:literal, $answer:ident.$($field:ident).+, $format:ident) => {
        MetricRow {
            name: $name,
            pointer: concat!("/", stringify!($answer), $("/", stringify!($field)),+),
            read: |run| run.$answer.metrics.$($field).+.known(),
            format: $format,
        }
    };
}

pub(super) const METRIC_ROWS: &[MetricRow] = &[
    row!("Trajectories per {hour}", overview.throughput.trajectories_per_device_hour, NUMBER),
    row!("… if the device never waited", overview.throughput.ceiling_device_bound, NUMBER),
    row!("… if no slot were ever empty", overview.throughput.ceiling_session_bound, NUMBER),
    row!("Trajectories per hour", overview.throughput.trajectories_per_hour, NUMBER),
    row!("Trajectories per slot-hour", overview.throughput.trajectories_per_slot_hour, NUMBER),
    row!("{hour}s", overview.device_hours, NUMBER),
    row!("Wall clock", overview.wall_seconds, SECONDS),
    row!("Success rate", overview.training.success_rate, PERCENT),
    row!("Solved", overview.training.successes, COUNT),
    row!("Decided", overview.training.judged, COUNT),
    row!("Mean reward", overview.training.reward_mean, NUMBER),
    row!("Success in evaluations", overview.evaluated.success_rate, PERCENT),
    row!("Scored", overview.counts.scored, COUNT),
    row!("Failed by the farm", overview.counts.failed, COUNT),
    row!("Share failed by the farm", overview.counts.failure_rate, PERCENT),
    row!("Steps", overview.counts.steps, COUNT),
    row!("Steps a trajectory", overview.counts.steps_mean, NUMBER),
    row!("Steps per second", overview.throughput.steps_per_second, NUMBER),
    row!("Tokens generated per second", overview.tokens.generated_per_second, NUMBER),
    row!("Tokens prefilled per second", overview.tokens.prefilled_per_second, NUMBER),
    row!("Tokens reused per second", overview.tokens.reused_per_second, NUMBER),
    row!("Share of the context still in the state", overview.tokens.reused_share, PERCENT),
    row!("Tokens a response", learning.response_tokens_per_step, NUMBER),
    row!("Invalid actions", learning.invalid_action_rate, PERCENT),
    row!("Zero-variance groups", learning.zero_variance_share, PERCENT),
    row!("Entropy, nats a sampled token", learning.entropy_mean, NUMBER),
    row!("Log-prob of a sampled token", learning.logprob_mean, NUMBER),
    row!("Tokens recomputed by the prefill path", learning.prefill_gap.tokens, COUNT),
    row!("… mean gap of their log-probs, nats", learning.prefill_gap.mean_abs, NUMBER),
    row!("… largest gap, nats", learning.prefill_gap.max, NUMBER),
    row!("Newest policy version", overview.versions.newest, COUNT),
    row!("Staleness, on average", overview.versions.staleness_mean, NUMBER),
    row!("Cost of a trajectory", overview.cost_usd_per_trajectory, DOLLARS),
];

/// A metric as a number, if it is known and finite.
trait MetricValue {
    fn known(self) -> Option<f64>;
}

impl MetricValue for u64 {
    fn known(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl MetricValue for usize {
    fn known(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl MetricValue for f64 {
    fn known(self) -> Option<f64> {
        Some(self).filter(|value| value.is_finite())
    }
}

impl MetricValue for Option<f64> {
    fn known(self) -> Option<f64> {
        self.and_then(MetricValue::known)
    }
}

impl MetricValue for Option<i32> {
    fn known(self) -> Option<f64> {
        self.map(f64::from)
    }
}

#[cfg(test)]
mod tests {
    use furrow_records::LogprobGap;
    use serde_json::json;

    use super::*;
    use crate::answers::{JobAnswer, TokenRates};
    use crate::answers::{LearningAnswer, LearningMetrics, OverviewAnswer, OverviewMetrics, VersionRange};

    #[test]
    fn a_pointer_leads_to_the_value_of_its_row() {
        let overview = OverviewMetrics {
            wall_seconds: Some(90.5),
            tokens: TokenRates { reused_share: Some(0.25), ..TokenRates::default() },
            versions: VersionRange { newest: Some(7), ..VersionRange::default() },
            ..OverviewMetrics::default()
        };
        let gap = LogprobGap { tokens: 3, mean_abs: 0.5, p50: 0.5, p99: 0.75, max: f64::INFINITY };
        let learning = LearningMetrics { prefill_gap: Some(gap), ..LearningMetrics::default() };
        let run = RunMetrics {
            name: "night".into(),
            overview: OverviewAnswer { metrics: overview, ..OverviewAnswer::default() },
            learning: LearningAnswer { metrics: learning, ..LearningAnswer::default() },
            job: JobAnswer::default(),
            comparison: None,
            tables: Vec::new(),
        };
        let answers = json!(run);
        for row in METRIC_ROWS {
            let value = answers.pointer(row.pointer).unwrap_or_else(|| panic!("no {}", row.pointer));
            assert_eq!((row.read)(&run), value.as_f64(), "{}", row.pointer);
        }
        let known = METRIC_ROWS.iter().filter(|row| (row.read)(&run).is_some_and(|value| value > 0.0));
        let names: Vec<&str> = known.map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "Wall clock",
                "Share of the context still in the state",
                "Tokens recomputed by the prefill path",
                "… mean gap of their log-probs, nats",
                "Newest policy version"
            ]
        );
    }
}
