//! The metrics as OTLP metrics: the content of `/metrics`, with the same names, kinds, labels,
//! units and buckets.
//!
//! Totals count from the start of the process (cumulative temporality), so a lost call loses
//! nothing.

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, Summary,
    SummaryDataPoint,
};

use super::attributes::text_attribute;
use crate::metrics::HistogramBuckets;
use crate::names::{MetricPoint, MetricSample, MetricUnit, ProcessMetrics};
use crate::prometheus::{EDGE_BITS, exposed_name, seconds};

/// The time over which totals were counted, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct MetricPeriod {
    pub began_nanos: u64,
    pub now_nanos: u64,
}

/// All metrics with known values, one per family.
pub(super) fn metrics(figures: &ProcessMetrics, period: MetricPeriod) -> Vec<Metric> {
    let points = figures.points();
    points.chunk_by(|one, next| one.name == next.name).filter_map(|family| metric(family, period)).collect()
}

/// `None` for a measured value that is still unknown.
fn metric(family: &[MetricPoint], period: MetricPeriod) -> Option<Metric> {
    let first = family.first()?;
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match first.sample {
        MetricSample::Counter(_) => Data::Sum(Sum {
            data_points: numbers(family, period),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        MetricSample::Gauge(_) => {
            let data_points = numbers(family, period);
            if data_points.is_empty() {
                return None;
            }
            Data::Gauge(Gauge { data_points })
        }
        MetricSample::Average { .. } => Data::Summary(Summary {
            data_points: family.iter().filter_map(|point| average(point, period)).collect(),
        }),
        MetricSample::Histogram(_) => Data::Histogram(Histogram {
            data_points: family.iter().filter_map(|point| histogram(point, period)).collect(),
            aggregation_temporality: temporality,
        }),
    };
    let name = exposed_name(first);
    let description = first.help.to_owned();
    Some(Metric { name, description, unit: unit(first).to_owned(), data: Some(data), ..Default::default() })
}

/// UCUM units, as OpenTelemetry uses them; none for counts, since Prometheus calls a gauge with
/// unit "1" a ratio.
fn unit(point: &MetricPoint) -> &'static str {
    match point.unit {
        MetricUnit::Micros => "s",
        MetricUnit::Bytes => "By",
        MetricUnit::Count | MetricUnit::Reward => "",
    }
}

fn numbers(family: &[MetricPoint], period: MetricPeriod) -> Vec<NumberDataPoint> {
    family.iter().filter_map(|point| number(point, period)).collect()
}

fn number(point: &MetricPoint, period: MetricPeriod) -> Option<NumberDataPoint> {
    let value = match point.sample {
        MetricSample::Counter(micros) if point.unit == MetricUnit::Micros => Value::AsDouble(seconds(micros)),
        MetricSample::Counter(count) => Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX)),
        MetricSample::Gauge(value) => Value::AsInt(value?),
        MetricSample::Average { .. } | MetricSample::Histogram(_) => return None,
    };
    Some(NumberDataPoint {
        attributes: labels(point),
        start_time_unix_nano: period.began_nanos,
        time_unix_nano: period.now_nanos,
        value: Some(value),
        ..Default::default()
    })
}

/// A summary without quantiles, as in Prometheus.
fn average(point: &MetricPoint, period: MetricPeriod) -> Option<SummaryDataPoint> {
    let MetricSample::Average { sum, count } = point.sample else { return None };
    Some(SummaryDataPoint {
        attributes: labels(point),
        start_time_unix_nano: period.began_nanos,
        time_unix_nano: period.now_nanos,
        count,
        sum,
        ..Default::default()
    })
}

fn histogram(point: &MetricPoint, period: MetricPeriod) -> Option<HistogramDataPoint> {
    let MetricSample::Histogram(buckets) = &point.sample else { return None };
    let (explicit_bounds, bucket_counts) = edges(buckets);
    Some(HistogramDataPoint {
        attributes: labels(point),
        start_time_unix_nano: period.began_nanos,
        time_unix_nano: period.now_nanos,
        count: buckets.count(),
        sum: Some(seconds(buckets.sum())),
        bucket_counts,
        explicit_bounds,
        ..Default::default()
    })
}

/// Upper edges, and the number of values in each bucket: one bucket more than edges.
fn edges(buckets: &HistogramBuckets) -> (Vec<f64>, Vec<u64>) {
    let mut counts = Vec::new();
    let mut below = 0;
    for bits in EDGE_BITS {
        let reached = buckets.below_power(bits);
        counts.push(reached - below);
        below = reached;
    }
    counts.push(buckets.count() - below);
    (EDGE_BITS.map(|bits| seconds((1 << bits) - 1)).collect(), counts)
}

fn labels(point: &MetricPoint) -> Vec<opentelemetry_proto::tonic::common::v1::KeyValue> {
    point.label.into_iter().map(|(label, value)| text_attribute(label, value)).collect()
}
