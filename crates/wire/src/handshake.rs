//! Connections of a server after their handshake. A connection whose handshake fails or takes too
//! long is dropped; the others are not held up.

use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::current_identity::CurrentIdentity;
use crate::incoming::CONNECTIONS_MAX;

/// Time within which a connection's handshake must be over.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of a listener, each with TLS.
pub(crate) fn handshakes<I, IO, E>(
    listener: I,
    identity: CurrentIdentity,
) -> impl Stream<Item = Result<TlsStream<IO>, E>> + Send
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    E: Send + 'static,
{
    let begin = move |accepted: Result<IO, E>| {
        let identity = identity.clone();
        async move {
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => return Some(Err(error)),
            };
            // A task of its own, so that handshakes share the processor's cores.
            let handshake = AbortOnDropHandle::new(tokio::spawn(handshake(stream, identity)));
            match handshake.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
                Ok(stream) => Some(Ok(stream)),
                Err(error) => {
                    tracing::debug!(%error, "a connection was dropped before its handshake was over");
                    None
                }
            }
        }
    };
    listener.map(begin).buffer_unordered(CONNECTIONS_MAX as usize).filter_map(std::future::ready)
}

async fn handshake<IO>(stream: IO, identity: CurrentIdentity) -> io::Result<TlsStream<IO>>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let accepting = async { TlsAcceptor::from(identity.server().await?).accept(stream).await };
    timeout(HANDSHAKE_TIMEOUT, accepting).await.unwrap_or_else(|late| Err(late.into()))
}
