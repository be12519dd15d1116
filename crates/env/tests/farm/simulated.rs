//! A worker with a simulated browser: what it reports, and what it does when the coordinator or the
//! policy disappears.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use furrow_env::simulated::{FaultRates, SimConfig, SimulatedBrowser};
use furrow_env::{
    Capacity, Environment, EnvironmentError, EnvironmentFactory, RetryPolicy, WorkerConfig, WorkerError,
    WorkerSummary, run,
};
use furrow_rollout::*;
use furrow_telemetry::{SlotUse, process_metrics};
use furrow_wire::TcpConnector;
use tokio_util::sync::CancellationToken;

use crate::farm::*;
use crate::standin::*;

#[tokio::test]
async fn every_trajectory_is_reported_whole() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    let server = policy.serve(0);
    let farm =
        Farm::simulated(config(), sim_config(), (0..7).map(|n| assignment(n, server.address)).collect());
    farm.finished(7).await;
    let fingerprint = SimulatedBrowser::new(sim_config()).fingerprint(None);
    farm.book.read(|book| {
        for index in 0..7 {
            let ending = book.ending(&name(index)).unwrap();
            let steps = book.recorded(&name(index));
            assert_eq!((ending.end, ending.steps, steps.len()), (EndKind::Done, 4, 4));
            assert_eq!(ending.goal, "Click the button 4 times.");
            let evidence = ending.evidence.as_ref().unwrap();
            assert_eq!(evidence.probe_json.as_deref(), Some(r#"{"done":true,"reward":1}"#));
            assert_eq!((evidence.title.as_deref(), &evidence.answer), (Some("0 clicks to go"), &None));
            assert!(evidence.screenshot.as_ref().unwrap().starts_with(b"\x89PNG"));
            assert_eq!(ending.environment.worker.as_str(), "e");
            assert_eq!(ending.environment.browser, fingerprint.browser);
            for (number, step) in steps.iter().enumerate() {
                assert_eq!((step.step as usize, step.outcome.name), (number, OutcomeName::Ok));
                assert_eq!(step.observation.title, format!("{} clicks to go", 4 - number));
                assert_eq!(furrow_wire::decode_trace(&step.trace).unwrap(), trace(step.step));
            }
            every_microsecond_has_a_cause(&steps, &ending);
        }
    });
    // Close is sent concurrently with the end: the test waits for it.
    policy.notes.until("all sessions closed", |notes| notes.closed == 7).await;
    policy.notes.read(|notes| assert!(notes.opened.iter().all(|(_, past)| *past == 0), "{:?}", notes.opened));
    let book = farm.book.clone();
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 7, abandoned: 0, cut_off: 0 });
    book.read(|book| assert_eq!((book.left, book.registered), (1, 1)));
}

/// One way to end, and the expected report.
struct EndCase {
    behaviour: PolicyBehaviour,
    config: SimConfig,
    task: fn(&mut Task),
    end: EndKind,
    steps: u32,
    outcome: Option<OutcomeName>,
    has_evidence: bool,
    reason: &'static str,
}

fn case(behaviour: PolicyBehaviour, end: EndKind, steps: u32) -> EndCase {
    EndCase {
        behaviour,
        config: sim_config(),
        task: |_| {},
        end,
        steps,
        outcome: None,
        has_evidence: true,
        reason: "",
    }
}

fn goto(url: &str) -> PolicyBehaviour {
    PolicyBehaviour::Act(Action::Goto { url: url.into() })
}

#[tokio::test]
async fn ends_that_the_policy_causes_have_their_names() {
    use OutcomeName::*;
    for case in [
        case(PolicyBehaviour::Click, EndKind::Done, 4),
        EndCase {
            outcome: Some(Answered),
            ..case(PolicyBehaviour::Act(Action::Answer { content: "42".into() }), EndKind::Answered, 1)
        },
        EndCase {
            outcome: Some(InvalidAction),
            reason: "3 replies in a row",
            ..case(PolicyBehaviour::Nonsense, EndKind::Unparsable, 3)
        },
        EndCase {
            outcome: Some(OffList),
            reason: "other.test",
            ..case(goto("http://other.test/"), EndKind::OffListNavigation, 1)
        },
        EndCase {
            outcome: Some(OffList),
            ..case(goto("http://127.0.0.1:9222/json"), EndKind::OffListNavigation, 1)
        },
        EndCase { outcome: Some(OffList), ..case(goto("file:///etc/passwd"), EndKind::OffListNavigation, 1) },
        EndCase { outcome: Some(Ok), ..case(goto("http://sim.test/page"), EndKind::MaxSteps, 20) },
        EndCase { task: |task| task.max_steps = 2, ..case(PolicyBehaviour::Click, EndKind::MaxSteps, 2) },
        case(PolicyBehaviour::ContextFull, EndKind::ContextFull, 0),
    ] {
        check_end(case).await;
    }
}

