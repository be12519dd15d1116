//! Weights that give session after session logits that are not finite.

use furrow_model::backend::WeightsError;

use super::alone::{alone, policies, script};
use super::harness::{ScriptedSession, sim_settings};
use super::*;
use crate::engine::breaker::Breaker;
use crate::sim::{SimBackend, SimWeights};

const GOOD: SimWeights = SimWeights { text: 0, vision: 0, overflow: false };
const BROKEN: SimWeights = SimWeights { overflow: true, ..GOOD };

fn scripts(count: u64) -> Vec<SessionScript> {
    (0..count).map(|index| script(policies()[index as usize % 5], index / 4, index % 4)).collect()
}

fn started(version: i32, on_swap: OnSwap, scripts: &[SessionScript]) -> EngineHarness {
    let swaps = SwapSettings { on_swap, ..SwapSettings::default() };
    let settings = EngineSettings { version: PolicyVersion(version), swaps, ..settings() };
    EngineHarness::new(settings, capacity(), scripts.to_vec())
}

/// New weights, which take effect in the next iteration.
fn swap(harness: &mut EngineHarness, version: i32, weights: SimWeights) {
    let (done, mut answer) = oneshot::channel::<Result<SwapReport, WeightsError>>();
    let new =
        NewWeights { version: PolicyVersion(version), vision: [0; 32], weights: Box::new(weights), done };
    harness.engine.apply(EngineEvent::Weights(Box::new(new)));
    harness.step();
    assert!(answer.try_recv().unwrap().is_ok());
}

/// Lets these sessions act until they are over or `is_enough`.
fn run(harness: &mut EngineHarness, sessions: std::ops::Range<usize>, is_enough: impl Fn(&Engine) -> bool) {
    for _ in 0..10_000 {
        if harness.actors[sessions.clone()].iter().all(ScriptedSession::is_over) || is_enough(&harness.engine)
        {
            return;
        }
        sessions.clone().for_each(|index| harness.act(index));
        harness.step();
    }
    panic!("the sessions did not end");
}

fn refuses(engine: &Engine) -> bool {
    engine.refusal().is_some()
}

fn is_lost(engine: &Engine) -> bool {
    engine.lost().is_some()
}

/// Ends a session that was at work, and returns whether it can continue elsewhere.
fn take_fault(actor: &mut ScriptedSession) -> bool {
    match actor.fault.take() {
        Some(EngineFault::NotFinite { .. }) => false,
        Some(EngineFault::Broken(broken)) => {
            assert_eq!((broken.version, broken.sessions), (PolicyVersion(2), 4));
            actor.lose();
            true
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn broken_weights_cost_three_sessions_and_the_others_continue_on_the_next() {
    let scripts = scripts(12);
    let mut harness = started(1, OnSwap::Keep, &scripts);
    for _ in 0..40 {
        (0..12).for_each(|index| harness.act(index));
        harness.step();
    }
    let reported = harness.engine.broken_version();
    assert_eq!(*reported.borrow(), None);
    swap(&mut harness, 2, BROKEN);
    run(&mut harness, 0..12, refuses);
    assert_eq!(reported.borrow().unwrap().version, PolicyVersion(2));
    assert!(harness.engine.sessions.is_empty(), "it keeps nothing of broken weights");
    // What each of them does next is refused in the same way.
    (0..12).for_each(|index| harness.act(index));
    harness.step();
    let (opened, mut answer) = oneshot::channel();
    let life = CancellationToken::new();
    harness.engine.apply(EngineEvent::Open { session: SessionId(99), rebuilt: false, life, opened });
    assert!(matches!(answer.try_recv().unwrap(), Err(EngineFault::Broken(_))));

    let has_ended = |actor: &ScriptedSession| actor.fault.is_none();
    assert!(!harness.actors.iter().all(has_ended));
    let mut lost = Vec::new();
    for (index, actor) in harness.actors.iter_mut().enumerate() {
        if actor.fault.is_some() && !take_fault(actor) {
            lost.push(index);
        }
    }
    assert_eq!(lost.len(), 3, "{lost:?}");
    // Those are over: a trajectory whose session is at fault is not continued.
    for index in &lost {
        harness.actors[*index].fault = Some(EngineFault::Gone);
    }
    swap(&mut harness, 3, GOOD);
    assert_eq!(*reported.borrow(), None);
    harness.run_to_end();
    let tokens = harness.tokens();
    for (index, script) in scripts.iter().enumerate().filter(|(index, _)| !lost.contains(index)) {
        assert_eq!(tokens[index], alone(script), "session {index}");
    }
    (0..12).for_each(|index| harness.act(index));
    harness.step();
    harness.engine.assert_empty();
}

#[test]
fn sessions_that_finish_on_older_weights_continue() {
    let scripts = scripts(10);
    let mut harness = started(1, OnSwap::FinishOnOld, &scripts);
    for _ in 0..3 {
        (0..3).for_each(|index| harness.act(index));
        harness.step();
    }
    swap(&mut harness, 2, BROKEN);
    run(&mut harness, 3..10, refuses);
    assert!(refuses(&harness.engine));
    run(&mut harness, 0..3, |_| false);
    for (index, script) in scripts[..3].iter().enumerate() {
        assert_eq!((&harness.actors[index].fault, &harness.tokens()[index]), (&None, &alone(script)));
    }
}

#[test]
fn a_second_broken_version_and_a_broken_checkpoint_end_the_engine() {
    let mut harness = started(1, OnSwap::Keep, &scripts(8));
    swap(&mut harness, 2, BROKEN);
    run(&mut harness, 0..8, refuses);
    assert_eq!(harness.engine.lost(), None);
    harness.actors.iter_mut().for_each(|actor| {
        actor.fault = None;
        actor.lose();
    });
    swap(&mut harness, 3, BROKEN);
    run(&mut harness, 0..8, is_lost);
    let lost = harness.engine.lost().unwrap().to_string();
    let both = "the logits of 4 sessions on weights of version 3 were not finite within 60 s, after the logits of \
                4 sessions on weights of version 2 were not finite within 60 s";
    assert!(lost.contains(both) && lost.contains("the GPU"), "{lost}");

    let mut harness = started(0, OnSwap::Keep, &scripts(8));
    let device = SimBackend::with_weights(sim_settings(capacity()), BROKEN);
    let settings = EngineSettings { version: PolicyVersion(0), ..settings() };
    harness.engine = Engine::new(Box::new(device), settings).unwrap();
    run(&mut harness, 0..8, is_lost);
    let lost = harness.engine.lost().unwrap().to_string();
    assert!(lost.contains("version 0") && lost.contains("the job's own checkpoint"), "{lost}");
}

#[test]
fn few_sessions_and_those_of_an_earlier_minute_break_nothing() {
    let (time, hand) = TimeSource::manual(0);
    let mut breaker = Breaker::new(time);
    let [one, two] = [1, 2].map(PolicyVersion);
    let mut record = |version| breaker.record(version);
    assert!(![one, one, one, two, two, two].map(&mut record).contains(&true));
    hand.advance(60_000_000);
    assert!(![one, one].map(&mut record).contains(&true));
    hand.advance(59_999_999);
    assert!(!record(one));
    assert!(record(one), "the fourth within a minute");
    assert!(record(one), "and all after it");
    assert!(!record(two));
}
