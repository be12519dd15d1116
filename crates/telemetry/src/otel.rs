//! Export over OTLP/gRPC: metrics, and the events of trajectories as spans. Built with the feature
//! `otel`.
//!
//! This is the only exit of telemetry. Events pass themselves to [`trace`]; [`OtlpExporter`] sends
//! their spans, and the metrics, to the endpoint that the job names. Nothing waits for that
//! endpoint: events go into a bounded queue, and every call and the final drain have deadlines.
//!
//! The messages are OpenTelemetry's own (`opentelemetry-proto`), without its SDK
//! (docs/decisions/0021): the metrics are already summed up, and spans are created when they end,
//! with ids that every process derives for itself.

mod attributes;
mod metrics;
mod queue;
mod spans;

use std::future::Future;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tracing::debug;

use crate::config::TelemetryConfig;
use crate::events::{ExportFailing, ExportResumed};
use crate::export::ExportError;
use crate::labels::Label;
use crate::names::{ProcessMetrics, process_metrics};
use crate::origin::ProcessOrigin;
use attributes::{int_attribute, text_attribute};
use metrics::{MetricPeriod, metrics};
use queue::nanos_now;
pub(crate) use queue::trace;

/// Events per call: at most 2,048 spans, 0.8 MB; collectors accept 4 MiB.
const BATCH_MAX: usize = 256;

/// Time between two sends of spans.
const SEND_INTERVAL: Duration = Duration::from_secs(1);

/// A collector on the same machine answers within milliseconds.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// At the end of the process, what remains is sent within this time or dropped.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3);

/// Number of tries of a batch that the endpoint cannot accept now: pauses of 1, 2, 4 and 8 s
/// outlast a collector's restart.
const TRIES_MAX: u32 = 5;

/// The longest pause after a failed call.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Sends the metrics and spans of this process to the endpoint of its job.
#[derive(Debug)]
pub struct OtlpExporter {
    spans: SpanSender,
    metrics: MetricSender,
}

impl OtlpExporter {
    /// Starts tracing events; connects when first needed. `None` if the job names no endpoint.
    ///
    /// # Errors
    /// If the endpoint is not a URI, or the process exports already.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(config: &TelemetryConfig, origin: &ProcessOrigin) -> Result<Option<Self>, ExportError> {
        let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
        let (sender, queue) = queue::channel();
        let exporter =
            Self::with_endpoint(endpoint, config.metrics_interval, origin, queue, process_metrics())?;
        if !queue::install(sender) {
            let reason = "this process exports already".into();
            return Err(ExportError::Endpoint { endpoint: endpoint.clone(), reason });
        }
        Ok(Some(exporter))
    }

    fn with_endpoint(
        endpoint: &str,
        metrics_interval: Duration,
        origin: &ProcessOrigin,
        queue: mpsc::Receiver<Vec<Span>>,
        figures: &'static ProcessMetrics,
    ) -> Result<Self, ExportError> {
        let channel = channel(endpoint)?;
        let resource = resource(origin);
        let spans = SpanSender {
            client: TraceServiceClient::new(channel.clone()),
            link: ExportLink::new("spans", figures),
            resource: resource.clone(),
            queue,
            batch: Vec::new(),
            tries: 0,
        };
        let metrics = MetricSender {
            client: MetricsServiceClient::new(channel),
            link: ExportLink::new("metrics", figures),
            resource,
            began_nanos: nanos_now(),
            interval: metrics_interval,
        };
        Ok(Self { spans, metrics })
    }

    /// Sends until `stop`, then what remains, for at most `DRAIN_DEADLINE`.
    pub async fn export(self, stop: CancellationToken) {
        let Self { mut spans, mut metrics } = self;
        tokio::join!(spans.run(&stop), metrics.run(&stop));
    }
}

#[derive(Debug)]
struct SpanSender {
    client: TraceServiceClient<Channel>,
    link: ExportLink,
    resource: Resource,
    queue: mpsc::Receiver<Vec<Span>>,
    /// Events taken from the queue and not yet accepted by the endpoint.
    batch: Vec<Vec<Span>>,
    /// Number of failed sends of the batch.
    tries: u32,
}

