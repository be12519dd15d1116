//! Listens and limits connections: their number, the time of a head and of a write, and their total
//! duration.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use furrow_http::WriteTimeout;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::access::{AccessControl, AccessError};
use crate::config::DashboardConfig;
use crate::follow::{DashboardState, DashboardSubject, follow};
use crate::live::poll;
use crate::routes::{BUSY_MAX, RequestRouter};

/// A dashboard that listens and does not answer yet.
pub struct DashboardServer {
    listener: TcpListener,
    address: SocketAddr,
    access: AccessControl,
    state: Arc<DashboardState>,
    connections_max: usize,
    deadlines: ConnectionDeadlines,
}

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
struct ConnectionDeadlines {
    /// Until a head, or a form, is complete.
    head: Duration,
    /// Until part of a response is sent; after that the client counts as gone.
    write: Duration,
    /// In total: a page connects again by itself.
    whole: Duration,
}

/// Why a dashboard cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// Access cannot be controlled.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address cannot be used.
    #[error("dashboard.listen: cannot listen on {address}; use another port, or 0 for a free one")]
    Listen { address: SocketAddr, source: io::Error },
}

const DEADLINES: ConnectionDeadlines = ConnectionDeadlines {
    head: Duration::from_secs(15),
    write: Duration::from_secs(30),
    whole: Duration::from_secs(15 * 60),
};
/// Input buffer of a connection.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Time for running answers after a stop.
const GRACE: Duration = Duration::from_secs(2);
/// Pause after an error of the listener (no file descriptors).
const REST: Duration = Duration::from_millis(100);

impl DashboardServer {
    /// Listens on the configured address. `token`: required from callers; optional on loopback.
    pub async fn bind(
        address: SocketAddr,
        config: &DashboardConfig,
        token: Option<&str>,
        subject: DashboardSubject,
    ) -> Result<Self, DashboardError> {
        let access = AccessControl::new(address, token)?;
        let listening = TcpListener::bind(address).await;
        let listener = listening.map_err(|source| DashboardError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| DashboardError::Listen { address, source })?;
        let state = Arc::new(DashboardState::new(subject));
        Ok(Self {
            listener,
            address,
            access,
            state,
            connections_max: config.connections_max,
            deadlines: DEADLINES,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop`; running answers then have two seconds.
    pub async fn serve(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        tasks.spawn(follow(self.state.clone(), stop.clone()));
        tasks.spawn(poll(self.state.clone(), stop.clone()));
        let routes = RequestRouter {
            access: Arc::new(self.access),
            state: self.state,
            busy: Arc::new(Semaphore::new(BUSY_MAX)),
            form_timeout: self.deadlines.head,
            stop: stop.clone(),
        };
        let permits = Arc::new(Semaphore::new(self.connections_max));
        loop {
            // A connection waits in the system's queue until a permit is free.
            let next = async {
                let permit = permits.clone().acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let Some((permit, accepted)) = stop.run_until_cancelled(next).await else { break };
            match accepted {
                Ok((stream, _)) => {
                    let routes = routes.clone();
                    let deadlines = self.deadlines;
                    let stop = stop.clone();
                    tasks.spawn(async move {
                        serve_connection(stream, routes, deadlines, stop).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(REST).await;
                }
            }
        }
        tasks.close();
        // Answers that remain after the grace period end with the runtime.
        drop(tokio::time::timeout(GRACE, tasks.wait()).await);
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: RequestRouter,
    deadlines: ConnectionDeadlines,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| {
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(deadlines.head).max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(WriteTimeout::new(stream, deadlines.write));
    let mut connection = std::pin::pin!(http.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = tokio::time::timeout(deadlines.whole, connection.as_mut()) => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        debug!(%error, "a connection of the dashboard failed");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;
    use crate::config::DashboardFile;
    use crate::metrics::DeviceKind;

    /// The smallest limit that the settings allow.
    const CONNECTIONS: usize = 4;
    const SHORT: Duration = Duration::from_millis(250);
    /// Longer than a test runs.
    const LONG: Duration = Duration::from_secs(600);

    struct TestServer {
        address: SocketAddr,
        stop: CancellationToken,
        serving: tokio::task::JoinHandle<()>,
    }

    impl TestServer {
        async fn with(deadlines: ConnectionDeadlines) -> Self {
            let file = DashboardFile { connections_max: CONNECTIONS as u32, ..DashboardFile::default() };
            let subject = DashboardSubject {
                name: "quiet".into(),
                dir: None,
                coordinator: None,
                job: None,
                device: DeviceKind::None,
                usd_per_device_hour: None,
                planned: None,
                floor: None,
            };
            let any = "127.0.0.1:0".parse().unwrap();
            let mut dashboard =
                DashboardServer::bind(any, &file.check().unwrap(), None, subject).await.unwrap();
            dashboard.deadlines = deadlines;
            let address = dashboard.address();
            let stop = CancellationToken::new();
            let serving = tokio::spawn(dashboard.serve(stop.clone()));
            Self { address, stop, serving }
        }

        /// A connection that sends this, and reads little of the response.
        async fn send(&self, text: &str) -> TcpStream {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut stream = socket.connect(self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        }

        /// Whether another client gets an answer within the limit.
        async fn answers_within(&self, limit: Duration) -> bool {
            let mut stream = self.send(&get("/assets/icon.svg", "close")).await;
            let mut answer = String::new();
            let read = tokio::time::timeout(limit, stream.read_to_string(&mut answer)).await;
            read.is_ok() && answer.starts_with("HTTP/1.1 200")
        }

        async fn close(self) {
            self.stop.cancel();
            self.serving.await.unwrap();
        }
    }

    fn get(path: &str, connection: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: {connection}\r\n\r\n")
    }

    #[tokio::test]
    async fn a_slow_connection_is_closed_for_others() {
        // More than the buffers of both ends hold, requested at once and never read.
        let deaf = get("/assets/style.css", "keep-alive").repeat(1200);
        let form = "POST /token HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\ntoken=";
        for (who, text) in [
            ("sends nothing", ""),
            ("never finishes its head", "GET / HTTP/1.1\r\nhost: 127"),
            ("never finishes its form", form),
            ("sends one request and stays", &*get("/assets/icon.svg", "keep-alive")),
            ("never reads", &*deaf),
        ] {
            let served =
                TestServer::with(ConnectionDeadlines { head: SHORT, write: SHORT, whole: LONG }).await;
            let mut slow = Vec::new();
            for _ in 0..CONNECTIONS {
                slow.push(served.send(text).await);
            }
            assert!(served.answers_within(Duration::from_secs(20)).await, "{who}");
            drop(slow);
            served.close().await;
        }
    }

    #[tokio::test]
    async fn no_more_connections_are_served_than_allowed() {
        let served = TestServer::with(ConnectionDeadlines { head: LONG, write: LONG, whole: LONG }).await;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(served.send(&get("/api/events", "keep-alive")).await);
        }
        assert!(!served.answers_within(SHORT).await, "a fifth connection was served");
        connections.pop();
        assert!(served.answers_within(Duration::from_secs(20)).await, "a free permit is used");
        served.close().await;
    }

    #[tokio::test]
    async fn no_connection_lasts_for_ever() {
        let served = TestServer::with(ConnectionDeadlines { head: LONG, write: LONG, whole: SHORT }).await;
        let mut stream = served.send(&get("/api/events", "keep-alive")).await;
        let mut heard = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
        assert!(read.is_ok() && heard.starts_with(b"HTTP/1.1 200"), "the connection is closed");
        served.close().await;
    }
}
