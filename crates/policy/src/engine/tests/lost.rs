//! A device that fails at any one of its calls: no session is blamed for it, what was answered before stands, and all go on elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use furrow_model::backend::{BackendError, Feature, Page, Parked, Slot, Span, WeightsError};
use furrow_model::config::Config;
use furrow_model::init::{Init, Size, StoredType, init};
use furrow_model::sample::{Pick, Picked};
use furrow_model::tokenizer::Tokenizer;
use furrow_model::vision::Tile;

use super::alone::{policies, script};
use super::world::sim;
use super::*;
use crate::draw::Watch;
use crate::sim::{AirWeights, Sim, SimSettings};

const WHY: &str = "could not copy from the device: CUDA_ERROR_LAUNCH_FAILED";

/// A device whose calls succeed up to a number. The one of that number fails, and none may come behind it.
struct Failing {
    device: Sim,
    calls: Arc<AtomicUsize>,
    fails_at: usize,
}

impl Failing {
    fn call<T>(&mut self, call: impl FnOnce(&mut Sim) -> T) -> Result<T, DeviceLost> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number <= self.fails_at, "a device that is lost was asked again");
        if number == self.fails_at { Err(DeviceLost(WHY.into())) } else { Ok(call(&mut self.device)) }
    }
}

impl Backend for Failing {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn room(&self) -> Room {
        self.device.room()
    }

    fn encode(&mut self, tiles: &[Tile]) -> Result<Vec<Feature>, BackendError> {
        self.call(|device| device.encode(tiles))?
    }

    fn encodes_beside(&self) -> bool {
        self.device.encodes_beside()
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.call(Sim::await_tiles)?
    }

    fn release(&mut self, features: &[Feature]) {
        self.device.release(features);
    }

