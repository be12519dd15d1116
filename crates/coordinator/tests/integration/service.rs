//! The coordinator over real gRPC on a loopback listener: which workers register, which calls are
//! refused, what is kept.

mod calls;
mod identities;
mod jobs;
mod judging;
mod rescoring;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use furrow_coordinator::core::JobOutcome;
use furrow_coordinator::{
    Coordinator, CoordinatorError, JudgeFile, LimitsFile, RescoreError, RescoreFilter, RescoreJob,
    RescoreSummary, RunSummary, rescore,
};
use furrow_records::{DataSet, RecordsFile, verify};
use furrow_rollout::{EndKind, PROTOCOL_VERSION, SCHEMA_VERSION, TrajectoryStatus as Scored};
use furrow_telemetry::TimeSource;
use furrow_testkit::chat_server::{FakeChatServer, ServerAction};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::{Connector, MESSAGE_BYTES_MAX, PeerRole, TcpConnector, digest, v1};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};

use crate::common::{JobSetup, LeasedAssignment, env, judge, policy, record};

/// Everything here takes seconds, unless it hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A running coordinator and its clients.
struct TestFarm {
    served: JoinHandle<Result<RunSummary, CoordinatorError>>,
    stop: CancellationToken,
    calls: CoordinatorServiceClient<Channel>,
    registration: RegistrationServiceClient<Channel>,
}

impl TestFarm {
    async fn open(setup: JobSetup, dir: &Path) -> Result<Self, CoordinatorError> {
        let job = setup.job(dir);
        let coordinator = tokio::task::spawn_blocking(|| Coordinator::open(job)).await.unwrap()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let served = tokio::spawn(coordinator.serve(incoming, stop.clone(), TimeSource::system()));
        let channel = TcpConnector::default().channel(PeerRole::Coordinator, &address).unwrap();
        let calls = CoordinatorServiceClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX * 2);
        Ok(TestFarm { served, stop, calls, registration: RegistrationServiceClient::new(channel) })
    }

    async fn register(&mut self) {
        self.registration.register(env("env")).await.unwrap();
        self.registration.register(policy("policy")).await.unwrap();
    }

    async fn lease(&mut self, slots_free: u32) -> v1::LeaseResponse {
        let request = v1::LeaseRequest { worker_id: "env".into(), slots_free, wait_millis: 200 };
        self.calls.lease(request).await.unwrap().into_inner()
    }

    /// One assignment, in as many requests as needed.
    async fn lease_one(&mut self) -> LeasedAssignment {
        self.lease_limited().await.0
    }

    /// The same with its step limit.
    async fn lease_limited(&mut self) -> (LeasedAssignment, u32) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            assert!(tokio::time::Instant::now() < deadline, "nothing is leased");
            if let Some(assignment) = self.lease(1).await.assignments.pop() {
                let limit = assignment.task.as_ref().unwrap().max_steps;
                return (LeasedAssignment::new(assignment), limit);
            }
        }
    }

    async fn record(&mut self, request: v1::RecordStepRequest) -> Result<(), Status> {
        self.calls.record_step(request).await.map(drop)
    }

    async fn finish(&mut self, request: v1::FinishRequest) -> Result<(), Status> {
        self.calls.finish(request).await.map(drop)
    }

    /// Acts a whole trajectory of this many steps and gives this answer.
    async fn act(&mut self, assignment: &LeasedAssignment, steps: u32, answer: &str) {
        for step in 0..steps {
            self.record(assignment.step(step)).await.unwrap();
        }
        self.finish(assignment.ending(steps, EndKind::Answered, Some(answer))).await.unwrap();
    }

    async fn progress(&mut self) -> v1::ProgressResponse {
        self.calls.progress(v1::ProgressRequest {}).await.unwrap().into_inner()
    }

    async fn end(self) -> Result<RunSummary, CoordinatorError> {
        drop((self.calls, self.registration));
        tokio::time::timeout(TEST_TIMEOUT, self.served).await.expect("it ends").unwrap()
    }

    async fn stop(self) -> Result<RunSummary, CoordinatorError> {
        self.stop.cancel();
        self.end().await
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Status>, code: Code, part: &str) {
    let Err(status) = result else { panic!("the call succeeded; expected {code:?} with {part:?}") };
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(part), "{part:?} is not in {status:?}");
}

/// A judge at a fake server, with short retries.
fn judge_file(server: &FakeChatServer) -> JudgeFile {
    JudgeFile {
        endpoint: server.endpoint(),
        model: "eye".into(),
        attempts_max: 2,
        pause_millis: 5,
        call_millis: 2_000,
        deadline_millis: 10_000,
        usd_per_million_prompt_tokens: Some(10.0),
        usd_per_million_completion_tokens: Some(100.0),
        ..JudgeFile::default()
    }
}

fn reply_deed(text: &str) -> ServerAction {
    ServerAction::Text(text.to_owned())
}

/// Every file of a run directory with its content.
fn all_bytes(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.clone(), std::fs::read(path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

const JUDGE_SCORER: &str = r#"{"kind":"judge"}"#;
