//! A stub coordinator and a stub policy worker: real gRPC on loopback, a record of the calls, and
//! switches for failures.
//!
//! Each serves in its own runtime, so that killing it is abrupt: no Leave, no completed answers,
//! every connection lost.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::*;
use furrow_wire::v1::coordinator_service_server::{CoordinatorService, CoordinatorServiceServer};
use furrow_wire::v1::policy_service_server::{PolicyService, PolicyServiceServer};
use furrow_wire::v1::registration_service_server::{RegistrationService, RegistrationServiceServer};
use furrow_wire::v1::{self, session_request, session_response};
use furrow_wire::{
    FileContents, LinkTimeouts, MESSAGE_BYTES_MAX, OpaqueStep, SessionOpening, assignment_into,
    lease_secret_into, past_from, reply_into,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Every wait of a test ends after this time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// A value that tests watch and change.
pub(crate) struct WatchedValue<T>(watch::Sender<T>);

impl<T: 'static> WatchedValue<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(value)))
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut change = Some(change);
        let mut changed = None;
        self.0.send_modify(|value| changed = change.take().map(|change| change(value)));
        changed.unwrap()
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.0.borrow())
    }

    /// Waits for a state; the panic names the state that never came.
    #[track_caller]
    pub(crate) fn until(
        &self,
        what: &'static str,
        is_so: impl FnMut(&T) -> bool,
    ) -> impl Future<Output = ()> {
        let mut receiver = self.0.subscribe();
        async move {
            let state = tokio::time::timeout(DEADLINE, receiver.wait_for(is_so)).await;
            assert!(state.is_ok_and(|state| state.is_ok()), "never: {what}");
        }
    }
}

/// A server in its own runtime.
pub(crate) struct LocalServer {
    runtime: Option<Runtime>,
    pub address: SocketAddr,
}

impl LocalServer {
    /// Serves on a port, 0 for any.
    fn start(router: impl FnOnce() -> tonic::transport::server::Router + Send + 'static, port: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        runtime.spawn(async move {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            router().serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        let address = is_ready.recv_timeout(DEADLINE).unwrap();
        Self { runtime: Some(runtime), address }
    }

    /// Like kill -9: when this returns, no task of the server runs any more.
    pub(crate) fn kill(mut self) -> u16 {
        let runtime = self.runtime.take().unwrap();
        // A runtime must not be shut down inside another one.
        std::thread::spawn(|| runtime.shutdown_timeout(DEADLINE)).join().unwrap();
        self.address.port()
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// State of the stub coordinator. It outlives the server, as a ledger does.
#[derive(Default)]
pub(crate) struct CoordinatorState {
    pub queue: VecDeque<Assignment>,
    /// Token and secret of each trajectory.
    pub leases: HashMap<String, (u64, v1::LeaseSecret)>,
    pub steps: BTreeMap<String, Vec<Bytes>>,
    pub endings: BTreeMap<String, Bytes>,
    /// Whether the worker is registered; a restart resets it.
    pub known: bool,
    pub run_over: bool,
    pub moves: HashMap<String, String>,
    pub registered: u32,
    pub renewed: u32,
    pub beats: u32,
    pub left: u32,
    /// Calls received, answered or not: `record_step 3`.
    pub calls: Vec<String>,
    /// Number of replies to lose per call: the call is executed, the caller gets an error.
    pub lose_replies: HashMap<String, u32>,
    pub refuse_registration: Option<String>,
    /// A step that is always refused.
    pub refuse_step: Option<u32>,
    /// Whether an observer looks.
    pub watched: bool,
    /// First screenshots that were shown.
    pub shown: BTreeMap<String, Bytes>,
}

impl CoordinatorState {
    pub(crate) fn ending(&self, trajectory: &str) -> Option<TrajectoryEnding> {
        Some(furrow_wire::decode_ending(self.endings.get(trajectory)?.clone()).unwrap())
    }

    pub(crate) fn recorded(&self, trajectory: &str) -> Vec<OpaqueStep> {
        let records = self.steps.get(trajectory).into_iter().flatten();
        records.map(|record| furrow_wire::decode_opaque_step(record.clone()).unwrap()).collect()
    }

    /// The reply, or an error if this call's reply is to be lost.
    fn reply<T>(&mut self, call: &str, answer: T) -> Result<Response<T>, Status> {
        self.calls.push(call.to_owned());
        match self.lose_replies.get_mut(call) {
            Some(count) if *count > 0 => {
                *count -= 1;
                Err(Status::unavailable("the reply was lost"))
            }
            _ => Ok(Response::new(answer)),
        }
    }

    fn check_lease(
        &self,
        trajectory: &str,
        token: u64,
        secret: Option<&v1::LeaseSecret>,
    ) -> Result<(), Status> {
        match self.leases.get(trajectory) {
            Some((current, expected)) if *current == token && secret == Some(expected) => Ok(()),
            _ => Err(Status::failed_precondition(format!("no lease under token {token}"))),
        }
    }
}

#[derive(Clone)]
pub(crate) struct StubCoordinator(pub Arc<WatchedValue<CoordinatorState>>);

impl StubCoordinator {
    pub(crate) fn serve(&self, port: u16) -> LocalServer {
        let service = self.clone();
        let router = || {
            furrow_wire::server(LinkTimeouts::default())
                .add_service(
                    CoordinatorServiceServer::new(service.clone())
                        .max_decoding_message_size(MESSAGE_BYTES_MAX),
                )
                .add_service(RegistrationServiceServer::new(service))
        };
        LocalServer::start(router, port)
    }
}

#[tonic::async_trait]
impl CoordinatorService for StubCoordinator {
    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Result<Response<v1::LeaseResponse>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_millis.into());
        let mut watch = self.0.0.subscribe();
        // After the wait or the timeout, the current state is the answer.
        let waited = watch.wait_for(|book| !book.queue.is_empty() || book.run_over || !book.known);
        drop(tokio::time::timeout(wait, waited).await);
        self.0.change(|book| {
            if !book.known {
                return Err(Status::failed_precondition("register first"));
            }
            let count = book.queue.len().min(request.slots_free as usize);
            let leased: Vec<_> = book.queue.drain(..count).collect();
            for assignment in &leased {
                let secret = lease_secret_into(&assignment.secret);
                let trajectory = assignment.ancestry.trajectory_id.to_string();
                book.leases.insert(trajectory, (assignment.token, secret));
            }
            let assignments = leased.iter().map(assignment_into).collect();
            Ok(Response::new(v1::LeaseResponse {
                assignments,
                run_over: book.run_over,
                files: FileContents::of(&leased),
            }))
        })
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let leases = request.into_inner().leases;
        self.0.change(|book| {
            book.renewed += 1;
            let lost = leases.iter().filter(|lease| {
                book.check_lease(&lease.trajectory_id, lease.token, lease.secret.as_ref()).is_err()
            });
            let moves = book.moves.iter().map(|(trajectory_id, policy_address)| v1::PolicyMove {
                trajectory_id: trajectory_id.clone(),
                policy_address: policy_address.clone(),
            });
            Ok(Response::new(v1::RenewResponse {
                lost: lost.map(|lease| lease.trajectory_id.clone()).collect(),
                moves: moves.collect(),
                watched: book.watched,
            }))
        })
    }

