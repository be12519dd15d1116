//! A device that fails under a policy worker, over real gRPC: every session is sent elsewhere, none is blamed, and the worker says what failed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "shared with the tests of the model")]
#[path = "model/ground.rs"]
mod ground;

use std::sync::Arc;
use std::time::Duration;

use furrow_policy::{PolicyConfig, Report, WorkerError};
use furrow_rollout::*;
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{Acted, Observe, SessionRequest, SessionResponse, session_request, session_response};
use furrow_wire::{Connect, Opening, Tcp, observation_into, outcome_into, past_into, reply_from};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use crate::ground::{config, opening, outcome, page};

/// What the device says when it fails.
const WHY: &str = "CUDA_ERROR_LAUNCH_FAILED";

const PATIENCE: Duration = Duration::from_secs(60);

struct Worker {
    address: String,
    config: PolicyConfig,
    life: tokio::task::JoinHandle<Result<Report, WorkerError>>,
}

async fn worker() -> Worker {
    let config = config(|_| {});
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (told, name, connect) = (config.clone(), Id::new("p").unwrap(), Arc::new(Tcp::default()));
    let stop = CancellationToken::new();
    let running = furrow_policy::run(told, name, listener, connect, None, Duration::from_secs(5), stop);
    Worker { address, config, life: tokio::spawn(running) }
}

struct Session {
    opening: Opening,
    requests: mpsc::Sender<SessionRequest>,
    responses: Streaming<SessionResponse>,
}

impl Session {
    /// A stream to a worker, and all that was acted so far.
    async fn open(worker: &Worker, opening: Opening, past: &[Acted]) -> Result<Self, Status> {
        let channel = Tcp::default().channel(&worker.address).unwrap();
        let (requests, receiver) = mpsc::channel(16);
        let opening = Opening { past_steps: past.len() as u32, ..opening };
        let mut session = Self::begin(channel, opening, requests, receiver).await?;
        session.send(session_request::Event::Open((&session.opening).into())).await;
        for (step, acted) in (0..).zip(past) {
            let (seen, reply) = (page(&session.opening, step).screenshot, acted.reply.clone().unwrap());
            let past = past_into(
                step,
                &seen,
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
        opening: Opening,
        requests: mpsc::Sender<SessionRequest>,
        receiver: mpsc::Receiver<SessionRequest>,
    ) -> Result<Self, Status> {
        let answer = PolicyServiceClient::new(channel).session(ReceiverStream::new(receiver)).await?;
        Ok(Self { opening, requests, responses: answer.into_inner() })
    }

    async fn send(&self, event: session_request::Event) {
        // A worker that has ended the stream says why in its answer.
        self.requests.send(SessionRequest { event: Some(event) }).await.ok();
    }

    async fn next(&mut self) -> Result<session_response::Event, Status> {
        let message = tokio::time::timeout(PATIENCE, self.responses.message()).await.expect("an answer")?;
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

    /// Acts until the trajectory is whole or the stream breaks.
    async fn live(&mut self, acted: &mut Vec<Acted>) -> Result<(), Status> {
        while acted.len() < STEPS {
            acted.push(self.act(acted.len() as u32).await?);
        }
        Ok(())
    }
}

const STEPS: usize = 3;

fn openings(worker: &Worker) -> Vec<Opening> {
    (0..6)
        .map(|index| {
            opening(&worker.config, index / 2, index as u32 % 2, ground::POLICIES[index as usize % 4])
        })
        .collect()
}

fn said(acted: &[Acted]) -> Vec<Reply> {
    acted.iter().map(|acted| reply_from(acted.reply.clone().unwrap()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_anywhere_ends_streams_as_unavailable_and_the_sessions_go_on_elsewhere() {
    let scenario = fail::FailScenario::setup();
    let healthy = worker().await;
    let mut whole = Vec::new();
    for opening in openings(&healthy) {
        let mut acted = Vec::new();
        Session::open(&healthy, opening, &[]).await.unwrap().live(&mut acted).await.unwrap();
        whole.push(said(&acted));
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
        // One that has said nothing yet, and one whose page is still acting: they are sent elsewhere, too.
        let (requests, receiver) = mpsc::channel(1);
        let channel = Tcp::default().channel(&doomed.address).unwrap();
        let mute = Session::begin(channel, openings(&doomed).remove(0), requests, receiver);
        let mut mute = mute.await.unwrap();
        let resting = opening(&doomed.config, 9, 0, ContextPolicy::Append);
        let mut resting = Session::open(&doomed, resting, &[]).await.unwrap();
        resting.act(0).await.unwrap();
        fail::cfg(point, &format!("{visit}*off->return({WHY})")).unwrap();
        let sessions: Vec<_> = openings(&doomed)
            .into_iter()
            .map(|opening| {
                let address = Worker {
                    address: doomed.address.clone(),
                    config: doomed.config.clone(),
                    life: tokio::spawn(async { Ok(Report::default()) }),
                };
                tokio::spawn(async move {
                    let mut acted = Vec::new();
                    let ended = match Session::open(&address, opening.clone(), &[]).await {
                        Ok(mut session) => session.live(&mut acted).await,
                        Err(status) => Err(status),
                    };
                    (opening, acted, ended)
                })
            })
            .collect();
        let mut ends = Vec::new();
        for session in sessions {
            ends.push(tokio::time::timeout(PATIENCE, session).await.expect("no session hangs").unwrap());
        }
        fail::cfg(point, "off").unwrap();
        for status in ends.iter().filter_map(|(_, _, ended)| ended.as_ref().err()) {
            // A worker that is gone already takes no stream at all.
            let told = status.message().contains(WHY) || status.message().contains("transport");
            assert!(status.code() == Code::Unavailable && told, "{point} {visit}: {status:?}");
        }
        let rested = resting.next().await.unwrap_err();
        assert_eq!(rested.code(), Code::Unavailable, "{point} {visit}: {rested:?}");
        assert!(rested.message().contains(WHY), "{point} {visit}: {rested:?}");
        assert!(ends.iter().any(|(_, _, ended)| ended.is_err()), "{point} {visit}: it never failed");
        let muted = mute.next().await.unwrap_err();
        assert!(
            muted.code() == Code::Unavailable && muted.message().contains(WHY),
            "{point} {visit}: {muted:?}"
        );
        let life = tokio::time::timeout(PATIENCE, doomed.life).await.expect("the worker ends").unwrap();
        let why = life.unwrap_err().to_string();
        assert_eq!(why, format!("the policy failed: the device failed: {WHY}"), "{point} {visit}");
        // What was answered stands, and another worker goes on with it.
        for ((opening, mut acted, _), want) in ends.into_iter().zip(&whole) {
            assert!(want.starts_with(&said(&acted)), "{point} {visit}");
            let past = acted.clone();
            let mut moved = Session::open(&healthy, Opening { token: 2, ..opening }, &past).await.unwrap();
            moved.live(&mut acted).await.unwrap();
            assert_eq!(said(&acted), *want, "{point} {visit}: as if nothing had happened");
        }
    }
    scenario.teardown();
}
