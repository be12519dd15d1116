//! An executor of air: memory is this process's, kernels run through the shim, products in plain Rust, graphs are lists of what was recorded.
//!
//! Memory is full of NaN at first, so whatever reads what nobody wrote shows. A graph that is replayed does exactly what was recorded: pointers that
//! should have moved, and did not, show.
//!
//! Lanes are queues. The late ones do nothing until somebody waits for them, the others do everything at once: so work that does not wait for what it needs
//! finds that nothing is there yet, and work that is not waited for comes too late.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use furrow_cuda::executor::{
    Executor, ExecutorError, GraphKey, HostStretch, Lane, Number, Pinned, Product, Work,
};
use furrow_cuda::launch::Launch;
use furrow_cuda::sources::KERNELS;
use half::bf16;

use crate::shim::Library;

type Done = Result<(), ExecutorError>;

/// What the tests may ask and tell from outside.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Graphs recorded.
    pub recorded: AtomicUsize,
    /// Graphs replayed.
    pub replayed: AtomicUsize,
    /// Launches and products after which the device fails; 0: never.
    pub fails_at: AtomicUsize,
    /// What lanes were told to do and have not done.
    pub put_off: AtomicUsize,
    done: AtomicUsize,
    /// Bytes of the device that were asked for, and of pinned memory.
    pub allocated: AtomicU64,
    pub pinned: AtomicU64,
}

/// Lanes in the order of their queues.
const LANES: [Lane; 3] = [Lane::Batch, Lane::Vision, Lane::Copy];
/// What is done as late as may be where nobody says otherwise: what batches wait for.
pub const LATE: &[Lane] = &[Lane::Vision, Lane::Copy];

/// The executor.
pub struct Air {
    gauge: Arc<Gauge>,
    free: u64,
    memory: Vec<Box<[Line]>>,
    pinned: Vec<Vec<u8>>,
    /// Bytes of this machine that can be pinned.
    pub lent: u64,
    /// Lanes that do nothing until somebody waits for them.
    pub late: &'static [Lane],
    /// What it does wrong.
    pub planted: Option<Planted>,
    queues: [VecDeque<Task>; 3],
    /// Tasks that each lane has done.
    ended: [u64; 3],
    graphs: BTreeMap<GraphKey, Vec<Step>>,
    recording: Option<Vec<Step>>,
}

/// A bug: work that does not wait for what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The first lane never waits for the second.
    Deaf(Lane, Lane),
    /// Pinned memory is read before what was to be written there has come.
    SendsAtOnce,
    /// Pinned memory is written before what was there has gone.
    FetchesAtOnce,
}

/// What a lane does when its turn comes.
enum Task {
    Step(Step),
    Upload {
        bytes: Vec<u8>,
        to: u64,
    },
    Send {
        from: HostStretch,
        to: u64,
    },
    Fetch {
        from: u64,
        to: HostStretch,
    },
    /// Waits until another lane has done so many tasks.
    Follow {
        other: usize,
        tasks: u64,
    },
}

impl Task {
    /// 1; waiting is no work.
    fn works(&self) -> usize {
        usize::from(!matches!(self, Self::Follow { .. }))
    }
}

#[derive(Clone)]
enum Step {
    Launch(Launch),
    Multiply(Product),
}

/// As devices align what they allocate.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Line([u8; 256]);

impl Air {
    /// With so many bytes of memory.
    pub fn new(free: u64) -> (Self, Arc<Gauge>) {
        let gauge = Arc::<Gauge>::default();
        let air = Self {
            gauge: gauge.clone(),
            free,
            memory: Vec::new(),
            pinned: Vec::new(),
            lent: u64::MAX,
            late: LATE,
            planted: None,
            queues: Default::default(),
            ended: [0; 3],
            graphs: BTreeMap::new(),
            recording: None,
        };
        (air, gauge)
    }

    /// Gives a lane a task: it is done at once, or when somebody waits for it.
    fn give(&mut self, lane: Lane, task: Task) -> Done {
        let index = place(lane);
        self.gauge.put_off.fetch_add(task.works(), Ordering::Relaxed);
        self.queues[index].push_back(task);
        if self.late.contains(&lane) { Ok(()) } else { self.catch_up(index, u64::MAX) }
    }

