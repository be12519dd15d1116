//! New weights while sessions run: every token is of the version it is tagged with, and no session
//! is lost.

use std::collections::BTreeSet;

use furrow_model::backend::IncomingWeights;
use furrow_rollout::PolicyVersion;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{mpsc, oneshot};

use super::alone::{alone, script};
use super::*;
use crate::sim::SimWeights;

type SwapReceiver = oneshot::Receiver<Result<SwapReport, furrow_model::backend::WeightsError>>;

fn swapping(on_swap: OnSwap, old_versions_max: u32) -> EngineSettings {
    EngineSettings {
        swaps: SwapSettings { on_swap, old_versions_max, ..SwapSettings::default() },
        ..settings()
    }
}

/// Weights of a version, whose texts differ from those of other versions; every third version has
/// another encoder.
fn weights_of_version(version: i32) -> (SimWeights, [u8; 32]) {
    let vision = version / 3;
    let weights = SimWeights { text: version as u64 * 0x9e37, vision: vision as u64, overflow: false };
    // The engine starts with the encoder whose hash is all zeros.
    (weights, [vision as u8; 32])
}

fn send(harness: &mut EngineHarness, version: i32) -> SwapReceiver {
    let (weights, vision) = weights_of_version(version);
    let (done, answer) = oneshot::channel();
    let new = NewWeights { version: PolicyVersion(version), vision, weights: Box::new(weights), done };
    harness.engine.apply(EngineEvent::Weights(Box::new(new)));
    answer
}

fn swap_result(mut answer: SwapReceiver) -> Result<SwapReport, String> {
    answer.try_recv().expect("it was answered").map_err(|why| why.to_string())
}

fn versions(harness: &EngineHarness, index: usize) -> Vec<Vec<i32>> {
    harness.actors[index].replies.iter().map(|reply| reply.columns.policy_versions.clone()).collect()
}

fn scripts(count: u64) -> Vec<SessionScript> {
    let keeps =
        [ContextPolicy::Append, ContextPolicy::LastImage, ContextPolicy::Window(2), ContextPolicy::Fresh];
    (0..count).map(|index| script(keeps[index as usize % 4], index / 4, index % 4)).collect()
}

/// The same session on one version's weights from its beginning.
fn alone_on(script: &SessionScript, version: i32) -> Vec<Vec<u32>> {
    let mut harness = EngineHarness::new(
        EngineSettings { snapshot_slots: 0, ..settings() },
        capacity(),
        vec![script.clone()],
    );
    let swapped = send(&mut harness, version);
    harness.step();
    assert!(swap_result(swapped).is_ok());
    harness.run_to_end();
    harness.tokens().remove(0)
}

#[test]
fn a_hundred_swaps_under_load_lose_no_session_and_versions_only_grow() {
    for seed in 0..3 {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let scripts: Vec<SessionScript> =
            scripts(48).into_iter().map(|script| SessionScript { steps: 8, ..script }).collect();
        let mut harness = EngineHarness::new(swapping(OnSwap::Keep, 2), capacity(), scripts);
        let mut version = 1;
        let mut last = None;
        while !harness.actors.iter().all(harness::ScriptedSession::is_over) {
            let index = random.random_range(0..48);
            harness.act(index);
            if random.random_range(0..4) == 0 {
                harness.step();
            }
            if version < 101 && random.random_range(0..40) == 0 {
                version += 1;
                last.replace(send(&mut harness, version)).map(swap_result);
                harness.step();
            }
        }
        assert_eq!(version, 101, "seed {seed}: too few exchanges");
        assert!(swap_result(last.unwrap()).is_ok());
        assert_eq!(harness.engine.versions_kept(), BTreeSet::from([PolicyVersion(101)]), "seed {seed}");
        let mut mixed = 0;
        for (index, actor) in harness.actors.iter().enumerate() {
            assert_eq!(actor.fault, None, "seed {seed}: session {index} was lost");
            let of_session: Vec<i32> = versions(&harness, index).concat();
            assert!(of_session.is_sorted(), "seed {seed}: session {index} went back: {of_session:?}");
            for reply in &actor.replies {
                // A forced token is tagged when it joins the reply, which can be before anything
                // runs.
                let columns = &reply.columns;
                let sampled =
                    columns.policy_versions.iter().zip(&columns.mask).filter(|(_, sampled)| **sampled);
                let sampled: Vec<i32> = sampled.map(|(version, _)| *version).collect();
                let least = sampled.iter().min().copied().unwrap_or(i32::MAX);
                assert!(
                    reply.state_version_min.0 <= least,
                    "a state is not newer than the tokens sampled from it"
                );
                mixed += usize::from(sampled.iter().any(|version| *version > least));
            }
        }
        assert!(mixed > 0, "seed {seed}: no exchange happened during a reply");
        (0..48).for_each(|index| harness.act(index));
        harness.engine.assert_empty();
    }
}

