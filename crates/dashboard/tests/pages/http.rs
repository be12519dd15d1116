//! The server's answers, and the access control.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{TestDashboard, attempt, commit};

/// Status and body of a GET; the connection closes with it.
pub(crate) async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let (status, _, body) = ask(address, &format!("GET {path} HTTP/1.1"), headers, "").await;
    (status, body)
}

/// Status, head and body.
pub(crate) async fn ask(
    address: SocketAddr,
    first: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    let host = address.to_string();
    let mut text = format!("{first}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        text.push_str(&format!("host: {host}\r\n"));
    }
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{text}\r\n{body}").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, head.to_lowercase(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_says_what_it_is_and_what_a_page_may_do() {
    let dashboard = TestDashboard::night_run().await;
    let id = "test-g000001-s0-a0";
    for (path, status, kind) in [
        ("/", 200, "text/html"),
        ("/trajectories", 200, "text/html"),
        (&*format!("/trajectory/{id}"), 200, "text/html"),
        ("/assets/app.js", 200, "text/javascript"),
        ("/assets/style.css", 200, "text/css"),
        ("/assets/palette.css", 200, "text/css"),
        ("/favicon.ico", 200, "image/svg"),
        ("/metrics", 200, "text/plain"),
        ("/api/overview", 200, "application/json"),
        ("/api/learning", 200, "application/json"),
        ("/api/job", 200, "application/json"),
        ("/api/choices", 200, "application/json"),
        ("/api/trajectories?limit=3", 200, "application/json"),
        (&*format!("/api/trajectory/{id}"), 200, "application/json"),
        (&*format!("/api/trajectory/{id}/row"), 200, "application/json"),
        (&*format!("/api/trajectory/{id}/row?step=0"), 200, "application/json"),
        (&*format!("/api/trajectory/{id}/screenshot/0"), 200, "image/png"),
        (&*format!("/api/trajectory/{id}/screenshot/evidence"), 200, "image/png"),
        (&*format!("/api/trajectory/{id}/screenshot/99"), 404, "application/json"),
        (&*format!("/api/trajectory/{id}/screenshot/first"), 400, "application/json"),
        ("/api/trajectory/unknown", 404, "application/json"),
        ("/api/trajectory/%2e%2e%2f%2e%2e", 404, "application/json"),
        ("/api/trajectories?limit=0", 400, "application/json"),
        ("/api/nothing", 404, "application/json"),
        ("/assets/../Cargo.toml", 404, "application/json"),
        ("/nothing", 404, "application/json"),
    ] {
        let (got, head, body) = ask(dashboard.address, &format!("GET {path} HTTP/1.1"), &[], "").await;
        assert_eq!(got, status, "{path}: {body:.300}");
        assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}");
        assert!(
            head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
            "{path}: {head}"
        );
        assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
    }
    let browser = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    for (path, kind, part) in [
        ("/nothing", "text/html", "<a href=\"/\">"),
        ("/assets/nothing/here", "text/html", "<a href=\"/\">"),
        ("/api/nothing", "application/json", "no such path"),
    ] {
        let (status, head, body) =
            ask(dashboard.address, &format!("GET {path} HTTP/1.1"), &browser, "").await;
        assert_eq!(status, 404, "{path}");
        assert!(head.contains(&format!("content-type: {kind}")) && body.contains(part), "{path}: {body}");
    }
    for (first, status) in
        [("POST / HTTP/1.1", 405), ("DELETE /api/overview HTTP/1.1", 405), ("HEAD / HTTP/1.1", 200)]
    {
        assert_eq!(ask(dashboard.address, first, &[], "").await.0, status, "{first}");
    }
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_and_another_origin_are_refused() {
    let dashboard = TestDashboard::serve(tempfile::tempdir().unwrap(), None).await;
    // A foreign page whose own name was made to resolve to 127.0.0.1.
    assert_eq!(get(dashboard.address, "/api/overview", &[("host", "evil.test:7380")]).await.0, 403);
    let foreign = [("origin", "http://evil.test")];
    for path in ["/token", "/api/drain", "/api/stop"] {
        let first = format!("POST {path} HTTP/1.1");
        assert_eq!(ask(dashboard.address, &first, &foreign, "token=x").await.0, 403, "{path}");
    }
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_nothing_is_answered() {
    let token = "a-token-of-twenty-six-letters";
    let dashboard = TestDashboard::serve(tempfile::tempdir().unwrap(), Some(token)).await;
    let address = dashboard.address;
    for path in [
        "/",
        "/api/overview",
        "/api/events",
        "/metrics",
        "/assets/app.js",
        "/?token=a-token-of-twenty-six-letterz",
    ] {
        let (status, body) = get(address, path, &[]).await;
        assert_eq!(status, 401, "{path}");
        assert!(body.contains("Authorization: Bearer"), "{path} names the needed header: {body}");
    }
    let (status, page) = get(address, "/", &[("accept", "text/html")]).await;
    assert!(status == 401 && page.contains("<form method=\"post\" action=\"/token\">"), "{page}");
    let bearer = format!("Bearer {token}");
    assert_eq!(get(address, "/api/overview", &[("authorization", &bearer)]).await.0, 200);
    assert_eq!(get(address, "/api/overview", &[("authorization", &bearer[..bearer.len() - 1])]).await.0, 401);

    let link = format!("GET /learning?token={token} HTTP/1.1");
    let form = format!("token={token}");
    let question = format!("GET /trajectories?suite=a%26b&token={token}&sort=reward HTTP/1.1");
    let elsewhere = format!("GET //evil.test/?token={token} HTTP/1.1");
    for (first, body, to) in [
        (&*link, "", "/learning"),
        (&*question, "", "/trajectories?suite=a%26b&sort=reward"),
        (&*elsewhere, "", "/evil.test/"),
        ("POST /token HTTP/1.1", &*form, "/"),
    ] {
        let (status, head, _) = ask(address, first, &[], body).await;
        assert_eq!(status, 303, "{first}");
        assert!(
            head.contains(&format!("location: {to}\r\n")) && head.contains("httponly; samesite=strict"),
            "{head}"
        );
        let cookie = head.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
        assert_eq!(get(address, "/api/overview", &[("cookie", &cookie)]).await.0, 200);
    }
    assert_eq!(ask(address, "POST /token HTTP/1.1", &[], "token=wrong").await.0, 401);
    assert_eq!(
        ask(address, "POST /token HTTP/1.1", &[], &format!("token={}", "x".repeat(5000))).await.0,
        413
    );
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_announced_and_a_stalled_page_blocks_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let dashboard = TestDashboard::serve(dir, None).await;
    let open = || async {
        let mut stream = TcpStream::connect(dashboard.address).await.unwrap();
        let head = format!("GET /api/events HTTP/1.1\r\nhost: {}\r\n\r\n", dashboard.address);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    // Twenty clients that never read a byte.
    let mut deaf = Vec::new();
    for _ in 0..20 {
        deaf.push(open().await);
    }
    let mut listening = open().await;
    let mut heard = String::new();
    let mut hear_until = async |text: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !heard.contains(text) {
            let mut bytes = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(60), listening.read(&mut bytes))
                .await
                .unwrap()
                .unwrap();
            heard.push_str(&String::from_utf8_lossy(&bytes[..read]));
            assert!(read > 0 && Instant::now() < deadline, "{heard}");
        }
    };
    hear_until("\"trajectories\":0").await;
    for group in 0..3 {
        commit(&data, &format!("s{group}"), &[attempt(group, 0)], &[]);
        hear_until(&format!("\"trajectories\":{}", group + 1)).await;
    }
    assert_eq!(dashboard.get("/api/trajectories").await["total"], 3);
    drop(deaf);
    // Open streams do not delay a stop.
    tokio::time::timeout(Duration::from_secs(30), dashboard.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_picture_is_revalidated_and_sent_once() {
    let dashboard = TestDashboard::night_run().await;
    let first = "GET /api/trajectory/test-g000001-s0-a0/screenshot/0 HTTP/1.1";
    let (status, head, _) = ask(dashboard.address, first, &[], "").await;
    assert!(status == 200 && head.contains("cache-control: private, no-cache"), "{head}");
    let tag = head.split("etag: ").nth(1).unwrap().split('\r').next().unwrap().to_owned();
    let (status, head, body) = ask(dashboard.address, first, &[("if-none-match", &tag)], "").await;
    assert_eq!((status, body.len()), (304, 0), "{head}");
    let other = "GET /api/trajectory/test-g000001-s0-a0/screenshot/evidence HTTP/1.1";
    assert_eq!(ask(dashboard.address, other, &[("if-none-match", "\"0\"")], "").await.0, 200);
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_begun_anew_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let metrics = dir.path().join("metrics.jsonl");
    let line = |pid: u32, scored: u32| {
        let line = serde_json::json!({
            "time": "2026-11-22T08:00:00Z", "role": "run", "pid": pid, "uptime_seconds": 1.0,
            "rollout/scored": scored, "env/slot_micros/busy": 3_600_000_000_u64,
        });
        format!("{line}\n")
    };
    commit(&data, "s0", &[attempt(0, 0), attempt(0, 1)], &[]);
    std::fs::write(&metrics, line(1, 7)).unwrap();
    let dashboard = TestDashboard::serve(dir, None).await;
    dashboard.wait_until(|head| head["trajectories"] == 2 && head["lines"] == 1).await;
    let rate =
        async || dashboard.get("/api/overview").await["throughput"]["trajectories_per_slot_hour"].clone();
    assert_eq!(rate().await, 7.0);
    // `furrow run --clean`: the same names, other rows, and more lines than before.
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::remove_file(&metrics).unwrap();
    commit(&data, "s0", &[attempt(2, 0), attempt(2, 1), attempt(2, 2)], &[]);
    commit(&data, "s1", &[attempt(3, 0)], &[]);
    std::fs::write(&metrics, line(2, 1) + &line(2, 2)).unwrap();
    dashboard
        .wait_until(|head| head["trajectories"] == 4 && head["step_files_left"] == 0 && head["lines"] == 2)
        .await;
    assert_eq!(rate().await, 2.0);
    assert_eq!(get(dashboard.address, "/api/trajectory/test-g000000-s0-a0", &[]).await.0, 404);
    assert_eq!(get(dashboard.address, "/api/trajectory/test-g000002-s2-a0", &[]).await.0, 200);
    let learning = dashboard.get("/api/learning").await;
    assert_eq!(learning["kept"]["lines"][0]["trajectories"], 4, "{learning}");
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_table_follow_each_other_without_a_gap() {
    let dashboard = TestDashboard::night_run().await;
    let mut ids = Vec::new();
    for offset in (0..244).step_by(50) {
        let page = dashboard.get(&format!("/api/trajectories?sort=reward&offset={offset}&limit=50")).await;
        assert_eq!((&page["total"], &page["matched"]), (&244.into(), &244.into()));
        ids.extend(page["rows"].as_array().unwrap().iter().map(|row| row["trajectory_id"].to_string()));
    }
    let all: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), all.len()), (244, 244));
    let failed = dashboard.get("/api/trajectories?status=failed&limit=500").await;
    assert!(failed["rows"].as_array().unwrap().iter().all(|row| row["reward"].is_null()), "{failed}");
    assert_eq!(dashboard.get("/api/trajectories?offset=9999").await["rows"], serde_json::json!([]));
    dashboard.close().await;
}