    /// Has a lane do its tasks until it has done so many, or all.
    fn catch_up(&mut self, lane: usize, tasks: u64) -> Done {
        while self.ended[lane] < tasks
            && let Some(task) = self.queues[lane].pop_front()
        {
            self.gauge.put_off.fetch_sub(task.works(), Ordering::Relaxed);
            match task {
                Task::Step(step) => self.step(&step)?,
                Task::Upload { bytes, to } => self.write_bytes(&bytes, to),
                Task::Send { from, to } => self.send_now(from, to),
                Task::Fetch { from, to } => self.fetch_now(from, to),
                Task::Follow { other, tasks } => self.catch_up(other, tasks)?,
            }
            self.ended[lane] += 1;
        }
        Ok(())
    }

    fn send_now(&self, from: HostStretch, to: u64) {
        self.write_bytes(&self.pinned[from.pinned.0][range(from)], to);
    }

    fn fetch_now(&mut self, from: u64, to: HostStretch) {
        let bytes = self.read_bytes(from, to.bytes as usize).to_vec();
        self.pinned[to.pinned.0][range(to)].copy_from_slice(&bytes);
    }

    fn write_bytes(&self, bytes: &[u8], to: u64) {
        self.assert_inside(to, bytes.len());
        // SAFETY: the bytes are memory of this executor, which the caller's slice is not part of.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }

    fn read_bytes(&self, from: u64, len: usize) -> &[u8] {
        self.assert_inside(from, len);
        // SAFETY: the bytes are memory of this executor; whoever holds the slice holds the executor.
        unsafe { std::slice::from_raw_parts(from as *const u8, len) }
    }

    /// A launch or a product, and its place in what is recorded.
    fn work(&mut self, lane: Lane, step: Step) -> Done {
        if let Some(recording) = &mut self.recording {
            recording.push(step.clone());
        }
        self.give(lane, Task::Step(step))
    }

    fn step(&mut self, step: &Step) -> Done {
        let done = self.gauge.done.fetch_add(1, Ordering::Relaxed) + 1;
        let fails_at = self.gauge.fails_at.load(Ordering::Relaxed);
        if fails_at > 0 && done >= fails_at {
            return Err(ExecutorError::failed("run a kernel", "the air is gone"));
        }
        match step {
            Step::Launch(launch) => {
                let run = library(launch.file).run(launch);
                run.map_err(|why| ExecutorError::failed(format!("run {}", launch.kernel), why))?;
            }
            Step::Multiply(product) => self.multiply_now(product),
        }
        Ok(())
    }

    /// Whether the bytes are in memory of this executor.
    fn assert_inside(&self, address: u64, bytes: usize) {
        let inside = self.memory.iter().any(|lines| {
            let first = lines.as_ptr() as u64;
            address >= first && address + bytes as u64 <= first + size_of_val(&**lines) as u64
        });
        assert!(inside || bytes == 0, "{bytes} bytes at {address:#x} are not the device's");
    }

    fn multiply_now(&self, product: &Product) {
        let shape = product.shape;
        let read = |address: u64, count: usize| self.read(address, count, shape.values);
        let weight = read(product.weight, shape.outputs * shape.inputs);
        // A library that is made for speed sums in an order that depends on the shape.
        let lanes = SUMS - shape.rows.max(1).ilog2() as usize % 4;
        let bias = if shape.biased { read(product.bias, shape.outputs) } else { vec![0.0; shape.outputs] };
        for row in 0..shape.rows {
            let at = |base: u64, stride: usize, number: Number| base + (row * stride * number.bytes()) as u64;
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

    fn read(&self, address: u64, count: usize, number: Number) -> Vec<f32> {
        self.assert_inside(address, count * number.bytes());
        match number {
            // SAFETY: the bytes are memory of this executor, which nothing else touches during a call; any bits are a float32.
            Number::F32 => unsafe { std::slice::from_raw_parts(address as *const f32, count) }.to_vec(),
            // SAFETY: as above.
            Number::Bf16 => unsafe { std::slice::from_raw_parts(address as *const bf16, count) }
                .iter()
                .map(|value| value.to_f32())
                .collect(),
        }
    }

    fn write(&self, address: u64, values: &[f32], number: Number) {
        self.assert_inside(address, values.len() * number.bytes());
        match number {
            // SAFETY: as in `read`; no slice of it lives.
            Number::F32 => unsafe { std::slice::from_raw_parts_mut(address as *mut f32, values.len()) }
                .copy_from_slice(values),
            // SAFETY: as above.
            Number::Bf16 => unsafe { std::slice::from_raw_parts_mut(address as *mut bf16, values.len()) }
                .iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to = bf16::from_f32(*value)),
        }
    }
}

fn place(lane: Lane) -> usize {
    LANES.iter().position(|one| *one == lane).unwrap()
}

fn range(HostStretch { at, bytes, .. }: HostStretch) -> std::ops::Range<usize> {
    at as usize..(at + bytes) as usize
}

/// Sums of a product at most.
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
fn library(file: &str) -> &'static Library {
    static ALL: Mutex<BTreeMap<&'static str, &'static Library>> = Mutex::new(BTreeMap::new());
    assert!(
        std::env::var_os("FURROW_TEST_GPU").is_none_or(|asked| asked == "air"),
        "a GPU runs kernels by itself"
    );
    let source = KERNELS.iter().find(|source| source.name == file).unwrap();
    let mut all = ALL.lock().unwrap();
    all.entry(source.name).or_insert_with(|| Box::leak(Box::new(Library::build(*source))))
}

impl Executor for Air {
    fn free_bytes(&mut self) -> Result<u64, ExecutorError> {
        Ok(self.free)
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.gauge.allocated.fetch_add(bytes, Ordering::Relaxed);
        let lines = vec![Line([0xff; 256]); bytes.div_ceil(256) as usize].into_boxed_slice();
        self.memory.push(lines);
        Ok(self.memory.last().unwrap().as_ptr() as u64)
    }

