//! The resources of a machine: measured here, or given for another machine.

use clap::Args;
use furrow_cuda::device::GpuDevice;
use furrow_model::floor;
use furrow_policy::BackendChoice;

use crate::job::Job;

/// The resources of another machine, as options.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct MachineArgs {
    /// Total memory of the GPU in GiB, to plan for another GPU [default: the free memory of the GPU
    /// found here, else the memory of --gpu]
    #[arg(long, requires = "job", value_parser = gib, value_name = "GIB")]
    pub gpu_memory_gib: Option<f64>,
    /// Total memory of the GPU in bytes, instead of --gpu-memory-gib
    #[arg(long, requires = "job", conflicts_with = "gpu_memory_gib", value_name = "BYTES")]
    pub device_bytes: Option<u64>,
    /// Memory in GiB that the machine or container has for the farm [default: the available memory
    /// here]
    #[arg(long, requires = "job", value_parser = gib, value_name = "GIB")]
    pub memory_gib: Option<f64>,
    /// Disk in GiB that is free for the farm; the plan then counts the checkpoint as not yet stored
    /// there [default: the free disk here]
    #[arg(long, requires = "job", value_parser = gib, value_name = "GIB")]
    pub disk_gib: Option<f64>,
}

/// The roles that run on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalRoles {
    /// All roles, as with `furrow run`.
    All,
    /// A policy worker alone.
    Policy,
}

/// Available bytes, and their source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AvailableBytes {
    pub bytes: u64,
    /// How the number was obtained.
    pub source: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuMemory {
    /// The memory that is available.
    pub available: AvailableBytes,
    /// Whether this is the free memory beside a context, not the GPU's total.
    pub is_free: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MachineCapacity {
    /// The GPU; `None` if none was found and none was named.
    pub gpu: Option<GpuMemory>,
    /// Memory available to the farm.
    pub memory: Option<AvailableBytes>,
    /// Free bytes of the run directory's disk.
    pub disk: Option<AvailableBytes>,
    /// Whether the checkpoint is already on that disk.
    pub has_checkpoint: bool,
}

impl MachineCapacity {
    /// This machine, with the given resources replaced. `named` is the GPU to assume if none is
    /// found.
    pub(crate) fn detect(job: &Job, given: &MachineArgs, named: Option<&floor::DeviceSpec>) -> Self {
        let bytes = |gib: f64| (gib * f64::from(1 << 30)) as u64;
        let from_argument =
            |gib: f64, key: &str| AvailableBytes { bytes: bytes(gib), source: format!("{key} {gib}") };
        let total = |there| GpuMemory { available: there, is_free: false };
        let stand_in = |device: &floor::DeviceSpec| AvailableBytes {
            bytes: device.memory as u64,
            source: format!("{}, no GPU found here", device.name),
        };
        let gpu = match (given.gpu_memory_gib, given.device_bytes) {
            (Some(gib), _) => Some(total(from_argument(gib, "--gpu-memory-gib"))),
            (None, Some(bytes)) => Some(total(AvailableBytes { bytes, source: "--device-bytes".into() })),
            (None, None) => detect_gpu(job).or_else(|| named.map(stand_in).map(total)),
        };
        let memory = match given.memory_gib {
            Some(gib) => Some(from_argument(gib, "--memory-gib")),
            None => furrow_telemetry::available_bytes().map(|bytes| AvailableBytes {
                bytes,
                source: "available on this machine and in its control groups".into(),
            }),
        };
        let disk = match given.disk_gib {
            Some(gib) => Some(from_argument(gib, "--disk-gib")),
            None => furrow_storage::free_bytes(&job.run_dir)
                .ok()
                .map(|bytes| AvailableBytes { bytes, source: format!("free for {}", job.run_dir.display()) }),
        };
        Self { gpu, memory, disk, has_checkpoint: given.disk_gib.is_none() }
    }
}

/// The GPU of a job, if this machine has it.
fn detect_gpu(job: &Job) -> Option<GpuMemory> {
    let Some(BackendChoice::Cuda(cuda, _)) = job.policy.model.as_ref().map(|model| &model.backend) else {
        return None;
    };
    let device = GpuDevice::open(cuda.ordinal).ok()?;
    let bytes = device.free_bytes().ok()? as u64;
    Some(GpuMemory {
        available: AvailableBytes { bytes, source: format!("free of {}", device.name()) },
        is_free: true,
    })
}

fn gib(text: &str) -> Result<f64, String> {
    let gib = text.parse().ok().filter(|gib| (0.001..=1e6).contains(gib));
    gib.ok_or_else(|| format!("{text:?}; use 0.001 to 1000000"))
}
