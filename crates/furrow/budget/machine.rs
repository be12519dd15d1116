//! What there is: measured here, or given for another machine.

use clap::Args;
use furrow_cuda::device::Device;
use furrow_model::floor;
use furrow_policy::BackendChoice;

use crate::job::Job;

/// What another machine has, on the command line.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Given {
    /// GiB of the GPU's memory, all of it [default: what is free of the GPU found here, else what --gpu has]
    #[arg(long, requires = "job", value_parser = gib, value_name = "GIB")]
    pub gpu_memory_gib: Option<f64>,
    /// Bytes of the GPU's memory, all of it, where GiB are not exact enough
    #[arg(long, requires = "job", conflicts_with = "gpu_memory_gib", value_name = "BYTES")]
    pub device_bytes: Option<u64>,
    /// GiB of memory of the machine or container that nothing else takes [default: what is left here]
    #[arg(long, requires = "job", value_parser = gib, value_name = "GIB")]
    pub memory_gib: Option<f64>,
    /// GiB of disk that nothing else takes; a disk given so does not hold the checkpoint yet [default: what is free here]
    #[arg(long, requires = "job", value_parser = gib, value_name = "GIB")]
    pub disk_gib: Option<f64>,
}

/// Bytes that are there, and who says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct There {
    /// Bytes.
    pub bytes: u64,
    /// Where the number is from.
    pub of: String,
}

/// A GPU's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its bytes.
    pub there: There,
    /// Whether they are what is free beside a context, and not all that the GPU has.
    pub is_free: bool,
}

/// What there is of everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// The GPU; `None` where none is found and none was named.
    pub gpu: Option<Gpu>,
    /// Memory that can be taken.
    pub memory: Option<There>,
    /// Free bytes of the run directory's disk.
    pub disk: Option<There>,
    /// Whether the checkpoint lies on that disk already.
    pub has_checkpoint: bool,
}

impl Machine {
    /// This machine, but for what is given of another one. `named` is the GPU that stands in where none is found.
    pub fn of(job: &Job, given: &Given, named: Option<&floor::Device>) -> Self {
        let bytes = |gib: f64| (gib * f64::from(1 << 30)) as u64;
        let told = |gib: f64, key: &str| There { bytes: bytes(gib), of: format!("{key} {gib}") };
        let total = |there| Gpu { there, is_free: false };
        let stand_in = |device: &floor::Device| There {
            bytes: device.memory as u64,
            of: format!("{}, no GPU is here", device.name),
        };
        let gpu = match (given.gpu_memory_gib, given.device_bytes) {
            (Some(gib), _) => Some(total(told(gib, "--gpu-memory-gib"))),
            (None, Some(bytes)) => Some(total(There { bytes, of: "--device-bytes".into() })),
            (None, None) => found(job).or_else(|| named.map(stand_in).map(total)),
        };
        let memory = match given.memory_gib {
            Some(gib) => Some(told(gib, "--memory-gib")),
            None => furrow_telemetry::available_bytes()
                .map(|bytes| There { bytes, of: "what this machine and its control groups leave".into() }),
        };
        let disk = match given.disk_gib {
            Some(gib) => Some(told(gib, "--disk-gib")),
            None => furrow_storage::free_bytes(&job.run_dir)
                .ok()
                .map(|bytes| There { bytes, of: format!("free for {}", job.run_dir.display()) }),
        };
        Self { gpu, memory, disk, has_checkpoint: given.disk_gib.is_none() }
    }
}

/// The GPU of a job, if one can be opened here.
fn found(job: &Job) -> Option<Gpu> {
    let Some(BackendChoice::Cuda(places, _)) = job.policy.model.as_ref().map(|model| &model.backend) else {
        return None;
    };
    let device = Device::open(places.ordinal).ok()?;
    let bytes = device.free_bytes().ok()? as u64;
    Some(Gpu { there: There { bytes, of: format!("free of {}", device.name()) }, is_free: true })
}

fn gib(text: &str) -> Result<f64, String> {
    let gib = text.parse().ok().filter(|gib| (0.001..=1e6).contains(gib));
    gib.ok_or_else(|| format!("{text:?}; use 0.001 to 1000000"))
}
