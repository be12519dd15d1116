//! The egress filter of a browser context: a filtering HTTP proxy on its own loopback port, one per
//! trajectory, which all traffic must pass.
//!
//! A listed host that is an offline site of this worker is answered here; any other listed host is
//! fetched or tunnelled to (`live.rs`); everything else is refused and counted. Chromium is
//! configured to send even loopback traffic this way (`<-loopback>`), so that no page can reach the
//! machine it runs on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::TrajectoryAncestry;
use furrow_telemetry::{BlockReason, RequestBlocked};
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hosts::{AllowList, BlockedHost, HostName, HostPort};
use crate::live::{self, ConnectFailure, HostPins, LiveHosts, SystemResolver};
use crate::namespace::LoopbackNetwork;
use crate::secrets::WorkerSecrets;
use crate::sites::{SiteServer, text_response};

/// The filter of one browser context. It ends with its owner.
#[derive(Debug)]
pub struct EgressFilter {
    address: SocketAddr,
    network: LoopbackNetwork,
    filter: Arc<FilterState>,
    stop: CancellationToken,
    work: TaskTracker,
}

/// Limits on the requests of one context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressLimits {
    /// Most connections at once; further ones are closed on arrival. Chromium opens at most 32 to
    /// one proxy.
    pub connections_max: usize,
    /// Most bytes of a request's line and headers.
    pub header_bytes_max: usize,
    /// Time within which a request must be read, and time within which its answer must be found.
    pub deadline: Duration,
    /// Limits on live hosts; `None` allows only the farm's own sites.
    pub live: Option<LiveLimits>,
}

/// Limits on responses of live hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLimits {
    /// Most bytes that one trajectory may receive, headers of tunnelled messages included.
    pub bytes_max: u64,
    /// Hosts whose address the job sets; a private host is only reachable this way.
    pub pins: Arc<HostPins>,
}

/// Refused requests, for finding the reason why a page does not work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockedRequests {
    /// Number of all refused requests.
    pub total: u64,
    /// Reason and number of refusals by host, for the first [`BLOCKED_HOSTS_MAX`] hosts.
    pub hosts: BTreeMap<String, (BlockReason, u64)>,
}

/// Most hosts recorded: a page can invent hosts without end.
pub(crate) const BLOCKED_HOSTS_MAX: usize = 32;

impl EgressFilter {
    /// Binds a port chosen by the system and starts to answer. `of` is the trajectory named in
    /// events about refusals.
    pub async fn open(
        sites: Arc<SiteServer>,
        allow: AllowList,
        of: Option<TrajectoryAncestry>,
        limits: EgressLimits,
    ) -> io::Result<Self> {
        let egress = Self::open_blocked(sites, limits, LoopbackNetwork::Machine).await?;
        egress.allow_task(allow, of, Arc::default());
        Ok(egress)
    }

    /// The same for a context without a task: it blocks everything.
    pub(crate) async fn open_blocked(
        sites: Arc<SiteServer>,
        limits: EgressLimits,
        network: LoopbackNetwork,
    ) -> io::Result<Self> {
        Self::open_with_resolver(sites, limits, network, Arc::new(SystemResolver)).await
    }

    /// The same with another resolver.
    async fn open_with_resolver(
        sites: Arc<SiteServer>,
        limits: EgressLimits,
        network: LoopbackNetwork,
        resolver: Arc<dyn live::HostResolver>,
    ) -> io::Result<Self> {
        let listener = network.listen().await?;
        let in_flight = watch::channel(FlightCount::default()).0;
        let scope = OnceLock::new();
        let blocked = Mutex::default();
        let outside = limits.live.as_ref().map(|live| LiveHosts {
            resolver,
            pins: live.pins.clone(),
            deadline: limits.deadline,
        });
        let sent = AtomicU64::new(0);
        let silent = Mutex::default();
        let filter =
            Arc::new(FilterState { sites, scope, limits, blocked, silent, in_flight, outside, sent });
        let egress = Self {
            address: listener.local_addr()?,
            network,
            filter,
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
        };
        let filter = egress.filter.clone();
        let stop = egress.stop.clone();
        let work = egress.work.clone();
        egress.work.spawn(async move {
            stop.run_until_cancelled(accept(&listener, &filter, &stop, &work)).await;
        });
        Ok(egress)
    }

    /// Allows the hosts of this task. A filter serves one task in its lifetime: a second call
    /// changes nothing.
    /// A host that contains a value of `secrets` is reported without it.
    pub(crate) fn allow_task(
        &self,
        allow: AllowList,
        of: Option<TrajectoryAncestry>,
        secrets: Arc<WorkerSecrets>,
    ) {
        // A second call fails here, as documented above.
        self.filter.scope.set(TaskScope { allow, of, secrets }).ok();
    }