    async fn record_step(
        &self,
        request: Request<v1::RecordStepRequest>,
    ) -> Result<Response<v1::RecordStepResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(furrow_wire::digest(&request.record)[..], request.digest[..]);
        self.0.change(|book| {
            book.check_lease(&request.trajectory_id, request.token, request.secret.as_ref())?;
            if book.refuse_step == Some(request.step) {
                return Err(Status::invalid_argument("the record is wrong"));
            }
            let steps = book.steps.entry(request.trajectory_id).or_default();
            match steps.get(request.step as usize) {
                None if steps.len() == request.step as usize => steps.push(request.record),
                None => return Err(Status::out_of_range("a step is missing")),
                Some(record) if *record == request.record => {}
                Some(_) => return Err(Status::already_exists("another record of this step")),
            }
            book.reply(&format!("record_step {}", request.step), v1::RecordStepResponse {})
        })
    }

    async fn finish(
        &self,
        request: Request<v1::FinishRequest>,
    ) -> Result<Response<v1::FinishResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(furrow_wire::digest(&request.ending)[..], request.digest[..]);
        self.0.change(|book| {
            let secret = request.secret.as_ref();
            match book.endings.get(&request.trajectory_id) {
                Some(ending) if *ending == request.ending => {}
                Some(_) => return Err(Status::already_exists("another ending of this trajectory")),
                None => {
                    book.check_lease(&request.trajectory_id, request.token, secret)?;
                    book.leases.remove(&request.trajectory_id);
                    book.endings.insert(request.trajectory_id, request.ending);
                }
            }
            book.reply("finish", v1::FinishResponse {})
        })
    }

    async fn progress(
        &self,
        _request: Request<v1::ProgressRequest>,
    ) -> Result<Response<v1::ProgressResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }

    async fn running(&self, _: Request<v1::RunningRequest>) -> Result<Response<v1::RunningResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }

    async fn last_step(
        &self,
        _: Request<v1::LastStepRequest>,
    ) -> Result<Response<v1::LastStepResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }

    async fn show_first(
        &self,
        request: Request<v1::ShowFirstRequest>,
    ) -> Result<Response<v1::ShowFirstResponse>, Status> {
        let request = request.into_inner();
        self.0.change(|book| {
            book.check_lease(&request.trajectory_id, request.token, request.secret.as_ref())?;
            book.shown.insert(request.trajectory_id, request.screenshot);
            Ok(Response::new(v1::ShowFirstResponse {}))
        })
    }

    async fn publish(
        &self,
        _request: Request<v1::PublishRequest>,
    ) -> Result<Response<v1::PublishResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }

    async fn report_discarded(
        &self,
        _: Request<v1::ReportDiscardedRequest>,
    ) -> Result<Response<v1::ReportDiscardedResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }

    async fn weights(
        &self,
        _request: Request<v1::WeightsRequest>,
    ) -> Result<Response<v1::WeightsResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }

    async fn drain(
        &self,
        _request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented("not called by workers"))
    }
}

