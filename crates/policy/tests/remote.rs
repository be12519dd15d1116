//! The `openai` policy against a server that speaks the protocol over a real socket, well and badly.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use furrow_policy::{Answer, Policy, PolicyError, PolicyFile, Remote, Session, Turn};
use furrow_rollout::*;
use furrow_testkit::judge::{Asked, Deed, StandIn, completion};
use furrow_wire::{Opening, PastStep};

const CLICK: &str =
    r#"{"note":"","thought":"there","action":{"action":"click_element","element":"OK","x":500,"y":250}}"#;

/// Ids of a prompt with one picture of three rows; 9 is the placeholder.
const PROMPT: &[u32] = &[1, 2, 9, 9, 9, 3];

fn say() -> Deed {
    Deed::Body(completion(CLICK, None))
}

fn file(server: &StandIn) -> PolicyFile {
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
struct Job {
    policy: Remote,
    session: SessionSpec,
}

impl Job {
    fn new(file: PolicyFile) -> Self {
        let config = file.check().unwrap();
        Self { policy: Remote::new(config.remote.unwrap()), session: config.session }
    }

    fn opening(&self, past_steps: u32) -> Opening {
        let (ancestry, session) = (ancestry(), self.session.clone());
        Opening { ancestry, token: 1, session, goal: "press OK".into(), past_steps }
    }

    async fn open(&self) -> Box<dyn Session> {
        self.policy.open(&self.opening(0)).await.unwrap()
    }

    async fn act(&self, session: &mut Box<dyn Session>, step: u32) -> Result<Answer, PolicyError> {
        let (ancestry, observation) = (ancestry(), observation(step));
        let outcome = Outcome { name: OutcomeName::Ok, detail: format!("seen {step}") };
        let turn = Turn {
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

fn ancestry() -> Ancestry {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, 0);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Ancestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id }
}

/// A small PNG of its own for each step.
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

fn replied(answer: Result<Answer, PolicyError>) -> (Reply, Trace) {
    match answer.unwrap() {
        Answer::Reply(given) => *given,
        Answer::ContextFull => panic!("the context is full"),
    }
}

/// The turns of a request: `role text` and a `*` for each picture.
fn turns(asked: &Asked) -> Vec<String> {
    let sent: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
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
        let server = StandIn::start(vec![say()]).unwrap();
        let mut file = file(&server);
        file.context.keep = keep.into();
        let job = Job::new(file);
        let mut session = job.open().await;
        for step in 0..3 {
            let (reply, _) = replied(job.act(&mut session, step).await);
            assert_eq!(reply.action, Ok(Action::click(PagePoint { x: 16.0, y: 8.0 })), "{keep}");
        }
        let asked = server.asked();
        assert_eq!(turns(&asked[2])[1..], *want, "{keep}");
        // Rebuilt elsewhere, it goes on with the same turns.
        let mut rebuilt = job.policy.open(&job.opening(2)).await.unwrap();
        for step in 0..2 {
            let outcome = Outcome { name: OutcomeName::Ok, detail: format!("seen {step}") };
            let action = Err("not read again".to_owned());
            let reply = Reply { raw_text: CLICK.into(), name: String::new(), args_json: "{}".into(), action };
            let trace = Trace {
                policy_kind: PolicyKind::Openai,
                policy_version: None,
                state_version_min: None,
                tokens: None,
                engine: Engine::default(),
                scored_again: Vec::new(),
            };
            let last_outcome = (step > 0).then_some(outcome);
            rebuilt
                .recall(PastStep { step, screenshot: screenshot(step), last_outcome, reply, trace })
                .await
                .unwrap();
        }
        replied(job.act(&mut rebuilt, 2).await);
        assert_eq!(server.asked()[3].body, asked[2].body, "{keep}");
    }
}

#[tokio::test]
async fn sampling_settings_and_the_key_are_sent_and_each_step_has_a_seed() {
    let server = StandIn::start(vec![say()]).unwrap();
    let mut file = file(&server);
    (file.sampling.temperature, file.sampling.max_tokens, file.sampling.top_p) = (0.7, 64, 0.9);
    // Cargo says to every test whose it is.
    file.remote.key_env = Some("CARGO_PKG_NAME".into());
    let config = file.check().unwrap().with_key().unwrap();
    let job = Job { policy: Remote::new(config.remote.unwrap()), session: config.session };
    let mut session = job.open().await;
    replied(job.act(&mut session, 0).await);
    replied(job.act(&mut session, 1).await);
    let asked = server.asked();
    let has_key = |header: &String| header.eq_ignore_ascii_case("authorization: Bearer furrow-policy");
    assert!(asked[0].headers.iter().any(has_key), "{:?}", asked[0].headers);
    let sent: Vec<serde_json::Value> =
        asked.iter().map(|asked| serde_json::from_str(&asked.body).unwrap()).collect();
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
    let offered = |prompt, logprobs| Deed::Body(completion(CLICK, Some((prompt, &[7, 8], logprobs))));
    let trace = async |deed: Deed, change: fn(&mut PolicyFile)| {
        let server = StandIn::start(vec![deed]).unwrap();
        let mut file = file(&server);
        (file.remote.logprobs, file.remote.token_ids) = (true, true);
        file.remote.image_token_id = Some(9);
        file.remote.usd_per_million_prompt_tokens = Some(2.0);
        file.remote.usd_per_million_completion_tokens = Some(10.0);
        change(&mut file);
        let job = Job::new(file);
        let mut session = job.open().await;
        replied(job.act(&mut session, 0).await).1
    };
    let whole = trace(offered(PROMPT, &logprobs), |_| {}).await;
    let engine = &whole.engine;
    assert_eq!((engine.prefill_tokens, engine.reused_tokens, engine.decode_steps), (1000, 200, 30));
    // 1,200 tokens at 2 and 30 at 10 dollars a million.
    assert!((engine.cost_usd.unwrap() - 0.0027).abs() < 1e-9, "{engine:?}");
    let tokens = whole.tokens.unwrap();
    assert_eq!((&tokens.prompt_token_ids[..], &tokens.response_token_ids[..]), (PROMPT, &[7, 8][..]));
    assert_eq!(tokens.logprobs, Some(vec![Some(-0.25), Some(-0.5)]));
    assert_eq!(tokens.sampled_logprobs, tokens.logprobs, "nothing cuts the distribution");
    assert_eq!((tokens.prefix_len, tokens.commit_token_ids), (0, Some(Vec::new())));
    let [span] = &tokens.image_spans[..] else { panic!("{:?}", tokens.image_spans) };
    assert_eq!((span.step, span.token_start, span.token_len), (0, 2, 3));
    assert_eq!(tokens.prompt_hash, token_hash(PROMPT, &tokens.image_spans));

    let warm = trace(offered(PROMPT, &logprobs), |file| file.sampling.temperature = 0.5).await;
    assert_eq!(warm.tokens.unwrap().logprobs, None, "the endpoint's are those of temperature 1");
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

/// What came of the first step, and how often the server was asked.
#[track_caller]
fn check(got: &Result<Answer, PolicyError>, want: Result<(), &str>, server: &StandIn, asked: usize) {
    match (got, want) {
        (Ok(Answer::Reply(_)), Ok(())) => {}
        (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
        _ => panic!("{got:?}, not {want:?}"),
    }
    assert_eq!(server.asked().len(), asked);
}

#[tokio::test]
async fn what_may_heal_is_tried_again_and_what_will_not_is_told() {
    let table: Vec<(Vec<Deed>, Result<(), &str>, usize)> = vec![
        (vec![Deed::Status(429, Some("0.02")), Deed::Status(500, None), say()], Ok(()), 3),
        (vec![Deed::Status(503, None)], Err("no reply after 3 attempts"), 3),
        (vec![Deed::Status(401, None)], Err("answered 401: not now"), 1),
        (vec![Deed::Body("<html>busy</html>".into()), say()], Ok(()), 2),
        (vec![Deed::Truncated, say()], Ok(()), 2),
        (vec![Deed::Silence(Duration::from_secs(9)), say()], Ok(()), 2),
        (vec![Deed::Drip(Duration::from_secs(9)), say()], Ok(()), 2),
        (vec![Deed::Huge(100_000)], Err("is longer than 8192 bytes"), 1),
    ];
    for (deeds, want, asked) in table {
        let server = StandIn::start(deeds.clone()).unwrap();
        let job = Job::new(file(&server));
        let mut session = job.open().await;
        check(&job.act(&mut session, 0).await, want, &server, asked);
    }
}

#[tokio::test]
async fn a_reply_has_one_deadline_and_a_text_that_is_no_action_is_the_policys_own() {
    let server = StandIn::start(vec![Deed::Silence(Duration::from_secs(60))]).unwrap();
    let mut impatient = file(&server);
    (impatient.remote.deadline_millis, impatient.remote.attempts_max) = (700, 50);
    let job = Job::new(impatient);
    let mut session = job.open().await;
    let began = Instant::now();
    assert!(job.act(&mut session, 0).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    let server = StandIn::start(vec![Deed::Body(completion("I cannot.", None))]).unwrap();
    let job = Job::new(file(&server));
    let mut session = job.open().await;
    let (reply, trace) = replied(job.act(&mut session, 0).await);
    assert!(reply.action.is_err() && reply.raw_text == "I cannot.");
    assert_eq!((trace.policy_kind, trace.tokens), (PolicyKind::Openai, None));

    let refusal = r#"{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}"#;
    let server = StandIn::start(vec![Deed::Body(refusal.into())]).unwrap();
    let job = Job::new(file(&server));
    let mut session = job.open().await;
    let (reply, _) = replied(job.act(&mut session, 0).await);
    assert!(reply.action.is_err() && reply.raw_text.is_empty());
    assert_eq!(server.asked().len(), 1, "and nobody pays for it twice");
}

#[tokio::test]
async fn a_conversation_that_is_too_long_fills_the_context() {
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens."}}"#;
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let server = StandIn::start(vec![Deed::Raw(head.into_bytes())]).unwrap();
    let job = Job::new(file(&server));
    let mut session = job.open().await;
    assert_eq!(job.act(&mut session, 0).await.unwrap(), Answer::ContextFull);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn calls_beyond_the_bound_wait_and_a_session_that_is_gone_stops_asking() {
    let server = StandIn::start(vec![Deed::Silence(Duration::from_secs(60))]).unwrap();
    let mut one_place = file(&server);
    (one_place.remote.calls_max, one_place.remote.attempts_max, one_place.remote.deadline_millis) =
        (1, 1, 1000);
    one_place.remote.call_millis = 5000;
    let job = Job::new(one_place);
    let (mut first, mut second) = (job.open().await, job.open().await);
    let (a, b) = tokio::join!(job.act(&mut first, 0), job.act(&mut second, 0));
    let told = [a, b].map(|answer| answer.unwrap_err().to_string());
    assert!(told.iter().any(|told| told.contains("policy.remote.calls_max = 1")), "{told:?}");
    assert_eq!(server.asked().len(), 1);

    let server = StandIn::start(vec![Deed::Status(503, None)]).unwrap();
    let mut patient = file(&server);
    (patient.remote.attempts_max, patient.remote.pause_millis) = (100, 400);
    let job = Job::new(patient);
    let mut session = job.open().await;
    assert!(tokio::time::timeout(Duration::from_millis(100), job.act(&mut session, 0)).await.is_err());
    drop(session);
    let asked = server.asked().len();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(server.asked().len() <= asked + 1, "it is still asked: {}", server.asked().len());
}
