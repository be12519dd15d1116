//! A page that tries every known way out. Each attempt must end in the filter, and none may reach a
//! canary on loopback.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::time::Duration;

use furrow_env::Environment;
use furrow_rollout::*;
use furrow_telemetry::{BlockReason, process_metrics};
use tokio::time::{Instant, sleep};

use crate::fixture::*;

/// Listens where no connection may arrive.
struct LoopbackCanary {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl LoopbackCanary {
    fn new() -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        Self { tcp, udp }
    }

    /// Listens on every address of this machine, IPv4 and IPv6.
    fn everywhere() -> Self {
        let any = ["[::]:0", "0.0.0.0:0"];
        let tcp = any.iter().find_map(|address| TcpListener::bind(address).ok()).unwrap();
        let udp = any.iter().find_map(|address| UdpSocket::bind(address).ok()).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        Self { tcp, udp }
    }

    fn ports(&self) -> (u16, u16) {
        (self.tcp.local_addr().unwrap().port(), self.udp.local_addr().unwrap().port())
    }

    #[track_caller]
    fn heard_nothing(&self) {
        let silent = |kind: ErrorKind| assert_eq!(kind, ErrorKind::WouldBlock, "the canary was reached");
        silent(self.tcp.accept().map_or_else(|error| error.kind(), |_| ErrorKind::Other));
        silent(self.udp.recv_from(&mut [0; 64]).map_or_else(|error| error.kind(), |_| ErrorKind::Other));
    }
}

/// Spellings of this machine, its network and its cloud services; a page tries each and a policy
/// requests each. `{own}` is an address of this machine that is not loopback.
const SPELLINGS: [&str; 62] = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.0.0.1.",
    "127.255.255.254",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0177.0.0.01",
    "0x7f000001",
    "0x7f.0.0.1",
    "0X7F.1",
    "127.0.0.0x1",
    "0",
    "0.0.0.0",
    "0x0",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000::0001]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2001:0:7f00:1::]",
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[fec0::1]",
    "[fd00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "{own}",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "2852039166",
    "0xA9FEA9FE",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "localhost",
    "LocalHost",
    "localhost.",
    "a.localhost",
    "a.b.localhost",
    "localhost.localdomain",
    "ip6-localhost",
    "metadata.google.internal",
    "metadata",
    "127.0.0.1.nip.io",
    "localtest.me",
    "１２７.０.０.１",
    "127。0。0。1",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "page.test@127.0.0.1",
    "page.test:80@localhost",
];

/// The ways out. `there` is an address of the canary, `there_ws` the same for a WebSocket; a way
/// that a browser does not support is skipped.
const WAYS: [&str; 24] = [
    "fetch(there, {mode: 'no-cors'}).catch(() => 0)",
    "fetch(there, {method: 'POST', body: 'x', mode: 'no-cors'}).catch(() => 0)",
    "const x = new XMLHttpRequest(); x.open('GET', there); x.send()",
    "new Image().src = there",
    "navigator.sendBeacon(there, 'x')",
    "new WebSocket(there_ws)",
    "new EventSource(there)",
    "add('iframe', {src: there})",
    "add('iframe', {srcdoc: `<meta http-equiv=refresh content='0;url=${there}'>`})",
    "add('iframe', {srcdoc: `<script>location = '${there}'</` + 'script>'})",
    "add('object', {data: there})",
    "add('embed', {src: there})",
    "add('video', {src: there, preload: 'auto'}).load()",
    "add('script', {src: there})",
    "add('link', {rel: 'stylesheet', href: there})",
    "add('link', {rel: 'preconnect', href: there})",
    "add('link', {rel: 'prefetch', href: there})",
    "add('style', {textContent: `@font-face { font-family: f; src: url(${there}) } body { font-family: f } @import url(${there});`})",
    "import(there).catch(() => 0)",
    "new Worker(blob(`fetch('${there}', {mode: 'no-cors'}); new WebSocket('${there_ws}')`))",
    "new SharedWorker(blob(`fetch('${there}', {mode: 'no-cors'})`))",
    "open(there)",
    "const f = add('form', {action: there, method: 'post', target: '_blank'}); f.submit()",
    "const p = new RTCPeerConnection({iceServers: [{urls: stun}]}); p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o))",
];

