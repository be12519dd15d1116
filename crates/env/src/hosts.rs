//! The hosts that a page may reach: host names, a task's list of them, and the many spellings of an
//! address, which are not names.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use furrow_telemetry::BlockReason;

/// A host's name in lower case, never an address in any spelling and never this machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostName(Box<str>);

/// The hosts of one task. The task's pages can reach no other host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowList {
    exact: HashSet<HostName>,
    /// `.host` for an entry `*.host`: names below it, not the host itself.
    below: Vec<Box<str>>,
    /// The entry `*`: every host.
    all: bool,
}

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    pub host: HostName,
    /// The port; the scheme's default if none was written.
    pub port: u16,
}

/// Why a target is out of reach, as a label of metrics, and the host as far as it could be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedHost {
    pub reason: BlockReason,
    /// The host as it was written, at most 253 characters.
    pub host: String,
}

/// An entry of a task's list that does not name a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{entry:?} does not name a host that a task may allow: use host.example, *.host.example or * for all, not an address or localhost"
)]
pub struct BadEntry {
    /// The entry, cut to 253 characters.
    pub entry: String,
}

impl HostName {
    /// Validates a host name. A dot at the end is part of the name here, so `site.test.` is not
    /// `site.test`.
    pub fn parse(text: &str) -> Result<Self, BlockReason> {
        let name = text.to_ascii_lowercase();
        if let Some(address) = address_in(&name)? {
            return Err(if is_private(address) { BlockReason::PrivateAddress } else { BlockReason::OffList });
        }
        let labels = name.strip_suffix('.').unwrap_or(&name);
        if labels.len() > 253 || !labels.split('.').all(is_label) {
            return Err(BlockReason::Malformed);
        }
        if LOCAL_NAMES.iter().any(|local| is_or_is_below(labels, local)) {
            return Err(BlockReason::PrivateAddress);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AllowList {
    /// The hosts of a task: its entries and always the host of its start page.
    pub fn new(start_url: &str, entries: &[String]) -> Result<Self, BadEntry> {
        let bad = |entry: &str| BadEntry { entry: cut(entry) };
        let start = HostPort::parse_url(start_url).map_err(|_| bad(start_url))?;
        let mut list = Self::of_hosts(entries)?;
        list.exact.insert(start.host);
        Ok(list)
    }

    /// The hosts of these entries alone.
    pub(crate) fn of_hosts(entries: &[String]) -> Result<Self, BadEntry> {
        let bad = |entry: &str| BadEntry { entry: cut(entry) };
        let mut list = Self { exact: HashSet::new(), below: Vec::new(), all: false };
        for entry in entries {
            match entry.strip_prefix("*.") {
                None if entry == "*" => list.all = true,
                Some(parent) => {
                    let parent = HostName::parse(parent).map_err(|_| bad(entry))?;
                    list.below.push(format!(".{parent}").into());
                }
                None => {
                    list.exact.insert(HostName::parse(entry).map_err(|_| bad(entry))?);
                }
            }
        }
        Ok(list)
    }

    /// Whether the host is on the list.
    pub fn allows(&self, host: &HostName) -> bool {
        self.all || self.exact.contains(host) || self.below.iter().any(|parent| host.0.ends_with(&**parent))
    }

    /// Parses an address and decides whether a page of this task may load it.
    pub(crate) fn check_url(&self, url: &str) -> Result<HostPort, BlockedHost> {
        let target = HostPort::parse_url(url)?;
        match self.allows(&target.host) {
            true => Ok(target),
            false => Err(BlockedHost::new(BlockReason::OffList, target.host.as_str())),
        }
    }
}

impl HostPort {
    /// Parses an absolute http(s) URL up to its port. Stricter than a browser: what a browser would
    /// have to repair is malformed.
    pub fn parse_url(url: &str) -> Result<Self, BlockedHost> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| BlockedHost::new(BlockReason::Scheme, ""))?;
        let port = match scheme.to_ascii_lowercase().as_str() {
            "http" => 80,
            "https" => 443,
            _ => return Err(BlockedHost::new(BlockReason::Scheme, "")),
        };
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        Self::parse_authority(&rest[..end], port)
    }

    /// Parses `host` or `host:port`, as in a URL or a CONNECT request. User names before the host
    /// are refused: they only serve to disguise it.
    pub(crate) fn parse_authority(authority: &str, default_port: u16) -> Result<Self, BlockedHost> {
        let (host, port) = split_port(authority);
        let port = match port {
            None | Some("") => Some(default_port),
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse().ok(),
            Some(_) => None,
        };
        let host_name = HostName::parse(host).map_err(|reason| BlockedHost::new(reason, host))?;
        let port = port.ok_or_else(|| BlockedHost::new(BlockReason::Malformed, host))?;
        Ok(Self { host: host_name, port })
    }
}

impl BlockedHost {
    pub(crate) fn new(reason: BlockReason, host: &str) -> Self {
        Self { reason, host: cut(host) }
    }
}

/// Names that mean this machine, its network or its cloud's metadata service, with everything below
/// them.
const LOCAL_NAMES: [&str; 20] = [
    "localhost",
    "localhost6",
    "localdomain",
    "localdomain6",
    "ip6-localhost",
    "ip6-loopback",
    "broadcasthost",
    "local",
    "internal",
    "intranet",
    "private",
    "lan",
    "home",
    "corp",
    "home.arpa",
    "in-addr.arpa",
    "ip6.arpa",
    // Names that clouds give their metadata services where a search domain completes the name.
    "metadata",
    "instance-data",
    "wpad",
];

fn is_or_is_below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_label(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !label.is_empty() && label.len() <= 63 && label.bytes().all(plain)
}

/// The address that a browser would parse from a host, if any: brackets contain IPv6, and a number
/// at the end makes all of it IPv4.
fn address_in(host: &str) -> Result<Option<IpAddr>, BlockReason> {
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or(BlockReason::Malformed)?;
        return inner.parse().map(|address| Some(IpAddr::V6(address))).map_err(|_| BlockReason::Malformed);
    }
    let parts: Vec<_> = host.strip_suffix('.').unwrap_or(host).split('.').collect();
    let ends_in_number =
        parts.last().is_some_and(|last| number(last).is_some() || last.bytes().all(|b| b.is_ascii_digit()));
    match ends_in_number && !host.is_empty() {
        true => ipv4(&parts).map(|address| Some(IpAddr::V4(address))).ok_or(BlockReason::Malformed),
        false => Ok(None),
    }
}

