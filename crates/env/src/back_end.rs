//! The back ends of tasks: hooks reset and check them, and HTTP checks ask them.
//!
//! A check is a request of the farm, not of the page: it leaves past the page's filter, straight to
//! the address that the job pins, and follows no redirect. So neither a page nor a policy can
//! answer it, and it reaches no other address.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::{Assignment, FindingFailure, FindingFailureKind, HttpQuery};
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::hooks::{HookCommand, HookEnd, HookError, Hooks};
use crate::hosts::HostPort;
use crate::live::{ConnectFailure, HostPins, LiveHosts, SystemResolver};
use crate::secrets::WorkerSecrets;

/// Time for one answer of a back end.
const ANSWER: Duration = Duration::from_secs(5);

/// Largest answer that is read; only the part that the query points to is kept.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Longest output of a hook in evidence.
const OUTPUT_CHARS_MAX: usize = 500;

/// The back ends that a worker may use.
#[derive(Debug)]
pub(crate) struct BackEnd {
    hooks: Hooks,
    pins: Arc<HostPins>,
}

/// What a hook gets to know of its trajectory.
#[derive(Debug, Clone)]
pub(crate) struct BackEndCall {
    variables: Vec<(&'static str, String)>,
}

impl BackEndCall {
    /// Values that the farm made. Texts of the task's line stay out.
    pub(crate) fn of(assignment: &Assignment) -> Self {
        let variables = vec![
            ("FURROW_TRAJECTORY", assignment.ancestry.trajectory_id.to_string()),
            ("FURROW_SEED", assignment.task.seed.to_string()),
        ];
        Self { variables }
    }
}

impl BackEnd {
    pub(crate) fn new(hooks: &[HookCommand], pins: Arc<HostPins>, secrets: Arc<WorkerSecrets>) -> Self {
        Self { hooks: Hooks::new(hooks, secrets), pins }
    }

    /// Runs the hook that resets a back end. Only status 0 is a reset.
    pub(crate) async fn reset(&self, hook: &str, call: &BackEndCall) -> Result<(), String> {
        match self.hooks.run(hook, &call.variables).await {
            Ok(HookEnd { exit: Some(0), .. }) => Ok(()),
            Ok(HookEnd { exit, output }) => {
                let status = exit.map_or("a signal".to_owned(), |status| format!("status {status}"));
                Err(format!("the reset failed: hook {hook} ended with {status}: {}", cut(&output)))
            }
            Err(error) => Err(format!("the reset failed: {error}")),
        }
    }

    /// Runs the hook that checks a back end, and returns its status and output.
    pub(crate) async fn check(&self, hook: &str, call: &BackEndCall) -> Result<Value, FindingFailure> {
        match self.hooks.run(hook, &call.variables).await {
            Ok(HookEnd { exit, output }) => Ok(json!({"exit": exit, "output": cut(&output)})),
            Err(error @ HookError::Unknown { .. }) => {
                Err(FindingFailure::new(FindingFailureKind::Refused, error.to_string()))
            }
            Err(error) => Err(FindingFailure::new(FindingFailureKind::HookFailed, error.to_string())),
        }
    }

    /// Asks a pinned host once, until a deadline: status, and the value in its JSON.
    pub(crate) async fn ask(&self, query: &HttpQuery, until: Instant) -> Result<Value, FindingFailure> {
        let until = until.min(Instant::now() + ANSWER);
        match timeout_at(until, self.answer(query)).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer(query, "no answer in time")),
        }
    }

    async fn answer(&self, query: &HttpQuery) -> Result<Value, FindingFailure> {
        let refused = |why: String| FindingFailure::new(FindingFailureKind::Refused, why);
        let target = HostPort::parse_url(&query.url)
            .map_err(|blocked| refused(format!("{} cannot be asked: {blocked:?}", query.url)))?;
        if !self.pins.names(&target.host) {
            return Err(refused(format!("{} is not among env.pins of this worker", target.host)));
        }
        let hosts =
            LiveHosts { resolver: Arc::new(SystemResolver), pins: self.pins.clone(), deadline: ANSWER };
        let stream = hosts.connect(&target).await.map_err(|failure| match failure {
            ConnectFailure::Refused(blocked) => refused(format!("{} is refused: {blocked:?}", target.host)),
            ConnectFailure::Failed(why) => no_answer(query, &why),
        })?;
        let failed = |error: hyper::Error| no_answer(query, &error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let request = request(query).map_err(refused)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
                // What the policy did may have made it so long.
                Some(_) => FindingFailure::new(
                    FindingFailureKind::TooLarge,
                    format!("the answer of {} has more than {ANSWER_BYTES_MAX} bytes", query.url),
                ),
                None => no_answer(query, &error.to_string()),
            })?;
            Ok(found(status, &body.to_bytes(), query.pointer.as_deref()))
        };
        let mut exchange = std::pin::pin!(exchange);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            answer = &mut exchange => return answer,
            ended = &mut connection => drop(ended),
        }
        exchange.await
    }
}

fn request(query: &HttpQuery) -> Result<Request<Full<Bytes>>, String> {
    let uri: Uri = query.url.parse().map_err(|error| format!("{} is not an address: {error}", query.url))?;
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut request = Request::builder()
        .method(query.method.as_str())
        .uri(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, "furrow-check")
        .header(header::ACCEPT, "application/json, */*")
        .header(header::CONNECTION, "close");
    if query.body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = Full::new(Bytes::from(query.body.clone().unwrap_or_default()));
    request.body(body).map_err(|error| error.to_string())
}