    fn run(&mut self, batch: &[Span<'_>]) -> Result<(), BackendError> {
        self.call(|device| device.run(batch))?
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        self.call(|_| ())?;
        self.device.logits(row)
    }

    fn sample(&mut self, picks: &[Pick<'_>]) -> Result<Vec<Picked>, DeviceLost> {
        self.call(|device| device.sample(picks))?
    }

    fn clear(&mut self, slot: Slot) -> Result<(), DeviceLost> {
        self.call(|device| device.clear(slot))?
    }

    fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceLost> {
        self.call(|device| device.copy_slot(from, to))?
    }

    fn copy_page(&mut self, from: Page, to: Page) -> Result<(), DeviceLost> {
        self.call(|device| device.copy_page(from, to))?
    }

    fn parked_bytes(&self, pages: u32) -> u64 {
        self.device.parked_bytes(pages)
    }

    fn park(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<Parked>, DeviceLost> {
        self.call(|device| device.park(slot, pages))?
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        self.call(|device| device.is_moving(slot, pages))?
    }

    fn await_states(&mut self, batch: &[Span<'_>]) -> Result<(), DeviceLost> {
        self.call(|device| device.await_states(batch))?
    }

    fn restore(&mut self, parked: &Parked, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.call(|device| device.restore(parked, slot, pages))?
    }

    fn stage(&mut self, weights: Incoming) -> Result<(), WeightsError> {
        self.call(|device| device.stage(weights))?
    }

    fn bring(&mut self, bytes: u64) -> Result<bool, WeightsError> {
        self.call(|device| device.bring(bytes))?
    }

    fn swap(&mut self) -> Result<Option<Incoming>, WeightsError> {
        self.call(Sim::swap)?
    }
}

/// Sessions of all context policies: more than there are slots, so that some are parked; siblings, so that some are forked.
fn scripts() -> Vec<Script> {
    (0..7)
        .map(|index| Script { steps: 2, ..script(policies()[index as usize % 5], index / 4, index % 4) })
        .collect()
}

/// A watch that wants the likeliest ids, for which the engine downloads logits.
fn watch() -> Watch {
    let dir = tempfile::tempdir().unwrap();
    let tiny = Init { size: Size::Tiny, seed: 1, dtype: StoredType::Float32, shard_bytes_max: u64::MAX };
    init(&dir.path().join("tiny"), &tiny).unwrap();
    let tokenizer = Tokenizer::open(&dir.path().join("tiny")).unwrap();
    let (told, _) = mpsc::channel(1);
    Watch::new(told, Arc::new([]), Arc::new(tokenizer)).ranking(Some(2))
}

/// A world on a device that fails at a call.
struct Doomed {
    world: World,
    calls: Arc<AtomicUsize>,
    /// What became of weights that were sent.
    weights: Option<oneshot::Receiver<Result<Swapped, WeightsError>>>,
}

impl Doomed {
    fn new(settings: Settings, device: SimSettings, fails_at: usize) -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let failing = Failing { device: Sim::new(device), calls: calls.clone(), fails_at };
        let mut world = World::with_device(settings, device, scripts());
        world.engine = Engine::new(Box::new(failing), settings).unwrap();
        Self { world, calls, weights: None }
    }

    /// Goes on until the device has failed or all sessions are over; weights of version 2 are sent in this iteration.
    fn run(&mut self, weights_at: usize) {
        for iteration in 0..100_000 {
            if self.world.engine.lost().is_some() || self.world.actors.iter().all(world::Actor::is_over) {
                return;
            }
            if iteration == weights_at {
                let (done, answer) = oneshot::channel();
                let weights = Box::new(AirWeights { text: 2, vision: 2 });
                let new = NewWeights { version: PolicyVersion(2), vision: [2; 32], weights, done };
                self.world.engine.apply(Event::Weights(Box::new(new)));
                self.weights = Some(answer);
            }
            (0..self.world.actors.len()).for_each(|index| self.world.act(index));
            self.world.step();
        }
        panic!("the sessions never came to an end");
    }

    fn has_failed(&self, fails_at: usize) -> bool {
        self.calls.load(Ordering::Relaxed) >= fails_at
    }

    /// Every session was answered, none with a fault of its own, and with nothing but what a device that works would have said.
    #[track_caller]
    fn check(&mut self, fails_at: usize, whole: &World) {
        let lost = DeviceLost(WHY.into());
        assert_eq!(self.world.engine.lost(), Some(&lost), "call {fails_at}");
        for (index, (actor, whole)) in self.world.actors.iter().zip(&whole.actors).enumerate() {
            assert!(!actor.waits(), "call {fails_at}: session {index} waits for ever");
            assert!(
                actor.fault.as_ref().is_none_or(|fault| *fault == Fault::Device(lost.clone())),
                "call {fails_at}: session {index} is blamed: {:?}",
                actor.fault
            );
            let told = actor.replies.iter().map(|reply| &reply.columns);
            let want = whole.replies.iter().map(|reply| &reply.columns);
            assert!(told.zip(want).all(|(told, want)| told == want), "call {fails_at}: session {index}");
        }
        let (opened, mut answer) = oneshot::channel();
        let life = CancellationToken::new();
        self.world.engine.apply(Event::Open { session: SessionId(u64::MAX), rebuilt: false, life, opened });
        assert_eq!(answer.try_recv().unwrap(), Err(Fault::Device(lost)), "call {fails_at}");
    }
}

#[test]
fn whichever_call_finds_the_device_lost_its_sessions_move_and_none_is_blamed() {
    for (beside, is_watched) in [(false, true), (true, false)] {
        let device = SimSettings { beside, ..sim(room()) };
        let watch = is_watched.then(watch);
        let doomed = |fails_at| {
            let mut doomed = Doomed::new(settings(), device, fails_at);
            doomed.world.watch = watch.clone();
            doomed
        };
        let mut whole = doomed(usize::MAX);
        whole.run(usize::MAX);
        let want = whole.world.tokens();
        let (mut failures, mut moved) = (0, 0);
        for fails_at in 1.. {
            let mut doomed = doomed(fails_at);
            doomed.run(usize::MAX);
            if !doomed.has_failed(fails_at) {
                break;
            }
            failures += 1;
            doomed.check(fails_at, &whole.world);
            // Another worker takes its place, and every session is rebuilt there.
            doomed.world.kill();
            for actor in &mut doomed.world.actors {
                moved += usize::from(actor.fault.take().is_some());
            }
            doomed.world.run_to_end();
            assert_eq!(doomed.world.tokens(), want, "call {fails_at}");
        }
        println!(
            "beside {beside}, watched {is_watched}: {failures} failures, {moved} steps were asked for again"
        );
        assert!(failures > 300 && moved > failures, "{failures} failures, {moved} moves");
        assert!(whole.world.engine.parked() > 0, "states move, too");
    }
}

#[test]
fn weights_on_their_way_to_a_device_that_fails_are_answered_with_its_failure() {
    for (on_swap, weights_at) in [(OnSwap::Keep, 6), (OnSwap::FinishOnOld, 6), (OnSwap::FinishOnOld, 30)] {
        let settings = Settings { swaps: Swaps { on_swap, ..Swaps::default() }, ..settings() };
        let mut whole = Doomed::new(settings, sim(room()), usize::MAX);
        whole.run(weights_at);
        assert!(whole.weights.take().unwrap().try_recv().unwrap().is_ok());
        let (mut refused, mut taken) = (0, 0);
        for fails_at in 1.. {
            let mut doomed = Doomed::new(settings, sim(room()), fails_at);
            doomed.run(weights_at);
            if !doomed.has_failed(fails_at) {
                break;
            }
            doomed.check(fails_at, &whole.world);
            match doomed.weights.take().map(|mut answer| answer.try_recv().unwrap()) {
                None => {}
                Some(Ok(_)) => taken += 1,
                Some(Err(why)) => {
                    assert_eq!(why, WeightsError::Device(DeviceLost(WHY.into())), "call {fails_at}");
                    refused += 1;
                }
            }
        }
        println!("{on_swap:?}: {refused} failures before the weights were taken, {taken} after");
        assert!(refused >= 3 && taken > 50, "{refused} refused, {taken} taken");
    }
}
