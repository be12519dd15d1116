//! Sessions side by side against each of them alone.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::world::sim;
use super::*;
use crate::sim::SimSettings;

pub(super) fn script(keep: ContextPolicy, group: u64, sample: u64) -> Script {
    Script { keep, group, sample, steps: 4, forces: sample % 3 == 1, poisoned_at: None }
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

/// What the session gets on an engine of its own, where nothing is shared, parked or rebuilt.
pub(super) fn alone(script: &Script) -> Vec<Vec<u32>> {
    let settings = Settings { snapshot_slots: 0, ..settings() };
    let mut world = World::new(settings, room(), vec![script.clone()]);
    world.run_to_end();
    assert_eq!(world.actors[0].fault, None);
    world.tokens().remove(0)
}

fn many() -> Vec<Script> {
    (0..64).map(|index| script(policies()[index as usize / 4 % 5], index / 4, index % 4)).collect()
}

#[test]
fn sixty_four_sessions_in_any_interleaving_get_the_tokens_they_get_alone() {
    let scripts = many();
    let want: Vec<_> = scripts.iter().map(alone).collect();
    for seed in 0..16 {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        // Every other time tiles are encoded and states moved beside batches, which leaves spans out of them.
        let device = SimSettings { beside: seed % 2 == 1, ..sim(room()) };
        let mut world = World::with_device(settings(), device, scripts.clone());
        while !world.actors.iter().all(world::Actor::is_over) {
            let index = random.random_range(0..world.actors.len());
            match random.random_range(0..1000) {
                0 => world.kill(),
                1..6 => world.cut(index),
                6..500 => world.act(index),
                _ => world.step(),
            }
        }
        assert_eq!(world.tokens(), want, "seed {seed}");
        (0..64).for_each(|index| world.act(index));
        assert!(world.engine.sessions.is_empty(), "seed {seed}: a session outlived its owner");
        world.engine.assert_empty();
    }
}

#[test]
fn every_origin_happens_and_is_told() {
    let mut world = World::new(settings(), room(), many());
    let mut random = ChaCha12Rng::seed_from_u64(7);
    for _ in 0..400 {
        let index = random.random_range(0..64);
        world.act(index);
        world.step();
    }
    world.kill();
    world.run_to_end();
    let replies = world.actors.iter().flat_map(|actor| &actor.replies);
    let origins: Vec<StateOrigin> = replies.filter_map(|reply| reply.engine.state_origin).collect();
    for origin in StateOrigin::ALL {
        assert!(origins.contains(origin), "no reply came from a state that was {origin:?}");
    }
}
