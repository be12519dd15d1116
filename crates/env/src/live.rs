//! Connects an egress filter to live hosts: a name is resolved here, its addresses are checked, and
//! the connection is made to one of the checked addresses.
//!
//! A browser behind a proxy resolves nothing, and every connection resolves again here, so a name
//! that changes its address between the check and the connection (DNS rebinding) gains nothing. One
//! private address among a name's addresses makes the name unreachable. A host inside the
//! operator's own network (a staging site, a self-hosted suite) must be *pinned* by the job, host
//! by host, to an address that is never resolved.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use furrow_telemetry::BlockReason;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::hosts::{BlockedHost, HostName, HostPort, is_private};

/// Ports of live hosts that may be reached: those of the web.
const PORTS: [u16; 2] = [80, 443];

/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Most addresses of one name: a name with more is refused without a check of the rest.
const LOOKED_AT_MAX: usize = 256;

/// Time after which an idle tunnel is closed; browsers keep idle connections for five minutes and
/// silently open new ones.
const TUNNEL_IDLE_MAX: Duration = Duration::from_secs(120);

/// Time for which a page counts as loading after bytes came from a host.
const RESPONSE_BUSY_TIME: Duration = Duration::from_millis(150);

/// Time for which a page counts as loading after bytes went to a host, to wait for its answer.
const REQUEST_BUSY_TIME: Duration = Duration::from_millis(1500);

/// Size of one read from either side of a tunnel.
const BUFFER_BYTES: usize = 32 << 10;

/// Most pins of one job.
const PINS_MAX: usize = 1000;

/// Domains that do not exist on the internet (RFC 2606, RFC 7686): the farm's own sites, or a
/// mistake.
const RESERVED_DOMAINS: [&str; 4] = [".test", ".invalid", ".example", ".onion"];

/// Headers that belong to one connection and not to a message (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("proxy-connection"),
];

/// Resolves names to addresses.
#[async_trait]
pub(crate) trait HostResolver: fmt::Debug + Send + Sync {
    /// All addresses of a name.
    async fn resolve(&self, host: &HostName, port: u16) -> io::Result<Vec<SocketAddr>>;
}

#[derive(Debug)]
pub(crate) struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn resolve(&self, host: &HostName, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host.as_str(), port)).await?.take(LOOKED_AT_MAX + 1).collect())
    }
}

/// Hosts whose address the job sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPins(HashMap<HostName, PinnedAddress>);

/// The address of a pinned host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PinnedAddress {
    address: IpAddr,
    /// `None`: the port of the request.
    port: Option<u16>,
}

impl HostPins {
    /// Validates pins: each is `host=address` or `host=address:port`, with brackets around an IPv6
    /// address with a port.
    ///
    /// # Errors
    /// One sentence for each invalid pin.
    pub fn new(pins: &[String]) -> Result<Self, Vec<String>> {
        if pins.len() > PINS_MAX {
            return Err(vec![format!("{} entries; use at most {PINS_MAX}", pins.len())]);
        }
        let mut read = HashMap::new();
        let mut wrong = Vec::new();
        for text in pins {
            match Self::read(text) {
                Some((host, pin)) => drop(read.insert(host, pin)),
                None => wrong.push(format!(
                    "{:?}; use a host's name and its address, such as \"shop.example.org=10.0.0.5:8080\"",
                    text.chars().take(300).collect::<String>()
                )),
            }
        }
        if wrong.is_empty() { Ok(Self(read)) } else { Err(wrong) }
    }

    /// The pinned hosts, in any order.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.0.keys()
    }

    /// Whether a pin names the host of this name.
    pub fn has(&self, host: &str) -> bool {
        HostName::parse(host).is_ok_and(|host| self.names(&host))
    }

    /// Whether a pin names this host.
    pub(crate) fn names(&self, host: &HostName) -> bool {
        self.0.contains_key(host)
    }

    /// Where a request to this host and port goes; `None` where no pin names the host.
    pub(crate) fn address(&self, target: &HostPort) -> Option<SocketAddr> {
        let pin = self.0.get(&target.host)?;
        Some(SocketAddr::new(pin.address, pin.port.unwrap_or(target.port)))
    }

    fn read(text: &str) -> Option<(HostName, PinnedAddress)> {
        let (host, address) = text.split_once('=')?;
        Some((HostName::parse(host).ok()?, PinnedAddress::parse(address)?))
    }
}