/// The finding of an answer.
fn found(status: u16, body: &[u8], pointer: Option<&str>) -> Value {
    let Some(pointer) = pointer else { return json!({"status": status}) };
    match serde_json::from_slice::<Value>(body) {
        Ok(answer) => json!({"status": status, "value": answer.pointer(pointer)}),
        Err(_) => json!({"status": status, "is_json": false}),
    }
}

fn no_answer(query: &HttpQuery, why: &str) -> FindingFailure {
    FindingFailure::new(FindingFailureKind::NoAnswer, format!("{}: {why}", query.url))
}

fn cut(output: &str) -> String {
    output.chars().take(OUTPUT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A server that answers every connection with these bytes, after it read the request.
    struct Server {
        back_end: BackEnd,
        connections: Arc<AtomicUsize>,
        requests: Arc<std::sync::Mutex<String>>,
    }

    async fn server(answer: impl Into<Vec<u8>>, hangs: bool) -> Server {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pins = HostPins::new(&[format!("api.test={}", listener.local_addr().unwrap())]).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(std::sync::Mutex::new(String::new()));
        let counted = connections.clone();
        let kept = requests.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut buffer = [0; 4096];
                let read = stream.read(&mut buffer).await.unwrap_or(0);
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..read]));
                stream.write_all(&answer).await.ok();
                if hangs {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
            }
        });
        Server { back_end: BackEnd::new(&[], Arc::new(pins), Arc::default()), connections, requests }
    }

    fn query(url: &str, pointer: Option<&str>) -> HttpQuery {
        HttpQuery {
            method: furrow_rollout::HttpMethod::Get,
            url: url.into(),
            body: None,
            pointer: pointer.map(str::to_owned),
        }
    }

    fn in_millis(millis: u64) -> Instant {
        Instant::now() + Duration::from_millis(millis)
    }

    fn response(status: &str, headers: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn an_answer_is_its_status_and_the_value_that_the_pointer_names() {
        let cart = r#"{"items":[{"count":2}],"state":null}"#;
        let table = [
            (response("200 OK", "", cart), Some("/items/0/count"), json!({"status": 200, "value": 2})),
            (response("200 OK", "", cart), Some("/state"), json!({"status": 200, "value": null})),
            (response("200 OK", "", cart), Some("/none"), json!({"status": 200, "value": null})),
            (response("200 OK", "", "<html>"), Some("/a"), json!({"status": 200, "is_json": false})),
            (response("404 Not Found", "", "<html>"), None, json!({"status": 404})),
            (
                response("302 Found", "location: http://169.254.169.254/latest/meta-data\r\n", ""),
                None,
                json!({"status": 302}),
            ),
        ];
        for (answer, pointer, want) in table {
            let server = server(answer, false).await;
            let got =
                server.back_end.ask(&query("http://api.test/cart?a=1", pointer), in_millis(5_000)).await;
            assert_eq!(got, Ok(want));
            assert_eq!(server.connections.load(Ordering::SeqCst), 1, "one request, and no redirect");
            let requests = server.requests.lock().unwrap();
            assert!(requests.starts_with("GET /cart?a=1 HTTP/1.1\r\nhost: api.test\r\n"), "{requests}");
        }
    }

    #[tokio::test]
    async fn a_post_sends_its_body() {
        let server = server(response("201 Created", "", ""), false).await;
        let body = Some(r#"{"query":"{ cart }"}"#.to_owned());
        let method = furrow_rollout::HttpMethod::Post;
        let query = HttpQuery { method, body, ..query("http://api.test/graphql", None) };
        assert_eq!(server.back_end.ask(&query, in_millis(5_000)).await, Ok(json!({"status": 201})));
        let requests = server.requests.lock().unwrap();
        assert!(requests.contains("content-type: application/json"), "{requests}");
        assert!(requests.ends_with(r#"{"query":"{ cart }"}"#), "{requests}");
    }

    #[tokio::test]
    async fn only_pinned_hosts_are_reached() {
        let server = server(response("200 OK", "", "{}"), false).await;
        for url in [
            "http://169.254.169.254/latest/meta-data",
            "http://127.0.0.1/",
            "http://localhost/",
            "http://[::1]/",
            "http://2130706433/",
            "http://other.test/",
            "http://api.test.other.test/",
            "http://example.com/",
        ] {
            let failure = server.back_end.ask(&query(url, None), in_millis(5_000)).await.unwrap_err();
            assert_eq!(failure.kind, FindingFailureKind::Refused, "{url}: {failure:?}");
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_back_end_that_fails_is_named() {
        use FindingFailureKind::{NoAnswer, TooLarge};
        let large = "x".repeat(ANSWER_BYTES_MAX + 1);
        let endless = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
        let table = [
            ("closed", String::new(), false, NoAnswer),
            ("no HTTP", "hello\r\n\r\n".to_owned(), false, NoAnswer),
            ("silent", String::new(), true, NoAnswer),
            ("half a body", endless.to_owned(), true, NoAnswer),
            ("large", response("200 OK", "", &large), false, TooLarge),
        ];
        for (name, answer, hangs, want) in table {
            let server = server(answer, hangs).await;
            let got = server.back_end.ask(&query("http://api.test/", Some("/a")), in_millis(1_500)).await;
            assert_eq!(got.unwrap_err().kind, want, "{name}");
        }
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let pins = HostPins::new(&[format!("api.test={gone}")]).unwrap();
        let back_end = BackEnd::new(&[], Arc::new(pins), Arc::default());
        let got = back_end.ask(&query("http://api.test/", None), in_millis(1_500)).await;
        assert_eq!(got.unwrap_err().kind, NoAnswer);
    }
}
