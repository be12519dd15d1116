//! Workers short of memory, and a panic in a worker's own code.

use super::*;

/// A simulated browser with little memory: every opened environment uses a part of it.
struct LimitedMemory {
    browser: SimulatedBrowser,
    remaining: Arc<AtomicU32>,
}

#[async_trait]
impl EnvironmentFactory for LimitedMemory {
    fn fingerprint(&self, task: Option<&Task>) -> EnvironmentFingerprint {
        self.browser.fingerprint(task)
    }

    fn capacity(&self) -> Capacity {
        Capacity { environments: self.remaining.load(Ordering::SeqCst), available_bytes: 1, reserve_bytes: 2 }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Environment>, EnvironmentError> {
        self.remaining.fetch_sub(1, Ordering::SeqCst);
        self.browser.open(assignment).await
    }

    async fn close(&self) {
        self.browser.close().await;
    }
}

#[tokio::test]
async fn nothing_is_taken_up_while_memory_is_short() {
    let policy = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let remaining = Arc::new(AtomicU32::new(0));
    let environments = Arc::new(LimitedMemory {
        browser: SimulatedBrowser::new(sim_config()),
        remaining: remaining.clone(),
    });
    let waited = || process_metrics().slot_micros.at(SlotUse::Admission).get();
    let before = waited();
    let farm = Farm::start(config(), environments, (0..6).map(|n| assignment(n, policy.address)).collect());
    // A heartbeat updates the metrics: a wait is visible while it lasts.
    let beats = |most| farm.book.until("the worker lives", move |book| book.beats > most);
    beats(5).await;
    farm.book.read(|book| assert_eq!((book.queue.len(), book.leases.len()), (6, 0)));
    assert!(waited() > before, "three slots wait for memory, and no metric shows it");
    // A leased trajectory that is not open yet counts: of three free slots two are used.
    remaining.store(2, Ordering::SeqCst);
    farm.finished(2).await;
    beats(farm.book.read(|book| book.beats) + 5).await;
    farm.book
        .read(|book| assert_eq!((book.queue.len(), book.leases.len()), (4, 0), "there was memory for two"));
    remaining.store(100, Ordering::SeqCst);
    farm.finished(6).await;
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 6, abandoned: 0, cut_off: 0 });
}

/// Environments that make the worker's own code panic.
struct PanickingFactory;

#[async_trait]
impl EnvironmentFactory for PanickingFactory {
    fn fingerprint(&self, _task: Option<&Task>) -> EnvironmentFingerprint {
        EnvironmentFingerprint::default()
    }

    async fn open(&self, _assignment: &Assignment) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(PanickingEnvironment))
    }

    async fn close(&self) {}
}

/// An environment in which every call panics.
struct PanickingEnvironment;

#[async_trait]
impl Environment for PanickingEnvironment {
    fn browser(&self) -> &str {
        "trapdoor"
    }

    async fn begin(&mut self) -> Result<Option<String>, EnvironmentError> {
        panic!("a panic requested by the test")
    }

    async fn observe(&mut self) -> Result<Observation, EnvironmentError> {
        unreachable!()
    }

    async fn hint(&mut self, _goal: &str, _step: u32) -> Result<Option<ActionHint>, EnvironmentError> {
        unreachable!()
    }

    async fn act(&mut self, _action: &Action) -> Result<Outcome, EnvironmentError> {
        unreachable!()
    }

    async fn settle(&mut self, _outcome: Outcome) -> Result<Outcome, EnvironmentError> {
        unreachable!()
    }

    async fn probe(&mut self) -> Result<Option<String>, EnvironmentError> {
        unreachable!()
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        unreachable!()
    }

    async fn close(self: Box<Self>) {}
}

#[tokio::test]
async fn a_panic_is_one_trajectorys_end_and_the_worker_goes_on() {
    let policy = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let assigned = (0..5).map(|n| assignment(n, policy.address)).collect();
    let farm = Farm::start(config(), Arc::new(PanickingFactory), assigned);
    farm.finished(5).await;
    let ending = farm.book.read(|book| book.ending(&name(4)).unwrap());
    assert_eq!((ending.end, ending.steps), (EndKind::EnvCrash, 0));
    assert!(ending.reason.contains("panicked"), "{}", ending.reason);
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 5, abandoned: 0, cut_off: 0 });
}
