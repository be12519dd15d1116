//! Where kernels run and their memory lies: this machine's processor, through the shim, or a device, through an executor. Nobody else knows which.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};

use furrow_cuda::executor::{Executor, Lane};
use furrow_cuda::launch::{Launch, THREADS_MAX};
use furrow_cuda::sources::Source;

use crate::chosen;
use crate::shim;

/// Shared memory of a block on the devices that have least of it, 8.6 and 8.9; 8.0 has 163 KiB, 9.0 and 10.0 have 227.
const SHARED_MAX: u32 = 99 << 10;

/// Blocks along the second and third axis.
const GRID_MAX: u32 = 65_535;

/// The kernels of a file.
pub enum Library {
    /// Compiled by the C++ compiler.
    Here(shim::Library),
    /// The device has all of them.
    There(&'static Device),
}

impl Library {
    /// Those of a file as it is.
    #[track_caller]
    pub fn build(source: Source<'_>) -> Self {
        device().map_or_else(|| Self::Here(shim::Library::build(source)), Self::There)
    }

    /// Those of a variant in a compiled library.
    #[track_caller]
    pub fn open(path: &Path, variant: u32) -> Self {
        Self::Here(shim::Library::open(path, variant))
    }

    /// The order in which threads are run, where that can be chosen.
    pub fn set_order(&mut self, order: u64) {
        if let Self::Here(library) = self {
            library.order = order;
        }
    }

    /// Runs a launch to its end.
    pub fn run(&self, launch: &Launch) -> Result<(), String> {
        let Launch { kernel, grid: [_, y, z], threads, shared_bytes, .. } = launch;
        assert!(*shared_bytes <= SHARED_MAX, "{kernel} asks for more than some devices have");
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

    /// Kernels of the file that were never run; a device has those of all files, and does not count them.
    pub fn not_launched(&self) -> Vec<String> {
        match self {
            Self::Here(library) => library.not_launched(),
            Self::There(_) => Vec::new(),
        }
    }
}

/// The device, where one is asked for: opened once for all tests.
pub fn device() -> Option<&'static Device> {
    static OPENED: OnceLock<Option<Device>> = OnceLock::new();
    OPENED.get_or_init(|| chosen::on_a_gpu().then(|| Device::of(chosen::gpu()))).as_ref()
}

/// An executor and its memory, which is used again: an executor takes none back.
pub struct Device(Mutex<Held>);

struct Held {
    executor: Box<dyn Executor>,
    /// Stretches that nobody uses, by their bytes.
    free: BTreeMap<u64, Vec<u64>>,
}

impl Device {
    fn of(executor: Box<dyn Executor>) -> Self {
        Self(Mutex::new(Held { executor, free: BTreeMap::new() }))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A test that panicked while it held this leaves the device as it is.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Memory with these bytes in it.
    pub fn take(&self, bytes: &[u8]) -> u64 {
        let mut held = self.held();
        let size = (bytes.len() as u64).next_power_of_two();
        let used = held.free.get_mut(&size).and_then(Vec::pop);
        let at = used.unwrap_or_else(|| held.executor.allocate(size).unwrap());
        held.executor.upload(Lane::Batch, bytes, at).unwrap();
        at
    }

    /// The bytes that lie there.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.held().executor.download(Lane::Batch, at, &mut bytes).unwrap();
        bytes
    }

    /// Memory of so many bytes that nobody uses any more.
    pub fn give_back(&self, at: u64, len: usize) {
        self.held().free.entry((len as u64).next_power_of_two()).or_default().push(at);
    }

    fn run(&self, launch: &Launch) -> Result<(), String> {
        let mut held = self.held();
        let done = held.executor.launch(Lane::Batch, launch).and_then(|()| held.executor.wait());
        done.map_err(|error| format!("{}: {error:?}", launch.kernel))
    }
}
