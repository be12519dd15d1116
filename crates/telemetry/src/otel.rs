//! Export over OTLP/gRPC: the figures as metrics, the events of trajectories as spans. Built with the feature `otel`.
//!
//! This is the one door. An event hands itself to [`trace`]; [`Otlp`] sends what came of it, and the figures, to the endpoint that
//! the job names. Nobody waits for that endpoint: events go into a bounded queue, every call has a deadline, and so has the end.
//!
//! The messages are OpenTelemetry's own (`opentelemetry-proto`); its SDK is left out (docs/decisions/0021): the figures are summed up
//! already, and spans are made when they are over, with ids that every process works out for itself.

mod metrics;
mod spans;

use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
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
use crate::names::{Figures, figures};
use crate::origin::Origin;
use metrics::{Period, metrics};
use spans::Traced;

/// Whether this build can export.
pub(crate) const BUILT_IN: bool = true;

/// Events that wait to be sent. An event is at most 8 spans of about 400 bytes: 13 MB, filled in half a minute by 100 steps a second.
const QUEUE_MAX: usize = 4096;

/// Events sent with one call: at most 2,048 spans, 0.8 MB where collectors take 4 MiB.
const BATCH_MAX: usize = 256;

/// How often spans are sent.
const BEAT: Duration = Duration::from_secs(1);

/// A collector beside the process answers within milliseconds.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// What is left when the process ends is sent within this time or dropped.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3);

/// A batch that the endpoint cannot take now is tried so often: pauses of 1, 2, 4 and 8 s outlast a collector's restart.
const TRIES_MAX: u32 = 5;

/// The longest pause after a failed call.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Where [`trace`] puts what happened in this process; empty until something is exported.
static QUEUE: OnceLock<mpsc::Sender<Vec<Span>>> = OnceLock::new();

/// Sends the figures and spans of this process to the endpoint of its job.
#[derive(Debug)]
pub struct Otlp {
    spans: SpanLine,
    metrics: MetricLine,
}

/// Notes the spans of an event. Where the queue is full they are counted and forgotten: nothing waits.
pub(crate) fn trace<E: Traced>(event: &E) {
    if let Some(queue) = QUEUE.get() {
        offer(queue, figures(), event);
    }
}

fn offer<E: Traced>(queue: &mpsc::Sender<Vec<Span>>, figures: &Figures, event: &E) {
    match queue.try_reserve() {
        Ok(place) => place.send(event.spans(nanos_now())),
        Err(_) => figures.otlp_dropped.add(1),
    }
}

impl Otlp {
    /// Connects when first needed. From now on events are traced; `None` where the job names no endpoint.
    ///
    /// # Errors
    /// An endpoint that is no URI, or a process that exports already.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(config: &TelemetryConfig, origin: &Origin) -> Result<Option<Self>, ExportError> {
        let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let exporter = Self::over(endpoint, config.metrics_interval, origin, queue, figures())?;
        QUEUE.set(sender).map_err(|_| ExportError::Endpoint {
            endpoint: endpoint.clone(),
            reason: "this process exports already".into(),
        })?;
        Ok(Some(exporter))
    }

    fn over(
        endpoint: &str,
        metrics_interval: Duration,
        origin: &Origin,
        queue: mpsc::Receiver<Vec<Span>>,
        figures: &'static Figures,
    ) -> Result<Self, ExportError> {
        let channel = channel(endpoint)?;
        let resource = resource(origin);
        let spans = SpanLine {
            client: TraceServiceClient::new(channel.clone()),
            link: Link::new("spans", figures),
            resource: resource.clone(),
            queue,
            batch: Vec::new(),
            tries: 0,
        };
        let metrics = MetricLine {
            client: MetricsServiceClient::new(channel),
            link: Link::new("metrics", figures),
            resource,
            began_nanos: nanos_now(),
            interval: metrics_interval,
        };
        Ok(Self { spans, metrics })
    }

    /// Sends until `stop`, then what is left, at most [`DRAIN_DEADLINE`] longer.
    pub async fn export(self, stop: CancellationToken) {
        let Self { mut spans, mut metrics } = self;
        tokio::join!(spans.run(&stop), metrics.run(&stop));
    }
}

/// Spans on their way.
#[derive(Debug)]
struct SpanLine {
    client: TraceServiceClient<Channel>,
    link: Link,
    resource: Resource,
    queue: mpsc::Receiver<Vec<Span>>,
    /// Events taken from the queue and not yet taken by the endpoint.
    batch: Vec<Vec<Span>>,
    /// How often the batch was sent in vain.
    tries: u32,
}

/// Figures on their way.
#[derive(Debug)]
struct MetricLine {
    client: MetricsServiceClient<Channel>,
    link: Link,
    resource: Resource,
    began_nanos: u64,
    interval: Duration,
}

/// How the endpoint takes one kind of thing. Some take spans alone, some metrics alone.
#[derive(Debug)]
struct Link {
    signal: &'static str,
    figures: &'static Figures,
    failing_since: Option<Instant>,
    pause: Duration,
    /// Nothing is sent before.
    not_before: Instant,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The endpoint has it.
    Taken,
    /// It may take it later.
    Away,
    /// It never will.
    Refused,
}

