//! A device that fails under a policy worker, over real gRPC: every session gets UNAVAILABLE, none
//! gets a fault of its own, and the worker reports the failure.
//!
//! A binary of its own, because a fail point that a test sets acts on every device of the process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "shared with the tests of the model")]
#[path = "integration/model/fixture.rs"]
mod fixture;

use std::sync::Arc;
use std::time::Duration;

use furrow_policy::{Policy as _, PolicyConfig, WorkerError, WorkerReport};
use furrow_rollout::*;
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{Acted, Observe, SessionRequest, SessionResponse, session_request, session_response};
use furrow_wire::{
    Connector, PeerRole, SessionOpening, TcpConnector, observation_into, outcome_into, past_into, reply_from,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::fixture::{config, opening, outcome, page};

/// The failure of the device.
const WHY: &str = "CUDA_ERROR_LAUNCH_FAILED";

const TIMEOUT: Duration = Duration::from_secs(60);

struct TestWorker {
    address: String,
    config: PolicyConfig,
    life: tokio::task::JoinHandle<Result<WorkerReport, WorkerError>>,
}

async fn worker() -> TestWorker {
    let config = config(|_| {});
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let job = config.clone();
    let name = Id::new("p").unwrap();
    let connect = Arc::new(TcpConnector::default());
    let stop = CancellationToken::new();
    let running = furrow_policy::run(job, name, listener, connect, None, Duration::from_secs(5), stop);
    TestWorker { address, config, life: tokio::spawn(running) }
}

struct TestStream {
    opening: SessionOpening,
    requests: mpsc::Sender<SessionRequest>,
    responses: Streaming<SessionResponse>,
}

impl TestStream {
    /// A stream to a worker, with the steps it has acted.
    async fn open(worker: &TestWorker, opening: SessionOpening, past: &[Acted]) -> Result<Self, Status> {
        let channel = TcpConnector::default().channel(PeerRole::Policy, &worker.address).unwrap();
        let (requests, receiver) = mpsc::channel(16);
        let opening = SessionOpening { past_steps: past.len() as u32, ..opening };
        let mut session = Self::begin(channel, opening, requests, receiver).await?;
        session.send(session_request::Event::Open((&session.opening).into())).await;
        for (step, acted) in (0..).zip(past) {
            let screenshot = page(&session.opening, step).screenshot;
            let reply = acted.reply.clone().unwrap();
            let past = past_into(
                step,
                &screenshot,
                outcome(step).as_ref(),
                &reply_from(reply).unwrap(),
                acted.trace.clone(),
            );
            session.send(session_request::Event::Past(past)).await;
        }
        match session.next().await? {
            session_response::Event::Opened(_) => Ok(session),
            other => panic!("{other:?}"),
        }
    }

    async fn begin(
        channel: tonic::transport::Channel,
        opening: SessionOpening,
        requests: mpsc::Sender<SessionRequest>,
        receiver: mpsc::Receiver<SessionRequest>,
    ) -> Result<Self, Status> {
        let answer = PolicyServiceClient::new(channel).session(ReceiverStream::new(receiver)).await?;
        Ok(Self { opening, requests, responses: answer.into_inner() })
    }

    async fn send(&self, event: session_request::Event) {
        // A worker that has ended the stream gives the reason in its answer.
        self.requests.send(SessionRequest { event: Some(event) }).await.ok();
    }

    async fn next(&mut self) -> Result<session_response::Event, Status> {
        let message = tokio::time::timeout(TIMEOUT, self.responses.message()).await.expect("an answer")?;
        Ok(message.expect("an answer or a status").event.unwrap())
    }

    async fn act(&mut self, step: u32) -> Result<Acted, Status> {
        self.send(session_request::Event::Observe(Observe {
            step,
            observation: Some(observation_into(&page(&self.opening, step))),
            last_outcome: outcome(step).as_ref().map(outcome_into),
            hint_json: None,
        }))
        .await;
        match self.next().await? {
            session_response::Event::Acted(acted) => Ok(acted),
            other => panic!("{other:?}"),
        }
    }

    /// Acts until the trajectory is complete or the stream breaks.
    async fn act_all(&mut self, acted: &mut Vec<Acted>) -> Result<(), Status> {
        while acted.len() < STEPS {
            acted.push(self.act(acted.len() as u32).await?);
        }
        Ok(())
    }
}

const STEPS: usize = 3;

fn openings(worker: &TestWorker) -> Vec<SessionOpening> {
    (0..6)
        .map(|index| {
            opening(&worker.config, index / 2, index as u32 % 2, fixture::POLICIES[index as usize % 4])
        })
        .collect()
}

fn replies(acted: &[Acted]) -> Vec<PolicyReply> {
    acted.iter().map(|acted| reply_from(acted.reply.clone().unwrap()).unwrap()).collect()
}

/// What a session opened with, what it acted, and how its stream ended.
type SessionStory = (SessionOpening, Vec<Acted>, Result<(), Status>);

/// Acts all sessions of a worker concurrently.
async fn act_until_it_fails(doomed: &TestWorker) -> Vec<SessionStory> {
    let start = |opening: SessionOpening| {
        let address = TestWorker {
            address: doomed.address.clone(),
            config: doomed.config.clone(),
            life: tokio::spawn(async { Ok(WorkerReport::default()) }),
        };
        tokio::spawn(async move {
            let mut acted = Vec::new();
            let ended = match TestStream::open(&address, opening.clone(), &[]).await {
                Ok(mut session) => session.act_all(&mut acted).await,
                Err(status) => Err(status),
            };
            (opening, acted, ended)
        })
    };
    let sessions: Vec<_> = openings(doomed).into_iter().map(start).collect();
    let mut ends = Vec::new();
    for session in sessions {
        ends.push(tokio::time::timeout(TIMEOUT, session).await.expect("no session hangs").unwrap());
    }
    ends
}

/// When the device is given up, sessions end and a worker that drains has drained. Only `stop` can
/// tell that from a worker whose sessions finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_whose_device_hangs_while_it_stops_has_failed() {
    let scenario = fail::FailScenario::setup();
    let config = config(|policy| policy.engine.device_timeout_millis = 3_600_000);
    let model = fixture::model(&config);
    let opening = opening(&config, 0, 0, ContextPolicy::Append);
    let mut session = fixture::open(&model, &opening, &[]).await.unwrap();
    fail::cfg("device.run", "return(hang)").unwrap();
    let asking = tokio::time::timeout(Duration::from_secs(1), fixture::act(&mut *session, &opening, 0));
    assert!(asking.await.is_err(), "the device does not answer");
    model.prepare_to_stop();
    let why = model.stop().await.unwrap_err();
    assert!(why.starts_with("the device has not answered for "), "{why}");
    scenario.teardown();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_anywhere_ends_streams_as_unavailable_and_the_sessions_go_on_elsewhere() {
    let scenario = fail::FailScenario::setup();
    let healthy = worker().await;
    let mut whole = Vec::new();
    for opening in openings(&healthy) {
        let mut acted = Vec::new();
        TestStream::open(&healthy, opening, &[]).await.unwrap().act_all(&mut acted).await.unwrap();
        whole.push(replies(&acted));
    }
    for (point, visit) in [
        ("device.sample", 0),
        ("device.sample", 7),
        ("device.sample", 30),
        ("device.run", 9),
        ("device.encode", 3),
        ("device.copy", 3),
    ] {
        let doomed = worker().await;
        // A stream that has sent nothing yet, and one whose page still acts: they get UNAVAILABLE,
        // too.
        let (requests, receiver) = mpsc::channel(1);
        let channel = TcpConnector::default().channel(PeerRole::Policy, &doomed.address).unwrap();
        let mute = TestStream::begin(channel, openings(&doomed).remove(0), requests, receiver);
        let mut mute = mute.await.unwrap();
        let resting = opening(&doomed.config, 9, 0, ContextPolicy::Append);
        let mut resting = TestStream::open(&doomed, resting, &[]).await.unwrap();
        resting.act(0).await.unwrap();
        fail::cfg(point, &format!("{visit}*off->return({WHY})")).unwrap();
        let ends = act_until_it_fails(&doomed).await;
        fail::cfg(point, "off").unwrap();
        for status in ends.iter().filter_map(|(_, _, ended)| ended.as_ref().err()) {
            // A worker that has ended accepts no stream.
            let names_cause = status.message().contains(WHY) || status.message().contains("transport");
            assert!(status.code() == Code::Unavailable && names_cause, "{point} {visit}: {status:?}");
        }
        let rested = resting.next().await.unwrap_err();
        assert_eq!(rested.code(), Code::Unavailable, "{point} {visit}: {rested:?}");
        assert!(rested.message().contains(WHY), "{point} {visit}: {rested:?}");
        assert!(ends.iter().any(|(_, _, ended)| ended.is_err()), "{point} {visit}: no session failed");
        let muted = mute.next().await.unwrap_err();
        assert!(
            muted.code() == Code::Unavailable && muted.message().contains(WHY),
            "{point} {visit}: {muted:?}"
        );
        let life = tokio::time::timeout(TIMEOUT, doomed.life).await.expect("the worker ends").unwrap();
        let why = life.unwrap_err().to_string();
        assert_eq!(why, format!("the policy failed: the device failed: {WHY}"), "{point} {visit}");
        // Replies from before the failure remain, and another worker continues after them.
        for ((opening, mut acted, _), want) in ends.into_iter().zip(&whole) {
            assert!(want.starts_with(&replies(&acted)), "{point} {visit}");
            let past = acted.clone();
            let mut moved =
                TestStream::open(&healthy, SessionOpening { token: 2, ..opening }, &past).await.unwrap();
            moved.act_all(&mut acted).await.unwrap();
            assert_eq!(replies(&acted), *want, "{point} {visit}: as without the failure");
        }
    }
    scenario.teardown();
}
