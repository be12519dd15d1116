//! The executor for a GPU: kernels compiled for it, three streams, pinned staging, cuBLASLt,
//! graphs.
//!
//! ```text
//!                      ┌── batch stream (high priority) ── launches, products, graphs ──▶
//!   engine's thread ───┤        ▲ events, where one lane follows another
//!                      ├── vision stream (low priority) ── the tower ──▶
//!                      └── copy stream (low priority) ── offloaded states, by the copy engines ──▶
//! ```
//!
//! One thread submits the work and streams keep its order. The thread waits only for results
//! (`download`) and for a staging buffer that is still being read.
#![allow(unsafe_code)]

mod error;
mod host_copy;
mod kernels;
mod libraries;
mod pinned;
mod products;
mod staging;
mod stream;

use std::collections::BTreeMap;
use std::path::PathBuf;

use cudarc::driver::{DriverError, result, sys};
use furrow_model::kernels::ThreadPool;

pub use self::error::GpuError;
use self::kernels::LoadedKernels;
use self::libraries::has_library;
use self::pinned::HostBytes;
use self::products::ProductLibrary;
use self::staging::StagingBuffers;
use self::stream::{GpuEvent, GpuStream};
use crate::cache::KernelCache;
use crate::compile::KernelCompiler;
use crate::device::GpuDevice;
use crate::executor::{
    ExecutionLane, Executor, ExecutorError, GraphKey, GraphWork, HostRange, MatrixProduct, PinnedMemory,
};
use crate::launch::KernelLaunch;

/// Memory left for recorded graphs, code and the libraries' own use: 35 buckets of about 400 nodes
/// need far less.
pub const RESERVE_BYTES: u64 = 768 << 20;

/// Device memory of cuBLASLt, a workspace for each lane that multiplies. Opening a GPU allocates
/// it, so [`Executor::free_bytes`] does not include it.
pub const WORKSPACES_BYTES: u64 = 2 * products::WORKSPACE_BYTES as u64;

/// Pinned memory for copies between pageable memory and the device: two halves for each lane except
/// the copy lane.
pub(crate) const STAGING_BYTES: u64 = 2 * 2 * staging::HALF as u64;

/// Paths and devices that CUDA needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuPaths {
    /// Number of the GPU in the driver's order.
    pub ordinal: usize,
    /// Folders with NVIDIA's libraries, in addition to the system's.
    pub libraries: Vec<PathBuf>,
    /// Folder for compiled kernels.
    pub cache: PathBuf,
}

/// An open GPU that runs work.
pub struct GpuExecutor {
    // Fields are dropped in this order: work in progress ends first, the context last.
    graphs: BTreeMap<GraphKey, GraphState>,
    lanes: [GpuStream; 3],
    passed: [GpuEvent; 3],
    /// Of the batch and vision lanes: the copy lane copies only from and to pinned memory.
    staging: [StagingBuffers; 2],
    products: ProductLibrary,
    kernels: LoadedKernels,
    memory: Vec<u64>,
    pinned: Vec<HostBytes>,
    /// Threads that copy bytes between pageable and pinned memory.
    carriers: ThreadPool,
    device: GpuDevice,
}

/// State of a batch shape.
enum GraphState {
    /// It ran once, so that libraries have loaded everything that they load lazily; they must not
    /// do so while recording.
    Run,
    Recorded(RecordedGraph),
    /// There was no memory to record it: it always runs directly.
    Plain,
}

/// A graph that can be launched.
struct RecordedGraph(sys::CUgraphExec);

// SAFETY: any thread whose context is bound may use handles of the driver; every call binds it, and
// `&mut self` serialises the calls.
unsafe impl Send for GpuExecutor {}