impl PinnedAddress {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self { address, port: None });
        }
        let both: SocketAddr = text.parse().ok()?;
        Some(Self { address: both.ip(), port: Some(both.port()) })
    }
}

/// Why a live host does not answer.
#[derive(Debug)]
pub(crate) enum ConnectFailure {
    /// The host may not be reached.
    Refused(BlockedHost),
    /// The host may be reached, but the connection failed.
    Failed(String),
}

/// Connects to live hosts.
#[derive(Debug, Clone)]
pub(crate) struct LiveHosts {
    pub resolver: Arc<dyn HostResolver>,
    pub pins: Arc<HostPins>,
    /// Time within which a name must be resolved, and time within which an address must accept a
    /// connection.
    pub deadline: Duration,
}

impl LiveHosts {
    /// Whether a host can be a live host at all, decided before any lookup.
    pub(crate) fn check_target(&self, target: &HostPort) -> Result<(), BlockedHost> {
        if self.pins.0.contains_key(&target.host) {
            return Ok(());
        }
        let name = target.host.as_str();
        let name = name.strip_suffix('.').unwrap_or(name);
        // The resolver's search domains would complete a name without a dot: it would name a
        // machine of the own network.
        if !name.contains('.') || RESERVED_DOMAINS.iter().any(|domain| name.ends_with(domain)) {
            return Err(BlockedHost::new(BlockReason::Unresolved, name));
        }
        if PORTS.contains(&target.port) { Ok(()) } else { Err(BlockedHost::new(BlockReason::Port, name)) }
    }

    /// Connects to a host.
    pub(crate) async fn connect(&self, target: &HostPort) -> Result<TcpStream, ConnectFailure> {
        let addresses = self.addresses(target).await?;
        let mut last = String::new();
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            match timeout(self.deadline, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Pages consist of small messages, which should not be delayed.
                    stream.set_nodelay(true).ok();
                    return Ok(stream);
                }
                Ok(Err(error)) => last = format!(" at {address}: {error}"),
                Err(_) => {
                    let millis = self.deadline.as_millis();
                    last = format!(" at {address}: it did not answer within {millis} ms");
                }
            }
        }
        Err(ConnectFailure::Failed(format!("{} cannot be reached{last}", target.host)))
    }

    /// The addresses of a host to which a connection may be made.
    async fn addresses(&self, target: &HostPort) -> Result<Vec<SocketAddr>, ConnectFailure> {
        if let Some(address) = self.pins.address(target) {
            return Ok(vec![address]);
        }
        let refused = |reason| ConnectFailure::Refused(BlockedHost::new(reason, target.host.as_str()));
        let resolved = timeout(self.deadline, self.resolver.resolve(&target.host, target.port)).await;
        let addresses = match resolved {
            Err(_) => {
                return Err(ConnectFailure::Failed(format!(
                    "the name {} was not resolved in time",
                    target.host
                )));
            }
            Ok(Err(error)) => {
                // Without the name: a page may have put anything into it.
                tracing::debug!(%error, "a name does not resolve");
                return Err(refused(BlockReason::Unresolved));
            }
            Ok(Ok(addresses)) => addresses,
        };
        // All addresses must be public: a name with public and private addresses is a rebinding
        // attempt.
        if addresses.len() > LOOKED_AT_MAX || addresses.iter().any(|address| is_private(address.ip())) {
            return Err(refused(BlockReason::PrivateAddress));
        }
        if addresses.is_empty() { Err(refused(BlockReason::Unresolved)) } else { Ok(addresses) }
    }
}

/// Opens an HTTP/1.1 connection to a host, and returns it with the task that drives it, which the
/// caller must run.
pub(crate) async fn handshake(
    stream: TcpStream,
) -> hyper::Result<(SendRequest<Incoming>, impl Future<Output = hyper::Result<()>> + Send)> {
    http1::handshake(TokioIo::new(stream)).await
}

