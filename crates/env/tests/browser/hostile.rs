//! Whatever a page does to its worker ends in an outcome with a name, in time, and its neighbours do not notice.

use std::time::{Duration, Instant};

use furrow_env::StageError;
use furrow_rollout::{Action, OutcomeName};

use crate::ground::{act, click, ground, state};

/// A button over the whole page that does something nasty.
fn trap(script: &str) -> String {
    format!(
        "<script>state = {{}}</script><button style='position:absolute;left:0;top:0;width:500px;height:500px' onclick='{script}'>trap</button>"
    )
}

/// Clicks and goes on as an attempt does: settle, then observe.
async fn spring(stage: &mut Box<dyn furrow_env::Stage>) -> Result<OutcomeName, StageError> {
    let outcome = stage.act(&click(100.0, 100.0)).await?;
    let outcome = stage.settle(outcome).await?;
    stage.observe().await?;
    Ok(outcome.name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_trap_ends_in_a_name_and_hurts_nobody_else() {
    let ground = ground().await;
    let mut neighbour = ground.page("<button onclick='state = {n: (window.state?.n ?? 0) + 1}' style='position:absolute;left:0;top:0;width:99px;height:99px'>n</button>").await;
    let harmless = [
        ("alert(1)", OutcomeName::DialogDismissed),
        ("confirm(1); prompt(2)", OutcomeName::DialogDismissed),
        ("for (let i = 0; i < 30; i++) open(\"about:blank\")", OutcomeName::PopupClosed),
        ("location = \"file:///etc/passwd\"", OutcomeName::Ok),
        (
            "const a = document.createElement(\"a\"); a.href = \"data:application/zip,x\"; a.download = \"x.zip\"; a.click()",
            OutcomeName::DownloadDenied,
        ),
        (
            "Notification.requestPermission(); navigator.geolocation.getCurrentPosition(() => 0)",
            OutcomeName::Ok,
        ),
        ("document.body.innerHTML = \"<p>x\".repeat(30000)", OutcomeName::Ok),
        ("onbeforeunload = (e) => { e.preventDefault() }; location.reload()", OutcomeName::Ok),
    ];
    for (index, (script, want)) in harmless.into_iter().enumerate() {
        let began = Instant::now();
        let mut stage = ground.page(&trap(script)).await;
        let got = spring(&mut stage).await.unwrap_or_else(|error| panic!("{script}: {error}"));
        // What a slow machine has not seen when it stops waiting, it tells at the next step.
        let late = matches!(got, OutcomeName::NotSettled) && want != OutcomeName::DialogDismissed;
        let unload = want == OutcomeName::Ok && got == OutcomeName::DialogDismissed;
        assert!(got == want || late || unload, "{script}: {got:?}");
        assert!(stage.observe().await.unwrap().tabs.len() <= 8, "{script}");
        stage.close().await;
        assert!(began.elapsed() < Duration::from_secs(14), "{script} took {:?}", began.elapsed());
        act(&mut neighbour, click(40.0, 40.0)).await;
        assert_eq!(state(&mut neighbour).await["n"], index + 1, "after {script}");
    }

    let deadly = [
        ("for (;;);", true),
        ("const eat = []; for (;;) eat.push(new Array(1e6).fill(Math.random()))", false),
    ];
    for (script, hangs) in deadly {
        let mut stage = ground.page(&trap(script)).await;
        let began = Instant::now();
        let error = spring(&mut stage).await.expect_err(script);
        match hangs {
            true => assert!(matches!(error, StageError::PageHang { .. }), "{script}: {error}"),
            false => assert!(
                matches!(error, StageError::PageHang { .. } | StageError::PageCrash),
                "{script}: {error}"
            ),
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{script}: {:?}", began.elapsed());
        let evidence = stage.evidence().await;
        if hangs {
            assert!(
                evidence.is_some_and(|seen| seen.screenshot.is_some()),
                "a hanging page is stopped and can be looked at"
            );
        }
        stage.close().await;
        let quick = Instant::now();
        act(&mut neighbour, click(40.0, 40.0)).await;
        neighbour.observe().await.unwrap();
        assert!(
            quick.elapsed() < Duration::from_secs(2),
            "the neighbour waited {:?} after {script}",
            quick.elapsed()
        );
    }
    neighbour.close().await;
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
