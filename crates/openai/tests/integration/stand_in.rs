//! The client against a server on a real socket that answers correctly or with errors.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_openai::{ApiKey, CallLimits, ChatCallError, ChatClient, ClientConfig, Completion, JudgeQuestion};
use furrow_testkit::chat_server::{FakeChatServer, ServerAction, reply};

const SECRET: &str = "sk-very-secret-0123456789";

fn config(endpoint: &str) -> ClientConfig {
    ClientConfig {
        endpoint: endpoint.parse().unwrap(),
        key: ApiKey::new(SECRET),
        model: "judge".into(),
        temperature: 0.0,
        max_tokens: 1000,
        call: Duration::from_millis(400),
        reply_bytes_max: 4096,
        attempts_max: 3,
        pause: Duration::from_millis(10),
    }
}

fn question() -> JudgeQuestion {
    let pictures = vec![Bytes::from_static(b"\x89PNG")];
    JudgeQuestion { system: "Judge.".into(), text: "Is it done?".into(), pictures, seed: 42 }
}

fn ask(config: ClientConfig) -> Result<Completion, ChatCallError> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let got = ChatClient::new(config).ask(&question(), CallLimits { deadline, stopped: &|| false });
    if let Err(error) = &got {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(SECRET), "the key is shown: {shown}");
    }
    got
}

