//! A trajectory's line to its policy: one stream for the whole trajectory, rebuilt on the same or another worker when it breaks.
//!
//! The screenshots and traces of all steps are kept until the trajectory ends, so that any policy worker can rebuild the session:
//! 100 sessions × 30 steps × 166 kB (a JPEG of 1280x720) = 0.5 GB at the very end of all of them, half of it on average.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::{Hint, Observation, Outcome, Reply};
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{
    Acted, Close, Observe, Opened, Past, SessionRequest, SessionResponse, session_request, session_response,
};
use furrow_wire::{
    Connect, MESSAGE_BYTES_MAX, Opening, Refusal, WireError, observation_into, outcome_into, past_into,
    refusal, reply_from, within,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::coordinator_link::told;
use crate::retry::{Pauses, Retry};

/// The connections of a worker, one to each policy worker, shared by all its sessions.
pub(crate) struct PolicyLines {
    connect: Arc<dyn Connect>,
    channels: Mutex<HashMap<String, Channel>>,
}

/// How long a session waits, and how often it tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyPatience {
    /// For one reply, and for a session to open or to be rebuilt.
    pub reply: Duration,
    /// After a stream broke.
    pub retry: Retry,
}

/// The policy's side of one step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub reply: Reply,
    pub trace: Bytes,
    /// The reply does not count: the model's context is full.
    pub context_full: bool,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The policy failed, or nobody answered for as long as patience lasts.
    #[error("{0}")]
    Fault(String),
    /// A younger assignment of this trajectory speaks to the policy: this one is over.
    #[error("the policy worker holds a younger assignment: {0}")]
    Stale(String),
}

/// One trajectory's session.
pub(crate) struct PolicyLink {
    lines: Arc<PolicyLines>,
    opening: Opening,
    address: watch::Receiver<String>,
    patience: PolicyPatience,
    past: Vec<Past>,
    stream: Option<Stream>,
    wants_hints: bool,
}

/// An open stream.
struct Stream {
    requests: mpsc::Sender<SessionRequest>,
    replies: Streaming<SessionResponse>,
}

/// Connections kept: a farm has few policy workers, and a lost one is replaced under another address.
const CHANNELS_MAX: usize = 64;

/// Requests on their way at once: an observation, and Close after it.
const REQUESTS_MAX: usize = 2;

impl PolicyLines {
    pub fn new(connect: Arc<dyn Connect>) -> Self {
        Self { connect, channels: Mutex::default() }
    }

