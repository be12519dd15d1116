//! Sessions that share an engine, compared with each of them alone.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::harness::sim_settings;
use super::*;
use crate::sim::SimSettings;

pub(super) fn script(keep: ContextPolicy, group: u64, sample: u64) -> SessionScript {
    SessionScript { keep, group, sample, steps: 4, forces: sample % 3 == 1, poisoned_at: None }
}

pub(super) fn policies() -> [ContextPolicy; 5] {
    [
        ContextPolicy::Append,
        ContextPolicy::LastImage,
        ContextPolicy::Window(2),
        ContextPolicy::Window(3),
        ContextPolicy::Fresh,
    ]
}

/// Replies of the session on its own engine, where nothing is shared, offloaded or rebuilt.
pub(super) fn alone(script: &SessionScript) -> Vec<Vec<u32>> {
    let settings = EngineSettings { snapshot_slots: 0, ..settings() };
    let mut harness = EngineHarness::new(settings, capacity(), vec![script.clone()]);
    harness.run_to_end();
    assert_eq!(harness.actors[0].fault, None);
    harness.tokens().remove(0)
}

fn many() -> Vec<SessionScript> {
    (0..64).map(|index| script(policies()[index as usize / 4 % 5], index / 4, index % 4)).collect()
}

#[test]
fn sixty_four_sessions_in_any_interleaving_get_the_tokens_they_get_alone() {
    let scripts = many();
    let want: Vec<_> = scripts.iter().map(alone).collect();
    for seed in 0..16 {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        // For every second seed, tiles are encoded and states transferred beside batches, which
        // defers spans.
        let device = SimSettings { beside: seed % 2 == 1, ..sim_settings(capacity()) };
        let mut harness = EngineHarness::with_device(settings(), device, scripts.clone());
        while !harness.actors.iter().all(harness::ScriptedSession::is_over) {
            let index = random.random_range(0..harness.actors.len());
            match random.random_range(0..1000) {
                0 => harness.kill(),
                1..6 => harness.cut(index),
                6..500 => harness.act(index),
                _ => harness.step(),
            }
        }
        assert_eq!(harness.tokens(), want, "seed {seed}");
        (0..64).for_each(|index| harness.act(index));
        assert!(harness.engine.sessions.is_empty(), "seed {seed}: a session is left after its owner ended");
        harness.engine.assert_empty();
    }
}

#[test]
fn every_state_origin_occurs_and_is_reported() {
    let mut harness = EngineHarness::new(settings(), capacity(), many());
    let mut random = ChaCha12Rng::seed_from_u64(7);
    for _ in 0..400 {
        let index = random.random_range(0..64);
        harness.act(index);
        harness.step();
    }
    harness.kill();
    harness.run_to_end();
    let replies = harness.actors.iter().flat_map(|actor| &actor.replies);
    let origins: Vec<StateOrigin> = replies.filter_map(|reply| reply.engine.state_origin).collect();
    for origin in StateOrigin::ALL {
        assert!(origins.contains(origin), "no reply was made from a state of origin {origin:?}");
    }
}
