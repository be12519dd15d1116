//! An executor on the host: memory is this process's, kernels run through the shim, products in
//! plain Rust, graphs are lists of the recorded steps.
//!
//! Memory is initially NaN, so reads of memory that was never written are noticed. Replaying a
//! graph does exactly what was recorded, so pointers that should have changed are noticed, too.
//!
//! Lanes are queues. Late lanes do nothing until something waits for them, the others do everything
//! at once. So work that does not wait for its inputs finds that they are missing, and work that
//! nothing waits for comes too late.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use furrow_cuda::executor::{
    ElementType, ExecutionLane, Executor, ExecutorError, GraphKey, GraphWork, HostRange, MatrixProduct,
    PinnedMemory,
};
use furrow_cuda::launch::KernelLaunch;
use furrow_cuda::sources::KERNELS;
use half::bf16;

use crate::shim::ShimLibrary;

type ExecutorResult = Result<(), ExecutorError>;

/// Counters and controls for tests.
#[derive(Debug, Default)]
pub(crate) struct ExecutorGauge {
    pub recorded: AtomicUsize,
    pub replayed: AtomicUsize,
    /// Launches and products after which the device fails; 0: never.
    pub fails_at: AtomicUsize,
    /// Work that lanes have received and not done.
    pub put_off: AtomicUsize,
    done: AtomicUsize,
    /// Bytes requested of the device, and of pinned memory.
    pub allocated: AtomicU64,
    pub pinned: AtomicU64,
}

/// Lanes in the order of their queues.
const LANES: [ExecutionLane; 3] = [ExecutionLane::Batch, ExecutionLane::Vision, ExecutionLane::Copy];
/// Lanes that are late by default: those that batches wait for.
pub(crate) const LATE: &[ExecutionLane] = &[ExecutionLane::Vision, ExecutionLane::Copy];

pub(crate) struct HostExecutor {
    gauge: Arc<ExecutorGauge>,
    free: u64,
    memory: Vec<Box<[AlignedLine]>>,
    pinned: Vec<Vec<u8>>,
    /// Bytes of host memory that can be pinned.
    pub pinnable: u64,
    /// Lanes that do nothing until something waits for them.
    pub late: &'static [ExecutionLane],
    pub planted: Option<PlantedFault>,
    queues: [VecDeque<LaneTask>; 3],
    /// Tasks that each lane has done.
    ended: [u64; 3],
    graphs: BTreeMap<GraphKey, Vec<GraphStep>>,
    recording: Option<Vec<GraphStep>>,
}

/// A fault: work that does not wait for its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlantedFault {
    /// The first lane never waits for the second.
    Deaf(ExecutionLane, ExecutionLane),
    /// Reads pinned memory before the copy that fills it has ended.
    SendsAtOnce,
    /// Writes pinned memory before the copy that reads it has ended.
    FetchesAtOnce,
}

/// The work of a lane.
enum LaneTask {
    Step(GraphStep),
    Upload {
        bytes: Vec<u8>,
        to: u64,
    },
    Send {
        from: HostRange,
        to: u64,
    },
    Fetch {
        from: u64,
        to: HostRange,
    },
    /// Waits until another lane has done this many tasks.
    Follow {
        other: usize,
        tasks: u64,
    },
}

impl LaneTask {
    /// 1 if it does work; waiting does not count.
    fn works(&self) -> usize {
        usize::from(!matches!(self, Self::Follow { .. }))
    }
}

#[derive(Clone)]
enum GraphStep {
    Launch(KernelLaunch),
    Multiply(MatrixProduct),
}

/// The alignment of devices' allocations.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct AlignedLine([u8; 256]);