#[tonic::async_trait]
impl RegistrationService for StubCoordinator {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let request = request.into_inner();
        assert_eq!((request.protocol_version, request.schema_version), (PROTOCOL_VERSION, SCHEMA_VERSION));
        self.0.change(|book| {
            if let Some(why) = &book.refuse_registration {
                return Err(Status::failed_precondition(why.clone()));
            }
            book.known = true;
            book.registered += 1;
            let epoch = book.registered.into();
            Ok(Response::new(v1::RegisterResponse {
                run_id: "r".into(),
                epoch,
                heartbeat_millis: 20,
                weights: None,
            }))
        })
    }

    async fn heartbeat(
        &self,
        _request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let (known, run_over) = self.0.change(|book| {
            book.beats += 1;
            (book.known, book.run_over)
        });
        Ok(Response::new(v1::HeartbeatResponse { known, run_over, weights: None, revoked: Vec::new() }))
    }

    async fn leave(
        &self,
        _request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        self.0.change(|book| book.left += 1);
        Ok(Response::new(v1::LeaveResponse {}))
    }
}

/// The behaviour of the stub policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PolicyBehaviour {
    /// A click in the middle of the picture.
    Click,
    Act(Action),
    /// A reply that cannot be parsed.
    Nonsense,
    ContextFull,
    Fails,
    Silence,
    /// Not even the answer that opens the session.
    NothingAtAll,
}

/// The requests that the stub policy received.
#[derive(Default)]
pub(crate) struct PolicyNotes {
    /// For each stream: its trajectory and its number of past steps.
    pub opened: Vec<(String, u32)>,
    /// Past steps as received: number, size of the screenshot, and outcome of the previous action.
    pub past: Vec<(u32, usize, Option<Outcome>)>,
    /// For each observation: its trajectory and step.
    pub observed: Vec<(String, u32)>,
    pub hints: Vec<String>,
    pub closed: u32,
    /// Whether a client waits for an answer that will not come.
    pub silent: bool,
    /// No reply is sent from this step on until this is reset.
    pub pause_from: Option<u32>,
}

#[derive(Clone)]
pub(crate) struct StubPolicy {
    pub behaviour: PolicyBehaviour,
    pub wants_hints: bool,
    pub notes: Arc<WatchedValue<PolicyNotes>>,
}

impl StubPolicy {
    pub(crate) fn new(behaviour: PolicyBehaviour) -> Self {
        Self { behaviour, wants_hints: false, notes: WatchedValue::new(PolicyNotes::default()) }
    }

    pub(crate) fn serve(&self, port: u16) -> LocalServer {
        let service = PolicyServiceServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        LocalServer::start(|| furrow_wire::server(LinkTimeouts::default()).add_service(service), port)
    }

    async fn session(
        &self,
        mut requests: Streaming<v1::SessionRequest>,
        replies: mpsc::Sender<Result<v1::SessionResponse, Status>>,
    ) -> Result<(), Status> {
        let Some(session_request::Event::Open(open)) = next(&mut requests).await? else {
            return Err(Status::invalid_argument("Open first"));
        };
        let opening = SessionOpening::try_from(open)?;
        let of = opening.ancestry.trajectory_id.to_string();
        self.notes.change(|notes| notes.opened.push((of.clone(), opening.past_steps)));
        for step in 0..opening.past_steps {
            let Some(session_request::Event::Past(past)) = next(&mut requests).await? else {
                return Err(Status::invalid_argument("Past expected"));
            };
            assert_eq!(past.step, step);
            let past = past_from(past)?;
            assert_eq!(past.trace, trace(past.step), "traces are returned unchanged");
            self.notes.change(|notes| {
                notes.past.push((step, past.screenshot.bytes.len(), past.last_outcome));
            });
        }
        if self.behaviour == PolicyBehaviour::NothingAtAll {
            self.silence::<()>().await;
        }
        let opened = v1::Opened {
            worker_id: "p".into(),
            policy_kind: "scripted".into(),
            wants_hints: self.wants_hints,
        };
        send(&replies, session_response::Event::Opened(opened)).await;
        loop {
            match next(&mut requests).await? {
                Some(session_request::Event::Observe(observe)) => {
                    let acted = tokio::select! {
                        acted = self.reply(&of, observe) => acted?,
                        event = next(&mut requests) => match event? {
                            Some(session_request::Event::Close(_)) => return self.closed(),
                            other => return Err(Status::invalid_argument(format!("{other:?}"))),
                        },
                    };
                    send(&replies, session_response::Event::Acted(acted)).await;
                }
                Some(session_request::Event::Close(_)) => return self.closed(),
                None => return Ok(()),
                Some(other) => return Err(Status::invalid_argument(format!("{other:?}"))),
            }
        }
    }

