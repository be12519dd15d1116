//! What a page does while nobody looks, and where it reaches; what it does to its neighbours is in `attacks.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use furrow_env::Stage;
use furrow_rollout::{Action, OutcomeName};

use crate::egress::devtools_port;
use crate::ground::{act, click, ground, ground_with};

/// A button over the whole page that does something nasty.
fn trap(script: &str) -> String {
    format!(
        "<script>state = {{}}</script><button style='position:absolute;left:0;top:0;width:500px;height:500px' onclick='{script}'>trap</button>"
    )
}

/// Pages of the browser a stage lives in, as the browser itself counts them.
fn pages(stage: &dyn Stage) -> usize {
    let mut link = TcpStream::connect(("127.0.0.1", devtools_port(stage))).unwrap();
    link.write_all(b"GET /json/list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    // The browser does not always close what it was asked to: the answer says its length, and two lines of every page are enough here.
    link.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut list = Vec::new();
    link.read_to_end(&mut list).ok();
    String::from_utf8_lossy(&list).matches("\"type\": \"page\"").count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_closed_while_the_policy_thinks() {
    let ground = ground_with(|file| (file.tabs_max, file.contexts_ready) = (4, 0), vec![]).await;
    let mut stage = ground.page(&trap("setInterval(() => window.open(\"about:blank\"), 30)")).await;
    let first = pages(&*stage);
    assert!((1..=2).contains(&first), "{first} pages; the browser's own first one and ours");
    stage.act(&click(100.0, 100.0)).await.unwrap();
    // Nobody looks at it meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let open = pages(&*stage);
    // Of 66 windows three stay, and some are just being closed.
    assert!((3..=first + 12).contains(&open), "{open} pages are open");
    let outcome = stage.settle(furrow_rollout::Outcome::named(OutcomeName::Ok)).await.unwrap();
    assert_eq!(outcome.name, OutcomeName::PopupClosed, "{outcome:?}");
    stage.close().await;
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_leaves_the_list() {
    let canary = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let stun = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stun.set_nonblocking(true).unwrap();
    let (port, udp) = (canary.local_addr().unwrap().port(), stun.local_addr().unwrap().port());
    let body = format!(
        "<script>
        state = {{}};
        const there = ['http://127.0.0.1:{port}/', 'http://localhost:{port}/', 'http://[::1]:{port}/', 'http://2130706433:{port}/', 'http://0x7f.1:{port}/'];
        for (const url of there) {{
          fetch(url, {{mode: 'no-cors'}}).catch(() => 0);
          new Image().src = url;
          navigator.sendBeacon(url);
          const frame = document.createElement('iframe'); frame.src = url; document.body.append(frame);
          open(url);
          try {{ new WebSocket(url.replace('http', 'ws')) }} catch {{}}
          try {{ new EventSource(url) }} catch {{}}
          const code = URL.createObjectURL(new Blob([`fetch('${{url}}', {{mode: 'no-cors'}})`]));
          new Worker(code); try {{ new SharedWorker(code) }} catch {{}}
        }}
        const peer = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{udp}'}}]}});
        peer.createDataChannel('x'); peer.createOffer().then((offer) => peer.setLocalDescription(offer));
        </script>"
    );
    let ground = ground().await;
    let mut stage = ground.page(&body).await;
    act(&mut stage, Action::Wait { seconds: 2 }).await;
    assert!(canary.accept().is_err(), "a request reached the loopback canary");
    assert!(stun.recv_from(&mut [0; 64]).is_err(), "a packet went round the proxy");
    stage.close().await;
    ground.close().await;
}
