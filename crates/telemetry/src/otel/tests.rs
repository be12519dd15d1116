//! What a collector receives over a real socket, compared with `/metrics` and with the events, also
//! for collectors that misbehave.

use std::collections::{BTreeMap, BTreeSet};

use furrow_rollout::{
    EndKind, EngineStats, Id, OutcomeName, Score, TimeCause, TimeSplit, Trajectory, TrajectoryAncestry,
};
use furrow_testkit::collector::{CollectorMode, FakeCollector, SentBatch, attribute as read};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, HistogramDataPoint, Metric};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use proptest::prelude::*;

use super::queue::{TracedEvent, offer};
use super::*;
use crate::config::TelemetryFile;
use crate::events::{
    ReplySent, StepAcknowledged, TrajectoryAbandoned, TrajectoryAcknowledged, TrajectoryFailed,
    TrajectoryScored,
};
use crate::labels::{DeviceUse, Role};
use crate::prometheus::prometheus;

fn own_metrics() -> &'static ProcessMetrics {
    Box::leak(Box::new(ProcessMetrics::new()))
}

fn origin() -> ProcessOrigin {
    ProcessOrigin { role: Role::Env, run: "quick".into(), instance: "env-7-0a1b2c".into() }
}

/// An exporter with its own metrics, and the queue of its spans.
fn exporter(endpoint: &str, figures: &'static ProcessMetrics) -> (OtlpExporter, mpsc::Sender<Vec<Span>>) {
    let (sender, queue) = queue::channel();
    (
        OtlpExporter::with_endpoint(endpoint, Duration::from_millis(100), &origin(), queue, figures).unwrap(),
        sender,
    )
}

fn ancestry() -> TrajectoryAncestry {
    let run_id = Id::new("quick").unwrap();
    let group_id = Id::nth(&run_id, 3);
    let trajectory_id = Id::attempt(&group_id, 1, 0);
    TrajectoryAncestry { run_id, group_id, sample_index: 1, attempt: 0, trajectory_id }
}

fn split(parts: &[(TimeCause, u64)]) -> TimeSplit {
    let mut split = TimeSplit::default();
    parts.iter().for_each(|&(cause, micros)| split.add(cause, micros));
    split
}

/// The page that Prometheus would scrape, written from the OTLP data alone.
fn scraped(metrics: &[Metric]) -> String {
    let mut lines = Vec::new();
    for Metric { name, description, data, .. } in metrics {
        let kind = match data.as_ref().unwrap() {
            Data::Sum(sum) if sum.is_monotonic => "counter",
            Data::Gauge(_) => "gauge",
            Data::Summary(_) => "summary",
            Data::Histogram(_) => "histogram",
            other => panic!("{name}: {other:?}"),
        };
        lines.extend([format!("# HELP {name} {description}"), format!("# TYPE {name} {kind}")]);
        let cumulative = i32::from(AggregationTemporality::Cumulative);
        match data.as_ref().unwrap() {
            Data::Sum(sum) => {
                assert_eq!(sum.aggregation_temporality, cumulative, "{name}");
                lines.extend(sum.data_points.iter().map(|point| {
                    format!("{name}{} {}", labels(&point.attributes), number(point.value.unwrap()))
                }));
            }
            Data::Gauge(gauge) => lines.extend(gauge.data_points.iter().map(|point| {
                format!("{name}{} {}", labels(&point.attributes), number(point.value.unwrap()))
            })),
            Data::Summary(summary) => lines.extend(summary.data_points.iter().flat_map(|point| {
                [format!("{name}_sum {}", point.sum), format!("{name}_count {}", point.count)]
            })),
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, cumulative, "{name}");
                histogram.data_points.iter().for_each(|point| buckets(name, point, &mut lines));
            }
            Data::ExponentialHistogram(_) => unreachable!("{name}"),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn buckets(name: &str, point: &HistogramDataPoint, lines: &mut Vec<String>) {
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1, "{name}");
    let mut cumulative = 0;
    for (edge, count) in point.explicit_bounds.iter().zip(&point.bucket_counts) {
        cumulative += count;
        lines.push(format!("{name}_bucket{{le=\"{edge}\"}} {cumulative}"));
    }
    cumulative += point.bucket_counts.last().unwrap();
    lines.push(format!("{name}_bucket{{le=\"+Inf\"}} {cumulative}"));
    lines.push(format!("{name}_sum {}", point.sum.unwrap()));
    lines.push(format!("{name}_count {}", point.count));
}

