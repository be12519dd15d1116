//! A trajectory's connection to its policy: one stream for the whole trajectory, rebuilt on the
//! same or another worker when it breaks.
//!
//! The screenshots and traces of all steps are kept until the trajectory ends, so that any policy
//! worker can rebuild the session: 100 sessions × 30 steps × 166 kB (a JPEG of 1280x720) = 0.5 GB
//! at the very end of all of them, half of it on average.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use furrow_rollout::{ActionHint, Observation, Outcome, PolicyReply};
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::{
    Acted, Close, Observe, Opened, Past, SessionRequest, SessionResponse, session_request, session_response,
};
use furrow_wire::{
    Connector, MESSAGE_BYTES_MAX, PeerRole, RefusalKind, SessionOpening, WireError, describe_status,
    observation_into, outcome_into, past_into, refusal, reply_from, with_deadline,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::retry::{RetryPauses, RetryPolicy};

/// The channels of a worker, one to each policy worker, shared by all its sessions.
pub(crate) struct PolicyChannels {
    connect: Arc<dyn Connector>,
    channels: Mutex<HashMap<String, Channel>>,
}

/// Deadlines and retries of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyTimeouts {
    /// Deadline of one reply, and of opening or rebuilding a session.
    pub reply: Duration,
    /// Retries after a broken stream.
    pub retry: RetryPolicy,
}

/// The policy's part of one step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyTurn {
    pub reply: PolicyReply,
    pub trace: Bytes,
    /// The reply does not count: the model's context is full.
    pub context_full: bool,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The policy failed, or no policy worker answered within the retry timeout.
    #[error("{0}")]
    Fault(String),
    /// A newer assignment of this trajectory uses the policy: this one is over.
    #[error("the policy worker has a newer assignment: {0}")]
    Stale(String),
}

/// The session of one trajectory.
pub(crate) struct PolicyLink {
    channels: Arc<PolicyChannels>,
    opening: SessionOpening,
    address: watch::Receiver<String>,
    timeouts: PolicyTimeouts,
    past: Vec<Past>,
    stream: Option<PolicyStream>,
    wants_hints: bool,
}

struct PolicyStream {
    requests: mpsc::Sender<SessionRequest>,
    replies: Streaming<SessionResponse>,
}

/// Most channels kept: a farm has few policy workers, and a lost one is replaced at another
/// address.
const CHANNELS_MAX: usize = 64;

/// Most requests in transit: an observation, and Close after it.
const REQUESTS_MAX: usize = 2;

impl PolicyChannels {
    pub(crate) fn new(connect: Arc<dyn Connector>) -> Self {
        Self { connect, channels: Mutex::default() }
    }

