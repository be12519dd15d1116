//! Connections between services: one set of sizes, deadlines and keepalives for every client and
//! server.
//!
//! Callers supply the listener and the connector, so that a simulator can use its own transport.
//! Programs connect with a [`TlsConnector`] and serve with an identity; tests may do without.

use std::future::Future;
use std::io;
use std::time::Duration;

use furrow_identity::{Identity, PeerRole};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::{Connected, Router};
use tonic::transport::{Channel, Endpoint, Server};
use tower::layer::util::Stack;

use crate::authorize::AuthorizeLayer;
use crate::budget::PeerBudgets;
use crate::current_identity::CurrentIdentity;
use crate::handshake::handshakes;
use crate::incoming::{BoundedIncoming, ConnectionLimits};
use crate::revocations::Revocations;

/// Keepalive and connect times. A dead peer is noticed within 10 s + 5 s; without keepalive a
/// half-open connection would hold a session for ever.
#[derive(Debug, Clone, Copy)]
pub struct LinkTimeouts {
    /// Time without traffic after which a ping is sent.
    pub keepalive: Duration,
    /// Time within which a ping must be answered; the connection is dead otherwise.
    pub keepalive_answer: Duration,
    /// Time within which a connection must be established.
    pub connect: Duration,
}

impl Default for LinkTimeouts {
    fn default() -> Self {
        Self {
            keepalive: Duration::from_secs(10),
            keepalive_answer: Duration::from_secs(5),
            connect: Duration::from_secs(5),
        }
    }
}

/// Opens channels to services by address.
pub trait Connector: Send + Sync + 'static {
    /// Returns a channel to a service of this role, which connects on first use and reconnects
    /// after a loss.
    fn channel(&self, to: PeerRole, address: &str) -> Result<Channel, tonic::transport::Error>;
}

/// Opens channels over TCP with TLS. Both ends show a certificate of the run, and the server's must
/// be of the role that is called.
#[derive(Debug, Clone)]
pub struct TlsConnector {
    identity: CurrentIdentity,
    timeouts: LinkTimeouts,
}

impl TlsConnector {
    /// Connects as this process.
    pub fn new(identity: Identity) -> Self {
        Self { identity: CurrentIdentity::new(identity), timeouts: LinkTimeouts::default() }
    }
}

impl Connector for TlsConnector {
    fn channel(&self, to: PeerRole, address: &str) -> Result<Channel, tonic::transport::Error> {
        // The endpoint's deadline holds for connection and handshake together.
        let endpoint = endpoint(&format!("http://{address}"), self.timeouts)?;
        let identity = self.identity.clone();
        let connect = move |uri: http::Uri| connect(uri, identity.clone(), to);
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(connect)))
    }
}

async fn connect(
    uri: http::Uri,
    identity: CurrentIdentity,
    to: PeerRole,
) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let address = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(to.server_name()).map_err(io::Error::other)?;
    let config = identity.client(to).await?;
    Ok(TokioIo::new(tokio_rustls::TlsConnector::from(config).connect(name, stream).await?))
}

/// Opens channels over TCP without TLS, for tests and measurements of a service alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpConnector {
    /// Keepalive and connect times of each channel.
    pub timeouts: LinkTimeouts,
}

impl Connector for TcpConnector {
    fn channel(&self, _to: PeerRole, address: &str) -> Result<Channel, tonic::transport::Error> {
        Ok(endpoint(&format!("http://{address}"), self.timeouts)?.connect_lazy())
    }
}

/// Builds an endpoint with the farm's settings, to which a simulator adds its own transport.
pub fn endpoint(url: &str, timeouts: LinkTimeouts) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(url.to_owned())?
        .connect_timeout(timeouts.connect)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .http2_keep_alive_interval(timeouts.keepalive)
        .keep_alive_timeout(timeouts.keepalive_answer)
        .keep_alive_while_idle(true))
}

/// Builds a server with the farm's settings. The caller adds services and serves on its own
/// listener.
pub fn server(timeouts: LinkTimeouts) -> Server {
    Server::builder()
        .tcp_nodelay(true)
        // Frames of 1 MiB halve the CPU of 200 KB screenshots: 9,650 against 4,800 messages/s on
        // loopback.
        .max_frame_size(1 << 20)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(1024)
        .http2_keepalive_interval(Some(timeouts.keepalive))
        .http2_keepalive_timeout(Some(timeouts.keepalive_answer))
}

/// A server whose callers are identified, or of a test that does without.
pub type AuthorizedServer = Server<Authorized>;

/// The layers of an [`AuthorizedServer`].
pub type Authorized = Stack<AuthorizeLayer, tower::layer::util::Identity>;

/// Builds the server of a service, to be served by [`serve`] with the same identity. With one it
/// passes on the calls of peers of the same run that their roles allow, except of those that were
/// revoked; without one, every call.
pub fn authorized_server(
    timeouts: LinkTimeouts,
    identity: Option<&Identity>,
    revocations: &Revocations,
) -> AuthorizedServer {
    let layer = AuthorizeLayer {
        own: identity.map(|identity| identity.peer().clone()),
        revocations: revocations.clone(),
        budgets: PeerBudgets::default(),
    };
    server(timeouts).layer(layer)
}

/// Serves the connections of a listener until `stop` resolves: with an identity over TLS alone, for
/// callers whose certificates its authorities issued.
pub async fn serve<I, IO, E>(
    router: Router<Authorized>,
    listener: I,
    identity: Option<Identity>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    match identity {
        Some(identity) => {
            let connections = handshakes(listener, CurrentIdentity::new(identity));
            router.serve_with_incoming_shutdown(connections, stop).await
        }
        None => router.serve_with_incoming_shutdown(listener, stop).await,
    }
}

/// Accepts as many of a listener's connections as this process has descriptors for.
pub fn accept(listener: TcpListener) -> BoundedIncoming {
    BoundedIncoming::new(listener, ConnectionLimits::of_process())
}

/// Adds the health service (serving, for `S`) and the reflection service to a server.
pub async fn with_health_and_reflection<S>(
    mut server: AuthorizedServer,
) -> Result<Router<Authorized>, tonic_reflection::server::Error>
where
    S: NamedService + Service<http::Request<Body>>,
{
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<S>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(crate::v1::DESCRIPTORS)
        .build_v1()?;
    Ok(server.add_service(health).add_service(reflection))
}

/// One connection carries 100 sessions; the window fits 64 screenshots of 0.5 MB in flight.
const CONNECTION_WINDOW: u32 = 32 << 20;

/// One stream carries one screenshot at a time.
const STREAM_WINDOW: u32 = 4 << 20;

/// Runs a call under its own deadline, independent of the transport.
pub async fn with_deadline<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, tonic::Status> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => answer,
        Err(_) => {
            Err(tonic::Status::deadline_exceeded(format!("no answer within {} ms", deadline.as_millis())))
        }
    }
}
