//! The `openai` policy against a server on a real socket that answers correctly or with errors.

use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_policy::{Policy, PolicyError, PolicyFile, PolicyInput, PolicyOutput, RemotePolicy, Session};
use furrow_rollout::*;
use furrow_testkit::chat_server::{FakeChatServer, ReceivedRequest, ServerAction, completion};
use furrow_wire::{PastStep, SessionOpening};

const CLICK: &str =
    r#"{"note":"","thought":"there","action":{"action":"click_element","element":"OK","x":500,"y":250}}"#;

/// Ids of a prompt with one image of three rows; 9 is the placeholder.
const PROMPT: &[u32] = &[1, 2, 9, 9, 9, 3];

fn say() -> ServerAction {
    ServerAction::Body(completion(CLICK, None))
}

fn file(server: &FakeChatServer) -> PolicyFile {
    let mut file = PolicyFile { kind: "openai".into(), ..PolicyFile::default() };
    file.remote.endpoint = server.endpoint();
    file.remote.model = "actor".into();
    file.remote.call_millis = 400;
    file.remote.pause_millis = 5;
    file.remote.attempts_max = 3;
    file.remote.reply_bytes_max = 8192;
    file
}

/// Opens sessions of one job.
struct RemoteJob {
    policy: RemotePolicy,
    session: SessionSpec,
}

impl RemoteJob {
    fn new(file: PolicyFile) -> Self {
        let config = file.check().unwrap();
        Self { policy: RemotePolicy::new(config.remote.unwrap()), session: config.session }
    }

    fn opening(&self, past_steps: u32) -> SessionOpening {
        let ancestry = ancestry();
        let session = self.session.clone();
        SessionOpening { ancestry, token: 1, session, goal: "press OK".into(), past_steps }
    }

    async fn open(&self) -> Box<dyn Session> {
        self.policy.open(&self.opening(0)).await.unwrap()
    }

    async fn act(&self, session: &mut Box<dyn Session>, step: u32) -> Result<PolicyOutput, PolicyError> {
        let ancestry = ancestry();
        let observation = observation(step);
        let outcome = Outcome { name: OutcomeName::Ok, detail: format!("seen {step}") };
        let turn = PolicyInput {
            ancestry: &ancestry,
            session: &self.session,
            goal: "press OK",
            step,
            observation: &observation,
            last_outcome: (step > 0).then_some(&outcome),
            hint_json: None,
        };
        session.act(turn).await
    }
}

fn ancestry() -> TrajectoryAncestry {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, 0);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id }
}

/// A small PNG that differs for each step.
fn screenshot(step: u32) -> Screenshot {
    let mut bytes = Vec::new();
    let pixels = image::RgbImage::from_pixel(32, 32, image::Rgb([step as u8, 1, 2]));
    pixels.write_to(&mut std::io::Cursor::new(&mut bytes), image::ImageFormat::Png).unwrap();
    Screenshot { bytes: Bytes::from(bytes), format: ImageFormat::Png, size: Size::new(32, 32) }
}

fn observation(step: u32) -> Observation {
    Observation {
        screenshot: screenshot(step),
        url: "http://starter.test/".into(),
        title: String::new(),
        tabs: vec![],
        scroll_y: 0.0,
        page_height: 8.0,
        axtree: None,
        marks: None,
    }
}

fn replied(answer: Result<PolicyOutput, PolicyError>) -> (PolicyReply, Trace) {
    match answer.unwrap() {
        PolicyOutput::Reply(given) => *given,
        PolicyOutput::ContextFull => panic!("the context is full"),
    }
}

/// The turns of a request: `role text` and a `*` for each image.
fn turns(request: &ReceivedRequest) -> Vec<String> {
    let sent: serde_json::Value = serde_json::from_str(&request.body).unwrap();
    let turn = |message: &serde_json::Value| {
        let role = message["role"].as_str().unwrap();
        let (text, pictures) = match &message["content"] {
            serde_json::Value::String(text) => (text.clone(), 0),
            parts => (parts[0]["text"].as_str().unwrap().to_owned(), parts.as_array().unwrap().len() - 1),
        };
        let text = if role == "system" { "…".to_owned() } else { text.replace(CLICK, "CLICK") };
        format!("{role} {text}{}", " *".repeat(pictures))
    };
    sent["messages"].as_array().unwrap().iter().map(turn).collect()
}

