//! What a job takes of a machine before it starts: GPU memory, pinned memory, memory of processes, page cache, disk, each a sum of terms, beside what is there.
//!
//! GPU memory and pinned memory are sums of what the backend allocates, by its own code. The others are estimates from what was measured, and say so.

mod disk;
mod machine;
mod memory;
mod residency;
mod show;

use furrow_cuda::backend::Stage;
use furrow_cuda::gpu::{RESERVE_BYTES, WORKSPACES_BYTES};
use furrow_model::checkpoint::chain;
use furrow_model::config::Config;
use furrow_model::floor::Mix;
use furrow_model::init::SHARD_BYTES_MAX;
use furrow_policy::{Arena, BackendChoice, ModelConfig};
use furrow_tasks::TaskSet;

pub use self::machine::{Given, Machine, There};
pub use self::residency::Residency;
use crate::job::Job;
use crate::launch::Launch;
use crate::sessions::{Sessions, mix_of};
use crate::{Failure, output};

/// Device memory of a CUDA context with the machine code of all kernels: an H200 of 150.12 GB had 149.48 GB free with both workspaces taken
/// (`docs/benchmarks/gpu-h200.jsonl`), 0.64 GB less.
const CONTEXT_BYTES: u64 = 576 << 20;
/// Keys that make the arena of a GPU smaller.
const GPU_KEYS: &str =
    "lower policy.engine.kv_tokens, state_slots, snapshot_slots, prefill_tokens or feature_bytes";

/// One term of a sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// What takes them.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// How they come about, where the name does not say it.
    pub how: String,
}

/// A sum beside what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// Of what.
    pub what: &'static str,
    /// Its terms.
    pub terms: Vec<Term>,
    /// What there is of it; `None` where nothing says.
    pub there: Option<There>,
    /// What to do where it does not fit.
    pub remedy: String,
    /// Whether a job on a GPU must not start without it: of what the backend allocates, and not of estimates, for a worker that is short of
    /// memory takes fewer sessions, and one short of disk waits.
    pub must_fit: bool,
}

/// All sums of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// In the order in which they are shown.
    pub sums: Vec<Sum>,
    /// Sessions on a GPU and swapped out of it.
    pub residency: Option<Residency>,
    /// Whether the weight files were at hand: then GPU memory and pinned memory are exact.
    pub is_exact: bool,
    /// Whether the job computes on a GPU.
    pub on_a_gpu: bool,
}

/// Which roles run on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// All, as `furrow run` has it.
    All,
    /// A policy worker alone.
    Policy,
}

impl Term {
    fn new(what: impl Into<String>, bytes: u64, how: impl Into<String>) -> Self {
        Self { what: what.into(), bytes, how: how.into() }
    }
}

impl Sum {
    /// Of all terms.
    pub fn total(&self) -> u64 {
        self.terms.iter().fold(0, |sum, term| sum.saturating_add(term.bytes))
    }

    /// Whether there is enough; `None` where nothing says what there is.
    pub fn fits(&self) -> Option<bool> {
        self.there.as_ref().map(|there| self.total() <= there.bytes)
    }
}

impl Budget {
    /// The sums of a job whose sessions are like `sessions`, on a machine.
    ///
    /// # Errors
    /// When the checkpoint is refused, there are no kernels for it, or the engine would not run with these settings.
    pub fn of(job: &Job, roles: Roles, sessions: &Sessions, machine: &Machine) -> Result<Self, Vec<String>> {
        let model = job.policy.model.as_ref();
        let arena = model.map(Arena::of).transpose().map_err(|why| vec![chain(&why)])?.flatten();
        let mut sums = Vec::new();
        sums.extend(arena.as_ref().map(|arena| gpu(arena, machine)));
        sums.extend(memory::sums(job, roles, sessions, arena.as_ref(), machine));
        let is_cuda = arena.is_some();
        if roles == Roles::All {
            sums.extend(disk::sums(job, sessions, is_cuda, machine));
        }
        let residency = arena.as_ref().zip(model).map(|(arena, model)| Residency::of(arena, model, sessions));
        let is_exact = arena.is_some_and(|arena| arena.is_exact);
        Ok(Self { sums, residency, is_exact, on_a_gpu: is_cuda })
    }

    /// What a job on a GPU must not start with: a line for each sum that does not fit, with its terms and what to do.
    pub fn refusals(&self) -> Vec<String> {
        let must = |sum: &&Sum| self.on_a_gpu && sum.must_fit && sum.fits() == Some(false);
        self.sums.iter().filter(must).map(Sum::complaint).collect()
    }

    /// Sums that do not fit and that a job may start with.
    pub fn warnings(&self) -> Vec<String> {
        let may = |sum: &&Sum| !(self.on_a_gpu && sum.must_fit) && sum.fits() == Some(false);
        let residency = self.residency.as_ref().and_then(Residency::warning);
        self.sums.iter().filter(may).map(Sum::complaint).chain(residency).collect()
    }
}

/// What the backend allocates of the GPU, and what CUDA takes beside it.
fn gpu(arena: &Arena, machine: &Machine) -> Sum {
    let parts = arena.needs.device.parts().iter().filter(|(_, bytes)| *bytes > 0);
    let mut terms: Vec<Term> = parts.map(|(part, bytes)| Term::new(*part, *bytes, "")).collect();
    terms.push(Term::new("graphs, code, libraries", RESERVE_BYTES, "set aside"));
    terms.push(Term::new("workspaces of cuBLASLt", WORKSPACES_BYTES, "one for each of two streams"));
    if machine.gpu.as_ref().is_none_or(|gpu| !gpu.is_free) {
        terms.push(Term::new("CUDA context and kernels", CONTEXT_BYTES, "measured on an H200"));
    }
    let there = machine.gpu.as_ref().map(|gpu| gpu.there.clone());
    Sum { what: "GPU memory", terms, there, remedy: GPU_KEYS.into(), must_fit: true }
}

