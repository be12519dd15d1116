//! The gRPC service: validates messages, sends events to the core and returns its answers. A step
//! is acknowledged once spooled, an end once in the ledger.

mod answers;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_rollout::{
    Evidence, Id, IdKind, LeaseProof, PROTOCOL_VERSION, PolicyHashes, PolicyKind, SCHEMA_VERSION, WeightRoots,
};
use furrow_telemetry::{CallRepeated, StepRecorded, WorkerKind, WorkerRefused};
use furrow_wire::v1::coordinator_service_server::{CoordinatorService, CoordinatorServiceServer};
use furrow_wire::v1::registration_service_server::{RegistrationService, RegistrationServiceServer};
use furrow_wire::{Caller, MESSAGE_BYTES_MAX, PeerRole, Revocations, WireError, v1, with_deadline};
use tonic::{Request, Response, Status};

use crate::assign::PolicyOffer;
use crate::core::{
    CallId, CallRefusal, CallResponse, DiscardReport, Event, HeartbeatStatus, LeaseClaim, LeaseGrant,
    ReportedEnd, WeightsPublication, WeightsReport, WorkerId,
};
use crate::crash;
use crate::error::CoordinatorError;
use crate::first_screenshots::{FirstScreenshots, check_size};
use crate::inbox::EventSender;
use crate::plan::JobPlan;
use crate::shell::FirstFailure;
use crate::spool::{AppendOutcome, Spool, SpoolError};
use crate::version_range::versions_of;
use crate::versions::VersionSource;

pub use answers::progress_message;
use answers::{running_into, standing_into};

/// Most leases a worker may name in one call: ten times the sessions of the largest worker.
const LEASES_MAX: usize = 10_000;

/// A worker that claims more sessions has a bug.
const SESSIONS_MAX: u32 = 100_000;

/// Most characters of the reason why a policy worker cannot run a version.
const REASON_CHARS_MAX: usize = 2000;

/// Most bytes of a publication's name.
const PUBLICATION_ID_MAX: usize = 128;

/// Most readers that share a run; each is a process of a trainer.
const READERS_MAX: u32 = 4096;

/// A registration is a few hundred bytes.
const REGISTRATION_BYTES_MAX: usize = 64 << 10;

/// Answers the calls of workers.
#[derive(Clone)]
pub(crate) struct CoordinatorServer {
    pub(crate) events: EventSender,
    pub(crate) spool: Spool,
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) failure: FirstFailure,
    /// Deadline of a call.
    pub(crate) deadline: Duration,
    /// Longest time a request for work stays open in addition to it.
    pub(crate) lease_wait: Duration,
    pub(crate) first: Arc<FirstScreenshots>,
    /// Where published weights may lie.
    pub(crate) weight_roots: WeightRoots,
    pub(crate) revocations: Revocations,
}

