//! A worker in air: what it reports, and what it does when the coordinator or the policy goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use furrow_env::sim::{Air, Faults, SimConfig};
use furrow_env::{Retry, Room, Stage, StageError, Stages, Summary, WorkerConfig, WorkerError, run};
use furrow_rollout::*;
use furrow_telemetry::{SlotUse, figures};
use furrow_wire::Tcp;
use tokio_util::sync::CancellationToken;

use crate::farm::*;
use crate::standin::*;

#[tokio::test]
async fn every_trajectory_is_reported_whole() {
    let policy = Policy::new(Says::Click);
    let server = policy.serve(0);
    let farm = Farm::in_air(config(), air(), (0..7).map(|n| assignment(n, server.address)).collect());
    farm.finished(7).await;
    farm.book.read(|book| {
        for index in 0..7 {
            let (ending, steps) = (book.ending(&name(index)).unwrap(), book.recorded(&name(index)));
            assert_eq!((ending.end, ending.steps, steps.len()), (End::Done, 4, 4));
            assert_eq!(ending.goal, "Click the button 4 times.");
            let evidence = ending.evidence.as_ref().unwrap();
            assert_eq!(evidence.probe_json.as_deref(), Some(r#"{"done":true,"reward":1}"#));
            assert_eq!((evidence.title.as_deref(), &evidence.answer), (Some("0 clicks to go"), &None));
            assert!(evidence.screenshot.as_ref().unwrap().starts_with(b"\x89PNG"));
            assert_eq!(
                (ending.environment.worker.as_str(), ending.environment.browser.as_str()),
                ("e", "air/1")
            );
            for (number, step) in steps.iter().enumerate() {
                assert_eq!((step.step as usize, step.outcome.name), (number, OutcomeName::Ok));
                assert_eq!(step.observation.title, format!("{} clicks to go", 4 - number));
                assert_eq!(furrow_wire::decode_trace(&step.trace).unwrap(), trace(step.step));
            }
            every_microsecond_has_a_cause(&steps, &ending);
        }
    });
    // Close goes out beside the end: it is waited for, not raced.
    policy.notes.until("all sessions closed", |notes| notes.closed == 7).await;
    policy.notes.read(|notes| assert!(notes.opened.iter().all(|(_, past)| *past == 0), "{:?}", notes.opened));
    let book = farm.book.clone();
    assert_eq!(farm.end().await, Summary { acknowledged: 7, abandoned: 0, cut_off: 0 });
    book.read(|book| assert_eq!((book.left, book.registered), (1, 1)));
}

/// One way to end, and what must be reported of it.
struct Case {
    says: Says,
    air: SimConfig,
    task: fn(&mut Task),
    end: End,
    steps: u32,
    outcome: Option<OutcomeName>,
    has_evidence: bool,
    reason: &'static str,
}

fn case(says: Says, end: End, steps: u32) -> Case {
    Case { says, air: air(), task: |_| {}, end, steps, outcome: None, has_evidence: true, reason: "" }
}

fn goto(url: &str) -> Says {
    Says::Act(Action::Goto { url: url.into() })
}

#[tokio::test]
async fn every_end_has_its_name() {
    use OutcomeName::*;
    let fault = |crash, hang, death| SimConfig { faults: Faults { crash, hang, death }, ..air() };
    let farms = SimConfig { settle: Duration::from_secs(3600), ..air() };
    let cases = [
        case(Says::Click, End::Done, 4),
        Case {
            outcome: Some(Answered),
            ..case(Says::Act(Action::Answer { content: "42".into() }), End::Answered, 1)
        },
        Case {
            outcome: Some(InvalidAction),
            reason: "3 replies in a row",
            ..case(Says::Nonsense, End::Unparsable, 3)
        },
        Case {
            outcome: Some(OffList),
            reason: "other.test",
            ..case(goto("http://other.test/"), End::OffListNavigation, 1)
        },
        Case {
            outcome: Some(OffList),
            ..case(goto("http://127.0.0.1:9222/json"), End::OffListNavigation, 1)
        },
        Case { outcome: Some(OffList), ..case(goto("file:///etc/passwd"), End::OffListNavigation, 1) },
        Case { outcome: Some(Ok), ..case(goto("http://air.test/page"), End::MaxSteps, 20) },
        Case { task: |task| task.max_steps = 2, ..case(Says::Click, End::MaxSteps, 2) },
        case(Says::ContextFull, End::ContextFull, 0),
        Case {
            air: fault(0.0, 1.0, 0.0),
            outcome: Some(PageHang),
            reason: "input",
            ..case(Says::Click, End::PageHang, 1)
        },
        Case {
            air: fault(1.0, 0.0, 0.0),
            outcome: Some(PageCrash),
            has_evidence: false,
            ..case(Says::Click, End::PageCrash, 1)
        },
        Case {
            air: fault(0.0, 0.0, 1.0),
            outcome: Some(BrowserDead),
            has_evidence: false,
            ..case(Says::Click, End::BrowserDead, 1)
        },
        Case { has_evidence: false, reason: "not a number", ..case(Says::Fails, End::PolicyFault, 0) },
        Case {
            air: farms,
            task: |task| task.time_limit_millis = 50,
            has_evidence: false,
            reason: "time limit of 50 ms",
            ..case(Says::Click, End::Cancelled, 0)
        },
        Case {
            task: |task| task.allow_hosts = vec!["10.0.0.1".into()],
            has_evidence: false,
            reason: "10.0.0.1",
            ..case(Says::Click, End::EnvCrash, 0)
        },
    ];
    for case in cases {
        let policy = Policy::new(case.says.clone()).serve(0);
        let mut assigned = assignment(0, policy.address);
        (case.task)(&mut assigned.task);
        let farm = Farm::in_air(config(), case.air, vec![assigned]);
        farm.finished(1).await;
        let (ending, steps) =
            farm.book.read(|book| (book.ending(&name(0)).unwrap(), book.recorded(&name(0))));
        let what = format!("{:?} ended {:?}: {}", case.says, ending.end, ending.reason);
        assert_eq!(
            (ending.end, ending.steps, steps.len() as u32),
            (case.end, case.steps, case.steps),
            "{what}"
        );
        assert_eq!(ending.evidence.is_some(), case.has_evidence, "{what}");
        assert!(ending.reason.contains(case.reason), "{what}");
        if let Some(outcome) = case.outcome {
            assert_eq!(steps.last().unwrap().outcome.name, outcome, "{what}");
        }
        let answer = ending.evidence.and_then(|evidence| evidence.answer);
        assert_eq!(answer.as_deref(), (case.end == End::Answered).then_some("42"), "{what}");
        assert_eq!(farm.end().await.acknowledged, 1, "{what}");
    }
}

#[tokio::test]
async fn a_session_is_rebuilt_on_another_policy_worker() {
    let (first, second) = (Policy::new(Says::Click), Policy::new(Says::Click));
    first.notes.change(|notes| notes.hold_from = Some(2));
    let (server, other) = (first.serve(0), second.serve(0));
    let farm = Farm::in_air(config(), air(), vec![assignment(0, server.address)]);
    first.notes.until("step 2 is asked", |notes| notes.seen.contains(&(name(0), 2))).await;
    server.kill();
    farm.book.change(|book| book.moves.insert(name(0), other.address.to_string()));
    farm.finished(1).await;
    second.notes.read(|notes| {
        assert_eq!(notes.opened, [(name(0), 2)]);
        let past: Vec<_> =
            notes.past.iter().map(|(step, _, outcome)| (*step, outcome.as_ref().map(|o| o.name))).collect();
        assert_eq!(past, [(0, None), (1, Some(OutcomeName::Ok))]);
        assert!(notes.past.iter().all(|(_, bytes, _)| *bytes > 2000), "the screenshots came along");
        assert_eq!(
            notes.seen,
            [(name(0), 2), (name(0), 3)],
            "the unanswered step is asked again, and no other"
        );
    });
    farm.book.read(|book| assert_eq!(book.recorded(&name(0)).len(), 4));
    assert_eq!(farm.end().await.acknowledged, 1);
}

/// The old worker still answers keepalives but will never reply: the move alone must be enough, whatever is waited for.
#[tokio::test]
async fn a_move_is_heard_while_a_policy_is_silent() {
    for says in [Says::Silence, Says::NothingAtAll] {
        let (first, second) = (Policy::new(says), Policy::new(Says::Click));
        let (server, other) = (first.serve(0), second.serve(0));
        let farm = Farm::in_air(config(), air(), vec![assignment(0, server.address)]);
        first.notes.until("it is silent", |notes| notes.silent).await;
        farm.book.change(|book| book.moves.insert(name(0), other.address.to_string()));
        farm.finished(1).await;
        assert_eq!(farm.end().await.acknowledged, 1);
    }
}

#[tokio::test]
async fn a_policy_worker_that_comes_back_is_found_again() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::in_air(config(), air(), vec![assignment(0, server.address)]);
    policy.notes.until("step 1 is asked", |notes| notes.seen.len() == 2).await;
    let port = server.kill();
    policy.notes.change(|notes| notes.hold_from = None);
    let _back = policy.serve(port);
    farm.finished(1).await;
    policy.notes.read(|notes| assert_eq!(notes.opened, [(name(0), 0), (name(0), 1)]));
    assert_eq!(farm.end().await.acknowledged, 1);
}

#[tokio::test]
async fn no_policy_worker_for_too_long_is_a_policy_fault() {
    let server = Policy::new(Says::Click).serve(0);
    let address = server.address;
    server.kill();
    let short = Retry { patience: Duration::from_millis(100), ..config().policy_retry };
    let farm =
        Farm::in_air(WorkerConfig { policy_retry: short, ..config() }, air(), vec![assignment(0, address)]);
    farm.finished(1).await;
    let ending = farm.book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (End::PolicyFault, 0));
    assert!(ending.reason.starts_with("no policy worker for"), "{}", ending.reason);
    assert_eq!(farm.end().await.acknowledged, 1);
}