/// One to four numbers, the last of which fills the remaining bytes: `127.1` is 127.0.0.1.
fn ipv4(parts: &[&str]) -> Option<Ipv4Addr> {
    let (last, leading) = parts.split_last().filter(|(_, leading)| leading.len() < 4)?;
    let mut address = number(last).filter(|&value| value < 1 << (8 * (4 - leading.len())))?;
    for (index, part) in leading.iter().enumerate() {
        address |= number(part).filter(|&value| value < 256)? << (8 * (3 - index));
    }
    Some(Ipv4Addr::from_bits(address as u32))
}

/// A number as browsers read it in a host: `0x` is hexadecimal, a leading 0 octal.
fn number(part: &str) -> Option<u64> {
    let (digits, radix) = match part.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if part.len() > 1 && part.starts_with('0') => (&part[1..], 8),
        None => (part, 10),
    };
    if digits.is_empty() {
        return (radix == 16).then_some(0);
    }
    let plain = digits.bytes().all(|digit| char::from(digit).is_digit(radix));
    plain.then(|| u64::from_str_radix(digits, radix).unwrap_or(u64::MAX))
}

/// Whether an address belongs to this machine, its network or a metadata service (169.254.169.254
/// is link-local).
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_private_v4(v4),
        IpAddr::V6(v6) => embedded_v4(v6).map_or_else(|| is_private_v6(v6), is_private_v4),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b)) // carrier-grade NAT
        || (a == 198 && (b == 18 || b == 19)) // benchmarking
        || (a == 192 && b == 0) // protocol assignments and documentation
        || address.is_documentation()
        || (a == 192 && b == 88 && c == 99) // relays to 6to4, deprecated
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_unique_local()
        || address.is_unicast_link_local()
        // Site-local, deprecated; discarded; local translation (RFC 8215); Teredo, which hides
        // another address; documentation; segments.
        || matches!(address.segments(), [0xfec0..=0xfeff, ..] | [0x100, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..])
        || matches!(address.segments(), [0x2001, 0, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x5f00, ..])
}

