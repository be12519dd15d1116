//! Listens, and gives each connection its limits: how many, how long a head may take. Stopping is draining.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use furrow_wire::{Patient, TokenError};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::access::Access;
use super::chats::Chats;
use super::routes::Routes;
use crate::config::ServeConfig;
use crate::model::Talks;

/// An endpoint that listens and does not answer yet.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
    config: ServeConfig,
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The token's file cannot be used.
    #[error("policy.serve.token_file")]
    Token(#[source] TokenError),
    /// The address cannot be listened on.
    #[error("policy.serve.listen: {address} cannot be listened on; take another port, or 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// A head comes within this time, or the connection closes; between two requests as well.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A write of which nothing goes out for so long fails, and with it the connection: nobody reads there.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// What a connection may hold of what comes in.
const BUFFER_BYTES_MAX: usize = 256 << 10;
/// After an error of the listener (no file descriptors), it rests.
const REST: Duration = Duration::from_millis(100);
/// How often sessions are looked at that nobody goes on with.
const SWEEP: Duration = Duration::from_millis(500);
/// What was cut gets so long to notice.
const CUT: Duration = Duration::from_secs(2);

impl Endpoint {
    /// Reads the token and listens where the settings say.
    pub async fn bind(config: &ServeConfig) -> Result<Self, ServeError> {
        let access = Access::new(config.token_file.as_deref())?;
        let address = config.listen;
        let refused = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address, access, config: config.clone() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop`, then lets what is being answered end within `grace`. Returns how many answers were cut.
    pub(crate) async fn serve(self, talks: Talks, stop: CancellationToken, grace: Duration) -> usize {
        let Self { listener, access, config, .. } = self;
        let (tasks, cut) = (TaskTracker::new(), CancellationToken::new());
        let places = Arc::new(Semaphore::new(config.connections_max));
        let chats = Arc::new(Chats::new(talks, config));
        let routes = Routes::new(access, chats.clone(), tasks.clone(), stop.clone(), cut.clone());
        tasks.spawn(sweep(chats.clone(), stop.clone()));
        loop {
            // A connection waits in the system's queue until there is a place for it.
            let next = async {
                let place = places.clone().acquire_owned().await;
                (place, listener.accept().await)
            };
            let Some((place, accepted)) = stop.run_until_cancelled(next).await else { break };
            match accepted {
                Ok((stream, _)) => {
                    let (routes, stop, cut) = (routes.clone(), stop.clone(), cut.clone());
                    tasks.spawn(async move {
                        serve_connection(stream, routes, stop, cut).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    debug!(%error, "no connection was taken");
                    tokio::time::sleep(REST).await;
                }
            }
        }
        drop(listener);
        tasks.close();
        let cut_off = match tokio::time::timeout(grace, tasks.wait()).await {
            Ok(()) => 0,
            Err(_) => routes.at_work(),
        };
        cut.cancel();
        // What does not notice in time ends with the runtime.
        drop(tokio::time::timeout(CUT, tasks.wait()).await);
        chats.residents.clear();
        cut_off
    }
}

async fn sweep(chats: Arc<Chats>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        chats.residents.sweep();
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: Routes,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    // Parts of a stream are small and each is waited for.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "a connection sends late");
    }
    let service = service_fn(move |request| {
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(Patient::new(stream, WRITE_TIMEOUT));
    let mut connection = std::pin::pin!(http.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = cut.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection of the endpoint broke");
    }
}