    /// The connection to an address. It is made when first used and again when it was lost.
    fn channel(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        // A panic while the lock was held can at worst have lost a connection that is made again.
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.connect.channel(address)?;
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

impl PolicyLink {
    /// Opens the session. `address` tells where the policy worker is now.
    pub async fn open(
        lines: Arc<PolicyLines>,
        opening: Opening,
        address: watch::Receiver<String>,
        patience: PolicyPatience,
    ) -> Result<Self, PolicyError> {
        let (past, stream, wants_hints) = (Vec::new(), None, false);
        let mut link = Self { lines, opening, address, patience, past, stream, wants_hints };
        let mut pauses = patience.retry.pauses();
        while let Err(broken) = link.opened_once().await {
            link.rest(broken, &mut pauses).await?;
        }
        Ok(link)
    }

    /// Whether the policy asks for the pages' demonstrations.
    pub fn wants_hints(&self) -> bool {
        self.wants_hints
    }

    /// Shows one observation and waits for the reply, over as many streams as it takes.
    pub async fn ask(
        &mut self,
        step: u32,
        observation: &Observation,
        last_outcome: Option<&Outcome>,
        hint: Option<&Hint>,
    ) -> Result<Turn, PolicyError> {
        let observe = Observe {
            step,
            observation: Some(observation_into(observation)),
            last_outcome: last_outcome.map(outcome_into),
            hint_json: hint.map(|hint| hint.json.clone()),
        };
        let mut pauses = self.patience.retry.pauses();
        loop {
            match self.asked_once(observe.clone()).await {
                Ok(turn) => {
                    self.keep(step, observation, last_outcome, &turn);
                    return Ok(turn);
                }
                Err(broken) => self.rest(broken, &mut pauses).await?,
            }
        }
    }

    /// Tells the policy that the session is over, so that its state is freed now and not when it was idle for too long.
    pub async fn close(mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        let goodbye = async {
            stream.send(session_request::Event::Close(Close {})).await?;
            // The policy ends the stream when it has read Close; letting go earlier would cut Close off. A last reply may come first.
            while stream.replies.message().await?.is_some() {}
            Ok::<_, Broken>(())
        };
        // A policy worker that is gone or busy forgets the session by itself.
        drop(tokio::time::timeout(CLOSE_DEADLINE, goodbye).await);
    }

    async fn opened_once(&mut self) -> Result<(), Broken> {
        let address = self.address.clone();
        unless_moved(address, async { self.connected().await.map(drop) }).await
    }

    async fn asked_once(&mut self, observe: Observe) -> Result<Turn, Broken> {
        let (address, reply, step) = (self.address.clone(), self.patience.reply, observe.step);
        let exchange = async {
            let stream = self.connected().await?;
            stream.send(session_request::Event::Observe(observe)).await?;
            turn(stream.acted(step, reply).await?)
        };
        unless_moved(address, exchange).await
    }

    /// The open stream, or a new one with all that happened so far.
    async fn connected(&mut self) -> Result<&mut Stream, Broken> {
        if self.stream.is_none() {
            let address = self.address.borrow_and_update().clone();
            let channel = self.lines.channel(&address).map_err(|error| {
                Broken::Fault(format!("{address:?} is no address of a policy worker: {error}"))
            })?;
            let (stream, opened) = Stream::open(channel, self.preface(), self.patience.reply).await?;
            self.wants_hints = opened.wants_hints;
            self.stream = Some(stream);
        }
        self.stream.as_mut().ok_or_else(|| Broken::Retry("the stream is gone".into()))
    }

    /// What a policy worker must be told before it can go on: everything, unless it is told everything for the first time.
    fn preface(&self) -> Vec<SessionRequest> {
        let opening = Opening { past_steps: self.past.len() as u32, ..self.opening.clone() };
        let open = session_request::Event::Open((&opening).into());
        let past = self.past.iter().cloned().map(session_request::Event::Past);
        std::iter::once(open).chain(past).map(|event| SessionRequest { event: Some(event) }).collect()
    }

    fn keep(&mut self, step: u32, observation: &Observation, last_outcome: Option<&Outcome>, turn: &Turn) {
        self.past.push(past_into(
            step,
            &observation.screenshot,
            last_outcome,
            &turn.reply,
            turn.trace.clone(),
        ));
    }

    /// Drops the broken stream and waits for the next try: a pause, or less when another policy worker is named meanwhile.
    async fn rest(&mut self, broken: Broken, pauses: &mut Pauses) -> Result<(), PolicyError> {
        self.stream = None;
        let why = match broken {
            Broken::Retry(why) => why,
            Broken::Fault(why) => return Err(PolicyError::Fault(why)),
            Broken::Stale(why) => return Err(PolicyError::Stale(why)),
        };
        tracing::debug!(trajectory_id = %self.opening.ancestry.trajectory_id, why, "a session is opened again");
        let Some(pause) = pauses.next() else {
            let seconds = self.patience.retry.patience.as_secs();
            return Err(PolicyError::Fault(format!(
                "no policy worker for {seconds} s; the last problem: {why}"
            )));
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = moved(&mut self.address) => {}
        }
        Ok(())
    }
}

/// Time to say goodbye in; nothing depends on it.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// Why one exchange failed.
enum Broken {
    /// Another stream may succeed.
    Retry(String),
    /// No stream will.
    Fault(String),
    Stale(String),
}

impl Stream {
    /// Opens a stream, tells the preface and waits until the policy worker is ready.
    async fn open(
        channel: Channel,
        preface: Vec<SessionRequest>,
        deadline: Duration,
    ) -> Result<(Self, Opened), Broken> {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let outgoing = tokio_stream::iter(preface).chain(ReceiverStream::new(queue));
        let mut client = PolicyServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let answer = within(deadline, client.session(outgoing)).await?;
        let mut stream = Self { requests, replies: answer.into_inner() };
        match stream.next(deadline).await? {
            session_response::Event::Opened(opened) => Ok((stream, opened)),
            session_response::Event::Acted(_) => Err(Broken::Retry("a session began without Opened".into())),
        }
    }

    async fn send(&self, event: session_request::Event) -> Result<(), Broken> {
        let message = SessionRequest { event: Some(event) };
        self.requests.send(message).await.map_err(|_| Broken::Retry("the stream to the policy ended".into()))
    }

    async fn acted(&mut self, step: u32, deadline: Duration) -> Result<Acted, Broken> {
        match self.next(deadline).await? {
            session_response::Event::Acted(acted) if acted.step == step => Ok(acted),
            session_response::Event::Acted(acted) => {
                Err(Broken::Retry(format!("the policy answered step {} when asked for {step}", acted.step)))
            }
            session_response::Event::Opened(_) => {
                Err(Broken::Retry("the policy opened a session twice".into()))
            }
        }
    }

    async fn next(&mut self, deadline: Duration) -> Result<session_response::Event, Broken> {
        match within(deadline, self.replies.message()).await? {
            Some(SessionResponse { event: Some(event) }) => Ok(event),
            Some(SessionResponse { event: None }) => Err(Broken::Retry("a message without an event".into())),
            None => Err(Broken::Retry("the policy worker ended the stream".into())),
        }
    }
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        let why = told(&status);
        // What the policy itself could not do (not a number, out of memory, a demonstration that fails) it says as INTERNAL; another
        // try would fail alike. The transport uses the same code, but its errors have a source.
        let from_policy = status.code() == Code::Internal && status.source().is_none();
        match refusal(&status) {
            Refusal::Stale => Self::Stale(why),
            Refusal::Wrong => Self::Fault(why),
            Refusal::TryAgain if from_policy => Self::Fault(why),
            Refusal::TryAgain => Self::Retry(why),
        }
    }
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Self {
        Self::Fault(format!("the policy's reply cannot be read: {error}"))
    }
}

fn turn(acted: Acted) -> Result<Turn, Broken> {
    let (trace, context_full) = (acted.trace, acted.context_full);
    let reply = match acted.reply {
        Some(reply) => reply_from(reply)?,
        None if context_full => empty_reply(),
        None => return Err(WireError::Missing { key: "acted.reply" }.into()),
    };
    Ok(Turn { reply, trace, context_full })
}

fn empty_reply() -> Reply {
    let (raw_text, name) = (String::new(), String::new());
    Reply { raw_text, name, args_json: "{}".into(), action: Err("the context is full".into()) }
}

/// Does not wait for a policy worker that the session was moved away from: it may be half alive, and what it would still say has no place.
async fn unless_moved<T>(
    mut address: watch::Receiver<String>,
    exchange: impl Future<Output = Result<T, Broken>>,
) -> Result<T, Broken> {
    tokio::select! {
        exchanged = exchange => exchanged,
        () = moved(&mut address) => Err(Broken::Retry("the session was moved to another policy worker".into())),
    }
}

/// Resolves when the address changes; never when nobody can change it any more.
async fn moved(address: &mut watch::Receiver<String>) {
    if address.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
