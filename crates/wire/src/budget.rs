//! What one identity may take of a server before it has sent whole messages: calls, connections,
//! bytes and time. The share of another identity does not depend on it.
//!
//! A message stays in memory until it is whole, up to [`MESSAGE_BYTES_MAX`], and a connection
//! may have a thousand of them under way. So a message is read on only once all its bytes are
//! reserved in the budget of its sender; until then flow control makes the sender wait. Reserving
//! whole messages, and not frame by frame, keeps many messages from waiting for each other. The
//! first frame, which has the length, is read before: those that wait have a budget of their own,
//! and a call whose frame does not fit ends. A message that is not whole in time ends its call, and
//! with it everything that the call took.
//!
//! In all an identity takes at most 8 windows of 32 MiB, 64 MiB of messages and 64 MiB that wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use furrow_identity::Peer;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::PollSemaphore;
use tonic::Status;
use tonic::body::Body;

use crate::limits::MESSAGE_BYTES_MAX;

/// Bounds of what one identity may take of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetLimits {
    /// Calls at a time. A worker has one for each session and a few more.
    pub calls_max: usize,
    /// Connections with calls under way. A worker has one, and another one after a loss.
    pub connections_max: usize,
    /// Bytes of messages that are not whole, and as many of frames that wait for their reservation.
    pub bytes_max: u32,
    /// Time that a message may take from its first byte to its last, and a call to its first
    /// message.
    pub message_deadline: Duration,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            // Several times the sessions of the largest worker.
            calls_max: 1024,
            connections_max: 8,
            // Four of the largest messages, or 128 usual screenshots at the same moment.
            bytes_max: 4 * MESSAGE_BYTES_MAX as u32,
            // 16 MiB in this time are 0.5 MiB/s.
            message_deadline: Duration::from_secs(30),
        }
    }
}

/// The budgets of all callers of a server.
#[derive(Debug, Clone)]
pub(crate) struct PeerBudgets(Arc<AllBudgets>);

#[derive(Debug)]
struct AllBudgets {
    limits: BudgetLimits,
    /// By role and name. A budget lives as long as a call of its peer.
    peers: Mutex<BTreeMap<String, Weak<PeerBudget>>>,
}

#[derive(Debug)]
struct PeerBudget {
    calls: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// For frames that were read and wait for their reservation.
    waiting: Arc<Semaphore>,
    /// Calls under way by the address that their connection comes from.
    connections: Mutex<BTreeMap<SocketAddr, usize>>,
}

/// Keeps a call counted until its response has ended.
#[derive(Debug)]
pub(crate) struct CallPermit {
    _call: OwnedSemaphorePermit,
    peer: Arc<PeerBudget>,
    from: SocketAddr,
    limits: BudgetLimits,
}

impl Default for PeerBudgets {
    fn default() -> Self {
        Self::new(BudgetLimits::default())
    }
}

impl PeerBudgets {
    pub(crate) fn new(limits: BudgetLimits) -> Self {
        Self(Arc::new(AllBudgets { limits, peers: Mutex::default() }))
    }

    /// Counts one more call of a peer, or refuses it.
    pub(crate) fn begin(&self, caller: &Peer, from: SocketAddr) -> Result<CallPermit, Status> {
        let limits = self.0.limits;
        let peer = self.of(caller);
        let too_many = |count: usize, what: &str| {
            Status::resource_exhausted(format!(
                "{caller} has {count} {what}, the most of one identity; issue an identity to each worker"
            ))
        };
        let call = peer.calls.clone().try_acquire_owned();
        let call = call.map_err(|_| too_many(limits.calls_max, "calls under way"))?;
        let mut connections = lock(&peer.connections);
        if connections.len() >= limits.connections_max && !connections.contains_key(&from) {
            return Err(too_many(limits.connections_max, "connections with calls under way"));
        }
        *connections.entry(from).or_default() += 1;
        drop(connections);
        Ok(CallPermit { _call: call, peer, from, limits })
    }