    /// The channel to an address. It connects on first use and reconnects after a loss.
    fn channel(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        // A panic while the lock was held can at most have lost a channel, which is created again.
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.connect.channel(PeerRole::Policy, address)?;
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

impl PolicyLink {
    /// Opens the session. `address` contains the current address of the policy worker.
    pub(crate) async fn open(
        lines: Arc<PolicyChannels>,
        opening: SessionOpening,
        address: watch::Receiver<String>,
        timeouts: PolicyTimeouts,
    ) -> Result<Self, PolicyError> {
        let past = Vec::new();
        let stream = None;
        let wants_hints = false;
        let mut link = Self { channels: lines, opening, address, timeouts, past, stream, wants_hints };
        let mut pauses = timeouts.retry.pauses();
        while let Err(broken) = link.try_open().await {
            link.pause_before_retry(broken, &mut pauses).await?;
        }
        Ok(link)
    }

    /// Whether the policy uses the pages' demonstrations.
    pub(crate) fn wants_hints(&self) -> bool {
        self.wants_hints
    }

    /// Sends one observation and waits for the reply, over as many streams as necessary.
    pub(crate) async fn ask(
        &mut self,
        step: u32,
        observation: &Observation,
        last_outcome: Option<&Outcome>,
        hint: Option<&ActionHint>,
    ) -> Result<PolicyTurn, PolicyError> {
        let observe = Observe {
            step,
            observation: Some(observation_into(observation)),
            last_outcome: last_outcome.map(outcome_into),
            hint_json: hint.map(|hint| hint.json.clone()),
        };
        let mut pauses = self.timeouts.retry.pauses();
        loop {
            match self.try_ask(observe.clone()).await {
                Ok(turn) => {
                    self.remember_step(step, observation, last_outcome, &turn);
                    return Ok(turn);
                }
                Err(broken) => self.pause_before_retry(broken, &mut pauses).await?,
            }
        }
    }

    /// Ends the session at the policy worker, so that its state is freed now and not after an idle
    /// timeout.
    pub(crate) async fn close(mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        let goodbye = async {
            stream.send(session_request::Event::Close(Close {})).await?;
            // The policy ends the stream when it has read Close; dropping it earlier would cut
            // Close off. A last reply may come first.
            while stream.replies.message().await?.is_some() {}
            Ok::<_, ExchangeError>(())
        };
        // A policy worker that is lost or busy drops the session by itself.
        drop(tokio::time::timeout(CLOSE_DEADLINE, goodbye).await);
    }

    async fn try_open(&mut self) -> Result<(), ExchangeError> {
        let address = self.address.clone();
        unless_moved(address, async { self.ensure_connected().await.map(drop) }).await
    }

    async fn try_ask(&mut self, observe: Observe) -> Result<PolicyTurn, ExchangeError> {
        let address = self.address.clone();
        let reply = self.timeouts.reply;
        let step = observe.step;
        let exchange = async {
            let stream = self.ensure_connected().await?;
            stream.send(session_request::Event::Observe(observe)).await?;
            read_turn(stream.next_acted(step, reply).await?)
        };
        unless_moved(address, exchange).await
    }

    /// The open stream, or a new one to which the session's history was sent.
    async fn ensure_connected(&mut self) -> Result<&mut PolicyStream, ExchangeError> {
        if self.stream.is_none() {
            let address = self.address.borrow_and_update().clone();
            let channel = self.channels.channel(&address).map_err(|error| {
                ExchangeError::Fault(format!("{address:?} is not an address of a policy worker: {error}"))
            })?;
            let (stream, opened) = PolicyStream::open(channel, self.preface(), self.timeouts.reply).await?;
            self.wants_hints = opened.wants_hints;
            self.stream = Some(stream);
        }
        self.stream.as_mut().ok_or_else(|| ExchangeError::Retry("the stream is closed".into()))
    }

    /// The messages that a policy worker needs before it can continue: Open and all past steps, of
    /// which a new session has none.
    fn preface(&self) -> Vec<SessionRequest> {
        let opening = SessionOpening { past_steps: self.past.len() as u32, ..self.opening.clone() };
        let open = session_request::Event::Open((&opening).into());
        let past = self.past.iter().cloned().map(session_request::Event::Past);
        std::iter::once(open).chain(past).map(|event| SessionRequest { event: Some(event) }).collect()
    }

    fn remember_step(
        &mut self,
        step: u32,
        observation: &Observation,
        last_outcome: Option<&Outcome>,
        turn: &PolicyTurn,
    ) {
        self.past.push(past_into(
            step,
            &observation.screenshot,
            last_outcome,
            &turn.reply,
            turn.trace.clone(),
        ));
    }

    /// Drops the broken stream and waits before the next attempt; the wait ends early if another
    /// policy worker is assigned.
    async fn pause_before_retry(
        &mut self,
        broken: ExchangeError,
        pauses: &mut RetryPauses,
    ) -> Result<(), PolicyError> {
        self.stream = None;
        let why = match broken {
            ExchangeError::Retry(why) => why,
            ExchangeError::Fault(why) => return Err(PolicyError::Fault(why)),
            ExchangeError::Stale(why) => return Err(PolicyError::Stale(why)),
        };
        tracing::debug!(trajectory_id = %self.opening.ancestry.trajectory_id, why, "a session is reopened");
        let Some(pause) = pauses.next() else {
            let seconds = self.timeouts.retry.timeout.as_secs();
            return Err(PolicyError::Fault(format!(
                "no policy worker for {seconds} s; the last problem: {why}"
            )));
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = wait_moved(&mut self.address) => {}
        }
        Ok(())
    }
}

/// Deadline of closing a session; nothing depends on it.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// Why one exchange failed.
enum ExchangeError {
    /// Another stream may succeed.
    Retry(String),
    /// No stream will succeed.
    Fault(String),
    Stale(String),
}

impl PolicyStream {
    /// Opens a stream, sends the preface and waits until the policy worker is ready.
    async fn open(
        channel: Channel,
        preface: Vec<SessionRequest>,
        deadline: Duration,
    ) -> Result<(Self, Opened), ExchangeError> {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let outgoing = tokio_stream::iter(preface).chain(ReceiverStream::new(queue));
        let mut client = PolicyServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let answer = with_deadline(deadline, client.session(outgoing)).await?;
        let mut stream = Self { requests, replies: answer.into_inner() };
        match stream.next(deadline).await? {
            session_response::Event::Opened(opened) => Ok((stream, opened)),
            session_response::Event::Acted(_) => {
                Err(ExchangeError::Retry("a session began without Opened".into()))
            }
        }
    }

    async fn send(&self, event: session_request::Event) -> Result<(), ExchangeError> {
        let message = SessionRequest { event: Some(event) };
        self.requests
            .send(message)
            .await
            .map_err(|_| ExchangeError::Retry("the stream to the policy ended".into()))
    }

    async fn next_acted(&mut self, step: u32, deadline: Duration) -> Result<Acted, ExchangeError> {
        match self.next(deadline).await? {
            session_response::Event::Acted(acted) if acted.step == step => Ok(acted),
            session_response::Event::Acted(acted) => Err(ExchangeError::Retry(format!(
                "the policy answered step {} when asked for {step}",
                acted.step
            ))),
            session_response::Event::Opened(_) => {
                Err(ExchangeError::Retry("the policy opened a session twice".into()))
            }
        }
    }

    async fn next(&mut self, deadline: Duration) -> Result<session_response::Event, ExchangeError> {
        match with_deadline(deadline, self.replies.message()).await? {
            Some(SessionResponse { event: Some(event) }) => Ok(event),
            Some(SessionResponse { event: None }) => {
                Err(ExchangeError::Retry("a message without an event".into()))
            }
            None => Err(ExchangeError::Retry("the policy worker ended the stream".into())),
        }
    }
}

impl From<Status> for ExchangeError {
    fn from(status: Status) -> Self {
        let why = describe_status(&status);
        // The policy reports its own failures (not a number, out of memory, a failed demonstration)
        // as INTERNAL; another attempt would fail in the same way. The transport uses the same
        // code, but its errors have a source.
        let from_policy = status.code() == Code::Internal && status.source().is_none();
        match refusal(&status) {
            RefusalKind::Stale => Self::Stale(why),
            RefusalKind::Wrong => Self::Fault(why),
            RefusalKind::Retry if from_policy => Self::Fault(why),
            RefusalKind::Retry => Self::Retry(why),
        }
    }
}

impl From<WireError> for ExchangeError {
    fn from(error: WireError) -> Self {
        Self::Fault(format!("the policy's reply cannot be read: {error}"))
    }
}

fn read_turn(acted: Acted) -> Result<PolicyTurn, ExchangeError> {
    let trace = acted.trace;
    let context_full = acted.context_full;
    let reply = match acted.reply {
        Some(reply) => reply_from(reply)?,
        None if context_full => empty_reply(),
        None => return Err(WireError::Missing { key: "acted.reply" }.into()),
    };
    Ok(PolicyTurn { reply, trace, context_full })
}

fn empty_reply() -> PolicyReply {
    let raw_text = String::new();
    let name = String::new();
    PolicyReply { raw_text, name, args_json: "{}".into(), action: Err("the context is full".into()) }
}

/// Stops waiting for a policy worker that the session was moved away from: it may be partly alive,
/// and its answers are no longer needed.
async fn unless_moved<T>(
    mut address: watch::Receiver<String>,
    exchange: impl Future<Output = Result<T, ExchangeError>>,
) -> Result<T, ExchangeError> {
    tokio::select! {
        exchanged = exchange => exchanged,
        () = wait_moved(&mut address) => Err(ExchangeError::Retry("the session was moved to another policy worker".into())),
    }
}

/// Resolves when the address changes; never if no sender is left.
async fn wait_moved(address: &mut watch::Receiver<String>) {
    if address.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