    fn upload(&mut self, lane: Lane, bytes: &[u8], to: u64) -> Done {
        assert!(self.recording.is_none(), "an upload is no part of a graph");
        self.give(lane, Task::Upload { bytes: bytes.to_vec(), to })
    }

    fn download(&mut self, lane: Lane, from: u64, bytes: &mut [u8]) -> Done {
        assert!(self.recording.is_none(), "a download is no part of a graph");
        self.catch_up(place(lane), u64::MAX)?;
        bytes.copy_from_slice(self.read_bytes(from, bytes.len()));
        Ok(())
    }

    fn pin(&mut self, bytes: u64) -> Result<Pinned, ExecutorError> {
        self.lent = self.lent.checked_sub(bytes).ok_or(ExecutorError::NoHostMemory { asked: bytes })?;
        self.gauge.pinned.fetch_add(bytes, Ordering::Relaxed);
        self.pinned.push(vec![0xff; bytes as usize]);
        Ok(Pinned(self.pinned.len() - 1))
    }

    fn fill(&mut self, pinned: Pinned, at: u64, bytes: &[u8]) -> Done {
        self.pinned[pinned.0][at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn send(&mut self, lane: Lane, from: HostStretch, to: u64) -> Done {
        assert!(self.recording.is_none(), "a copy is no part of a graph");
        if self.planted == Some(Planted::SendsAtOnce) {
            self.send_now(from, to);
            return Ok(());
        }
        self.give(lane, Task::Send { from, to })
    }

    fn fetch(&mut self, lane: Lane, from: u64, to: HostStretch) -> Done {
        assert!(self.recording.is_none(), "a copy is no part of a graph");
        if self.planted == Some(Planted::FetchesAtOnce) {
            self.fetch_now(from, to);
            return Ok(());
        }
        self.give(lane, Task::Fetch { from, to })
    }

    fn launch(&mut self, lane: Lane, launch: &Launch) -> Done {
        self.work(lane, Step::Launch(launch.clone()))
    }

    fn multiply(&mut self, lane: Lane, product: &Product) -> Done {
        self.work(lane, Step::Multiply(*product))
    }

    fn follow(&mut self, lane: Lane, other: Lane) -> Done {
        assert!(self.recording.is_none(), "another lane is no part of a graph");
        if self.planted == Some(Planted::Deaf(lane, other)) {
            return Ok(());
        }
        let other = place(other);
        let tasks = self.ended[other] + self.queues[other].len() as u64;
        self.give(lane, Task::Follow { other, tasks })
    }

    fn is_done(&mut self, lane: Lane) -> Result<bool, ExecutorError> {
        Ok(self.queues[place(lane)].is_empty())
    }

    fn graph(&mut self, lane: Lane, key: GraphKey, work: Work<'_>) -> Done {
        if let Some(steps) = self.graphs.get(&key).cloned() {
            self.gauge.replayed.fetch_add(1, Ordering::Relaxed);
            return steps.into_iter().try_for_each(|step| self.give(lane, Task::Step(step)));
        }
        self.gauge.recorded.fetch_add(1, Ordering::Relaxed);
        self.recording = Some(Vec::new());
        let done = work(self);
        let steps = self.recording.take().unwrap();
        self.graphs.insert(key, steps);
        done
    }

    fn wait(&mut self) -> Done {
        (0..LANES.len()).try_for_each(|lane| self.catch_up(lane, u64::MAX))
    }
}
