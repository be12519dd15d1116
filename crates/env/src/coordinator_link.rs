//! The worker's connection to the coordinator: registration, leases, acknowledgements.
//!
//! Every call has a deadline. Calls that change something carry the fencing token and the secret of
//! the lease, and are repeated with the same bytes until they are answered: the coordinator
//! acknowledges a repetition and never acts twice.

use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::{Assignment, EnvWorker, Id, LeaseProof, PROTOCOL_VERSION, Run, SCHEMA_VERSION};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::v1::{
    EnvWorkerInfo, FinishRequest, HeartbeatRequest, LeaseRequest, LeaveRequest, PolicyMove,
    RecordStepRequest, RegisterRequest, RenewRequest, ShowFirstRequest, register_request,
};
use furrow_wire::{
    FileContents, MESSAGE_BYTES_MAX, RefusalKind, WireError, assignment_from, describe_status, digest,
    lease_ref_into, lease_secret_into, refusal, with_deadline,
};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::retry::RetryPolicy;

/// The connection of one worker, shared by its clones.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorLink {
    channel: Channel,
    worker: Id<EnvWorker>,
    call_deadline: Duration,
    retry: RetryPolicy,
}

/// The coordinator's answer to a registration.
#[derive(Debug, Clone)]
pub(crate) struct RegistrationReply {
    pub run: Id<Run>,
    pub heartbeat: Duration,
}

/// The result of a long poll for assignments.
#[derive(Debug)]
pub(crate) struct LeaseReply {
    pub assignments: Vec<Result<Assignment, WireError>>,
    pub run_over: bool,
}

/// The result of a renewal.
#[derive(Debug)]
pub(crate) struct RenewReply {
    pub lost: Vec<String>,
    pub moves: Vec<PolicyMove>,
    /// Whether observers want first screenshots.
    pub watched: bool,
}

/// The result of a heartbeat.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeartbeatReply {
    pub known: bool,
    pub run_over: bool,
}

/// Why a repeated call has no successful answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The lease of the trajectory is over.
    #[error("the lease is lost: {0}")]
    Stale(String),
    /// The call is invalid, and a retry would be refused again.
    #[error("the coordinator refused: {0}")]
    Refused(String),
    /// No answer came within the retry timeout.
    #[error("the coordinator did not answer for {} s; the last problem: {last}", timeout.as_secs())]
    Silent { timeout: Duration, last: String },
}

impl CoordinatorLink {
    pub(crate) fn new(
        channel: Channel,
        worker: Id<EnvWorker>,
        call_deadline: Duration,
        retry: RetryPolicy,
    ) -> Self {
        Self { channel, worker, call_deadline, retry }
    }

    /// Registers the worker. The coordinator refuses a worker of another protocol or schema version
    /// with an error that names both.
    pub(crate) async fn register(&self, info: &EnvWorkerInfo) -> Result<RegistrationReply, CallError> {
        let request = RegisterRequest {
            protocol_version: PROTOCOL_VERSION,
            schema_version: SCHEMA_VERSION,
            worker_id: self.worker.to_string(),
            role: Some(register_request::Role::Env(info.clone())),
        };
        let call = || {
            let mut client = self.registration();
            let request = request.clone();
            async move { client.register(request).await }
        };
        let answer = self.call_until_answered(call).await?;
        Ok(RegistrationReply {
            run: Id::new(&answer.run_id).map_err(|error| CallError::Refused(error.to_string()))?,
            // A number from a peer is bounded before it is used: no busy loop, no silence of hours.
            heartbeat: Duration::from_millis(answer.heartbeat_millis.clamp(10, 60_000)),
        })
    }

    pub(crate) async fn heartbeat(&self, sessions: u32) -> Result<HeartbeatReply, Status> {
        let request = HeartbeatRequest {
            worker_id: self.worker.to_string(),
            sessions,
            memory_bytes: furrow_telemetry::taken_bytes(),
            memory_left_bytes: furrow_telemetry::available_bytes(),
            ..HeartbeatRequest::default()
        };
        let answer = self.call_once(self.registration().heartbeat(request)).await?;
        Ok(HeartbeatReply { known: answer.known, run_over: answer.run_over })
    }

