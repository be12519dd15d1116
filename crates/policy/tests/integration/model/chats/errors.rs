//! Requests that are refused: by their content, their route or their token.

use super::*;

/// A body, the status of its answer, and the parameter that the error names.
type RefusedBody = (String, u16, &'static str);

fn with(key: &str, value: Value) -> String {
    let mut payload = request(json!([user("hi")]));
    payload[key] = value;
    payload.to_string()
}

fn wrong_parameters() -> Vec<RefusedBody> {
    let format = |schema: Value| {
        with(
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } }),
        )
    };
    let schema = "response_format.json_schema.schema";
    vec![
        (String::new(), 400, ""),
        ("{".into(), 400, ""),
        ("[]".into(), 400, ""),
        ("\u{0}\u{1}".into(), 400, ""),
        ("[".repeat(4000), 400, ""),
        ("x".repeat(4097), 413, ""),
        (with("model", json!("gpt-9")), 404, "model"),
        (with("n", json!(9)), 400, "n"),
        (with("top_logprobs", json!(5)), 400, "top_logprobs"),
        (with("stream_options", json!({ "include_usage": true })), 400, "stream_options"),
        (with("top_p", json!(0)), 400, "top_p"),
        (with("tools", json!([{ "type": "function" }])), 400, "tools[0].function"),
        (with("logit_bias", json!({ "5": 1 })), 400, "logit_bias"),
        (with("presence_penalty", json!(9)), 400, "presence_penalty"),
        (with("max_tokens", json!(1_000_000)), 400, "max_tokens"),
        (with("max_tokens", json!(760)), 400, "messages"),
        (format(json!({ "type": "string", "pattern": "a" })), 400, schema),
        (format(json!({ "anyOf": [{ "type": "string" }, { "enum": ["a"] }] })), 400, schema),
        (format(json!({ "const": "qzj".repeat(40) })), 400, "max_tokens"),
    ]
}

fn wrong_messages() -> Vec<RefusedBody> {
    let picture = |url: &str| {
        with(
            "messages",
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": url } }] }]),
        )
    };
    let answered = |text: &str, token_ids: &[u32]| {
        with(
            "messages",
            json!([user("a"), { "role": "assistant", "content": text, "token_ids": token_ids }, user("c")]),
        )
    };
    let stop = template().stop();
    vec![
        (with("messages", json!([user("x"), user("x"), user("x"), user("x"), user("x")])), 400, "messages"),
        (with("messages", json!([user(&"漢".repeat(1200))])), 400, "messages"),
        (picture("http://169.254.169.254/latest"), 400, "messages[0].content[0].image_url.url"),
        (picture("data:image/png;base64,aGVsbG8="), 400, "messages[0].content"),
        (answered("b", &[4_000_000_000]), 400, "messages[1].token_ids"),
        (answered("", &[stop, stop]), 400, "messages[1].token_ids"),
        (answered("b", &[300]), 400, "messages[1].token_ids"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_the_form_of_the_protocol() {
    let worker = start(|file| {
        file.serve.body_bytes_max = 4096;
        (file.serve.images_max, file.serve.messages_max) = (1, 4);
    })
    .await;
    for (body, status, param) in [wrong_parameters(), wrong_messages()].concat() {
        let shown: String = body.chars().take(200).collect();
        let (got, text) = read(send(worker.address, "POST", "/v1/chat/completions", &[], body).await).await;
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let error = &value["error"];
        assert_eq!(got, status, "{shown}: {value}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{shown}: {value}");
        assert!(error["message"].as_str().is_some_and(|text| (5..400).contains(&text.len())), "{value}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    check_routes(&worker).await;
    let head = "GET /v1/models HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n";
    let (status, answer) = raw(worker.address, head).await;
    assert_eq!(status, 403, "{answer}");
    // A stream whose request is invalid is refused before it begins.
    let mut payload = request(json!([user("hi")]));
    (payload["stream"], payload["max_tokens"]) = (json!(true), json!(760));
    assert_eq!(worker.ask(&payload).await.0, 400);
    ChatWorker::expect_ok(worker.ask(&request(json!([user("still here")]))).await);
    worker.end().await;
}

async fn check_routes(worker: &ChatWorker) {
    let routes = [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/gpt-9", 404),
        ("GET", "/v1/models/tiny", 200),
        ("GET", "/v1/models/t%69ny", 200),
        ("GET", "/v1/models/t%ff%2", 404),
        ("DELETE", "/v1/models/tiny", 405),
        ("HEAD", "/v1/models", 200),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/health", 200),
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/v1/responses", 405),
        ("POST", "/v1/completions", 400),
        ("POST", "/v1/responses", 400),
    ];
    for (method, path, status) in routes {
        let answer = send(worker.address, method, path, &[], "").await;
        let headers = answer.headers().clone();
        let (got, text) = read(answer).await;
        assert_eq!(got, status, "{method} {path}: {text}");
        assert_eq!(headers.contains_key("allow"), status == 405, "{method} {path}: {headers:?}");
        assert!(headers.keys().all(|name| !name.as_str().starts_with("access-control-")), "{headers:?}");
    }
}

/// Sends these bytes and reads the answer to its end.
async fn raw(address: SocketAddr, text: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default(), answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_need_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "correct-horse-battery\n").unwrap();
    let worker = start(|file| file.serve.token_file = Some(path.clone())).await;
    let body = request(json!([user("hi")])).to_string();
    for (header, status) in [
        ("Bearer correct-horse-battery", 200),
        ("Bearer correct-horse-batterz", 401),
        ("Bearer", 401),
        ("Basic correct-horse-battery", 401),
    ] {
        let answer =
            send(worker.address, "POST", "/v1/chat/completions", &[("authorization", header)], body.clone())
                .await;
        let (got, text) = read(answer).await;
        assert_eq!(got, status, "{text}");
        assert!(status == 200 || text.contains("invalid_api_key") && !text.contains("horse"), "{text}");
    }
    assert_eq!(read(send(worker.address, "GET", "/v1/models", &[], "").await).await.0, 401);
    assert_eq!(read(send(worker.address, "GET", "/health", &[], "").await).await.0, 200);
    worker.end().await;
    let gone = Path::new("/nowhere/token");
    let config = config(|file| {
        file.serve.listen = "127.0.0.1:0".into();
        file.serve.token_file = Some(gone.to_owned());
    });
    assert!(
        ChatEndpoint::bind(config.serve.as_ref().unwrap())
            .await
            .unwrap_err()
            .to_string()
            .contains("token_file")
    );
}