impl CoordinatorServer {
    /// Both services, with limits on message sizes.
    pub(crate) fn servers(self) -> (CoordinatorServiceServer<Self>, RegistrationServiceServer<Self>) {
        let coordinator = CoordinatorServiceServer::new(self.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let registration =
            RegistrationServiceServer::new(self).max_decoding_message_size(REGISTRATION_BYTES_MAX);
        (coordinator, registration)
    }

    async fn request(&self, event: impl FnOnce(CallId) -> Event) -> Result<CallResponse, Status> {
        match self.events.request(event).await? {
            CallResponse::Refused(refused) => Err(refused.into()),
            answer => Ok(answer),
        }
    }

    /// The core checks a step, the spool makes it durable, and the core counts it; only then it is
    /// acknowledged.
    async fn accept_step(&self, caller: Caller, message: v1::RecordStepRequest) -> Result<(), Status> {
        let claim = claim(caller, &message.trajectory_id, message.token, message.secret)?;
        let trajectory = claim.proof.trajectory_id.clone();
        let digest = digest(&message.digest)?;
        let record = furrow_wire::decode_step(message.record.clone())?;
        if record.step != message.step {
            let message_text = format!("step is {}, but the record is of step {}", message.step, record.step);
            return Err(Status::invalid_argument(message_text));
        }
        let step = message.step;
        let token = message.token;
        let event = |call| Event::StepArrived { call, claim };
        let CallResponse::Go { of, draw, .. } = self.request(event).await? else { return Err(unexpected()) };
        let limit = draw.and_then(|draw| self.plan.max_steps(&draw, of.sample_index).ok());
        if let Some(limit) = limit.filter(|limit| step >= *limit) {
            return Err(Status::out_of_range(format!(
                "step is {step}, but the task of {trajectory} ends after {limit} steps"
            )));
        }
        crash::point("coordinator.before_spool_step");
        let appended = self.spool.append_step(&trajectory, step, digest, message.record).await;
        match appended.map_err(|error| self.spool_status(error))? {
            AppendOutcome::New => StepRecorded { of: &of, step, token }.emit(),
            AppendOutcome::Repeated => CallRepeated { of: &of, call: "record_step" }.emit(),
        }
        if step == 0 {
            self.first.remove(&trajectory);
        }
        let policy_versions = versions_of(&record);
        self.events.send(Event::StepKept { trajectory, step, policy_versions }).await?;
        crash::point("coordinator.before_ack_step");
        Ok(())
    }

    async fn accept_ending(&self, caller: Caller, message: v1::FinishRequest) -> Result<(), Status> {
        let claim = claim(caller, &message.trajectory_id, message.token, message.secret)?;
        let trajectory = claim.proof.trajectory_id.clone();
        let digest = digest(&message.digest)?;
        let ending = furrow_wire::decode_ending(message.ending.clone())?;
        let event = |call| Event::EndingArrived { call, claim: claim.clone(), digest };
        let steps = match self.request(event).await? {
            CallResponse::Finished => return Ok(()),
            CallResponse::Go { steps, .. } => steps,
            _ => return Err(unexpected()),
        };
        self.first.remove(&trajectory);
        if ending.steps != steps {
            let message_text = format!("ending.steps is {}, but {steps} steps are recorded", ending.steps);
            return Err(Status::out_of_range(message_text));
        }
        crash::point("coordinator.before_spool_ending");
        let appended = self.spool.append_ending(&trajectory, digest, message.ending).await;
        appended.map_err(|error| self.spool_status(error))?;
        let ending = ReportedEnd {
            end: ending.end,
            reason: ending.reason,
            evidence_sha256: ending
                .evidence
                .as_ref()
                .filter(|evidence| has_evidence(evidence))
                .map(Evidence::sha256),
            steps,
            digest,
        };
        match self.request(|call| Event::EndingKept { call, claim, ending }).await? {
            CallResponse::Finished => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The status for a spool error; a failed spool stops the coordinator.
    fn spool_status(&self, error: SpoolError) -> Status {
        let text = error.to_string();
        match error {
            SpoolError::Conflict { .. } => Status::already_exists(text),
            SpoolError::Gap { .. } => Status::out_of_range(text),
            SpoolError::Over { .. } => Status::failed_precondition(text),
            SpoolError::TooLarge { .. } | SpoolError::WrongDigest { .. } => Status::invalid_argument(text),
            SpoolError::DiskFull(_) | SpoolError::NoDescriptor(_) => Status::resource_exhausted(text),
            SpoolError::Storage(_) | SpoolError::Damaged { .. } | SpoolError::Stopped(_) => {
                self.failure.report(CoordinatorError::Spool(error));
                Status::unavailable("the coordinator is stopping: its spool failed")
            }
        }
    }

    fn lease_response(&self, grants: Vec<LeaseGrant>, run_over: bool) -> Result<v1::LeaseResponse, Status> {
        let assignments: Result<Vec<_>, _> =
            grants.into_iter().map(|grant| self.plan.assignment(grant)).collect();
        let assignments = assignments.map_err(|error| {
            let status = Status::internal("the job does not have the task any more");
            self.failure.report(CoordinatorError::UnknownTask(error));
            status
        })?;
        let files = furrow_wire::FileContents::of(&assignments);
        let assignments = assignments.iter().map(furrow_wire::assignment_into).collect();
        Ok(v1::LeaseResponse { assignments, run_over, files })
    }

    async fn register_worker(&self, message: v1::RegisterRequest) -> Result<v1::RegisterResponse, Status> {
        let kind = match message.role {
            Some(v1::register_request::Role::Policy(_)) => WorkerKind::Policy,
            _ => WorkerKind::Env,
        };
        let worker = message.worker_id.clone();
        let registration = registration(message).inspect_err(|status| {
            WorkerRefused { kind, worker: &worker, reason: status.message() }.emit();
        })?;
        match self.request(|call| registration.event(call)).await? {
            CallResponse::Registered { run_id, epoch, heartbeat_millis, weights } => {
                let weights = weights.as_ref().map(furrow_wire::weights_order_into);
                Ok(v1::RegisterResponse { run_id: run_id.to_string(), epoch, heartbeat_millis, weights })
            }
            _ => Err(unexpected()),
        }
    }
}

#[tonic::async_trait]
impl CoordinatorService for CoordinatorServer {
    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Result<Response<v1::LeaseResponse>, Status> {
        Caller::of(&request).check_worker(&request.get_ref().worker_id)?;
        let message = request.into_inner();
        let worker = id(&message.worker_id, "worker_id")?;
        let wait_millis = u64::from(message.wait_millis);
        let event = |call| Event::Lease { call, worker, slots: message.slots_free, wait_millis };
        match with_deadline(self.deadline + self.lease_wait, self.request(event)).await? {
            CallResponse::Leased { grants, run_over } => {
                Ok(Response::new(self.lease_response(grants, run_over)?))
            }
            _ => Err(unexpected()),
        }
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        Caller::of(&request).check_worker(&request.get_ref().worker_id)?;
        let message = request.into_inner();
        let worker = id(&message.worker_id, "worker_id")?;
        let leases = parse_leases(message.leases)?;
        match with_deadline(self.deadline, self.request(|call| Event::Renew { call, worker, leases })).await?
        {
            CallResponse::Renewed { lost, moves } => Ok(Response::new(v1::RenewResponse {
                lost: lost.iter().map(ToString::to_string).collect(),
                moves: moves
                    .into_iter()
                    .map(|(id, policy_address)| v1::PolicyMove {
                        trajectory_id: id.to_string(),
                        policy_address,
                    })
                    .collect(),
                watched: self.first.is_watched(Instant::now()),
            })),
            _ => Err(unexpected()),
        }
    }

    async fn record_step(
        &self,
        request: Request<v1::RecordStepRequest>,
    ) -> Result<Response<v1::RecordStepResponse>, Status> {
        let caller = Caller::of(&request);
        with_deadline(self.deadline, self.accept_step(caller, request.into_inner())).await?;
        Ok(Response::new(v1::RecordStepResponse {}))
    }

    async fn finish(
        &self,
        request: Request<v1::FinishRequest>,
    ) -> Result<Response<v1::FinishResponse>, Status> {
        let caller = Caller::of(&request);
        with_deadline(self.deadline, self.accept_ending(caller, request.into_inner())).await?;
        Ok(Response::new(v1::FinishResponse {}))
    }

    async fn progress(
        &self,
        _request: Request<v1::ProgressRequest>,
    ) -> Result<Response<v1::ProgressResponse>, Status> {
        match with_deadline(self.deadline, self.request(|call| Event::Progress { call })).await? {
            CallResponse::Progress(progress) => {
                let first_shown = self.first.added();
                Ok(Response::new(v1::ProgressResponse { first_shown, ..progress_message(*progress) }))
            }
            _ => Err(unexpected()),
        }
    }

    async fn running(
        &self,
        _request: Request<v1::RunningRequest>,
    ) -> Result<Response<v1::RunningResponse>, Status> {
        self.first.note_look(Instant::now());
        match with_deadline(self.deadline, self.request(|call| Event::Running { call })).await? {
            CallResponse::Running(running) => {
                let trajectories = running.iter().map(|running| running_into(running, &self.first)).collect();
                Ok(Response::new(v1::RunningResponse { trajectories }))
            }
            _ => Err(unexpected()),
        }
    }

    /// A reader must not stop a run: an unreadable spool is a refusal here, and the next writer
    /// will fail as well.
    async fn last_step(
        &self,
        request: Request<v1::LastStepRequest>,
    ) -> Result<Response<v1::LastStepResponse>, Status> {
        let trajectory = id(&request.into_inner().trajectory_id, "trajectory_id")?;
        let spool = self.spool.clone();
        let first = self.first.get(&trajectory);
        let reading = tokio::task::spawn_blocking(move || spool.read_last_step(&trajectory));
        let read = with_deadline(self.deadline, async {
            reading.await.map_err(|_| Status::unavailable("stopping"))
        });
        let entry = read.await?.map_err(|error| Status::unavailable(error.to_string()))?;
        let record = entry.map(|entry| entry.payload).unwrap_or_default();
        let first_screenshot = first.filter(|_| record.is_empty()).unwrap_or_default();
        Ok(Response::new(v1::LastStepResponse { record, first_screenshot }))
    }

    async fn show_first(
        &self,
        request: Request<v1::ShowFirstRequest>,
    ) -> Result<Response<v1::ShowFirstResponse>, Status> {
        let caller = Caller::of(&request);
        let message = request.into_inner();
        let claim = claim(caller, &message.trajectory_id, message.token, message.secret)?;
        let trajectory = claim.proof.trajectory_id.clone();
        check_size(&message.screenshot).map_err(Status::invalid_argument)?;
        with_deadline(self.deadline, self.request(|call| Event::FirstShown { call, claim })).await?;
        if self.first.is_watched(Instant::now()) {
            self.first.add(trajectory, message.screenshot);
        }
        Ok(Response::new(v1::ShowFirstResponse {}))
    }

    async fn publish(
        &self,
        request: Request<v1::PublishRequest>,
    ) -> Result<Response<v1::PublishResponse>, Status> {
        let publication = publication(request.into_inner(), &self.weight_roots)?;
        match with_deadline(self.deadline, self.request(|call| Event::Publish { call, publication })).await? {
            CallResponse::VersionProposed { version, repeated } => {
                crash::point("coordinator.before_ack_publish");
                Ok(Response::new(v1::PublishResponse { version, repeated }))
            }
            _ => Err(unexpected()),
        }
    }

    async fn report_discarded(
        &self,
        request: Request<v1::ReportDiscardedRequest>,
    ) -> Result<Response<v1::ReportDiscardedResponse>, Status> {
        let report = discarded(request.into_inner())?;
        match with_deadline(self.deadline, self.request(|call| Event::Discarded { call, report })).await? {
            CallResponse::Discarded { discarded, accepted } => {
                Ok(Response::new(v1::ReportDiscardedResponse { discarded, accepted }))
            }
            _ => Err(unexpected()),
        }
    }

    async fn weights(
        &self,
        request: Request<v1::WeightsRequest>,
    ) -> Result<Response<v1::WeightsResponse>, Status> {
        let version = request.into_inner().version;
        match with_deadline(self.deadline, self.request(|call| Event::Weights { call, version })).await? {
            CallResponse::Weights(standing) => Ok(Response::new(standing_into(*standing))),
            _ => Err(unexpected()),
        }
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        let event = |call| match request.into_inner().at_once {
            true => Event::Stop { call },
            false => Event::Drain { call: Some(call) },
        };
        with_deadline(self.deadline, self.request(event)).await?;
        Ok(Response::new(v1::DrainResponse {}))
    }
}

#[tonic::async_trait]
impl RegistrationService for CoordinatorServer {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let caller = Caller::of(&request);
        caller.check_worker(&request.get_ref().worker_id)?;
        caller.check_role(match request.get_ref().role {
            Some(v1::register_request::Role::Policy(_)) => PeerRole::Policy,
            _ => PeerRole::Env,
        })?;
        with_deadline(self.deadline, self.register_worker(request.into_inner())).await.map(Response::new)
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let caller = Caller::of(&request);
        let message = request.into_inner();
        let worker = worker_id(&caller, &message.worker_id)?;
        let run = weights_run(&message)?;
        let health = HeartbeatStatus {
            sessions: message.sessions,
            memory_bytes: message.memory_bytes,
            memory_left_bytes: message.memory_left_bytes,
        };
        let event = |call| Event::Heartbeat { call, worker, run, health };
        match with_deadline(self.deadline, self.request(event)).await? {
            CallResponse::HeartbeatAcknowledged { known, run_over, weights } => {
                let weights = weights.as_ref().map(furrow_wire::weights_order_into);
                let revoked = self.revocations.to_wire();
                Ok(Response::new(v1::HeartbeatResponse { known, run_over, weights, revoked }))
            }
            _ => Err(unexpected()),
        }
    }

    async fn leave(&self, request: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        let worker = worker_id(&Caller::of(&request), &request.get_ref().worker_id)?;
        with_deadline(self.deadline, self.request(|call| Event::Leave { call, worker })).await?;
        Ok(Response::new(v1::LeaveResponse {}))
    }
}

enum WorkerRegistration {
    Env { worker: Id<furrow_rollout::EnvWorker>, sessions_max: u32 },
    Policy { worker: Id<furrow_rollout::PolicyWorker>, offer: PolicyOffer },
}

impl WorkerRegistration {
    fn event(self, call: CallId) -> Event {
        match self {
            WorkerRegistration::Env { worker, sessions_max } => {
                Event::RegisterEnv { call, worker, sessions_max }
            }
            WorkerRegistration::Policy { worker, offer } => {
                let version = offer.version;
                let weights_sha256 = offer.hashes.weights.clone();
                let run = WeightsReport { version, weights_sha256, refused: None };
                Event::RegisterPolicy { call, worker, offer, run }
            }
        }
    }
}

fn registration(message: v1::RegisterRequest) -> Result<WorkerRegistration, Status> {
    same_version("protocol", message.protocol_version, PROTOCOL_VERSION)?;
    same_version("schema", message.schema_version, SCHEMA_VERSION)?;
    match message.role {
        Some(v1::register_request::Role::Env(env)) => Ok(WorkerRegistration::Env {
            worker: id(&message.worker_id, "worker_id")?,
            sessions_max: sessions_max(env.sessions_max, "env.sessions_max")?,
        }),
        Some(v1::register_request::Role::Policy(policy)) => Ok(WorkerRegistration::Policy {
            worker: id(&message.worker_id, "worker_id")?,
            offer: offer(policy)?,
        }),
        None => Err(Status::invalid_argument("role is missing; a worker is an env or a policy worker")),
    }
}

/// A policy worker's report about its weights, from a heartbeat.
fn weights_run(message: &v1::HeartbeatRequest) -> Result<WeightsReport, Status> {
    let refused = message.refused.as_ref();
    Ok(WeightsReport {
        version: message.policy_version,
        weights_sha256: hash(message.weights_sha256.clone(), "weights_sha256")?,
        refused: refused
            .map(|refused| (refused.version, refused.reason.chars().take(REASON_CHARS_MAX).collect())),
    })
}

fn publication(message: v1::PublishRequest, roots: &WeightRoots) -> Result<WeightsPublication, Status> {
    let v1::PublishRequest { publication_id, weights } = message;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(1..=PUBLICATION_ID_MAX).contains(&publication_id.len()) || !publication_id.bytes().all(is_name) {
        let excerpt: String = publication_id.chars().take(60).collect();
        return Err(Status::invalid_argument(format!(
            "publication_id is {excerpt:?}; use 1 to {PUBLICATION_ID_MAX} letters, digits, dots, dashes and underscores"
        )));
    }
    match weights {
        Some(v1::publish_request::Weights::Directory(directory)) => {
            let v1::Directory { link, base_version, weights_sha256 } = directory;
            let missing = || Status::invalid_argument("directory.link is missing");
            let link = furrow_wire::weights_link_from(link.ok_or_else(missing)?)?;
            if let Some(why) = roots.refusal(Path::new(&link.directory)) {
                return Err(Status::invalid_argument(why));
            }
            let weights_sha256 = weights_sha256.map(furrow_wire::sha256_from).transpose()?;
            Ok(WeightsPublication::of_directory(publication_id, link, base_version, weights_sha256))
        }
        Some(v1::publish_request::Weights::RollbackTo(to)) => Ok(WeightsPublication {
            publication_id,
            source: VersionSource::Rollback { to },
            weights_sha256: None,
        }),
        None => Err(Status::invalid_argument("weights are missing: name a directory or an earlier version")),
    }
}

/// A checked report; one that names no world comes from the run's only reader.
fn discarded(message: v1::ReportDiscardedRequest) -> Result<DiscardReport, Status> {
    let v1::ReportDiscardedRequest { trajectories, rank, world } = message;
    if world > READERS_MAX || rank >= world.max(1) {
        return Err(Status::invalid_argument(format!(
            "reader {rank} of {world} is out of range; expected a rank below the world, and at most \
             {READERS_MAX} readers"
        )));
    }
    Ok(DiscardReport { rank, world: world.max(1), trajectories })
}

fn same_version(what: &str, theirs: u32, ours: u32) -> Result<(), Status> {
    if theirs == ours {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "the worker speaks {what} version {theirs}, the coordinator {ours}; run the same version of furrow \
         on both"
    )))
}

