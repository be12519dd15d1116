//! The queue of events to the loop that owns the core.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::core::{CallId, CallResponse, Event};

/// Sends events to the loop. Clones send to the same loop.
#[derive(Debug, Clone)]
pub(crate) struct EventSender {
    inbox: mpsc::Sender<QueuedEvent>,
    calls: Arc<AtomicU64>,
}

/// An event and the caller that waits for its answer.
#[derive(Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) event: Event,
    pub(crate) caller: Option<(CallId, oneshot::Sender<CallResponse>)>,
}

impl EventSender {
    /// Creates a sender and the receiver of its events.
    pub(crate) fn new(calls_max: usize) -> (Self, mpsc::Receiver<QueuedEvent>) {
        let (inbox, events) = mpsc::channel(calls_max);
        (Self { inbox, calls: Arc::default() }, events)
    }

    /// Sends an event and waits for its answer. The caller sets the deadline.
    pub(crate) async fn request(&self, event: impl FnOnce(CallId) -> Event) -> Result<CallResponse, Status> {
        let call = CallId(self.calls.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        self.enqueue(QueuedEvent { event: event(call), caller: Some((call, answer)) }).await?;
        answered.await.map_err(|_| stopping_status())
    }

    /// Sends an event that needs no answer.
    pub(crate) async fn send(&self, event: Event) -> Result<(), Status> {
        self.enqueue(QueuedEvent { event, caller: None }).await
    }

    /// Sends an event from code that must not wait: when the queue is full, the event is lost.
    pub(crate) fn try_send(&self, event: Event) {
        if self.inbox.try_send(QueuedEvent { event, caller: None }).is_err() {
            tracing::debug!(
                "the event queue is full: undelivered assignments expire instead of being reclaimed"
            );
        }
    }

    async fn enqueue(&self, input: QueuedEvent) -> Result<(), Status> {
        self.inbox.send(input).await.map_err(|_| stopping_status())
    }
}

fn stopping_status() -> Status {
    Status::unavailable("the coordinator is stopping")
}
