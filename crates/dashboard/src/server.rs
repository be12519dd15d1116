//! Listens, and gives each connection its limits: how many, how long a head may take, how long one may last.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::access::{Access, AccessError};
use crate::config::DashboardConfig;
use crate::follow::{State, Subject, follow};
use crate::live::poll;
use crate::routes::{BUSY_MAX, Routes};

/// A dashboard that listens and does not answer yet.
pub struct Dashboard {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
    state: Arc<State>,
    connections_max: usize,
}

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// Nobody can be let in.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address cannot be listened on.
    #[error("dashboard.listen: {address} cannot be listened on; take another port, or 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// A head comes within this time, or the connection closes.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// No connection lasts longer: one whose other end does not read is gone then, and a page connects again by itself.
const CONNECTION_MAX: Duration = Duration::from_secs(15 * 60);
/// What a connection may hold of what comes in.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// After a stop, what is being answered may take so long.
const GRACE: Duration = Duration::from_secs(2);
/// After an error of the listener (no file descriptors), it rests.
const REST: Duration = Duration::from_millis(100);

impl Dashboard {
    /// Listens where the settings say. `token`: what callers must bring; none is needed on loopback.
    pub async fn bind(
        address: SocketAddr,
        config: &DashboardConfig,
        token: Option<&str>,
        subject: Subject,
    ) -> Result<Self, DashboardError> {
        let access = Access::new(address, token)?;
        let listening = TcpListener::bind(address).await;
        let listener = listening.map_err(|source| DashboardError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| DashboardError::Listen { address, source })?;
        let state = Arc::new(State::new(subject));
        Ok(Self { listener, address, access, state, connections_max: config.connections_max })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop`; what is being answered then has two seconds.
    pub async fn serve(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        tasks.spawn(follow(self.state.clone(), stop.clone()));
        tasks.spawn(poll(self.state.clone(), stop.clone()));
        let routes = Routes {
            access: Arc::new(self.access),
            state: self.state,
            busy: Arc::new(Semaphore::new(BUSY_MAX)),
            stop: stop.clone(),
        };
        let places = Arc::new(Semaphore::new(self.connections_max));
        loop {
            // A connection waits in the system's queue until there is a place for it.
            let next = async {
                let place = places.clone().acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let Some((place, accepted)) = stop.run_until_cancelled(next).await else { break };
            match accepted {
                Ok((stream, _)) => {
                    let (routes, stop) = (routes.clone(), stop.clone());
                    tasks.spawn(async move {
                        serve_connection(stream, routes, stop).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    debug!(%error, "no connection was taken");
                    tokio::time::sleep(REST).await;
                }
            }
        }
        tasks.close();
        // What is left after the grace ends with the runtime.
        drop(tokio::time::timeout(GRACE, tasks.wait()).await);
    }
}

async fn serve_connection(stream: TcpStream, routes: Routes, stop: CancellationToken) {
    let service = service_fn(move |request| {
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER_BYTES_MAX);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = tokio::time::timeout(CONNECTION_MAX, connection.as_mut()) => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        debug!(%error, "a connection of the dashboard broke");
    }
}
