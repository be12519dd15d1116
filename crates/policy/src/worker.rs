//! A policy worker's life: listen, register, beat, take up published weights, drain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use furrow_rollout::{
    Hashes, Id, PROTOCOL_VERSION, PolicyVersion, PolicyWorker, SCHEMA_VERSION, WeightsOrder,
};
use furrow_wire::v1::policy_service_server::PolicyServiceServer;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::v1::{
    self, HeartbeatRequest, LeaveRequest, PolicyWorkerInfo, RegisterRequest, WeightsRefusal, register_request,
};
use furrow_wire::{
    Connect, MESSAGE_BYTES_MAX, Refusal, Timeouts, accept, refusal, server, weights_order_from,
    with_health_and_reflection, within,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::transport::Channel;

use crate::config::{PolicyChoice, PolicyConfig};
use crate::grammar;
use crate::model::{Model, ModelError, Talks};
use crate::policy::Policy;
use crate::random::Random;
use crate::remote::Remote;
use crate::scripted::Scripted;
use crate::serve::Endpoint;
use crate::service::Service;
use crate::sessions::Sessions;

/// A registration call is a few hundred bytes: two seconds mean that the coordinator is away.
const CALL_DEADLINE: Duration = Duration::from_secs(2);

/// Longest pause between two tries to reach a coordinator that is away.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A worker that waits for its coordinator says so every so often.
const WAITING_WARNED_EVERY: Duration = Duration::from_secs(60);

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Sessions that were cut because the grace was over.
    pub cut_off: usize,
    /// Chats that were.
    pub chats_cut_off: usize,
}

