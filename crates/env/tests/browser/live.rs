//! Live hosts in real Chromium: the test's own server at a pinned name, honest and hostile.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use furrow_env::{Environment, EnvironmentError, EnvironmentFactory};
use furrow_rollout::{Action, EndKind, Modifiers, OutcomeName, PagePoint, PointerButton};
use futures::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{BrowserFixture, act, assignment, fixture_with, state, task};
use crate::limits::first_process;

/// The name of the server, which no resolver knows.
pub(crate) const HOST: &str = "live.example.org";

/// A server that ends with its test, and the requests that it received.
pub(crate) struct LiveServer {
    pub address: SocketAddr,
    requests: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl LiveServer {
    /// Answers each request with the result of `answer` for its path and headers.
    pub(crate) async fn start(answer: fn(&str, &str) -> Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let counter = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, answer));
            }
        });
        Self { address, requests, task }
    }
}

impl Drop for LiveServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answer: fn(&str, &str) -> Vec<u8>) {
    let mut head = Vec::new();
    let mut read = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut read).await {
            Ok(0) | Err(_) => return,
            Ok(count) => head.extend_from_slice(&read[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    if path.starts_with("/never") {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    if path.starts_with("/slow") {
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    if path.starts_with("/late") {
        tokio::time::sleep(Duration::from_millis(2_600)).await;
    }
    drop(stream.write_all(&answer(&path, &head)).await);
    // One byte at a time, without an end.
    while path == "/drips" && stream.write_all(b"<").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn page(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}").into_bytes()
}

fn site(path: &str, head: &str) -> Vec<u8> {
    let cookie = head.contains("cookie: a=1") || head.contains("Cookie: a=1");
    match path {
        "/" => page(
            "200 OK",
            "set-cookie: a=1\r\n",
            "<title>Live</title><script src=/script.js></script><script>fetch('/data', { method: 'POST', body: 'x' }).then((got) => got.text()).then((text) => { state.data = text; });</script>",
        ),
        "/script.js" => page("200 OK", "", "window.state = { script: true };"),
        "/data" => page(
            "200 OK",
            "",
            if cookie && head.starts_with("POST ") { "posted with a cookie" } else { "no cookie" },
        ),
        "/inside" => page("302 Found", "location: http://169.254.169.254/latest/meta-data/\r\n", ""),
        to if to.starts_with("/to?") => page("302 Found", &format!("location: {}\r\n", &to[4..]), ""),
        "/elsewhere" => page("302 Found", "location: http://other.example.org/\r\n", ""),
        "/round" => page("302 Found", "location: /round\r\n", ""),
        "/403" => page("403 Forbidden", "", "<h1>Forbidden</h1>"),
        "/429" => page("429 Too Many Requests", "", "<h1>Slow down</h1>"),
        "/401" => {
            page("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", "<h1>Who are you?</h1>")
        }
        "/headers" => page("200 OK", &format!("x: {}\r\n", "y".repeat(4 << 20)), "<h1>Long</h1>"),
        "/drips" => {
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<title>Drips</title><h1>Drop by drop</h1>"
                .to_vec()
        }
        "/cut" => {
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 1000\r\n\r\n<h1>Cut".to_vec()
        }
        "/headers-only" => {
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 1000\r\n\r\n".to_vec()
        }
        "/picture" => page("200 OK", "", "<title>Picture</title><h1>Wait</h1><img src=/never.png>"),
        "/link" => page("200 OK", "", "<a href=/cut style='position:fixed;inset:0'>there</a>"),
        "/noise" => b"\x16\x03\x01 this is not http".to_vec(),
        _ => page("404 Not Found", "", "<h1>Not here</h1>"),
    }
}

async fn fixture(server: &LiveServer) -> BrowserFixture {
    isolated_fixture(server, "context").await
}

/// The same with this isolation of trajectories on live sites.
async fn isolated_fixture(server: &LiveServer, isolation: &str) -> BrowserFixture {
    let pins = vec![format!("{HOST}={}", server.address)];
    fixture_with(
        |file| {
            (file.pins, file.blocked_timeout_millis) = (pins, 300);
            (file.navigation_millis, file.settle_cap_millis) = (3_000, 2_000);
            file.isolation = isolation.into();
        },
        vec![],
    )
    .await
}

pub(crate) fn url(path: &str) -> String {
    format!("http://{HOST}{path}")
}

async fn opened(fixture: &BrowserFixture, path: &str) -> Box<dyn Environment> {
    fixture.pool.open(&assignment(task(&url(path)))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_page_loads_posts_and_keeps_cookies() {
    let server = LiveServer::start(site).await;
    let fixture = fixture(&server).await;
    let mut environment = opened(&fixture, "/").await;
    environment.begin().await.unwrap();
    // Settling also waited for the answer of the last request.
    assert_eq!(state(&mut environment).await, json!({ "script": true, "data": "posted with a cookie" }));
    let observation = environment.observe().await.unwrap();
    assert_eq!((observation.title.as_str(), observation.url.as_str()), ("Live", &*url("/")));
    environment.close().await;
    // A host that the task does not list is not reached, pinned or not.
    let mut other = fixture.pool.open(&assignment(task("http://page.test/none.html"))).await.unwrap();
    let before = server.requests.load(Ordering::SeqCst);
    assert!(other.begin().await.is_err());
    let outcome = other.act(&Action::Goto { url: url("/") }).await.unwrap();
    assert_eq!(outcome.name, OutcomeName::OffList);
    assert_eq!(server.requests.load(Ordering::SeqCst), before);
    other.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_begin_on_a_page_that_is_not_there_is_a_failure_with_a_name() {
    let server = LiveServer::start(site).await;
    let canary = LiveServer::start(|_, _| page("200 OK", "", "canary")).await;
    let fixture = fixture(&server).await;
    let loopback = format!("/to?http://{}/", canary.address);
    let cases = [
        ("/403", EndKind::Blocked),
        ("/429", EndKind::Blocked),
        ("/inside", EndKind::EnvCrash),
        (loopback.as_str(), EndKind::EnvCrash),
        ("/elsewhere", EndKind::EnvCrash),
        ("/round", EndKind::EnvCrash),
        ("/never", EndKind::EnvCrash),
        ("/cut", EndKind::EnvCrash),
        ("/noise", EndKind::EnvCrash),
        ("/404", EndKind::EnvCrash),
    ];
    join_all(cases.map(async |(path, want)| {
        let began = Instant::now();
        let mut environment = opened(&fixture, path).await;
        let error = environment.begin().await.err();
        assert_eq!(error.as_ref().map(EnvironmentError::end), Some(want), "{path}: {error:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{path}: {:?}", began.elapsed());
        environment.close().await;
    }))
    .await;
    assert_eq!(canary.requests.load(Ordering::SeqCst), 0);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_be_led_to_a_bad_server_is_an_outcome_and_the_next_address_does_not_wait() {
    let server = LiveServer::start(site).await;
    let canary = LiveServer::start(|_, _| page("200 OK", "", "canary")).await;
    let fixture = fixture(&server).await;
    let loopback = format!("/to?http://{}/", canary.address);
    let cases = [
        // The farm's answer to a refused request is also a page.
        ("/inside", OutcomeName::Ok),
        (&loopback, OutcomeName::Ok),
        ("/elsewhere", OutcomeName::Ok),
        ("/401", OutcomeName::Ok),
        ("/headers", OutcomeName::Ok),
        ("/noise", OutcomeName::Ok),
        ("/404", OutcomeName::Ok),
        ("/round", OutcomeName::NavigationFailed),
        ("/drips", OutcomeName::NotSettled),
        ("/picture", OutcomeName::NotSettled),
        ("/never", OutcomeName::NavigationFailed),
        ("/cut", OutcomeName::NavigationFailed),
        ("/headers-only", OutcomeName::NavigationFailed),
    ];
    join_all(cases.map(async |(path, want)| {
        let mut environment = opened(&fixture, "/").await;
        environment.begin().await.unwrap();
        let name = led(&mut environment, &url(path)).await;
        // A busy machine may need longer for a quiet page than the deadline here.
        let is_there = |name| matches!(name, OutcomeName::Ok | OutcomeName::NotSettled);
        assert!(name == want || is_there(name) && is_there(want), "{path}: {name:?}, not {want:?}");
        let began = Instant::now();
        let back = act(&mut environment, Action::Goto { url: url("/") }).await;
        assert!(is_there(back.name), "after {path}: {}", back.detail);
        // The library itself would wait for 30 s.
        assert!(began.elapsed() < Duration::from_secs(10), "after {path}: {:?}", began.elapsed());
        assert_eq!(state(&mut environment).await["script"], true, "after {path}");
        environment.close().await;
    }))
    .await;
    assert_eq!(canary.requests.load(Ordering::SeqCst), 0);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_page_is_acted_on_as_it_is() {
    let server = LiveServer::start(site).await;
    let fixture = fixture(&server).await;
    // A missing picture does not prevent the start.
    let mut environment = opened(&fixture, "/picture").await;
    environment.begin().await.unwrap();
    assert_eq!(environment.observe().await.unwrap().title, "Picture");
    environment.close().await;
    // A truncated response does not end the trajectory.
    let mut environment = opened(&fixture, "/link").await;
    environment.begin().await.unwrap();
    let at = Some(PagePoint { x: 50.0, y: 50.0 });
    let outcome = act(
        &mut environment,
        Action::Click { at, button: PointerButton::Left, count: 1, modifiers: Modifiers::NONE },
    )
    .await;
    assert_eq!(outcome.name, OutcomeName::NotSettled, "{}", outcome.detail);
    assert_eq!(environment.observe().await.unwrap().url, url("/cut"));
    environment.close().await;
    fixture.close().await;
}

/// Requests an address; whatever it is, the page can be observed afterwards.
async fn led(environment: &mut Box<dyn Environment>, url: &str) -> OutcomeName {
    let began = Instant::now();
    let outcome = act(environment, Action::Goto { url: url.to_owned() }).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{url}: {:?}", began.elapsed());
    environment.observe().await.unwrap_or_else(|error| panic!("{url}: {error}"));
    outcome.name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_trajectory_has_a_browser_of_its_own_where_the_job_says_so() {
    let server = LiveServer::start(site).await;
    let fixture = isolated_fixture(&server, "process").await;
    let names = |environments: &[Box<dyn Environment>]| -> HashSet<String> {
        environments.iter().map(|environment| environment.browser().to_owned()).collect()
    };
    // Pages of the farm's own share one, which stays when live ones come.
    let mut own = vec![fixture.page("<p>x").await, fixture.page("<p>y").await];
    let mut live = Vec::new();
    for _ in 0..2 {
        let mut environment = opened(&fixture, "/").await;
        environment.begin().await.unwrap();
        assert_eq!(environment.observe().await.unwrap().title, "Live");
        live.push(environment);
    }
    own.push(fixture.page("<p>z").await);
    assert_eq!((names(&own).len(), names(&live).len()), (1, 2));
    assert!(names(&own).is_disjoint(&names(&live)));
    let used = names(&live);
    let first: Vec<u32> = live.iter().map(|environment| first_process(&**environment)).collect();
    for environment in live {
        environment.close().await;
    }
    let is_gone = |pid: &u32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    let began = Instant::now();
    while !first.iter().all(is_gone) {
        assert!(began.elapsed() < Duration::from_secs(10), "a browser outlives its trajectory");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let next = opened(&fixture, "/").await;
    assert!(!used.contains(next.browser()), "a browser serves a second trajectory");
    next.close().await;
    for environment in own {
        environment.close().await;
    }
    fixture.close().await;
}
