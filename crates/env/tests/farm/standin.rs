//! A stand-in coordinator and a stand-in policy worker: real gRPC on loopback, a book of what happened, and strings to pull.
//!
//! Each serves in a runtime of its own, so that killing it is abrupt: no goodbye, no finished answers, every connection gone.

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
use furrow_wire::{MESSAGE_BYTES_MAX, OpaqueStep, Opening, Timeouts, assignment_into, past_from, reply_into};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Every wait of a test ends after this time.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A value that tests watch and change.
pub struct Watched<T>(watch::Sender<T>);

impl<T: 'static> Watched<T> {
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(value)))
    }

    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut change = Some(change);
        let mut changed = None;
        self.0.send_modify(|value| changed = change.take().map(|change| change(value)));
        changed.unwrap()
    }

    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.0.borrow())
    }

    /// Waits for a state, and tells which one never came.
    #[track_caller]
    pub fn until(&self, what: &'static str, is_so: impl FnMut(&T) -> bool) -> impl Future<Output = ()> {
        let mut receiver = self.0.subscribe();
        async move {
            let state = tokio::time::timeout(DEADLINE, receiver.wait_for(is_so)).await;
            assert!(state.is_ok_and(|state| state.is_ok()), "never: {what}");
        }
    }
}

/// A server in a runtime of its own.
pub struct Server {
    runtime: Option<Runtime>,
    pub address: SocketAddr,
}

impl Server {
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

