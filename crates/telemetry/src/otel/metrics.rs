//! The figures as OTLP metrics: what `/metrics` says, under the same names, with the same kinds, labels, units and buckets.
//!
//! Totals are told since the process began (cumulative temporality), so a call that is lost loses nothing.

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, Summary,
    SummaryDataPoint,
};

use super::text;
use crate::metrics::Buckets;
use crate::names::{Figures, Point, Sample, Unit};
use crate::prometheus::{EDGE_BITS, exposed_name, seconds};

/// Between which moments totals were counted, nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Period {
    pub began_nanos: u64,
    pub now_nanos: u64,
}

/// All figures that are known, a metric a family.
pub(super) fn metrics(figures: &Figures, period: Period) -> Vec<Metric> {
    let points = figures.points();
    points.chunk_by(|one, next| one.name == next.name).filter_map(|family| metric(family, period)).collect()
}

/// `None` of a measure that nobody has read yet.
fn metric(family: &[Point], period: Period) -> Option<Metric> {
    let first = family.first()?;
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match first.sample {
        Sample::Counter(_) => Data::Sum(Sum {
            data_points: numbers(family, period),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        Sample::Gauge(_) => {
            let data_points = numbers(family, period);
            if data_points.is_empty() {
                return None;
            }
            Data::Gauge(Gauge { data_points })
        }
        Sample::Average { .. } => Data::Summary(Summary {
            data_points: family.iter().filter_map(|point| average(point, period)).collect(),
        }),
        Sample::Histogram(_) => Data::Histogram(Histogram {
            data_points: family.iter().filter_map(|point| histogram(point, period)).collect(),
            aggregation_temporality: temporality,
        }),
    };
    let (name, description) = (exposed_name(first), first.help.to_owned());
    Some(Metric { name, description, unit: unit(first).to_owned(), data: Some(data), ..Default::default() })
}

/// UCUM, as OpenTelemetry has it; nothing for things, since a unit of "1" makes Prometheus call a gauge a ratio.
fn unit(point: &Point) -> &'static str {
    match point.unit {
        Unit::Micros => "s",
        Unit::Bytes => "By",
        Unit::Count | Unit::Reward => "",
    }
}

fn numbers(family: &[Point], period: Period) -> Vec<NumberDataPoint> {
    family.iter().filter_map(|point| number(point, period)).collect()
}

fn number(point: &Point, period: Period) -> Option<NumberDataPoint> {
    let value = match point.sample {
        Sample::Counter(micros) if point.unit == Unit::Micros => Value::AsDouble(seconds(micros)),
        Sample::Counter(count) => Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX)),
        Sample::Gauge(value) => Value::AsInt(value?),
        Sample::Average { .. } | Sample::Histogram(_) => return None,
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
fn average(point: &Point, period: Period) -> Option<SummaryDataPoint> {
    let Sample::Average { sum, count } = point.sample else { return None };
    Some(SummaryDataPoint {
        attributes: labels(point),
        start_time_unix_nano: period.began_nanos,
        time_unix_nano: period.now_nanos,
        count,
        sum,
        ..Default::default()
    })
}

fn histogram(point: &Point, period: Period) -> Option<HistogramDataPoint> {
    let Sample::Histogram(buckets) = &point.sample else { return None };
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

/// Upper edges, and how many values lie in each bucket: one bucket more than edges.
fn edges(buckets: &Buckets) -> (Vec<f64>, Vec<u64>) {
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

fn labels(point: &Point) -> Vec<opentelemetry_proto::tonic::common::v1::KeyValue> {
    point.label.into_iter().map(|(label, word)| text(label, word)).collect()
}