#[tokio::test]
async fn ends_that_the_farm_causes_have_their_names() {
    use OutcomeName::*;
    let fault = |crash, hang, death| SimConfig { faults: FaultRates { crash, hang, death }, ..sim_config() };
    let farms = SimConfig { settle: Duration::from_secs(3600), ..sim_config() };
    for case in [
        EndCase {
            config: fault(0.0, 1.0, 0.0),
            outcome: Some(PageHang),
            reason: "input",
            ..case(PolicyBehaviour::Click, EndKind::PageHang, 1)
        },
        EndCase {
            config: fault(1.0, 0.0, 0.0),
            outcome: Some(PageCrash),
            has_evidence: false,
            ..case(PolicyBehaviour::Click, EndKind::PageCrash, 1)
        },
        EndCase {
            config: fault(0.0, 0.0, 1.0),
            outcome: Some(BrowserDead),
            has_evidence: false,
            ..case(PolicyBehaviour::Click, EndKind::BrowserDead, 1)
        },
        EndCase {
            has_evidence: false,
            reason: "not a number",
            ..case(PolicyBehaviour::Fails, EndKind::PolicyFault, 0)
        },
        EndCase {
            config: farms,
            task: |task| task.time_limit_millis = 50,
            has_evidence: false,
            reason: "time limit of 50 ms",
            ..case(PolicyBehaviour::Click, EndKind::Cancelled, 0)
        },
        EndCase {
            task: |task| task.allow_hosts = vec!["10.0.0.1".into()],
            has_evidence: false,
            reason: "10.0.0.1",
            ..case(PolicyBehaviour::Click, EndKind::EnvCrash, 0)
        },
    ] {
        check_end(case).await;
    }
}

async fn check_end(case: EndCase) {
    let policy = StubPolicy::new(case.behaviour.clone()).serve(0);
    let mut assigned = assignment(0, policy.address);
    (case.task)(&mut assigned.task);
    let farm = Farm::simulated(config(), case.config, vec![assigned]);
    farm.finished(1).await;
    let (ending, steps) = farm.book.read(|book| (book.ending(&name(0)).unwrap(), book.recorded(&name(0))));
    let what = format!("{:?} ended {:?}: {}", case.behaviour, ending.end, ending.reason);
    assert_eq!((ending.end, ending.steps, steps.len() as u32), (case.end, case.steps, case.steps), "{what}");
    assert_eq!(ending.evidence.is_some(), case.has_evidence, "{what}");
    assert!(ending.reason.contains(case.reason), "{what}");
    if let Some(outcome) = case.outcome {
        assert_eq!(steps.last().unwrap().outcome.name, outcome, "{what}");
    }
    let answer = ending.evidence.and_then(|evidence| evidence.answer);
    assert_eq!(answer.as_deref(), (case.end == EndKind::Answered).then_some("42"), "{what}");
    assert_eq!(farm.end().await.acknowledged, 1, "{what}");
}

#[tokio::test]
async fn a_session_is_rebuilt_on_another_policy_worker() {
    let first = StubPolicy::new(PolicyBehaviour::Click);
    let second = StubPolicy::new(PolicyBehaviour::Click);
    first.notes.change(|notes| notes.pause_from = Some(2));
    let server = first.serve(0);
    let other = second.serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, server.address)]);
    first.notes.until("step 2 is requested", |notes| notes.observed.contains(&(name(0), 2))).await;
    server.kill();
    farm.book.change(|book| book.moves.insert(name(0), other.address.to_string()));
    farm.finished(1).await;
    second.notes.read(|notes| {
        assert_eq!(notes.opened, [(name(0), 2)]);
        let past: Vec<_> =
            notes.past.iter().map(|(step, _, outcome)| (*step, outcome.as_ref().map(|o| o.name))).collect();
        assert_eq!(past, [(0, None), (1, Some(OutcomeName::Ok))]);
        assert!(notes.past.iter().all(|(_, bytes, _)| *bytes > 2000), "the screenshots were sent again");
        assert_eq!(
            notes.observed,
            [(name(0), 2), (name(0), 3)],
            "the unanswered step is requested again, and no other"
        );
    });
    farm.book.read(|book| assert_eq!(book.recorded(&name(0)).len(), 4));
    assert_eq!(farm.end().await.acknowledged, 1);
}