#[tokio::test]
async fn a_coordinator_that_comes_back_gets_the_same_trajectory() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(2));
    let server = policy.serve(0);
    let mut farm =
        Farm::in_air(config(), air(), vec![assignment(0, server.address), assignment(1, server.address)]);
    policy
        .notes
        .until("both are at step 2", |notes| notes.seen.iter().filter(|(_, step)| *step == 2).count() == 2)
        .await;
    // A step is shown before the one before it is acknowledged: were that reply lost too, nobody would get to step 3 until it is.
    farm.book
        .until("steps 0 and 1 are recorded", |book| {
            (0..2).all(|index| book.recorded(&name(index)).len() == 2)
        })
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let port = farm.coordinator.take().unwrap().kill();
    farm.book.change(|book| book.known = false);
    // Step 2 is answered and its record finds nobody.
    policy.notes.change(|notes| notes.hold_from = None);
    policy
        .notes
        .until("both are at step 3", |notes| notes.seen.iter().filter(|(_, step)| *step == 3).count() == 2)
        .await;
    farm.coordinator = Some(Coordinator(farm.book.clone()).serve(port));
    farm.finished(2).await;
    farm.book.read(|book| {
        assert_eq!(book.registered, 2);
        for index in 0..2 {
            assert_eq!(
                (book.ending(&name(index)).unwrap().end, book.recorded(&name(index)).len()),
                (End::Done, 4)
            );
        }
    });
    assert_eq!(farm.end().await, Summary { acknowledged: 2, abandoned: 0, cut_off: 0 });
}

