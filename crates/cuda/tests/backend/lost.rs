//! An executor that fails at any one of its calls: what was answered before is what one that works answers, and nothing is answered afterwards.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use furrow_cuda::backend::{Device, Options, Precision, Stage, open};
use furrow_cuda::executor::{Executor, ExecutorError, GraphKey, HostStretch, Lane, Pinned, Product, Work};
use furrow_cuda::launch::Launch;
use furrow_model::backend::{Inset, Page, Room, Slot, Want};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::sample::{Pick, Picked};
use furrow_model::vision::Tile;

use crate::air::Air;
use crate::case::{BYTES, Case, on_a_gpu, sequence};
use crate::made;

type Done = Result<(), ExecutorError>;

/// When a failure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// At the call that fails: the driver refuses it.
    AtOnce,
    /// Where the host next waits for the device, as what a kernel did shows. Until then calls are taken, and nothing is done.
    Later,
}

/// An executor whose calls are done up to a number; from then on it is lost.
struct Doomed {
    air: Air,
    calls: Arc<AtomicUsize>,
    fails_at: Arc<AtomicUsize>,
    shows: Shows,
}

impl Doomed {
    /// A call that returns before the work is done.
    fn told(&mut self, call: impl FnOnce(&mut Air) -> Done) -> Done {
        match (self.is_lost(), self.shows) {
            (false, _) => call(&mut self.air),
            (true, Shows::AtOnce) => Err(lost()),
            (true, Shows::Later) => Ok(()),
        }
    }

    /// A call that tells what the device did.
    fn asked<T>(
        &mut self,
        call: impl FnOnce(&mut Air) -> Result<T, ExecutorError>,
    ) -> Result<T, ExecutorError> {
        if self.is_lost() { Err(lost()) } else { call(&mut self.air) }
    }

    fn is_lost(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1 >= self.fails_at.load(Ordering::Relaxed)
    }
}

fn lost() -> ExecutorError {
    ExecutorError::failed("copy from the device", "CUDA_ERROR_LAUNCH_FAILED")
}

const LOST: &str = "the device failed: could not copy from the device: CUDA_ERROR_LAUNCH_FAILED";

impl Executor for Doomed {
    fn free_bytes(&mut self) -> Result<u64, ExecutorError> {
        self.asked(Air::free_bytes)
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.asked(|air| air.allocate(bytes))
    }

    fn upload(&mut self, lane: Lane, bytes: &[u8], to: u64) -> Done {
        self.told(|air| air.upload(lane, bytes, to))
    }

    fn download(&mut self, lane: Lane, from: u64, bytes: &mut [u8]) -> Done {
        self.asked(|air| air.download(lane, from, bytes))
    }

    fn pin(&mut self, bytes: u64) -> Result<Pinned, ExecutorError> {
        self.asked(|air| air.pin(bytes))
    }

    fn fill(&mut self, pinned: Pinned, at: u64, bytes: &[u8]) -> Done {
        self.told(|air| air.fill(pinned, at, bytes))
    }

    fn send(&mut self, lane: Lane, from: HostStretch, to: u64) -> Done {
        self.told(|air| air.send(lane, from, to))
    }

    fn fetch(&mut self, lane: Lane, from: u64, to: HostStretch) -> Done {
        self.told(|air| air.fetch(lane, from, to))
    }

    fn launch(&mut self, lane: Lane, launch: &Launch) -> Done {
        self.told(|air| air.launch(lane, launch))
    }

    fn multiply(&mut self, lane: Lane, product: &Product) -> Done {
        self.told(|air| air.multiply(lane, product))
    }

    fn follow(&mut self, lane: Lane, other: Lane) -> Done {
        self.told(|air| air.follow(lane, other))
    }

    fn is_done(&mut self, lane: Lane) -> Result<bool, ExecutorError> {
        self.asked(|air| air.is_done(lane))
    }

    fn graph(&mut self, lane: Lane, key: GraphKey, work: Work<'_>) -> Done {
        self.told(|air| air.graph(lane, key, work))
    }

    fn wait(&mut self) -> Done {
        self.asked(Air::wait)
    }
}

/// No more than is needed: a device is opened for each call that fails.
const ROOM: Room =
    Room { slots: 4, pages: 32, rows_max: 16, logits_max: 4, features: 1, parked_bytes: 1 << 20 };

/// What a device answers, in order.
type Answers = Vec<Vec<u32>>;