/// The old worker still answers keepalives but will never reply: the move alone must be sufficient,
/// whatever the session waits for.
#[tokio::test]
async fn a_move_takes_effect_while_a_policy_is_silent() {
    for behaviour in [PolicyBehaviour::Silence, PolicyBehaviour::NothingAtAll] {
        let first = StubPolicy::new(behaviour);
        let second = StubPolicy::new(PolicyBehaviour::Click);
        let server = first.serve(0);
        let other = second.serve(0);
        let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, server.address)]);
        first.notes.until("it is silent", |notes| notes.silent).await;
        farm.book.change(|book| book.moves.insert(name(0), other.address.to_string()));
        farm.finished(1).await;
        assert_eq!(farm.end().await.acknowledged, 1);
    }
}

#[tokio::test]
async fn a_policy_worker_that_restarts_is_reconnected() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("step 1 is requested", |notes| notes.observed.len() == 2).await;
    let port = server.kill();
    policy.notes.change(|notes| notes.pause_from = None);
    let _back = policy.serve(port);
    farm.finished(1).await;
    policy.notes.read(|notes| assert_eq!(notes.opened, [(name(0), 0), (name(0), 1)]));
    assert_eq!(farm.end().await.acknowledged, 1);
}

#[tokio::test]
async fn no_policy_worker_for_too_long_is_a_policy_fault() {
    let server = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let address = server.address;
    server.kill();
    let short = RetryPolicy { timeout: Duration::from_millis(100), ..config().policy_retry };
    let farm = Farm::simulated(
        WorkerConfig { policy_retry: short, ..config() },
        sim_config(),
        vec![assignment(0, address)],
    );
    farm.finished(1).await;
    let ending = farm.book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (EndKind::PolicyFault, 0));
    assert!(ending.reason.starts_with("no policy worker for"), "{}", ending.reason);
    assert_eq!(farm.end().await.acknowledged, 1);
}

#[tokio::test]
async fn a_coordinator_that_comes_back_gets_the_same_trajectory() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(2));
    let server = policy.serve(0);
    let mut farm = Farm::simulated(
        config(),
        sim_config(),
        vec![assignment(0, server.address), assignment(1, server.address)],
    );
    policy
        .notes
        .until("both are at step 2", |notes| {
            notes.observed.iter().filter(|(_, step)| *step == 2).count() == 2
        })
        .await;
    // A step is sent before the previous one is acknowledged: if that reply was lost too, step 3
    // would have to wait for it.
    farm.book
        .until("steps 0 and 1 are recorded", |book| {
            (0..2).all(|index| book.recorded(&name(index)).len() == 2)
        })
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let port = farm.coordinator.take().unwrap().kill();
    farm.book.change(|book| book.known = false);
    // Step 2 is answered, but its record cannot be delivered.
    policy.notes.change(|notes| notes.pause_from = None);
    policy
        .notes
        .until("both are at step 3", |notes| {
            notes.observed.iter().filter(|(_, step)| *step == 3).count() == 2
        })
        .await;
    farm.coordinator = Some(StubCoordinator(farm.book.clone()).serve(port));
    farm.finished(2).await;
    farm.book.read(|book| {
        assert_eq!(book.registered, 2);
        for index in 0..2 {
            assert_eq!(
                (book.ending(&name(index)).unwrap().end, book.recorded(&name(index)).len()),
                (EndKind::Done, 4)
            );
        }
    });
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 2, abandoned: 0, cut_off: 0 });
}

