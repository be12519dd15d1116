//! A server with a small role: hostile clients, and a stop.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{get, post};
use furrow_http::{
    AccessControl, AccessLayer, AccessRefusal, AccessRules, BodyError, HttpLimits, HttpServer, OriginCheck,
    ServerTasks, SignIn, read_body, respond,
};
use furrow_testkit::hostile_http::HttpTarget;
use futures::stream;
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "correct-horse-battery";
const FORM_BYTES_MAX: usize = 64;
const CONNECTIONS: usize = 3;
const SHORT: Duration = Duration::from_millis(250);
/// Longer than a test runs.
const LONG: Duration = Duration::from_secs(600);
/// Time for everything that must happen.
const DEADLINE: Duration = Duration::from_secs(60);
const TEXT: &str = "text/plain";

struct TestServer {
    target: HttpTarget,
    tasks: ServerTasks,
    slow: Arc<SlowRoutes>,
    serving: tokio::task::JoinHandle<()>,
}

/// What `/slow` and `/endless` signal when they begin, and what `/slow` waits for.
#[derive(Default)]
struct SlowRoutes {
    begun: Notify,
    release: Notify,
}

impl TestServer {
    async fn start(token: Option<&'static str>, limit: impl FnOnce(&mut HttpLimits)) -> Self {
        let mut limits = HttpLimits {
            connections_max: CONNECTIONS,
            head_bytes_max: 16 << 10,
            head_timeout: LONG,
            body_timeout: LONG,
            write_timeout: LONG,
            connection_timeout: None,
        };
        limit(&mut limits);
        let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), limits).await.unwrap();
        let target = HttpTarget {
            address: server.address(),
            token,
            page: "/page",
            form: "/form",
            form_bytes_max: FORM_BYTES_MAX,
            form_needs_token: true,
            checks_origin: true,
        };
        let sign_in = SignIn { cookie_prefix: "furrow_test_", path: "/token" };
        let rules = AccessRules { token, origin_check: OriginCheck::Changes, sign_in: Some(sign_in) };
        let slow = Arc::<SlowRoutes>::default();
        let access = AccessLayer::new(Arc::new(AccessControl::new(&rules)), refuse);
        let routes = routes(slow.clone(), limits.body_timeout).layer(access);
        let tasks = ServerTasks::new(CancellationToken::new());
        let shared = tasks.clone();
        let serving = tokio::spawn(async move { server.serve(routes, &shared).await });
        Self { target, tasks, slow, serving }
    }

    /// Runs a blocking check of the target to its end.
    async fn check(self, check: impl FnOnce(&HttpTarget) + Send + 'static) {
        let target = self.target;
        tokio::task::spawn_blocking(move || check(&target)).await.unwrap();
        self.tasks.stop.cancel();
        self.serving.await.unwrap();
        assert!(self.tasks.drain(DEADLINE).await, "a connection is left");
    }

    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.target.address).await.unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request, and returns while its answer is being made.
    async fn begin(&self, request: &str) -> TcpStream {
        let stream = self.send(request).await;
        self.slow.begun.notified().await;
        stream
    }
}

fn routes(slow: Arc<SlowRoutes>, body_timeout: Duration) -> Router {
    let endless = slow.clone();
    Router::new()
        .route("/page", get(async || respond(StatusCode::OK, TEXT, "a page. ".repeat(1000))))
        .route("/form", post(async move |request: Request| form(request, body_timeout).await))
        .route(
            "/slow",
            get(async move || {
                slow.begun.notify_one();
                slow.release.notified().await;
                respond(StatusCode::OK, TEXT, "the whole answer")
            }),
        )
        .route(
            "/endless",
            get(async move || {
                endless.begun.notify_one();
                let parts = stream::repeat_with(|| Ok::<_, Infallible>("a part. ".repeat(1000)));
                respond(StatusCode::OK, TEXT, Body::from_stream(parts))
            }),
        )
}