impl HostExecutor {
    /// An executor with this many bytes of memory.
    pub(crate) fn new(free: u64) -> (Self, Arc<ExecutorGauge>) {
        let gauge = Arc::<ExecutorGauge>::default();
        let executor = Self {
            gauge: gauge.clone(),
            free,
            memory: Vec::new(),
            pinned: Vec::new(),
            pinnable: u64::MAX,
            late: LATE,
            planted: None,
            queues: Default::default(),
            ended: [0; 3],
            graphs: BTreeMap::new(),
            recording: None,
        };
        (executor, gauge)
    }

    /// Gives a lane a task, which is done at once or when something waits for it.
    fn give(&mut self, lane: ExecutionLane, task: LaneTask) -> ExecutorResult {
        let index = queue_index(lane);
        self.gauge.put_off.fetch_add(task.works(), Ordering::Relaxed);
        self.queues[index].push_back(task);
        if self.late.contains(&lane) { Ok(()) } else { self.catch_up(index, u64::MAX) }
    }

    /// Makes a lane do its tasks until this many are done, or all.
    fn catch_up(&mut self, lane: usize, tasks: u64) -> ExecutorResult {
        while self.ended[lane] < tasks
            && let Some(task) = self.queues[lane].pop_front()
        {
            self.gauge.put_off.fetch_sub(task.works(), Ordering::Relaxed);
            match task {
                LaneTask::Step(step) => self.step(&step)?,
                LaneTask::Upload { bytes, to } => self.write_bytes(&bytes, to),
                LaneTask::Send { from, to } => self.send_now(from, to),
                LaneTask::Fetch { from, to } => self.fetch_now(from, to),
                LaneTask::Follow { other, tasks } => self.catch_up(other, tasks)?,
            }
            self.ended[lane] += 1;
        }
        Ok(())
    }

    fn send_now(&self, from: HostRange, to: u64) {
        self.write_bytes(&self.pinned[from.pinned.0][range(from)], to);
    }

    fn fetch_now(&mut self, from: u64, to: HostRange) {
        let bytes = self.read_bytes(from, to.bytes as usize).to_vec();
        self.pinned[to.pinned.0][range(to)].copy_from_slice(&bytes);
    }

