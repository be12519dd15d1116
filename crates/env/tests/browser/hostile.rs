//! What a page does while it is not observed, and which hosts it reaches; its effects on other
//! pages are in `attacks.rs`.

use std::time::Duration;

use furrow_env::Environment;
use furrow_rollout::{Action, OutcomeName};

use crate::fixture::{BrowserFixture, act, click, fixture, fixture_with};

/// A button over the whole page that runs a hostile script.
fn trap(script: &str) -> String {
    format!(
        "<script>state = {{}}</script><button style='position:absolute;left:0;top:0;width:500px;height:500px' onclick='{script}'>trap</button>"
    )
}

/// Number of pages in an environment's browser, as the browser itself counts them.
async fn pages(fixture: &BrowserFixture, environment: &dyn Environment) -> usize {
    fixture.pool.open_pages(environment.browser()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_closed_while_the_policy_thinks() {
    let fixture = fixture_with(|file| (file.tabs_max, file.contexts_ready) = (4, 0), vec![]).await;
    let mut environment = fixture.page(&trap("setInterval(() => window.open(\"about:blank\"), 30)")).await;
    let first = pages(&fixture, &*environment).await;
    assert!((1..=2).contains(&first), "{first} pages: the browser's initial one and this test's");
    environment.act(&click(100.0, 100.0)).await.unwrap();
    // The page is not observed meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let open = pages(&fixture, &*environment).await;
    // Of 66 windows three stay, and some are still being closed.
    assert!((3..=first + 12).contains(&open), "{open} pages are open");
    let outcome = environment.settle(furrow_rollout::Outcome::named(OutcomeName::Ok)).await.unwrap();
    assert_eq!(outcome.name, OutcomeName::PopupClosed, "{outcome:?}");
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_leaves_the_list() {
    let canary = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let stun = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stun.set_nonblocking(true).unwrap();
    let port = canary.local_addr().unwrap().port();
    let udp = stun.local_addr().unwrap().port();
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
    let fixture = fixture().await;
    let mut environment = fixture.page(&body).await;
    act(&mut environment, Action::Wait { seconds: 2 }).await;
    assert!(canary.accept().is_err(), "a request reached the loopback canary");
    assert!(stun.recv_from(&mut [0; 64]).is_err(), "a packet bypassed the proxy");
    environment.close().await;
    fixture.close().await;
}