/// Checks the final text or error, and how often the server was called.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "tables build their deeds inline")]
fn check(deeds: Vec<ServerAction>, want: Result<&str, &str>, calls: usize) {
    let server = FakeChatServer::start(deeds.clone()).unwrap();
    let got = ask(config(&server.endpoint()));
    match (&got, want) {
        (Ok(got), Ok(want)) => assert_eq!(got.text, want, "{deeds:?}"),
        (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{deeds:?}: {got}"),
        _ => panic!("{deeds:?}: {got:?}"),
    }
    assert_eq!(server.requests().len(), calls, "{deeds:?}");
}

fn say() -> ServerAction {
    ServerAction::Text("It is there.\nSUCCESS".into())
}

const REPLY_TEXT: Result<&str, &str> = Ok("It is there.\nSUCCESS");

#[test]
fn transient_failures_are_retried_and_permanent_ones_are_not() {
    check(vec![say()], REPLY_TEXT, 1);
    for status in [429, 500, 502, 503, 504, 529, 408] {
        check(vec![ServerAction::Status(status, None), say()], REPLY_TEXT, 2);
    }
    check(
        vec![ServerAction::Status(429, Some("0.05")), ServerAction::Status(500, None), say()],
        REPLY_TEXT,
        3,
    );
    check(vec![ServerAction::Status(500, None)], Err("no reply after 3 attempts"), 3);
    check(vec![ServerAction::Status(429, Some("nonsense"))], Err("answered 429: not now"), 3);
    for status in [400, 401, 403, 404, 413, 422] {
        check(
            vec![ServerAction::Status(status, None), say()],
            Err(&format!("answered {status}: not now")),
            1,
        );
    }
    check(vec![ServerAction::Redirect("http://127.0.0.1:1/".into()), say()], Err("answered 307"), 1);
}

#[test]
fn an_invalid_reply_is_retried() {
    let broken = [
        ServerAction::Body(reply("SUCCESS").replace('}', "")),
        ServerAction::Body("<html>busy</html>".into()),
        ServerAction::Body(String::new()),
        ServerAction::Body(r#"{"choices":[]}"#.into()),
        ServerAction::Body(r#"{"choices":[{"message":{"content":null}}]}"#.into()),
        ServerAction::Body(r#"{"error":{"message":"overloaded"}}"#.into()),
        ServerAction::Raw(Vec::new()),
        ServerAction::Raw(b"SSH-2.0-OpenSSH\r\n".to_vec()),
        ServerAction::Raw(b"HTTP/1.1 200 OK\r\n".to_vec()),
        ServerAction::Raw(vec![0xff; 100]),
        ServerAction::Truncated,
    ];
    for deed in broken {
        check(vec![deed.clone(), say()], REPLY_TEXT, 2);
    }
    check(vec![ServerAction::Truncated], Err("no reply after 3 attempts"), 3);
}

#[test]
fn a_slow_server_costs_a_call_its_deadline_and_no_more() {
    check(vec![ServerAction::Silence(Duration::from_secs(9)), say()], REPLY_TEXT, 2);
    check(vec![ServerAction::Drip(Duration::from_secs(9)), say()], REPLY_TEXT, 2);
    let began = Instant::now();
    check(vec![ServerAction::Silence(Duration::from_secs(60))], Err("did not answer within 400 ms"), 3);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_huge_reply_is_not_read_to_its_end() {
    check(vec![ServerAction::Huge(100_000), say()], Err("is longer than 4096 bytes"), 1);
    check(vec![ServerAction::Huge(3000)], Ok(&format!("SUCCESS{}", " ".repeat(3000))), 1);
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ask(config(&format!("http://{free}/v1"))).unwrap_err().to_string();
    assert!(error.contains("no reply after 3 attempts") && error.contains("cannot be reached"), "{error}");
    let error = ask(config("http://nowhere.invalid/v1")).unwrap_err().to_string();
    assert!(error.contains("nowhere.invalid cannot be reached") || error.contains("answered"), "{error}");
}

/// TLS works: a server without it is reported as unreachable, with an error and not a panic.
#[test]
fn an_address_with_tls_is_tried_with_tls() {
    let hello = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = hello.clone();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 6];
        std::io::Read::read_exact(&mut stream, &mut bytes).unwrap();
        *heard.lock().unwrap() = bytes.to_vec();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error =
        ask(ClientConfig { attempts_max: 1, ..config(&format!("https://{address}/v1")) }).unwrap_err();
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    server.join().unwrap();
    // A handshake record (22) of TLS 1.x, with a client hello (1) in it.
    let hello = hello.lock().unwrap();
    assert_eq!((hello[0], hello[1], hello[5]), (22, 3, 1), "{hello:?}");
}

#[test]
fn a_deadline_ends_the_attempts_and_so_does_a_stop() {
    let server = FakeChatServer::start(vec![ServerAction::Status(500, None)]).unwrap();
    let many_attempts =
        ClientConfig { attempts_max: 1000, pause: Duration::from_millis(40), ..config(&server.endpoint()) };
    let began = Instant::now();
    let until = CallLimits { deadline: began + Duration::from_millis(500), stopped: &|| false };
    let error = ChatClient::new(many_attempts.clone()).ask(&question(), until).unwrap_err();
    assert!(matches!(error, ChatCallError::GaveUp { attempts, .. } if attempts > 1), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let calls = server.requests().len();
    let until = CallLimits { deadline: began + Duration::from_secs(60), stopped: &|| true };
    assert_eq!(ChatClient::new(many_attempts).ask(&question(), until), Err(ChatCallError::Stopped));
    assert_eq!(server.requests().len(), calls);
}

#[test]
fn requests_follow_the_protocol_and_the_key_goes_in_its_header() {
    let server = FakeChatServer::start(vec![say()]).unwrap();
    let got = ask(config(&format!("{}/", server.endpoint()))).unwrap();
    assert_eq!((got.prompt_tokens, got.completion_tokens, got.cut), (1200, 30, false));
    let request = server.requests().remove(0);
    assert_eq!(request.line, "POST /v1/chat/completions HTTP/1.1");
    let headers: Vec<_> = request.headers.iter().map(|header| header.to_ascii_lowercase()).collect();
    assert!(headers.contains(&format!("authorization: bearer {SECRET}")), "{headers:?}");
    assert!(request.body.contains("data:image/png;base64,iVBORw==") && !request.body.contains(SECRET));
    ask(ClientConfig { key: None, ..config(&server.endpoint()) }).unwrap();
    assert!(
        !server.requests()[1]
            .headers
            .iter()
            .any(|header| header.to_ascii_lowercase().starts_with("authorization"))
    );
}

#[test]
fn a_server_that_repeats_the_key_does_not_get_it_into_an_error() {
    for body in [format!(r#"{{"error":{{"message":"bad key {SECRET}"}}}}"#), format!("Bearer {SECRET}")] {
        let head = format!("HTTP/1.1 401 No\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        check(vec![ServerAction::Raw(head.into_bytes())], Err("answered 401: "), 1);
    }
    assert_eq!(format!("{:?}", ApiKey::new(SECRET)), "Some(ApiKey(…))");
    assert_eq!(ApiKey::new(" \n"), None);
    assert_eq!(ApiKey::new("two words"), None);
    assert_eq!(ApiKey::new(&format!("{SECRET}\n")), ApiKey::new(SECRET));
}