    fn of(&self, peer: &Peer) -> Arc<PeerBudget> {
        let mut peers = lock(&self.0.peers);
        let key = format!("{}/{}", peer.role, peer.name);
        if let Some(budget) = peers.get(&key).and_then(Weak::upgrade) {
            return budget;
        }
        peers.retain(|_, budget| budget.strong_count() > 0);
        let limits = &self.0.limits;
        let budget = Arc::new(PeerBudget {
            calls: Arc::new(Semaphore::new(limits.calls_max)),
            bytes: Arc::new(Semaphore::new(limits.bytes_max as usize)),
            waiting: Arc::new(Semaphore::new(limits.bytes_max as usize)),
            connections: Mutex::default(),
        });
        peers.insert(key, Arc::downgrade(&budget));
        budget
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut connections = lock(&self.peer.connections);
        if let Some(calls) = connections.get_mut(&self.from) {
            *calls -= 1;
            if *calls == 0 {
                connections.remove(&self.from);
            }
        }
    }
}

/// A counter is whole after every change of it, so a panic elsewhere leaves it right.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Data whose message has begun and is not reserved yet.
struct WaitingFrame {
    data: Bytes,
    /// Bytes of its message, which are to be reserved.
    length: u32,
    _permit: OwnedSemaphorePermit,
}

/// A request's body under the budget of its sender.
struct BudgetedBody {
    inner: Body,
    framing: MessageFraming,
    waiting: Option<WaitingFrame>,
    waiting_bytes: Arc<Semaphore>,
    reserved: Option<OwnedSemaphorePermit>,
    bytes: PollSemaphore,
    deadline: Duration,
    /// Runs while a message is not whole, and until the first one is.
    overdue: Option<Pin<Box<Sleep>>>,
}

impl CallPermit {
    /// Puts a request's body under the budget.
    pub(crate) fn bound(&self, inner: Body) -> Body {
        let deadline = self.limits.message_deadline;
        Body::new(BudgetedBody {
            inner,
            framing: MessageFraming::default(),
            waiting: None,
            waiting_bytes: self.peer.waiting.clone(),
            reserved: None,
            bytes: PollSemaphore::new(self.peer.bytes.clone()),
            deadline,
            overdue: Some(Box::pin(sleep(deadline))),
        })
    }

    /// Keeps the call counted until this response has ended.
    pub(crate) fn until_the_end_of(self, inner: Body) -> Body {
        Body::new(CountedBody { inner, _permit: self })
    }
}

impl BudgetedBody {
    fn check_time(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        let Some(overdue) = &mut self.overdue else { return Ok(()) };
        if overdue.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let seconds = self.deadline.as_secs_f32();
        let why =
            format!("a message was not whole after {seconds} s; send it at once, or over a faster link");
        Err(Status::deadline_exceeded(why))
    }

    /// Keeps a frame until its message is reserved, or refuses the call.
    fn wait_with(&self, data: Bytes, length: u32) -> Result<WaitingFrame, Status> {
        // A frame has at most 1 MiB.
        let permit = self.waiting_bytes.clone().try_acquire_many_owned(data.len() as u32);
        let permit = permit.map_err(|_| {
            Status::resource_exhausted(
                "too many messages of this identity are under way; send fewer at a time",
            )
        })?;
        Ok(WaitingFrame { data, length, _permit: permit })
    }

    fn deliver(&mut self, data: Bytes) -> Frame<Bytes> {
        if self.framing.is_between_messages() {
            self.reserved = None;
            self.overdue = None;
        } else if self.overdue.is_none() {
            self.overdue = Some(Box::pin(sleep(self.deadline)));
        }
        Frame::data(data)
    }
}

