//! The life cycle of a policy worker: listen, register, send heartbeats, load published weights,
//! drain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use furrow_rollout::{
    Id, PROTOCOL_VERSION, PolicyHashes, PolicyVersion, PolicyWorker, SCHEMA_VERSION, WeightsOrder,
};
use furrow_wire::v1::policy_service_server::PolicyServiceServer;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::v1::{
    self, HeartbeatRequest, LeaveRequest, PolicyWorkerInfo, RegisterRequest, WeightsRefusal, register_request,
};
use furrow_wire::{
    Connector, Identity, LinkTimeouts, MESSAGE_BYTES_MAX, PeerRole, RefusalKind, Revocations, accept,
    authorized_server, refusal, weights_order_from, with_deadline, with_health_and_reflection,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;
use tonic::transport::server::Connected;

use crate::config::{PolicyChoice, PolicyConfig};
use crate::grammar;
use crate::model::{ChatEngine, ModelError, ModelPolicy};
use crate::policy::Policy;
use crate::random::RandomPolicy;
use crate::remote::RemotePolicy;
use crate::scripted::ScriptedPolicy;
use crate::serve::ChatEndpoint;
use crate::service::SessionService;
use crate::session_table::SessionTable;

/// A registration call is a few hundred bytes, so two seconds without an answer mean that the
/// coordinator is down.
const CALL_DEADLINE: Duration = Duration::from_secs(2);

/// Longest pause between two attempts to reach a coordinator that is down.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Interval of the warning that no coordinator answers.
const WAITING_WARNED_EVERY: Duration = Duration::from_secs(60);

/// The result of a worker's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerReport {
    /// Sessions that were cut when the grace period ended.
    pub cut_off: usize,
    /// Chats that were cut when it ended.
    pub chats_cut_off: usize,
}