#[tokio::test]
async fn a_reply_that_was_lost_is_asked_for_with_the_same_bytes() {
    let policy = Policy::new(Says::Click).serve(0);
    let farm = Farm::in_air(config(), air(), vec![]);
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
    // The stand-in refuses other bytes under the same key; that they all came through means they were the same.
    book.read(|book| {
        let want: Vec<_> =
            [0, 0, 0, 1, 2, 2, 2, 3].iter().map(|step| format!("record_step {step}")).collect();
        assert_eq!(book.calls[..8], want);
        assert_eq!((book.recorded(&name(0)).len(), book.calls.len()), (4, 11));
    });
}

#[tokio::test]
async fn a_step_that_is_refused_ends_the_trajectory_after_the_last_durable_one() {
    let policy = Policy::new(Says::Click).serve(0);
    let farm = Farm::in_air(config(), air(), vec![]);
    farm.book.change(|book| {
        book.refuse_step = Some(2);
        book.queue.push_back(assignment(0, policy.address));
    });
    farm.finished(1).await;
    let ending = farm.book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (End::EnvCrash, 2));
    assert!(ending.reason.contains("the record is wrong"), "{}", ending.reason);
    assert_eq!(farm.end().await.acknowledged, 1);
}

/// Air that is thin: every stage that is opened uses up some of it.
struct Thin {
    air: Air,
    room: Arc<AtomicU32>,
}

