//! What a job takes of a machine: GPU memory, pinned memory, memory of processes, page cache and
//! disk, each a sum of terms, compared with what is available.
//!
//! GPU memory and pinned memory are computed by the backend's own allocation code. The others are
//! estimates from measurements and are labelled so.

mod demand;
mod disk;
mod machine;
mod memory;
mod residency;
mod show;
mod weights;

use furrow_cuda::gpu::{RESERVE_BYTES, WORKSPACES_BYTES};
use furrow_model::checkpoint::chain;
use furrow_model::config::Config;
use furrow_policy::EngineMemoryPlan;
use furrow_simulator::SessionMix;
use furrow_tasks::TaskSet;

use self::demand::{DemandTerm, ResourceDemand};
pub(crate) use self::machine::{LocalRoles, MachineArgs, MachineCapacity};
pub(crate) use self::residency::SessionResidency;
use crate::job::Job;
use crate::launch::JobLaunch;
use crate::sessions::{SessionSizes, mix_of};
use crate::{CommandFailure, output};

/// Device memory of a CUDA context with the machine code of all kernels: an H200 of 150.12 GB had
/// 149.48 GB free with both workspaces taken (`docs/benchmarks/gpu-h200.jsonl`), 0.64 GB less.
const CONTEXT_BYTES: u64 = 576 << 20;
/// Remedy for GPU memory: the keys that reduce the arena.
const GPU_KEYS: &str =
    "lower policy.engine.kv_tokens, state_slots, snapshot_slots, prefill_tokens or feature_bytes";

/// The demand of a job for all resources.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobBudget {
    /// All demands, in the order of display.
    pub sums: Vec<ResourceDemand>,
    /// Sessions on the GPU and swapped out of it.
    pub residency: Option<SessionResidency>,
    /// Whether the weight files were found: then GPU memory and pinned memory are exact.
    pub is_exact: bool,
    /// Whether the job computes on a GPU.
    pub on_a_gpu: bool,
}

impl JobBudget {
    /// The budget of a job with sessions like `sessions`, on a machine.
    ///
    /// # Errors
    /// If the checkpoint is refused, no kernels exist for it, or the engine cannot run with these
    /// settings.
    pub(crate) fn for_job(
        job: &Job,
        roles: LocalRoles,
        sessions: &SessionSizes,
        machine: &MachineCapacity,
    ) -> Result<Self, Vec<String>> {
        let model = job.policy.model.as_ref();
        let arena = model.map(EngineMemoryPlan::of).transpose().map_err(|why| vec![chain(&why)])?.flatten();
        let mut sums = Vec::new();
        sums.extend(arena.as_ref().map(|arena| gpu(arena, machine)));
        sums.extend(memory::sums(job, roles, sessions, arena.as_ref(), machine));
        let is_cuda = arena.is_some();
        if roles == LocalRoles::All {
            sums.extend(disk::sums(job, sessions, is_cuda, machine));
        }
        let residency = arena
            .as_ref()
            .zip(model)
            .map(|(arena, model)| SessionResidency::estimate(arena, model, sessions));
        let is_exact = arena.is_some_and(|arena| arena.is_exact);
        Ok(Self { sums, residency, is_exact, on_a_gpu: is_cuda })
    }

    /// What fits, one line per resource.
    pub(crate) fn fitting(&self) -> Vec<String> {
        let fits = self.sums.iter().filter(|sum| sum.fits() != Some(false));
        fits.map(|sum| format!("{}: {}", sum.what, sum.summary_line())).collect()
    }

    /// Why a job on a GPU must not start: one line per resource that does not fit, with its terms
    /// and the remedy.
    pub(crate) fn refusals(&self) -> Vec<String> {
        let must = |sum: &&ResourceDemand| self.on_a_gpu && sum.must_fit && sum.fits() == Some(false);
        self.sums.iter().filter(must).map(ResourceDemand::shortfall_text).collect()
    }

    /// What does not fit although the job may start.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let may = |sum: &&ResourceDemand| !(self.on_a_gpu && sum.must_fit) && sum.fits() == Some(false);
        let residency = self.residency.as_ref().and_then(SessionResidency::warning);
        self.sums.iter().filter(may).map(ResourceDemand::shortfall_text).chain(residency).collect()
    }
}

/// GPU memory that the backend allocates, and what CUDA takes beside it.
fn gpu(arena: &EngineMemoryPlan, machine: &MachineCapacity) -> ResourceDemand {
    let parts = arena.needs.device.parts().iter().filter(|(_, bytes)| *bytes > 0);
    let mut terms: Vec<DemandTerm> = parts.map(|(part, bytes)| DemandTerm::new(*part, *bytes, "")).collect();
    terms.push(DemandTerm::new("graphs, code, libraries", RESERVE_BYTES, "reserved"));
    terms.push(DemandTerm::new("workspaces of cuBLASLt", WORKSPACES_BYTES, "one per stream"));
    if machine.gpu.as_ref().is_none_or(|gpu| !gpu.is_free) {
        terms.push(DemandTerm::new("CUDA context and kernels", CONTEXT_BYTES, "measured on an H200"));
    }
    let there = machine.gpu.as_ref().map(|gpu| gpu.available.clone());
    ResourceDemand { what: "GPU memory", terms, available: there, remedy: GPU_KEYS.into(), must_fit: true }
}