#[derive(Debug)]
struct MetricSender {
    client: MetricsServiceClient<Channel>,
    link: ExportLink,
    resource: Resource,
    began_nanos: u64,
    interval: Duration,
}

/// State of the connection for one signal: some endpoints accept only spans, others only metrics.
#[derive(Debug)]
struct ExportLink {
    signal: &'static str,
    figures: &'static ProcessMetrics,
    failing_since: Option<Instant>,
    pause: Duration,
    /// No call before this time.
    not_before: Instant,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallOutcome {
    /// The endpoint has it.
    Accepted,
    /// It may accept it later.
    Unavailable,
    /// The endpoint will never accept it.
    Refused,
}

impl SpanSender {
    async fn run(&mut self, stop: &CancellationToken) {
        let sending = async {
            let mut beats = interval_ticks(SEND_INTERVAL);
            while stop.run_until_cancelled(beats.tick()).await.is_some() {
                if self.link.is_ready() {
                    self.send_all().await;
                }
            }
            self.send_all().await;
        };
        if !is_done_in_time(stop, sending).await {
            self.link.failed("the process ended before everything was sent");
        }
        self.forget_all();
    }

    /// Sends what waits, batch by batch, until the queue is empty or a call fails.
    async fn send_all(&mut self) {
        while self.fill() {
            let resource_spans = ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope()),
                    spans: self.batch.concat(),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let request = ExportTraceServiceRequest { resource_spans: vec![resource_spans] };
            let answer = with_deadline(self.client.export(request)).await;
            if let Ok(answer) = &answer
                && let Some(partly) = &answer.get_ref().partial_success
            {
                debug!(
                    rejected = partly.rejected_spans,
                    reason = partly.error_message,
                    "the endpoint rejected some spans"
                );
            }
            let fate = self.link.record_outcome(answer.map(drop));
            self.apply_outcome(fate);
            if fate != CallOutcome::Accepted {
                return;
            }
        }
    }

    /// Fills the batch; whether there is something to send.
    fn fill(&mut self) -> bool {
        while self.batch.len() < BATCH_MAX
            && let Ok(spans) = self.queue.try_recv()
        {
            self.batch.push(spans);
        }
        !self.batch.is_empty()
    }

    fn apply_outcome(&mut self, fate: CallOutcome) {
        self.tries += 1;
        match fate {
            CallOutcome::Accepted => {
                self.link.figures.otlp_events.add(self.batch.len() as u64);
                self.batch.clear();
                self.tries = 0;
            }
            CallOutcome::Unavailable if self.tries < TRIES_MAX => {}
            CallOutcome::Unavailable | CallOutcome::Refused => self.forget_batch(),
        }
    }

    fn forget_batch(&mut self) {
        self.link.figures.otlp_dropped.add(self.batch.len() as u64);
        self.batch.clear();
        self.tries = 0;
    }

    fn forget_all(&mut self) {
        self.queue.close();
        while self.fill() {
            self.forget_batch();
        }
    }
}

impl MetricSender {
    async fn run(&mut self, stop: &CancellationToken) {
        let sending = async {
            let mut beats = interval_ticks(self.interval);
            while stop.run_until_cancelled(beats.tick()).await.is_some() {
                if self.link.is_ready() {
                    self.send().await;
                }
            }
            self.send().await;
        };
        if !is_done_in_time(stop, sending).await {
            self.link.failed("the process ended before the last metrics were sent");
        }
    }

    /// Sends the current metrics. A failed call is not repeated: the next values include these.
    async fn send(&mut self) {
        let period = MetricPeriod { began_nanos: self.began_nanos, now_nanos: nanos_now() };
        let resource_metrics = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics: metrics(self.link.figures, period),
                ..Default::default()
            }],
            ..Default::default()
        };
        let request = ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] };
        let answer = with_deadline(self.client.export(request)).await;
        if let Ok(answer) = &answer
            && let Some(partly) = &answer.get_ref().partial_success
        {
            debug!(
                rejected = partly.rejected_data_points,
                reason = partly.error_message,
                "the endpoint rejected some metrics"
            );
        }
        self.link.record_outcome(answer.map(drop));
    }
}

