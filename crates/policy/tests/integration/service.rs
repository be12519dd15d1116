//! The session stream over real gRPC on loopback.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use furrow_policy::{PolicyConfig, PolicyFile, run};
use furrow_rollout::*;
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{
    Acted, Close, Observe, SessionRequest, SessionResponse, session_request, session_response,
};
use furrow_wire::{
    Connector, PeerRole, SessionOpening, TcpConnector, observation_into, past_into, reply_from,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

struct TestWorker {
    address: String,
    config: PolicyConfig,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<furrow_policy::WorkerReport>,
}

async fn worker(kind: &str, change: impl FnOnce(&mut PolicyFile)) -> TestWorker {
    let mut file = PolicyFile { kind: kind.into(), ..PolicyFile::default() };
    change(&mut file);
    let config = file.check().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    let life = run(
        config.clone(),
        Id::new("policy-0").unwrap(),
        listener,
        Arc::new(TcpConnector::default()),
        None,
        Duration::from_millis(200),
        stop.clone(),
    );
    let done = tokio::spawn(async move { life.await.unwrap() });
    TestWorker { address, config, stop, done }
}

struct TestStream {
    requests: mpsc::Sender<SessionRequest>,
    responses: Streaming<SessionResponse>,
}

fn opening(worker: &TestWorker, token: u64, past_steps: u32) -> SessionOpening {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, 0);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    SessionOpening {
        ancestry: TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token,
        session: worker.config.session.clone(),
        goal: "press OK".into(),
        past_steps,
    }
}

async fn begin(worker: &TestWorker, first: session_request::Event) -> Result<TestStream, Status> {
    let channel = TcpConnector::default().channel(PeerRole::Policy, &worker.address).unwrap();
    let (requests, receiver) = mpsc::channel(8);
    requests.send(SessionRequest { event: Some(first) }).await.unwrap();
    let responses =
        PolicyServiceClient::new(channel).session(ReceiverStream::new(receiver)).await?.into_inner();
    Ok(TestStream { requests, responses })
}

async fn open(worker: &TestWorker, token: u64) -> TestStream {
    begin(worker, session_request::Event::Open((&opening(worker, token, 0)).into())).await.unwrap()
}

impl TestStream {
    async fn send(&self, event: session_request::Event) {
        self.requests.send(SessionRequest { event: Some(event) }).await.unwrap();
    }

    async fn next(&mut self) -> Result<session_response::Event, Status> {
        let message =
            tokio::time::timeout(Duration::from_secs(60), self.responses.message()).await.unwrap()?;
        Ok(message.ok_or_else(|| Status::cancelled("the stream ended"))?.event.unwrap())
    }

    async fn opened(&mut self) -> bool {
        matches!(self.next().await.unwrap(), session_response::Event::Opened(opened) if opened.wants_hints)
    }

    async fn observe(&mut self, step: u32, hint: Option<&str>) -> Result<Acted, Status> {
        self.send(session_request::Event::Observe(Observe {
            step,
            observation: Some(observation_into(&observation())),
            last_outcome: None,
            hint_json: hint.map(str::to_owned),
        }))
        .await;
        match self.next().await? {
            session_response::Event::Acted(acted) => Ok(acted),
            other => panic!("{other:?}"),
        }
    }
}

fn screenshot() -> Screenshot {
    Screenshot { bytes: Bytes::from_static(b"pixels"), format: ImageFormat::Png, size: Size::new(512, 512) }
}

fn observation() -> Observation {
    Observation {
        screenshot: screenshot(),
        url: "http://starter.test/".into(),
        title: String::new(),
        tabs: vec![],
        scroll_y: 0.0,
        page_height: 512.0,
        axtree: None,
        marks: None,
    }
}

fn reply(acted: Acted) -> PolicyReply {
    reply_from(acted.reply.unwrap()).unwrap()
}