/// What a page can do with an address. A way that the browser itself refuses is skipped.
const TRIES: [&str; 7] = [
    "fetch(`http://${host}:${port}/`, {mode: 'no-cors'}).catch(() => 0)",
    "new Image().src = `http://${host}:${port}/i`",
    "new WebSocket(`ws://${host}:${port}/w`)",
    "new Worker(blob(`fetch('http://${host}:${port}/k', {mode: 'no-cors'}).catch(() => 0)`))",
    "add('link', {rel: 'preconnect', href: `http://${host}:${port}/`})",
    "fetch(`https://${host}:${port}/`, {mode: 'no-cors'}).catch(() => 0)",
    "if (n % 8 == 0) { const p = new RTCPeerConnection({iceServers: [{urls: [`stun:${host}:${udp}`]}, {urls: [`turn:${host}:${port}?transport=tcp`], username: 'u', credential: 'c'}]}); p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o)) }",
];

fn all_spellings(canary: &LoopbackCanary, own: IpAddr) -> (Vec<String>, String) {
    let (port, udp) = canary.ports();
    let hosts: Vec<String> = SPELLINGS.iter().map(|host| host.replace("{own}", &own.to_string())).collect();
    let tries: String = TRIES.iter().map(|way| format!("() => {{ {way} }},\n")).collect();
    let script = format!(
        "<script>
        state = {{tried: 0}};
        const port = {port}, udp = {udp};
        const blob = code => URL.createObjectURL(new Blob([code], {{type: 'text/javascript'}}));
        const add = (name, fields) => document.body.appendChild(Object.assign(document.createElement(name), fields));
        {hosts:?}.forEach((host, n) => {{
          for (const way of [{tries}]) {{ try {{ way(); state.tried++ }} catch {{}} }}
        }});
        </script>"
    );
    (hosts, script)
}

