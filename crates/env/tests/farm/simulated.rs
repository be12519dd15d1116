//! A worker with a simulated browser: what it reports, and what it does when the coordinator or the
//! policy disappears.

mod ends;
mod leaving;
mod limits;
mod replay;

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

/// A scorer gets an answer to each of its queries: nothing is there.
#[tokio::test]
async fn a_simulated_page_finds_nothing_of_what_a_scorer_looks_up() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    let server = policy.serve(0);
    let mut scored = assignment(0, server.address);
    let url = "http://api.test/orders".to_owned();
    scored.checks.queries = vec![
        FinalQuery::Page { part: PagePart::Cookie { name: "order".into() }, host: None },
        FinalQuery::Http(HttpQuery { method: HttpMethod::Get, url, body: None, pointer: None }),
        FinalQuery::Command { hook: "ordered".into() },
    ];
    let queries = scored.checks.queries.clone();
    let farm = Farm::simulated(config(), sim_config(), vec![scored, assignment(1, server.address)]);
    farm.finished(2).await;
    farm.book.read(|book| {
        let findings = |index| book.ending(&name(index)).unwrap().evidence.clone().unwrap().findings_json;
        let found = Finding::list_of_json(&findings(0).unwrap()).unwrap();
        let values: Vec<String> =
            found.iter().map(|finding| finding.result.as_ref().unwrap().to_string()).collect();
        assert_eq!(values, ["null", r#"{"status":404}"#, r#"{"exit":1}"#]);
        assert_eq!(found.into_iter().map(|finding| finding.query).collect::<Vec<_>>(), queries);
        assert_eq!(findings(1), None, "a task without queries has no findings");
    });
    farm.end().await;
}

#[tokio::test]
async fn observers_get_the_first_page_while_the_policy_thinks() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(0));
    let server = policy.serve(0);
    let address = server.address;
    let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, address)]);
    let renewed_since = async |times: u32| {
        farm.book.until("leases are renewed", |book| book.renewed >= times + 2).await;
        farm.book.read(|book| book.renewed)
    };
    policy.notes.until("a step is requested", |notes| notes.observed.contains(&(name(0), 0))).await;
    let renewed = renewed_since(0).await;
    farm.book.read(|book| assert!(book.shown.is_empty(), "no observer looks"));
    farm.book.change(|book| book.watched = true);
    renewed_since(renewed).await;
    farm.book.change(|book| book.queue.push_back(assignment(1, address)));
    farm.book.until("the second one is shown", |book| book.shown.contains_key(&name(1))).await;
    let port = server.kill();
    policy.notes.change(|notes| notes.pause_from = None);
    let _back = policy.serve(port);
    farm.finished(2).await;
    farm.book.read(|book| {
        let screenshots: Vec<_> = book.shown.iter().collect();
        let first = &book.recorded(&name(1))[0].observation.screenshot.bytes;
        assert_eq!(screenshots, [(&name(1), first)], "it is that of the first step");
    });
    assert_eq!(farm.end().await.acknowledged, 2);
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
    // Its heartbeat finds that the coordinator does not know it; trajectories do not wait for that.
    farm.book.until("the worker registered again", |book| book.registered == 2).await;
    farm.book.read(|book| {
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