#[async_trait]
impl Stages for Thin {
    fn environment(&self, task: Option<&Task>) -> EnvironmentFingerprint {
        self.air.environment(task)
    }

    fn room(&self) -> Room {
        Room { stages: self.room.load(Ordering::SeqCst), available_bytes: 1, reserve_bytes: 2 }
    }

    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Stage>, StageError> {
        self.room.fetch_sub(1, Ordering::SeqCst);
        self.air.open(assignment).await
    }

    async fn close(&self) {
        self.air.close().await;
    }
}

#[tokio::test]
async fn nothing_is_taken_up_while_memory_is_short() {
    let policy = Policy::new(Says::Click).serve(0);
    let room = Arc::new(AtomicU32::new(0));
    let stages = Arc::new(Thin { air: Air::new(air()), room: room.clone() });
    let waited = || figures().slot_micros.at(SlotUse::Admission).get();
    let before = waited();
    let farm = Farm::start(config(), stages, (0..6).map(|n| assignment(n, policy.address)).collect());
    // The pulse brings the figures up to now: what is waited for shows while it lasts.
    let beats = |most| farm.book.until("the worker lives", move |book| book.beats > most);
    beats(5).await;
    farm.book.read(|book| assert_eq!((book.queue.len(), book.lent.len()), (6, 0)));
    assert!(waited() > before, "three slots wait for memory, and no figure says so");
    // What is leased and not yet open counts: of three free slots two are filled.
    room.store(2, Ordering::SeqCst);
    farm.finished(2).await;
    beats(farm.book.read(|book| book.beats) + 5).await;
    farm.book.read(|book| assert_eq!((book.queue.len(), book.lent.len()), (4, 0), "there was room for two"));
    room.store(100, Ordering::SeqCst);
    farm.finished(6).await;
    assert_eq!(farm.end().await, Summary { acknowledged: 6, abandoned: 0, cut_off: 0 });
}

/// Stages that bring the worker's own code down.
struct Trapdoors;

#[async_trait]
impl Stages for Trapdoors {
    fn environment(&self, _task: Option<&Task>) -> EnvironmentFingerprint {
        EnvironmentFingerprint::default()
    }

    async fn open(&self, _assignment: &Assignment) -> Result<Box<dyn Stage>, StageError> {
        Ok(Box::new(Trapdoor))
    }

    async fn close(&self) {}
}

/// A stage that nobody can stand on.
struct Trapdoor;

#[async_trait]
impl Stage for Trapdoor {
    fn browser(&self) -> &str {
        "trapdoor"
    }

    async fn begin(&mut self) -> Result<Option<String>, StageError> {
        panic!("a panic that a test asked for")
    }

    async fn observe(&mut self) -> Result<Observation, StageError> {
        unreachable!()
    }

    async fn hint(&mut self, _goal: &str, _step: u32) -> Result<Option<Hint>, StageError> {
        unreachable!()
    }

    async fn act(&mut self, _action: &Action) -> Result<Outcome, StageError> {
        unreachable!()
    }

    async fn settle(&mut self, _outcome: Outcome) -> Result<Outcome, StageError> {
        unreachable!()
    }

    async fn probe(&mut self) -> Result<Option<String>, StageError> {
        unreachable!()
    }

    async fn evidence(&mut self) -> Option<Evidence> {
        unreachable!()
    }

    async fn close(self: Box<Self>) {}
}

