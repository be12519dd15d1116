//! An executor that fails at any one of its calls: results before the failure are those of a
//! working executor, and there are no results afterwards.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use furrow_cuda::backend::{BackendOptions, DeviceBackend, ModelPrecision, StagingMode, open};
use furrow_cuda::executor::{
    ExecutionLane, Executor, ExecutorError, GraphKey, GraphWork, HostRange, MatrixProduct, PinnedMemory,
};
use furrow_cuda::launch::KernelLaunch;
use furrow_model::backend::{BackendCapacity, ImageInset, LogitRows, Page, Slot};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::sample::{SampleOutcome, SampleRequest};
use furrow_model::vision::ImageTile;

use crate::case::{BYTES, BackendCase, on_a_gpu, sequence};
use crate::host_executor::HostExecutor;
use crate::made;

type CallResult = Result<(), ExecutorError>;

/// When a failure becomes visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureTiming {
    /// At the call that fails: the driver refuses it.
    AtOnce,
    /// When the host next waits for the device, as for a fault in a kernel. Until then calls
    /// succeed, and nothing is done.
    Later,
}

/// An executor that works up to a number of calls and then fails.
struct FailingExecutor {
    executor: HostExecutor,
    calls: Arc<AtomicUsize>,
    fails_at: Arc<AtomicUsize>,
    timing: FailureTiming,
}

impl FailingExecutor {
    /// A call that returns before the work is done.
    fn call_async(&mut self, call: impl FnOnce(&mut HostExecutor) -> CallResult) -> CallResult {
        match (self.is_lost(), self.timing) {
            (false, _) => call(&mut self.executor),
            (true, FailureTiming::AtOnce) => Err(lost()),
            (true, FailureTiming::Later) => Ok(()),
        }
    }

    /// A call that returns a result of the device.
    fn call_sync<T>(
        &mut self,
        call: impl FnOnce(&mut HostExecutor) -> Result<T, ExecutorError>,
    ) -> Result<T, ExecutorError> {
        if self.is_lost() { Err(lost()) } else { call(&mut self.executor) }
    }

    fn is_lost(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1 >= self.fails_at.load(Ordering::Relaxed)
    }
}

fn lost() -> ExecutorError {
    ExecutorError::failed("copy from the device", "CUDA_ERROR_LAUNCH_FAILED")
}

const LOST: &str = "the device failed: could not copy from the device: CUDA_ERROR_LAUNCH_FAILED";

impl Executor for FailingExecutor {
    fn free_bytes(&mut self) -> Result<u64, ExecutorError> {
        self.call_sync(HostExecutor::free_bytes)
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.call_sync(|executor| executor.allocate(bytes))
    }

    fn upload(&mut self, lane: ExecutionLane, bytes: &[u8], to: u64) -> CallResult {
        self.call_async(|executor| executor.upload(lane, bytes, to))
    }

    fn download(&mut self, lane: ExecutionLane, from: u64, bytes: &mut [u8]) -> CallResult {
        self.call_sync(|executor| executor.download(lane, from, bytes))
    }

    fn pin(&mut self, bytes: u64) -> Result<PinnedMemory, ExecutorError> {
        self.call_sync(|executor| executor.pin(bytes))
    }

    fn fill(&mut self, pinned: PinnedMemory, at: u64, bytes: &[u8]) -> CallResult {
        self.call_async(|executor| executor.fill(pinned, at, bytes))
    }

    fn send(&mut self, lane: ExecutionLane, from: HostRange, to: u64) -> CallResult {
        self.call_async(|executor| executor.send(lane, from, to))
    }

    fn fetch(&mut self, lane: ExecutionLane, from: u64, to: HostRange) -> CallResult {
        self.call_async(|executor| executor.fetch(lane, from, to))
    }

    fn launch(&mut self, lane: ExecutionLane, launch: &KernelLaunch) -> CallResult {
        self.call_async(|executor| executor.launch(lane, launch))
    }

    fn multiply(&mut self, lane: ExecutionLane, product: &MatrixProduct) -> CallResult {
        self.call_async(|executor| executor.multiply(lane, product))
    }

    fn follow(&mut self, lane: ExecutionLane, other: ExecutionLane) -> CallResult {
        self.call_async(|executor| executor.follow(lane, other))
    }

    fn is_done(&mut self, lane: ExecutionLane) -> Result<bool, ExecutorError> {
        self.call_sync(|executor| executor.is_done(lane))
    }