#[tokio::test]
async fn each_context_policy_sends_its_own_turns_and_pictures() {
    let table: [(&str, &[&str]); 4] = [
        (
            "append",
            &[
                "user press OK *",
                "assistant CLICK",
                "user ok: seen 1 *",
                "assistant CLICK",
                "user ok: seen 2 *",
            ],
        ),
        (
            "last_image",
            &["user press OK", "assistant CLICK", "user ok: seen 1", "assistant CLICK", "user ok: seen 2 *"],
        ),
        (
            "window(2)",
            &[
                "user press OK",
                "assistant CLICK",
                "user ok: seen 1 *",
                "assistant CLICK",
                "user ok: seen 2 *",
            ],
        ),
        ("fresh", &["user press OK\nCLICK\nok: seen 1\nCLICK\nok: seen 2 *"]),
    ];
    for (keep, want) in table {
        let server = FakeChatServer::start(vec![say()]).unwrap();
        let mut file = file(&server);
        file.context.keep = keep.into();
        let job = RemoteJob::new(file);
        let mut session = job.open().await;
        for step in 0..3 {
            let (reply, _) = replied(job.act(&mut session, step).await);
            assert_eq!(reply.action, Ok(Action::click(PagePoint { x: 16.0, y: 8.0 })), "{keep}");
        }
        let requests = server.requests();
        assert_eq!(turns(&requests[2])[1..], *want, "{keep}");
        // A session rebuilt on another worker continues with the same turns.
        let mut rebuilt = job.policy.open(&job.opening(2)).await.unwrap();
        for step in 0..2 {
            let outcome = Outcome { name: OutcomeName::Ok, detail: format!("seen {step}") };
            let action = Err("not used again".to_owned());
            let reply =
                PolicyReply { raw_text: CLICK.into(), name: String::new(), args_json: "{}".into(), action };
            let trace = Trace {
                policy_kind: PolicyKind::Openai,
                policy_version: None,
                state_version_min: None,
                tokens: None,
                engine: EngineStats::default(),
                rescored: Vec::new(),
            };
            let last_outcome = (step > 0).then_some(outcome);
            rebuilt
                .rebuild_step(PastStep { step, screenshot: screenshot(step), last_outcome, reply, trace })
                .await
                .unwrap();
        }
        replied(job.act(&mut rebuilt, 2).await);
        assert_eq!(server.requests()[3].body, requests[2].body, "{keep}");
    }
}

#[tokio::test]
async fn sampling_settings_and_the_key_are_sent_and_each_step_has_a_seed() {
    let server = FakeChatServer::start(vec![say()]).unwrap();
    let mut file = file(&server);
    (file.sampling.temperature, file.sampling.max_tokens, file.sampling.top_p) = (0.7, 64, 0.9);
    // Cargo sets this variable for every test.
    file.remote.key_env = Some("CARGO_PKG_NAME".into());
    let config = file.check().unwrap().with_key().unwrap();
    let job = RemoteJob { policy: RemotePolicy::new(config.remote.unwrap()), session: config.session };
    let mut session = job.open().await;
    replied(job.act(&mut session, 0).await);
    replied(job.act(&mut session, 1).await);
    let requests = server.requests();
    let has_key = |header: &String| header.eq_ignore_ascii_case("authorization: Bearer furrow-policy");
    assert!(requests[0].headers.iter().any(has_key), "{:?}", requests[0].headers);
    let sent: Vec<serde_json::Value> =
        requests.iter().map(|request| serde_json::from_str(&request.body).unwrap()).collect();
    assert_eq!(
        (&sent[0]["model"], &sent[0]["temperature"], &sent[0]["max_tokens"], &sent[0]["top_p"]),
        (&"actor".into(), &0.7.into(), &64.into(), &0.9.into())
    );
    assert_ne!(sent[0]["seed"], sent[1]["seed"]);
    assert!(sent[0].get("top_k").is_none() && sent[0].get("logprobs").is_none(), "{}", sent[0]);
}

