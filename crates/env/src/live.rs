//! The way from an egress filter to hosts elsewhere: a name is looked up here, its addresses are looked at, and one of those very addresses is
//! connected to.
//!
//! A browser behind a proxy resolves nothing, and here every connection resolves anew, so a name that changes its address between a look and a
//! connection (rebinding) gains nothing. One private address among a name's makes the name unreachable. What must be reached inside the own
//! network (a staging site, a self-hosted suite) is *pinned* by the job, host by host, to an address that nobody resolves.

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

use crate::hosts::{HostName, OffLimits, Place, is_private};

/// Hosts elsewhere are spoken to where the web is.
const PORTS: [u16; 2] = [80, 443];

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// A name with more addresses than this is looked at no further: none of the rest is connected to.
const LOOKED_AT_MAX: usize = 256;

/// A tunnel that carried nothing for so long is closed; browsers keep idle connections for five minutes, and open new ones without a word.
const IDLE: Duration = Duration::from_secs(120);

/// Bytes that came from a host: the page is being loaded, and goes on being so for this long.
const COMING: Duration = Duration::from_millis(150);

/// Bytes that went to a host: its answer is waited for this long.
const ASKED: Duration = Duration::from_millis(1500);

/// Read at once from either side of a tunnel.
const BUFFER_BYTES: usize = 32 << 10;

/// Pins of one job.
const PINS_MAX: usize = 1000;

/// Domains that name nobody on the internet (RFC 2606, RFC 7686): the farm's own sites, or a mistake.
const NOWHERE: [&str; 4] = [".test", ".invalid", ".example", ".onion"];

/// What belongs to one connection and not to a message (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("proxy-connection"),
];

/// Whoever turns names into addresses.
#[async_trait]
pub(crate) trait Resolve: fmt::Debug + Send + Sync {
    /// All addresses of a name.
    async fn resolve(&self, host: &HostName, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system's resolver.
#[derive(Debug)]
pub(crate) struct System;

#[async_trait]
impl Resolve for System {
    async fn resolve(&self, host: &HostName, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host.as_str(), port)).await?.take(LOOKED_AT_MAX + 1).collect())
    }
}

/// Hosts whose address the job itself gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins(HashMap<HostName, Pin>);

/// Where a pinned host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pin {
    address: IpAddr,
    /// `None`: the port that is asked for.
    port: Option<u16>,
}

impl Pins {
    /// The door for pins: each `host=address` or `host=address:port`, brackets around an IPv6 address with a port.
    ///
    /// # Errors
    /// A sentence for each that is wrong.
    pub fn new(pins: &[String]) -> Result<Self, Vec<String>> {
        if pins.len() > PINS_MAX {
            return Err(vec![format!("{} entries; use at most {PINS_MAX}", pins.len())]);
        }
        let (mut read, mut wrong) = (HashMap::new(), Vec::new());
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

    fn read(text: &str) -> Option<(HostName, Pin)> {
        let (host, address) = text.split_once('=')?;
        Some((HostName::parse(host).ok()?, Pin::parse(address)?))
    }
}

impl Pin {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self { address, port: None });
        }
        let both: SocketAddr = text.parse().ok()?;
        Some(Self { address: both.ip(), port: Some(both.port()) })
    }
}

/// Why a host elsewhere does not answer.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// It may not be reached.
    Refused(OffLimits),
    /// It may, and could not be.
    Failed(String),
}

/// How hosts elsewhere are reached.
#[derive(Debug, Clone)]
pub(crate) struct Outside {
    pub resolver: Arc<dyn Resolve>,
    pub pins: Arc<Pins>,
    /// A name is resolved, and an address connected to, within this time each.
    pub deadline: Duration,
}

impl Outside {
    /// Whether a host could be elsewhere at all, before anybody is asked.
    pub fn could_be(&self, place: &Place) -> Result<(), OffLimits> {
        if self.pins.0.contains_key(&place.host) {
            return Ok(());
        }
        let name = place.host.as_str();
        let name = name.strip_suffix('.').unwrap_or(name);
        // A name without a dot is completed by the resolver's search domains: it would name a machine of the own network.
        if !name.contains('.') || NOWHERE.iter().any(|domain| name.ends_with(domain)) {
            return Err(OffLimits::new(BlockReason::Unresolved, name));
        }
        if PORTS.contains(&place.port) { Ok(()) } else { Err(OffLimits::new(BlockReason::Port, name)) }
    }

    /// Connects to a host.
    pub async fn connect(&self, place: &Place) -> Result<TcpStream, Unreached> {
        let addresses = self.addresses(place).await?;
        let mut last = String::new();
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            match timeout(self.deadline, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Small messages wait for nothing: pages are made of them.
                    stream.set_nodelay(true).ok();
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = format!("it did not answer within {} ms", self.deadline.as_millis()),
            }
        }
        Err(Unreached::Failed(format!("{} cannot be reached: {last}", place.host)))
    }

    /// The addresses that a connection may be made to.
    async fn addresses(&self, place: &Place) -> Result<Vec<SocketAddr>, Unreached> {
        if let Some(pin) = self.pins.0.get(&place.host) {
            return Ok(vec![SocketAddr::new(pin.address, pin.port.unwrap_or(place.port))]);
        }
        let refused = |reason| Unreached::Refused(OffLimits::new(reason, place.host.as_str()));
        let resolved = timeout(self.deadline, self.resolver.resolve(&place.host, place.port)).await;
        let addresses = match resolved {
            Err(_) => {
                return Err(Unreached::Failed(format!("the name {} was not resolved in time", place.host)));
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, host = place.host.as_str(), "a name does not resolve");
                return Err(refused(BlockReason::Unresolved));
            }
            Ok(Ok(addresses)) => addresses,
        };
        // All of them: a name that is public by half is a trap.
        if addresses.len() > LOOKED_AT_MAX || addresses.iter().any(|address| is_private(address.ip())) {
            return Err(refused(BlockReason::PrivateAddress));
        }
        if addresses.is_empty() { Err(refused(BlockReason::Unresolved)) } else { Ok(addresses) }
    }
}

