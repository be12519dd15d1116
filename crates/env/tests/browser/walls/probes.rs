//! Connections that a process behind the walls tries, to what listens for them and to what commonly
//! listens on machines and in their networks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use furrow_env::is_root;
use furrow_rollout::WallsLevel;
use serde_json::{Value, json};

use super::listeners;

/// The probes of a child, as JSON, and the request for the filter of its namespace.
const PROBES: &str = "FURROW_TEST_PROBES";
const REQUEST: &str = "FURROW_TEST_REQUEST";
const FILTER: &str = "FURROW_TEST_FILTER";

/// Precedes the result in the output.
const RESULT: &str = "result of the probes: ";

/// Time for an answer from this machine or its network.
const DEADLINE: Duration = Duration::from_millis(800);

/// Ports of loopback on which services of a machine or a farm often listen.
const PORTS: [u16; 11] = [22, 53, 80, 443, 631, 2375, 5432, 6379, 7370, 8080, 9222];

/// Metadata services of clouds, and neighbours that many networks have.
const NEIGHBOURS: [&str; 10] = [
    "169.254.169.254:80",
    "169.254.170.2:80",
    "169.254.1.1:80",
    "100.100.100.200:80",
    "[fd00:ec2::254]:80",
    "10.0.0.1:80",
    "172.17.0.1:2375",
    "192.168.0.1:80",
    "1.1.1.1:443",
    "[2606:4700:4700::1111]:443",
];

/// What listens outside of the walls, and the probes for it.
pub(super) struct Probes {
    targets: Vec<Value>,
    /// Port of the filter in the browser's own network.
    filter: Option<u16>,
    _listeners: (Vec<TcpListener>, UnixListener),
}

impl Probes {
    /// Starts to listen. `other` is a browser in another network.
    pub(super) fn new(browser: u32, other: u32) -> Self {
        let inside: Vec<u16> = listeners(browser).into_iter().map(|(port, _)| port).collect();
        // A filter inside could have the same port by chance.
        let tcp = |any: &str| {
            (0..20).find_map(|_| {
                let listener = TcpListener::bind(any).ok()?;
                (!inside.contains(&listener.local_addr().ok()?.port())).then_some(listener)
            })
        };
        let listening: Vec<TcpListener> = ["0.0.0.0:0", "[::]:0"].into_iter().filter_map(tcp).collect();
        let name = format!("furrow-test-{}", std::process::id());
        let unix = UnixListener::bind_addr(&UnixAddress::from_abstract_name(&name).unwrap()).unwrap();
        let mut targets = vec![json!(["abstract", name])];
        let own = crate::egress::own_address();
        let v4: Vec<String> =
            ["127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "0.0.0.0", "192.0.2.1"]
                .map(str::to_owned)
                .into_iter()
                .chain([own.to_string(), "[::ffff:127.0.0.1]".into(), format!("[::ffff:{own}]")])
                .collect();
        let v6 = ["[::1]", "[::]"].map(str::to_owned);
        for (listener, hosts) in listening.iter().zip([&v4[..], &v6[..]]) {
            let port = listener.local_addr().unwrap().port();
            targets.extend(hosts.iter().map(|host| json!(["tcp", format!("{host}:{port}")])));
        }
        for (any, hosts) in [("0.0.0.0:0", &v4[..]), ("[::]:0", &v6[..])] {
            let Ok(socket) = UdpSocket::bind(any) else { continue };
            let port = socket.local_addr().unwrap().port();
            targets.extend(hosts.iter().take(5).map(|host| json!(["udp", format!("{host}:{port}")])));
            std::thread::spawn(move || echo(&socket));
        }
        targets.extend(PORTS.map(|port| json!(["tcp", format!("127.0.0.1:{port}")])));
        targets.extend(NEIGHBOURS.map(|address| json!(["tcp", address])));
        targets.extend(["8.8.8.8:53", "224.0.0.251:5353"].map(|address| json!(["udp", address])));
        // At the lowest level both are in this process's network, and their own filters among them.
        let is_inside = std::fs::read_link(format!("/proc/{browser}/ns/net")).unwrap()
            != std::fs::read_link("/proc/self/ns/net").unwrap();
        if is_inside {
            let foreign =
                listeners(other).into_iter().map(|(port, _)| port).filter(|port| !inside.contains(port));
            targets.extend(foreign.map(|port| json!(["tcp", format!("127.0.0.1:{port}")])));
        }
        let filter = inside.first().copied().filter(|_| is_inside);
        Self { targets, filter, _listeners: (listening, unix) }
    }

    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }

    /// Runs all probes in a process behind this prefix: the targets that answered, and whether the
    /// filter answered the request with a page.
    pub(super) fn run(&self, argv: &[String], request: &str) -> Value {
        let program = std::env::current_exe().unwrap().display().to_string();
        let argv: Vec<String> = argv.iter().cloned().chain(["env".into(), program]).collect();
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).args([
            "walls::probes::probing",
            "--exact",
            "--include-ignored",
            "--nocapture",
        ]);
        command.env(PROBES, Value::from(self.targets.clone()).to_string()).env(REQUEST, request);
        command.env(FILTER, self.filter.map_or(String::new(), |port| port.to_string()));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let result = text.lines().find_map(|line| line.split_once(RESULT)).map(|(_, result)| result);
        let result = result.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
        serde_json::from_str(result).unwrap()
    }
}

fn echo(socket: &UdpSocket) {
    let mut bytes = [0; 64];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        socket.send_to(&bytes[..length], from).ok();
    }
}

/// The arguments before a program that start it where this browser is, as its user.
pub(super) fn inside(browser: u32, level: WallsLevel) -> Vec<String> {
    let mut argv: Vec<String> = Vec::new();
    let mut add = |more: &[&str]| argv.extend(more.iter().map(ToString::to_string));
    if level > WallsLevel::Basic {
        add(&["nsenter", &format!("--target={browser}"), "--net"]);
        if !is_root() {
            add(&["--user", "--preserve-credentials"]);
        }
        add(&["--"]);
    }
    if is_root() {
        add(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--"]);
    }
    argv
}

/// Tries every probe at once and prints which were answered.
#[test]
#[ignore = "runs only as a child of the other tests"]
fn probing() {
    let Ok(targets) = std::env::var(PROBES) else { return };
    let targets: Vec<(String, String)> = serde_json::from_str(&targets).unwrap();
    let tried = targets.into_iter().map(|(kind, address)| {
        std::thread::spawn(move || is_answered(&kind, &address).then(|| format!("{kind} {address}")))
    });
    let tried: Vec<_> = tried.collect();
    let answered: Vec<String> = tried.into_iter().filter_map(|probe| probe.join().unwrap()).collect();
    let filter = std::env::var(FILTER).ok().and_then(|port| port.parse().ok()).is_some_and(is_filter);
    println!("\n{RESULT}{}", json!({"answered": answered, "filter": filter}));
}

fn is_answered(kind: &str, address: &str) -> bool {
    match kind {
        "tcp" => TcpStream::connect_timeout(&address.parse().unwrap(), DEADLINE).is_ok(),
        "udp" => {
            let address: SocketAddr = address.parse().unwrap();
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let Ok(socket) = UdpSocket::bind(any) else { return false };
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket.send_to(b"x", address).is_ok() && socket.recv_from(&mut [0; 64]).is_ok()
        }
        "abstract" => {
            let address = UnixAddress::from_abstract_name(address).unwrap();
            UnixStream::connect_addr(&address).is_ok()
        }
        _ => panic!("no such probe: {kind}"),
    }
}

/// Whether the filter on this port answers with the page that the task allows.
fn is_filter(port: u16) -> bool {
    let request = std::env::var(REQUEST).unwrap();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
        .write_all(format!("{request}\r\nHost: page.test\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
        && answer.contains("<title>test")
}
