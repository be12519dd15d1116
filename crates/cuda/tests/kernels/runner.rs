//! Runs kernels and owns their memory: on this machine's CPU through the shim, or on a device
//! through an executor. No other file knows which.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};

use furrow_cuda::executor::{ExecutionLane, Executor};
use furrow_cuda::launch::{KernelLaunch, THREADS_MAX};
use furrow_cuda::sources::KernelSource;

use crate::chosen;
use crate::shim;

/// Shared memory of a block on the devices that have the least, 8.6 and 8.9; 8.0 has 163 KiB, 9.0
/// and 10.0 have 227.
const SHARED_MAX: u32 = 99 << 10;

/// Most blocks along the second and third axis.
const GRID_MAX: u32 = 65_535;

/// The kernels of a file.
pub(crate) enum KernelRunner {
    /// Compiled by the C++ compiler.
    Here(shim::ShimLibrary),
    /// The device has the kernels of all files.
    There(&'static TestDevice),
}

impl KernelRunner {
    /// The kernels of an unchanged file.
    #[track_caller]
    pub(crate) fn build(source: KernelSource<'_>) -> Self {
        device().map_or_else(|| Self::Here(shim::ShimLibrary::build(source)), Self::There)
    }

    /// The kernels of a variant in a compiled library.
    #[track_caller]
    pub(crate) fn open(path: &Path, variant: u32) -> Self {
        Self::Here(shim::ShimLibrary::open(path, variant))
    }

    /// Sets the order in which threads run, if the runner supports it.
    pub(crate) fn set_order(&mut self, order: u64) {
        if let Self::Here(library) = self {
            library.order = order;
        }
    }

    /// Runs a launch to its end.
    pub(crate) fn run(&self, launch: &KernelLaunch) -> Result<(), String> {
        let KernelLaunch { kernel, grid: [_, y, z], threads, shared_bytes, .. } = launch;
        assert!(*shared_bytes <= SHARED_MAX, "{kernel} needs more shared memory than some devices have");
        assert!(*y.max(z) <= GRID_MAX, "{kernel} has more blocks than a launch along one of its axes");
        assert!(
            (32..=THREADS_MAX).contains(threads) && threads.is_multiple_of(32),
            "{kernel}: {threads} threads"
        );
        match self {
            Self::Here(library) => library.run(launch),
            Self::There(device) => device.run(launch),
        }
    }

    /// Kernels of the file that never ran; a device has those of all files, and does not count
    /// them.
    pub(crate) fn not_launched(&self) -> Vec<String> {
        match self {
            Self::Here(library) => library.not_launched(),
            Self::There(_) => Vec::new(),
        }
    }
}

/// The device, if one is requested: opened once for all tests.
pub(crate) fn device() -> Option<&'static TestDevice> {
    static OPENED: OnceLock<Option<TestDevice>> = OnceLock::new();
    OPENED.get_or_init(|| chosen::on_a_gpu().then(|| TestDevice::of(chosen::gpu()))).as_ref()
}

/// An executor and its memory, which is reused, because an executor cannot free memory.
pub(crate) struct TestDevice(Mutex<DeviceMemory>);

struct DeviceMemory {
    executor: Box<dyn Executor>,
    /// Unused ranges by their size.
    free: BTreeMap<u64, Vec<u64>>,
}

impl TestDevice {
    fn of(executor: Box<dyn Executor>) -> Self {
        Self(Mutex::new(DeviceMemory { executor, free: BTreeMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, DeviceMemory> {
        // A test that panicked with the lock leaves the device consistent.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Memory with these contents.
    pub(crate) fn take(&self, bytes: &[u8]) -> u64 {
        let mut memory = self.lock();
        let size = (bytes.len() as u64).next_power_of_two();
        let used = memory.free.get_mut(&size).and_then(Vec::pop);
        let at = used.unwrap_or_else(|| memory.executor.allocate(size).unwrap());
        memory.executor.upload(ExecutionLane::Batch, bytes, at).unwrap();
        at
    }

    /// The bytes at an address.
    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.lock().executor.download(ExecutionLane::Batch, at, &mut bytes).unwrap();
        bytes
    }

    /// Returns memory of this size for reuse.
    pub(crate) fn give_back(&self, at: u64, len: usize) {
        self.lock().free.entry((len as u64).next_power_of_two()).or_default().push(at);
    }

    fn run(&self, launch: &KernelLaunch) -> Result<(), String> {
        let mut memory = self.lock();
        let done = memory.executor.launch(ExecutionLane::Batch, launch).and_then(|()| memory.executor.wait());
        done.map_err(|error| format!("{}: {error:?}", launch.kernel))
    }
}
