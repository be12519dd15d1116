//! A text that no context holds is refused before it is copied, hashed or tokenised: the worker
//! takes the request's body, its parsed form, and nothing that grows with it besides.
//!
//! A binary of its own, because its allocator counts what every thread of the process allocates.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "shared with the tests of the model")]
#[path = "integration/model/fixture.rs"]
mod fixture;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use furrow_policy::{ChatEndpoint, WorkerListeners};
use furrow_rollout::Id;
use furrow_wire::TcpConnector;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static COUNTED: PeakAlloc = PeakAlloc;

const TEXT_BYTES: usize = 30_000_000;
/// Twice the text, as body and as parsed value, and some for buffers.
const ALLOCATED_MAX: usize = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_beyond_the_context_is_measured_and_not_tokenised() {
    let (address, stop) = start().await;
    let text = "ab ".repeat(TEXT_BYTES / 3);
    let small = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }] });
    let (status, answer) = post(address, "/v1/chat/completions", small.to_string().into()).await;
    assert_eq!(status, 200, "{answer}");
    for (path, body) in requests(&text) {
        let before = COUNTED.current_usage();
        COUNTED.reset_peak_usage();
        let shown: String = String::from_utf8_lossy(&body[..80]).into_owned();
        let (status, answer) = post(address, path, body).await;
        let taken = COUNTED.peak_usage() - before;
        assert_eq!(status, 400, "{shown}: {answer}");
        assert_eq!(answer["error"]["code"], "context_length_exceeded", "{shown}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("the context's 768 tokens have at most"), "{shown}: {message}");
        assert!(taken <= ALLOCATED_MAX, "{shown}: {taken} bytes were allocated");
    }
    stop.cancel();
}

/// A worker that serves chats, and what stops it.
async fn start() -> (SocketAddr, CancellationToken) {
    let config = fixture::config(|file| {
        file.serve.listen = "127.0.0.1:0".into();
        file.serve.model = "tiny".into();
        file.serve.sessions_max = 1;
        file.serve.requests_max = 1;
    });
    let endpoint = ChatEndpoint::bind(config.serve.as_ref().unwrap()).await.unwrap();
    let address = endpoint.address();
    let sessions = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listening = WorkerListeners { sessions, chats: Some(endpoint), link: None };
    let stop = CancellationToken::new();
    let connect = Arc::new(TcpConnector::default());
    let name = Id::new("p").unwrap();
    let life = stop.clone();
    tokio::spawn(furrow_policy::run(config, name, listening, connect, None, Duration::from_secs(5), life));
    (address, stop)
}

/// Requests with this text in each position that a text can have.
fn requests(text: &str) -> Vec<(&'static str, Bytes)> {
    let chat = |messages: String| {
        ("/v1/chat/completions", Bytes::from(format!(r#"{{"model":"tiny","messages":[{messages}]}}"#)))
    };
    let call = r#"{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":
        [{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
    vec![
        chat(format!(r#"{{"role":"user","content":"{text}"}}"#)),
        chat(format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#)),
        chat(format!(r#"{{"role":"system","content":"{text}"}},{{"role":"user","content":"hi"}}"#)),
        chat(format!(r#"{call},{{"role":"tool","tool_call_id":"c","content":"{text}"}}"#)),
        chat(format!(
            r#"{{"role":"user","content":"a"}},{{"role":"assistant","content":"{text}"}},{{"role":"user","content":"b"}}"#
        )),
        ("/v1/completions", Bytes::from(format!(r#"{{"model":"tiny","prompt":"{text}"}}"#))),
        ("/v1/responses", Bytes::from(format!(r#"{{"model":"tiny","input":"{text}"}}"#))),
    ]
}

async fn post(address: SocketAddr, path: &str, body: Bytes) -> (u16, Value) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::builder().method("POST").uri(path).header("host", address.to_string());
    let answer = sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}
