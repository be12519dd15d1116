//! The worker under test and everything it needs.

use std::sync::Arc;
use std::time::Duration;

use furrow_env::sim::{Air, SimConfig};
use furrow_env::{Retry, Stages, Summary, WorkerConfig, WorkerError, run};
use furrow_rollout::*;
use furrow_wire::{OpaqueStep, Tcp};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::standin::*;

/// A worker with a coordinator of its own.
pub struct Farm {
    pub book: Arc<Watched<Book>>,
    pub coordinator: Option<Server>,
    pub stop: CancellationToken,
    pub worker: JoinHandle<Result<Summary, WorkerError>>,
    /// Stages that are open; none may be when the worker has ended.
    pub left: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// Patient enough that only what a test does ends anything.
pub fn config() -> WorkerConfig {
    let millis = Duration::from_millis;
    let retry = Retry { first: millis(5), longest: millis(50), patience: DEADLINE };
    WorkerConfig {
        sessions_max: 3,
        lease_wait: millis(200),
        call_deadline: Duration::from_secs(5),
        coordinator_retry: retry,
        policy_deadline: DEADLINE,
        policy_retry: retry,
        unparsable_max: 3,
        drain_grace: DEADLINE,
    }
}

/// Four clicks, small pictures.
pub fn air() -> SimConfig {
    SimConfig { screenshot_bytes: 3000, clicks: 4..=4, ..SimConfig::default() }
}

impl Farm {
    /// A worker in air with these assignments waiting for it.
    pub fn in_air(config: WorkerConfig, air: SimConfig, assignments: Vec<Assignment>) -> Self {
        let air = Arc::new(Air::new(air));
        let farm = Self::start(config, air.clone(), assignments);
        Self { left: Box::new(move || air.open_stages()), ..farm }
    }

    /// A worker on any stages.
    pub fn start(config: WorkerConfig, stages: Arc<dyn Stages>, assignments: Vec<Assignment>) -> Self {
        let book = Watched::new(Book { queue: assignments.into(), ..Book::default() });
        let coordinator = Coordinator(book.clone()).serve(0);
        let (address, stop) = (coordinator.address.to_string(), CancellationToken::new());
        let token = stop.clone();
        let worker = tokio::spawn(async move {
            let id = Id::new("e").unwrap();
            run(config, id, stages, Arc::new(Tcp::default()), &address, token).await
        });
        Self { book, coordinator: Some(coordinator), stop, worker, left: Box::new(|| 0) }
    }

    pub async fn finished(&self, count: usize) {
        self.book.until("all endings", |book| book.endings.len() == count).await;
    }

    /// Ends the run and returns what the worker did; nothing of it may be left.
    pub async fn end(self) -> Summary {
        self.book.change(|book| book.run_over = true);
        self.ended().await
    }

    pub async fn ended(self) -> Summary {
        let summary =
            tokio::time::timeout(DEADLINE, self.worker).await.expect("the worker ends").unwrap().unwrap();
        assert_eq!((self.left)(), 0, "stages are left");
        summary
    }
}

/// The trajectory of `assignment(index, _)`.
pub fn name(index: u64) -> String {
    format!("r-g{index:06}-s0-a0")
}

/// Steps tell all of the time between booting and finishing; what they do not tell is in the whole.
#[track_caller]
pub fn every_microsecond_has_a_cause(steps: &[OpaqueStep], ending: &Ending) {
    let mut told = TimeSplit::default();
    steps.iter().for_each(|step| told.merge(&step.timing));
    for cause in [Cause::Observe, Cause::Policy, Cause::Act, Cause::Settle] {
        assert_eq!(told.of(cause), ending.timing.of(cause), "{}", cause.as_str());
    }
    assert_eq!((told.of(Cause::Boot), told.of(Cause::Finish)), (0, 0));
    let whole = told.total() + ending.timing.of(Cause::Boot) + ending.timing.of(Cause::Finish);
    let last_wait = ending.timing.of(Cause::Record) - told.of(Cause::Record);
    assert_eq!(whole + last_wait, ending.timing.total());
    assert!(ending.timing.of(Cause::Policy) > 0 && ending.timing.of(Cause::Boot) > 0);
}