/// Bytes of each of a job's weight files: of those that are there, else of files of 5 GB with two bytes a parameter of the configuration.
fn weight_files(model: &ModelConfig) -> Vec<u64> {
    let files = std::fs::read_dir(&model.checkpoint).into_iter().flatten().flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    let bytes: Vec<u64> =
        weights.filter_map(|file| file.path().metadata().ok()).map(|file| file.len()).collect();
    if !bytes.is_empty() {
        return bytes;
    }
    let all = Config::read(&model.checkpoint).map_or(0, |config| config.parameters() * 2);
    (0..all.div_ceil(SHARD_BYTES_MAX)).map(|file| SHARD_BYTES_MAX.min(all - file * SHARD_BYTES_MAX)).collect()
}

/// Whether published weights are taken up beside those in use: a GPU keeps room for them.
fn takes_versions(model: &ModelConfig) -> bool {
    matches!(&model.backend, BackendChoice::Cuda(_, options) if options.stage != Stage::None)
}

/// Refuses a job on a GPU whose sums do not fit what this machine has, and warns of what does not fit and may start. Where no GPU can be opened, or the checkpoint
/// cannot be used, whatever opens the engine says so.
///
/// # Errors
/// A line for each sum that does not fit, with its terms and what to lower.
pub fn check(launch: &Launch, roles: Roles) -> Result<(), Failure> {
    check_on(&launch.job, Some(&launch.set), roles, &Machine::of(&launch.job, &Given::default(), None))
}

fn check_on(job: &Job, tasks: Option<&TaskSet>, roles: Roles, machine: &Machine) -> Result<(), Failure> {
    let config = job.policy.model.as_ref().and_then(|model| Config::read(&model.checkpoint).ok());
    let mix = mix_of(job, tasks, Mix::default());
    let sessions = Sessions::assumed(config.as_ref(), &mix, job.policy.session.context);
    let Ok(budget) = Budget::of(job, roles, &sessions, machine) else { return Ok(()) };
    if budget.on_a_gpu && machine.gpu.is_none() {
        return Ok(());
    }
    for warning in budget.warnings() {
        output::complain(&format!("warning: {warning}"));
    }
    let refusals = budget.refusals();
    if refusals.is_empty() { Ok(()) } else { Err(Failure::Input(refusals)) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::machine::Gpu;
    use super::*;

    fn job(checkpoint: &Path, settings: &[&str]) -> Job {
        let text = format!(
            "[policy]\nkind = \"model\"\ncheckpoint = {:?}\n[policy.engine]\nbackend = \"cuda\"\n[[tasks.source]]\npath = \".\"\nsuite = \"some\"\n",
            checkpoint.display().to_string()
        );
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        Job::parse(&text, "budgeted", checkpoint, &settings).unwrap()
    }

    fn there(bytes: u64) -> There {
        There { bytes, of: "a test".into() }
    }

    fn start(job: &Job, machine: &Machine) -> Result<(), Vec<String>> {
        check_on(job, None, Roles::All, machine).map_err(|failure| match failure {
            Failure::Input(lines) => lines,
            Failure::Work(error) => panic!("{error}"),
        })
    }

    #[test]
    fn a_job_that_does_not_fit_the_gpu_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../model/tests/configs/nano_12b_vl.json");
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let machine = |gpu: Option<u64>| Machine {
            gpu: gpu.map(|bytes| Gpu { there: there(bytes), is_free: true }),
            memory: Some(there(1 << 40)),
            disk: Some(there(1 << 40)),
            has_checkpoint: true,
        };
        let on_a_gpu = job(dir.path(), &[]);
        let arena = Arena::of(on_a_gpu.policy.model.as_ref().unwrap()).unwrap().unwrap();
        let needed = arena.needs.device.total() + RESERVE_BYTES + WORKSPACES_BYTES;
        assert_eq!(start(&on_a_gpu, &machine(Some(needed))), Ok(()));
        let lines = start(&on_a_gpu, &machine(Some(needed - 1))).unwrap_err();
        assert!(
            lines.len() == 1 && lines[0].starts_with("GPU memory: ") && lines[0].contains("kv_tokens"),
            "{lines:?}"
        );
        let short = Machine { memory: Some(there(1 << 30)), ..machine(Some(needed)) };
        let lines = start(&on_a_gpu, &short).unwrap_err();
        assert!(lines[0].starts_with("pinned memory: ") && lines[0].contains("parked_bytes"), "{lines:?}");
        // Estimates warn.
        let full = Machine { disk: Some(there(1 << 30)), ..machine(Some(needed)) };
        assert_eq!(start(&on_a_gpu, &full), Ok(()));
        // Without a GPU the engine says why it does not open; on the processor nothing is refused.
        let nothing = Machine { disk: Some(there(1)), memory: Some(there(1)), ..machine(None) };
        assert_eq!(start(&on_a_gpu, &nothing), Ok(()));
        let on_the_processor = job(dir.path(), &["policy.engine.backend=cpu"]);
        assert_eq!(start(&on_the_processor, &nothing), Ok(()));
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