fn offer(policy: v1::PolicyWorkerInfo) -> Result<PolicyOffer, Status> {
    let kind = PolicyKind::parse(&policy.policy_kind).ok_or_else(|| {
        let excerpt: String = policy.policy_kind.chars().take(60).collect();
        Status::invalid_argument(format!(
            "policy.policy_kind is {excerpt:?}; expected scripted, random, model or openai"
        ))
    })?;
    Ok(PolicyOffer {
        address: address(policy.address)?,
        kind,
        sessions_max: sessions_max(policy.sessions_max, "policy.sessions_max")?,
        version: policy.policy_version,
        hashes: PolicyHashes {
            weights: hash(policy.weights_sha256, "policy.weights_sha256")?,
            tokenizer: hash(policy.tokenizer_sha256, "policy.tokenizer_sha256")?,
            template: hash(policy.template_sha256, "policy.template_sha256")?,
            grammar: hash(policy.grammar_sha256, "policy.grammar_sha256")?,
            processor: hash(policy.processor_sha256, "policy.processor_sha256")?,
        },
    })
}

fn address(text: String) -> Result<String, Status> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    // A wildcard would lead each environment worker to itself.
    let is_wildcard = text.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
    if text.len() <= 512 && matches!(port, Some(Ok(1..))) && !is_wildcard {
        return Ok(text);
    }
    let excerpt: String = text.chars().take(60).collect();
    Err(Status::invalid_argument(format!(
        "policy.address is {excerpt:?}; expected host:port that environment workers can connect to; set policy.advertise"
    )))
}