async fn form(request: Request, timeout: Duration) -> Response {
    let status = match read_body(request.into_body(), FORM_BYTES_MAX, Instant::now() + timeout).await {
        Ok(body) if body.is_empty() => StatusCode::BAD_REQUEST,
        Ok(_) => StatusCode::OK,
        Err(BodyError::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        Err(BodyError::Late) => StatusCode::REQUEST_TIMEOUT,
        Err(BodyError::Cut) => StatusCode::BAD_REQUEST,
    };
    respond(status, TEXT, "")
}

fn refuse(why: AccessRefusal, _: &Request) -> Response {
    let status = match why {
        AccessRefusal::Foreign => StatusCode::FORBIDDEN,
        AccessRefusal::Unknown => StatusCode::UNAUTHORIZED,
    };
    respond(status, TEXT, "refused")
}

async fn read(mut stream: TcpStream) -> String {
    let mut heard = String::new();
    let read = stream.read_to_string(&mut heard);
    let read = tokio::time::timeout(DEADLINE, read).await.expect("the connection ends");
    // A cut connection may be reset.
    drop(read);
    heard
}

#[tokio::test]
async fn hostile_requests_are_refused() {
    for token in [None, Some(TOKEN)] {
        TestServer::start(token, |_| {}).await.check(HttpTarget::assert_requests).await;
    }
}

#[tokio::test]
async fn slow_clients_make_way_for_others() {
    let served = TestServer::start(None, |limits| {
        limits.head_timeout = SHORT;
        limits.body_timeout = SHORT;
        limits.write_timeout = SHORT;
    });
    served.await.check(|target| target.assert_slow_clients(CONNECTIONS)).await;
}

#[tokio::test]
async fn connections_have_a_bound() {
    let served = TestServer::start(None, |_| {}).await;
    served.check(|target| target.assert_connections_max(CONNECTIONS)).await;
}

#[tokio::test]
async fn a_connection_has_a_total_life() {
    let served = TestServer::start(None, |limits| limits.connection_timeout = Some(SHORT)).await;
    assert_eq!(read(served.begin("GET /slow").await).await, "");
    served.check(|_| {}).await;
}

#[tokio::test]
async fn a_stream_that_its_client_does_not_read_is_dropped() {
    let served = TestServer::start(None, |limits| limits.write_timeout = SHORT).await;
    let unread = served.begin("GET /endless").await;
    let ended = async {
        while !served.tasks.tracker.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, ended).await.expect("the connection is dropped");
    drop(unread);
    served.check(|_| {}).await;
}

#[tokio::test]
async fn no_path_and_no_method_is_outside_the_layer() {
    let served = TestServer::start(Some(TOKEN), |limits| limits.head_timeout = SHORT).await;
    for request in ["GET /page", "PUT /page", "GET /nothing", "OPTIONS *", "CONNECT a:1", "POST /form"] {
        let response = read(served.send(request).await).await;
        assert!(
            response.starts_with("HTTP/1.1 401") && response.ends_with("refused"),
            "{request}: {response}"
        );
    }
    let response = read(served.send("POST /token").await).await;
    assert!(response.starts_with("HTTP/1.1 404"), "the form is the one exception: {response}");
    served.check(|_| {}).await;
}

#[tokio::test]
async fn a_stop_lets_an_answer_end() {
    let served = TestServer::start(None, |_| {}).await;
    let pending = served.begin("GET /slow").await;
    let idle = TcpStream::connect(served.target.address).await.unwrap();
    while served.tasks.tracker.len() < 2 {
        tokio::task::yield_now().await;
    }
    served.tasks.stop.cancel();
    served.serving.await.unwrap();
    assert!(TcpStream::connect(served.target.address).await.is_err(), "new connections are refused");
    assert_eq!(read(idle).await, "", "an idle connection ends");
    assert!(!served.tasks.drain(Duration::from_millis(50)).await, "the answer is awaited");
    served.slow.release.notify_one();
    assert!(read(pending).await.ends_with("the whole answer"));
    assert!(served.tasks.drain(DEADLINE).await);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_cut() {
    let served = TestServer::start(None, |_| {}).await;
    let pending = served.begin("GET /slow").await;
    served.tasks.stop.cancel();
    assert!(!served.tasks.drain(Duration::from_millis(50)).await);
    served.tasks.cut().await;
    assert!(served.tasks.tracker.is_empty(), "nothing is left");
    assert_eq!(read(pending).await, "");
}