    /// Reports that the worker leaves; its remaining leases are returned. An unreachable
    /// coordinator is not an error.
    pub(crate) async fn leave(&self) {
        let request = LeaveRequest { worker_id: self.worker.to_string() };
        if let Err(status) = self.call_once(self.registration().leave(request)).await {
            tracing::debug!(%status, "the coordinator did not receive the leave message");
        }
    }

    /// Waits for assignments, at most `wait`.
    pub(crate) async fn lease(&self, slots_free: u32, wait: Duration) -> Result<LeaseReply, Status> {
        let wait_millis = wait.as_millis() as u32;
        let request = LeaseRequest { worker_id: self.worker.to_string(), slots_free, wait_millis };
        let mut client = self.client();
        let answer = with_deadline(wait + self.call_deadline, client.lease(request)).await?.into_inner();
        let contents = FileContents::new(answer.files);
        let assignments =
            answer.assignments.into_iter().map(|message| assignment_from(message, &contents)).collect();
        Ok(LeaseReply { assignments, run_over: answer.run_over })
    }

    /// Renews the leases and returns those that are lost.
    pub(crate) async fn renew(&self, leases: &[LeaseProof]) -> Result<RenewReply, Status> {
        let leases = leases.iter().map(lease_ref_into).collect();
        let request = RenewRequest { worker_id: self.worker.to_string(), leases };
        let answer = self.call_once(self.client().renew(request)).await?;
        Ok(RenewReply { lost: answer.lost, moves: answer.moves, watched: answer.watched })
    }

    /// Shows the first screenshot of a trajectory to observers; a failure changes nothing.
    pub(crate) async fn show_first(&self, proof: &LeaseProof, screenshot: Bytes) {
        let request = ShowFirstRequest {
            trajectory_id: proof.trajectory_id.to_string(),
            token: proof.token,
            secret: Some(lease_secret_into(&proof.secret)),
            screenshot,
        };
        if let Err(status) = self.call_once(self.client().show_first(request)).await {
            tracing::debug!(%status, "observers do not get a first screenshot");
        }
    }

    /// Returns once the step is durable.
    pub(crate) async fn record_step(
        &self,
        proof: &LeaseProof,
        step: u32,
        record: Bytes,
    ) -> Result<(), CallError> {
        let request = RecordStepRequest {
            trajectory_id: proof.trajectory_id.to_string(),
            token: proof.token,
            secret: Some(lease_secret_into(&proof.secret)),
            step,
            digest: digest(&record).to_vec().into(),
            record,
        };
        let call = || {
            let mut client = self.client();
            let request = request.clone();
            async move { client.record_step(request).await }
        };
        self.call_until_answered(call).await.map(drop)
    }

    /// Returns once the end is durable.
    pub(crate) async fn finish(&self, proof: &LeaseProof, ending: Bytes) -> Result<(), CallError> {
        let request = FinishRequest {
            trajectory_id: proof.trajectory_id.to_string(),
            token: proof.token,
            secret: Some(lease_secret_into(&proof.secret)),
            digest: digest(&ending).to_vec().into(),
            ending,
        };
        let call = || {
            let mut client = self.client();
            let request = request.clone();
            async move { client.finish(request).await }
        };
        self.call_until_answered(call).await.map(drop)
    }

    /// Repeats a call until it is answered, refused permanently, or the retry timeout passes.
    async fn call_until_answered<T, F>(&self, call: impl Fn() -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut pauses = self.retry.pauses();
        loop {
            let status = match self.call_once(call()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            match refusal(&status) {
                RefusalKind::Stale => return Err(CallError::Stale(status.message().to_owned())),
                RefusalKind::Wrong => return Err(CallError::Refused(describe_status(&status))),
                RefusalKind::Retry => tracing::debug!(%status, "a call to the coordinator is repeated"),
            }
            let Some(pause) = pauses.next() else {
                return Err(CallError::Silent {
                    timeout: self.retry.timeout,
                    last: describe_status(&status),
                });
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn call_once<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        with_deadline(self.call_deadline, call).await.map(Response::into_inner)
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