    fn write_bytes(&self, bytes: &[u8], to: u64) {
        self.assert_inside(to, bytes.len());
        // SAFETY: the bytes are memory of this executor, and the caller's slice is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }

    fn read_bytes(&self, from: u64, len: usize) -> &[u8] {
        self.assert_inside(from, len);
        // SAFETY: the bytes are memory of this executor; the owner of the slice holds the executor.
        unsafe { std::slice::from_raw_parts(from as *const u8, len) }
    }

    /// Runs or records a launch or a product.
    fn work(&mut self, lane: ExecutionLane, step: GraphStep) -> ExecutorResult {
        if let Some(recording) = &mut self.recording {
            recording.push(step.clone());
        }
        self.give(lane, LaneTask::Step(step))
    }

    fn step(&mut self, step: &GraphStep) -> ExecutorResult {
        let done = self.gauge.done.fetch_add(1, Ordering::Relaxed) + 1;
        let fails_at = self.gauge.fails_at.load(Ordering::Relaxed);
        if fails_at > 0 && done >= fails_at {
            return Err(ExecutorError::failed("run a kernel", "the executor is gone"));
        }
        match step {
            GraphStep::Launch(launch) => {
                let run = library(launch.file).run(launch);
                run.map_err(|why| ExecutorError::failed(format!("run {}", launch.kernel), why))?;
            }
            GraphStep::Multiply(product) => self.multiply_now(product),
        }
        Ok(())
    }

    /// Checks that the bytes are memory of this executor.
    fn assert_inside(&self, address: u64, bytes: usize) {
        let inside = self.memory.iter().any(|lines| {
            let first = lines.as_ptr() as u64;
            address >= first && address + bytes as u64 <= first + size_of_val(&**lines) as u64
        });
        assert!(inside || bytes == 0, "{bytes} bytes at {address:#x} are not memory of the device");
    }

    fn multiply_now(&self, product: &MatrixProduct) {
        let shape = product.shape;
        let read = |address: u64, count: usize| self.read(address, count, shape.values);
        let weight = read(product.weight, shape.outputs * shape.inputs);
        // Sums in an order that depends on the shape, as a library that is optimised for speed
        // does.
        let lanes = SUMS - shape.rows.max(1).ilog2() as usize % 4;
        let bias = if shape.biased { read(product.bias, shape.outputs) } else { vec![0.0; shape.outputs] };
        for row in 0..shape.rows {
            let at =
                |base: u64, stride: usize, number: ElementType| base + (row * stride * number.bytes()) as u64;
            let input = read(at(product.input, shape.input_stride, shape.values), shape.inputs);
            let to = at(product.output, shape.output_stride, shape.results);
            let old = match shape.adds {
                true => self.read(to, shape.outputs, shape.results),
                false => vec![0.0; shape.outputs],
            };
            let output: Vec<f32> = weight
                .chunks_exact(shape.inputs)
                .zip(bias.iter().zip(&old))
                .map(|(weight, (bias, old))| dot(weight, &input, lanes) + bias + old)
                .collect();
            self.write(to, &output, shape.results);
        }
    }

    fn read(&self, address: u64, count: usize, number: ElementType) -> Vec<f32> {
        self.assert_inside(address, count * number.bytes());
        match number {
            // SAFETY: the bytes are memory of this executor, which nothing else touches during a
            // call; any bits are a float32.
            ElementType::F32 => unsafe { std::slice::from_raw_parts(address as *const f32, count) }.to_vec(),
            // SAFETY: as above.
            ElementType::Bf16 => unsafe { std::slice::from_raw_parts(address as *const bf16, count) }
                .iter()
                .map(|value| value.to_f32())
                .collect(),
        }
    }

    fn write(&self, address: u64, values: &[f32], number: ElementType) {
        self.assert_inside(address, values.len() * number.bytes());
        match number {
            // SAFETY: as in `read`; no slice of it exists.
            ElementType::F32 => unsafe { std::slice::from_raw_parts_mut(address as *mut f32, values.len()) }
                .copy_from_slice(values),
            ElementType::Bf16 => {
                // SAFETY: as above.
                let written = unsafe { std::slice::from_raw_parts_mut(address as *mut bf16, values.len()) };
                for (to, value) in written.iter_mut().zip(values) {
                    *to = bf16::from_f32(*value);
                }
            }
        }
    }
}

fn queue_index(lane: ExecutionLane) -> usize {
    LANES.iter().position(|one| *one == lane).unwrap()
}

fn range(HostRange { at, bytes, .. }: HostRange) -> std::ops::Range<usize> {
    at as usize..(at + bytes) as usize
}

/// Most partial sums of a product.
const SUMS: usize = 8;

fn dot(a: &[f32], b: &[f32], lanes: usize) -> f32 {
    let mut sums = [0.0_f32; SUMS];
    for (a, b) in a.chunks(lanes).zip(b.chunks(lanes)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

/// A kernel file, compiled once for all tests.
fn library(file: &str) -> &'static ShimLibrary {
    static ALL: Mutex<BTreeMap<&'static str, &'static ShimLibrary>> = Mutex::new(BTreeMap::new());
    assert!(
        std::env::var_os("FURROW_TEST_GPU").is_none_or(|value| value == "host"),
        "the shim is not used with a GPU"
    );
    let source = KERNELS.iter().find(|source| source.name == file).unwrap();
    let mut all = ALL.lock().unwrap();
    all.entry(source.name).or_insert_with(|| Box::leak(Box::new(ShimLibrary::build(*source))))
}

impl Executor for HostExecutor {
    fn free_bytes(&mut self) -> Result<u64, ExecutorError> {
        Ok(self.free)
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.gauge.allocated.fetch_add(bytes, Ordering::Relaxed);
        let lines = vec![AlignedLine([0xff; 256]); bytes.div_ceil(256) as usize].into_boxed_slice();
        self.memory.push(lines);
        Ok(self.memory.last().unwrap().as_ptr() as u64)
    }

    fn upload(&mut self, lane: ExecutionLane, bytes: &[u8], to: u64) -> ExecutorResult {
        assert!(self.recording.is_none(), "an upload cannot be part of a graph");
        self.give(lane, LaneTask::Upload { bytes: bytes.to_vec(), to })
    }

    fn download(&mut self, lane: ExecutionLane, from: u64, bytes: &mut [u8]) -> ExecutorResult {
        assert!(self.recording.is_none(), "a download cannot be part of a graph");
        self.catch_up(queue_index(lane), u64::MAX)?;
        bytes.copy_from_slice(self.read_bytes(from, bytes.len()));
        Ok(())
    }

    fn pin(&mut self, bytes: u64) -> Result<PinnedMemory, ExecutorError> {
        self.pinnable =
            self.pinnable.checked_sub(bytes).ok_or(ExecutorError::NoHostMemory { requested: bytes })?;
        self.gauge.pinned.fetch_add(bytes, Ordering::Relaxed);
        self.pinned.push(vec![0xff; bytes as usize]);
        Ok(PinnedMemory(self.pinned.len() - 1))
    }

    fn fill(&mut self, pinned: PinnedMemory, at: u64, bytes: &[u8]) -> ExecutorResult {
        self.pinned[pinned.0][at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn send(&mut self, lane: ExecutionLane, from: HostRange, to: u64) -> ExecutorResult {
        assert!(self.recording.is_none(), "a copy cannot be part of a graph");
        if self.planted == Some(PlantedFault::SendsAtOnce) {
            self.send_now(from, to);
            return Ok(());
        }
        self.give(lane, LaneTask::Send { from, to })
    }

    fn fetch(&mut self, lane: ExecutionLane, from: u64, to: HostRange) -> ExecutorResult {
        assert!(self.recording.is_none(), "a copy cannot be part of a graph");
        if self.planted == Some(PlantedFault::FetchesAtOnce) {
            self.fetch_now(from, to);
            return Ok(());
        }
        self.give(lane, LaneTask::Fetch { from, to })
    }

    fn launch(&mut self, lane: ExecutionLane, launch: &KernelLaunch) -> ExecutorResult {
        self.work(lane, GraphStep::Launch(launch.clone()))
    }

    fn multiply(&mut self, lane: ExecutionLane, product: &MatrixProduct) -> ExecutorResult {
        self.work(lane, GraphStep::Multiply(*product))
    }

    fn follow(&mut self, lane: ExecutionLane, other: ExecutionLane) -> ExecutorResult {
        assert!(self.recording.is_none(), "another lane cannot be part of a graph");
        if self.planted == Some(PlantedFault::Deaf(lane, other)) {
            return Ok(());
        }
        let other = queue_index(other);
        let tasks = self.ended[other] + self.queues[other].len() as u64;
        self.give(lane, LaneTask::Follow { other, tasks })
    }

    fn is_done(&mut self, lane: ExecutionLane) -> Result<bool, ExecutorError> {
        Ok(self.queues[queue_index(lane)].is_empty())
    }

    fn graph(&mut self, lane: ExecutionLane, key: GraphKey, work: GraphWork<'_>) -> ExecutorResult {
        if let Some(steps) = self.graphs.get(&key).cloned() {
            self.gauge.replayed.fetch_add(1, Ordering::Relaxed);
            return steps.into_iter().try_for_each(|step| self.give(lane, LaneTask::Step(step)));
        }
        self.gauge.recorded.fetch_add(1, Ordering::Relaxed);
        self.recording = Some(Vec::new());
        let done = work(self);
        let steps = self.recording.take().unwrap();
        self.graphs.insert(key, steps);
        done
    }

    fn wait(&mut self) -> ExecutorResult {
        (0..LANES.len()).try_for_each(|lane| self.catch_up(lane, u64::MAX))
    }
}