/// The request as a proxy forwards it: its address without the host, its headers without those of
/// the connection.
pub(crate) fn proxy_request(mut request: Request<Incoming>) -> Request<Incoming> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let path = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *request.uri_mut() = path;
    remove_hop_headers(request.headers_mut());
    // The host receives the name that the list was checked for.
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(header::HOST, host);
    }
    request
}

/// Removes the headers of one connection.
pub(crate) fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Carries bytes both ways until both sides have ended, one fails, or no bytes passed for two
/// minutes. `take` is called before bytes from the host are forwarded; `busy` receives the time
/// until which the page counts as loading.
pub(crate) async fn tunnel(
    page: impl AsyncRead + AsyncWrite,
    host: TcpStream,
    take: impl Fn(usize) -> io::Result<()>,
    busy: &watch::Sender<Instant>,
) -> io::Result<()> {
    let (mut from_page, mut to_page) = tokio::io::split(page);
    let (mut from_host, mut to_host) = host.into_split();
    let note = |for_so_long| {
        busy.send_replace(Instant::now() + for_so_long);
    };
    let up = pump(&mut from_page, &mut to_host, |_| {
        note(REQUEST_BUSY_TIME);
        Ok(())
    });
    let down = pump(&mut from_host, &mut to_page, |bytes| {
        note(RESPONSE_BUSY_TIME);
        take(bytes)
    });
    let mut activity = busy.subscribe();
    let idle = async {
        while timeout(TUNNEL_IDLE_MAX, activity.changed()).await.is_ok_and(|activity| activity.is_ok()) {}
    };
    tokio::select! {
        carried = async { tokio::try_join!(up, down) } => carried.map(drop),
        () = idle => Ok(()),
    }
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    pass: impl Fn(usize) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        pass(read)?;
        to.write_all(&buffer[..read]).await?;
    }
}

