//! A device that fails at any one of its calls: no session gets the fault, earlier answers remain,
//! and all sessions continue on another worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use furrow_model::backend::{
    BackendError, OffloadedState, Page, SequenceSpan, Slot, TileFeature, WeightsError,
};
use furrow_model::config::Config;
use furrow_model::init::{InitSpec, ModelSize, StoredType, init};
use furrow_model::sample::{SampleOutcome, SampleRequest};
use furrow_model::tokenizer::Tokenizer;
use furrow_model::vision::ImageTile;

use super::alone::{policies, script};
use super::harness::sim_settings;
use super::*;
use crate::response::TokenWatcher;
use crate::sim::{SimBackend, SimSettings, SimWeights};

const WHY: &str = "could not copy from the device: CUDA_ERROR_LAUNCH_FAILED";

/// A device whose call number `fails_at` fails. No call may follow that one.
struct FailingBackend {
    device: SimBackend,
    calls: Arc<AtomicUsize>,
    fails_at: usize,
}

impl FailingBackend {
    fn call<T>(&mut self, call: impl FnOnce(&mut SimBackend) -> T) -> Result<T, DeviceLost> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number <= self.fails_at, "a failed device was called again");
        if number == self.fails_at { Err(DeviceLost(WHY.into())) } else { Ok(call(&mut self.device)) }
    }
}

impl Backend for FailingBackend {
    fn config(&self) -> &Config {
        self.device.config()
    }

    fn capacity(&self) -> BackendCapacity {
        self.device.capacity()
    }

    fn encode(&mut self, tiles: &[ImageTile]) -> Result<Vec<TileFeature>, BackendError> {
        self.call(|device| device.encode(tiles))?
    }

    fn encodes_concurrently(&self) -> bool {
        self.device.encodes_concurrently()
    }

    fn await_tiles(&mut self) -> Result<(), DeviceLost> {
        self.call(SimBackend::await_tiles)?
    }

    fn release(&mut self, features: &[TileFeature]) {
        self.device.release(features);
    }

    fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), BackendError> {
        self.call(|device| device.run(batch))?
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceLost> {
        self.call(|_| ())?;
        self.device.logits(row)
    }

    fn sample(&mut self, picks: &[SampleRequest<'_>]) -> Result<Vec<SampleOutcome>, DeviceLost> {
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

    fn offloaded_bytes(&self, pages: u32) -> u64 {
        self.device.offloaded_bytes(pages)
    }

    fn offload(&mut self, slot: Slot, pages: &[Page]) -> Result<Option<OffloadedState>, DeviceLost> {
        self.call(|device| device.offload(slot, pages))?
    }

    fn is_moving(&mut self, slot: Slot, pages: &[Page]) -> Result<bool, DeviceLost> {
        self.call(|device| device.is_moving(slot, pages))?
    }

    fn await_states(&mut self, batch: &[SequenceSpan<'_>]) -> Result<(), DeviceLost> {
        self.call(|device| device.await_states(batch))?
    }

    fn restore(&mut self, offloaded: &OffloadedState, slot: Slot, pages: &[Page]) -> Result<(), DeviceLost> {
        self.call(|device| device.restore(offloaded, slot, pages))?
    }

    fn stage(&mut self, weights: IncomingWeights) -> Result<(), WeightsError> {
        self.call(|device| device.stage(weights))?
    }

    fn copy_staged(&mut self, bytes: u64) -> Result<bool, WeightsError> {
        self.call(|device| device.copy_staged(bytes))?
    }

    fn swap(&mut self) -> Result<Option<IncomingWeights>, WeightsError> {
        self.call(SimBackend::swap)?
    }
}

/// Sessions of all context policies: more than there are slots, so that some are offloaded, and
/// siblings, so that some are forked.
fn scripts() -> Vec<SessionScript> {
    (0..7)
        .map(|index| SessionScript {
            steps: 2,
            ..script(policies()[index as usize % 5], index / 4, index % 4)
        })
        .collect()
}

/// Requests the likeliest ids, for which the engine downloads logits.
fn watch() -> TokenWatcher {
    let dir = tempfile::tempdir().unwrap();
    let tiny =
        InitSpec { size: ModelSize::Tiny, seed: 1, dtype: StoredType::Float32, shard_bytes_max: u64::MAX };
    init(&dir.path().join("tiny"), &tiny).unwrap();
    let tokenizer = Tokenizer::open(&dir.path().join("tiny")).unwrap();
    let (sender, _) = mpsc::channel(1);
    TokenWatcher::new(sender, Arc::new([]), Arc::new(tokenizer)).ranking(Some(2))
}

/// A harness on a device that fails at a given call.
struct DoomedHarness {
    harness: EngineHarness,
    calls: Arc<AtomicUsize>,
    /// Receives the result of the new weights.
    weights: Option<oneshot::Receiver<Result<SwapReport, WeightsError>>>,
}

impl DoomedHarness {
    fn new(settings: EngineSettings, device: SimSettings, fails_at: usize) -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let failing = FailingBackend { device: SimBackend::new(device), calls: calls.clone(), fails_at };
        let mut harness = EngineHarness::with_device(settings, device, scripts());
        harness.engine = Engine::new(Box::new(failing), settings).unwrap();
        Self { harness, calls, weights: None }
    }

    /// Runs until the device has failed or all sessions are over. Sends weights of version 2 in the
    /// given iteration.
    fn run(&mut self, weights_at: usize) {
        for iteration in 0..100_000 {
            if self.harness.engine.lost().is_some()
                || self.harness.actors.iter().all(harness::ScriptedSession::is_over)
            {
                return;
            }
            if iteration == weights_at {
                let (done, answer) = oneshot::channel();
                let weights = Box::new(SimWeights { text: 2, vision: 2, overflow: false });
                let new = NewWeights { version: PolicyVersion(2), vision: [2; 32], weights, done };
                self.harness.engine.apply(EngineEvent::Weights(Box::new(new)));
                self.weights = Some(answer);
            }
            (0..self.harness.actors.len()).for_each(|index| self.harness.act(index));
            self.harness.step();
        }
        panic!("the sessions did not end");
    }

    fn has_failed(&self, fails_at: usize) -> bool {
        self.calls.load(Ordering::Relaxed) >= fails_at
    }

    /// Every session was answered, none has a fault of its own, and every answer is the one of a
    /// device that works.
    #[track_caller]
    fn check(&mut self, fails_at: usize, whole: &EngineHarness) {
        let lost = DeviceLost(WHY.into());
        assert_eq!(self.harness.engine.lost(), Some(&lost), "call {fails_at}");
        for (index, (actor, whole)) in self.harness.actors.iter().zip(&whole.actors).enumerate() {
            assert!(!actor.waits(), "call {fails_at}: session {index} waits forever");
            assert!(
                actor.fault.as_ref().is_none_or(|fault| *fault == EngineFault::Device(lost.clone())),
                "call {fails_at}: session {index} got a fault: {:?}",
                actor.fault
            );
            let replies = actor.replies.iter().map(|reply| &reply.columns);
            let want = whole.replies.iter().map(|reply| &reply.columns);
            assert!(replies.zip(want).all(|(reply, want)| reply == want), "call {fails_at}: session {index}");
        }
        let (opened, mut answer) = oneshot::channel();
        let life = CancellationToken::new();
        self.harness.engine.apply(EngineEvent::Open {
            session: SessionId(u64::MAX),
            rebuilt: false,
            life,
            opened,
        });
        assert_eq!(answer.try_recv().unwrap(), Err(EngineFault::Device(lost)), "call {fails_at}");
    }
}

#[test]
fn a_device_lost_at_any_call_moves_its_sessions_and_blames_none() {
    for (beside, is_watched) in [(false, true), (true, false)] {
        let device = SimSettings { beside, ..sim_settings(capacity()) };
        let watch = is_watched.then(watch);
        let doomed = |fails_at| {
            let mut doomed = DoomedHarness::new(settings(), device, fails_at);
            doomed.harness.watch = watch.clone();
            doomed
        };
        let mut whole = doomed(usize::MAX);
        whole.run(usize::MAX);
        let want = whole.harness.tokens();
        let mut failures = 0;
        let mut moved = 0;
        for fails_at in 1.. {
            let mut doomed = doomed(fails_at);
            doomed.run(usize::MAX);
            if !doomed.has_failed(fails_at) {
                break;
            }
            failures += 1;
            doomed.check(fails_at, &whole.harness);
            // Another worker takes over, and every session is rebuilt there.
            doomed.harness.kill();
            for actor in &mut doomed.harness.actors {
                moved += usize::from(actor.fault.take().is_some());
            }
            doomed.harness.run_to_end();
            assert_eq!(doomed.harness.tokens(), want, "call {fails_at}");
        }
        println!("beside {beside}, watched {is_watched}: {failures} failures, {moved} steps were repeated");
        assert!(failures > 300 && moved > failures, "{failures} failures, {moved} moves");
        assert!(whole.harness.engine.offloaded() > 0, "states were offloaded, too");
    }
}

#[test]
fn weights_on_their_way_to_a_device_that_fails_are_answered_with_its_failure() {
    for (on_swap, weights_at) in [(OnSwap::Keep, 6), (OnSwap::FinishOnOld, 6), (OnSwap::FinishOnOld, 30)] {
        let settings =
            EngineSettings { swaps: SwapSettings { on_swap, ..SwapSettings::default() }, ..settings() };
        let mut whole = DoomedHarness::new(settings, sim_settings(capacity()), usize::MAX);
        whole.run(weights_at);
        assert!(whole.weights.take().unwrap().try_recv().unwrap().is_ok());
        let mut refused = 0;
        let mut taken = 0;
        for fails_at in 1.. {
            let mut doomed = DoomedHarness::new(settings, sim_settings(capacity()), fails_at);
            doomed.run(weights_at);
            if !doomed.has_failed(fails_at) {
                break;
            }
            doomed.check(fails_at, &whole.harness);
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