/// The IPv4 address inside a mapped, compatible, translated (64:ff9b::/96, ::ffff:0:0:0/96), 6to4
/// (2002::/16) or ISATAP one.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(from(high, low))
        }
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(from(high, low)),
        [0x2002, high, low, ..] => Some(from(high, low)),
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(from(high, low)),
        _ => None,
    }
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    let after_brackets = authority.rfind(']').map_or(0, |end| end + 1);
    match authority[after_brackets..].find(':') {
        Some(colon) => {
            let colon = after_brackets + colon;
            (&authority[..colon], Some(&authority[colon + 1..]))
        }
        None => (authority, None),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(253).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use BlockReason::{Malformed, OffList, PrivateAddress, Scheme};

    /// Spellings of addresses that a page of a task with start page `http://site.test/` must not
    /// reach.
    pub(crate) const SPELLINGS: [(&str, BlockReason); 89] = [
        ("http://127.0.0.1/", PrivateAddress),
        ("http://127.0.0.1:{port}/", PrivateAddress),
        ("http://127.1/", PrivateAddress),
        ("http://127.0.1/", PrivateAddress),
        ("http://2130706433/", PrivateAddress),
        ("http://017700000001/", PrivateAddress),
        ("http://0177.0.0.1/", PrivateAddress),
        ("http://0x7f000001/", PrivateAddress),
        ("http://0x7f.0.0.1/", PrivateAddress),
        ("http://0X7F.0.0.1/", PrivateAddress),
        ("http://0x7f.1/", PrivateAddress),
        ("http://127.0.0.0x1/", PrivateAddress),
        ("http://127.0.0.1./", PrivateAddress),
        ("http://127.255.255.254/", PrivateAddress),
        ("http://0/", PrivateAddress),
        ("http://0.0.0.0/", PrivateAddress),
        ("http://0x/", PrivateAddress),
        ("http://[::1]/", PrivateAddress),
        ("http://[::1]:{port}/", PrivateAddress),
        ("http://[0:0:0:0:0:0:0:1]/", PrivateAddress),
        ("http://[::]/", PrivateAddress),
        ("http://[::ffff:127.0.0.1]/", PrivateAddress),
        ("http://[::ffff:7f00:1]/", PrivateAddress),
        ("http://[::FFFF:7F00:1]/", PrivateAddress),
        ("http://[::127.0.0.1]/", PrivateAddress),
        ("http://[64:ff9b::7f00:1]/", PrivateAddress),
        ("http://[2002:7f00:1::]/", PrivateAddress),
        ("http://[fe80::1]/", PrivateAddress),
        ("http://[fd00::1]/", PrivateAddress),
        ("http://[fd00:ec2::254]/latest/meta-data/", PrivateAddress),
        ("http://[fec0::1]/", PrivateAddress),
        ("http://[ff02::1]/", PrivateAddress),
        ("http://[100::1]/", PrivateAddress),
        ("http://[64:ff9b:1::7f00:1]/", PrivateAddress),
        ("http://[::ffff:0:7f00:1]/", PrivateAddress),
        ("http://[2001:0:7f00:1::]/", PrivateAddress),
        ("http://[2001:db8::5efe:7f00:1]/", PrivateAddress),
        ("http://[2001:db8::1]/", PrivateAddress),
        ("http://[5f00::1]/", PrivateAddress),
        ("http://[fe80::5efe:127.0.0.1]/", PrivateAddress),
        ("http://[fe80::1%lo]/", Malformed),
        ("http://[::ffff:127.0.0.1]:{port}/", PrivateAddress),
        ("http://[v1.::1]/", Malformed),
        ("http://[::1%25lo]/", Malformed),
        ("http://[::1/", Malformed),
        ("http://10.0.0.1/", PrivateAddress),
        ("http://172.16.0.1/", PrivateAddress),
        ("http://192.168.1.1/", PrivateAddress),
        ("http://100.64.0.1/", PrivateAddress),
        ("http://100.100.100.200/latest/meta-data/", PrivateAddress),
        ("http://192.0.0.192/opc/v2/", PrivateAddress),
        ("http://198.18.0.1/", PrivateAddress),
        ("http://203.0.113.1/", PrivateAddress),
        ("http://192.88.99.1/", PrivateAddress),
        ("http://224.0.0.1/", PrivateAddress),
        ("http://255.255.255.255/", PrivateAddress),
        ("http://0xa.0.0.1/", PrivateAddress),
        ("http://012.1/", PrivateAddress),
        ("http://172.31.255.255./", PrivateAddress),
        ("http://169.254.169.254/latest/meta-data/", PrivateAddress),
        ("http://2852039166/", PrivateAddress),
        ("http://0xA9FEA9FE/", PrivateAddress),
        ("http://8.8.8.8/", OffList),
        ("http://[2001:4860:4860::8888]/", OffList),
        ("http://localhost/", PrivateAddress),
        ("http://LOCALHOST:{port}/", PrivateAddress),
        ("http://localhost./", PrivateAddress),
        ("http://a.localhost/", PrivateAddress),
        ("http://metadata.google.internal/", PrivateAddress),
        ("http://printer.local/", PrivateAddress),
        ("http://metadata/", PrivateAddress),
        ("http://ip6-localhost/", PrivateAddress),
        ("http://kubernetes.default.svc.cluster.local/", PrivateAddress),
        ("http://router.lan/", PrivateAddress),
        ("http://127.0.0.1.rebind.test/", OffList),
        ("http://256.256.256.256/", Malformed),
        ("http://127.0.0.1.2/", Malformed),
        ("http://site.test.0/", Malformed),
        ("http://site.test@127.0.0.1/", Malformed),
        ("http://site.test:80@127.0.0.1:{port}/", Malformed),
        ("http://127.0.0.1%2f@site.test/", Malformed),
        ("http://127.0.0.1%00.site.test/", Malformed),
        ("http://other.test/", OffList),
        ("http://site.test.other.test/", OffList),
        ("http://othersite.test/", OffList),
        ("http://site.test./", OffList),
        ("http://xn--ste-rma.test/", OffList),
        ("ftp://site.test/", Scheme),
        ("file:///etc/passwd", Scheme),
    ];

    #[test]
    fn no_spelling_of_an_address_is_on_the_list() {
        let list = AllowList::new("http://site.test/", &["*.site.test".into()]).unwrap();
        for (url, want) in SPELLINGS {
            let url = url.replace("{port}", "9222");
            assert_eq!(list.check_url(&url).map_err(|off| off.reason), Err(want), "{url}");
        }
        for (url, want) in [
            ("", Scheme),
            ("site.test", Scheme),
            ("//site.test/", Scheme),
            ("about:blank", Scheme),
            ("javascript:alert(1)", Scheme),
            ("data:text/html,x", Scheme),
            ("view-source:http://site.test/", Scheme),
            ("chrome://settings", Scheme),
            ("http:///", Malformed),
            ("http://", Malformed),
            ("http://ſite.test/", Malformed),
            ("http://１２７.０.０.１/", Malformed),
            ("http://ⓛocalhost/", Malformed),
            ("http://127。0。0。1/", Malformed),
            ("http://si\tte.test/", Malformed),
            ("http:// site.test/", Malformed),
            ("http://site..test/", Malformed),
            ("http://site.test:http/", Malformed),
            ("http://site.test:+80/", Malformed),
            ("http://site.test:99999/", Malformed),
            ("http://127.0.0.1\\@site.test/", PrivateAddress),
            ("http://127.0.0.1#@site.test/", PrivateAddress),
            ("http://127.0.0.1?@site.test/", PrivateAddress),
            ("http://99999999999999999999/", Malformed),
        ] {
            assert_eq!(list.check_url(url).map_err(|off| off.reason), Err(want), "{url:?}");
        }
    }

    #[track_caller]
    fn admitted(entries: &[&str], url: &str, want: Option<(&str, u16)>) {
        let entries: Vec<_> = entries.iter().map(ToString::to_string).collect();
        let got = AllowList::new("http://site.test/a", &entries).unwrap().check_url(url).ok();
        assert_eq!(got.as_ref().map(|target| (target.host.as_str(), target.port)), want, "{entries:?} {url}");
    }

    #[test]
    fn the_list_holds_its_entries_and_the_start_page() {
        admitted(&[], "http://site.test/", Some(("site.test", 80)));
        admitted(&[], "HTTP://SITE.TEST", Some(("site.test", 80)));
        admitted(&[], "http://site.test:80/?q#f", Some(("site.test", 80)));
        admitted(&[], "http://site.test:/", Some(("site.test", 80)));
        admitted(&[], "http://site.test:8080/", Some(("site.test", 8080)));
        admitted(&[], "https://site.test/", Some(("site.test", 443)));
        admitted(&[], "http://site.test\\path", Some(("site.test", 80)));
        admitted(&["other.test"], "http://other.test/", Some(("other.test", 80)));
        admitted(&["Other.TEST"], "http://other.test/", Some(("other.test", 80)));
        admitted(&["other.test"], "http://a.other.test/", None);
        admitted(&["*.other.test"], "http://a.other.test/", Some(("a.other.test", 80)));
        admitted(&["*.other.test"], "http://a.b.other.test/", Some(("a.b.other.test", 80)));
        admitted(&["*.other.test"], "http://other.test/", None);
        admitted(&["*.other.test"], "http://another.test/", None);
        admitted(&["0xcafe.test"], "http://0xcafe.test/", Some(("0xcafe.test", 80)));
        admitted(&["1.test"], "http://1.test/", Some(("1.test", 80)));
        admitted(&["*"], "https://any.org/", Some(("any.org", 443)));
        admitted(&["*"], "https://10.0.0.1/", None);
    }

    #[test]
    fn an_entry_that_names_no_host_is_refused() {
        for entry in [
            "",
            "**",
            "*.",
            "127.0.0.1",
            "*.127.0.0.1",
            "localhost",
            "[::1]",
            "a b",
            "http://a.test",
            "a.test:80",
        ] {
            let error = AllowList::new("http://site.test/", &[entry.into()]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{entry:?} does not name a host")), "{error}");
        }
        for start in ["http://127.0.0.1/", "file:///x", "http://localhost:8000/"] {
            assert_eq!(AllowList::new(start, &[]).unwrap_err().entry, start);
        }
    }
}