/// Why a worker ended early.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The coordinator refused this worker.
    #[error("the coordinator at {address} refused this policy worker: {status}")]
    Refused { address: String, status: Box<Status> },
    /// The coordinator's address cannot be parsed.
    #[error("{address:?} is not an address of a coordinator; use host:port")]
    Address {
        /// The address as given.
        address: String,
        source: tonic::transport::Error,
    },
    #[error("the policy service stopped")]
    Serve(#[source] tonic::transport::Error),
    /// The reflection service could not be built.
    #[error("the reflection service could not be built")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The checkpoint cannot be opened.
    #[error("the model cannot be opened")]
    Model(#[from] ModelError),
    /// The thread that loads the checkpoint panicked.
    #[error("loading the checkpoint panicked; see the log")]
    Loading(#[source] tokio::task::JoinError),
    /// The task that serves chats panicked.
    #[error("serving chats panicked; see the log")]
    Chats(#[source] tokio::task::JoinError),
    /// The policy failed and can serve no session any more.
    #[error("the policy failed: {why}")]
    Failed { why: String },
    /// The configuration was not made by a check of the file.
    #[error("policy.kind is {kind}, but its section is missing from the configuration")]
    NoModel { kind: &'static str },
    /// The listener has no address.
    #[error("the listener has no address")]
    Listener(#[source] std::io::Error),
}

/// Listeners of a worker.
#[derive(Debug)]
pub struct WorkerListeners {
    /// For sessions of trajectories.
    pub sessions: TcpListener,
    /// For chats, if the job serves them.
    pub chats: Option<ChatEndpoint>,
    /// What the worker shows to environment workers, whose certificates must be of the same
    /// authority. `None` serves any caller without TLS; for tests.
    pub link: Option<Identity>,
}

/// Connections of a worker, from a listener or from a simulator.
#[derive(Debug)]
pub struct WorkerConnections<I> {
    /// For sessions of trajectories.
    pub sessions: I,
    /// The address that they come to.
    pub address: String,
    /// For chats, if the job serves them.
    pub chats: Option<ChatEndpoint>,
    /// What the worker shows to environment workers, as in [`WorkerListeners::link`].
    pub link: Option<Identity>,
}

impl From<TcpListener> for WorkerListeners {
    fn from(sessions: TcpListener) -> Self {
        Self { sessions, chats: None, link: None }
    }
}

/// Serves sessions, and chats if the job enables them, until `stop` is cancelled, then drains them
/// within `grace`. Where it is cancelled before the policy is there, the thread that loads a
/// checkpoint is left behind.
///
/// With a coordinator's address the worker registers under the address it advertises and sends
/// heartbeats; without one it only serves.
pub async fn run(
    config: PolicyConfig,
    worker: Id<PolicyWorker>,
    listening: impl Into<WorkerListeners>,
    connect: Arc<dyn Connector>,
    coordinator: Option<String>,
    grace: Duration,
    stop: CancellationToken,
) -> Result<WorkerReport, WorkerError> {
    let WorkerListeners { sessions: listener, chats, link } = listening.into();
    let address = listener.local_addr().map_err(WorkerError::Listener)?.to_string();
    let connections = WorkerConnections { sessions: accept(listener), address, chats, link };
    run_on(config, worker, connections, connect, coordinator, grace, stop).await
}

/// The same on connections of any kind.
pub async fn run_on<I, IO, E>(
    config: PolicyConfig,
    worker: Id<PolicyWorker>,
    connections: WorkerConnections<I>,
    connect: Arc<dyn Connector>,
    coordinator: Option<String>,
    grace: Duration,
    stop: CancellationToken,
) -> Result<WorkerReport, WorkerError>
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let WorkerConnections { sessions: incoming, address, chats, link } = connections;
    let Some(opened) = stop.run_until_cancelled(policy(&config)).await else {
        return Ok(WorkerReport::default());
    };
    let (policy, chat_engine) = opened?;
    let over = stop.child_token();
    let chatting = chats
        .zip(chat_engine)
        .map(|(endpoint, chat_engine)| tokio::spawn(endpoint.serve(chat_engine, over.clone(), grace)));
    let sessions_max =
        policy.sessions_max().map_or(config.sessions_max, |limit| config.sessions_max.min(limit));
    let config = PolicyConfig { sessions_max, ..config };
    let service = SessionService::new(&config, worker.clone(), policy.clone(), stop.child_token());
    let closing = CancellationToken::new();
    let serving = serve(service.clone(), incoming, link, closing.clone());
    let registered = async {
        match coordinator {
            None => {
                stop.cancelled().await;
                Ok(())
            }
            Some(coordinator) => {
                let channel = connect
                    .channel(PeerRole::Coordinator, &coordinator)
                    .map_err(|source| WorkerError::Address { address: coordinator.clone(), source })?;
                let registration = PolicyRegistration {
                    worker,
                    config: config.clone(),
                    listens_on: address.clone(),
                    policy: policy.clone(),
                    refused: Mutex::default(),
                    channel,
                    address: coordinator,
                    sessions: service.sessions.clone(),
                    revocations: service.revocations.clone(),
                };
                registration.keep(&stop).await
            }
        }
    };
    tokio::pin!(serving);
    let report = tokio::select! {
        served = &mut serving => served.map(|()| WorkerReport::default()),
        why = policy.failed() => {
            service.sessions.fail_all(&why);
            closing.cancel();
            serving.await.and(Err(WorkerError::Failed { why }))
        }
        outcome = registered => {
            stop.cancel();
            let drained = drain_or_fail(&service, &*policy, grace).await;
            closing.cancel();
            let cut_off = serving.await.and(outcome).and(drained);
            cut_off.map(|cut_off| WorkerReport { cut_off, ..WorkerReport::default() })
        }
    };
    over.cancel();
    let chatted = match chatting {
        Some(chatting) => chatting.await.map_err(WorkerError::Chats),
        None => Ok(0),
    };
    // A device that is given up ends its sessions, so the drain may be over before it is known to
    // have failed.
    let stopped = policy.stop().await.map_err(|why| WorkerError::Failed { why });
    let report = WorkerReport { chats_cut_off: chatted?, ..report? };
    stopped.map(|()| report)
}

/// Serves chats alone until `stop` is cancelled, then drains them within `grace`. Returns how many
/// replies were cut. Nothing else listens, and nothing registers. A checkpoint that is being loaded
/// is left behind as in [`run`].
pub async fn serve_chats(
    config: PolicyConfig,
    endpoint: ChatEndpoint,
    grace: Duration,
    stop: CancellationToken,
) -> Result<usize, WorkerError> {
    let Some(opened) = stop.run_until_cancelled(policy(&config)).await else { return Ok(0) };
    let (policy, chat_engine) = opened?;
    let chat_engine = chat_engine.ok_or(WorkerError::NoModel { kind: "model" })?;
    let over = stop.child_token();
    let mut chatting = tokio::spawn(endpoint.serve(chat_engine, over.clone(), grace));
    let report = tokio::select! {
        chatted = &mut chatting => chatted.map_err(WorkerError::Chats),
        why = policy.failed() => {
            over.cancel();
            chatting.await.map_err(WorkerError::Chats).and(Err(WorkerError::Failed { why }))
        }
    };
    let stopped = policy.stop().await.map_err(|why| WorkerError::Failed { why });
    let report = report?;
    stopped.map(|()| report)
}

/// Creates the policy. A checkpoint is loaded on a blocking thread.
async fn policy(config: &PolicyConfig) -> Result<(Arc<dyn Policy>, Option<ChatEngine>), WorkerError> {
    let policy: Arc<dyn Policy> = match config.choice {
        PolicyChoice::Scripted => Arc::new(ScriptedPolicy),
        PolicyChoice::Random => Arc::new(RandomPolicy),
        PolicyChoice::Model => {
            let model = config.model.clone().ok_or(WorkerError::NoModel { kind: "model" })?;
            let session = config.session.clone();
            let loading = tokio::task::spawn_blocking(move || ModelPolicy::open(&model, &session));
            let model = Arc::new(loading.await.map_err(WorkerError::Loading)??);
            let chat_engine = model.chat_engine();
            return Ok((model, Some(chat_engine)));
        }
        PolicyChoice::Openai => {
            let remote = config.remote.clone().ok_or(WorkerError::NoModel { kind: "openai" })?;
            Arc::new(RemotePolicy::new(remote))
        }
    };
    Ok((policy, None))
}

async fn serve<I, IO, E>(
    service: SessionService,
    incoming: I,
    link: Option<Identity>,
    closing: CancellationToken,
) -> Result<(), WorkerError>
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let streams = service.streams.clone();
    let revocations = service.revocations.clone();
    let policy = PolicyServiceServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let server = authorized_server(LinkTimeouts::default(), link.as_ref(), &revocations);
    let router = with_health_and_reflection::<PolicyServiceServer<SessionService>>(server)
        .await
        .map_err(WorkerError::Reflection)?;
    let router = router.add_service(policy);
    let serving = furrow_wire::serve(router, incoming, link, closing.cancelled_owned());
    serving.await.map_err(WorkerError::Serve)?;
    streams.close();
    streams.wait().await;
    Ok(())
}

/// Drains the sessions, unless the policy fails meanwhile. Returns how many were cut.
async fn drain_or_fail(
    service: &SessionService,
    policy: &dyn Policy,
    grace: Duration,
) -> Result<usize, WorkerError> {
    policy.prepare_to_stop();
    tokio::select! {
        cut_off = drain(service, grace) => Ok(cut_off),
        why = policy.failed() => {
            service.sessions.fail_all(&why);
            Err(WorkerError::Failed { why })
        }
    }
}

/// Waits until no stream is attached. Cuts the rest after the grace period and returns how many
/// were cut.
async fn drain(service: &SessionService, grace: Duration) -> usize {
    service.streams.close();
    match tokio::time::timeout(grace, service.streams.wait()).await {
        Ok(()) => 0,
        Err(_) => {
            let left = service.sessions.attached();
            service.sessions.cut_all();
            left
        }
    }
}

/// Channel of weight updates; a newer order replaces an older one.
type WeightOrders = watch::Sender<Option<WeightsOrder>>;

/// A worker with weights sends heartbeats at least this often, because a trainer waits for new
/// weights to take effect.
const FOLLOW_MILLIS: u64 = 500;

/// First pause before weights that other workers run are tried again, because files may arrive
/// late. Each further pause is twice as long: reading 26 GB takes a disk a minute.
const WEIGHTS_RETRY_MIN: Duration = Duration::from_secs(1);
const WEIGHTS_RETRY_MAX: Duration = Duration::from_secs(120);

/// Weights that could not be loaded, and when to try them again.
#[derive(Debug, Clone, Copy)]
struct FailedOrder {
    version: PolicyVersion,
    pause: Duration,
    retry_at: Instant,
}

impl FailedOrder {
    fn retry(version: PolicyVersion, before: Option<Self>) -> Self {
        let pause = before.map_or(WEIGHTS_RETRY_MIN, |before| (before.pause * 2).min(WEIGHTS_RETRY_MAX));
        Self { version, pause, retry_at: Instant::now() + pause }
    }
}

/// Most characters of a refusal in a heartbeat.
const REASON_CHARS_MAX: usize = 2000;

/// Registers this worker at the coordinator and sends heartbeats.
struct PolicyRegistration {
    worker: Id<PolicyWorker>,
    config: PolicyConfig,
    listens_on: String,
    policy: Arc<dyn Policy>,
    /// The last order that this worker refused.
    refused: Mutex<Option<WeightsRefusal>>,
    channel: Channel,
    address: String,
    sessions: SessionTable,
    /// Peers that the run refuses, as the coordinator names them.
    revocations: Revocations,
}

impl PolicyRegistration {
    /// Registers and sends heartbeats until `stop` is cancelled or the run is over, then
    /// deregisters.
    async fn keep(&self, stop: &CancellationToken) -> Result<(), WorkerError> {
        let (orders, heard) = watch::channel(None);
        tokio::select! {
            kept = self.register_and_beat(&orders, stop) => kept?,
            () = self.follow(heard) => {}
        }
        self.leave().await;
        Ok(())
    }

    async fn register_and_beat(
        &self,
        orders: &WeightOrders,
        stop: &CancellationToken,
    ) -> Result<(), WorkerError> {
        while let Some(heartbeat) = self.register(orders, stop).await? {
            if self.beat(heartbeat, orders, stop).await {
                break;
            }
        }
        Ok(())
    }

    /// Loads the newest ordered weights, one version after another. Weights that failed here but
    /// run on other workers are tried again after growing pauses. Weights that no worker runs are
    /// not: the coordinator reports the refusal to their publisher, who publishes others.
    async fn follow(&self, mut heard: watch::Receiver<Option<WeightsOrder>>) {
        let mut failed: Option<FailedOrder> = None;
        loop {
            let order = heard.borrow_and_update().clone();
            let order = order.filter(|order| self.policy.version() < Some(order.version));
            let same =
                failed.filter(|failed| order.as_ref().is_some_and(|order| order.version == failed.version));
            let retry_at = match (order, same) {
                (Some(order), Some(failed)) if order.taken && failed.retry_at > Instant::now() => {
                    Some(failed.retry_at)
                }
                (Some(order), same) if order.taken || same.is_none() => {
                    failed = self.take_up(&order, same).await;
                    continue;
                }
                _ => None,
            };
            let retry = async {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = heard.changed() => if changed.is_err() { return },
                () = retry => {}
            }
        }
    }

    /// Loads these weights. Returns when to try them again if that failed.
    async fn take_up(&self, order: &WeightsOrder, before: Option<FailedOrder>) -> Option<FailedOrder> {
        let version = order.version.0;
        let refused = self.policy.take_weights(order).await.err().map(|reason| {
            tracing::error!(
                version,
                reason,
                "this worker refused published weights and keeps the ones in use"
            );
            let reason = reason.chars().take(REASON_CHARS_MAX).collect();
            WeightsRefusal { version, reason }
        });
        let failed = refused.is_some().then(|| FailedOrder::retry(order.version, before));
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        failed
    }

    /// Forwards an order that differs from the last one.
    fn apply_order(&self, order: Option<v1::WeightsOrder>, orders: &WeightOrders) {
        let Some(message) = order else { return };
        match weights_order_from(message) {
            Ok(order) => drop(orders.send_if_modified(|last| {
                let is_new = last.as_ref() != Some(&order);
                if is_new {
                    *last = Some(order);
                }
                is_new
            })),
            Err(wrong) => tracing::warn!(%wrong, "the coordinator's order cannot be read"),
        }
    }

    /// Returns `None` if `stop` was cancelled before the coordinator answered.
    async fn register(
        &self,
        orders: &WeightOrders,
        stop: &CancellationToken,
    ) -> Result<Option<Duration>, WorkerError> {
        let mut pause = Duration::from_millis(100);
        let began = Instant::now();
        let mut warned_at = None::<Instant>;
        loop {
            let request = RegisterRequest {
                protocol_version: PROTOCOL_VERSION,
                schema_version: SCHEMA_VERSION,
                worker_id: self.worker.to_string(),
                role: Some(register_request::Role::Policy(self.info())),
            };
            match with_deadline(CALL_DEADLINE, self.client().register(request)).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    self.apply_order(answer.weights, orders);
                    let most = if self.policy.version().is_some() { FOLLOW_MILLIS } else { u64::MAX };
                    return Ok(Some(Duration::from_millis(answer.heartbeat_millis.clamp(10, most))));
                }
                Err(status) if refusal(&status) == RefusalKind::Retry => {
                    tracing::debug!(coordinator = %self.address, %status, "the coordinator does not answer yet");
                    // A worker may start before its coordinator. A long wait is logged, because the
                    // run may be over.
                    if warned_at.unwrap_or(began).elapsed() >= WAITING_WARNED_EVERY {
                        warned_at = Some(Instant::now());
                        tracing::warn!(
                            coordinator = %self.address,
                            waited_seconds = began.elapsed().as_secs(),
                            "the coordinator does not answer; this worker keeps trying; stop it if its run is over"
                        );
                    }
                }
                Err(status) => {
                    return Err(WorkerError::Refused {
                        address: self.address.clone(),
                        status: Box::new(status),
                    });
                }
            }
            if stopped_within(pause, stop).await {
                return Ok(None);
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Sends heartbeats until the worker must register again (`false`) or is done (`true`).
    async fn beat(&self, every: Duration, orders: &WeightOrders, stop: &CancellationToken) -> bool {
        let mut turn = 0_u64;
        loop {
            tokio::select! {
                () = stop.cancelled() => return true,
                () = sleep(every) => turn += 1,
                () = self.policy.break_changed() => turn = 0,
            }
            let (policy_version, hashes) = self.current_version();
            let request = HeartbeatRequest {
                worker_id: self.worker.to_string(),
                sessions: self.sessions.attached() as u32,
                policy_version,
                weights_sha256: hashes.weights,
                refused: self.refusal(turn),
                memory_bytes: furrow_telemetry::taken_bytes(),
                memory_left_bytes: furrow_telemetry::available_bytes(),
            };
            match with_deadline(CALL_DEADLINE, self.client().heartbeat(request))
                .await
                .map(tonic::Response::into_inner)
            {
                Ok(answer) if answer.run_over => return true,
                Ok(answer) if answer.known => {
                    if let Err(wrong) = self.revocations.update_from_wire(&answer.revoked) {
                        tracing::warn!(%wrong, "the coordinator's list of revoked peers cannot be read");
                    }
                    self.apply_order(answer.weights, orders);
                }
                Ok(_) => return false,
                // Registering again tells why.
                Err(status) if refusal(&status) == RefusalKind::Wrong => return false,
                Err(status) => tracing::debug!(%status, "the coordinator missed a heartbeat"),
            }
        }
    }

    /// The version that this worker cannot run: its own one if that is broken, or the last one that
    /// it was ordered to run. A heartbeat names one version, so two take turns.
    fn refusal(&self, turn: u64) -> Option<WeightsRefusal> {
        let own = self.policy.broken().map(|(version, reason)| WeightsRefusal { version: version.0, reason });
        let ordered = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if turn.is_multiple_of(2) { own.or(ordered) } else { ordered.or(own) }
    }

    /// The version in use with the hashes of that version: an update may happen between the two
    /// reads.
    fn current_version(&self) -> (Option<i32>, PolicyHashes) {
        loop {
            let version = self.policy.version();
            let hashes = self.policy.hashes();
            if self.policy.version() == version {
                return (version.map(|version| version.0), hashes);
            }
        }
    }

    /// Read for each call, because versions change while the worker runs.
    fn info(&self) -> PolicyWorkerInfo {
        let Self { config, policy, .. } = self;
        let (policy_version, hashes) = self.current_version();
        PolicyWorkerInfo {
            address: config.advertise.clone().unwrap_or_else(|| self.listens_on.clone()),
            policy_kind: policy.kind().as_str().to_owned(),
            sessions_max: config.sessions_max,
            policy_version,
            weights_sha256: hashes.weights,
            tokenizer_sha256: hashes.tokenizer,
            template_sha256: hashes.template,
            grammar_sha256: Some(grammar::sha256(&config.session.grammar)),
            processor_sha256: hashes.processor,
        }
    }

    async fn leave(&self) {
        let request = LeaveRequest { worker_id: self.worker.to_string() };
        if let Err(status) = with_deadline(CALL_DEADLINE, self.client().leave(request)).await {
            tracing::debug!(%status, "the coordinator did not answer the deregistration");
        }
    }

    fn client(&self) -> RegistrationServiceClient<Channel> {
        RegistrationServiceClient::new(self.channel.clone())
    }
}

async fn stopped_within(pause: Duration, stop: &CancellationToken) -> bool {
    tokio::time::timeout(pause, stop.cancelled()).await.is_ok()
}
