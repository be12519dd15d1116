//! How many requests wait and run: a bound for both, and a permit for each reply that runs.

use std::sync::Arc;

use furrow_http::ServerTasks;
use furrow_openai::server::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::errors::{draining, late};

#[derive(Clone)]
pub(super) struct Admission {
    /// Permits of running and waiting replies.
    admitted: Arc<Semaphore>,
    /// Permits of running replies.
    working: Arc<Semaphore>,
    requests_max: usize,
    queue_max: usize,
    tasks: ServerTasks,
}

/// Permits of a running request, one for each of its replies; dropping them lets others run.
pub(super) struct WorkPermit {
    admitted: OwnedSemaphorePermit,
    working: OwnedSemaphorePermit,
}

impl Admission {
    pub(super) fn new(requests_max: usize, queue_max: usize, tasks: ServerTasks) -> Self {
        Self {
            admitted: Arc::new(Semaphore::new(requests_max + queue_max)),
            working: Arc::new(Semaphore::new(requests_max)),
            requests_max,
            queue_max,
            tasks,
        }
    }

    /// Number of running replies.
    pub(super) fn at_work(&self) -> usize {
        self.requests_max - self.working.available_permits()
    }

    /// A permit to wait or run. If too many requests wait, one more is refused at once.
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.tasks.stop.is_cancelled() {
            return Err(draining());
        }
        self.admitted.clone().try_acquire_owned().map_err(|_| self.full())
    }

    /// A permit to run one reply.
    pub(super) async fn start(
        &self,
        admitted: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<WorkPermit, ApiError> {
        self.start_many(admitted, 1, deadline).await
    }

    /// Permits for all replies to a request that has one for its first.
    pub(super) async fn widen(
        &self,
        permit: WorkPermit,
        replies: u32,
        deadline: Instant,
    ) -> Result<WorkPermit, ApiError> {
        if replies <= 1 {
            return Ok(permit);
        }
        let WorkPermit { mut admitted, working } = permit;
        let more = self.admitted.clone().try_acquire_many_owned(replies - 1).map_err(|_| self.full())?;
        admitted.merge(more);
        // Two requests that kept one permit while they wait for more could wait for each other.
        drop(working);
        self.start_many(admitted, replies, deadline).await
    }

    async fn start_many(
        &self,
        admitted: OwnedSemaphorePermit,
        replies: u32,
        deadline: Instant,
    ) -> Result<WorkPermit, ApiError> {
        let acquiring = self.working.clone().acquire_many_owned(replies);
        let working = tokio::select! {
            biased;
            () = self.tasks.stop.cancelled() => return Err(draining()),
            working = timeout_at(deadline, acquiring) => working.map_err(|_| late())?,
        };
        Ok(WorkPermit { admitted, working: working.map_err(|_| draining())? })
    }

    fn full(&self) -> ApiError {
        let waiting = self.queue_max;
        let why = format!("{waiting} requests are waiting; try again, or raise policy.serve.queue_max");
        ApiError::of(429, "rate_limit_error", "queue_full", why)
    }
}
