//! Listens, and limits each connection: how many there are, and how long a request's head may take.
//! A stop drains them.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use furrow_http::{TokenError, WriteTimeout};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::access::AccessCheck;
use super::chats::ChatService;
use super::routes::ChatRoutes;
use crate::config::ServeConfig;
use crate::model::ChatEngine;

/// An endpoint that listens but does not answer yet.
#[derive(Debug)]
pub struct ChatEndpoint {
    listener: TcpListener,
    address: SocketAddr,
    access: AccessCheck,
    config: ServeConfig,
}

/// Why the endpoint could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The token file cannot be used.
    #[error("policy.serve.token_file: the file cannot be used")]
    Token(#[source] TokenError),
    /// The address cannot be bound.
    #[error("policy.serve.listen: cannot listen on {address}; use another port, or 0 for a free one")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Deadline of a request's head, also between two requests; the connection closes after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Deadline for progress of a write. After it the connection fails, because its client does not
/// read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of input that a connection buffers.
const BUFFER_BYTES_MAX: usize = 256 << 10;
/// Pause after an error of the listener, such as too many open files.
const REST: Duration = Duration::from_millis(100);
/// Interval at which idle sessions are dropped.
const SWEEP: Duration = Duration::from_millis(500);
/// Time for cut requests to end.
const CUT: Duration = Duration::from_secs(2);

impl ChatEndpoint {
    /// Reads the token and binds the configured address.
    pub async fn bind(config: &ServeConfig) -> Result<Self, ServeError> {
        let access = AccessCheck::new(config.token_file.as_deref())?;
        let address = config.listen;
        let refused = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address, access, config: config.clone() })
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is cancelled, then drains within `grace`. Returns how many answers were
    /// cut.
    pub(crate) async fn serve(
        self,
        chat_engine: ChatEngine,
        stop: CancellationToken,
        grace: Duration,
    ) -> usize {
        let Self { listener, access, config, .. } = self;
        let tasks = TaskTracker::new();
        let cut = CancellationToken::new();
        let connection_permits = Arc::new(Semaphore::new(config.connections_max));
        let chats = Arc::new(ChatService::new(chat_engine, config));
        let routes = ChatRoutes::new(access, chats.clone(), tasks.clone(), stop.clone(), cut.clone());
        tasks.spawn(sweep(chats.clone(), stop.clone()));
        loop {
            // A connection waits in the system's queue until a permit is free.
            let next = async {
                let permit = connection_permits.clone().acquire_owned().await;
                (permit, listener.accept().await)
            };
            let Some((permit, accepted)) = stop.run_until_cancelled(next).await else { break };
            match accepted {
                Ok((stream, _)) => {
                    let routes = routes.clone();
                    let stop = stop.clone();
                    let cut = cut.clone();
                    tasks.spawn(async move {
                        serve_connection(stream, routes, stop, cut).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    debug!(%error, "a connection could not be accepted");
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
        // Tasks that do not end in time end with the runtime.
        drop(tokio::time::timeout(CUT, tasks.wait()).await);
        chats.residents.clear();
        cut_off
    }
}

async fn sweep(chats: Arc<ChatService>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        chats.residents.sweep();
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: ChatRoutes,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    // Events of a stream are small and must not be delayed.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY could not be set");
    }
    let service = service_fn(move |request| {
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT));
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
        debug!(%error, "a connection of the endpoint failed");
    }
}
