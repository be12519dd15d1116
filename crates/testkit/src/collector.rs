//! A fake OpenTelemetry collector: accepts OTLP over gRPC on a real socket, keeps what it receives,
//! and misbehaves on request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

/// What the collector does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectorMode {
    Take,
    /// Answers with this error code.
    Refuse(Code),
    Silence,
}

/// A call as it arrived.
#[derive(Debug, Clone)]
pub struct SentBatch<T> {
    /// Attributes of the resource.
    pub resource: Vec<KeyValue>,
    /// The spans or metrics of the call.
    pub items: Vec<T>,
}

/// A collector that listens until it is dropped.
pub struct FakeCollector {
    address: SocketAddr,
    state: SharedState,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that both services share.
#[derive(Clone)]
struct SharedState(Arc<Mutex<CollectorState>>);

struct CollectorState {
    manner: CollectorMode,
    calls: usize,
    spans: Vec<SentBatch<Span>>,
    metrics: Vec<SentBatch<Metric>>,
}

impl FakeCollector {
    /// Starts a collector on a free port of the loopback interface.
    pub fn start(manner: CollectorMode) -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), manner)
    }

    /// Starts a collector at this address.
    ///
    /// # Panics
    /// If the address is not available.
    pub fn at(address: SocketAddr, manner: CollectorMode) -> Self {
        let kept = CollectorState { manner, calls: 0, spans: Vec::new(), metrics: Vec::new() };
        let state = SharedState(Arc::new(Mutex::new(kept)));
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let services = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::bind(address).await.expect("an address to listen at");
                ready
                    .send(listener.local_addr().expect("an address"))
                    .expect("a caller that waits for the address");
                let server = Server::builder()
                    .add_service(TraceServiceServer::new(services.clone()))
                    .add_service(MetricsServiceServer::new(services))
                    .serve_with_incoming(TcpIncoming::from(listener));
                // The server is dropped, not drained: a call that is never answered would block a
                // drain for ever.
                tokio::select! {
                    _ = stopped => {}
                    ended = server => ended.expect("a server that serves"),
                }
            });
        });
        let address = is_ready.recv().expect("a collector that listens");
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as an OTLP endpoint URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the behaviour from now on.
    pub fn behave(&self, manner: CollectorMode) {
        self.state.kept().manner = manner;
    }

    /// Number of calls that arrived, refused ones included.
    pub fn calls(&self) -> usize {
        self.state.kept().calls
    }

    /// Accepted spans, one entry per call.
    pub fn spans(&self) -> Vec<SentBatch<Span>> {
        self.state.kept().spans.clone()
    }

    /// Accepted metrics, one entry per call.
    pub fn metrics(&self) -> Vec<SentBatch<Metric>> {
        self.state.kept().metrics.clone()
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If the condition does not hold within a minute.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: not within a minute; {} calls arrived", self.calls());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for FakeCollector {
    fn drop(&mut self) {
        drop(self.stop.take());
        // An earlier panic of the thread has already failed the test.
        self.thread.take().map(JoinHandle::join).transpose().ok();
    }
}

impl SharedState {
    fn kept(&self) -> MutexGuard<'_, CollectorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, keep: impl FnOnce(&mut CollectorState)) -> Result<(), Status> {
        let manner = {
            let mut kept = self.kept();
            kept.calls += 1;
            kept.manner
        };
        match manner {
            CollectorMode::Take => {
                keep(&mut self.kept());
                Ok(())
            }
            CollectorMode::Refuse(code) => Err(Status::new(code, "refused as configured")),
            CollectorMode::Silence => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl TraceService for SharedState {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let sent = request.into_inner().resource_spans.into_iter().map(|group| SentBatch {
            resource: group.resource.unwrap_or_default().attributes,
            items: group.scope_spans.into_iter().flat_map(|scope| scope.spans).collect(),
        });
        self.call(|kept| kept.spans.extend(sent)).await?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for SharedState {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let sent = request.into_inner().resource_metrics.into_iter().map(|group| SentBatch {
            resource: group.resource.unwrap_or_default().attributes,
            items: group.scope_metrics.into_iter().flat_map(|scope| scope.metrics).collect(),
        });
        self.call(|kept| kept.metrics.extend(sent)).await?;
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

/// An attribute's value as text; numbers and booleans in their usual notation.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        Value::BoolValue(truth) => Some(truth.to_string()),
        _ => None,
    }
}
