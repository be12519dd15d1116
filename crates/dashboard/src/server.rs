//! Listens, with the limits of the dashboard's connections, and runs what its pages need beside it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use furrow_http::{AccessControl, HttpLimits, HttpServer, ServerTasks};
use tokio_util::sync::CancellationToken;

use crate::access::{AccessError, access_control};
use crate::config::DashboardConfig;
use crate::follow::{DashboardState, DashboardSubject, follow};
use crate::live::poll;
use crate::routes::{DashboardRoutes, bare_router, router};
use crate::runs::{RunFolder, RunsState};
use crate::runs_routes;

/// A dashboard that listens and does not answer yet.
pub struct DashboardServer {
    http: HttpServer,
    access: AccessControl,
    subject: ServedSubject,
}

/// What a dashboard is over.
enum ServedSubject {
    Run(Arc<DashboardState>),
    Folder(Arc<dyn RunFolder>),
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

/// Time for running answers after a stop.
const GRACE: Duration = Duration::from_secs(2);

impl DashboardServer {
    /// Listens on the configured address. `token`: required from callers; optional on loopback.
    pub async fn bind(
        address: SocketAddr,
        config: &DashboardConfig,
        token: Option<&str>,
        subject: DashboardSubject,
    ) -> Result<Self, DashboardError> {
        let subject = ServedSubject::Run(Arc::new(DashboardState::new(subject)));
        Self::listen(address, config, token, subject).await
    }

    /// The same over a folder of runs.
    pub async fn bind_folder(
        address: SocketAddr,
        config: &DashboardConfig,
        token: Option<&str>,
        folder: Arc<dyn RunFolder>,
    ) -> Result<Self, DashboardError> {
        Self::listen(address, config, token, ServedSubject::Folder(folder)).await
    }

    async fn listen(
        address: SocketAddr,
        config: &DashboardConfig,
        token: Option<&str>,
        subject: ServedSubject,
    ) -> Result<Self, DashboardError> {
        let access = access_control(address, token)?;
        let bound = HttpServer::bind(address, limits(config)).await;
        let http = bound.map_err(|source| DashboardError::Listen { address, source })?;
        Ok(Self { http, access, subject })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// Answers until `stop`; running answers then have two seconds.
    pub async fn serve(self, stop: CancellationToken) {
        let tasks = ServerTasks::new(stop.clone());
        let form_timeout = self.http.limits.body_timeout;
        let routes = match self.subject {
            ServedSubject::Run(state) => {
                tasks.tracker.spawn(follow(state.clone(), stop.clone()));
                tasks.tracker.spawn(poll(state.clone(), stop.clone()));
                router(DashboardRoutes::new(Arc::new(self.access), state, form_timeout, stop))
            }
            ServedSubject::Folder(folder) => {
                let access = Arc::new(self.access);
                let of_run = access.clone();
                let make_router = Box::new(move |state, stop| {
                    bare_router(DashboardRoutes::new(of_run.clone(), state, form_timeout, stop))
                });
                let state = RunsState::new(folder, tasks.tracker.clone(), stop, make_router);
                runs_routes::router(access, Arc::new(state), form_timeout)
            }
        };
        self.http.serve(routes, &tasks).await;
        tasks.drain(GRACE).await;
        tasks.cut().await;
    }
}

fn limits(config: &DashboardConfig) -> HttpLimits {
    HttpLimits {
        connections_max: config.connections_max,
        head_bytes_max: 64 << 10,
        head_timeout: Duration::from_secs(15),
        body_timeout: Duration::from_secs(15),
        write_timeout: Duration::from_secs(30),
        // A page connects again by itself.
        connection_timeout: Some(Duration::from_secs(15 * 60)),
    }
}

#[cfg(test)]
mod tests {
    use furrow_testkit::hostile_http::HttpTarget;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::answers::DeviceKind;
    use crate::config::DashboardFile;

    const TOKEN: &str = "a-token-of-twenty-six-letters";
    /// The smallest limit that the settings allow.
    const CONNECTIONS: usize = 4;
    const SHORT: Duration = Duration::from_millis(250);
    /// Longer than a test runs.
    const LONG: Duration = Duration::from_secs(600);

    struct TestServer {
        target: HttpTarget,
        stop: CancellationToken,
        serving: tokio::task::JoinHandle<()>,
    }

    impl TestServer {
        async fn start(token: Option<&'static str>, limit: impl FnOnce(&mut HttpLimits)) -> Self {
            let file = DashboardFile { connections_max: CONNECTIONS as u32, ..DashboardFile::default() };
            let subject = DashboardSubject {
                name: "quiet".into(),
                dir: None,
                coordinator: None,
                identity: None,
                job: None,
                device: DeviceKind::None,
                usd_per_device_hour: None,
                planned: None,
                floor: None,
            };
            let any = "127.0.0.1:0".parse().unwrap();
            let mut dashboard =
                DashboardServer::bind(any, &file.check().unwrap(), token, subject).await.unwrap();
            limit(&mut dashboard.http.limits);
            let target = HttpTarget {
                address: dashboard.address(),
                token,
                page: "/assets/app.js",
                form: "/token",
                form_bytes_max: 2048,
                form_needs_token: false,
                checks_origin: true,
            };
            let stop = CancellationToken::new();
            let serving = tokio::spawn(dashboard.serve(stop.clone()));
            Self { target, stop, serving }
        }

        /// Runs a blocking check of the target to its end.
        async fn check(self, check: impl FnOnce(&HttpTarget) + Send + 'static) {
            let target = self.target;
            tokio::task::spawn_blocking(move || check(&target)).await.unwrap();
            self.stop.cancel();
            self.serving.await.unwrap();
        }
    }

    #[tokio::test]
    async fn hostile_requests_are_refused() {
        for token in [None, Some(TOKEN)] {
            TestServer::start(token, |_| {}).await.check(HttpTarget::assert_requests).await;
        }
    }

    #[tokio::test]
    async fn a_slow_connection_is_closed_for_others() {
        let served = TestServer::start(None, |limits| {
            limits.head_timeout = SHORT;
            limits.body_timeout = SHORT;
            limits.write_timeout = SHORT;
        });
        served.await.check(|target| target.assert_slow_clients(CONNECTIONS)).await;
    }

    #[tokio::test]
    async fn no_more_connections_are_served_than_allowed() {
        let served = TestServer::start(None, |limits| limits.head_timeout = LONG).await;
        served.check(|target| target.assert_connections_max(CONNECTIONS)).await;
    }

    #[tokio::test]
    async fn no_connection_lasts_for_ever() {
        let served = TestServer::start(None, |limits| limits.connection_timeout = Some(SHORT)).await;
        let mut stream = TcpStream::connect(served.target.address).await.unwrap();
        stream.write_all(b"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
        let mut heard = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
        assert!(read.is_ok() && heard.starts_with(b"HTTP/1.1 200"), "the connection is closed");
        served.check(|_| {}).await;
    }
}
