//! A full queue, late answers, clients that disconnect, and a worker that stops.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_refused_and_a_late_answer_is_an_error() {
    let worker = start(|file| {
        (file.serve.sessions_max, file.serve.requests_max, file.serve.queue_max) = (1, 1, 0);
    })
    .await;
    until(&worker, 200).await;
    // The first request gets the permit. If that is the one of `ask`, the held request was refused,
    // so try again.
    let stream = loop {
        let stream = send_partial(worker.address).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (status, value) = worker.ask(&request(json!([user("hi")]))).await;
        if status == 429 {
            assert_eq!(value["error"]["code"], "queue_full");
            break stream;
        }
    };
    let answer = send(worker.address, "POST", "/v1/chat/completions", &[], "{}").await;
    assert_eq!(answer.headers()["retry-after"], "1");
    drop(stream);
    until(&worker, 200).await;
    worker.end().await;

    let worker = start(|file| {
        large_limits(file);
        file.serve.deadline_millis = 300;
    })
    .await;
    let mut payload = long();
    payload["stream"] = json!(false);
    let (status, value) = worker.ask(&payload).await;
    assert_eq!((status, &value["error"]["code"]), (503, &json!("deadline_exceeded")), "{value}");
    until(&worker, 200).await;
    payload["stream"] = json!(true);
    let answer = send(worker.address, "POST", "/v1/chat/completions", &[], payload.to_string()).await;
    let (_, text) = read(answer).await;
    assert!(text.contains("deadline_exceeded") && !text.contains("[DONE]"), "{text}");
    until(&worker, 200).await;
    worker.end().await;
}

/// A request that takes thousands of tokens whatever is sampled.
fn long() -> Value {
    let mut payload = request(json!([user("Count.")]));
    let item = json!({ "type": "integer", "minimum": 100_000_000_000_000i64 });
    let schema = json!({ "type": "array", "items": item, "minItems": 128, "maxItems": 128 });
    payload["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    (payload["max_tokens"], payload["stream"], payload["temperature"]) = (json!(4000), json!(true), json!(1));
    payload["session_id"] = json!("long");
    payload
}

fn large_limits(file: &mut PolicyFile) {
    (file.engine.context_tokens_max, file.engine.kv_tokens) = (8192, 40_000);
    (file.serve.sessions_max, file.serve.requests_max, file.serve.queue_max) = (1, 1, 0);
    file.serve.max_tokens = 8000;
}

/// Sends a request and does not wait for the answer.
async fn hand_in(worker: &ChatWorker, payload: &Value) -> TcpStream {
    let body = payload.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
        worker.address,
        body.len()
    );
    let mut stream = TcpStream::connect(worker.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Sends a request and reads until the first token.
async fn begin(worker: &ChatWorker, payload: &Value) -> TcpStream {
    let mut stream = hand_in(worker, payload).await;
    let mut read = [0; 4096];
    let mut received = String::new();
    while received.matches("data: ").count() < 3 {
        let bytes = stream.read(&mut read).await.unwrap();
        assert!(bytes > 0, "{received}");
        received.push_str(&String::from_utf8_lossy(&read[..bytes]));
    }
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_frees_its_session() {
    let worker = start(large_limits).await;
    let mut whole = long();
    whole["stream"] = json!(false);
    let began = Instant::now();
    ChatWorker::expect_ok(worker.ask(&whole).await);
    let natural = began.elapsed();
    for is_streamed in [true, false] {
        let mut payload = long();
        let stream = match is_streamed {
            true => begin(&worker, &payload).await,
            false => {
                payload["stream"] = json!(false);
                let stream = hand_in(&worker, &payload).await;
                tokio::time::sleep(natural / 20).await;
                stream
            }
        };
        assert_eq!(worker.ask(&request(json!([user("hi")]))).await.0, 429, "streamed {is_streamed}");
        drop(stream);
        let began = Instant::now();
        until(&worker, 200).await;
        let freed = began.elapsed();
        assert!(
            freed < natural / 2,
            "streamed {is_streamed}: the session was free after {freed:?}; a whole answer takes {natural:?}"
        );
    }
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_lets_an_answer_end_and_cuts_one_that_takes_too_long() {
    for (grace, is_cut) in [(Duration::from_secs(120), false), (Duration::from_millis(50), true)] {
        let worker = start_with(grace, large_limits).await;
        let mut stream = begin(&worker, &long()).await;
        worker.stop.cancel();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.ok();
        assert_eq!(rest.contains("[DONE]"), !is_cut, "{}", rest.len());
        assert!(TcpStream::connect(worker.address).await.is_err(), "new connections are refused");
        assert_eq!(worker.life.await.unwrap().chats_cut_off, usize::from(is_cut));
    }
}