/// Holds a guard from `ask` while a tunnel is busy, until the tunnel is closed.
pub(crate) async fn hold_while_busy<T>(mut busy: watch::Receiver<Instant>, ask: impl Fn() -> T) {
    while busy.changed().await.is_ok() {
        let _request = ask();
        loop {
            let until = *busy.borrow_and_update();
            if until <= Instant::now() {
                break;
            }
            // This ends early if the tunnel closes, and is repeated if more bytes passed.
            if timeout_at(until, async { while busy.changed().await.is_ok() {} }).await.is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_names_with_addresses() {
        let pins = |text: &str| HostPins::new(&[text.to_owned()]);
        for good in ["shop.example.org=10.0.0.5", "a.test=127.0.0.1:8080", "a.b=[::1]:80", "A.b=::1"] {
            assert!(pins(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a.b",
            "a.b=",
            "=10.0.0.1",
            "a.b=host",
            "a.b=10.0.0.1:",
            "a.b=10.0.0.1:99999",
            "localhost=10.0.0.1",
            "10.0.0.1=10.0.0.1",
            "a b=10.0.0.1",
        ] {
            let wrong = pins(bad).unwrap_err();
            assert!(wrong[0].starts_with(&format!("{bad:?}; use a host's name")), "{wrong:?}");
        }
        assert_eq!(
            HostPins::new(&vec!["a.b=::1".to_owned(); PINS_MAX + 1]).unwrap_err(),
            ["1001 entries; use at most 1000"]
        );
    }

    #[derive(Debug)]
    struct FixedResolver(Vec<&'static str>);

    #[async_trait]
    impl HostResolver for FixedResolver {
        async fn resolve(&self, _: &HostName, port: u16) -> io::Result<Vec<SocketAddr>> {
            if self.0 == ["error"] {
                return Err(io::Error::other("no such host"));
            }
            Ok(self.0.iter().map(|address| SocketAddr::new(address.parse().unwrap(), port)).collect())
        }
    }

    fn outside(answers: &[&'static str]) -> LiveHosts {
        let pins = Arc::new(
            HostPins::new(&["pinned.test=10.0.0.5".into(), "moved.test=127.0.0.1:81".into()]).unwrap(),
        );
        LiveHosts {
            resolver: Arc::new(FixedResolver(answers.to_vec())),
            pins,
            deadline: Duration::from_secs(1),
        }
    }

    #[tokio::test]
    async fn one_private_address_makes_a_name_private() {
        let many = vec!["93.184.216.34"; LOOKED_AT_MAX + 1];
        for (answers, want) in [
            (&["93.184.216.34"][..], Ok(1)),
            (&["93.184.216.34", "2606:2800:220:1::1"], Ok(2)),
            (&["93.184.216.34", "127.0.0.1"], Err(BlockReason::PrivateAddress)),
            (&["::ffff:10.0.0.1"], Err(BlockReason::PrivateAddress)),
            (&["169.254.169.254"], Err(BlockReason::PrivateAddress)),
            (&["fd00::1"], Err(BlockReason::PrivateAddress)),
            (&["64:ff9b::7f00:1"], Err(BlockReason::PrivateAddress)),
            (&many, Err(BlockReason::PrivateAddress)),
            (&[], Err(BlockReason::Unresolved)),
            (&["error"], Err(BlockReason::Unresolved)),
        ] {
            let target = HostPort::parse_url("http://shop.org/").unwrap();
            let got = match outside(answers).addresses(&target).await {
                Ok(addresses) => Ok(addresses.len()),
                Err(ConnectFailure::Refused(off)) => Err(off.reason),
                Err(ConnectFailure::Failed(why)) => panic!("{why}"),
            };
            assert_eq!(got, want, "{answers:?}");
        }
    }

    #[tokio::test]
    async fn pinned_hosts_are_not_looked_up() {
        for (url, want) in [
            ("http://pinned.test/", "10.0.0.5:80"),
            ("https://pinned.test/", "10.0.0.5:443"),
            ("https://moved.test/", "127.0.0.1:81"),
        ] {
            let target = HostPort::parse_url(url).unwrap();
            assert_eq!(
                outside(&["error"]).addresses(&target).await.unwrap(),
                [want.parse().unwrap()],
                "{url}"
            );
        }
    }

    #[test]
    fn names_that_cannot_be_external_are_not_resolved() {
        for (url, want) in [
            ("http://shop.org/", None),
            ("https://shop.org/", None),
            ("http://pinned.test:8080/", None),
            ("http://shop.org:8080/", Some(BlockReason::Port)),
            ("http://shop.org:22/", Some(BlockReason::Port)),
            ("http://shop.test/", Some(BlockReason::Unresolved)),
            ("http://shop.invalid./", Some(BlockReason::Unresolved)),
            ("http://printer/", Some(BlockReason::Unresolved)),
            ("http://printer./", Some(BlockReason::Unresolved)),
        ] {
            let target = HostPort::parse_url(url).unwrap();
            assert_eq!(outside(&[]).check_target(&target).err().map(|off| off.reason), want, "{url}");
        }
    }

    #[test]
    fn what_belongs_to_a_connection_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("proxy-connection", "keep-alive"),
            ("accept", "*/*"),
            ("cookie", "a=b"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_hop_headers(&mut headers);
        let kept: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(kept, ["accept", "cookie"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_busy_until_it_was_quiet_for_a_while() {
        let (busy, busy_until) = watch::channel(Instant::now());
        let guard = Arc::new(());
        let counted = guard.clone();
        let task = tokio::spawn(hold_while_busy(busy_until, move || counted.clone()));
        let is_guarded = |guard: &Arc<()>| Arc::strong_count(guard) > 2;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!is_guarded(&guard));
        busy.send_replace(Instant::now() + RESPONSE_BUSY_TIME);
        tokio::time::sleep(RESPONSE_BUSY_TIME / 2).await;
        assert!(is_guarded(&guard));
        busy.send_replace(Instant::now() + RESPONSE_BUSY_TIME);
        tokio::time::sleep(RESPONSE_BUSY_TIME * 3 / 4).await;
        assert!(is_guarded(&guard));
        tokio::time::sleep(RESPONSE_BUSY_TIME).await;
        assert!(!is_guarded(&guard));
        busy.send_replace(Instant::now() + REQUEST_BUSY_TIME);
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(busy);
        timeout(Duration::from_secs(1), task).await.expect("it ends with the tunnel").unwrap();
    }
}
