//! The executor that has a GPU: kernels compiled for it, three streams, pinned staging, cuBLASLt, graphs.
//!
//! ```text
//!                    ┌── batch stream (high priority) ── launches, products, graphs ──▶
//! engine's thread ───┤        ▲ events, where one lane follows another
//!                    ├── vision stream (low priority) ── the tower ──▶
//!                    └── copy stream (low priority) ── parked states, by the copy engines ──▶
//! ```
//!
//! One thread gives the work. Streams keep it in order; nothing is waited for but answers (`download`) and a staging buffer that is still being read.
#![allow(unsafe_code)]

mod carry;
mod kernels;
mod pinned;
mod products;
mod staging;
mod stream;

use std::collections::BTreeMap;
use std::path::PathBuf;

use cudarc::driver::{DriverError, result, sys};
use furrow_model::kernels::Team;

use self::kernels::Kernels;
use self::pinned::HostBytes;
use self::products::{Products, ProductsError};
use self::staging::Staging;
use self::stream::{Event, Stream};
use crate::cache::{Cache, CacheError};
use crate::compile::{CompileError, Compiler};
use crate::device::{Device, DeviceError};
use crate::executor::{Executor, ExecutorError, GraphKey, HostStretch, Lane, Pinned, Product, Work};
use crate::launch::Launch;

/// Memory left to recorded graphs, code and whatever libraries take: 35 buckets of some 400 nodes stay well below it.
pub const RESERVE_BYTES: u64 = 768 << 20;

/// Device memory of cuBLASLt, a workspace for each lane that multiplies. It is taken when a GPU is opened, so [`Executor::free_bytes`] does not count it.
pub const WORKSPACES_BYTES: u64 = 2 * products::WORKSPACE_BYTES as u64;

/// Pinned memory that copies between pageable memory and the device go through: two halves for each lane that works.
pub const STAGING_BYTES: u64 = 2 * 2 * staging::HALF as u64;

/// Where things are that CUDA needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// Which GPU, as the driver numbers them.
    pub ordinal: usize,
    /// Folders with NVIDIA's libraries, beside those the system knows.
    pub libraries: Vec<PathBuf>,
    /// Where compiled kernels are kept.
    pub cache: PathBuf,
}

/// Why a GPU is not used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// None was opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No compiler.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A kernel did not compile, or was not kept.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// No cuBLASLt.
    #[error(transparent)]
    Products(#[from] ProductsError),
    /// The driver refused.
    #[error("the GPU was opened, but the driver could not {operation}")]
    Driver {
        /// What was asked of it.
        operation: &'static str,
        /// Its answer.
        source: DriverError,
    },
}

/// A GPU at work.
pub struct Gpu {
    // Dropped in this order: what is under way ends first, the context last.
    graphs: BTreeMap<GraphKey, Known>,
    lanes: [Stream; 3],
    passed: [Event; 3],
    /// Of the lanes that work: the third one copies from and to pinned memory alone.
    staging: [Staging; 2],
    products: Products,
    kernels: Kernels,
    memory: Vec<u64>,
    pinned: Vec<HostBytes>,
    /// Cores that carry bytes between pageable and pinned memory.
    carriers: Team,
    device: Device,
}

/// What is known of a batch's form.
enum Known {
    /// It was run once, so that libraries have loaded what they load lazily; they must not while recording.
    Run,
    /// It was recorded.
    Recorded(Graph),
    /// There was no memory for its record: it is run as the first time.
    Plain,
}

/// A graph that can be launched.
struct Graph(sys::CUgraphExec);

