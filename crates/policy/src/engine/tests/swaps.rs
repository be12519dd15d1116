//! New weights under running sessions: every token is of the version it is tagged with, and nobody is lost.

use std::collections::BTreeSet;

use furrow_model::backend::Incoming;
use furrow_rollout::PolicyVersion;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{mpsc, oneshot};

use super::alone::{alone, script};
use super::*;
use crate::sim::AirWeights;

type Answer = oneshot::Receiver<Result<Swapped, furrow_model::backend::WeightsError>>;

fn swapping(on_swap: OnSwap, old_versions_max: u32) -> Settings {
    Settings { swaps: Swaps { on_swap, old_versions_max, ..Swaps::default() }, ..settings() }
}

/// Weights of a version: other words for the text, and every third time another encoder.
fn air(version: i32) -> (AirWeights, [u8; 32]) {
    let vision = version / 3;
    let weights = AirWeights { text: version as u64 * 0x9e37, vision: vision as u64 };
    // The engine begins with the encoder that is all zeros.
    (weights, [vision as u8; 32])
}

fn send(world: &mut World, version: i32) -> Answer {
    let (weights, vision) = air(version);
    let (done, answer) = oneshot::channel();
    let new = NewWeights { version: PolicyVersion(version), vision, weights: Box::new(weights), done };
    world.engine.apply(Event::Weights(Box::new(new)));
    answer
}

fn told(mut answer: Answer) -> Result<Swapped, String> {
    answer.try_recv().expect("it was answered").map_err(|why| why.to_string())
}

fn versions(world: &World, index: usize) -> Vec<Vec<i32>> {
    world.actors[index].replies.iter().map(|reply| reply.columns.policy_versions.clone()).collect()
}

fn scripts(count: u64) -> Vec<Script> {
    let keeps =
        [ContextPolicy::Append, ContextPolicy::LastImage, ContextPolicy::Window(2), ContextPolicy::Fresh];
    (0..count).map(|index| script(keeps[index as usize % 4], index / 4, index % 4)).collect()
}

/// The same session under one version's weights from its beginning.
fn alone_on(script: &Script, version: i32) -> Vec<Vec<u32>> {
    let mut world = World::new(Settings { snapshot_slots: 0, ..settings() }, room(), vec![script.clone()]);
    let swapped = send(&mut world, version);
    world.step();
    assert!(told(swapped).is_ok());
    world.run_to_end();
    world.tokens().remove(0)
}

#[test]
fn a_hundred_exchanges_under_load_lose_nobody_and_every_version_only_grows() {
    for seed in 0..3 {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let scripts: Vec<Script> =
            scripts(48).into_iter().map(|script| Script { steps: 8, ..script }).collect();
        let mut world = World::new(swapping(OnSwap::Keep, 2), room(), scripts);
        let (mut version, mut last) = (1, None);
        while !world.actors.iter().all(world::Actor::is_over) {
            let index = random.random_range(0..48);
            world.act(index);
            if random.random_range(0..4) == 0 {
                world.step();
            }
            if version < 101 && random.random_range(0..40) == 0 {
                version += 1;
                last.replace(send(&mut world, version)).map(told);
                world.step();
            }
        }
        assert_eq!(version, 101, "seed {seed}: too few exchanges to tell");
        assert!(told(last.unwrap()).is_ok());
        assert_eq!(world.engine.versions_held(), BTreeSet::from([PolicyVersion(101)]), "seed {seed}");
        let mut mixed = 0;
        for (index, actor) in world.actors.iter().enumerate() {
            assert_eq!(actor.fault, None, "seed {seed}: session {index} was lost");
            let of_session: Vec<i32> = versions(&world, index).concat();
            assert!(of_session.is_sorted(), "seed {seed}: session {index} went back: {of_session:?}");
            for reply in &actor.replies {
                // A forced token is tagged where it joins the reply, perhaps before anything ran.
                let columns = &reply.columns;
                let drawn = columns.policy_versions.iter().zip(&columns.mask).filter(|(_, drawn)| **drawn);
                let drawn: Vec<i32> = drawn.map(|(version, _)| *version).collect();
                let least = drawn.iter().min().copied().unwrap_or(i32::MAX);
                assert!(
                    reply.state_version_min.0 <= least,
                    "a state is no younger than what was drawn from it"
                );
                mixed += usize::from(drawn.iter().any(|version| *version > least));
            }
        }
        assert!(mixed > 0, "seed {seed}: no exchange came in the middle of a reply");
        (0..48).for_each(|index| world.act(index));
        world.engine.assert_empty();
    }
}