impl GpuExecutor {
    /// Opens a GPU, compiles every kernel for it (or finds it compiled) and loads all of them.
    pub fn open(paths: &GpuPaths) -> Result<Self, GpuError> {
        let device = GpuDevice::open(paths.ordinal)?;
        bind(&device).map_err(failed("bind the context"))?;
        let has_compiler = |folder: &&PathBuf| has_library(folder, "libnvrtc.so");
        let compiler = KernelCompiler::open(paths.libraries.iter().find(has_compiler).map(PathBuf::as_path))?;
        device.check_compiler(compiler.version())?;
        let kernels = LoadedKernels::load(&KernelCache::new(compiler, &paths.cache), &device)?;
        let [low, high] = stream::priorities().map_err(failed("query the priorities of streams"))?;
        let stream = |priority| GpuStream::new(priority).map_err(failed("create a stream"));
        let event = || GpuEvent::new().map_err(failed("create an event"));
        let staging = || StagingBuffers::new().map_err(failed("pin memory"));
        Ok(Self {
            graphs: BTreeMap::new(),
            lanes: [stream(high)?, stream(low)?, stream(low)?],
            passed: [event()?, event()?, event()?],
            staging: [staging()?, staging()?],
            products: ProductLibrary::open(&paths.libraries)?,
            kernels,
            memory: Vec::new(),
            pinned: Vec::new(),
            carriers: host_copy::copy_threads(),
            device,
        })
    }

    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    fn stream(&self, lane: ExecutionLane) -> sys::CUstream {
        self.lanes[index(lane)].raw()
    }

    fn bind(&self) -> Result<(), ExecutorError> {
        bind(&self.device).map_err(|source| ExecutorError::failed("bind the context", source))
    }

    /// Records the work that `work` submits to a lane, without running it; `None` if the device has
    /// no memory for the record.
    fn record(
        &mut self,
        lane: ExecutionLane,
        work: GraphWork<'_>,
    ) -> Result<Option<RecordedGraph>, ExecutorError> {
        let stream = self.stream(lane);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this, and nothing is being recorded on it.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(step("begin to record"))?;
        let done = work(self);
        // SAFETY: recording began above. It is ended even if the work failed.
        let graph = unsafe { result::stream::end_capture(stream) };
        done?;
        let graph = graph.map_err(step("end recording"))?;
        // SAFETY: the graph was just recorded; it is destroyed once, after it was instantiated or
        // refused.
        let ready = unsafe {
            let ready = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph).map_err(step("drop a recording"))?;
            ready
        };
        match ready {
            Ok(graph) => Ok(Some(RecordedGraph(graph))),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(step("instantiate a recording")(error)),
        }
    }
}

fn index(lane: ExecutionLane) -> usize {
    match lane {
        ExecutionLane::Batch => 0,
        ExecutionLane::Vision => 1,
        ExecutionLane::Copy => 2,
    }
}

fn range(HostRange { at, bytes, .. }: HostRange) -> std::ops::Range<usize> {
    let to_index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    to_index(at)..to_index(at.saturating_add(bytes))
}

fn bind(device: &GpuDevice) -> Result<(), DriverError> {
    device.context().bind_to_thread()
}

fn failed(operation: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |source| GpuError::Driver { operation, source }
}

/// The error of a failed step.
fn step(operation: &'static str) -> impl Fn(DriverError) -> ExecutorError {
    move |source| ExecutorError::failed(operation, source)
}

impl Executor for GpuExecutor {
    fn free_bytes(&mut self) -> Result<u64, ExecutorError> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(step("query its free memory"))?;
        Ok((free as u64).saturating_sub(RESERVE_BYTES))
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, ExecutorError> {
        self.bind()?;
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the context is bound; the caller accepts any contents of the memory.
        match unsafe { result::malloc_sync(count) } {
            Ok(address) => {
                self.memory.push(address);
                Ok(address)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(ExecutorError::NoMemory { requested: bytes, free: self.free_bytes()? })
            }
            Err(error) => Err(step("allocate memory")(error)),
        }
    }