// SAFETY: handles of the driver may be used by any thread whose context is bound; every call binds it, and `&mut self` keeps them one at a time.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens a GPU, compiles every kernel for it (or finds it compiled) and loads them all.
    pub fn open(places: &Places) -> Result<Self, GpuError> {
        let device = Device::open(places.ordinal)?;
        bind(&device).map_err(failed("take the context"))?;
        let has_compiler = |folder: &&PathBuf| kernels::holds(folder, "libnvrtc.so");
        let compiler = Compiler::open(places.libraries.iter().find(has_compiler).map(PathBuf::as_path))?;
        device.check_compiler(compiler.version())?;
        let kernels = Kernels::load(&Cache::new(compiler, &places.cache), &device)?;
        let [low, high] = stream::priorities().map_err(failed("tell the priorities of streams"))?;
        let stream = |priority| Stream::new(priority).map_err(failed("make a stream"));
        let event = || Event::new().map_err(failed("make an event"));
        let staging = || Staging::new().map_err(failed("pin memory"));
        Ok(Self {
            graphs: BTreeMap::new(),
            lanes: [stream(high)?, stream(low)?, stream(low)?],
            passed: [event()?, event()?, event()?],
            staging: [staging()?, staging()?],
            products: Products::open(&places.libraries)?,
            kernels,
            memory: Vec::new(),
            pinned: Vec::new(),
            carriers: carry::carriers(),
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn stream(&self, lane: Lane) -> sys::CUstream {
        self.lanes[index(lane)].raw()
    }

    fn bind(&self) -> Result<(), ExecutorError> {
        bind(&self.device).map_err(|source| ExecutorError::failed("take the context", source))
    }

    /// Records what `work` gives to a lane, and does none of it; `None` where the device has no memory for the record.
    fn record(&mut self, lane: Lane, work: Work<'_>) -> Result<Option<Graph>, ExecutorError> {
        let stream = self.stream(lane);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this, and nothing is being recorded on it.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(step("begin to record"))?;
        let done = work(self);
        // SAFETY: recording began above. It is ended whether the work was taken or not.
        let graph = unsafe { result::stream::end_capture(stream) };
        done?;
        let graph = graph.map_err(step("end recording"))?;
        // SAFETY: the graph was just recorded; it is destroyed once, when it has been made ready or refused.
        let ready = unsafe {
            let ready = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph).map_err(step("drop a recording"))?;
            ready
        };
        match ready {
            Ok(graph) => Ok(Some(Graph(graph))),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(step("make a recording ready")(error)),
        }
    }
}

fn index(lane: Lane) -> usize {
    match lane {
        Lane::Batch => 0,
        Lane::Vision => 1,
        Lane::Copy => 2,
    }
}

fn range(HostStretch { at, bytes, .. }: HostStretch) -> std::ops::Range<usize> {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    place(at)..place(at.saturating_add(bytes))
}

fn bind(device: &Device) -> Result<(), DriverError> {
    device.context().bind_to_thread()
}

fn failed(operation: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |source| GpuError::Driver { operation, source }
}

/// A failure of a step of work.
fn step(operation: &'static str) -> impl Fn(DriverError) -> ExecutorError {
    move |source| ExecutorError::failed(operation, source)
}

impl Executor for Gpu {
    fn free_bytes(&mut self) -> Result<u64, ExecutorError> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(step("tell its free memory"))?;
        Ok((free as u64).saturating_sub(RESERVE_BYTES))
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.bind()?;
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the context is bound; what is in the memory does not matter to whoever asked.
        match unsafe { result::malloc_sync(count) } {
            Ok(address) => {
                self.memory.push(address);
                Ok(address)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(ExecutorError::NoMemory { asked: bytes, free: self.free_bytes()? })
            }
            Err(error) => Err(step("allocate memory")(error)),
        }
    }

    fn upload(&mut self, lane: Lane, bytes: &[u8], to: u64) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        self.staging[index(lane)]
            .upload(&self.carriers, bytes, to, stream)
            .map_err(step("copy to the device"))
    }

    fn download(&mut self, lane: Lane, from: u64, bytes: &mut [u8]) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        self.staging[index(lane)]
            .download(&self.carriers, from, bytes, stream)
            .map_err(step("copy from the device"))
    }

    fn pin(&mut self, bytes: u64) -> Result<Pinned, ExecutorError> {
        self.bind()?;
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        match HostBytes::new(count) {
            Ok(pinned) => self.pinned.push(pinned),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(ExecutorError::NoHostMemory { asked: bytes });
            }
            Err(error) => return Err(step("pin memory")(error)),
        }
        Ok(Pinned(self.pinned.len() - 1))
    }

    fn fill(&mut self, pinned: Pinned, at: u64, bytes: &[u8]) -> Result<(), ExecutorError> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        carry::carry(&self.carriers, bytes, self.pinned[pinned.0].slice(at..at.saturating_add(bytes.len())));
        Ok(())
    }

    fn send(&mut self, lane: Lane, from: HostStretch, to: u64) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        let (first, len) = self.pinned[from.pinned.0].place(range(from));
        // SAFETY: the bytes are pinned and stay until this is dropped, which waits for the copy; nobody writes to them before that (`Executor::send`); the
        // device's bytes are the caller's.
        let sent = unsafe { sys::cuMemcpyHtoDAsync_v2(to, first.cast(), len, stream) };
        sent.result().map_err(step("copy to the device"))
    }

    fn fetch(&mut self, lane: Lane, from: u64, to: HostStretch) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        let (first, len) = self.pinned[to.pinned.0].place(range(to));
        // SAFETY: as in `send`; nobody reads or writes the bytes before the copy has ended (`Executor::fetch`).
        let fetched = unsafe { sys::cuMemcpyDtoHAsync_v2(first.cast(), from, len, stream) };
        fetched.result().map_err(step("copy from the device"))
    }

    fn launch(&mut self, lane: Lane, launch: &Launch) -> Result<(), ExecutorError> {
        self.bind()?;
        let launched = self.kernels.launch(launch, self.stream(lane));
        launched.map_err(|source| ExecutorError::failed(format!("launch {}", launch.kernel), source))
    }

    fn multiply(&mut self, lane: Lane, product: &Product) -> Result<(), ExecutorError> {
        self.bind()?;
        let multiplied = self.products.multiply(product, index(lane), self.stream(lane));
        multiplied.map_err(|source| ExecutorError::failed(format!("multiply {:?}", product.shape), source))
    }

    fn follow(&mut self, lane: Lane, other: Lane) -> Result<(), ExecutorError> {
        self.bind()?;
        let event = &self.passed[index(other)];
        event.record(self.stream(other)).map_err(step("record an event"))?;
        event.hold_up(self.stream(lane)).map_err(step("wait for an event"))
    }

    fn is_done(&mut self, lane: Lane) -> Result<bool, ExecutorError> {
        self.bind()?;
        self.lanes[index(lane)].is_done().map_err(step("tell what is done"))
    }

    fn graph(&mut self, lane: Lane, key: GraphKey, work: Work<'_>) -> Result<(), ExecutorError> {
        self.bind()?;
        match self.graphs.get(&key) {
            None => {
                work(self)?;
                self.graphs.insert(key, Known::Run);
                return Ok(());
            }
            Some(Known::Run) => {
                let known = self.record(lane, &mut *work)?.map_or(Known::Plain, Known::Recorded);
                self.graphs.insert(key, known);
            }
            Some(Known::Recorded(_) | Known::Plain) => {}
        }
        let Some(Known::Recorded(graph)) = self.graphs.get(&key) else { return work(self) };
        // SAFETY: graph and stream live as long as this; what the graph points to is memory of this executor.
        unsafe { result::graph::launch(graph.0, self.stream(lane)) }.map_err(step("launch a graph"))
    }

    fn wait(&mut self) -> Result<(), ExecutorError> {
        self.bind()?;
        self.lanes.iter().try_for_each(Stream::wait).map_err(step("finish its work"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was made ready once, and nobody else destroys it. The driver keeps it until a launch under way has ended.
        unsafe { result::graph::exec_destroy(self.0) }.ok();
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A context that cannot be bound any more has lost its memory with it; what this machine lent it is not given back, for it may still be read.
        if self.wait().is_err() {
            self.pinned.drain(..).for_each(std::mem::forget);
            return;
        }
        self.graphs.clear();
        for address in self.memory.drain(..) {
            // SAFETY: it was allocated by `allocate`, all work has ended, and it is freed once.
            unsafe { result::free_sync(address) }.ok();
        }
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("device", &self.device).finish_non_exhaustive()
    }
}