    async fn silence<T>(&self) -> T {
        self.notes.change(|notes| notes.silent = true);
        std::future::pending().await
    }

    fn closed(&self) -> Result<(), Status> {
        self.notes.change(|notes| notes.closed += 1);
        Ok(())
    }

    async fn reply(&self, of: &str, observe: v1::Observe) -> Result<v1::Acted, Status> {
        let step = observe.step;
        self.notes.change(|notes| {
            notes.observed.push((of.to_owned(), step));
            notes.hints.extend(observe.hint_json);
        });
        self.notes.until("released", |notes| notes.pause_from.is_none_or(|from| step < from)).await;
        let observation = furrow_wire::observation_from(observe.observation.unwrap())?;
        let action = match &self.behaviour {
            PolicyBehaviour::Click => Ok(Action::click(middle(observation.screenshot.size))),
            PolicyBehaviour::Act(action) => Ok(action.clone()),
            PolicyBehaviour::Nonsense | PolicyBehaviour::ContextFull => {
                Err("this is not an action".to_owned())
            }
            PolicyBehaviour::Fails => return Err(Status::internal("not a number")),
            PolicyBehaviour::Silence | PolicyBehaviour::NothingAtAll => return self.silence().await,
        };
        let reply = PolicyReply {
            raw_text: "{}".into(),
            name: "click_element".into(),
            args_json: "{}".into(),
            action,
        };
        Ok(v1::Acted {
            step,
            reply: Some(reply_into(&reply)),
            trace: furrow_wire::encode_trace(&trace(step)),
            context_full: self.behaviour == PolicyBehaviour::ContextFull,
        })
    }
}

#[tonic::async_trait]
impl PolicyService for StubPolicy {
    type SessionStream = ReceiverStream<Result<v1::SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (sender, receiver) = mpsc::channel(2);
        let policy = self.clone();
        tokio::spawn(async move {
            if let Err(status) = policy.session(request.into_inner(), sender.clone()).await {
                sender.send(Err(status)).await.ok();
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A trace that contains its step, so that a rebuilt session can be checked.
pub(crate) fn trace(step: u32) -> Trace {
    let engine = EngineStats { worker: "p".into(), decode_steps: step, ..EngineStats::default() };
    Trace {
        policy_kind: PolicyKind::Scripted,
        policy_version: None,
        state_version_min: None,
        tokens: None,
        engine,
        rescored: Vec::new(),
    }
}

pub(crate) fn assignment(index: u64, policy: SocketAddr) -> Assignment {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, index);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Assignment {
        ancestry: TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: index + 1,
        secret: LeaseSecret::new([index as u8 + 1; LEASE_SECRET_BYTES]),
        lease_millis: 10_000,
        checks: TaskChecks::default(),
        secrets: Vec::new(),
        task: Task {
            task_id: "button".into(),
            suite: "simulated".into(),
            split: Split::Train,
            goal: None,
            start_url: "http://sim.test/".into(),
            seed: 7,
            max_steps: 20,
            time_limit_millis: 60_000,
            viewport: Size::new(160, 160),
            observation: ObservationSpec { format: ImageFormat::Png, clip: None, square: false },
            allow_hosts: vec![],
            hooks: PageHooks::default(),
            clock: PageClock::Real,
        },
        files: TaskFiles::default(),
        session: SessionSpec {
            grammar: Grammar { name: "holo_navigation".into(), extra: vec![] },
            sampling: SamplingParams::default(),
            context: ContextPolicy::Fresh,
            instructions: String::new(),
        },
        policy_address: policy.to_string(),
    }
}

fn middle(size: Size) -> PagePoint {
    PagePoint { x: size.width as f32 / 2.0, y: size.height as f32 / 2.0 }
}

async fn next(
    requests: &mut Streaming<v1::SessionRequest>,
) -> Result<Option<session_request::Event>, Status> {
    Ok(requests.message().await?.and_then(|message| message.event))
}

async fn send(replies: &mpsc::Sender<Result<v1::SessionResponse, Status>>, event: session_response::Event) {
    // Some tests close the receiver on purpose.
    replies.send(Ok(v1::SessionResponse { event: Some(event) })).await.ok();
}