#[tokio::test]
async fn a_lost_reply_is_requested_with_the_same_bytes() {
    let policy = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![]);
    farm.book.change(|book| {
        for call in ["record_step 0", "record_step 2", "finish"] {
            book.lose_replies.insert(call.into(), 2);
        }
        book.queue.push_back(assignment(0, policy.address));
    });
    farm.book
        .until("finished thrice", |book| book.calls.iter().filter(|call| *call == "finish").count() == 3)
        .await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await.acknowledged, 1);
    // The stub refuses other bytes under the same key; that all calls succeeded means that the
    // bytes were the same.
    book.read(|book| {
        let want: Vec<_> =
            [0, 0, 0, 1, 2, 2, 2, 3].iter().map(|step| format!("record_step {step}")).collect();
        assert_eq!(book.calls[..8], want);
        assert_eq!((book.recorded(&name(0)).len(), book.calls.len()), (4, 11));
    });
}

#[tokio::test]
async fn a_step_that_is_refused_ends_the_trajectory_after_the_last_durable_one() {
    let policy = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![]);
    farm.book.change(|book| {
        book.refuse_step = Some(2);
        book.queue.push_back(assignment(0, policy.address));
    });
    farm.finished(1).await;
    let ending = farm.book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (EndKind::EnvCrash, 2));
    assert!(ending.reason.contains("the record is wrong"), "{}", ending.reason);
    assert_eq!(farm.end().await.acknowledged, 1);
}

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

#[tokio::test]
async fn a_lost_lease_is_dropped_silently() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(
        config(),
        sim_config(),
        vec![assignment(0, server.address), assignment(1, server.address)],
    );
    policy
        .notes
        .until("both are at step 1", |notes| {
            notes.observed.iter().filter(|(_, step)| *step == 1).count() == 2
        })
        .await;
    farm.book.change(|book| book.leases.remove(&name(0)));
    policy.notes.until("the lost one is closed", |notes| notes.closed == 1).await;
    policy.notes.change(|notes| notes.pause_from = None);
    farm.finished(1).await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 1, abandoned: 1, cut_off: 0 });
    book.read(|book| assert!(book.ending(&name(0)).is_none() && book.ending(&name(1)).is_some()));
}

/// The trajectory is leased again with a newer token between two renewals: the record is refused
/// and the attempt ends there, although the policy is still computing.
#[tokio::test]
async fn a_stale_token_ends_the_attempt() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![]);
    // Only the record is refused: renewals with the old token still succeed.
    farm.book.change(|book| {
        book.lose_replies.insert("record_step 0".into(), u32::MAX);
        book.queue.push_back(assignment(0, server.address));
    });
    farm.book.until("step 0 came", |book| book.calls.len() > 1).await;
    farm.book.change(|book| book.leases.insert(name(0), 99));
    policy.notes.until("the stale one is closed", |notes| notes.closed == 1).await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 0, abandoned: 1, cut_off: 0 });
    book.read(|book| assert!(book.endings.is_empty()));
}

#[tokio::test]
async fn stopping_lets_trajectories_end() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let assigned = (0..5).map(|n| assignment(n, server.address)).collect();
    let farm = Farm::simulated(config(), sim_config(), assigned);
    policy
        .notes
        .until("three are at step 1", |notes| {
            notes.observed.iter().filter(|(_, step)| *step == 1).count() == 3
        })
        .await;
    farm.stop.cancel();
    policy.notes.change(|notes| notes.pause_from = None);
    let book = farm.book.clone();
    assert_eq!(farm.ended().await, WorkerSummary { acknowledged: 3, abandoned: 0, cut_off: 0 });
    book.read(|book| assert_eq!((book.queue.len(), book.endings.len(), book.left), (2, 3, 1)));
}

#[tokio::test]
async fn what_does_not_end_in_time_is_handed_back() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let hurried = WorkerConfig { drain_grace: Duration::from_millis(50), ..config() };
    let farm = Farm::simulated(hurried, sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    farm.stop.cancel();
    let book = farm.book.clone();
    assert_eq!(farm.ended().await, WorkerSummary { acknowledged: 1, abandoned: 0, cut_off: 0 });
    let ending = book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (EndKind::Cancelled, 1));
    assert!(ending.reason.contains("returns the lease"), "{}", ending.reason);
}

#[tokio::test]
async fn what_cannot_even_be_handed_back_is_cut_off() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let millis = Duration::from_millis;
    let hurried = WorkerConfig { drain_grace: millis(20), call_deadline: millis(50), ..config() };
    let mut farm = Farm::simulated(hurried, sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    farm.coordinator.take().unwrap().kill();
    farm.stop.cancel();
    assert_eq!(farm.ended().await, WorkerSummary { acknowledged: 0, abandoned: 1, cut_off: 1 });
}