    /// The address of the context's proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests in flight.
    pub(crate) fn in_flight(&self) -> InFlight {
        InFlight(self.filter.in_flight.subscribe())
    }

    /// Counts requests in flight that are answered elsewhere: from an archive, or by a recorder.
    pub(crate) fn counter(&self) -> FlightCounter {
        FlightCounter(self.filter.clone())
    }

    /// Whether this filter currently answers where it must. It is queried as the browser would; if
    /// a site of the farm sends no answer or refuses the connection, the farm has failed. For a
    /// live host only the filter is queried: whether that host answers is not the farm's
    /// responsibility.
    pub(crate) async fn is_answering(&self, url: &str) -> bool {
        let ours = self.site_uri(url);
        let request = async {
            let mut stream = self.network.connect(self.address).await?;
            let Some(uri) = ours else { return Ok(true) };
            let head = format!("HEAD {uri} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
            stream.write_all(head.as_bytes()).await?;
            stream.read(&mut [0; 16]).await.map(|read| read > 0)
        };
        let answered: Result<io::Result<bool>, _> =
            tokio::time::timeout(self.filter.limits.deadline, request).await;
        matches!(answered, Ok(Ok(true)))
    }

    /// Whether an address is of a site that the farm itself serves.
    pub(crate) fn serves(&self, url: &str) -> bool {
        self.site_uri(url).is_some()
    }

    fn site_uri(&self, url: &str) -> Option<Uri> {
        let is_site =
            |uri: &Uri| matches!(self.filter.route_request(&Method::HEAD, uri), Ok(RequestRoute::Site(_)));
        url.parse().ok().filter(is_site)
    }

    /// Requests refused so far.
    pub fn blocked(&self) -> BlockedRequests {
        self.filter.blocked().clone()
    }

    /// Why the host of this address did not take the last connection that failed; `None` if none
    /// did.
    pub(crate) fn connect_failure(&self, url: &str) -> Option<String> {
        let host = HostPort::parse_url(url).ok()?.host;
        let silent = self.filter.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.get(host.as_str()).cloned()
    }

    /// Closes the port and every connection, and waits until they are closed.
    pub async fn close(self) {
        self.stop.cancel();
        self.work.close();
        self.work.wait().await;
    }
}

impl Drop for EgressFilter {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Accepts connections while its owner lives. Each is a task of the tracker and ends with the
/// token.
async fn accept(
    listener: &TcpListener,
    filter: &Arc<FilterState>,
    stop: &CancellationToken,
    work: &TaskTracker,
) {
    let permits = Arc::new(Semaphore::new(filter.limits.connections_max));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // File descriptors are probably exhausted: accepting again at once would spin.
                tracing::warn!(%error, "an egress filter cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
        let filter = filter.clone();
        let stop = stop.clone();
        let connection = ProxyConnection { filter, permit: Arc::new(permit), stop, work: work.clone() };
        work.spawn(async move {
            connection.stop.run_until_cancelled(serve(stream, &connection)).await;
        });
    }
}

/// A connection of the browser, with what is needed to run work that outlives a request on it.
#[derive(Debug, Clone)]
struct ProxyConnection {
    filter: Arc<FilterState>,
    /// Held while any part of the connection is open.
    permit: Arc<OwnedSemaphorePermit>,
    stop: CancellationToken,
    work: TaskTracker,
}

async fn serve(stream: TcpStream, connection: &ProxyConnection) {
    let limits = &connection.filter.limits;
    let answer = service_fn(|request: Request<Incoming>| {
        let connection = connection.clone();
        async move {
            // A page may receive an event stream or music for ever, which is no reason to wait for
            // it.
            let waits = request.method() != Method::CONNECT && blocks_loading(&request);
            let flight = waits.then(|| FlightGuard::new(&connection.filter));
            let answer = connection.answer(request).await;
            Ok::<_, Infallible>(answer.map(|part| TrackedBody {
                source: part,
                filter: connection.filter,
                _flight: flight,
            }))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.deadline)
        .max_headers(HEADERS_MAX)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        // A page that closes during an answer is normal and needs no reaction.
        tracing::debug!(%error, "a connection to an egress filter broke");
    }
}

/// Most headers of a request; Chromium sends about 15.
const HEADERS_MAX: usize = 100;

/// Decides on requests, and answers for the farm's sites. The body of a request to one of those is
/// never read: hyper closes a connection whose request had a body.
#[derive(Debug)]
struct FilterState {
    sites: Arc<SiteServer>,
    scope: OnceLock<TaskScope>,
    limits: EgressLimits,
    blocked: Mutex<BlockedRequests>,
    /// Live hosts that did not take a connection, and why, for the first [`BLOCKED_HOSTS_MAX`].
    silent: Mutex<BTreeMap<String, String>>,
    in_flight: watch::Sender<FlightCount>,
    outside: Option<LiveHosts>,
    /// Bytes received from live hosts.
    sent: AtomicU64,
}

/// The task that a filter serves.
#[derive(Debug)]
struct TaskScope {
    allow: AllowList,
    of: Option<TrajectoryAncestry>,
    secrets: Arc<WorkerSecrets>,
}

/// Requests of a context between their arrival and the last byte of their answer.
#[derive(Debug, Clone, Copy, Default)]
struct FlightCount {
    count: usize,
    /// Time at which the last one ended.
    ended: Option<Instant>,
}

/// A read-only view of the requests in flight.
#[derive(Debug)]
pub(crate) struct InFlight(watch::Receiver<FlightCount>);

/// Time between sending an answer and its delivery to the page; on a busy machine it was 8 ms.
const DELIVERY: Duration = Duration::from_millis(15);

impl InFlight {
    /// Whether no request is in flight, and the last one was delivered and ended at least `pause`
    /// ago. If not, waits for that or the cap: the caller then checks the document again.
    pub(crate) async fn is_quiet(&mut self, pause: Duration, cap: Instant) -> bool {
        let FlightCount { count, ended } = *self.0.borrow();
        let delivered =
            ended.map(|ended| ended + DELIVERY.max(pause)).filter(|delivered| *delivered > Instant::now());
        match (count, delivered) {
            (0, None) => return true,
            (0, Some(delivered)) => sleep_until(delivered.min(cap)).await,
            // The result does not matter: the caller checks again.
            _ => drop(timeout_at(cap, self.0.wait_for(|flight| flight.count == 0)).await),
        }
        false
    }
}

/// Counts requests that the filter does not see.
#[derive(Debug, Clone)]
pub(crate) struct FlightCounter(Arc<FilterState>);

impl FlightCounter {
    /// Begins a request that is in flight until the guard is dropped.
    pub(crate) fn begin(&self) -> FlightGuard {
        FlightGuard::new(&self.0)
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct FlightGuard(Arc<FilterState>);

impl FlightGuard {
    fn new(filter: &Arc<FilterState>) -> Self {
        filter.in_flight.send_modify(|flight| flight.count += 1);
        Self(filter.clone())
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        let ended = Some(Instant::now());
        self.0.in_flight.send_modify(|flight| *flight = FlightCount { count: flight.count - 1, ended });
    }
}

/// The body of an answer; its request is in flight until the last byte is taken.
struct TrackedBody {
    source: BodySource,
    filter: Arc<FilterState>,
    _flight: Option<FlightGuard>,
}

/// The source of an answer's body.
enum BodySource {
    Ours(Full<Bytes>),
    Theirs(Incoming),
}

type BodyError = Box<dyn Error + Send + Sync>;

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.source {
            BodySource::Ours(bytes) => Pin::new(bytes).poll_frame(cx).map_err(|never| match never {}),
            BodySource::Theirs(body) => {
                let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| {
                    let frame = frame?;
                    self.filter.count_bytes(frame.data_ref().map_or(0, Bytes::len))?;
                    Ok(frame)
                }))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Ours(bytes) => bytes.is_end_stream(),
            BodySource::Theirs(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Ours(bytes) => bytes.size_hint(),
            BodySource::Theirs(body) => body.size_hint(),
        }
    }
}

/// The route of a request.
enum RequestRoute {
    Site(HostName),
    Live(HostPort),
}

impl ProxyConnection {
    async fn answer(&self, request: Request<Incoming>) -> Response<BodySource> {
        let filter = &self.filter;
        let target = match filter.route_request(request.method(), request.uri()) {
            Ok(RequestRoute::Site(host)) => return filter.serve(&host, &request).await.map(BodySource::Ours),
            Ok(RequestRoute::Live(target)) => target,
            Err(off) => return filter.refuse(off).map(BodySource::Ours),
        };
        let reached = match &filter.outside {
            Some(outside) => outside.connect(&target).await,
            None => {
                Err(ConnectFailure::Refused(BlockedHost::new(BlockReason::Unresolved, target.host.as_str())))
            }
        };
        let host = match reached {
            Ok(host) => host,
            Err(ConnectFailure::Refused(off)) => return filter.refuse(off).map(BodySource::Ours),
            Err(ConnectFailure::Failed(why)) => {
                return filter.answer_for_silent(&target.host, why).map(BodySource::Ours);
            }
        };
        match *request.method() == Method::CONNECT {
            true => self.tunnel(request, host),
            false => self.forward(request, host).await,
        }
    }

    /// Carries the bytes between page and host unread.
    fn tunnel(&self, request: Request<Incoming>, host: TcpStream) -> Response<BodySource> {
        let connection = self.clone();
        let stop = self.stop.clone();
        self.work.spawn(async move {
            stop.run_until_cancelled(connection.carry(request, host)).await;
        });
        Response::new(BodySource::Ours(Full::default()))
    }

    async fn carry(&self, request: Request<Incoming>, host: TcpStream) {
        let Ok(page) = hyper::upgrade::on(request).await else { return };
        let (busy, busy_until) = watch::channel(Instant::now());
        let take = |bytes| self.filter.count_bytes(bytes);
        let carried = async { live::tunnel(TokioIo::new(page), host, take, &busy).await.err() };
        let error = tokio::select! {
            error = carried => error,
            () = live::hold_while_busy(busy_until, || FlightGuard::new(&self.filter)) => None,
        };
        if let Some(error) = error {
            tracing::debug!(%error, "a tunnel broke");
        }
    }

    /// Forwards a request to its host and returns the answer.
    async fn forward(&self, request: Request<Incoming>, host: TcpStream) -> Response<BodySource> {
        let failed = |why: &dyn fmt::Display| {
            text_response(StatusCode::BAD_GATEWAY, &why.to_string()).map(BodySource::Ours)
        };
        let (mut sender, carrying) = match live::handshake(host).await {
            Ok(both) => both,
            Err(error) => return failed(&error),
        };
        let stop = self.stop.clone();
        let permit = self.permit.clone();
        self.work.spawn(async move {
            stop.run_until_cancelled(carrying).await;
            drop(permit);
        });
        let answer = sender.send_request(live::proxy_request(request));
        match tokio::time::timeout(self.filter.limits.deadline, answer).await {
            Err(_) => text_response(StatusCode::GATEWAY_TIMEOUT, "the host did not answer in time")
                .map(BodySource::Ours),
            Ok(Err(error)) => failed(&error),
            Ok(Ok(mut answer)) => {
                live::remove_hop_headers(answer.headers_mut());
                answer.map(BodySource::Theirs)
            }
        }
    }
}

impl FilterState {
    async fn serve(&self, host: &HostName, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let answer = self.sites.answer(host, request.method(), request.uri());
        let Ok(answer) = tokio::time::timeout(self.limits.deadline, answer).await else {
            return text_response(StatusCode::GATEWAY_TIMEOUT, "the file was not read in time");
        };
        answer
    }

    /// Counts bytes from live hosts; an error if they exceed the trajectory's limit.
    fn count_bytes(&self, bytes: usize) -> io::Result<()> {
        let most = self.limits.live.as_ref().map_or(0, |live| live.bytes_max);
        let before = self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        if before + bytes as u64 <= most {
            return Ok(());
        }
        if before <= most {
            let of = self.scope.get().and_then(|scope| scope.of.as_ref());
            let host = "";
            let reason = BlockReason::TooMuch;
            RequestBlocked { of, host, reason }.emit();
            self.blocked().count(BlockedHost::new(reason, host));
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, reason_text(BlockReason::TooMuch)))
    }

    /// Decides the route of a request, or why it is refused.
    fn route_request(&self, method: &Method, uri: &Uri) -> Result<RequestRoute, BlockedHost> {
        let target = match uri.authority() {
            // A tunnel: https, WebSocket.
            Some(authority) if method == Method::CONNECT => {
                HostPort::parse_authority(authority.as_str(), 443)
                    .and_then(|target| self.check_listed(target))?
            }
            Some(_) => self.check_url(&uri.to_string())?,
            None => return Err(BlockedHost::new(BlockReason::Malformed, "")),
        };
        let is_plain = method != Method::CONNECT && uri.scheme() == Some(&http::uri::Scheme::HTTP);
        let is_site = self.sites.has(&target.host);
        if is_plain && target.port == 80 && is_site {
            return Ok(RequestRoute::Site(target.host));
        }
        match &self.outside {
            // No live host has this name, and over https only tunnels are requested from a proxy.
            Some(outside) if !is_site && (is_plain || method == Method::CONNECT) => {
                outside.check_target(&target).map(|()| RequestRoute::Live(target))
            }
            _ => Err(BlockedHost::new(BlockReason::Unresolved, target.host.as_str())),
        }
    }

    fn check_url(&self, url: &str) -> Result<HostPort, BlockedHost> {
        HostPort::parse_url(url).and_then(|target| self.check_listed(target))
    }

    /// A filter without a task refuses everything.
    fn check_listed(&self, target: HostPort) -> Result<HostPort, BlockedHost> {
        match self.scope.get().is_some_and(|scope| scope.allow.allows(&target.host)) {
            true => Ok(target),
            false => Err(BlockedHost::new(BlockReason::OffList, target.host.as_str())),
        }
    }

    fn refuse(&self, off: BlockedHost) -> Response<Full<Bytes>> {
        let off = BlockedHost { host: self.scrubbed(off.host), ..off };
        let sentence = format!("This task does not reach {:?}: {}.", off.host, reason_text(off.reason));
        let of = self.scope.get().and_then(|scope| scope.of.as_ref());
        RequestBlocked { of, host: &off.host, reason: off.reason }.emit();
        self.blocked().count(off);
        let mut response = text_response(StatusCode::FORBIDDEN, &sentence);
        response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
        response
    }

    /// A text for the log or a report, without values of secrets.
    fn scrubbed(&self, text: String) -> String {
        match self.scope.get() {
            Some(scope) => scope.secrets.scrubber().owned(text),
            None => text,
        }
    }

    /// The answer for a host that did not take the connection; keeps the reason for the report.
    fn answer_for_silent(&self, host: &HostName, why: String) -> Response<Full<Bytes>> {
        let response = text_response(StatusCode::BAD_GATEWAY, &why);
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.len() < BLOCKED_HOSTS_MAX || silent.contains_key(host.as_str()) {
            silent.insert(host.as_str().to_owned(), why);
        }
        response
    }

    fn blocked(&self) -> std::sync::MutexGuard<'_, BlockedRequests> {
        // A panic cannot leave the counters inconsistent.
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockedRequests {
    /// Each refused host, and why.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.hosts.iter().map(|(host, (reason, _))| (host.as_str(), reason_text(*reason)))
    }

    fn count(&mut self, off: BlockedHost) {
        self.total += 1;
        if self.hosts.len() < BLOCKED_HOSTS_MAX || self.hosts.contains_key(&off.host) {
            self.hosts.entry(off.host).or_insert((off.reason, 0)).1 += 1;
        }
    }
}

impl fmt::Display for BlockedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requests refused: {}", self.total)?;
        for (index, (host, (reason, count))) in self.hosts.iter().enumerate() {
            let before = if index == 0 { " (" } else { ", " };
            write!(f, "{before}{count} to {host:?} because {}", reason_text(*reason))?;
        }
        if self.hosts.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// Whether loading the page waits for this request, according to its headers.
fn blocks_loading(request: &Request<Incoming>) -> bool {
    let header_value = |name: &str| request.headers().get(name).map_or(&b""[..], http::HeaderValue::as_bytes);
    !matches!(header_value("sec-fetch-dest"), b"audio" | b"video" | b"track")
        && header_value("accept") != b"text/event-stream"
}

fn reason_text(reason: BlockReason) -> &'static str {
    match reason {
        BlockReason::OffList => "it is not on the task's list",
        BlockReason::PrivateAddress => "private addresses are never reached",
        BlockReason::Scheme => "only http and https are supported",
        BlockReason::Unresolved => "no site answers at this address",
        BlockReason::Malformed => "this is not an address",
        BlockReason::Port => "only the ports of http and https are reached",
        BlockReason::TooMuch => "the trajectory received as many bytes as it may",
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::hosts::tests::SPELLINGS;
    use crate::sites::{FileRoot, SiteLimits, StaticSite};

    const LIMITS: EgressLimits = EgressLimits {
        connections_max: 4,
        header_bytes_max: 8192,
        deadline: Duration::from_secs(5),
        live: None,
    };

    async fn opened(limits: EgressLimits) -> (EgressFilter, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("index.html"), "home").unwrap();
        let site =
            |host: &str| StaticSite { host: host.into(), root: FileRoot::Folder(home.path().to_owned()) };
        let bounds = SiteLimits { file_bytes_max: 1000, cache_bytes_max: 1000 };
        let sites = SiteServer::open(&[site("site.test"), site("other.test")], bounds).unwrap();
        let allow = AllowList::new("http://site.test/", &["live.test".into(), "*.site.test".into()]).unwrap();
        (EgressFilter::open(Arc::new(sites), allow, None, limits).await.unwrap(), home)
    }

