//! The only way out of a browser context: a filtering HTTP proxy on a loopback port of its own, one a trajectory.
//!
//! What is on the task's list and is an offline site of this worker is answered here; what is on the list and elsewhere is fetched or tunnelled to
//! (`live.rs`); everything else is refused and counted. Chromium is told to send even loopback traffic this way (`<-loopback>`), so no page
//! can reach the machine it runs on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::Ancestry;
use furrow_telemetry::{BlockReason, RequestBlocked};
use http::{Method, Request, Response, StatusCode, header};
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

use crate::hosts::{AllowList, HostName, OffLimits, Place};
use crate::live::{self, Outside, Pins, System, Unreached};
use crate::sites::{Sites, plain};

/// The filter of one browser context. It ends with its owner.
#[derive(Debug)]
pub struct Egress {
    address: SocketAddr,
    filter: Arc<Filter>,
    stop: CancellationToken,
    work: TaskTracker,
}

/// Bounds on what one context may ask of its filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressLimits {
    /// Connections at once; further ones are closed as they come. Chromium opens at most 32 to one proxy.
    pub connections_max: usize,
    /// Line and headers of a request.
    pub header_bytes_max: usize,
    /// A request must be read, and its answer found, within this time each.
    pub deadline: Duration,
    /// How far hosts elsewhere may be reached; `None` reaches sites of our own alone.
    pub live: Option<LiveLimits>,
}

/// Bounds on what comes from hosts elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLimits {
    /// All that one trajectory may be sent, headers of tunnelled messages included.
    pub bytes_max: u64,
    /// Hosts whose address the job gives itself; private ones are reached no other way.
    pub pins: Arc<Pins>,
}

/// What was refused, for whoever looks for the reason of a page that does not work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blocked {
    /// All refused requests.
    pub total: u64,
    /// By host and why; the first [`BLOCKED_HOSTS_MAX`] that differ.
    pub hosts: BTreeMap<String, (BlockReason, u64)>,
}

/// A page can make up hosts without end; the log keeps this many and the total.
pub const BLOCKED_HOSTS_MAX: usize = 32;

impl Egress {
    /// Binds a port of the system's choosing and starts to answer. `of` is the trajectory whose refusals are told of.
    pub async fn open(
        sites: Arc<Sites>,
        allow: AllowList,
        of: Option<Ancestry>,
        limits: EgressLimits,
    ) -> io::Result<Self> {
        let egress = Self::shut(sites, limits).await?;
        egress.admit(allow, of);
        Ok(egress)
    }

    /// The same for a context that waits for its task: nothing gets out.
    pub async fn shut(sites: Arc<Sites>, limits: EgressLimits) -> io::Result<Self> {
        Self::shut_over(sites, limits, Arc::new(System)).await
    }

    /// The same over another resolver.
    async fn shut_over(
        sites: Arc<Sites>,
        limits: EgressLimits,
        resolver: Arc<dyn live::Resolve>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let in_flight = watch::channel(Flight::default()).0;
        let (lent, blocked) = (OnceLock::new(), Mutex::default());
        let outside = limits.live.as_ref().map(|live| Outside {
            resolver,
            pins: live.pins.clone(),
            deadline: limits.deadline,
        });
        let sent = AtomicU64::new(0);
        let filter = Arc::new(Filter { sites, lent, limits, blocked, in_flight, outside, sent });
        let egress = Self {
            address: listener.local_addr()?,
            filter,
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
        };
        let (filter, stop, work) = (egress.filter.clone(), egress.stop.clone(), egress.work.clone());
        egress.work.spawn(async move {
            stop.run_until_cancelled(accept(&listener, &filter, &stop, &work)).await;
        });
        Ok(egress)
    }

    /// From now on the hosts of this task can be reached. A filter serves one task in its life: a second one changes nothing.
    pub fn admit(&self, allow: AllowList, of: Option<Ancestry>) {
        // Whoever comes second finds it lent: that is said above.
        self.filter.lent.set(Lent { allow, of }).ok();
    }

    /// Where the context's proxy is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests that are being answered.
    pub(crate) fn in_flight(&self) -> InFlight {
        InFlight(self.filter.in_flight.subscribe())
    }