/// A connection that speaks HTTP/1.1 to a host, and the work of carrying it, which its owner must see to.
pub(crate) async fn handshake(
    stream: TcpStream,
) -> hyper::Result<(SendRequest<Incoming>, impl Future<Output = hyper::Result<()>> + Send)> {
    http1::handshake(TokioIo::new(stream)).await
}

/// A request as a proxy passes it on: its address without the host, its headers without what belongs to the connection.
pub(crate) fn passed_on(mut request: Request<Incoming>) -> Request<Incoming> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let path = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *request.uri_mut() = path;
    without_hops(request.headers_mut());
    // What the list was asked about is what the host is told.
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(header::HOST, host);
    }
    request
}

/// Takes out what belongs to one connection.
pub(crate) fn without_hops(headers: &mut HeaderMap) {
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

/// Carries bytes both ways until both sides have ended, one fails, or nothing was said for two minutes. `take` is asked before bytes from
/// the host are passed on; `busy` is told until when the page is taken to be loading.
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
        note(ASKED);
        Ok(())
    });
    let down = pump(&mut from_host, &mut to_page, |bytes| {
        note(COMING);
        take(bytes)
    });
    let mut said = busy.subscribe();
    let idle = async { while timeout(IDLE, said.changed()).await.is_ok_and(|said| said.is_ok()) {} };
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

/// Holds what `ask` makes while a tunnel is busy, until the tunnel is gone.
pub(crate) async fn while_busy<T>(mut busy: watch::Receiver<Instant>, ask: impl Fn() -> T) {
    while busy.changed().await.is_ok() {
        let _asked = ask();
        loop {
            let until = *busy.borrow_and_update();
            if until <= Instant::now() {
                break;
            }
            // Sooner where the tunnel ends meanwhile; later where more was said.
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
        let pins = |text: &str| Pins::new(&[text.to_owned()]);
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
            Pins::new(&vec!["a.b=::1".to_owned(); PINS_MAX + 1]).unwrap_err(),
            ["1001 entries; use at most 1000"]
        );
    }

    #[derive(Debug)]
    struct Says(Vec<&'static str>);

    #[async_trait]
    impl Resolve for Says {
        async fn resolve(&self, _: &HostName, port: u16) -> io::Result<Vec<SocketAddr>> {
            if self.0 == ["error"] {
                return Err(io::Error::other("no such host"));
            }
            Ok(self.0.iter().map(|address| SocketAddr::new(address.parse().unwrap(), port)).collect())
        }
    }

    fn outside(says: &[&'static str]) -> Outside {
        let pins =
            Arc::new(Pins::new(&["pinned.test=10.0.0.5".into(), "moved.test=127.0.0.1:81".into()]).unwrap());
        Outside { resolver: Arc::new(Says(says.to_vec())), pins, deadline: Duration::from_secs(1) }
    }

    #[tokio::test]
    async fn one_private_address_makes_a_name_private() {
        let many = vec!["93.184.216.34"; LOOKED_AT_MAX + 1];
        for (says, want) in [
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
            let place = Place::of_url("http://shop.org/").unwrap();
            let got = match outside(says).addresses(&place).await {
                Ok(addresses) => Ok(addresses.len()),
                Err(Unreached::Refused(off)) => Err(off.reason),
                Err(Unreached::Failed(why)) => panic!("{why}"),
            };
            assert_eq!(got, want, "{says:?}");
        }
    }

    #[tokio::test]
    async fn pinned_hosts_are_not_looked_up() {
        for (url, want) in [
            ("http://pinned.test/", "10.0.0.5:80"),
            ("https://pinned.test/", "10.0.0.5:443"),
            ("https://moved.test/", "127.0.0.1:81"),
        ] {
            let place = Place::of_url(url).unwrap();
            assert_eq!(
                outside(&["error"]).addresses(&place).await.unwrap(),
                [want.parse().unwrap()],
                "{url}"
            );
        }
    }

    #[test]
    fn what_cannot_be_elsewhere_is_not_asked_for() {
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
            let place = Place::of_url(url).unwrap();
            assert_eq!(outside(&[]).could_be(&place).err().map(|off| off.reason), want, "{url}");
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
        without_hops(&mut headers);
        let kept: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(kept, ["accept", "cookie"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_busy_until_it_was_quiet_for_a_while() {
        let (busy, seen) = watch::channel(Instant::now());
        let asked = Arc::new(());
        let counted = asked.clone();
        let task = tokio::spawn(while_busy(seen, move || counted.clone()));
        let held = |asked: &Arc<()>| Arc::strong_count(asked) > 2;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!held(&asked));
        busy.send_replace(Instant::now() + COMING);
        tokio::time::sleep(COMING / 2).await;
        assert!(held(&asked));
        busy.send_replace(Instant::now() + COMING);
        tokio::time::sleep(COMING * 3 / 4).await;
        assert!(held(&asked));
        tokio::time::sleep(COMING).await;
        assert!(!held(&asked));
        busy.send_replace(Instant::now() + ASKED);
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(busy);
        timeout(Duration::from_secs(1), task).await.expect("it ends with the tunnel").unwrap();
    }
}