    /// As kill -9 would: when this returns, no task of it runs any more.
    pub fn kill(mut self) -> u16 {
        let runtime = self.runtime.take().unwrap();
        // A runtime may not be waited for inside another one.
        std::thread::spawn(|| runtime.shutdown_timeout(DEADLINE)).join().unwrap();
        self.address.port()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the stand-in coordinator knows. It outlives the server, as a ledger does.
#[derive(Default)]
pub struct Book {
    pub queue: VecDeque<Assignment>,
    /// Trajectory to token.
    pub lent: HashMap<String, u64>,
    pub steps: BTreeMap<String, Vec<Bytes>>,
    pub endings: BTreeMap<String, Bytes>,
    /// Forgotten by a restart.
    pub known: bool,
    pub run_over: bool,
    pub moves: HashMap<String, String>,
    pub registered: u32,
    pub renewed: u32,
    pub beats: u32,
    pub left: u32,
    /// Calls that came in, answered or not: `record_step 3`.
    pub calls: Vec<String>,
    /// Replies to lose: the call is carried out, the caller hears nothing good.
    pub lose_replies: HashMap<String, u32>,
    pub refuse_registration: Option<String>,
    /// A step that is refused for good.
    pub refuse_step: Option<u32>,
}

impl Book {
    pub fn ending(&self, trajectory: &str) -> Option<Ending> {
        Some(furrow_wire::decode_ending(self.endings.get(trajectory)?.clone()).unwrap())
    }

    pub fn recorded(&self, trajectory: &str) -> Vec<OpaqueStep> {
        let records = self.steps.get(trajectory).into_iter().flatten();
        records.map(|record| furrow_wire::decode_opaque_step(record.clone()).unwrap()).collect()
    }

    /// The reply to lose, if this call's is to be lost.
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

    fn check_token(&self, trajectory: &str, token: u64) -> Result<(), Status> {
        match self.lent.get(trajectory) {
            Some(current) if *current == token => Ok(()),
            _ => Err(Status::failed_precondition(format!("token {token} is stale"))),
        }
    }
}

/// The stand-in coordinator.
#[derive(Clone)]
pub struct Coordinator(pub Arc<Watched<Book>>);

impl Coordinator {
    pub fn serve(&self, port: u16) -> Server {
        let service = self.clone();
        let router = || {
            furrow_wire::server(Timeouts::default())
                .add_service(
                    CoordinatorServiceServer::new(service.clone())
                        .max_decoding_message_size(MESSAGE_BYTES_MAX),
                )
                .add_service(RegistrationServiceServer::new(service))
        };
        Server::start(router, port)
    }
}

#[tonic::async_trait]
impl CoordinatorService for Coordinator {
    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Result<Response<v1::LeaseResponse>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_millis.into());
        let mut watch = self.0.0.subscribe();
        // Whether the time ran out or work came, what is there now is the answer.
        let waited = watch.wait_for(|book| !book.queue.is_empty() || book.run_over || !book.known);
        drop(tokio::time::timeout(wait, waited).await);
        self.0.change(|book| {
            if !book.known {
                return Err(Status::failed_precondition("register first"));
            }
            let count = book.queue.len().min(request.slots_free as usize);
            let lent: Vec<_> = book.queue.drain(..count).collect();
            for assignment in &lent {
                book.lent.insert(assignment.ancestry.trajectory_id.to_string(), assignment.token);
            }
            let assignments = lent.iter().map(assignment_into).collect();
            Ok(Response::new(v1::LeaseResponse { assignments, run_over: book.run_over }))
        })
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let held = request.into_inner().held;
        self.0.change(|book| {
            book.renewed += 1;
            let lost = held.iter().filter(|h| book.check_token(&h.trajectory_id, h.token).is_err());
            let moves = book.moves.iter().map(|(trajectory_id, policy_address)| v1::PolicyMove {
                trajectory_id: trajectory_id.clone(),
                policy_address: policy_address.clone(),
            });
            Ok(Response::new(v1::RenewResponse {
                lost: lost.map(|h| h.trajectory_id.clone()).collect(),
                moves: moves.collect(),
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
            book.check_token(&request.trajectory_id, request.token)?;
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
            match book.endings.get(&request.trajectory_id) {
                Some(ending) if *ending == request.ending => {}
                Some(_) => return Err(Status::already_exists("another ending of this trajectory")),
                None => {
                    book.check_token(&request.trajectory_id, request.token)?;
                    book.lent.remove(&request.trajectory_id);
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
        Err(Status::unimplemented("no worker asks"))
    }

    async fn running(&self, _: Request<v1::RunningRequest>) -> Result<Response<v1::RunningResponse>, Status> {
        Err(Status::unimplemented("no worker asks"))
    }

    async fn last_step(
        &self,
        _: Request<v1::LastStepRequest>,
    ) -> Result<Response<v1::LastStepResponse>, Status> {
        Err(Status::unimplemented("no worker asks"))
    }

    async fn publish(
        &self,
        _request: Request<v1::PublishRequest>,
    ) -> Result<Response<v1::PublishResponse>, Status> {
        Err(Status::unimplemented("no worker asks"))
    }

    async fn report_discarded(
        &self,
        _: Request<v1::ReportDiscardedRequest>,
    ) -> Result<Response<v1::ReportDiscardedResponse>, Status> {
        Err(Status::unimplemented("no worker asks"))
    }

    async fn weights(
        &self,
        _request: Request<v1::WeightsRequest>,
    ) -> Result<Response<v1::WeightsResponse>, Status> {
        Err(Status::unimplemented("no worker asks"))
    }

    async fn drain(
        &self,
        _request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented("no worker asks"))
    }
}

#[tonic::async_trait]
impl RegistrationService for Coordinator {
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
        Ok(Response::new(v1::HeartbeatResponse { known, run_over, weights: None }))
    }

    async fn leave(
        &self,
        _request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        self.0.change(|book| book.left += 1);
        Ok(Response::new(v1::LeaveResponse {}))
    }
}

/// What the stand-in policy replies.
#[derive(Clone, Debug, PartialEq)]
pub enum Says {
    /// A click in the middle of the picture.
    Click,
    /// This action.
    Act(Action),
    /// Nothing that could be read.
    Nonsense,
    ContextFull,
    /// The policy fails.
    Fails,
    /// No reply, ever.
    Silence,
    /// Not even that the session is open.
    NothingAtAll,
}

/// What the stand-in policy saw.
#[derive(Default)]
pub struct Notes {
    /// For each stream: its trajectory and how many past steps it brought.
    pub opened: Vec<(String, u32)>,
    /// Past steps as they were brought, their screenshots' sizes and what had come of the action before.
    pub past: Vec<(u32, usize, Option<Outcome>)>,
    /// For each observation: its trajectory and step.
    pub seen: Vec<(String, u32)>,
    /// Hints that came along.
    pub hints: Vec<String>,
    pub closed: u32,
    /// Somebody waits in vain.
    pub silent: bool,
    /// Nothing is replied from this step on until it is taken away.
    pub hold_from: Option<u32>,
}

/// The stand-in policy worker.
#[derive(Clone)]
pub struct Policy {
    pub says: Says,
    pub wants_hints: bool,
    pub notes: Arc<Watched<Notes>>,
}

impl Policy {
    pub fn new(says: Says) -> Self {
        Self { says, wants_hints: false, notes: Watched::new(Notes::default()) }
    }

    pub fn serve(&self, port: u16) -> Server {
        let service = PolicyServiceServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Server::start(|| furrow_wire::server(Timeouts::default()).add_service(service), port)
    }

    async fn session(
        &self,
        mut requests: Streaming<v1::SessionRequest>,
        replies: mpsc::Sender<Result<v1::SessionResponse, Status>>,
    ) -> Result<(), Status> {
        let Some(session_request::Event::Open(open)) = next(&mut requests).await? else {
            return Err(Status::invalid_argument("Open first"));
        };
        let opening = Opening::try_from(open)?;
        let of = opening.ancestry.trajectory_id.to_string();
        self.notes.change(|notes| notes.opened.push((of.clone(), opening.past_steps)));
        for step in 0..opening.past_steps {
            let Some(session_request::Event::Past(past)) = next(&mut requests).await? else {
                return Err(Status::invalid_argument("Past expected"));
            };
            assert_eq!(past.step, step);
            let past = past_from(past)?;
            assert_eq!(past.trace, trace(past.step), "traces come back as they were given");
            self.notes.change(|notes| {
                notes.past.push((step, past.screenshot.bytes.len(), past.last_outcome));
            });
        }
        if self.says == Says::NothingAtAll {
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
            notes.seen.push((of.to_owned(), step));
            notes.hints.extend(observe.hint_json);
        });
        self.notes.until("let go", |notes| notes.hold_from.is_none_or(|from| step < from)).await;
        let observation = furrow_wire::observation_from(observe.observation.unwrap())?;
        let action = match &self.says {
            Says::Click => Ok(Action::click(middle(observation.screenshot.size))),
            Says::Act(action) => Ok(action.clone()),
            Says::Nonsense | Says::ContextFull => Err("this is no action".to_owned()),
            Says::Fails => return Err(Status::internal("not a number")),
            Says::Silence | Says::NothingAtAll => return self.silence().await,
        };
        let reply =
            Reply { raw_text: "{}".into(), name: "click_element".into(), args_json: "{}".into(), action };
        Ok(v1::Acted {
            step,
            reply: Some(reply_into(&reply)),
            trace: furrow_wire::encode_trace(&trace(step)),
            context_full: self.says == Says::ContextFull,
        })
    }
}

#[tonic::async_trait]
impl PolicyService for Policy {
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

/// An account that tells its step, so that a rebuilt session can be checked.
pub fn trace(step: u32) -> Trace {
    let engine = Engine { worker: "p".into(), decode_steps: step, ..Engine::default() };
    Trace {
        policy_kind: PolicyKind::Scripted,
        policy_version: None,
        state_version_min: None,
        tokens: None,
        engine,
        scored_again: Vec::new(),
    }
}

pub fn assignment(index: u64, policy: SocketAddr) -> Assignment {
    let run_id = Id::new("r").unwrap();
    let group_id = Id::nth(&run_id, index);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Assignment {
        ancestry: Ancestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: index + 1,
        lease_millis: 10_000,
        task: Task {
            task_id: "button".into(),
            suite: "air".into(),
            split: Split::Train,
            goal: None,
            start_url: "http://air.test/".into(),
            seed: 7,
            max_steps: 20,
            time_limit_millis: 60_000,
            viewport: Size::new(160, 160),
            observation: ObservationSpec { format: ImageFormat::Png, clip: None, square: false },
            allow_hosts: vec![],
            hooks: PageHooks::default(),
            clock: Clock::Real,
        },
        session: SessionSpec {
            grammar: Grammar { name: "holo_navigation".into(), extra: vec![] },
            sampling: Sampling::default(),
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
    // A reader that is gone is what some tests are about.
    replies.send(Ok(v1::SessionResponse { event: Some(event) })).await.ok();
}