/// An address at which other machines reach this one; no packet is sent to find it.
pub(crate) fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    match socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()) {
        Ok(address) => address.ip(),
        // A machine without a network has loopback only.
        Err(_) => IpAddr::from([127, 0, 0, 1]),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_an_address_reaches_a_canary() {
    let canary = LoopbackCanary::everywhere();
    let fixture = fixture().await;
    let before = refused();
    let own = own_address();
    let (hosts, script) = all_spellings(&canary, own);
    let mut environment = fixture.page(&script).await;
    let tried = state(&mut environment).await["tried"].as_u64().unwrap();
    assert!(tried > 5 * SPELLINGS.len() as u64, "the page could try only {tried} times");
    // The spellings that the browser accepts as addresses, by at least three ways each.
    until_refused(before + 3 * 40).await;
    canary.heard_nothing();
    // A policy that requests the addresses.
    let (port, _) = canary.ports();
    for host in &hosts {
        for url in [format!("http://{host}:{port}/"), format!("https://{host}:{port}/")] {
            let outcome = environment.act(&Action::Goto { url: url.clone() }).await.unwrap();
            assert_eq!(outcome.name, OutcomeName::OffList, "{url}: {outcome:?}");
        }
    }
    let observation = environment.observe().await.unwrap();
    assert!(observation.url.starts_with("http://page.test/"), "{}", observation.url);
    canary.heard_nothing();
    environment.close().await;
    fixture.close().await;
    drop(std::net::TcpStream::connect((own, port)).unwrap());
    assert!(canary.tcp.accept().is_ok(), "the canary is reachable at {own}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_farms_own_ports_are_out_of_reach() {
    let fixture = fixture().await;
    let first = fixture.page("<p>x").await;
    // As the worker's own ports are, and a browser's DevTools would be.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Clients other than pages reach it.
    drop(std::net::TcpStream::connect(("127.0.0.1", port)).unwrap());
    let body = format!(
        "<button onclick=\"location = 'http://127.0.0.1:{port}/json/list'\" style='position:absolute;left:0;top:0;width:100px;height:100px'>go</button>
        <script>
        state = {{}};
        const there = '127.0.0.1:{port}';
        const socket = new WebSocket(`ws://${{there}}/devtools/browser`);
        socket.onopen = () => {{ state.socket = 'open' }}; socket.onerror = () => {{ state.socket = 'refused' }};
        fetch(`http://${{there}}/json/version`).then(r => r.text()).then(text => {{ state.fetch = text }}, () => {{ state.fetch = 'refused' }});
        fetch(`http://${{there}}/json/new?file:///etc/passwd`, {{method: 'PUT'}}).catch(() => 0);
        const script = document.createElement('script'); script.src = `http://${{there}}/json/list`;
        script.onload = () => {{ state.script = 'loaded' }}; script.onerror = () => {{ state.script = 'refused' }}; document.body.append(script);
        </script>"
    );
    let before = refused();
    let mut environment = fixture.page(&body).await;
    assert_eq!(environment.browser(), first.browser());
    // At least three: whether preflight requests are sent depends on the browser.
    until_refused(before + 3).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(&mut environment).await.as_object().unwrap().len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", state(&mut environment).await);
        sleep(Duration::from_millis(20)).await;
    }
    let refusals = serde_json::json!({"socket": "refused", "fetch": "refused", "script": "refused"});
    assert_eq!(state(&mut environment).await, refusals);
    act(&mut environment, click(50.0, 50.0)).await;
    let observation = environment.observe().await.unwrap();
    assert_eq!((observation.title.as_str(), observation.tabs.len()), ("403 Forbidden", 1));
    let outcome =
        environment.act(&Action::Goto { url: format!("http://127.0.0.1:{port}/json/list") }).await.unwrap();
    assert_eq!(outcome.name, OutcomeName::OffList);
    environment.close().await;
    first.close().await;
    fixture.close().await;
}

fn page(canary: &LoopbackCanary) -> String {
    let (tcp, udp) = canary.ports();
    let ways: String = WAYS.iter().map(|way| format!("() => {{ {way} }},\n")).collect();
    format!(
        "<button onclick=\"location = 'http://127.0.0.1:{tcp}/'\" style='position:absolute;left:0;top:0;width:100px;height:100px'>leave</button>
        <script>
        state = {{tried: 0, unknown: []}};
        const stun = 'stun:127.0.0.1:{udp}';
        const blob = code => URL.createObjectURL(new Blob([code], {{type: 'text/javascript'}}));
        const add = (name, fields) => document.body.appendChild(Object.assign(document.createElement(name), fields));
        for (const host of ['127.0.0.1', 'localhost', '[::1]', '2130706433', '0x7f.1', '127.0.0.1.', '[::ffff:127.0.0.1]']) {{
          const there = `http://${{host}}:{tcp}/`, there_ws = `ws://${{host}}:{tcp}/`;
          for (const way of [{ways}]) {{
            try {{ way(); state.tried++ }} catch (error) {{ state.unknown.push(way + ': ' + error) }}
          }}
        }}
        </script>"
    )
}

/// Number of requests that all filters of this process refused for this reason.
fn refused() -> u64 {
    process_metrics().requests_blocked.at(BlockReason::PrivateAddress).get()
}

async fn until_refused(count: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while refused() < count {
        assert!(Instant::now() < deadline, "{} of {count} requests were refused", refused());
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_out_ends_in_the_filter() {
    let canary = LoopbackCanary::new();
    let fixture = fixture().await;
    let before = refused();
    let mut environment: Box<dyn Environment> = fixture.page(&page(&canary)).await;
    let results = state(&mut environment).await;
    assert_eq!(results["unknown"], serde_json::json!([]), "the page could not even try");
    assert_eq!(results["tried"], 7 * WAYS.len());
    // Of 24 ways, 20 always send a TCP request; the tab limit and the browser's own limits may
    // prevent some of the seven rounds.
    until_refused(before + 7 * 15).await;
    canary.heard_nothing();

    // The page itself navigates there: the policy sees the refusal and can continue.
    let here = refused();
    let outcome = environment.act(&click(50.0, 50.0)).await.unwrap();
    environment.settle(outcome).await.unwrap();
    until_refused(here + 1).await;
    canary.heard_nothing();
    environment.close().await;
    fixture.close().await;
    // The canary is reachable.
    drop(std::net::TcpStream::connect(canary.tcp.local_addr().unwrap()).unwrap());
    assert!(canary.tcp.accept().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_page_names_the_refusal() {
    let fixture = fixture().await;
    let leave =
        "<a href='http://other.test/' style='position:absolute;left:0;top:0;width:99px;height:99px'>x</a>";
    let mut environment = fixture.page(leave).await;
    act(&mut environment, click(50.0, 50.0)).await;
    let observation = environment.observe().await.unwrap();
    assert_eq!(
        (observation.url.as_str(), observation.title.as_str()),
        ("http://other.test/", "403 Forbidden")
    );
    let outcome = act(&mut environment, Action::Goto { url: "http://page.test/none".into() }).await;
    let observation = environment.observe().await.unwrap();
    assert_eq!((outcome.name, observation.title.as_str()), (OutcomeName::Ok, "404 Not Found"));
    environment.close().await;
    fixture.close().await;
}