#[tokio::test]
async fn tokens_are_taken_where_they_can_be_tied_to_the_pictures() {
    let logprobs = [-0.25_f32, -0.5];
    let offered = |prompt, logprobs| ServerAction::Body(completion(CLICK, Some((prompt, &[7, 8], logprobs))));
    let trace = async |deed: ServerAction, change: fn(&mut PolicyFile)| {
        let server = FakeChatServer::start(vec![deed]).unwrap();
        let mut file = file(&server);
        (file.remote.logprobs, file.remote.token_ids) = (true, true);
        file.remote.image_token_id = Some(9);
        file.remote.usd_per_million_prompt_tokens = Some(2.0);
        file.remote.usd_per_million_completion_tokens = Some(10.0);
        change(&mut file);
        let job = RemoteJob::new(file);
        let mut session = job.open().await;
        replied(job.act(&mut session, 0).await).1
    };
    let whole = trace(offered(PROMPT, &logprobs), |_| {}).await;
    let engine = &whole.engine;
    assert_eq!((engine.prefill_tokens, engine.reused_tokens, engine.decode_steps), (1000, 200, 30));
    // 1,200 tokens at 2 US dollars a million and 30 at 10.
    assert!((engine.cost_usd.unwrap() - 0.0027).abs() < 1e-9, "{engine:?}");
    let tokens = whole.tokens.unwrap();
    assert_eq!((&tokens.prompt_token_ids[..], &tokens.response_token_ids[..]), (PROMPT, &[7, 8][..]));
    assert_eq!(tokens.logprobs, Some(vec![Some(-0.25), Some(-0.5)]));
    assert_eq!(tokens.sampled_logprobs, tokens.logprobs, "no filter changes the distribution");
    assert_eq!((tokens.prefix_len, tokens.commit_token_ids), (0, Some(Vec::new())));
    let [span] = &tokens.image_spans[..] else { panic!("{:?}", tokens.image_spans) };
    assert_eq!((span.step, span.token_start, span.token_len), (0, 2, 3));
    assert_eq!(tokens.prompt_hash, token_hash(PROMPT, &tokens.image_spans));

    let warm = trace(offered(PROMPT, &logprobs), |file| file.sampling.temperature = 0.5).await;
    assert_eq!(warm.tokens.unwrap().logprobs, None, "the endpoint returns log-probs of temperature 1");
    let cut = trace(offered(PROMPT, &logprobs), |file| file.sampling.top_p = 0.5).await.tokens.unwrap();
    assert!(cut.logprobs.is_some() && cut.sampled_logprobs.is_none());
    let short = trace(offered(PROMPT, &logprobs[..1]), |_| {}).await;
    assert_eq!(short.tokens.unwrap().logprobs, None);
    for (deed, change) in [
        (offered(&[1, 9, 2, 9], &logprobs), (|_| {}) as fn(&mut PolicyFile)),
        (offered(&[1, 2], &logprobs), |_| {}),
        (offered(PROMPT, &logprobs), |file| file.remote.image_token_id = None),
        (say(), |_| {}),
    ] {
        assert_eq!(trace(deed.clone(), change).await.tokens, None, "{deed:?}");
    }
}