/// A session that begins after an exchange has nothing of older weights: not of its siblings' states, not of tiles seen before.
#[test]
fn who_begins_after_an_exchange_gets_what_the_new_weights_alone_give() {
    for version in [2, 3, 7] {
        let old = scripts(8);
        // The same tasks and pages again: their states and tiles lie ready under the old weights.
        let mut world = World::new(swapping(OnSwap::Keep, 2), room(), [old.clone(), old.clone()].concat());
        while !world.actors[..8].iter().all(world::Actor::is_over) {
            (0..8).for_each(|index| world.act(index));
            world.step();
        }
        let swapped = send(&mut world, version);
        world.run_to_end();
        assert!(told(swapped).is_ok());
        for (index, script) in old.iter().enumerate() {
            assert_eq!(world.tokens()[index], alone(script), "session {index} ended before");
            assert_eq!(
                world.tokens()[8 + index],
                alone_on(script, version),
                "session {index} under version {version}"
            );
            let reply = &world.actors[8 + index].replies[0];
            assert_eq!(reply.state_version_min, PolicyVersion(version));
        }
    }
}

#[test]
fn trajectories_that_finish_on_old_weights_never_see_new_ones() {
    for seed in 0..3 {
        let mut random = ChaCha12Rng::seed_from_u64(100 + seed);
        let scripts = scripts(32);
        let mut world = World::new(swapping(OnSwap::FinishOnOld, 2), room(), scripts.clone());
        let mut version = 1;
        let mut held_most = 0;
        while !world.actors.iter().all(world::Actor::is_over) {
            // A few at a time, so that trajectories end and begin while versions come.
            let open: Vec<usize> = (0..32).filter(|index| !world.actors[*index].is_over()).take(5).collect();
            for index in 0..32 {
                if world.actors[index].is_over() {
                    world.act(index);
                }
            }
            world.act(open[random.random_range(0..open.len())]);
            world.step();
            if version < 60 && random.random_range(0..8) == 0 {
                version += 1;
                drop(send(&mut world, version));
            }
            held_most = held_most.max(world.engine.versions_held().len());
        }
        // The newest, and two that are finished on; a fourth waits outside.
        assert_eq!(held_most, 3, "seed {seed}");
        let mut seen = BTreeSet::new();
        for (index, script) in scripts.iter().enumerate() {
            let of_session: BTreeSet<i32> = versions(&world, index).concat().into_iter().collect();
            assert_eq!(of_session.len(), 1, "seed {seed}: session {index} ran on {of_session:?}");
            let version = *of_session.first().unwrap();
            let want = if version == 1 { alone(script) } else { alone_on(script, version) };
            assert_eq!(world.tokens()[index], want, "seed {seed}: session {index} on version {version}");
            seen.insert(version);
        }
        assert!(seen.len() > 3, "seed {seed}: {seen:?} are too few versions to tell");
        (0..32).for_each(|index| world.act(index));
        world.step();
        assert_eq!(world.engine.versions_held().len(), 1, "old weights are let go of");
        world.engine.assert_empty();
    }
}

#[test]
fn weights_are_refused_that_are_older_or_of_another_kind_and_those_in_use_stay() {
    let script = script(ContextPolicy::Append, 0, 0);
    let mut world = World::new(swapping(OnSwap::Keep, 2), room(), vec![script.clone()]);
    let older = send(&mut world, 1);
    assert!(told(older).unwrap_err().contains("version 1 is not newer than 1"));
    let (done, answer) = oneshot::channel();
    let stranger: Incoming = Box::new("no weights at all");
    let new = NewWeights { version: PolicyVersion(2), vision: [0; 32], weights: stranger, done };
    world.engine.apply(Event::Weights(Box::new(new)));
    world.step();
    assert!(told(answer).unwrap_err().contains("takes weights of air"));
    world.run_to_end();
    assert_eq!(world.tokens()[0], alone(&script));
    assert_eq!(versions(&world, 0).concat().iter().max(), Some(&1));
}

#[test]
fn weights_that_wait_are_overtaken_by_newer_ones_and_old_ones_go_where_they_are_told() {
    let mut world = World::new(swapping(OnSwap::FinishOnOld, 0), room(), scripts(1));
    let (bin, mut thrown) = mpsc::channel(4);
    world.engine = world.engine.retiring_to(bin);
    world.act(0);
    assert_eq!(world.engine.pinned(SessionId(1)), Some(PolicyVersion(1)));
    let waits = send(&mut world, 2);
    world.step();
    let newer = send(&mut world, 3);
    assert!(told(waits).unwrap_err().contains("version 3 came before it took over"));
    assert!(thrown.try_recv().is_err(), "nobody keeps two while one must be finished on");
    world.run_to_end();
    world.act(0);
    world.step();
    let swapped = told(newer).unwrap();
    assert_eq!((swapped.sessions, swapped.old_versions), (0, 0));
    assert!(
        thrown
            .try_recv()
            .is_ok_and(|old| old.downcast::<AirWeights>().is_ok_and(|old| *old == AirWeights::default()))
    );
}
