//! The queue of events that become spans. Nothing waits for it: an event that finds it full is
//! counted and dropped.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;

use crate::names::{ProcessMetrics, process_metrics};

/// Events that may wait. An event has at most 8 spans of about 400 bytes: 13 MB, filled in half a
/// minute by 100 steps per second.
const QUEUE_MAX: usize = 4096;

/// The queue of [`trace`]; empty until something is exported.
static QUEUE: OnceLock<mpsc::Sender<Vec<Span>>> = OnceLock::new();

/// An event at the end of something that took time.
pub(crate) trait TracedEvent {
    /// Its spans if it ends now, in nanoseconds since the Unix epoch.
    fn spans(&self, now_nanos: u64) -> Vec<Span>;
}

/// Makes a queue for [`trace`]. It takes events once it is [installed](install).
pub(super) fn channel() -> (mpsc::Sender<Vec<Span>>, mpsc::Receiver<Vec<Span>>) {
    mpsc::channel(QUEUE_MAX)
}

/// Events go into this queue from now on; false if another one is installed.
pub(super) fn install(sender: mpsc::Sender<Vec<Span>>) -> bool {
    QUEUE.set(sender).is_ok()
}

/// Queues the spans of an event. If the queue is full they are counted and dropped: nothing waits.
pub(crate) fn trace<E: TracedEvent>(event: &E) {
    if let Some(queue) = QUEUE.get() {
        offer(queue, process_metrics(), event);
    }
}

pub(super) fn offer<E: TracedEvent>(queue: &mpsc::Sender<Vec<Span>>, figures: &ProcessMetrics, event: &E) {
    match queue.try_reserve() {
        Ok(permit) => permit.send(event.spans(nanos_now())),
        Err(_) => figures.otlp_dropped.add(1),
    }
}

/// Wall clock, nanoseconds since the Unix epoch; 0 before it.
pub(super) fn nanos_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