/// Checks the outcome of the first step, and how often the server was called.
#[track_caller]
fn check(
    got: &Result<PolicyOutput, PolicyError>,
    want: Result<(), &str>,
    server: &FakeChatServer,
    calls: usize,
) {
    match (got, want) {
        (Ok(PolicyOutput::Reply(_)), Ok(())) => {}
        (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
        _ => panic!("{got:?}, not {want:?}"),
    }
    assert_eq!(server.requests().len(), calls);
}

#[tokio::test]
async fn transient_failures_are_retried_and_permanent_ones_reported() {
    let table: Vec<(Vec<ServerAction>, Result<(), &str>, usize)> = vec![
        (vec![ServerAction::Status(429, Some("0.02")), ServerAction::Status(500, None), say()], Ok(()), 3),
        (vec![ServerAction::Status(503, None)], Err("no reply after 3 attempts"), 3),
        (vec![ServerAction::Status(401, None)], Err("answered 401: not now"), 1),
        (vec![ServerAction::Body("<html>busy</html>".into()), say()], Ok(()), 2),
        (vec![ServerAction::Truncated, say()], Ok(()), 2),
        (vec![ServerAction::Silence(Duration::from_secs(9)), say()], Ok(()), 2),
        (vec![ServerAction::Drip(Duration::from_secs(9)), say()], Ok(()), 2),
        (vec![ServerAction::Huge(100_000)], Err("is longer than 8192 bytes"), 1),
    ];
    for (deeds, want, calls) in table {
        let server = FakeChatServer::start(deeds.clone()).unwrap();
        let job = RemoteJob::new(file(&server));
        let mut session = job.open().await;
        check(&job.act(&mut session, 0).await, want, &server, calls);
    }
}

#[tokio::test]
async fn a_reply_has_one_deadline_and_a_text_that_is_no_action_is_the_policys_own() {
    let server = FakeChatServer::start(vec![ServerAction::Silence(Duration::from_secs(60))]).unwrap();
    let mut short_deadline = file(&server);
    (short_deadline.remote.deadline_millis, short_deadline.remote.attempts_max) = (700, 50);
    let job = RemoteJob::new(short_deadline);
    let mut session = job.open().await;
    let began = Instant::now();
    assert!(job.act(&mut session, 0).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    let server = FakeChatServer::start(vec![ServerAction::Body(completion("I cannot.", None))]).unwrap();
    let job = RemoteJob::new(file(&server));
    let mut session = job.open().await;
    let (reply, trace) = replied(job.act(&mut session, 0).await);
    assert!(reply.action.is_err() && reply.raw_text == "I cannot.");
    assert_eq!((trace.policy_kind, trace.tokens), (PolicyKind::Openai, None));

    let refusal = r#"{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}"#;
    let server = FakeChatServer::start(vec![ServerAction::Body(refusal.into())]).unwrap();
    let job = RemoteJob::new(file(&server));
    let mut session = job.open().await;
    let (reply, _) = replied(job.act(&mut session, 0).await);
    assert!(reply.action.is_err() && reply.raw_text.is_empty());
    assert_eq!(server.requests().len(), 1, "the call is not repeated");
}

#[tokio::test]
async fn a_conversation_that_is_too_long_fills_the_context() {
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens."}}"#;
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let server = FakeChatServer::start(vec![ServerAction::Raw(head.into_bytes())]).unwrap();
    let job = RemoteJob::new(file(&server));
    let mut session = job.open().await;
    assert_eq!(job.act(&mut session, 0).await.unwrap(), PolicyOutput::ContextFull);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn calls_beyond_the_bound_wait_and_a_session_that_is_gone_stops_asking() {
    let server = FakeChatServer::start(vec![ServerAction::Silence(Duration::from_secs(60))]).unwrap();
    let mut one_call = file(&server);
    (one_call.remote.calls_max, one_call.remote.attempts_max, one_call.remote.deadline_millis) = (1, 1, 1000);
    one_call.remote.call_millis = 5000;
    let job = RemoteJob::new(one_call);
    let mut first = job.open().await;
    let mut second = job.open().await;
    let (a, b) = tokio::join!(job.act(&mut first, 0), job.act(&mut second, 0));
    let errors = [a, b].map(|answer| answer.unwrap_err().to_string());
    assert!(errors.iter().any(|error| error.contains("policy.remote.calls_max = 1")), "{errors:?}");
    assert_eq!(server.requests().len(), 1);

    let server = FakeChatServer::start(vec![ServerAction::Status(503, None)]).unwrap();
    let mut many_attempts = file(&server);
    (many_attempts.remote.attempts_max, many_attempts.remote.pause_millis) = (100, 400);
    let job = RemoteJob::new(many_attempts);
    let mut session = job.open().await;
    assert!(tokio::time::timeout(Duration::from_millis(100), job.act(&mut session, 0)).await.is_err());
    drop(session);
    let calls = server.requests().len();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(server.requests().len() <= calls + 1, "calls continue: {}", server.requests().len());
}
