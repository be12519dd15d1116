//! A page that tries every way out it knows. Each must end in the filter, and none in a canary on loopback.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use furrow_env::Stage;
use furrow_rollout::*;
use furrow_telemetry::{BlockReason, figures};
use tokio::time::{Instant, sleep};

use crate::ground::*;

/// Listens where nothing may arrive.
struct Canary {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Canary {
    fn new() -> Self {
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
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

/// The ways out. `there` is an address of the canary, `there_ws` the same for a WebSocket; a way that a browser does not know is passed over.
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

fn page(canary: &Canary) -> String {
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

/// Requests refused by any filter of this process, for this reason.
fn refused() -> u64 {
    figures().requests_blocked.at(BlockReason::PrivateAddress).get()
}

async fn until_refused(count: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while refused() < count {
        assert!(Instant::now() < deadline, "{} of {count} requests were refused", refused());
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_out_ends_in_the_filter() {
    let (canary, ground, before) = (Canary::new(), ground().await, refused());
    let mut stage: Box<dyn Stage> = ground.page(&page(&canary)).await;
    let told = state(&mut stage).await;
    assert_eq!(told["unknown"], serde_json::json!([]), "the page could not even try");
    assert_eq!(told["tried"], 7 * WAYS.len());
    // Of 24 ways, 20 ask over TCP in any case; a cap on tabs and the browser's own limits may take some of the seven rounds.
    until_refused(before + 7 * 15).await;
    canary.heard_nothing();

    // The page itself goes there: the policy sees the refusal and can go on.
    let here = refused();
    let outcome = stage.act(&click(50.0, 50.0)).await.unwrap();
    stage.settle(outcome).await.unwrap();
    until_refused(here + 1).await;
    canary.heard_nothing();
    stage.close().await;
    ground.close().await;
    // The canary does sing.
    drop(std::net::TcpStream::connect(canary.tcp.local_addr().unwrap()).unwrap());
    assert!(canary.tcp.accept().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_page_says_so_in_words() {
    let ground = ground().await;
    let leave =
        "<a href='http://other.test/' style='position:absolute;left:0;top:0;width:99px;height:99px'>x</a>";
    let mut stage = ground.page(leave).await;
    act(&mut stage, click(50.0, 50.0)).await;
    let seen = stage.observe().await.unwrap();
    assert_eq!((seen.url.as_str(), seen.title.as_str()), ("http://other.test/", "403 Forbidden"));
    let outcome = act(&mut stage, Action::Goto { url: "http://page.test/none".into() }).await;
    let seen = stage.observe().await.unwrap();
    assert_eq!((outcome.name, seen.title.as_str()), (OutcomeName::Ok, "404 Not Found"));
    stage.close().await;
    ground.close().await;
}
