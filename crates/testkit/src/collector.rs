//! A stand-in for an OpenTelemetry collector: takes OTLP over gRPC on a real socket, keeps what it got, and misbehaves on request.

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

/// What it does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Takes it.
    Take,
    /// Answers with this.
    Refuse(Code),
    /// Never answers.
    Silence,
}

/// A call as it arrived.
#[derive(Debug, Clone)]
pub struct Sent<T> {
    /// Attributes of the resource.
    pub resource: Vec<KeyValue>,
    /// What it carried.
    pub items: Vec<T>,
}

/// A collector that listens until it is dropped.
pub struct Collector {
    address: SocketAddr,
    shelf: Shelf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What both services share.
#[derive(Clone)]
struct Shelf(Arc<Mutex<Kept>>);

struct Kept {
    manner: Manner,
    calls: usize,
    spans: Vec<Sent<Span>>,
    metrics: Vec<Sent<Metric>>,
}

impl Collector {
    /// On a free port of loopback.
    pub fn start(manner: Manner) -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), manner)
    }

    /// At this address.
    ///
    /// # Panics
    /// When it cannot be had.
    pub fn at(address: SocketAddr, manner: Manner) -> Self {
        let kept = Kept { manner, calls: 0, spans: Vec::new(), metrics: Vec::new() };
        let shelf = Shelf(Arc::new(Mutex::new(kept)));
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let services = shelf.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::bind(address).await.expect("an address to listen at");
                tell.send(listener.local_addr().expect("an address")).expect("somebody who asked");
                let server = Server::builder()
                    .add_service(TraceServiceServer::new(services.clone()))
                    .add_service(MetricsServiceServer::new(services))
                    .serve_with_incoming(TcpIncoming::from(listener));
                // Dropped, not drained: a call that is never answered would hold it for ever.
                tokio::select! {
                    _ = stopped => {}
                    ended = server => ended.expect("a server that serves"),
                }
            });
        });
        let address = told.recv().expect("a collector that listens");
        Self { address, shelf, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as an endpoint.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How it behaves from now on.
    pub fn behave(&self, manner: Manner) {
        self.shelf.kept().manner = manner;
    }

    /// Calls that came in, whatever became of them.
    pub fn calls(&self) -> usize {
        self.shelf.kept().calls
    }

    /// Spans it took, a call each.
    pub fn spans(&self) -> Vec<Sent<Span>> {
        self.shelf.kept().spans.clone()
    }

    /// Metrics it took, a call each.
    pub fn metrics(&self) -> Vec<Sent<Metric>> {
        self.shelf.kept().metrics.clone()
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// When it is not within a minute.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: not within a minute; {} calls came", self.calls());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It panicked before, and the test knows.
        self.thread.take().map(JoinHandle::join).transpose().ok();
    }
}

impl Shelf {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, keep: impl FnOnce(&mut Kept)) -> Result<(), Status> {
        let manner = {
            let mut kept = self.kept();
            kept.calls += 1;
            kept.manner
        };
        match manner {
            Manner::Take => {
                keep(&mut self.kept());
                Ok(())
            }
            Manner::Refuse(code) => Err(Status::new(code, "as it was told to")),
            Manner::Silence => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl TraceService for Shelf {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let sent = request.into_inner().resource_spans.into_iter().map(|group| Sent {
            resource: group.resource.unwrap_or_default().attributes,
            items: group.scope_spans.into_iter().flat_map(|scope| scope.spans).collect(),
        });
        self.call(|kept| kept.spans.extend(sent)).await?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Shelf {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let sent = request.into_inner().resource_metrics.into_iter().map(|group| Sent {
            resource: group.resource.unwrap_or_default().attributes,
            items: group.scope_metrics.into_iter().flat_map(|scope| scope.metrics).collect(),
        });
        self.call(|kept| kept.metrics.extend(sent)).await?;
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

/// An attribute as text: numbers and truth values as they are written.
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