    fn upload(&mut self, lane: ExecutionLane, bytes: &[u8], to: u64) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        self.staging[index(lane)]
            .upload(&self.carriers, bytes, to, stream)
            .map_err(step("copy to the device"))
    }

    fn download(&mut self, lane: ExecutionLane, from: u64, bytes: &mut [u8]) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        self.staging[index(lane)]
            .download(&self.carriers, from, bytes, stream)
            .map_err(step("copy from the device"))
    }

    fn pin(&mut self, bytes: u64) -> Result<PinnedMemory, ExecutorError> {
        self.bind()?;
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        match HostBytes::new(count) {
            Ok(pinned) => self.pinned.push(pinned),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(ExecutorError::NoHostMemory { requested: bytes });
            }
            Err(error) => return Err(step("pin memory")(error)),
        }
        Ok(PinnedMemory(self.pinned.len() - 1))
    }

    fn fill(&mut self, pinned: PinnedMemory, at: u64, bytes: &[u8]) -> Result<(), ExecutorError> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        host_copy::copy_parallel(
            &self.carriers,
            bytes,
            self.pinned[pinned.0].slice(at..at.saturating_add(bytes.len())),
        );
        Ok(())
    }

    fn send(&mut self, lane: ExecutionLane, from: HostRange, to: u64) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        let (first, len) = self.pinned[from.pinned.0].raw_range(range(from));
        // SAFETY: the bytes are pinned and stay until this is dropped, which waits for the copy;
        // nothing writes to them before that (`Executor::send`); the device's bytes are the
        // caller's.
        let sent = unsafe { sys::cuMemcpyHtoDAsync_v2(to, first.cast(), len, stream) };
        sent.result().map_err(step("copy to the device"))
    }

    fn fetch(&mut self, lane: ExecutionLane, from: u64, to: HostRange) -> Result<(), ExecutorError> {
        self.bind()?;
        let stream = self.stream(lane);
        let (first, len) = self.pinned[to.pinned.0].raw_range(range(to));
        // SAFETY: as in `send`; nothing reads or writes the bytes before the copy has ended
        // (`Executor::fetch`).
        let fetched = unsafe { sys::cuMemcpyDtoHAsync_v2(first.cast(), from, len, stream) };
        fetched.result().map_err(step("copy from the device"))
    }

    fn launch(&mut self, lane: ExecutionLane, launch: &KernelLaunch) -> Result<(), ExecutorError> {
        self.bind()?;
        let launched = self.kernels.launch(launch, self.stream(lane));
        launched.map_err(|source| ExecutorError::failed(format!("launch {}", launch.kernel), source))
    }

    fn multiply(&mut self, lane: ExecutionLane, product: &MatrixProduct) -> Result<(), ExecutorError> {
        self.bind()?;
        let multiplied = self.products.multiply(product, index(lane), self.stream(lane));
        multiplied.map_err(|source| ExecutorError::failed(format!("multiply {:?}", product.shape), source))
    }

    fn follow(&mut self, lane: ExecutionLane, other: ExecutionLane) -> Result<(), ExecutorError> {
        self.bind()?;
        let event = &self.passed[index(other)];
        event.record(self.stream(other)).map_err(step("record an event"))?;
        event.delay(self.stream(lane)).map_err(step("wait for an event"))
    }

    fn is_done(&mut self, lane: ExecutionLane) -> Result<bool, ExecutorError> {
        self.bind()?;
        self.lanes[index(lane)].is_done().map_err(step("query what is done"))
    }

    fn graph(
        &mut self,
        lane: ExecutionLane,
        key: GraphKey,
        work: GraphWork<'_>,
    ) -> Result<(), ExecutorError> {
        self.bind()?;
        match self.graphs.get(&key) {
            None => {
                work(self)?;
                self.graphs.insert(key, GraphState::Run);
                return Ok(());
            }
            Some(GraphState::Run) => {
                let known = self.record(lane, &mut *work)?.map_or(GraphState::Plain, GraphState::Recorded);
                self.graphs.insert(key, known);
            }
            Some(GraphState::Recorded(_) | GraphState::Plain) => {}
        }
        let Some(GraphState::Recorded(graph)) = self.graphs.get(&key) else { return work(self) };
        // SAFETY: graph and stream live as long as this; what the graph points to is memory of this
        // executor.
        unsafe { result::graph::launch(graph.0, self.stream(lane)) }.map_err(step("launch a graph"))
    }

    fn wait(&mut self) -> Result<(), ExecutorError> {
        self.bind()?;
        self.lanes.iter().try_for_each(GpuStream::wait).map_err(step("finish its work"))
    }
}

impl Drop for RecordedGraph {
    fn drop(&mut self) {
        // SAFETY: it was instantiated once, and only this call destroys it. The driver keeps it
        // until a launch in progress has ended.
        unsafe { result::graph::exec_destroy(self.0) }.ok();
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        // A context that can no longer be bound has lost its memory. Pinned host memory is leaked
        // then, because the device may still read it.
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

impl std::fmt::Debug for GpuExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuExecutor").field("device", &self.device).finish_non_exhaustive()
    }
}