    fn graph(&mut self, lane: ExecutionLane, key: GraphKey, work: GraphWork<'_>) -> CallResult {
        self.call_async(|executor| executor.graph(lane, key, work))
    }

    fn wait(&mut self) -> CallResult {
        self.call_sync(HostExecutor::wait)
    }
}

/// The smallest capacity that suffices: a device is opened for each call that fails.
const CAPACITY: BackendCapacity =
    BackendCapacity { slots: 4, pages: 32, rows_max: 16, logits_max: 4, features: 1, offload_bytes: 1 << 20 };

/// The device's results in order.
type DeviceAnswers = Vec<Vec<u32>>;

/// Every operation that an engine uses, with the results as bits.
fn exercise_device(
    case: &BackendCase,
    device: &mut dyn DeviceBackend,
    next: &Path,
    answers: &mut DeviceAnswers,
) -> Result<(), Box<dyn Error>> {
    let vision = case.weights.config.vision.as_ref().unwrap();
    let rows = vision.rows_per_tile() as u32;
    let placeholder = vision.image_token;
    let tiles = tiles(case);
    let ids = case.ids(70, 20);
    let placeholder_ids = vec![placeholder; rows as usize];
    let [mut first, mut second] = [0, 1].map(sequence);

    let spans = [first.span(&ids[..3], &[], LogitRows::Last), second.span(&ids[..6], &[], LogitRows::Last)];
    device.run(&spans)?;
    first.advance(3);
    second.advance(6);
    push_samples(device, 2, answers)?;
    // Twice, so that recorded work is replayed.
    for token in 6..9 {
        let spans = [&first, &second].map(|own| own.span(&ids[token..=token], &[], LogitRows::Last));
        device.run(&spans)?;
        first.advance(1);
        second.advance(1);
        push_samples(device, 2, answers)?;
        answers.push(device.logits(1)?.iter().map(|logit| logit.to_bits()).collect());
    }

    // A snapshot, then the session is offloaded and restored elsewhere.
    device.copy_slot(Slot(1), Slot(3))?;
    device.copy_page(second.pages()[0], Page(24))?;
    let pages = &second.pages()[..1];
    let offloaded = device.offload(Slot(1), pages)?.ok_or("there is no memory for it")?;
    device.is_moving(Slot(1), pages)?;
    device.clear(Slot(1))?;
    device.run(&[first.span(&ids[9..10], &[], LogitRows::Last)])?;
    first.advance(1);
    push_samples(device, 1, answers)?;
    device.restore(&offloaded, Slot(2), &[Page(16)])?;
    let mut back = sequence(2);
    back.advance(second.len());
    device.run(&[back.span(&ids[9..10], &[], LogitRows::Last)])?;
    back.advance(1);
    push_samples(device, 1, answers)?;

    // Other weights are staged while batches run, and swapped in.
    device.stage_weights(Checkpoint::open(next)?)?;
    let mut token = 10;
    while !device.stage_more(200_000)? && token < 14 {
        device.run(&[back.span(&ids[token..=token], &[], LogitRows::Last)])?;
        back.advance(1);
        push_samples(device, 1, answers)?;
        token += 1;
    }
    device.stage_more(u64::MAX)?;
    device.swap_weights()?;
    device.run(&[back.span(&ids[token..=token], &[], LogitRows::Last)])?;
    push_samples(device, 1, answers)?;

    // The tile comes last: here it takes longer than all the rest.
    let features = device.encode(&tiles)?;
    let inset = [ImageInset { at: 0, len: rows, feature: features[0], row: 0 }];
    device.run(&[first.span(&placeholder_ids, &inset, LogitRows::Last)])?;
    push_samples(device, 1, answers)?;
    Ok(device.wait()?)
}

fn push_samples(
    device: &mut dyn DeviceBackend,
    rows: u32,
    answers: &mut DeviceAnswers,
) -> Result<(), Box<dyn Error>> {
    let picks: Vec<SampleRequest<'_>> = (0..rows).map(pick).collect();
    for picked in device.sample(&picks)? {
        // The model's numbers are finite, so a row that is not finite was invented.
        let SampleOutcome::Token(token) = picked else { panic!("a sample was invented for a failure") };
        answers.push(vec![token.id, token.logprob.to_bits(), token.entropy.to_bits()]);
    }
    Ok(())
}

fn pick(row: u32) -> SampleRequest<'static> {
    SampleRequest { row, temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0, allowed: None, uniform: 0.4 }
}

