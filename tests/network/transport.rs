//! The simulated network's connections under tonic.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use furrow_wire::{Channel, Connector, LinkTimeouts, PeerRole, endpoint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::Stream;
use tonic::codegen::http::Uri;
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};

/// Opens channels over the simulated network.
pub(crate) struct SimulatedConnector;

impl Connector for SimulatedConnector {
    fn channel(&self, _to: PeerRole, address: &str) -> Result<Channel, tonic::transport::Error> {
        let endpoint = endpoint(&format!("http://{address}"), LinkTimeouts::default())?;
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(connect)))
    }
}

async fn connect(uri: Uri) -> io::Result<TokioIo<TcpStream>> {
    let host = uri.host().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let port = uri.port_u16().ok_or(io::ErrorKind::AddrNotAvailable)?;
    TcpStream::connect((host.to_owned(), port)).await.map(TokioIo::new)
}

/// The connections of a host's port.
pub(crate) async fn incoming(port: u16) -> io::Result<impl Stream<Item = io::Result<ServedStream>> + Send> {
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    Ok(futures::stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.map(|(stream, _)| ServedStream(stream));
        Some((accepted, listener))
    }))
}

pub(crate) struct ServedStream(TcpStream);

impl Connected for ServedStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for ServedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for ServedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