#[tokio::test]
async fn a_scripted_session_follows_its_hints() {
    let worker = worker("scripted", |_| {}).await;
    let mut session = open(&worker, 1).await;
    assert!(session.opened().await, "scripted wants hints");
    let hint = r#"{"action":"click_element","element":"OK","x":256,"y":128}"#;
    let got = reply(session.observe(0, Some(hint)).await.unwrap());
    assert_eq!(got.action, Ok(Action::click(PagePoint { x: 256.0, y: 128.0 })));
    assert_eq!(got.args_json, r#"{"element":"OK","x":500,"y":250}"#);
    let none = reply(session.observe(1, None).await.unwrap());
    assert!(none.action.is_err(), "a page without a demonstration does not count as an attempt");
    let waits = [("null", 1, ""), (r#"{"action":"wait","seconds":2}"#, 2, "wait")];
    for (step, (hint, seconds, name)) in (2..).zip(waits) {
        let got = reply(session.observe(step, Some(hint)).await.unwrap());
        assert_eq!((got.action, got.name.as_str()), (Ok(Action::Wait { seconds }), name), "{hint}");
        assert!(got.raw_text.contains("wait"), "a chat of the steps stays whole: {}", got.raw_text);
    }
    let wrong = session.observe(4, Some("{}")).await.unwrap_err();
    assert_eq!(wrong.code(), Code::Internal);
    assert!(wrong.message().contains("the demonstration cannot be followed"), "{wrong}");
}

#[tokio::test]
async fn the_same_step_gets_the_same_reply_even_after_the_stream_broke() {
    let worker = worker("random", |_| {}).await;
    let mut session = open(&worker, 1).await;
    assert!(!session.opened().await);
    let first = session.observe(0, None).await.unwrap();
    assert_eq!(session.observe(0, None).await.unwrap(), first);
    drop(session);
    let mut reopened = open(&worker, 1).await;
    reopened.opened().await;
    assert_eq!(reopened.observe(0, None).await.unwrap(), first, "the same reply, with its timings");
    reopened.send(session_request::Event::Close(Close {})).await;
    assert!(reopened.next().await.is_err(), "Close ends the stream");
}

#[tokio::test]
async fn a_session_rebuilt_elsewhere_goes_on_as_it_would_have() {
    let here = worker("random", |_| {}).await;
    let there = worker("random", |_| {}).await;
    let mut session = open(&here, 1).await;
    session.opened().await;
    let first = session.observe(0, None).await.unwrap();
    let want = reply(session.observe(1, None).await.unwrap());

    let open = session_request::Event::Open((&opening(&there, 1, 1)).into());
    let mut moved = begin(&there, open).await.unwrap();
    let past = past_into(0, &screenshot(), None, &reply(first.clone()), first.trace.clone());
    moved.send(session_request::Event::Past(past)).await;
    moved.opened().await;
    assert_eq!(reply(moved.observe(1, None).await.unwrap()), want);
}

#[tokio::test]
async fn a_younger_assignment_takes_the_session_and_an_older_one_is_refused() {
    let worker = worker("random", |_| {}).await;
    let mut old = open(&worker, 5).await;
    old.opened().await;
    let mut young = open(&worker, 6).await;
    young.opened().await;
    assert_eq!(old.next().await.unwrap_err().code(), Code::Aborted);
    let mut stale = open(&worker, 5).await;
    assert_eq!(stale.next().await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn messages_out_of_order_are_refused_with_a_reason() {
    let worker = worker("random", |file| file.sessions_max = 1).await;
    let mut headless = begin(&worker, session_request::Event::Close(Close {})).await.unwrap();
    assert!(headless.next().await.unwrap_err().message().contains("must be Open"));

    let open_with_past = session_request::Event::Open((&opening(&worker, 1, 2)).into());
    let mut short = begin(&worker, open_with_past).await.unwrap();
    short.send(session_request::Event::Close(Close {})).await;
    assert!(short.next().await.unwrap_err().message().contains("Past with step 0 of 2"));

    let mut bad_id: furrow_wire::v1::Open = (&opening(&worker, 1, 0)).into();
    bad_id.ancestry.as_mut().unwrap().trajectory_id = "../x".into();
    let mut bad = begin(&worker, session_request::Event::Open(bad_id)).await.unwrap();
    assert!(bad.next().await.unwrap_err().message().contains("ancestry.trajectory_id"));
}

#[tokio::test]
async fn settings_that_no_job_can_have_are_refused_by_name() {
    let worker = worker("random", |file| file.sessions_max = 1).await;
    type Change = fn(&mut SessionSpec);
    let changes: [(Change, &str); 6] = [
        (|session| session.grammar.name = "klingon".into(), "open.session.grammar.name: \"klingon\""),
        (|session| session.sampling.max_tokens = u32::MAX, "session.sampling.max_tokens"),
        (|session| session.sampling.max_tokens = 0, "session.sampling.max_tokens"),
        (|session| session.sampling.temperature = -1.0, "session.sampling.temperature"),
        (|session| session.sampling.top_p = 0.0, "session.sampling.top_p"),
        (|session| session.sampling.min_p = f32::NAN, "session.sampling.min_p"),
    ];
    for (change, named) in changes {
        let mut opening = opening(&worker, 1, 0);
        change(&mut opening.session);
        let mut stream = begin(&worker, session_request::Event::Open((&opening).into())).await.unwrap();
        let refused = stream.next().await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{named}: {refused}");
        assert!(refused.message().contains(named), "{named}: {refused}");
    }
}

#[tokio::test]
async fn one_session_too_many_is_refused_with_advice() {
    let worker = worker("random", |file| file.sessions_max = 1).await;
    let mut first = open(&worker, 1).await;
    first.opened().await;
    let mut second: furrow_wire::v1::Open = (&opening(&worker, 1, 0)).into();
    second.ancestry.as_mut().unwrap().trajectory_id = "another".into();
    let mut second = begin(&worker, session_request::Event::Open(second)).await.unwrap();
    let refused = second.next().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("policy.sessions_max"));
}

#[tokio::test]
async fn draining_takes_nothing_new_and_cuts_what_outlasts_the_grace() {
    let worker = worker("random", |_| {}).await;
    let mut session = open(&worker, 1).await;
    session.opened().await;
    worker.stop.cancel();
    let acted = session.observe(0, None).await;
    assert!(acted.is_ok(), "an open session continues during the grace period");
    let report = tokio::time::timeout(Duration::from_secs(60), worker.done).await.unwrap().unwrap();
    assert_eq!(report.cut_off, 1);
    assert_eq!(session.next().await.unwrap_err().code(), Code::Aborted);
}