fn sessions_max(count: u32, key: &str) -> Result<u32, Status> {
    match count {
        1..=SESSIONS_MAX => Ok(count),
        other => Err(Status::invalid_argument(format!("{key} is {other}; expected 1 to {SESSIONS_MAX}"))),
    }
}

fn hash(text: Option<String>, key: &str) -> Result<Option<String>, Status> {
    let is_hash = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text {
        Some(text) if !is_hash(&text) => {
            Err(Status::invalid_argument(format!("{key} is not a hexadecimal SHA-256")))
        }
        text => Ok(text),
    }
}

fn id<K: IdKind>(text: &str, key: &str) -> Result<Id<K>, Status> {
    Id::new(text).map_err(|error| Status::invalid_argument(format!("{key}: {error}")))
}

/// The worker of this name in the roles that the caller may have.
fn worker_id(caller: &Caller, text: &str) -> Result<WorkerId, Status> {
    caller.check_worker(text)?;
    let env = id(text, "worker_id")?;
    let policy = id(text, "worker_id")?;
    Ok(WorkerId {
        env: caller.may_be(PeerRole::Env).then_some(env),
        policy: caller.may_be(PeerRole::Policy).then_some(policy),
    })
}

fn digest(bytes: &[u8]) -> Result<[u8; 32], Status> {
    let wrong = || format!("digest has {} bytes; expected the 32 bytes of a SHA-256", bytes.len());
    bytes.try_into().map_err(|_| Status::invalid_argument(wrong()))
}