fn tiles(case: &BackendCase) -> Vec<ImageTile> {
    let side = case.weights.config.vision.as_ref().unwrap().tile;
    let pixels = case.ids(90, 3 * side * side).into_iter().map(|value| value as f32 / 48.0 - 1.0).collect();
    vec![ImageTile { pixels, hash: [1; 32] }]
}

/// A device on an executor that fails at a call, counted from its opening.
fn failing_device(
    case: &BackendCase,
    options: BackendOptions,
    timing: FailureTiming,
    fails_at: usize,
) -> (Box<dyn DeviceBackend>, Arc<AtomicUsize>) {
    let (host, _) = HostExecutor::new(BYTES);
    let [calls, at] = [0, usize::MAX].map(|number| Arc::new(AtomicUsize::new(number)));
    let executor = FailingExecutor { executor: host, calls: calls.clone(), fails_at: at.clone(), timing };
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    let device = open(&checkpoint, CAPACITY, options, Box::new(executor), &mut |_, _| {}).unwrap();
    calls.store(0, Ordering::Relaxed);
    at.store(fails_at, Ordering::Relaxed);
    (device, calls)
}

#[test]
fn no_answer_is_invented_when_the_driver_refuses_a_call() {
    each_call_fails(FailureTiming::AtOnce, StagingMode::Device);
}

#[test]
fn no_answer_is_invented_when_a_call_fails_later() {
    each_call_fails(FailureTiming::Later, StagingMode::Host);
}

/// The calls that fail, one after another in devices of their own: every tenth from a random one
/// on, or every `FURROW_LOST_STRIDE`th. Each costs an opened device, and there are hundreds. What
/// fails names its call.
fn failing_calls(all: usize) -> impl Iterator<Item = usize> {
    let stride = std::env::var("FURROW_LOST_STRIDE").map_or(10, |text| text.parse().unwrap());
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let first = 1 + nanos as usize % stride;
    (first..=all).step_by(stride)
}

fn each_call_fails(timing: FailureTiming, stage: StagingMode) {
    if on_a_gpu() {
        return; // A GPU cannot be made to fail.
    }
    let case = BackendCase::made(ModelPrecision::Usual);
    let other = made::written(2, &made::config(), |_, _| {});
    let next = other.path();
    let options = BackendOptions { stage, ..case.options };
    let (mut device, calls) = failing_device(&case, options, timing, usize::MAX);
    let mut whole = DeviceAnswers::new();
    exercise_device(&case, &mut *device, next, &mut whole).unwrap();
    let all = calls.load(Ordering::Relaxed);
    for fails_at in failing_calls(all) {
        let (mut device, calls) = failing_device(&case, options, timing, fails_at);
        let mut answers = DeviceAnswers::new();
        let error = exercise_device(&case, &mut *device, next, &mut answers).unwrap_err();
        assert_eq!(error.to_string(), LOST, "{timing:?}, call {fails_at} of {all}");
        assert!(
            whole.starts_with(&answers),
            "{timing:?}, call {fails_at} of {all}: {} answers",
            answers.len()
        );
        // It stays failed, and the executor gets no more calls.
        let calls_made = calls.load(Ordering::Relaxed);
        assert!(calls_made >= fails_at);
        let left = case.ids(71, 1);
        let later_errors = [
            device.run(&[sequence(0).span(&left, &[], LogitRows::Last)]).map_err(|error| error.to_string()),
            device.encode(&tiles(&case)).map(drop).map_err(|error| error.to_string()),
            device.sample(&[]).map(drop).map_err(|error| error.to_string()),
            device.clear(Slot(0)).map_err(|error| error.to_string()),
            device.copy_slot(Slot(0), Slot(3)).map_err(|error| error.to_string()),
            device.copy_page(Page(0), Page(31)).map_err(|error| error.to_string()),
            device.offload(Slot(0), &[]).map(drop).map_err(|error| error.to_string()),
            device.stage_weights(Checkpoint::open(next).unwrap()).map_err(|error| error.to_string()),
            device.wait().map_err(|error| error.to_string()),
        ];
        assert!(
            later_errors.iter().all(|later_error| later_error.as_ref().is_err_and(|why| why == LOST)),
            "{later_errors:?}"
        );
        assert_eq!(
            calls.load(Ordering::Relaxed),
            calls_made,
            "{timing:?}: a failed executor got another call"
        );
    }
    assert!(all > 150 && whole.len() > 12, "{all} calls, {} answers", whole.len());
}
