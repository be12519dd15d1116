//! The worker under test and everything it needs.

use std::sync::Arc;
use std::time::Duration;

use furrow_env::simulated::{SimConfig, SimulatedBrowser};
use furrow_env::{EnvironmentFactory, RetryPolicy, WorkerConfig, WorkerError, WorkerSummary, run};
use furrow_rollout::*;
use furrow_wire::{OpaqueStep, TcpConnector};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::standin::*;

/// A worker with its own coordinator.
pub(crate) struct Farm {
    pub book: Arc<WatchedValue<CoordinatorState>>,
    pub coordinator: Option<LocalServer>,
    pub stop: CancellationToken,
    pub worker: JoinHandle<Result<WorkerSummary, WorkerError>>,
    /// Number of open environments; it must be 0 when the worker has ended.
    pub open_left: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// Timeouts are long, so that only the test's actions end anything.
pub(crate) fn config() -> WorkerConfig {
    let millis = Duration::from_millis;
    let retry = RetryPolicy { first: millis(5), longest: millis(50), timeout: DEADLINE };
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
pub(crate) fn sim_config() -> SimConfig {
    SimConfig { screenshot_bytes: 3000, clicks: 4..=4, ..SimConfig::default() }
}

impl Farm {
    /// A worker with a simulated browser and these pending assignments.
    pub(crate) fn simulated(config: WorkerConfig, sim: SimConfig, assignments: Vec<Assignment>) -> Self {
        let sim = Arc::new(SimulatedBrowser::new(sim));
        let farm = Self::start(config, sim.clone(), assignments);
        Self { open_left: Box::new(move || sim.open_environments()), ..farm }
    }

    /// A worker with any environments.
    pub(crate) fn start(
        config: WorkerConfig,
        environments: Arc<dyn EnvironmentFactory>,
        assignments: Vec<Assignment>,
    ) -> Self {
        let book =
            WatchedValue::new(CoordinatorState { queue: assignments.into(), ..CoordinatorState::default() });
        let coordinator = StubCoordinator(book.clone()).serve(0);
        let address = coordinator.address.to_string();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let worker = tokio::spawn(async move {
            let id = Id::new("e").unwrap();
            run(config, id, environments, Arc::new(TcpConnector::default()), &address, token).await
        });
        Self { book, coordinator: Some(coordinator), stop, worker, open_left: Box::new(|| 0) }
    }

    pub(crate) async fn finished(&self, count: usize) {
        self.book.until("all endings", |book| book.endings.len() == count).await;
    }

    /// Ends the run and returns the worker's summary; no environment may be left open.
    pub(crate) async fn end(self) -> WorkerSummary {
        self.book.change(|book| book.run_over = true);
        self.ended().await
    }

    pub(crate) async fn ended(self) -> WorkerSummary {
        let summary =
            tokio::time::timeout(DEADLINE, self.worker).await.expect("the worker ends").unwrap().unwrap();
        assert_eq!((self.open_left)(), 0, "environments are left open");
        summary
    }
}

/// The trajectory of `assignment(index, _)`.
pub(crate) fn name(index: u64) -> String {
    format!("r-g{index:06}-s0-a0")
}

/// Steps account for all time between booting and finishing; the rest is in the total.
#[track_caller]
pub(crate) fn every_microsecond_has_a_cause(steps: &[OpaqueStep], ending: &TrajectoryEnding) {
    let mut recorded = TimeSplit::default();
    steps.iter().for_each(|step| recorded.merge(&step.timing));
    for cause in [TimeCause::Observe, TimeCause::Policy, TimeCause::Act, TimeCause::Settle] {
        assert_eq!(recorded.of(cause), ending.timing.of(cause), "{}", cause.as_str());
    }
    assert_eq!((recorded.of(TimeCause::Boot), recorded.of(TimeCause::Finish)), (0, 0));
    let whole = recorded.total() + ending.timing.of(TimeCause::Boot) + ending.timing.of(TimeCause::Finish);
    let last_wait = ending.timing.of(TimeCause::Record) - recorded.of(TimeCause::Record);
    assert_eq!(whole + last_wait, ending.timing.total());
    assert!(ending.timing.of(TimeCause::Policy) > 0 && ending.timing.of(TimeCause::Boot) > 0);
}