    /// Counts requests in flight that are answered elsewhere: from an archive, or in a recorder's hands.
    pub(crate) fn counter(&self) -> Counter {
        Counter(self.filter.clone())
    }

    /// Whether this filter answers, now, where it has to. It is asked the way the browser asks it; a site of ours that answers nothing, or no
    /// connection, is the farm's failure. Of a host elsewhere only the filter is asked: whether that host answers is its own affair.
    pub(crate) async fn answers(&self, url: &str) -> bool {
        let ours = url
            .parse()
            .ok()
            .filter(|uri| matches!(self.filter.verdict(&Method::HEAD, uri), Ok(Way::Site(_))));
        let asked = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let Some(uri) = ours else { return Ok(true) };
            let head = format!("HEAD {uri} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
            stream.write_all(head.as_bytes()).await?;
            stream.read(&mut [0; 16]).await.map(|read| read > 0)
        };
        let answered: Result<io::Result<bool>, _> =
            tokio::time::timeout(self.filter.limits.deadline, asked).await;
        matches!(answered, Ok(Ok(true)))
    }

    /// What was refused so far.
    pub fn blocked(&self) -> Blocked {
        self.filter.blocked().clone()
    }

    /// Closes the port and every connection, and waits until they are gone.
    pub async fn close(self) {
        self.stop.cancel();
        self.work.close();
        self.work.wait().await;
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Takes connections while its owner lives. Each is a task of the tracker and ends with the token.
async fn accept(listener: &TcpListener, filter: &Arc<Filter>, stop: &CancellationToken, work: &TaskTracker) {
    let places = Arc::new(Semaphore::new(filter.limits.connections_max));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: accepting again at once would spin.
                tracing::warn!(%error, "an egress filter cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (filter, stop) = (filter.clone(), stop.clone());
        let connection = Connection { filter, place: Arc::new(place), stop, work: work.clone() };
        work.spawn(async move {
            connection.stop.run_until_cancelled(serve(stream, &connection)).await;
        });
    }
}

/// A connection of the browser's, and what is needed to carry what outlives a request on it.
#[derive(Debug, Clone)]
struct Connection {
    filter: Arc<Filter>,
    /// Held while anything of it lives.
    place: Arc<OwnedSemaphorePermit>,
    stop: CancellationToken,
    work: TaskTracker,
}

async fn serve(stream: TcpStream, connection: &Connection) {
    let limits = &connection.filter.limits;
    let answer = service_fn(|request: Request<Incoming>| {
        let connection = connection.clone();
        async move {
            // A page may listen to a stream of events or to music for ever: that is no reason to wait for it.
            let waits = request.method() != Method::CONNECT && is_waited_for(&request);
            let asked = waits.then(|| Asked::new(&connection.filter));
            let answer = connection.answer(request).await;
            Ok::<_, Infallible>(answer.map(|part| Watched { part, filter: connection.filter, _asked: asked }))
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
        // A page that goes away mid-answer is the daily case; nobody needs to act.
        tracing::debug!(%error, "a connection to an egress filter broke");
    }
}

/// Headers of a request; Chromium sends about 15.
const HEADERS_MAX: usize = 100;

/// Decides, and answers for sites of our own. The body of a request to one is never read: hyper closes a connection whose request had one.
#[derive(Debug)]
struct Filter {
    sites: Arc<Sites>,
    lent: OnceLock<Lent>,
    limits: EgressLimits,
    blocked: Mutex<Blocked>,
    in_flight: watch::Sender<Flight>,
    outside: Option<Outside>,
    /// Bytes that came from elsewhere.
    sent: AtomicU64,
}

/// Whom a filter serves.
#[derive(Debug)]
struct Lent {
    allow: AllowList,
    of: Option<Ancestry>,
}

/// Requests of a context between their arrival and the last byte of their answer.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    count: usize,
    /// When the last one ended.
    ended: Option<Instant>,
}

/// A view of them.
#[derive(Debug)]
pub(crate) struct InFlight(watch::Receiver<Flight>);

/// An answer that left here is in the page's hands a moment later; on a busy machine that took 8 ms.
const DELIVERY: Duration = Duration::from_millis(15);

impl InFlight {
    /// Whether no request is in flight. If one is, waits for its answer or the cap: the document is looked at again after it.
    pub async fn is_quiet(&mut self, cap: Instant) -> bool {
        let Flight { count, ended } = *self.0.borrow();
        let delivered = ended.map(|ended| ended + DELIVERY).filter(|delivered| *delivered > Instant::now());
        match (count, delivered) {
            (0, None) => return true,
            (0, Some(delivered)) => sleep_until(delivered.min(cap)).await,
            // Late or not, the caller looks again and sees for itself.
            _ => drop(timeout_at(cap, self.0.wait_for(|flight| flight.count == 0)).await),
        }
        false
    }
}

/// Makes requests count that the filter does not see.
#[derive(Debug, Clone)]
pub(crate) struct Counter(Arc<Filter>);

impl Counter {
    /// One that is in flight until it is dropped.
    pub fn ask(&self) -> Asked {
        Asked::new(&self.0)
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Asked(Arc<Filter>);

impl Asked {
    fn new(filter: &Arc<Filter>) -> Self {
        filter.in_flight.send_modify(|flight| flight.count += 1);
        Self(filter.clone())
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let ended = Some(Instant::now());
        self.0.in_flight.send_modify(|flight| *flight = Flight { count: flight.count - 1, ended });
    }
}

/// An answer's body; when its last byte has been taken, its request is in flight no more.
struct Watched {
    part: Part,
    filter: Arc<Filter>,
    _asked: Option<Asked>,
}

/// Whose answer it is.
enum Part {
    Ours(Full<Bytes>),
    Theirs(Incoming),
}

type BodyError = Box<dyn Error + Send + Sync>;

impl Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.part {
            Part::Ours(bytes) => Pin::new(bytes).poll_frame(cx).map_err(|never| match never {}),
            Part::Theirs(body) => {
                let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| {
                    let frame = frame?;
                    self.filter.take(frame.data_ref().map_or(0, Bytes::len))?;
                    Ok(frame)
                }))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.part {
            Part::Ours(bytes) => bytes.is_end_stream(),
            Part::Theirs(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.part {
            Part::Ours(bytes) => bytes.size_hint(),
            Part::Theirs(body) => body.size_hint(),
        }
    }
}

/// Who answers a request.
enum Way {
    Site(HostName),
    Live(Place),
}

impl Connection {
    async fn answer(&self, request: Request<Incoming>) -> Response<Part> {
        let filter = &self.filter;
        let place = match filter.verdict(request.method(), request.uri()) {
            Ok(Way::Site(host)) => return filter.serve(&host, &request).await.map(Part::Ours),
            Ok(Way::Live(place)) => place,
            Err(off) => return filter.refuse(off).map(Part::Ours),
        };
        let reached = match &filter.outside {
            Some(outside) => outside.connect(&place).await,
            None => Err(Unreached::Refused(OffLimits::new(BlockReason::Unresolved, place.host.as_str()))),
        };
        let host = match reached {
            Ok(host) => host,
            Err(Unreached::Refused(off)) => return filter.refuse(off).map(Part::Ours),
            Err(Unreached::Failed(why)) => return plain(StatusCode::BAD_GATEWAY, &why).map(Part::Ours),
        };
        match *request.method() == Method::CONNECT {
            true => self.tunnel(request, host),
            false => self.forward(request, host).await,
        }
    }

    /// Carries whatever is said between page and host, unread.
    fn tunnel(&self, request: Request<Incoming>, host: TcpStream) -> Response<Part> {
        let (connection, stop) = (self.clone(), self.stop.clone());
        self.work.spawn(async move {
            stop.run_until_cancelled(connection.carry(request, host)).await;
        });
        Response::new(Part::Ours(Full::default()))
    }

    async fn carry(&self, request: Request<Incoming>, host: TcpStream) {
        let Ok(page) = hyper::upgrade::on(request).await else { return };
        let (busy, seen) = watch::channel(Instant::now());
        let take = |bytes| self.filter.take(bytes);
        let carried = async { live::tunnel(TokioIo::new(page), host, take, &busy).await.err() };
        let error = tokio::select! {
            error = carried => error,
            () = live::while_busy(seen, || Asked::new(&self.filter)) => None,
        };
        if let Some(error) = error {
            tracing::debug!(%error, "a tunnel broke");
        }
    }

    /// Passes a request on and its answer back.
    async fn forward(&self, request: Request<Incoming>, host: TcpStream) -> Response<Part> {
        let failed =
            |why: &dyn fmt::Display| plain(StatusCode::BAD_GATEWAY, &why.to_string()).map(Part::Ours);
        let (mut sender, carrying) = match live::handshake(host).await {
            Ok(both) => both,
            Err(error) => return failed(&error),
        };
        let stop = self.stop.clone();
        let place = self.place.clone();
        self.work.spawn(async move {
            stop.run_until_cancelled(carrying).await;
            drop(place);
        });
        let answer = sender.send_request(live::passed_on(request));
        match tokio::time::timeout(self.filter.limits.deadline, answer).await {
            Err(_) => plain(StatusCode::GATEWAY_TIMEOUT, "the host did not answer in time").map(Part::Ours),
            Ok(Err(error)) => failed(&error),
            Ok(Ok(mut answer)) => {
                live::without_hops(answer.headers_mut());
                answer.map(Part::Theirs)
            }
        }
    }
}

impl Filter {
    async fn serve(&self, host: &HostName, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let answer = self.sites.answer(host, request.method(), request.uri());
        let Ok(answer) = tokio::time::timeout(self.limits.deadline, answer).await else {
            return plain(StatusCode::GATEWAY_TIMEOUT, "the file was not read in time");
        };
        answer
    }

    /// Bytes that came from elsewhere; an error when they are more than the trajectory may be sent.
    fn take(&self, bytes: usize) -> io::Result<()> {
        let most = self.limits.live.as_ref().map_or(0, |live| live.bytes_max);
        let before = self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        if before + bytes as u64 <= most {
            return Ok(());
        }
        if before <= most {
            let of = self.lent.get().and_then(|lent| lent.of.as_ref());
            let (host, reason) = ("", BlockReason::TooMuch);
            RequestBlocked { of, host, reason }.emit();
            self.blocked().count(OffLimits::new(reason, host));
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, explained(BlockReason::TooMuch)))
    }

    /// Who answers a request, or why nobody does.
    fn verdict(&self, method: &Method, uri: &http::Uri) -> Result<Way, OffLimits> {
        let place = match uri.authority() {
            // A tunnel: https, WebSocket.
            Some(authority) if method == Method::CONNECT => {
                Place::of_authority(authority.as_str(), 443).and_then(|place| self.listed(place))?
            }
            Some(_) => self.judge(&uri.to_string())?,
            None => return Err(OffLimits::new(BlockReason::Malformed, "")),
        };
        let is_plain = method != Method::CONNECT && uri.scheme() == Some(&http::uri::Scheme::HTTP);
        let is_site = self.sites.has(&place.host);
        if is_plain && place.port == 80 && is_site {
            return Ok(Way::Site(place.host));
        }
        match &self.outside {
            // Nobody of this name is elsewhere, and over https a proxy is asked for tunnels alone.
            Some(outside) if !is_site && (is_plain || method == Method::CONNECT) => {
                outside.could_be(&place).map(|()| Way::Live(place))
            }
            _ => Err(OffLimits::new(BlockReason::Unresolved, place.host.as_str())),
        }
    }

    fn judge(&self, url: &str) -> Result<Place, OffLimits> {
        Place::of_url(url).and_then(|place| self.listed(place))
    }

    /// A filter that nobody was lent reaches nothing.
    fn listed(&self, place: Place) -> Result<Place, OffLimits> {
        match self.lent.get().is_some_and(|lent| lent.allow.admits(&place.host)) {
            true => Ok(place),
            false => Err(OffLimits::new(BlockReason::OffList, place.host.as_str())),
        }
    }

    fn refuse(&self, off: OffLimits) -> Response<Full<Bytes>> {
        let sentence = format!("This task does not reach {:?}: {}.", off.host, explained(off.reason));
        let of = self.lent.get().and_then(|lent| lent.of.as_ref());
        RequestBlocked { of, host: &off.host, reason: off.reason }.emit();
        self.blocked().count(off);
        let mut response = plain(StatusCode::FORBIDDEN, &sentence);
        response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
        response
    }

    fn blocked(&self) -> std::sync::MutexGuard<'_, Blocked> {
        // Counting cannot leave it half done.
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocked {
    fn count(&mut self, off: OffLimits) {
        self.total += 1;
        if self.hosts.len() < BLOCKED_HOSTS_MAX || self.hosts.contains_key(&off.host) {
            self.hosts.entry(off.host).or_insert((off.reason, 0)).1 += 1;
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requests refused: {}", self.total)?;
        for (place, (host, (reason, count))) in self.hosts.iter().enumerate() {
            let before = if place == 0 { " (" } else { ", " };
            write!(f, "{before}{count} to {host:?} because {}", explained(*reason))?;
        }
        if self.hosts.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// What a page that is being read waits for, by what the browser says of it.
fn is_waited_for(request: &Request<Incoming>) -> bool {
    let says = |name: &str| request.headers().get(name).map_or(&b""[..], http::HeaderValue::as_bytes);
    !matches!(says("sec-fetch-dest"), b"audio" | b"video" | b"track")
        && says("accept") != b"text/event-stream"
}

fn explained(reason: BlockReason) -> &'static str {
    match reason {
        BlockReason::OffList => "it is not on the task's list",
        BlockReason::PrivateAddress => "private addresses are never reached",
        BlockReason::Scheme => "only http and https are spoken here",
        BlockReason::Unresolved => "no site answers at this address",
        BlockReason::Malformed => "this is no address",
        BlockReason::Port => "only the ports of http and https are reached",
        BlockReason::TooMuch => "the trajectory was sent as much as it may be",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::tests::SPELLINGS;
    use crate::sites::{Root, Site, SiteLimits};

    const LIMITS: EgressLimits = EgressLimits {
        connections_max: 4,
        header_bytes_max: 8192,
        deadline: Duration::from_secs(5),
        live: None,
    };

    async fn opened(limits: EgressLimits) -> (Egress, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("index.html"), "home").unwrap();
        let site = |host: &str| Site { host: host.into(), root: Root::Folder(home.path().to_owned()) };
        let bounds = SiteLimits { file_bytes_max: 1000, cache_bytes_max: 1000 };
        let sites = Sites::open(&[site("site.test"), site("other.test")], bounds).unwrap();
        let allow = AllowList::new("http://site.test/", &["live.test".into(), "*.site.test".into()]).unwrap();
        (Egress::open(Arc::new(sites), allow, None, limits).await.unwrap(), home)
    }

    /// Sends bytes as they are and reads the answer to its end.
    async fn raw(egress: &Egress, request: &str) -> String {
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

    async fn get(egress: &Egress, url: &str) -> String {
        raw(egress, &format!("GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    /// A server on loopback that counts whoever arrives.
    struct Canary {
        port: u16,
        seen: Arc<AtomicU64>,
        task: tokio::task::JoinHandle<()>,
    }

    impl Canary {
        async fn sing() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (port, seen) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
            let counter = seen.clone();
            let task = tokio::spawn(async move {
                while listener.accept().await.is_ok() {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            });
            Self { port, seen, task }
        }
    }

    impl Drop for Canary {
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
            ("GET /index.html HTTP/1.1", 403, "no address"),
            ("OPTIONS * HTTP/1.1", 403, "no address"),
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
        // Whatever the answer is: a page, none, or that this is too long. And where it has to answer nothing, that it takes a connection.
        let answered = [
            "http://site.test/",
            "http://site.test/none",
            &long,
            "https://site.test/",
            "http://live.test/",
            "foo:",
        ];
        for url in answered {
            assert!(egress.answers(url).await, "{url}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(egress.blocked().total, 0, "asking is no request of the page");
        // All its places are taken.
        let mut held = TcpStream::connect(egress.address()).await.unwrap();
        held.write_all(b"GET http://site.test/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert_ne!(held.read(&mut [0; 4096]).await.unwrap(), 0);
        assert!(!egress.answers("http://site.test/").await);
        assert!(egress.answers("https://site.test/").await);
        // Its port is closed.
        egress.stop.cancel();
        egress.work.close();
        egress.work.wait().await;
        for url in answered {
            assert!(!egress.answers(url).await, "{url}");
        }
    }

    #[tokio::test]
    async fn no_spelling_of_loopback_reaches_a_canary() {
        let (egress, _home) = opened(LIMITS).await;
        let canary = Canary::sing().await;
        for (url, _) in SPELLINGS {
            let answer = get(&egress, &url.replace("{port}", &canary.port.to_string())).await;
            // 400 where hyper itself cannot read the address.
            let refused = ["HTTP/1.1 403 ", "HTTP/1.1 400 "].iter().any(|head| answer.starts_with(head));
            assert!(refused, "{url}: {answer}");
        }
        assert_eq!(canary.seen.load(Ordering::SeqCst), 0);
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
        // Never finished: the connection ends by itself.
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
        let mut held = Vec::new();
        for _ in 0..LIMITS.connections_max {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // An answered request proves that the connection has its place.
            stream.write_all(b"GET http://site.test/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            held.push(stream);
        }
        assert!(!get(&egress, "http://site.test/").await.contains("home"));
        tokio::time::timeout(Duration::from_secs(5), egress.close()).await.expect("closed");
        for mut stream in held {
            assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
        }
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_owner_that_is_dropped_takes_its_port_along() {
        let (egress, _home) = opened(LIMITS).await;
        let (address, work) = (egress.address(), egress.work.clone());
        drop(egress);
        work.close();
        tokio::time::timeout(Duration::from_secs(5), work.wait()).await.expect("ended");
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// A server on loopback, reached by the pinned name `live.test`: each connection is answered by what is told here, as often as is asked.
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
                    // The request comes back as the answer's first header, so that a test sees what was passed on.
                    let asked = String::from_utf8_lossy(&head).replace("\r\n", "|");
                    let told = String::from_utf8_lossy(answer).replacen(
                        "\r\n",
                        &format!("\r\nx-asked: {asked}\r\n"),
                        1,
                    );
                    drop(stream.write_all(told.as_bytes()).await);
                });
            }
        });
        (port, task)
    }

    async fn live(port: u16, bytes_max: u64, resolver: Arc<dyn live::Resolve>) -> Egress {
        let pins = Pins::new(&[format!("live.test=127.0.0.1:{port}")]).unwrap();
        let limits = EgressLimits { live: Some(LiveLimits { bytes_max, pins: Arc::new(pins) }), ..LIMITS };
        let sites = Sites::open(&[], SiteLimits { file_bytes_max: 1, cache_bytes_max: 1 }).unwrap();
        let egress = Egress::shut_over(Arc::new(sites), limits, resolver).await.unwrap();
        let allow = AllowList::new("http://live.test/", &["rebound.org".into()]).unwrap();
        egress.admit(allow, None);
        egress
    }

    #[tokio::test]
    async fn hosts_elsewhere_are_asked_and_answer() {
        let (port, _origin) = origin(
            b"HTTP/1.1 201 Made\r\nconnection: x-hop, close\r\nx-hop: 1\r\ncontent-length: 5\r\n\r\nhello",
        )
        .await;
        let egress = live(port, 1000, Arc::new(System)).await;
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

    /// A tunnel that stands, from the page's side and from the host's.
    async fn tunnel() -> (Egress, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let egress = live(listener.local_addr().unwrap().port(), 1000, Arc::new(System)).await;
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
        // An answer is waited for.
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

    /// A name that means this machine, and how often it was asked for.
    #[derive(Debug, Default)]
    struct Loopback(AtomicU64);

    #[async_trait::async_trait]
    impl live::Resolve for Loopback {
        async fn resolve(&self, _: &HostName, port: u16) -> io::Result<Vec<SocketAddr>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)])
        }
    }

    #[tokio::test]
    async fn a_name_that_means_this_machine_reaches_nobody() {
        let resolver = Arc::new(Loopback::default());
        let egress = live(1, 1000, resolver.clone()).await;
        let canary = Canary::sing().await;
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
            (canary.seen.load(Ordering::SeqCst), resolver.0.load(Ordering::SeqCst)),
            (0, 3),
            "each connection asks anew"
        );
    }
}
