//! Accepts connections up to a number, answers each within its limits, and drains them on a stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service as _;
use tracing::debug;

use crate::limits::HttpLimits;
use crate::write_timeout::WriteTimeout;

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct HttpServer {
    pub limits: HttpLimits,
    listener: TcpListener,
    address: SocketAddr,
}

/// The tasks of a server, and the signals that end them.
#[derive(Debug, Clone, Default)]
pub struct ServerTasks {
    /// No further connection is accepted; each open one ends with its running request.
    pub stop: CancellationToken,
    /// Connections end at once, whatever runs.
    pub cut: CancellationToken,
    /// The connections, and tasks of the role that end with them.
    pub tracker: TaskTracker,
}

/// Most headers of a request; browsers and clients of OpenAI send about 20.
const HEADERS_MAX: usize = 100;
/// Pause after an error of the listener, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for connections to end that were cut.
const CUT_TIMEOUT: Duration = Duration::from_secs(2);

impl HttpServer {
    pub async fn bind(address: SocketAddr, limits: HttpLimits) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { limits, listener, address })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until `tasks.stop`. The open ones then end by themselves, or are cut:
    /// see [`ServerTasks`].
    pub async fn serve(self, routes: Router, tasks: &ServerTasks) {
        let permits = Arc::new(Semaphore::new(self.limits.connections_max));
        loop {
            // A connection waits in the system's queue until a permit is free.
            let next = async {
                let permit = permits.clone().acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let Some((permit, accepted)) = tasks.stop.run_until_cancelled(next).await else { return };
            match accepted {
                Ok((stream, _)) => {
                    let connection = serve_connection(stream, routes.clone(), self.limits, tasks.clone());
                    tasks.tracker.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    debug!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl ServerTasks {
    /// Tasks that `stop` begins to end.
    pub fn new(stop: CancellationToken) -> Self {
        Self { stop, ..Self::default() }
    }

    /// Waits until every task has ended, for `grace` at most. Returns whether they have.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.tracker.close();
        timeout(grace, self.tracker.wait()).await.is_ok()
    }

    /// Cuts the connections that are left. Tasks that do not end within two seconds end with the
    /// runtime.
    pub async fn cut(&self) {
        self.cut.cancel();
        self.drain(CUT_TIMEOUT).await;
    }
}

async fn serve_connection(stream: TcpStream, routes: Router, limits: HttpLimits, tasks: ServerTasks) {
    // Events of a stream are small and must not be delayed.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY could not be set");
    }
    let service = service_fn(move |request: Request<Incoming>| routes.clone().call(request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes_max)
        .max_headers(HEADERS_MAX);
    let stream = TokioIo::new(WriteTimeout::new(stream, limits.write_timeout));
    let mut connection = std::pin::pin!(http.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = expire(limits.connection_timeout) => return,
        () = tasks.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = tasks.cut.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection failed");
    }
}

async fn expire(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => sleep(timeout).await,
        None => std::future::pending().await,
    }
}