/// Refuses a job on a GPU that does not fit this machine, and warns of what does not fit but may
/// start. If no GPU can be opened or the checkpoint is unusable, the code that opens the engine
/// reports that.
///
/// # Errors
/// One line per resource that does not fit, with its terms and what to lower.
pub(crate) fn check(launch: &JobLaunch, roles: LocalRoles) -> Result<(), CommandFailure> {
    check_on(
        &launch.job,
        Some(&launch.set),
        roles,
        &MachineCapacity::detect(&launch.job, &MachineArgs::default(), None),
    )
}

fn check_on(
    job: &Job,
    tasks: Option<&TaskSet>,
    roles: LocalRoles,
    machine: &MachineCapacity,
) -> Result<(), CommandFailure> {
    let config = job.policy.model.as_ref().and_then(|model| Config::read(&model.checkpoint).ok());
    let mix = mix_of(job, tasks, SessionMix::default());
    let sessions = SessionSizes::assumed(config.as_ref(), &mix, job.policy.session.context);
    let Ok(budget) = JobBudget::for_job(job, roles, &sessions, machine) else { return Ok(()) };
    if budget.on_a_gpu && machine.gpu.is_none() {
        return Ok(());
    }
    for warning in budget.warnings() {
        output::error_line(&format!("warning: {warning}"));
    }
    let refusals = budget.refusals();
    if refusals.is_empty() { Ok(()) } else { Err(CommandFailure::Input(refusals)) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use furrow_model::init::SHARD_BYTES_MAX;

    use super::machine::{AvailableBytes, GpuMemory};
    use super::weights::weight_files;
    use super::*;

    fn job(checkpoint: &Path, settings: &[&str]) -> Job {
        let text = format!(
            "[policy]\nkind = \"model\"\ncheckpoint = {:?}\n[policy.engine]\nbackend = \"cuda\"\n[[tasks.source]]\npath = \".\"\nsuite = \"some\"\n",
            checkpoint.display().to_string()
        );
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        Job::parse(&text, "budgeted", checkpoint, &settings).unwrap()
    }

    fn available(bytes: u64) -> AvailableBytes {
        AvailableBytes { bytes, source: "a test".into() }
    }

    fn check_fits(job: &Job, machine: &MachineCapacity) -> Result<(), Vec<String>> {
        check_on(job, None, LocalRoles::All, machine).map_err(|failure| match failure {
            CommandFailure::Input(lines) => lines,
            CommandFailure::Work(error) => panic!("{error}"),
        })
    }

    #[test]
    fn a_job_that_does_not_fit_the_gpu_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../model/tests/configs/nano_12b_vl.json");
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let machine = |gpu: Option<u64>| MachineCapacity {
            gpu: gpu.map(|bytes| GpuMemory { available: available(bytes), is_free: true }),
            memory: Some(available(1 << 40)),
            disk: Some(available(1 << 40)),
            has_checkpoint: true,
        };
        let on_a_gpu = job(dir.path(), &[]);
        let arena = EngineMemoryPlan::of(on_a_gpu.policy.model.as_ref().unwrap()).unwrap().unwrap();
        let needed = arena.needs.device.total() + RESERVE_BYTES + WORKSPACES_BYTES;
        assert_eq!(check_fits(&on_a_gpu, &machine(Some(needed))), Ok(()));
        let lines = check_fits(&on_a_gpu, &machine(Some(needed - 1))).unwrap_err();
        assert!(
            lines.len() == 1 && lines[0].starts_with("GPU memory: ") && lines[0].contains("kv_tokens"),
            "{lines:?}"
        );
        let short = MachineCapacity { memory: Some(available(1 << 30)), ..machine(Some(needed)) };
        let lines = check_fits(&on_a_gpu, &short).unwrap_err();
        assert!(lines[0].starts_with("pinned memory: ") && lines[0].contains("offload_bytes"), "{lines:?}");
        // Estimates only warn.
        let full = MachineCapacity { disk: Some(available(1 << 30)), ..machine(Some(needed)) };
        assert_eq!(check_fits(&on_a_gpu, &full), Ok(()));
        // Without a GPU, opening the engine reports the reason; on the CPU nothing is refused.
        let nothing =
            MachineCapacity { disk: Some(available(1)), memory: Some(available(1)), ..machine(None) };
        assert_eq!(check_fits(&on_a_gpu, &nothing), Ok(()));
        let on_the_processor = job(dir.path(), &["policy.engine.backend=cpu"]);
        assert_eq!(check_fits(&on_the_processor, &nothing), Ok(()));
    }

    #[test]
    fn files_that_are_not_there_are_counted_as_they_would_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../model/tests/configs/nano_12b_vl.json");
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let job = job(dir.path(), &[]);
        let files = || weight_files(job.policy.model.as_ref().unwrap());
        assert_eq!((files().len(), files()[0]), (6, SHARD_BYTES_MAX));
        assert!((26e9..27e9).contains(&(files().iter().sum::<u64>() as f64)), "{:?}", files());
        std::fs::write(dir.path().join("model.safetensors"), [0; 100]).unwrap();
        assert_eq!(files(), [100]);
    }
}