impl ExportLink {
    fn new(signal: &'static str, figures: &'static ProcessMetrics) -> Self {
        Self { signal, figures, failing_since: None, pause: Duration::ZERO, not_before: Instant::now() }
    }

    fn is_ready(&self) -> bool {
        Instant::now() >= self.not_before
    }

    /// Records the outcome of a call: logs the first failure, and the first success after failures.
    fn record_outcome(&mut self, answer: Result<(), Status>) -> CallOutcome {
        let Err(status) = answer else {
            self.pause = Duration::ZERO;
            if let Some(since) = self.failing_since.take() {
                ExportResumed { signal: self.signal, micros: since.elapsed().as_micros() as u64 }.emit();
            }
            return CallOutcome::Accepted;
        };
        self.failed(&error_chain(&status));
        self.pause = (self.pause * 2).clamp(SEND_INTERVAL, PAUSE_MAX);
        self.not_before = Instant::now() + self.pause;
        if is_final(status.code()) { CallOutcome::Refused } else { CallOutcome::Unavailable }
    }

    fn failed(&mut self, reason: &str) {
        self.figures.otlp_failures.add(1);
        if self.failing_since.is_none() {
            self.failing_since = Some(Instant::now());
            ExportFailing { signal: self.signal, reason }.emit();
        }
    }
}

/// Whether `sending` ends soon after `stop`. A call in progress is not cut off: its repetition
/// would send twice.
async fn is_done_in_time(stop: &CancellationToken, sending: impl Future<Output = ()>) -> bool {
    let too_late = async {
        stop.cancelled().await;
        sleep(DRAIN_DEADLINE).await;
    };
    tokio::select! {
        biased;
        () = sending => true,
        () = too_late => false,
    }
}

/// Whether the same call would fail again (OTLP 1.10, "Failures"). Codes that are not listed there
/// as permanent are retried, within limits.
fn is_final(code: Code) -> bool {
    use Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound};
    use Code::{PermissionDenied, ResourceExhausted, Unauthenticated, Unimplemented};
    matches!(
        code,
        AlreadyExists
            | FailedPrecondition
            | InvalidArgument
            | NotFound
            | PermissionDenied
            | ResourceExhausted
            | Unauthenticated
            | Unimplemented
    )
}

/// The error and its causes.
fn error_chain(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

async fn with_deadline<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("no answer within {} s", CALL_DEADLINE.as_secs()));
    timeout(CALL_DEADLINE, call).await.map_err(late)?
}

fn interval_ticks(period: Duration) -> Interval {
    let mut beats = interval(period);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

/// Plain gRPC over TCP, connected at first use and reconnected after a loss.
fn channel(endpoint: &str) -> Result<Channel, ExportError> {
    let bad = |error: tonic::transport::Error| ExportError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason: error.to_string(),
    };
    let channel = Endpoint::from_shared(endpoint.to_owned()).map_err(bad)?;
    Ok(channel.connect_timeout(CALL_DEADLINE).connect_lazy())
}

fn resource(origin: &ProcessOrigin) -> Resource {
    let attributes = vec![
        text_attribute("service.name", "furrow"),
        text_attribute("service.version", env!("CARGO_PKG_VERSION")),
        text_attribute("service.instance.id", &origin.instance),
        text_attribute("furrow.role", origin.role.value()),
        text_attribute("furrow.run", &origin.run),
        int_attribute("process.pid", std::process::id().into()),
    ];
    Resource { attributes, ..Default::default() }
}

fn scope() -> InstrumentationScope {
    let name = env!("CARGO_PKG_NAME").to_owned();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    InstrumentationScope { name, version, ..Default::default() }
}

#[cfg(test)]
mod tests;
