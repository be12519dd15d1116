//! The connections that a server accepts: as many as it has descriptors for, some of each address,
//! and none is a reason to stop.
//!
//! A peer that says nothing makes way for others: where all connections are taken, the oldest of
//! those is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Descriptors for everything but accepted connections: 256 files of the spool, ledger, data set,
/// logs, and connections to others.
const RESERVED_DESCRIPTORS: u64 = 512;
/// More connections than the largest farm has workers.
pub(crate) const CONNECTIONS_MAX: u64 = 4096;
const CONNECTIONS_MIN: u64 = 16;
/// Connections beyond the limit that may be ending: the tasks that own them close them.
const ENDING_MAX: usize = 32;
/// Pause while so many are ending. Callers wait in the listener's queue meanwhile, and are not
/// refused because a busy machine closes connections late.
const ENDING_PAUSE: Duration = Duration::from_millis(5);
/// Pause after the system refused a connection, which it does until a descriptor is free.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// Raises the soft limit of open files to the hard one, as servers do. Fails only where the system
/// forbids it, and then the soft limit stays.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).ok();
}

/// Bounds of a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of all addresses together.
    pub connections_max: usize,
    /// Of one address, so that one machine cannot take them all.
    pub address_max: usize,
}

impl ConnectionLimits {
    /// What this process has descriptors for; without a limit of its own, the usual number.
    pub fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let left = descriptors.saturating_sub(RESERVED_DESCRIPTORS).max(descriptors / 4);
        let connections_max = left.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX) as usize;
        Self { connections_max, address_max: connections_max / 2 }
    }
}

/// A listener's connections within limits, with TCP_NODELAY.
#[derive(Debug)]
pub struct BoundedIncoming {
    listener: TcpListener,
    limits: ConnectionLimits,
    open: Arc<OpenConnections>,
    /// Connections that said nothing when they were last looked at, oldest first.
    silent: VecDeque<SilentConnection>,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Open connections by address.
#[derive(Debug, Default)]
struct OpenConnections(Mutex<BTreeMap<IpAddr, usize>>);

/// Whether a connection has spoken before it had to make way. What comes first is final, so that
/// no more connections than the limit stay.
#[derive(Debug, Default)]
struct Silence(AtomicU8);

#[derive(Debug)]
struct SilentConnection {
    address: IpAddr,
    silence: Arc<Silence>,
    /// Ends it. Closed when it has ended.
    end: oneshot::Sender<()>,
}

/// An accepted connection, which counts until it is dropped.
#[derive(Debug)]
pub struct BoundedStream {
    stream: TcpStream,
    address: IpAddr,
    open: Arc<OpenConnections>,
    silence: Arc<Silence>,
    /// `None` once it has spoken.
    end: Option<oneshot::Receiver<()>>,
}

impl Silence {
    const SILENT: u8 = 0;
    const SPOKEN: u8 = 1;
    const ENDED: u8 = 2;

    fn is_silent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::SILENT
    }

    /// The peer has spoken; false if the connection had to make way before.
    fn speak(&self) -> bool {
        self.leave(Self::SPOKEN)
    }

    /// The connection makes way; false if the peer had spoken before.
    fn end(&self) -> bool {
        self.leave(Self::ENDED)
    }

    fn leave(&self, state: u8) -> bool {
        self.0.compare_exchange(Self::SILENT, state, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl BoundedIncoming {
    /// Accepts what the listener gets.
    pub fn new(listener: TcpListener, limits: ConnectionLimits) -> Self {
        Self { listener, limits, open: Arc::default(), silent: VecDeque::new(), pause: None }
    }

    /// The connection as one of the server's; `None`: it is refused.
    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) -> Option<BoundedStream> {
        let address = peer.ip();
        self.silent.retain(|silent| !silent.end.is_closed() && silent.silence.is_silent());
        let counts = self.open.counts(address);
        let is_full = counts.all >= self.limits.connections_max;
        let is_address_full = counts.of_address >= self.limits.address_max;
        if (is_full || is_address_full) && !self.end_oldest(is_address_full.then_some(address)) {
            return None;
        }
        // Without it messages only wait longer.
        stream.set_nodelay(true).ok();
        let silence = Arc::<Silence>::default();
        let (end, ended) = oneshot::channel();
        self.silent.push_back(SilentConnection { address, silence: silence.clone(), end });
        self.open.add(address);
        Some(BoundedStream { stream, address, open: self.open.clone(), silence, end: Some(ended) })
    }

    /// Ends the oldest connection that said nothing, of one address or of all; false if there is
    /// none.
    fn end_oldest(&mut self, address: Option<IpAddr>) -> bool {
        let is_of = |silent: &SilentConnection| address.is_none_or(|address| silent.address == address);
        while let Some(oldest) = self.silent.iter().position(is_of) {
            let Some(silent) = self.silent.remove(oldest) else { return false };
            if silent.silence.end() {
                // A connection that is gone already has made way, too.
                silent.end.send(()).ok();
                return true;
            }
        }
        false
    }
}

impl Stream for BoundedIncoming {
    type Item = io::Result<BoundedStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            // Each one beyond the limit is ending, so this comes to an end.
            if self.open.count() >= self.limits.connections_max + ENDING_MAX {
                self.pause = Some(Box::pin(tokio::time::sleep(ENDING_PAUSE)));
                continue;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, peer)) => {
                    if let Some(stream) = self.admit(stream, peer) {
                        return Poll::Ready(Some(Ok(stream)));
                    }
                }
                // No descriptor or no memory is left, or the peer has gone.
                Err(_) => {
                    self.end_oldest(None);
                    self.pause = Some(Box::pin(tokio::time::sleep(REFUSED_PAUSE)));
                }
            }
        }
    }
}

struct ConnectionCounts {
    all: usize,
    of_address: usize,
}

impl OpenConnections {
    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    fn counts(&self, address: IpAddr) -> ConnectionCounts {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ConnectionCounts { all: open.values().sum(), of_address: open.get(&address).copied().unwrap_or(0) }
    }

    fn add(&self, address: IpAddr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(address).or_default() += 1;
    }

    fn remove(&self, address: IpAddr) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

impl Drop for BoundedStream {
    fn drop(&mut self) {
        self.open.remove(self.address);
    }
}

impl Connected for BoundedStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            if self.end.is_some() && buffer.filled().len() > before {
                if !self.silence.speak() {
                    buffer.set_filled(before);
                    return Poll::Ready(Err(made_way()));
                }
                self.end = None;
            }
            return Poll::Ready(read);
        }
        let is_ended =
            self.end.as_mut().is_some_and(|end| Pin::new(end).poll(context) == Poll::Ready(Ok(())));
        if is_ended { Poll::Ready(Err(made_way())) } else { Poll::Pending }
    }
}

fn made_way() -> io::Error {
    let why = "the connection said nothing and made way for another";
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