fn labels(attributes: &[KeyValue]) -> String {
    assert!(attributes.len() < 2, "{attributes:?}");
    let label = |pair: &KeyValue| format!("{{{}=\"{}\"}}", pair.key, read(attributes, &pair.key).unwrap());
    attributes.iter().map(label).collect()
}

fn number(value: Number) -> String {
    match value {
        Number::AsInt(number) => number.to_string(),
        Number::AsDouble(number) => number.to_string(),
    }
}

/// The page without the heads of unknown metrics: OTLP has no metric without a value.
fn page(figures: &ProcessMetrics) -> String {
    let text = prometheus(figures);
    let (heads, values): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("# "));
    let valued: BTreeSet<_> = values.iter().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let gauges = heads.iter().filter_map(|head| head.strip_prefix("# TYPE ")?.strip_suffix(" gauge"));
    let unread: BTreeSet<_> = gauges.filter(|name| !valued.contains(name)).collect();
    let is_kept = |line: &&str| line.split(' ').nth(2).is_none_or(|name| !unread.contains(name));
    text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect()
}

const PERIOD: MetricPeriod = MetricPeriod { began_nanos: 1_000, now_nanos: 2_000 };

#[test]
fn metrics_without_events_are_exported() {
    assert_eq!(scraped(&metrics(&ProcessMetrics::new(), PERIOD)), page(&ProcessMetrics::new()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn otlp_says_what_the_page_for_prometheus_says(
        counts in prop::collection::vec(0u64..1 << 50, 4),
        level in any::<i32>(),
        bytes in prop::option::of(0u64..1 << 50),
        rewards in prop::collection::vec(-2.0f64..2.0, 0..5),
        // Evenly spread over sizes, or nearly all would be in the last bucket.
        micros in prop::collection::vec((any::<u64>(), 22u32..64).prop_map(|(bits, shift)| bits >> shift), 0..50),
    ) {
        let figures = ProcessMetrics::new();
        figures.trajectories.add(counts[0]);
        figures.ends.at(EndKind::Answered).add(counts[1]);
        figures.session_micros.at(TimeCause::Policy).add(counts[2]);
        figures.device_micros.at(DeviceUse::Decode).add(counts[3]);
        figures.running.set(level.into());
        figures.process_rss_bytes.set(bytes);
        rewards.iter().for_each(|&reward| figures.reward.record(reward));
        micros.iter().for_each(|&micros| figures.step_micros.record(micros));
        prop_assert_eq!(scraped(&metrics(&figures, PERIOD)), page(&figures));
    }
}

#[test]
fn units_leave_the_prometheus_names_unchanged() {
    for metric in metrics(&ProcessMetrics::new(), PERIOD) {
        let want = match &metric.name {
            name if name.contains("_seconds") => "s",
            name if name.contains("_bytes") => "By",
            _ => "",
        };
        assert_eq!(metric.unit, want, "{}", metric.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_the_last_metrics_and_their_resource() {
    let collector = FakeCollector::start(CollectorMode::Take);
    let figures = own_metrics();
    let (otlp, _queue) = exporter(&collector.endpoint(), figures);
    let stop = CancellationToken::new();
    let exporting = tokio::spawn(otlp.export(stop.clone()));
    collector.until("metrics before the end", |collector| collector.metrics().len() > 1);
    figures.trajectories.add(3);
    figures.step_micros.record(70_000);
    stop.cancel();
    exporting.await.unwrap();
    let sent = collector.metrics().pop().unwrap();
    assert_eq!(scraped(&sent.items), page(figures));
    check_resource(&sent);
}

#[track_caller]
fn check_resource<T>(sent: &SentBatch<T>) {
    let values = ["service.name", "service.instance.id", "furrow.role", "furrow.run"]
        .map(|key| read(&sent.resource, key).unwrap());
    assert_eq!(values, ["furrow", "env-7-0a1b2c", "env", "quick"]);
}

const BEGAN_AT_MICROS: i64 = 1_700_000_000_000_000;

/// The only test that opens the queue of this process.
#[tokio::test(flavor = "multi_thread")]
async fn every_role_writes_one_trace_per_trajectory() {
    let spans = spans_of_a_trajectory().await;
    assert_tree(&spans);
    check_summaries(&spans);
    check_edges(&spans);
    check_attributes(&spans);
}

/// What a collector receives of a trajectory of three steps, whose third one was acknowledged here.
async fn spans_of_a_trajectory() -> Vec<Span> {
    let collector = FakeCollector::start(CollectorMode::Take);
    let file = TelemetryFile { otlp_endpoint: Some(collector.endpoint()), ..TelemetryFile::default() };
    let config = file.check().unwrap();
    let trajectory = ancestry();
    emit_reply(&trajectory, 9); // no queue is open yet
    let otlp = OtlpExporter::open(&config, &origin()).unwrap().unwrap();
    assert!(OtlpExporter::open(&config, &origin()).unwrap_err().to_string().contains("exports already"));
    let stop = CancellationToken::new();
    let exporting = tokio::spawn(otlp.export(stop.clone()));
    emit_events(&trajectory);
    stop.cancel();
    exporting.await.unwrap();
    let sent = collector.spans();
    sent.iter().for_each(check_resource);
    sent.into_iter().flat_map(|sent| sent.items).collect()
}

fn emit_reply(of: &TrajectoryAncestry, step: u32) {
    ReplySent { trajectory_id: &of.trajectory_id, step, valid: true, engine: &ENGINE }.emit();
}

/// The events of all roles about the third step and the end of a trajectory.
fn emit_events(of: &TrajectoryAncestry) {
    let timing = &split(&[
        (TimeCause::Observe, 20),
        (TimeCause::Policy, 300),
        (TimeCause::Act, 5),
        (TimeCause::Record, 1),
    ]);
    let outcome = OutcomeName::Ok;
    let began_at_micros = BEGAN_AT_MICROS;
    StepAcknowledged { of, step: 2, token: 8, outcome, began_at_micros, timing, screenshot_bytes: 99 }.emit();
    emit_reply(of, 2);
    let life = &split(&[
        (TimeCause::Boot, 1_000),
        (TimeCause::Observe, 20),
        (TimeCause::Policy, 300),
        (TimeCause::Finish, 40),
    ]);
    TrajectoryAcknowledged { of, token: 8, end: EndKind::Answered, steps: 3, timing: life, report_micros: 7 }
        .emit();
    let score = Score {
        reward: Some(0.5),
        success: Some(true),
        components: Vec::new(),
        scorer: "probe".into(),
        version: 1,
        rationale: String::new(),
        evidence_sha256: [0; 32],
    };
    TrajectoryScored { of, end: EndKind::Answered, score: &score, reward: 0.5, score_micros: 40 }.emit();
}

/// Name, microseconds and parent of every span.
#[track_caller]
fn check_summaries(spans: &[Span]) {
    let mut summaries: Vec<(&str, u64, String)> =
        spans.iter().map(|span| (span.name.as_str(), micros(span), parent_of(span, spans))).collect();
    summaries.sort_unstable();
    let want = [
        ("act", 5, "step"),
        ("boot", 1_000, "trajectory"),
        ("finish", 40, "trajectory"),
        ("observe", 20, "step"),
        ("policy", 300, "step"),
        ("record", 1, "step"),
        ("record", 7, "trajectory"),
        ("reply", 250, "policy"),
        ("score", 40, "trajectory"),
        ("step", 326, "trajectory"),
        ("trajectory", 1_367, ""),
    ];
    assert_eq!(summaries, want.map(|(name, micros, parent)| (name, micros, parent.to_owned())));
}

/// A span is adjacent to its neighbours, without a gap.
#[track_caller]
fn check_edges(spans: &[Span]) {
    let trajectory = named(spans, "trajectory", "");
    let step = named(spans, "step", "trajectory");
    assert_eq!(step.start_time_unix_nano, BEGAN_AT_MICROS as u64 * 1000);
    let parts = ["observe", "policy", "act", "record"].map(|name| named(spans, name, "step"));
    let edges = |span: &Span| (span.start_time_unix_nano, span.end_time_unix_nano);
    assert!(parts.windows(2).all(|two| edges(two[0]).1 == edges(two[1]).0));
    assert_eq!((edges(parts[0]).0, edges(parts[3]).1), edges(step));
    let boot = named(spans, "boot", "trajectory");
    let finish = named(spans, "finish", "trajectory");
    let report = named(spans, "record", "trajectory");
    assert_eq!(edges(boot).0, edges(trajectory).0);
    assert_eq!((edges(finish).1, edges(report).1), (edges(report).0, edges(trajectory).1));
}

#[track_caller]
fn check_attributes(spans: &[Span]) {
    let trajectory = named(spans, "trajectory", "");
    let step = named(spans, "step", "trajectory");
    let score = named(spans, "score", "trajectory");
    let reply = named(spans, "reply", "policy");
    let kind = |name: &str| spans.iter().find(|span| span.name == name).unwrap().kind;
    assert_eq!((kind("policy"), kind("reply")), (SpanKind::Client.into(), SpanKind::Server.into()));
    let attribute_of = |span: &Span, key: &str| read(&span.attributes, key).unwrap_or_default();
    for span in [trajectory, step, score, reply] {
        assert_eq!(attribute_of(span, "furrow.trajectory_id"), "quick-g000003-s1-a0", "{}", span.name);
    }
    assert_eq!(
        (attribute_of(trajectory, "furrow.end"), attribute_of(trajectory, "furrow.steps")),
        ("answered".into(), "3".into())
    );
    assert_eq!(
        (attribute_of(trajectory, "furrow.policy_micros"), attribute_of(step, "furrow.step")),
        ("300".into(), "2".into())
    );
    assert_eq!(attribute_of(reply, "furrow.prefill_tokens"), "11");
    assert_eq!(attribute_of(score, "furrow.reward"), "0.5");
    assert!(trajectory.status.is_none(), "an answer is not a failure");
}

static ENGINE: EngineStats = EngineStats {
    worker: String::new(),
    slot: None,
    state_origin: None,
    batch_size_mean: 1.0,
    prefill_tokens: 11,
    reused_tokens: 0,
    decode_steps: 5,
    queue_micros: 2,
    service_micros: 250,
    gpu_micros: 9,
    cost_usd: None,
};

/// One trace, unique ids, and every parent exists.
#[track_caller]
fn assert_tree(spans: &[Span]) {
    let traces: BTreeSet<_> = spans.iter().map(|span| &span.trace_id).collect();
    assert!(traces.len() == 1 && traces.iter().all(|id| id.len() == 16), "{traces:?}");
    let ids: BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
    assert!(ids.len() == spans.len() && ids.iter().all(|id| id.len() == 8), "{ids:?}");
    let roots = spans.iter().filter(|span| span.parent_span_id.is_empty()).count();
    let orphans = spans.iter().filter(|span| !ids.contains(&span.parent_span_id)).count();
    assert_eq!((roots, orphans), (1, 1));
}

fn named<'a>(spans: &'a [Span], name: &str, parent: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name && parent_of(span, spans) == parent).unwrap()
}

fn parent_of(span: &Span, spans: &[Span]) -> String {
    let parent = spans.iter().find(|other| other.span_id == span.parent_span_id);
    parent.map(|parent| parent.name.clone()).unwrap_or_default()
}

fn micros(span: &Span) -> u64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) / 1000
}

#[test]
fn ids_of_two_trajectories_never_meet() {
    let run = Id::new("r").unwrap();
    let mut spans_by_id: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    let timing = split(&TimeCause::ALL.map(|cause| (cause, 1)));
    for group in 0..20 {
        let group_id = Id::nth(&run, group);
        let trajectory_id: Id<Trajectory> = Id::attempt(&group_id, 0, 0);
        let of =
            &TrajectoryAncestry { run_id: run.clone(), group_id, sample_index: 0, attempt: 0, trajectory_id };
        for step in 0..20 {
            let outcome = OutcomeName::Ok;
            let began_at_micros = 5;
            let timing = &timing;
            let event = StepAcknowledged {
                of,
                step,
                token: 1,
                outcome,
                began_at_micros,
                timing,
                screenshot_bytes: 1,
            };
            for span in event.spans(0) {
                let location = format!("{} {step} {}", of.trajectory_id, span.name);
                assert_eq!(spans_by_id.insert(span.span_id, location.clone()), None, "{location}");
            }
        }
    }
    assert_eq!(spans_by_id.len(), 20 * 20 * 8);
}

#[test]
fn what_went_wrong_is_marked_as_an_error() {
    let of = &ancestry();
    let timing = &split(&[(TimeCause::Boot, 4)]);
    let abandoned = TrajectoryAbandoned { of, token: 8, timing, reason: "its lease is lost" }.spans(9_000);
    let failed =
        TrajectoryFailed { of, end: EndKind::LeaseLost, reason: "silent", retried: true }.spans(9_000);
    let crashed =
        TrajectoryAcknowledged { of, token: 8, end: EndKind::PageCrash, steps: 0, timing, report_micros: 0 };
    let message =
        |spans: &[Span]| spans[0].status.as_ref().map(|status| (status.code, status.message.clone()));
    assert_eq!(message(&abandoned), Some((2, "its lease is lost".into())));
    assert_eq!((abandoned[0].start_time_unix_nano, abandoned[0].end_time_unix_nano), (5_000, 9_000));
    assert_eq!(message(&failed), Some((2, "silent".into())));
    assert_eq!(failed[0].parent_span_id, abandoned[0].span_id);
    assert_eq!(message(&crashed.spans(9_000)), Some((2, "page_crash".into())));
}

#[test]
fn impossible_times_are_clamped_and_never_panic() {
    let of = &ancestry();
    let timing = &split(&[(TimeCause::Policy, u64::MAX / 2)]);
    let outcome = OutcomeName::Ok;
    let screenshot_bytes = u64::MAX;
    for began_at_micros in [i64::MIN, -1, 0, i64::MAX] {
        let spans = StepAcknowledged {
            of,
            step: u32::MAX,
            token: u64::MAX,
            outcome,
            began_at_micros,
            timing,
            screenshot_bytes,
        }
        .spans(0);
        assert!(spans.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
    }
    let spans = TrajectoryAcknowledged {
        of,
        token: 1,
        end: EndKind::Done,
        steps: 1,
        timing,
        report_micros: u64::MAX,
    }
    .spans(7);
    assert!(spans.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
}

#[test]
fn a_full_queue_is_counted_and_never_waited_for() {
    let figures = own_metrics();
    let of = ancestry();
    let (queue, mut receiver) = mpsc::channel(2);
    for _ in 0..5 {
        offer(
            &queue,
            figures,
            &ReplySent { trajectory_id: &of.trajectory_id, step: 0, valid: true, engine: &ENGINE },
        );
    }
    assert_eq!(figures.otlp_dropped.get(), 3);
    assert!(receiver.try_recv().is_ok() && receiver.try_recv().is_ok() && receiver.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_does_not_hold_the_process_up() {
    let collector = FakeCollector::start(CollectorMode::Silence);
    let figures = own_metrics();
    let (otlp, queue) = exporter(&collector.endpoint(), figures);
    for _ in 0..BATCH_MAX + 1 {
        queue.try_send(vec![Span::default()]).unwrap();
    }
    let stop = CancellationToken::new();
    let exporting = tokio::spawn(otlp.export(stop.clone()));
    collector.until("a call", |collector| collector.calls() >= 2);
    let began = std::time::Instant::now();
    stop.cancel();
    exporting.await.unwrap();
    assert!(began.elapsed() < DRAIN_DEADLINE + Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((figures.otlp_dropped.get(), figures.otlp_events.get()), (BATCH_MAX as u64 + 1, 0));
    assert!(figures.otlp_failures.get() >= 2, "both signals count a failure");
    assert!(queue.is_closed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_collector_cannot_take_now_it_gets_later_and_once() {
    let collector = FakeCollector::start(CollectorMode::Refuse(Code::Unavailable));
    let figures = own_metrics();
    let (otlp, queue) = exporter(&collector.endpoint(), figures);
    let stop = CancellationToken::new();
    let exporting = tokio::spawn(otlp.export(stop.clone()));
    for name in ["one", "two"] {
        queue.try_send(vec![Span { name: name.into(), ..Span::default() }]).unwrap();
    }
    // The first calls come at once; a third is the second one of either signal.
    collector.until("calls that fail", |collector| collector.calls() >= 3);
    collector.behave(CollectorMode::Take);
    collector.until("spans", |collector| !collector.spans().is_empty());
    stop.cancel();
    exporting.await.unwrap();
    let names: Vec<_> =
        collector.spans().into_iter().flat_map(|sent| sent.items).map(|span| span.name).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!((figures.otlp_events.get(), figures.otlp_dropped.get()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_given_up_when_it_is_refused_or_was_tried_often_enough() {
    let figures = own_metrics();
    let (OtlpExporter { mut spans, .. }, queue) = exporter("http://127.0.0.1:9", figures);
    let one_waits = |spans: &mut SpanSender| {
        queue.try_send(vec![Span::default()]).unwrap();
        assert!(spans.fill());
    };
    one_waits(&mut spans);
    spans.apply_outcome(CallOutcome::Refused);
    assert_eq!((spans.batch.len(), figures.otlp_dropped.get()), (0, 1));
    one_waits(&mut spans);
    for tries in 1..=TRIES_MAX {
        assert_eq!(spans.batch.len(), 1, "before try {tries}");
        spans.apply_outcome(CallOutcome::Unavailable);
    }
    assert_eq!((spans.batch.len(), figures.otlp_dropped.get()), (0, 2));
    one_waits(&mut spans);
    spans.apply_outcome(CallOutcome::Accepted);
    assert_eq!((spans.batch.len(), spans.tries, figures.otlp_events.get()), (0, 0, 1));
}

#[tokio::test]
async fn pauses_grow_and_one_success_ends_them() {
    let mut link = ExportLink::new("spans", own_metrics());
    let seconds = |link: &ExportLink| link.pause.as_secs();
    let grown: Vec<_> = (0..7)
        .map(|_| {
            assert_eq!(link.record_outcome(Err(Status::unavailable("away"))), CallOutcome::Unavailable);
            assert!(!link.is_ready() && link.failing_since.is_some());
            seconds(&link)
        })
        .collect();
    assert_eq!(grown, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(link.record_outcome(Ok(())), CallOutcome::Accepted);
    assert_eq!((seconds(&link), link.failing_since), (0, None));
    assert_eq!(link.record_outcome(Err(Status::unimplemented("spans? no"))), CallOutcome::Refused);
    assert_eq!(link.record_outcome(Err(Status::unknown("something broke"))), CallOutcome::Unavailable);
}

proptest! {
    #[test]
    fn an_endpoint_that_is_let_in_can_be_called(
        endpoint in "http://([a-z0-9._-]{1,20}|\\[[0-9a-f:]{2,12}\\]|[0-9.]{1,15}):[0-9]{1,6}/?",
    ) {
        let file = TelemetryFile { otlp_endpoint: Some(endpoint.clone()), ..TelemetryFile::default() };
        if file.check().is_ok() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _inside = runtime.enter();
            prop_assert!(channel(&endpoint).is_ok(), "{}", endpoint);
        }
    }
}