/// Everything that an engine asks of a device, the answers as bits.
fn live(case: &Case, device: &mut dyn Device, next: &Path, said: &mut Answers) -> Result<(), Box<dyn Error>> {
    let vision = case.weights.config.vision.as_ref().unwrap();
    let (rows, placeholder) = (vision.rows_per_tile() as u32, vision.image_token);
    let tiles = tiles(case);
    let (ids, seen) = (case.ids(70, 20), vec![placeholder; rows as usize]);
    let [mut first, mut second] = [0, 1].map(sequence);

    let spans = [first.span(&ids[..3], &[], Want::Last), second.span(&ids[..6], &[], Want::Last)];
    device.run(&spans)?;
    first.advance(3);
    second.advance(6);
    draw(device, 2, said)?;
    // Twice, so that what is recorded is done again.
    for token in 6..9 {
        let spans = [&first, &second].map(|own| own.span(&ids[token..=token], &[], Want::Last));
        device.run(&spans)?;
        first.advance(1);
        second.advance(1);
        draw(device, 2, said)?;
        said.push(device.logits(1)?.iter().map(|logit| logit.to_bits()).collect());
    }

    // A snapshot, then the session leaves for host memory and comes back elsewhere.
    device.copy_slot(Slot(1), Slot(3))?;
    device.copy_page(second.pages()[0], Page(24))?;
    let pages = &second.pages()[..1];
    let parked = device.park(Slot(1), pages)?.ok_or("there is room for it")?;
    device.is_moving(Slot(1), pages)?;
    device.clear(Slot(1))?;
    device.run(&[first.span(&ids[9..10], &[], Want::Last)])?;
    first.advance(1);
    draw(device, 1, said)?;
    device.restore(&parked, Slot(2), &[Page(16)])?;
    let mut back = sequence(2);
    back.advance(second.len());
    device.run(&[back.span(&ids[9..10], &[], Want::Last)])?;
    back.advance(1);
    draw(device, 1, said)?;

    // Other weights come beside batches and take over.
    device.stage_weights(Checkpoint::open(next)?)?;
    let mut token = 10;
    while !device.stage_more(200_000)? && token < 14 {
        device.run(&[back.span(&ids[token..=token], &[], Want::Last)])?;
        back.advance(1);
        draw(device, 1, said)?;
        token += 1;
    }
    device.stage_more(u64::MAX)?;
    device.swap_weights()?;
    device.run(&[back.span(&ids[token..=token], &[], Want::Last)])?;
    draw(device, 1, said)?;

    // A tile, last: here it takes longer than all the rest.
    let held = device.encode(&tiles)?;
    let inset = [Inset { at: 0, len: rows, feature: held[0], row: 0 }];
    device.run(&[first.span(&seen, &inset, Want::Last)])?;
    draw(device, 1, said)?;
    Ok(device.wait()?)
}

fn draw(device: &mut dyn Device, rows: u32, said: &mut Answers) -> Result<(), Box<dyn Error>> {
    let picks: Vec<Pick<'_>> = (0..rows).map(pick).collect();
    for picked in device.sample(&picks)? {
        // The model's numbers are finite, so a row that is not was made up.
        let Picked::Token(token) = picked else { panic!("a draw was made up of a failure") };
        said.push(vec![token.id, token.logprob.to_bits(), token.entropy.to_bits()]);
    }
    Ok(())
}

fn pick(row: u32) -> Pick<'static> {
    Pick { row, temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0, allowed: None, uniform: 0.4 }
}

fn tiles(case: &Case) -> Vec<Tile> {
    let side = case.weights.config.vision.as_ref().unwrap().tile;
    let pixels = case.ids(90, 3 * side * side).into_iter().map(|value| value as f32 / 48.0 - 1.0).collect();
    vec![Tile { pixels, hash: [1; 32] }]
}

/// A device on an executor that fails at a call, counted from when it is open.
fn doomed(
    case: &Case,
    options: Options,
    shows: Shows,
    fails_at: usize,
) -> (Box<dyn Device>, Arc<AtomicUsize>) {
    let (air, _) = Air::new(BYTES);
    let [calls, at] = [0, usize::MAX].map(|number| Arc::new(AtomicUsize::new(number)));
    let executor = Doomed { air, calls: calls.clone(), fails_at: at.clone(), shows };
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    let device = open(&checkpoint, ROOM, options, Box::new(executor), &mut |_, _| {}).unwrap();
    calls.store(0, Ordering::Relaxed);
    at.store(fails_at, Ordering::Relaxed);
    (device, calls)
}

#[test]
fn whichever_call_the_driver_refuses_nothing_is_answered_that_the_device_did_not_say() {
    each_call_fails(Shows::AtOnce, Stage::Device);
}

#[test]
fn whichever_call_fails_unseen_nothing_is_answered_that_the_device_did_not_say() {
    each_call_fails(Shows::Later, Stage::Host);
}

fn each_call_fails(shows: Shows, stage: Stage) {
    if on_a_gpu() {
        return; // It is not asked to fail.
    }
    let case = Case::made(Precision::Usual);
    let other = made::written(2, &made::config(), |_, _| {});
    let next = other.path();
    let options = Options { stage, ..case.options };
    let (mut device, calls) = doomed(&case, options, shows, usize::MAX);
    let mut whole = Answers::new();
    live(&case, &mut *device, next, &mut whole).unwrap();
    let all = calls.load(Ordering::Relaxed);
    for fails_at in 1..=all {
        let (mut device, calls) = doomed(&case, options, shows, fails_at);
        let mut said = Answers::new();
        let error = live(&case, &mut *device, next, &mut said).unwrap_err();
        assert_eq!(error.to_string(), LOST, "{shows:?}, call {fails_at} of {all}");
        assert!(whole.starts_with(&said), "{shows:?}, call {fails_at} of {all}: {} answers", said.len());
        // It stays so, and the executor is not asked any more.
        let asked = calls.load(Ordering::Relaxed);
        assert!(asked >= fails_at);
        let left = case.ids(71, 1);
        let told = [
            device.run(&[sequence(0).span(&left, &[], Want::Last)]).map_err(|error| error.to_string()),
            device.encode(&tiles(&case)).map(drop).map_err(|error| error.to_string()),
            device.sample(&[]).map(drop).map_err(|error| error.to_string()),
            device.clear(Slot(0)).map_err(|error| error.to_string()),
            device.copy_slot(Slot(0), Slot(3)).map_err(|error| error.to_string()),
            device.copy_page(Page(0), Page(31)).map_err(|error| error.to_string()),
            device.park(Slot(0), &[]).map(drop).map_err(|error| error.to_string()),
            device.stage_weights(Checkpoint::open(next).unwrap()).map_err(|error| error.to_string()),
            device.wait().map_err(|error| error.to_string()),
        ];
        assert!(told.iter().all(|told| told.as_ref().is_err_and(|why| why == LOST)), "{told:?}");
        assert_eq!(calls.load(Ordering::Relaxed), asked, "{shows:?}: a lost executor was asked again");
    }
    assert!(all > 150 && whole.len() > 12, "{all} calls, {} answers", whole.len());
}