/// A session that begins after an exchange uses nothing of older weights: neither siblings' states
/// nor cached tiles.
#[test]
fn a_session_begun_after_a_swap_gets_what_the_new_weights_alone_give() {
    for version in [2, 3, 7] {
        let old = scripts(8);
        // The same tasks and pages again: their states and tiles are cached from the old weights.
        let mut harness =
            EngineHarness::new(swapping(OnSwap::Keep, 2), capacity(), [old.clone(), old.clone()].concat());
        while !harness.actors[..8].iter().all(harness::ScriptedSession::is_over) {
            (0..8).for_each(|index| harness.act(index));
            harness.step();
        }
        let swapped = send(&mut harness, version);
        harness.run_to_end();
        assert!(swap_result(swapped).is_ok());
        for (index, script) in old.iter().enumerate() {
            assert_eq!(harness.tokens()[index], alone(script), "session {index} ended before");
            assert_eq!(
                harness.tokens()[8 + index],
                alone_on(script, version),
                "session {index} under version {version}"
            );
            let reply = &harness.actors[8 + index].replies[0];
            assert_eq!(reply.state_version_min, PolicyVersion(version));
        }
    }
}

#[test]
fn trajectories_that_finish_on_old_weights_never_see_new_ones() {
    for seed in 0..3 {
        let mut random = ChaCha12Rng::seed_from_u64(100 + seed);
        let scripts = scripts(32);
        let mut harness = EngineHarness::new(swapping(OnSwap::FinishOnOld, 2), capacity(), scripts.clone());
        let mut version = 1;
        let mut kept_most = 0;
        while !harness.actors.iter().all(harness::ScriptedSession::is_over) {
            // A few at a time, so that trajectories end and begin while versions arrive.
            let open: Vec<usize> =
                (0..32).filter(|index| !harness.actors[*index].is_over()).take(5).collect();
            for index in 0..32 {
                if harness.actors[index].is_over() {
                    harness.act(index);
                }
            }
            harness.act(open[random.random_range(0..open.len())]);
            harness.step();
            if version < 60 && random.random_range(0..8) == 0 {
                version += 1;
                drop(send(&mut harness, version));
            }
            kept_most = kept_most.max(harness.engine.versions_kept().len());
        }
        // The newest, and two that trajectories finish on; a fourth waits.
        assert_eq!(kept_most, 3, "seed {seed}");
        let mut versions_run = BTreeSet::new();
        for (index, script) in scripts.iter().enumerate() {
            let of_session: BTreeSet<i32> = versions(&harness, index).concat().into_iter().collect();
            assert_eq!(of_session.len(), 1, "seed {seed}: session {index} ran on {of_session:?}");
            let version = *of_session.first().unwrap();
            let want = if version == 1 { alone(script) } else { alone_on(script, version) };
            assert_eq!(harness.tokens()[index], want, "seed {seed}: session {index} on version {version}");
            versions_run.insert(version);
        }
        assert!(versions_run.len() > 3, "seed {seed}: too few versions ran: {versions_run:?}");
        (0..32).for_each(|index| harness.act(index));
        harness.step();
        assert_eq!(harness.engine.versions_kept().len(), 1, "old weights are retired");
        harness.engine.assert_empty();
    }
}

#[test]
fn weights_are_refused_that_are_older_or_of_another_kind_and_those_in_use_stay() {
    let script = script(ContextPolicy::Append, 0, 0);
    let mut harness = EngineHarness::new(swapping(OnSwap::Keep, 2), capacity(), vec![script.clone()]);
    let older = send(&mut harness, 1);
    assert!(swap_result(older).unwrap_err().contains("version 1 is not newer than 1"));
    let (done, answer) = oneshot::channel();
    let stranger: IncomingWeights = Box::new("no weights at all");
    let new = NewWeights { version: PolicyVersion(2), vision: [0; 32], weights: stranger, done };
    harness.engine.apply(EngineEvent::Weights(Box::new(new)));
    harness.step();
    assert!(swap_result(answer).unwrap_err().contains("takes simulated weights"));
    harness.run_to_end();
    assert_eq!(harness.tokens()[0], alone(&script));
    assert_eq!(versions(&harness, 0).concat().iter().max(), Some(&1));
}

#[test]
fn waiting_weights_are_replaced_by_newer_ones_and_old_ones_go_to_the_drop_queue() {
    let mut harness = EngineHarness::new(swapping(OnSwap::FinishOnOld, 0), capacity(), scripts(1));
    let (drop_queue, mut thrown) = mpsc::channel(4);
    harness.engine = harness.engine.retire_weights_to(drop_queue);
    harness.act(0);
    assert_eq!(harness.engine.pinned(SessionId(1)), Some(PolicyVersion(1)));
    let waits = send(&mut harness, 2);
    harness.step();
    let newer = send(&mut harness, 3);
    assert!(swap_result(waits).unwrap_err().contains("version 3 replaced it before it took effect"));
    assert!(thrown.try_recv().is_err(), "a second old version waits while sessions are pinned to the first");
    harness.run_to_end();
    harness.act(0);
    harness.step();
    let swapped = swap_result(newer).unwrap();
    assert_eq!((swapped.sessions, swapped.old_versions), (0, 0));
    assert!(
        thrown
            .try_recv()
            .is_ok_and(|old| old.downcast::<SimWeights>().is_ok_and(|old| *old == SimWeights::default()))
    );
}
