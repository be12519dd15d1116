//! The only way out of a browser context: a filtering HTTP proxy on a loopback port of its own, one a trajectory.
//!
//! What is on the task's list and is an offline site of this worker is answered here; everything else is refused and counted. Chromium
//! is told to send even loopback traffic this way (`<-loopback>`), so no page can reach the machine it runs on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hosts::{AllowList, HostName, OffLimits, Place};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    /// Connections at once; further ones are closed as they come. Chromium opens at most 32 to one proxy.
    pub connections_max: usize,
    /// Line and headers of a request.
    pub header_bytes_max: usize,
    /// A request must be read, and its answer found, within this time each.
    pub deadline: Duration,
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let in_flight = watch::channel(Flight::default()).0;
        let (lent, blocked) = (OnceLock::new(), Mutex::default());
        let filter = Arc::new(Filter { sites, lent, limits, blocked, in_flight });
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
        work.spawn(async move {
            stop.run_until_cancelled(serve(stream, &filter)).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, filter: &Arc<Filter>) {
    let limits = filter.limits;
    let answer = service_fn(|request: Request<Incoming>| {
        let filter = filter.clone();
        async move {
            // A page may listen to a stream of events or to music for ever: that is no reason to wait for it.
            let asked = is_waited_for(&request).then(|| Asked::new(&filter));
            let answer = filter.answer(&request).await;
            Ok::<_, Infallible>(answer.map(|bytes| Watched { bytes, _asked: asked }))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.deadline)
        .max_headers(HEADERS_MAX)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        // A page that goes away mid-answer is the daily case; nobody needs to act.
        tracing::debug!(%error, "a connection to an egress filter broke");
    }
}

/// Headers of a request; Chromium sends about 15.
const HEADERS_MAX: usize = 100;

/// Decides and answers. The body of a request is never read: hyper closes a connection whose request had one.
#[derive(Debug)]
struct Filter {
    sites: Arc<Sites>,
    lent: OnceLock<Lent>,
    limits: EgressLimits,
    blocked: Mutex<Blocked>,
    in_flight: watch::Sender<Flight>,
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
    bytes: Full<Bytes>,
    _asked: Option<Asked>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.bytes).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

impl Filter {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let host = match self.verdict(request.method(), request.uri()) {
            Ok(host) => host,
            Err(off) => return self.refuse(off),
        };
        let answer = self.sites.answer(&host, request.method(), request.uri());
        let Ok(answer) = tokio::time::timeout(self.limits.deadline, answer).await else {
            return plain(StatusCode::GATEWAY_TIMEOUT, "the file was not read in time");
        };
        answer
    }

    /// Whose site answers a request, or why none does. Live hosts would be a third answer here: listed, resolved, and not private.
    fn verdict(&self, method: &Method, uri: &http::Uri) -> Result<HostName, OffLimits> {
        let place = match uri.authority() {
            // A tunnel (https, WebSocket): nobody listens behind it, but say first whether it was on the list.
            Some(authority) if method == Method::CONNECT => {
                Place::of_authority(authority.as_str(), 443).and_then(|place| self.listed(place))?
            }
            Some(_) => self.judge(&uri.to_string())?,
            None => return Err(OffLimits::new(BlockReason::Malformed, "")),
        };
        let is_plain = method != Method::CONNECT && uri.scheme() == Some(&http::uri::Scheme::HTTP);
        match is_plain && place.port == 80 && self.sites.has(&place.host) {
            true => Ok(place.host),
            false => Err(OffLimits::new(BlockReason::Unresolved, place.host.as_str())),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::tests::SPELLINGS;
    use crate::sites::{Root, Site, SiteLimits};
    use std::sync::atomic::{AtomicU64, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMITS: EgressLimits =
        EgressLimits { connections_max: 4, header_bytes_max: 8192, deadline: Duration::from_secs(5) };

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
}