#[tokio::test]
async fn a_panic_is_one_trajectorys_end_and_the_worker_goes_on() {
    let policy = Policy::new(Says::Click).serve(0);
    let assigned = (0..5).map(|n| assignment(n, policy.address)).collect();
    let farm = Farm::start(config(), Arc::new(Trapdoors), assigned);
    farm.finished(5).await;
    let ending = farm.book.read(|book| book.ending(&name(4)).unwrap());
    assert_eq!((ending.end, ending.steps), (End::EnvCrash, 0));
    assert!(ending.reason.contains("panicked"), "{}", ending.reason);
    assert_eq!(farm.end().await, Summary { acknowledged: 5, abandoned: 0, cut_off: 0 });
}

#[tokio::test]
async fn a_lost_lease_is_dropped_without_a_word() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let farm =
        Farm::in_air(config(), air(), vec![assignment(0, server.address), assignment(1, server.address)]);
    policy
        .notes
        .until("both are at step 1", |notes| notes.seen.iter().filter(|(_, step)| *step == 1).count() == 2)
        .await;
    farm.book.change(|book| book.lent.remove(&name(0)));
    policy.notes.until("the lost one is closed", |notes| notes.closed == 1).await;
    policy.notes.change(|notes| notes.hold_from = None);
    farm.finished(1).await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await, Summary { acknowledged: 1, abandoned: 1, cut_off: 0 });
    book.read(|book| assert!(book.ending(&name(0)).is_none() && book.ending(&name(1)).is_some()));
}

/// Lent anew under a younger token between two renewals: the record is refused and the attempt ends there, though the policy thinks on.
#[tokio::test]
async fn a_stale_token_ends_the_attempt() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::in_air(config(), air(), vec![]);
    // Only the record is refused: renewals go on speaking of the old token as if nothing was.
    farm.book.change(|book| {
        book.lose_replies.insert("record_step 0".into(), u32::MAX);
        book.queue.push_back(assignment(0, server.address));
    });
    farm.book.until("step 0 came", |book| book.calls.len() > 1).await;
    farm.book.change(|book| book.lent.insert(name(0), 99));
    policy.notes.until("the stale one is closed", |notes| notes.closed == 1).await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await, Summary { acknowledged: 0, abandoned: 1, cut_off: 0 });
    book.read(|book| assert!(book.endings.is_empty()));
}

#[tokio::test]
async fn stopping_lets_trajectories_end() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let assigned = (0..5).map(|n| assignment(n, server.address)).collect();
    let farm = Farm::in_air(config(), air(), assigned);
    policy
        .notes
        .until("three are at step 1", |notes| notes.seen.iter().filter(|(_, step)| *step == 1).count() == 3)
        .await;
    farm.stop.cancel();
    policy.notes.change(|notes| notes.hold_from = None);
    let book = farm.book.clone();
    assert_eq!(farm.ended().await, Summary { acknowledged: 3, abandoned: 0, cut_off: 0 });
    book.read(|book| assert_eq!((book.queue.len(), book.endings.len(), book.left), (2, 3, 1)));
}

#[tokio::test]
async fn what_does_not_end_in_time_is_handed_back() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let hurried = WorkerConfig { drain_grace: Duration::from_millis(50), ..config() };
    let farm = Farm::in_air(hurried, air(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.seen.len() == 2).await;
    farm.stop.cancel();
    let book = farm.book.clone();
    assert_eq!(farm.ended().await, Summary { acknowledged: 1, abandoned: 0, cut_off: 0 });
    let ending = book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (End::Cancelled, 1));
    assert!(ending.reason.contains("hands it back"), "{}", ending.reason);
}

#[tokio::test]
async fn what_cannot_even_be_handed_back_is_cut_off() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let millis = Duration::from_millis;
    let hurried = WorkerConfig { drain_grace: millis(20), call_deadline: millis(50), ..config() };
    let mut farm = Farm::in_air(hurried, air(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.seen.len() == 2).await;
    farm.coordinator.take().unwrap().kill();
    farm.stop.cancel();
    assert_eq!(farm.ended().await, Summary { acknowledged: 0, abandoned: 1, cut_off: 1 });
}

