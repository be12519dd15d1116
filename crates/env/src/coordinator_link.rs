//! The worker's line to the coordinator: registration, leases, acknowledgements.
//!
//! Every call has a deadline. Calls that change something carry the fencing token and are repeated with the same bytes until they are
//! answered: the coordinator acknowledges a repetition and never acts twice.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::{
    Ancestry, Assignment, EnvWorker, Id, PROTOCOL_VERSION, Run, SCHEMA_VERSION, Trajectory,
};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::v1::{
    EnvWorkerInfo, FinishRequest, HeartbeatRequest, Held, LeaseRequest, LeaveRequest, PolicyMove,
    RecordStepRequest, RegisterRequest, RenewRequest, register_request,
};
use furrow_wire::{MESSAGE_BYTES_MAX, Refusal, WireError, assignment_from, digest, refusal, within};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::retry::Retry;

/// The line of one worker. Clones share one connection.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorLink {
    channel: Channel,
    worker: Id<EnvWorker>,
    call_deadline: Duration,
    retry: Retry,
}

/// What the coordinator says at registration.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub run: Id<Run>,
    pub heartbeat: Duration,
}

/// What a long poll brought.
#[derive(Debug)]
pub(crate) struct Leased {
    pub assignments: Vec<Result<Assignment, WireError>>,
    pub run_over: bool,
}

/// What a renewal brought.
#[derive(Debug)]
pub(crate) struct Renewed {
    pub lost: Vec<String>,
    pub moves: Vec<PolicyMove>,
}

/// What a heartbeat brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heartbeat {
    pub known: bool,
    pub run_over: bool,
}

/// Why a call that was repeated until answered has no good answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Somebody else holds the trajectory by now.
    #[error("the fencing token is stale: {0}")]
    Stale(String),
    /// The call is wrong and stays so.
    #[error("the coordinator refused: {0}")]
    Refused(String),
    /// Nobody answered for as long as patience lasts.
    #[error("the coordinator did not answer for {} s; the last problem: {last}", patience.as_secs())]
    Silent { patience: Duration, last: String },
}

impl CoordinatorLink {
    pub fn new(channel: Channel, worker: Id<EnvWorker>, call_deadline: Duration, retry: Retry) -> Self {
        Self { channel, worker, call_deadline, retry }
    }

    /// Shakes hands. The coordinator refuses a worker of another protocol or schema version and says both.
    pub async fn register(&self, info: &EnvWorkerInfo) -> Result<Registered, CallError> {
        let request = RegisterRequest {
            protocol_version: PROTOCOL_VERSION,
            schema_version: SCHEMA_VERSION,
            worker_id: self.worker.to_string(),
            role: Some(register_request::Role::Env(info.clone())),
        };
        let call = || {
            let (mut client, request) = (self.registration(), request.clone());
            async move { client.register(request).await }
        };
        let answer = self.until_answered(call).await?;
        Ok(Registered {
            run: Id::new(&answer.run_id).map_err(|error| CallError::Refused(error.to_string()))?,
            // A peer's number is bounded before it is believed: no busy loop, no silence of hours.
            heartbeat: Duration::from_millis(answer.heartbeat_millis.clamp(10, 60_000)),
        })
    }

    /// One sign of life.
    pub async fn heartbeat(&self, sessions: u32) -> Result<Heartbeat, Status> {
        let request = HeartbeatRequest {
            worker_id: self.worker.to_string(),
            sessions,
            memory_bytes: furrow_telemetry::taken_bytes(),
            memory_left_bytes: furrow_telemetry::available_bytes(),
            ..HeartbeatRequest::default()
        };
        let answer = self.once(self.registration().heartbeat(request)).await?;
        Ok(Heartbeat { known: answer.known, run_over: answer.run_over })
    }

    /// Says goodbye; what is still held is handed back. The coordinator may be gone already, and that is no failure.
    pub async fn leave(&self) {
        let request = LeaveRequest { worker_id: self.worker.to_string() };
        if let Err(status) = self.once(self.registration().leave(request)).await {
            tracing::debug!(%status, "the coordinator did not hear the goodbye");
        }
    }

    /// Waits for assignments, at most `wait`.
    pub async fn lease(&self, slots_free: u32, wait: Duration) -> Result<Leased, Status> {
        let wait_millis = wait.as_millis() as u32;
        let request = LeaseRequest { worker_id: self.worker.to_string(), slots_free, wait_millis };
        let mut client = self.client();
        let answer = within(wait + self.call_deadline, client.lease(request)).await?.into_inner();
        let assignments = answer.assignments.into_iter().map(assignment_from).collect();
        Ok(Leased { assignments, run_over: answer.run_over })
    }

    /// Keeps what is held and learns what is not held any more.
    pub async fn renew(&self, held: Vec<(Id<Trajectory>, u64)>) -> Result<Renewed, Status> {
        let held =
            held.into_iter().map(|(id, token)| Held { trajectory_id: id.to_string(), token }).collect();
        let request = RenewRequest { worker_id: self.worker.to_string(), held };
        let answer = self.once(self.client().renew(request)).await?;
        Ok(Renewed { lost: answer.lost, moves: answer.moves })
    }

    /// Returns once the step is durable.
    pub async fn record_step(
        &self,
        of: &Ancestry,
        token: u64,
        step: u32,
        record: Bytes,
    ) -> Result<(), CallError> {
        let request = RecordStepRequest {
            trajectory_id: of.trajectory_id.to_string(),
            token,
            step,
            digest: digest(&record).to_vec().into(),
            record,
        };
        let call = || {
            let (mut client, request) = (self.client(), request.clone());
            async move { client.record_step(request).await }
        };
        self.until_answered(call).await.map(drop)
    }

    /// Returns once the end is durable.
    pub async fn finish(&self, of: &Ancestry, token: u64, ending: Bytes) -> Result<(), CallError> {
        let request = FinishRequest {
            trajectory_id: of.trajectory_id.to_string(),
            token,
            digest: digest(&ending).to_vec().into(),
            ending,
        };
        let call = || {
            let (mut client, request) = (self.client(), request.clone());
            async move { client.finish(request).await }
        };
        self.until_answered(call).await.map(drop)
    }

    /// Repeats a call until it is answered, refused for good, or patience ends.
    async fn until_answered<T, F>(&self, call: impl Fn() -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut pauses = self.retry.pauses();
        loop {
            let status = match self.once(call()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            match refusal(&status) {
                Refusal::Stale => return Err(CallError::Stale(status.message().to_owned())),
                Refusal::Wrong => return Err(CallError::Refused(told(&status))),
                Refusal::TryAgain => tracing::debug!(%status, "the coordinator is asked again"),
            }
            let Some(pause) = pauses.next() else {
                return Err(CallError::Silent { patience: self.retry.patience, last: told(&status) });
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn once<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
        within(self.call_deadline, call).await.map(Response::into_inner)
    }

    fn client(&self) -> CoordinatorServiceClient<Channel> {
        CoordinatorServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn registration(&self) -> RegistrationServiceClient<Channel> {
        RegistrationServiceClient::new(self.channel.clone())
    }
}

/// A status in a sentence: what it says, and what the transport said beneath it.
pub(crate) fn told(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = status.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