impl HttpBody for BudgetedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Err(overdue) = this.check_time(context) {
            return Poll::Ready(Some(Err(overdue)));
        }
        if this.waiting.is_none() {
            let frame = match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            let length = this.framing.read(&data);
            if length == 0 {
                return Poll::Ready(Some(Ok(this.deliver(data))));
            }
            // What the last message took is free once the next one begins.
            this.reserved = None;
            match this.wait_with(data, length) {
                Ok(waiting) => this.waiting = Some(waiting),
                Err(refused) => return Poll::Ready(Some(Err(refused))),
            }
        }
        let length = this.waiting.as_ref().map_or(0, |waiting| waiting.length);
        this.reserved = ready!(this.bytes.poll_acquire_many(context, length));
        let data = this.waiting.take().map(|waiting| waiting.data).unwrap_or_default();
        Poll::Ready(Some(Ok(this.deliver(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response's body with the permit of its call.
struct CountedBody {
    inner: Body,
    _permit: CallPermit,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Where a stream of gRPC messages is: each has five bytes before it, of which the last four are
/// its length, big-endian
/// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
#[derive(Debug, Default)]
struct MessageFraming {
    prefix: [u8; PREFIX_BYTES],
    prefix_read: usize,
    /// Bytes of the message that have not arrived.
    left: u64,
}

const PREFIX_BYTES: usize = 5;

impl MessageFraming {
    fn is_between_messages(&self) -> bool {
        self.prefix_read == 0 && self.left == 0
    }

    /// Reads on. Returns the length of a message that began and is not whole, or 0.
    fn read(&mut self, mut data: &[u8]) -> u32 {
        let mut begun = 0;
        while !data.is_empty() {
            if self.left > 0 {
                let taken = (data.len() as u64).min(self.left);
                self.left -= taken;
                data = &data[taken as usize..];
            } else {
                let taken = data.len().min(PREFIX_BYTES - self.prefix_read);
                self.prefix[self.prefix_read..self.prefix_read + taken].copy_from_slice(&data[..taken]);
                self.prefix_read += taken;
                data = &data[taken..];
                if self.prefix_read == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    let length = u32::from_be_bytes(length);
                    self.left = u64::from(length);
                    // The decoder refuses a longer one as soon as it sees this prefix.
                    begun = length.min(MESSAGE_BYTES_MAX as u32);
                }
            }
            if self.left == 0 && self.prefix_read == PREFIX_BYTES {
                self.prefix_read = 0;
                begun = 0;
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use furrow_identity::PeerRole;
    use furrow_rollout::Id;
    use futures::StreamExt as _;
    use proptest::prelude::*;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    const LIMITS: BudgetLimits = BudgetLimits {
        calls_max: 3,
        connections_max: 2,
        bytes_max: 1000,
        message_deadline: Duration::from_secs(30),
    };

    fn peer(name: &str) -> Peer {
        Peer::of_run(Id::new("r").unwrap(), PeerRole::Env, name)
    }

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(vec![7; length]);
        bytes
    }

    type Sender = mpsc::Sender<Bytes>;

    /// A body that a test sends frames of, under the budget of a call.
    fn body(permit: &CallPermit) -> (Sender, Body) {
        let (sender, frames) = mpsc::channel::<Bytes>(8);
        let frames = ReceiverStream::new(frames).map(|data| Ok::<_, Status>(Frame::data(data)));
        (sender, permit.bound(Body::new(http_body_util::StreamBody::new(frames))))
    }

    async fn next(body: &mut Body) -> Option<Result<usize, Status>> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        Some(frame.map(|frame| frame.into_data().map_or(0, |data| data.len())))
    }

    #[test]
    fn calls_and_connections_of_one_identity_are_counted() {
        let budgets = PeerBudgets::new(LIMITS);
        let first = budgets.begin(&peer("a"), from(1)).unwrap();
        let second = budgets.begin(&peer("a"), from(2)).unwrap();
        let refused = budgets.begin(&peer("a"), from(3)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("furrow://r/env/a has 2 connections"), "{refused}");
        let third = budgets.begin(&peer("a"), from(2)).unwrap();
        let refused = budgets.begin(&peer("a"), from(2)).unwrap_err();
        assert!(refused.message().contains("3 calls under way"), "{refused}");
        assert!(budgets.begin(&peer("b"), from(3)).is_ok(), "another identity");
        drop((second, third));
        assert!(budgets.begin(&peer("a"), from(3)).is_ok(), "the connection has no call any more");
        drop(first);
    }

    #[tokio::test]
    async fn a_message_waits_until_all_its_bytes_are_reserved() {
        let budgets = PeerBudgets::new(LIMITS);
        let permit = budgets.begin(&peer("a"), from(1)).unwrap();
        let (large, mut large_body) = body(&permit);
        let (small, mut small_body) = body(&permit);
        large.try_send(Bytes::from(message(800)[..10].to_vec())).unwrap();
        assert_eq!(next(&mut large_body).await.unwrap().unwrap(), 10);
        small.try_send(Bytes::from(message(300)[..10].to_vec())).unwrap();
        let waits = tokio::time::timeout(Duration::from_millis(50), next(&mut small_body)).await;
        assert!(waits.is_err(), "800 and 300 bytes exceed 1000");
        let other = budgets.begin(&peer("b"), from(2)).unwrap();
        let (sender, mut other_body) = body(&other);
        sender.try_send(Bytes::from(message(900)[..10].to_vec())).unwrap();
        assert_eq!(next(&mut other_body).await.unwrap().unwrap(), 10, "another identity does not wait");
        large.try_send(Bytes::from(message(800)[10..].to_vec())).unwrap();
        assert_eq!(next(&mut large_body).await.unwrap().unwrap(), 795);
        assert_eq!(next(&mut small_body).await.unwrap().unwrap(), 10, "the large one is whole");
    }

    #[tokio::test]
    async fn frames_that_wait_are_bounded_too() {
        let budgets = PeerBudgets::new(LIMITS);
        let permit = budgets.begin(&peer("a"), from(1)).unwrap();
        let (first, mut first_body) = body(&permit);
        first.try_send(Bytes::from(message(1000)[..10].to_vec())).unwrap();
        assert_eq!(next(&mut first_body).await.unwrap().unwrap(), 10);
        let (second, mut second_body) = body(&permit);
        second.try_send(Bytes::from(message(900)[..700].to_vec())).unwrap();
        let waits = tokio::time::timeout(Duration::from_millis(50), next(&mut second_body)).await;
        assert!(waits.is_err(), "700 of 1000 bytes may wait");
        let (third, mut third_body) = body(&permit);
        third.try_send(Bytes::from(message(900)[..700].to_vec())).unwrap();
        let refused = next(&mut third_body).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(first_body);
        assert_eq!(next(&mut second_body).await.unwrap().unwrap(), 700, "what the first call took is free");
    }

    #[tokio::test]
    async fn a_message_that_is_not_whole_in_time_ends_its_call() {
        let message_deadline = Duration::from_millis(200);
        let budgets = PeerBudgets::new(BudgetLimits { message_deadline, ..LIMITS });
        let permit = budgets.begin(&peer("a"), from(1)).unwrap();
        let (_silent, mut silent) = body(&permit);
        let refused = next(&mut silent).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::DeadlineExceeded);
        let (stream, mut whole) = body(&permit);
        stream.try_send(Bytes::from(message(20))).unwrap();
        assert_eq!(next(&mut whole).await.unwrap().unwrap(), 25);
        let quiet = tokio::time::timeout(Duration::from_millis(600), next(&mut whole)).await;
        assert!(quiet.is_err(), "between two messages a stream may be silent");
        stream.try_send(Bytes::from(message(20)[..7].to_vec())).unwrap();
        assert_eq!(next(&mut whole).await.unwrap().unwrap(), 7);
        assert!(next(&mut whole).await.unwrap().is_err());
    }

    proptest! {
        /// However messages are cut into frames: the framing is between messages exactly where
        /// one ends, and names each length that it has to wait for.
        #[test]
        fn frames_are_cut_anywhere(
            lengths in prop::collection::vec(0_usize..40, 1..8),
            cuts in prop::collection::vec(1_usize..30, 1..40),
        ) {
            let all: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let ends: Vec<usize> = lengths
                .iter()
                .scan(0, |at, length| { *at += PREFIX_BYTES + length; Some(*at) })
                .collect();
            let mut framing = MessageFraming::default();
            let mut at = 0;
            for cut in cuts.iter().cycle() {
                if at == all.len() {
                    break;
                }
                let to = (at + cut).min(all.len());
                let begun = framing.read(&all[at..to]);
                let whole_before = ends.partition_point(|end| *end <= to);
                let start = whole_before.checked_sub(1).map_or(0, |index| ends[index]);
                let began_here = to < all.len() && to >= start + PREFIX_BYTES && at < start + PREFIX_BYTES;
                let expected = if began_here { lengths[whole_before] as u32 } else { 0 };
                prop_assert_eq!(begun, expected, "{}..{}", at, to);
                prop_assert_eq!(framing.is_between_messages(), ends.contains(&to));
                at = to;
            }
        }
    }
}