/// Timers of a page under virtual time run only while it settles: without that, a page would stand still under a policy that babbles.
#[tokio::test]
async fn a_page_lives_on_after_a_reply_without_an_action() {
    let policy = Policy::new(Says::Nonsense);
    let server = policy.serve(0);
    let settle = Duration::from_millis(30);
    let farm = Farm::in_air(config(), SimConfig { settle, ..air() }, vec![assignment(0, server.address)]);
    farm.finished(1).await;
    farm.book.read(|book| {
        let steps = book.recorded(&name(0));
        assert_eq!(steps.len(), 3);
        for step in steps {
            let micros = step.timing.of(Cause::Settle);
            assert!(micros >= settle.as_micros() as u64, "step {} settled for {micros} us", step.step);
        }
    });
    farm.end().await;
}

#[tokio::test]
async fn a_trajectory_lent_anew_replaces_the_older_attempt() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::in_air(config(), air(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.seen.len() == 2).await;
    // Step 0 is recorded while step 1 is under way: it must be in before it is forgotten.
    farm.book.until("step 0 is recorded", |book| book.recorded(&name(0)).len() == 1).await;
    farm.book.change(|book| {
        book.steps.clear();
        book.queue.push_back(Assignment { token: 50, ..assignment(0, server.address) });
    });
    policy.notes.until("the older one is closed", |notes| notes.closed == 1).await;
    policy.notes.change(|notes| notes.hold_from = None);
    farm.finished(1).await;
    farm.book.read(|book| assert_eq!(book.recorded(&name(0)).len(), 4));
    assert_eq!(farm.end().await, Summary { acknowledged: 1, abandoned: 1, cut_off: 0 });
}

#[tokio::test]
async fn hints_reach_a_policy_that_asks_for_them_and_no_other() {
    for wants_hints in [true, false] {
        let policy = Policy { wants_hints, ..Policy::new(Says::Click) };
        let server = policy.serve(0);
        let farm = Farm::in_air(config(), air(), vec![assignment(0, server.address)]);
        farm.finished(1).await;
        policy.notes.read(|notes| {
            assert_eq!(notes.hints.len(), if wants_hints { 4 } else { 0 });
            assert!(notes.hints.iter().all(|hint| hint.contains(r#""action":"click_element""#)));
        });
        assert_eq!(farm.end().await.acknowledged, 1);
    }
}

#[tokio::test]
async fn a_worker_that_is_not_wanted_says_so() {
    let book = Watched::new(Book {
        refuse_registration: Some("protocol version 1, expected 2".into()),
        ..Book::default()
    });
    let coordinator = Coordinator(book).serve(0);
    let stages = Arc::new(Air::new(air()));
    let address = coordinator.address.to_string();
    let (id, stop) = (Id::new("e").unwrap(), CancellationToken::new());
    let error = run(config(), id, stages, Arc::new(Tcp::default()), &address, stop).await.unwrap_err();
    let told = error.to_string();
    assert!(told.contains(&address) && told.contains("protocol version 1, expected 2"), "{told}");
}

#[tokio::test]
async fn a_coordinator_that_stays_away_ends_the_worker() {
    let policy = Policy::new(Says::Click);
    policy.notes.change(|notes| notes.hold_from = Some(1));
    let server = policy.serve(0);
    let short = Retry { patience: Duration::from_millis(200), ..config().coordinator_retry };
    let mut farm = Farm::in_air(
        WorkerConfig { coordinator_retry: short, ..config() },
        air(),
        vec![assignment(0, server.address)],
    );
    policy.notes.until("it is at step 1", |notes| notes.seen.len() == 2).await;
    farm.coordinator.take().unwrap().kill();
    let error =
        tokio::time::timeout(DEADLINE, farm.worker).await.expect("the worker ends").unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::CoordinatorGone { .. }), "{error}");
    assert_eq!((farm.left)(), 0);
}

#[tokio::test]
async fn a_worker_may_be_stopped_before_it_found_a_coordinator() {
    let server = Policy::new(Says::Click).serve(0);
    let address = server.address.to_string();
    server.kill();
    let (id, stop) = (Id::new("e").unwrap(), CancellationToken::new());
    let worker =
        run(config(), id, Arc::new(Air::new(air())), Arc::new(Tcp::default()), &address, stop.clone());
    stop.cancel();
    assert_eq!(tokio::time::timeout(DEADLINE, worker).await.unwrap().unwrap(), Summary::default());
}
