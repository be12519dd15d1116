//! The metrics in Prometheus' text format.

use std::fmt::Write as _;

use crate::metrics::HistogramBuckets;
use crate::names::{MetricPoint, MetricSample, MetricUnit, ProcessMetrics};

/// Upper edges of a scraped histogram as powers of two of a microsecond: 1 ms, 2 ms, 4 ms … 67 s,
/// 134 s.
pub(crate) const EDGE_BITS: std::ops::RangeInclusive<u32> = 10..=27;

/// All metrics, one family after another. Times are in seconds, as Prometheus expects.
pub fn prometheus(figures: &ProcessMetrics) -> String {
    let mut text = String::new();
    let mut family = "";
    for point in figures.points() {
        if point.name != family {
            family = point.name;
            write_head(&mut text, &point);
        }
        write_point(&mut text, &point);
    }
    text
}

fn write_head(text: &mut String, point: &MetricPoint) {
    let name = exposed_name(point);
    let kind = kind_of(&point.sample);
    let head = format!("# HELP {name} {}\n# TYPE {name} {kind}\n", point.help);
    text.push_str(&head);
}

fn write_point(text: &mut String, point: &MetricPoint) {
    let name = exposed_name(point);
    let label =
        point.label.map(|(label, label_value)| format!("{{{label}=\"{label_value}\"}}")).unwrap_or_default();
    let micros = point.unit == MetricUnit::Micros;
    match &point.sample {
        MetricSample::Counter(value) if micros => line(text, &name, &label, seconds(*value)),
        MetricSample::Counter(value) => line(text, &name, &label, value),
        MetricSample::Gauge(Some(value)) => line(text, &name, &label, value),
        MetricSample::Gauge(None) => {}
        MetricSample::Average { sum, count } => {
            line(text, &format!("{name}_sum"), &label, sum);
            line(text, &format!("{name}_count"), &label, count);
        }
        MetricSample::Histogram(buckets) => write_histogram(text, &name, buckets),
    }
}

/// Every histogram of the farm holds microseconds, or millionths of a nat, and has no label (a test
/// checks this).
fn write_histogram(text: &mut String, name: &str, buckets: &HistogramBuckets) {
    for bits in EDGE_BITS {
        // A bucket ends just below the power of two, so `le` is exact.
        let label = format!("{{le=\"{}\"}}", seconds((1 << bits) - 1));
        line(text, &format!("{name}_bucket"), &label, buckets.below_power(bits));
    }
    line(text, &format!("{name}_bucket"), "{le=\"+Inf\"}", buckets.count());
    line(text, &format!("{name}_sum"), "", seconds(buckets.sum()));
    line(text, &format!("{name}_count"), "", buckets.count());
}

fn line(text: &mut String, name: &str, label: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    writeln!(text, "{name}{label} {value}").unwrap_or_default();
}

/// Name of a metric in Prometheus.
pub(crate) fn exposed_name(point: &MetricPoint) -> String {
    let base = point.name.replace('/', "_");
    let base = match (base.strip_suffix("_micros"), base.strip_suffix("_millionths"), &point.sample) {
        (Some(base), ..) => format!("{base}_seconds"),
        (_, Some(base), MetricSample::Histogram(_)) => format!("{base}_nats"),
        _ => base,
    };
    let total = if matches!(point.sample, MetricSample::Counter(_)) { "_total" } else { "" };
    format!("furrow_{base}{total}")
}

fn kind_of(sample: &MetricSample) -> &'static str {
    match sample {
        MetricSample::Counter(_) => "counter",
        MetricSample::Gauge(_) => "gauge",
        MetricSample::Average { .. } => "summary",
        MetricSample::Histogram(_) => "histogram",
    }
}

/// Converts microseconds to seconds, and millionths of a nat to nats.
pub(crate) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rollout::{EndKind, TimeCause};
    use std::collections::BTreeSet;

    #[track_caller]
    fn check(move_figures: impl Fn(&ProcessMetrics), want: &[&str]) {
        let figures = ProcessMetrics::new();
        move_figures(&figures);
        let text = prometheus(&figures);
        for line in want {
            assert!(text.lines().any(|got| got == *line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn each_kind_has_its_lines() {
        check(
            |f| f.trajectories.add(3),
            &[
                "# HELP furrow_rollout_trajectories_total Trajectories that ended, scored or failed.",
                "# TYPE furrow_rollout_trajectories_total counter",
                "furrow_rollout_trajectories_total 3",
            ],
        );
        check(|f| f.ends.at(EndKind::Done).add(2), &["furrow_rollout_ends_total{end=\"done\"} 2"]);
        check(
            |f| f.session_micros.at(TimeCause::Policy).add(1_500_000),
            &["furrow_env_session_seconds_total{cause=\"policy\"} 1.5"],
        );
        check(|f| f.running.set(-1), &["# TYPE furrow_rollout_running gauge", "furrow_rollout_running -1"]);
        check(
            |f| [0.5, -1.0].into_iter().for_each(|reward| f.reward.record(reward)),
            &["furrow_rollout_reward_sum -0.5", "furrow_rollout_reward_count 2"],
        );
        check(
            |f| [1023, 1024, 200_000_000].into_iter().for_each(|micros| f.step_micros.record(micros)),
            &[
                "furrow_env_step_seconds_bucket{le=\"0.001023\"} 1",
                "furrow_env_step_seconds_bucket{le=\"0.002047\"} 2",
                "furrow_env_step_seconds_bucket{le=\"+Inf\"} 3",
                "furrow_env_step_seconds_sum 200.002047",
                "furrow_env_step_seconds_count 3",
            ],
        );
    }

    #[test]
    fn a_family_is_introduced_once_and_histograms_are_times() {
        let figures = ProcessMetrics::new();
        let text = prometheus(&figures);
        let heads: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!(heads.len(), heads.iter().collect::<BTreeSet<_>>().len());
        for point in figures.points() {
            if matches!(point.sample, MetricSample::Histogram(_)) {
                let is_scaled = point.unit == MetricUnit::Micros || point.name.ends_with("_millionths");
                assert!(is_scaled && point.label.is_none(), "{}", point.name);
            }
        }
    }
}