    /// Sends bytes unchanged and reads the answer to its end.
    async fn raw(egress: &EgressFilter, request: &str) -> String {
        let mut stream = TcpStream::connect(egress.address()).await.unwrap();
        // A refusal may close the connection before the whole request is sent.
        drop(stream.write_all(request.as_bytes()).await);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        match tokio::time::timeout(Duration::from_secs(20), read).await.expect("an answer") {
            Ok(_) => String::from_utf8_lossy(&answer).into_owned(),
            Err(error) => format!("{}\n{error}", String::from_utf8_lossy(&answer)),
        }
    }

    async fn get(egress: &EgressFilter, url: &str) -> String {
        raw(egress, &format!("GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    /// A server on loopback that counts connections.
    struct CanaryServer {
        port: u16,
        hits: Arc<AtomicU64>,
        task: tokio::task::JoinHandle<()>,
    }

    impl CanaryServer {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let hits = Arc::new(AtomicU64::new(0));
            let counter = hits.clone();
            let task = tokio::spawn(async move {
                while listener.accept().await.is_ok() {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            });
            Self { port, hits, task }
        }
    }

    impl Drop for CanaryServer {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    #[tokio::test]
    async fn sites_on_the_list_are_answered() {
        let (egress, _home) = opened(LIMITS).await;
        for (request, status, text) in [
            ("GET http://site.test/ HTTP/1.1", 200, "home"),
            ("GET http://SITE.test:80/index.html?q HTTP/1.1", 200, "home"),
            ("HEAD http://site.test/ HTTP/1.1", 200, "content-length: 4"),
            ("GET http://site.test/none HTTP/1.1", 404, "no such page"),
            ("GET http://site.test/%2e%2e/%2e%2e/etc/passwd HTTP/1.1", 404, "no such page"),
            ("POST http://site.test/ HTTP/1.1", 405, "GET and HEAD only"),
            ("GET http://other.test/ HTTP/1.1", 403, "not on the task's list"),
            ("GET http://a.site.test/ HTTP/1.1", 403, "no site answers"),
            ("GET http://live.test/ HTTP/1.1", 403, "no site answers"),
            ("GET https://site.test/ HTTP/1.1", 403, "no site answers"),
            ("GET http://site.test:8080/ HTTP/1.1", 403, "no site answers"),
            ("CONNECT site.test:443 HTTP/1.1", 403, "no site answers"),
            ("CONNECT site.test:80 HTTP/1.1", 403, "no site answers"),
            ("CONNECT other.test:443 HTTP/1.1", 403, "not on the task's list"),
            ("CONNECT 127.0.0.1:9222 HTTP/1.1", 403, "private addresses"),
            ("CONNECT [::1]:9222 HTTP/1.1", 403, "private addresses"),
            ("GET ftp://site.test/ HTTP/1.1", 403, "only http and https"),
            ("GET /index.html HTTP/1.1", 403, "not an address"),
            ("OPTIONS * HTTP/1.1", 403, "not an address"),
        ] {
            let answer =
                raw(&egress, &format!("{request}\r\nHost: site.test\r\nConnection: close\r\n\r\n")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
            assert!(answer.contains(text), "{request}: {answer}");
        }
        egress.close().await;
    }

    #[tokio::test]
    async fn a_filter_knows_whether_it_answers() {
        let (egress, _home) = opened(EgressLimits { connections_max: 1, ..LIMITS }).await;
        let long = format!("http://site.test/?q={}", "x".repeat(9000));
        // Any answer counts: a page, an error, or that the address is too long. If no answer is
        // needed, accepting the connection counts.
        let answered = [
            "http://site.test/",
            "http://site.test/none",
            &long,
            "https://site.test/",
            "http://live.test/",
            "foo:",
        ];
        for url in answered {
            assert!(egress.is_answering(url).await, "{url}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(egress.blocked().total, 0, "the check is not a request of the page");
        // All its permits are taken.
        let mut client = TcpStream::connect(egress.address()).await.unwrap();
        client.write_all(b"GET http://site.test/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert_ne!(client.read(&mut [0; 4096]).await.unwrap(), 0);
        assert!(!egress.is_answering("http://site.test/").await);
        assert!(egress.is_answering("https://site.test/").await);
        egress.stop.cancel();
        egress.work.close();
        egress.work.wait().await;
        for url in answered {
            assert!(!egress.is_answering(url).await, "{url}");
        }
    }

    #[tokio::test]
    async fn no_spelling_of_loopback_reaches_a_canary() {
        let (egress, _home) = opened(LIMITS).await;
        let canary = CanaryServer::start().await;
        for (url, _) in SPELLINGS {
            let answer = get(&egress, &url.replace("{port}", &canary.port.to_string())).await;
            // 400 if hyper itself cannot parse the address.
            let refused = ["HTTP/1.1 403 ", "HTTP/1.1 400 "].iter().any(|head| answer.starts_with(head));
            assert!(refused, "{url}: {answer}");
        }
        assert_eq!(canary.hits.load(Ordering::SeqCst), 0);
        let blocked = egress.blocked();
        assert!(blocked.total > 40 && blocked.hosts.len() == BLOCKED_HOSTS_MAX, "{blocked:?}");
        assert_eq!(blocked.hosts["127.0.0.1"], (BlockReason::PrivateAddress, 2));
        assert!(
            blocked.to_string().starts_with(&format!("requests refused: {} (", blocked.total)),
            "{blocked}"
        );
    }

    #[tokio::test]
    async fn a_request_that_is_too_large_or_too_slow_is_cut_off() {
        let (egress, _home) = opened(EgressLimits { deadline: Duration::from_millis(100), ..LIMITS }).await;
        let long = "x".repeat(9000);
        let answer = raw(&egress, &format!("GET http://site.test/ HTTP/1.1\r\nA: {long}\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let many: String = (0..HEADERS_MAX + 1).map(|n| format!("h{n}: 1\r\n")).collect();
        let answer = raw(&egress, &format!("GET http://site.test/ HTTP/1.1\r\n{many}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        // The request is never completed: the connection ends by itself.
        let answer = raw(&egress, "GET http://site.test/ HTTP/1.1\r\nA:").await;
        assert!(!answer.contains("home"), "{answer}");
    }

    #[tokio::test]
    async fn a_body_is_never_read() {
        let (egress, _home) = opened(LIMITS).await;
        let head =
            "POST http://site.test/ HTTP/1.1\r\nHost: site.test\r\nContent-Length: 999999999999\r\n\r\n";
        let answer = raw(&egress, &format!("{head}{}", "x".repeat(100_000))).await;
        assert!(answer.starts_with("HTTP/1.1 405 ") || answer.contains("reset"), "{answer}");
    }

    #[tokio::test]
    async fn connections_are_bounded_and_end_with_the_owner() {
        let (egress, _home) = opened(LIMITS).await;
        let address = egress.address();
        let mut streams = Vec::new();
        for _ in 0..LIMITS.connections_max {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // An answered request proves that the connection has its permit.
            stream.write_all(b"GET http://site.test/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            streams.push(stream);
        }
        assert!(!get(&egress, "http://site.test/").await.contains("home"));
        tokio::time::timeout(Duration::from_secs(5), egress.close()).await.expect("closed");
        for mut stream in streams {
            assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
        }
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_owner_that_is_dropped_takes_its_port_along() {
        let (egress, _home) = opened(LIMITS).await;
        let address = egress.address();
        let work = egress.work.clone();
        drop(egress);
        work.close();
        tokio::time::timeout(Duration::from_secs(5), work.wait()).await.expect("ended");
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// A server on loopback with the pinned name `live.test`: every connection gets this answer.
    async fn origin(answer: &'static [u8]) -> (u16, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut read = [0; 4096];
                    let mut head = Vec::new();
                    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                        match stream.read(&mut read).await {
                            Ok(0) | Err(_) => return,
                            Ok(count) => head.extend_from_slice(&read[..count]),
                        }
                    }
                    // The first header of the answer contains the request, so that a test sees what
                    // was forwarded.
                    let request_text = String::from_utf8_lossy(&head).replace("\r\n", "|");
                    let answer_text = String::from_utf8_lossy(answer).replacen(
                        "\r\n",
                        &format!("\r\nx-asked: {request_text}\r\n"),
                        1,
                    );
                    drop(stream.write_all(answer_text.as_bytes()).await);
                });
            }
        });
        (port, task)
    }

    async fn live(port: u16, bytes_max: u64, resolver: Arc<dyn live::HostResolver>) -> EgressFilter {
        let pins = HostPins::new(&[format!("live.test=127.0.0.1:{port}")]).unwrap();
        let limits = EgressLimits { live: Some(LiveLimits { bytes_max, pins: Arc::new(pins) }), ..LIMITS };
        let sites = SiteServer::open(&[], SiteLimits { file_bytes_max: 1, cache_bytes_max: 1 }).unwrap();
        let egress =
            EgressFilter::open_with_resolver(Arc::new(sites), limits, LoopbackNetwork::Machine, resolver)
                .await
                .unwrap();
        let allow = AllowList::new("http://live.test/", &["rebound.org".into()]).unwrap();
        egress.allow_task(allow, None, Arc::default());
        egress
    }

    #[tokio::test]
    async fn external_hosts_are_reached() {
        let (port, _origin) = origin(
            b"HTTP/1.1 201 Made\r\nconnection: x-hop, close\r\nx-hop: 1\r\ncontent-length: 5\r\n\r\nhello",
        )
        .await;
        let egress = live(port, 1000, Arc::new(SystemResolver)).await;
        let answer = raw(&egress, "POST http://live.test/buy?n=2 HTTP/1.1\r\nHost: other.test\r\nProxy-Connection: keep-alive\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 201 ") && answer.ends_with("hello"), "{answer}");
        assert!(
            answer.contains("x-asked: POST /buy?n=2 HTTP/1.1|") && answer.contains("host: live.test|"),
            "{answer}"
        );
        assert!(
            !answer.contains("x-hop: 1") && !answer.to_lowercase().contains("proxy-connection"),
            "{answer}"
        );
        assert_eq!(egress.blocked().total, 0);
        assert!(egress.in_flight().0.borrow().count == 0);
        egress.close().await;
    }

    /// An established tunnel, from the page's side and from the host's.
    async fn tunnel() -> (EgressFilter, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let egress = live(listener.local_addr().unwrap().port(), 1000, Arc::new(SystemResolver)).await;
        let mut page = TcpStream::connect(egress.address()).await.unwrap();
        page.write_all(b"CONNECT live.test:443 HTTP/1.1\r\nHost: live.test:443\r\n\r\n").await.unwrap();
        let (host, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let count = page.read(&mut head).await.unwrap();
        assert!(head[..count].starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&head[..count]));
        (egress, page, host)
    }

    #[tokio::test]
    async fn a_tunnel_carries_both_ways_and_ends_with_its_owner() {
        let (egress, mut page, mut host) = tunnel().await;
        page.write_all(b"ping").await.unwrap();
        let mut got = [0; 4];
        host.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ping");
        // The pending answer counts.
        assert_eq!(egress.in_flight().0.borrow().count, 1);
        host.write_all(b"pong").await.unwrap();
        page.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"pong");
        tokio::time::timeout(Duration::from_secs(5), egress.close()).await.expect("closed");
        assert_eq!(host.read(&mut got).await.unwrap_or(0), 0);
        assert_eq!(page.read(&mut got).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn a_trajectory_is_sent_no_more_than_it_may_be() {
        let (egress, mut page, mut host) = tunnel().await;
        host.write_all(&[7; 900]).await.unwrap();
        let mut got = [0; 900];
        page.read_exact(&mut got).await.unwrap();
        host.write_all(&[7; 101]).await.unwrap();
        assert_eq!(page.read(&mut got).await.unwrap_or(0), 0, "cut off");
        assert_eq!(egress.blocked().hosts[""], (BlockReason::TooMuch, 1));
    }

    /// A name that resolves to this machine, and how often it was resolved.
    #[derive(Debug, Default)]
    struct LoopbackResolver(AtomicU64);

    #[async_trait::async_trait]
    impl live::HostResolver for LoopbackResolver {
        async fn resolve(&self, _: &HostName, port: u16) -> io::Result<Vec<SocketAddr>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)])
        }
    }

    #[tokio::test]
    async fn a_name_that_means_this_machine_is_refused() {
        let resolver = Arc::new(LoopbackResolver::default());
        let egress = live(1, 1000, resolver.clone()).await;
        let canary = CanaryServer::start().await;
        for request in [
            "GET http://rebound.org/ HTTP/1.1",
            "CONNECT rebound.org:443 HTTP/1.1",
            "CONNECT rebound.org:80 HTTP/1.1",
        ] {
            let answer =
                raw(&egress, &format!("{request}\r\nHost: rebound.org\r\nConnection: close\r\n\r\n")).await;
            assert!(
                answer.starts_with("HTTP/1.1 403 ") && answer.contains("private addresses"),
                "{request}: {answer}"
            );
        }
        let answer = raw(&egress, &format!("CONNECT rebound.org:{} HTTP/1.1\r\n\r\n", canary.port)).await;
        assert!(answer.contains("only the ports of http and https"), "{answer}");
        assert_eq!(
            (canary.hits.load(Ordering::SeqCst), resolver.0.load(Ordering::SeqCst)),
            (0, 3),
            "each connection resolves again"
        );
    }
}