/// Why a worker ended early.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The coordinator does not want this worker.
    #[error("the coordinator at {address} refused this policy worker: {status}")]
    Refused {
        /// Where it is.
        address: String,
        /// What it said.
        status: Box<Status>,
    },
    /// The coordinator's address is none.
    #[error("{address:?} is no address of a coordinator; use host:port")]
    Address {
        /// What was given.
        address: String,
        /// Why it is none.
        source: tonic::transport::Error,
    },
    /// The service stopped.
    #[error("the policy service stopped")]
    Serve(#[source] tonic::transport::Error),
    /// The reflection service could not be built.
    #[error("the reflection service could not be built")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The checkpoint is not run.
    #[error("the model cannot be run")]
    Model(#[from] ModelError),
    /// Loading the checkpoint ended by a panic.
    #[error("loading the checkpoint ended by a panic")]
    Loading(#[source] tokio::task::JoinError),
    /// Serving chats ended by a panic.
    #[error("serving chats ended by a panic")]
    Chats(#[source] tokio::task::JoinError),
    /// The policy can answer nobody any more.
    #[error("the policy failed: {why}")]
    Failed {
        /// What happened.
        why: String,
    },
    /// The configuration is of no checked file.
    #[error("policy.kind is {kind}, and the configuration does not say which")]
    NoModel {
        /// Which kind.
        kind: &'static str,
    },
    /// The listener has no address.
    #[error("the listener has no address")]
    Listener(#[source] std::io::Error),
}

/// Where a worker is reached.
#[derive(Debug)]
pub struct Listening {
    /// For sessions of trajectories.
    pub sessions: TcpListener,
    /// For chats, where the job has them served.
    pub chats: Option<Endpoint>,
}

impl From<TcpListener> for Listening {
    fn from(sessions: TcpListener) -> Self {
        Self { sessions, chats: None }
    }
}

/// Serves sessions, and chats where the job says so, until `stop` is cancelled, then lets them end within `grace`.
///
/// With a coordinator's address the worker registers there with the address it advertises and keeps beating; without one it only serves.
pub async fn run(
    config: PolicyConfig,
    worker: Id<PolicyWorker>,
    listening: impl Into<Listening>,
    connect: Arc<dyn Connect>,
    coordinator: Option<String>,
    grace: Duration,
    stop: CancellationToken,
) -> Result<Report, WorkerError> {
    let Listening { sessions: listener, chats } = listening.into();
    let address = listener.local_addr().map_err(WorkerError::Listener)?.to_string();
    let (policy, talks) = policy(&config).await?;
    let over = stop.child_token();
    let chatting =
        chats.zip(talks).map(|(endpoint, talks)| tokio::spawn(endpoint.serve(talks, over.clone(), grace)));
    let sessions_max = policy.places().map_or(config.sessions_max, |places| config.sessions_max.min(places));
    let config = PolicyConfig { sessions_max, ..config };
    let service = Service {
        worker: worker.clone(),
        policy: policy.clone(),
        sessions: Sessions::new(config.sessions_max, config.linger),
        think: config.think,
        draining: stop.child_token(),
        streams: TaskTracker::new(),
    };
    let closing = CancellationToken::new();
    let serving = serve(service.clone(), listener, closing.clone());
    let registered = async {
        match coordinator {
            None => {
                stop.cancelled().await;
                Ok(())
            }
            Some(coordinator) => {
                let channel = connect
                    .channel(&coordinator)
                    .map_err(|source| WorkerError::Address { address: coordinator.clone(), source })?;
                let registration = Registration {
                    worker,
                    config: config.clone(),
                    listens_on: address.clone(),
                    policy: policy.clone(),
                    refused: Mutex::default(),
                    channel,
                    address: coordinator,
                    sessions: service.sessions.clone(),
                };
                registration.keep(&stop).await
            }
        }
    };
    tokio::pin!(serving);
    let report = tokio::select! {
        served = &mut serving => served.map(|()| Report::default()),
        why = policy.failed() => {
            service.sessions.fail_all(&why);
            closing.cancel();
            serving.await.and(Err(WorkerError::Failed { why }))
        }
        outcome = registered => {
            stop.cancel();
            let cut_off = drain(&service, grace).await;
            closing.cancel();
            serving.await.and(outcome).map(|()| Report { cut_off, ..Report::default() })
        }
    };
    over.cancel();
    let chatted = match chatting {
        Some(chatting) => chatting.await.map_err(WorkerError::Chats),
        None => Ok(0),
    };
    policy.stop().await;
    Ok(Report { chats_cut_off: chatted?, ..report? })
}

/// Makes the policy; a checkpoint is loaded on a thread that may take its time.
async fn policy(config: &PolicyConfig) -> Result<(Arc<dyn Policy>, Option<Talks>), WorkerError> {
    let policy: Arc<dyn Policy> = match config.choice {
        PolicyChoice::Scripted => Arc::new(Scripted),
        PolicyChoice::Random => Arc::new(Random),
        PolicyChoice::Model => {
            let model = config.model.clone().ok_or(WorkerError::NoModel { kind: "model" })?;
            let session = config.session.clone();
            let loading = tokio::task::spawn_blocking(move || Model::open(&model, &session));
            let model = Arc::new(loading.await.map_err(WorkerError::Loading)??);
            let talks = model.talks();
            return Ok((model, Some(talks)));
        }
        PolicyChoice::Openai => {
            let remote = config.remote.clone().ok_or(WorkerError::NoModel { kind: "openai" })?;
            Arc::new(Remote::new(remote))
        }
    };
    Ok((policy, None))
}

async fn serve(
    service: Service,
    listener: TcpListener,
    closing: CancellationToken,
) -> Result<(), WorkerError> {
    let streams = service.streams.clone();
    let policy = PolicyServiceServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let router = with_health_and_reflection::<PolicyServiceServer<Service>>(server(Timeouts::default()))
        .await
        .map_err(WorkerError::Reflection)?;
    router
        .add_service(policy)
        .serve_with_incoming_shutdown(accept(listener), closing.cancelled_owned())
        .await
        .map_err(WorkerError::Serve)?;
    streams.close();
    streams.wait().await;
    Ok(())
}

/// Waits until no session is attached; cuts what is left when the grace is over and says how many.
async fn drain(service: &Service, grace: Duration) -> usize {
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

/// Where orders to run other weights are left; a newer one takes the place of an older.
type Orders = watch::Sender<Option<WeightsOrder>>;

/// A worker with weights asks at least this often for newer ones: a trainer waits for it.
const FOLLOW_MILLIS: u64 = 500;

/// Weights that others run are tried again after so long: files may have come late. Each pause is twice the one before it, for reading 26 GB
/// takes a disk a minute.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(120);

/// Weights that could not be taken up.
#[derive(Debug, Clone, Copy)]
struct Failed {
    version: PolicyVersion,
    pause: Duration,
    again_at: Instant,
}

impl Failed {
    fn once_more(version: PolicyVersion, before: Option<Self>) -> Self {
        let pause = before.map_or(AGAIN_MIN, |before| (before.pause * 2).min(AGAIN_MAX));
        Self { version, pause, again_at: Instant::now() + pause }
    }
}

/// Characters of a refusal that are passed on.
const REASON_CHARS_MAX: usize = 2000;

/// Keeps the coordinator knowing about this worker.
struct Registration {
    worker: Id<PolicyWorker>,
    config: PolicyConfig,
    listens_on: String,
    policy: Arc<dyn Policy>,
    /// The last order that could not be followed.
    refused: Mutex<Option<WeightsRefusal>>,
    channel: Channel,
    address: String,
    sessions: Sessions,
}

impl Registration {
    /// Registers and beats until `stop` is cancelled or the run is over, then says goodbye.
    async fn keep(&self, stop: &CancellationToken) -> Result<(), WorkerError> {
        let (orders, heard) = watch::channel(None);
        tokio::select! {
            kept = self.keep_known(&orders, stop) => kept?,
            () = self.follow(heard) => {}
        }
        self.leave().await;
        Ok(())
    }

    async fn keep_known(&self, orders: &Orders, stop: &CancellationToken) -> Result<(), WorkerError> {
        while let Some(heartbeat) = self.register(orders, stop).await? {
            if self.beat(heartbeat, orders, stop).await {
                break;
            }
        }
        Ok(())
    }

    /// Takes up the newest weights that were ordered, one after another. What could not be taken up and others run is tried again after
    /// ever longer pauses. What nobody runs is not: whoever published it is told, and publishes another.
    async fn follow(&self, mut heard: watch::Receiver<Option<WeightsOrder>>) {
        let mut failed: Option<Failed> = None;
        loop {
            let order = heard.borrow_and_update().clone();
            let order = order.filter(|order| self.policy.version() < Some(order.version));
            let same =
                failed.filter(|failed| order.as_ref().is_some_and(|order| order.version == failed.version));
            let again_at = match (order, same) {
                (Some(order), Some(failed)) if order.taken && failed.again_at > Instant::now() => {
                    Some(failed.again_at)
                }
                (Some(order), same) if order.taken || same.is_none() => {
                    failed = self.take_up(&order, same).await;
                    continue;
                }
                _ => None,
            };
            let again = async {
                match again_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = heard.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }

    /// Takes up these weights; says when they are to be tried again if that failed, as it may have before.
    async fn take_up(&self, order: &WeightsOrder, before: Option<Failed>) -> Option<Failed> {
        let version = order.version.0;
        let refused = self.policy.take_weights(order).await.err().map(|reason| {
            tracing::error!(version, reason, "published weights are refused; those in use stay");
            let reason = reason.chars().take(REASON_CHARS_MAX).collect();
            WeightsRefusal { version, reason }
        });
        let failed = refused.is_some().then(|| Failed::once_more(order.version, before));
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        failed
    }

    /// Hands on an order that says something new.
    fn hear(&self, order: Option<v1::WeightsOrder>, orders: &Orders) {
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

    /// `None` when told to stop before the coordinator was reached.
    async fn register(
        &self,
        orders: &Orders,
        stop: &CancellationToken,
    ) -> Result<Option<Duration>, WorkerError> {
        let mut pause = Duration::from_millis(100);
        let (began, mut warned_at) = (Instant::now(), None::<Instant>);
        loop {
            let request = RegisterRequest {
                protocol_version: PROTOCOL_VERSION,
                schema_version: SCHEMA_VERSION,
                worker_id: self.worker.to_string(),
                role: Some(register_request::Role::Policy(self.info())),
            };
            match within(CALL_DEADLINE, self.client().register(request)).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    self.hear(answer.weights, orders);
                    let most = if self.policy.version().is_some() { FOLLOW_MILLIS } else { u64::MAX };
                    return Ok(Some(Duration::from_millis(answer.heartbeat_millis.clamp(10, most))));
                }
                Err(status) if refusal(&status) == Refusal::TryAgain => {
                    tracing::debug!(coordinator = %self.address, %status, "the coordinator is not there yet");
                    // A worker may well come before its coordinator; a long wait is logged, for its run may be over.
                    if warned_at.unwrap_or(began).elapsed() >= WAITING_WARNED_EVERY {
                        warned_at = Some(Instant::now());
                        tracing::warn!(
                            coordinator = %self.address,
                            waited_seconds = began.elapsed().as_secs(),
                            "no coordinator answers: this worker waits for one; stop it where its run is over"
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

    /// Beats until the worker must register again (`false`) or is done (`true`).
    async fn beat(&self, every: Duration, orders: &Orders, stop: &CancellationToken) -> bool {
        loop {
            if stopped_within(every, stop).await {
                return true;
            }
            let (policy_version, hashes) = self.standing();
            let request = HeartbeatRequest {
                worker_id: self.worker.to_string(),
                sessions: self.sessions.attached() as u32,
                policy_version,
                weights_sha256: hashes.weights,
                refused: self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                memory_bytes: furrow_telemetry::taken_bytes(),
                memory_left_bytes: furrow_telemetry::available_bytes(),
            };
            match within(CALL_DEADLINE, self.client().heartbeat(request))
                .await
                .map(tonic::Response::into_inner)
            {
                Ok(answer) if answer.run_over => return true,
                Ok(answer) if answer.known => self.hear(answer.weights, orders),
                Ok(_) => return false,
                Err(status) => tracing::debug!(%status, "the coordinator missed a heartbeat"),
            }
        }
    }

    /// The version it runs and the hashes of that very version: an exchange may come between two questions.
    fn standing(&self) -> (Option<i32>, Hashes) {
        loop {
            let (version, hashes) = (self.policy.version(), self.policy.hashes());
            if self.policy.version() == version {
                return (version.map(|version| version.0), hashes);
            }
        }
    }

    /// What it is now: versions change while it lives.
    fn info(&self) -> PolicyWorkerInfo {
        let Self { config, policy, .. } = self;
        let (policy_version, hashes) = self.standing();
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
        if let Err(status) = within(CALL_DEADLINE, self.client().leave(request)).await {
            tracing::debug!(%status, "the coordinator was gone before the goodbye");
        }
    }

    fn client(&self) -> RegistrationServiceClient<Channel> {
        RegistrationServiceClient::new(self.channel.clone())
    }
}

async fn stopped_within(pause: Duration, stop: &CancellationToken) -> bool {
    tokio::time::timeout(pause, stop.cancelled()).await.is_ok()
}