impl SpanLine {
    async fn run(&mut self, stop: &CancellationToken) {
        let sending = async {
            let mut beats = beats(BEAT);
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

    /// Sends what waits, batch by batch, until nothing does or a call fails.
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
            let answer = within(self.client.export(request)).await;
            if let Ok(answer) = &answer
                && let Some(partly) = &answer.get_ref().partial_success
            {
                debug!(rejected = partly.rejected_spans, reason = partly.error_message, "spans in part");
            }
            let fate = self.link.judge(answer.map(drop));
            self.settle(fate);
            if fate != Fate::Taken {
                return;
            }
        }
    }

    /// Whether there is something to send.
    fn fill(&mut self) -> bool {
        while self.batch.len() < BATCH_MAX
            && let Ok(spans) = self.queue.try_recv()
        {
            self.batch.push(spans);
        }
        !self.batch.is_empty()
    }

    fn settle(&mut self, fate: Fate) {
        self.tries += 1;
        match fate {
            Fate::Taken => {
                self.link.figures.otlp_events.add(self.batch.len() as u64);
                self.batch.clear();
                self.tries = 0;
            }
            Fate::Away if self.tries < TRIES_MAX => {}
            Fate::Away | Fate::Refused => self.forget_batch(),
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

impl MetricLine {
    async fn run(&mut self, stop: &CancellationToken) {
        let sending = async {
            let mut beats = beats(self.interval);
            while stop.run_until_cancelled(beats.tick()).await.is_some() {
                if self.link.is_ready() {
                    self.send().await;
                }
            }
            self.send().await;
        };
        if !is_done_in_time(stop, sending).await {
            self.link.failed("the process ended before the last figures were sent");
        }
    }

    /// Sends the figures as they stand. A call that fails is not repeated: the next figures hold these.
    async fn send(&mut self) {
        let period = Period { began_nanos: self.began_nanos, now_nanos: nanos_now() };
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
        let answer = within(self.client.export(request)).await;
        if let Ok(answer) = &answer
            && let Some(partly) = &answer.get_ref().partial_success
        {
            debug!(rejected = partly.rejected_data_points, reason = partly.error_message, "metrics in part");
        }
        self.link.judge(answer.map(drop));
    }
}

impl Link {
    fn new(signal: &'static str, figures: &'static Figures) -> Self {
        Self { signal, figures, failing_since: None, pause: Duration::ZERO, not_before: Instant::now() }
    }

    fn is_ready(&self) -> bool {
        Instant::now() >= self.not_before
    }

    /// Notes how a call went: the first that fails is told, and the first that succeeds again.
    fn judge(&mut self, answer: Result<(), Status>) -> Fate {
        let Err(status) = answer else {
            self.pause = Duration::ZERO;
            if let Some(since) = self.failing_since.take() {
                ExportResumed { signal: self.signal, micros: since.elapsed().as_micros() as u64 }.emit();
            }
            return Fate::Taken;
        };
        self.failed(&told(&status));
        self.pause = (self.pause * 2).clamp(BEAT, PAUSE_MAX);
        self.not_before = Instant::now() + self.pause;
        if is_final(status.code()) { Fate::Refused } else { Fate::Away }
    }

    fn failed(&mut self, reason: &str) {
        self.figures.otlp_failures.add(1);
        if self.failing_since.is_none() {
            self.failing_since = Some(Instant::now());
            ExportFailing { signal: self.signal, reason }.emit();
        }
    }
}

/// Whether something that ends after `stop` ends soon after it. A call that is under way is not cut short: it would be made twice.
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

/// Whether the same call would fail again (OTLP 1.10, "Failures"). What is not listed there as lasting is tried again, within limits.
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

/// What failed, and its causes.
fn told(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("no answer within {} s", CALL_DEADLINE.as_secs()));
    timeout(CALL_DEADLINE, call).await.map_err(late)?
}

fn beats(period: Duration) -> Interval {
    let mut beats = interval(period);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

/// Plain gRPC over TCP, connected when first used and again when it was lost.
fn channel(endpoint: &str) -> Result<Channel, ExportError> {
    let bad = |error: tonic::transport::Error| ExportError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason: error.to_string(),
    };
    let channel = Endpoint::from_shared(endpoint.to_owned()).map_err(bad)?;
    Ok(channel.connect_timeout(CALL_DEADLINE).connect_lazy())
}

fn resource(origin: &Origin) -> Resource {
    let attributes = vec![
        text("service.name", "furrow"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", &origin.instance),
        text("furrow.role", origin.role.word()),
        text("furrow.run", &origin.run),
        whole("process.pid", std::process::id().into()),
    ];
    Resource { attributes, ..Default::default() }
}

fn scope() -> InstrumentationScope {
    let (name, version) = (env!("CARGO_PKG_NAME").to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    InstrumentationScope { name, version, ..Default::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

/// Attributes have signed numbers; what does not fit is told as the largest.
fn whole(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..Default::default() }
}

/// Wall clock, nanoseconds since the Unix epoch; 0 before it.
fn nanos_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