/// Timers of a page under virtual time run only while it settles: otherwise the page of a policy
/// without valid actions would stand still.
#[tokio::test]
async fn a_page_keeps_running_after_a_reply_without_an_action() {
    let policy = StubPolicy::new(PolicyBehaviour::Nonsense);
    let server = policy.serve(0);
    let settle = Duration::from_millis(30);
    let farm =
        Farm::simulated(config(), SimConfig { settle, ..sim_config() }, vec![assignment(0, server.address)]);
    farm.finished(1).await;
    farm.book.read(|book| {
        let steps = book.recorded(&name(0));
        assert_eq!(steps.len(), 3);
        for step in steps {
            let micros = step.timing.of(TimeCause::Settle);
            assert!(micros >= settle.as_micros() as u64, "step {} settled for {micros} us", step.step);
        }
    });
    farm.end().await;
}

#[tokio::test]
async fn a_trajectory_leased_anew_replaces_the_older_attempt() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    // Step 0 is recorded while step 1 is in progress: it must be stored before it is dropped.
    farm.book.until("step 0 is recorded", |book| book.recorded(&name(0)).len() == 1).await;
    farm.book.change(|book| {
        book.steps.clear();
        book.queue.push_back(Assignment { token: 50, ..assignment(0, server.address) });
    });
    policy.notes.until("the older one is closed", |notes| notes.closed == 1).await;
    policy.notes.change(|notes| notes.pause_from = None);
    farm.finished(1).await;
    farm.book.read(|book| assert_eq!(book.recorded(&name(0)).len(), 4));
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 1, abandoned: 1, cut_off: 0 });
}

#[tokio::test]
async fn hints_reach_only_a_policy_that_requests_them() {
    for wants_hints in [true, false] {
        let policy = StubPolicy { wants_hints, ..StubPolicy::new(PolicyBehaviour::Click) };
        let server = policy.serve(0);
        let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, server.address)]);
        farm.finished(1).await;
        policy.notes.read(|notes| {
            assert_eq!(notes.hints.len(), if wants_hints { 4 } else { 0 });
            assert!(notes.hints.iter().all(|hint| hint.contains(r#""action":"click_element""#)));
        });
        assert_eq!(farm.end().await.acknowledged, 1);
    }
}

#[tokio::test]
async fn a_refused_worker_reports_the_refusal() {
    let book = WatchedValue::new(CoordinatorState {
        refuse_registration: Some("protocol version 1, expected 2".into()),
        ..CoordinatorState::default()
    });
    let coordinator = StubCoordinator(book).serve(0);
    let environments = Arc::new(SimulatedBrowser::new(sim_config()));
    let address = coordinator.address.to_string();
    let id = Id::new("e").unwrap();
    let stop = CancellationToken::new();
    let error =
        run(config(), id, environments, Arc::new(TcpConnector::default()), &address, stop).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&address) && message.contains("protocol version 1, expected 2"), "{message}");
}

#[tokio::test]
async fn a_coordinator_that_stays_away_ends_the_worker() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let short = RetryPolicy { timeout: Duration::from_millis(200), ..config().coordinator_retry };
    let mut farm = Farm::simulated(
        WorkerConfig { coordinator_retry: short, ..config() },
        sim_config(),
        vec![assignment(0, server.address)],
    );
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    farm.coordinator.take().unwrap().kill();
    let error =
        tokio::time::timeout(DEADLINE, farm.worker).await.expect("the worker ends").unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::CoordinatorGone { .. }), "{error}");
    assert_eq!((farm.open_left)(), 0);
}

#[tokio::test]
async fn a_worker_may_be_stopped_before_it_found_a_coordinator() {
    let server = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let address = server.address.to_string();
    server.kill();
    let id = Id::new("e").unwrap();
    let stop = CancellationToken::new();
    let worker = run(
        config(),
        id,
        Arc::new(SimulatedBrowser::new(sim_config())),
        Arc::new(TcpConnector::default()),
        &address,
        stop.clone(),
    );
    stop.cancel();
    assert_eq!(tokio::time::timeout(DEADLINE, worker).await.unwrap().unwrap(), WorkerSummary::default());
}