/// What a call about a trajectory presents.
fn claim(
    caller: Caller,
    trajectory: &str,
    token: u64,
    secret: Option<v1::LeaseSecret>,
) -> Result<LeaseClaim, Status> {
    let secret = furrow_wire::lease_secret_from(secret, "secret")?;
    Ok(LeaseClaim {
        caller,
        proof: LeaseProof { trajectory_id: id(trajectory, "trajectory_id")?, token, secret },
    })
}

fn parse_leases(messages: Vec<v1::LeaseRef>) -> Result<Vec<LeaseProof>, Status> {
    if messages.len() > LEASES_MAX {
        let error = WireError::TooLarge { key: "leases", size: messages.len(), max: LEASES_MAX };
        return Err(error.into());
    }
    messages.into_iter().map(|lease| Ok(furrow_wire::lease_ref_from(lease)?)).collect()
}

/// Whether the evidence has any part; empty evidence counts as none.
fn has_evidence(evidence: &Evidence) -> bool {
    *evidence != Evidence::default()
}

fn unexpected() -> Status {
    Status::internal("the coordinator gave an unexpected answer")
}

impl From<CallRefusal> for Status {
    /// Maps refusals to codes: `Aborted` means register and try again, `FailedPrecondition` give up
    /// the leases.
    fn from(refused: CallRefusal) -> Self {
        let text = refused.to_string();
        match refused {
            CallRefusal::UnknownWorker { .. } => Status::aborted(text),
            CallRefusal::Stale { .. } => Status::failed_precondition(text),
            CallRefusal::OtherEnding { .. } => Status::already_exists(text),
            CallRefusal::Discarded { .. } => Status::out_of_range(text),
            CallRefusal::Publication { .. } => Status::invalid_argument(text),
            CallRefusal::NoVersion { .. } => Status::not_found(text),
        }
    }
}
