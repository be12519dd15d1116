//! `furrow plan --job`: computes what a job takes of a machine, and whether it fits.

use std::path::PathBuf;

use clap::Args;
use furrow_model::config::Config;
use furrow_model::floor::DeviceSpec;
use furrow_policy::ModelConfig;
use furrow_simulator::SessionMix;
use furrow_tasks::TaskSet;

use crate::budget::{JobBudget, LocalRoles, MachineArgs, MachineCapacity};
use crate::job::Job;
use crate::recorded::RecordedRun;
use crate::sessions::{SessionSizes, mix_of};
use crate::{CommandFailure, output};

/// Which job to plan, and for which machine.
#[derive(Debug, Args)]
pub(super) struct JobPlanArgs {
    /// Job file whose resources are summed up, on its own checkpoint
    #[arg(long, value_name = "FILE", conflicts_with = "checkpoint")]
    job: Option<PathBuf>,
    /// Replace one key of the job, such as `policy.engine.state_slots=100`; repeat the option for
    /// more keys
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "job")]
    set: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// A job to plan.
#[derive(Debug)]
pub(super) struct PlannedJob {
    job: Job,
    /// The job's tasks, if they can be read here.
    tasks: Option<TaskSet>,
}

impl JobPlanArgs {
    /// The named job, if any.
    pub(super) fn read(&self) -> Result<Option<PlannedJob>, CommandFailure> {
        let Some(path) = &self.job else { return Ok(None) };
        let job = Job::read(path, &self.set).map_err(CommandFailure::Input)?;
        if job.policy.model.is_none() {
            let kind = job.policy.choice.kind().as_str();
            return Err(CommandFailure::Input(vec![format!(
                "policy.kind: {kind:?} runs no model; use a job with \"model\""
            )]));
        }
        // A plan may be made on a machine without the tasks.
        let tasks = furrow_tasks::load(&job.tasks);
        if let Err(problems) = &tasks {
            output::progress_line(format!(
                "the job's tasks cannot be read ({}); give their steps and pages with --steps and --screenshot",
                problems.first().map_or("", String::as_str)
            ));
        }
        Ok(Some(PlannedJob { job, tasks: tasks.ok() }))
    }

    /// The job's budget on this machine, or on the machine that the options describe.
    pub(super) fn budget(
        &self,
        planned: &PlannedJob,
        (config, mix): (&Config, &SessionMix),
        recorded: Option<&RecordedRun>,
        named: &DeviceSpec,
    ) -> Result<(JobBudget, String), CommandFailure> {
        let job = &planned.job;
        let context = job.policy.session.context;
        let sessions = match recorded {
            Some(recorded) => SessionSizes::recorded(recorded, mix.sessions, context),
            None => SessionSizes::assumed(Some(config), mix, context),
        };
        let machine = MachineCapacity::detect(job, &self.machine, Some(named));
        let budget =
            JobBudget::for_job(job, LocalRoles::All, &sessions, &machine).map_err(CommandFailure::Input)?;
        Ok((budget, format!("{} sessions, {}", sessions.count, sessions.source)))
    }
}

impl PlannedJob {
    pub(super) fn model(&self) -> Option<&ModelConfig> {
        self.job.policy.model.as_ref()
    }

    /// The job's sessions and tasks, over `base`.
    pub(super) fn mix(&self, base: SessionMix) -> SessionMix {
        mix_of(&self.job, self.tasks.as_ref(), base)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A folder with the configuration of the published model, and nothing else.
    fn configuration() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../../../model/tests/configs/nano_12b_vl.json");
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        dir
    }

    fn budget(settings: &[&str], gib: [f64; 3]) -> JobBudget {
        let dir = configuration();
        let job = dir.path().join("job.toml");
        let keys = "[policy]\nkind = \"model\"\ncheckpoint = \".\"\n[policy.sampling]\nmax_tokens = 150\n[policy.engine]\nbackend = \"cuda\"\n\
            kv_tokens = 1638400\ncontext_tokens_max = 65536\nstate_slots = 102\nsnapshot_slots = 0\noffload_bytes = 64424509440\n[env]\nsessions_max = 100\n\
            [[tasks.source]]\npath = \"config.json\"\nsuite = \"some\"\n";
        std::fs::write(&job, keys).unwrap();
        let set = settings.iter().map(ToString::to_string).collect();
        let mix = SessionMix { screenshot: (1440, 900), ..SessionMix::default() };
        budget_of(job, set, dir.path(), mix, gib)
    }

    fn budget_of(
        job: PathBuf,
        set: Vec<String>,
        checkpoint: &Path,
        mix: SessionMix,
        gib: [f64; 3],
    ) -> JobBudget {
        let [gpu, memory, disk] = gib.map(Some);
        let given =
            MachineArgs { gpu_memory_gib: gpu, memory_gib: memory, disk_gib: disk, device_bytes: None };
        let args = JobPlanArgs { job: Some(job), set, machine: given };
        let planned = args.read().unwrap().unwrap();
        let config = Config::read(checkpoint).unwrap();
        let mix = planned.mix(mix);
        args.budget(&planned, (&config, &mix), None, DeviceSpec::named("h200").unwrap()).unwrap().0
    }

    fn root(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    #[test]
    fn the_recipe_says_what_is_missing() {
        let missing = Job::read(&root("deploy/holotron.toml"), &[]).unwrap_err();
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(
            missing[0].contains("policy.checkpoint") && missing[0].contains("docs/GPU.md"),
            "{missing:?}"
        );
    }

    /// The table of docs/GPU.md is what the plan computes, and its three jobs fit.
    #[test]
    fn the_page_on_gpus_has_the_sums_of_the_plan() {
        let page = std::fs::read_to_string(root("docs/GPU.md")).unwrap();
        let cells = |row: &str| -> Vec<&str> {
            let line = page.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap();
            line.trim_matches('|').split('|').skip(1).map(str::trim).collect()
        };
        let dir = configuration();
        let settings = cells("`--set`");
        for (column, gpu) in [139.0, 139.0, 79.0].into_iter().enumerate() {
            let mut set = vec![format!("policy.checkpoint={}", dir.path().display())];
            let written = settings[column].split('`').skip(1).step_by(2);
            // The page leaves out a section that it has just named.
            set.extend(written.map(|setting| match setting.contains('.') {
                true => setting.to_owned(),
                false => format!("policy.engine.{setting}"),
            }));
            let job = root("deploy/holotron.toml");
            let mix = SessionMix::default();
            let budget = budget_of(job, set.clone(), dir.path(), mix, [gpu, 128.0, 500.0]);
            assert_eq!((budget.refusals(), budget.warnings()), (vec![], vec![]), "{set:?}");
            let total = |what: &str| budget.sums.iter().find(|it| it.what == what).unwrap().total();
            let sums = [
                ("weights on the GPU", bytes(&budget, "GPU memory", "weights")),
                ("recurrent states", bytes(&budget, "GPU memory", "state slots")),
                ("keys and values", bytes(&budget, "GPU memory", "KV pages")),
                ("GPU memory together", total("GPU memory")),
                ("pinned memory", total("pinned memory")),
                ("memory of processes, browsers included", total("memory of processes")),
                ("page cache, for the weight files", total("page cache")),
            ];
            for (row, bytes) in sums {
                assert_eq!(cells(row)[column], format!("{:.1} GB", bytes as f64 / 1e9), "{row} of {set:?}");
            }
        }
    }

    /// The machine of a farm: 139 GiB of GPU memory, 128 GiB of memory, 64 GiB of disk.
    const FARM_MACHINE: [f64; 3] = [139.0, 128.0, 64.0];
    const GIB: u64 = 1 << 30;

    #[track_caller]
    fn bytes(budget: &JobBudget, sum: &str, term: &str) -> u64 {
        let sum = budget.sums.iter().find(|it| it.what == sum).unwrap();
        sum.terms.iter().find(|it| it.what == term).unwrap_or_else(|| panic!("{term}: {sum:?}")).bytes
    }

    #[test]
    fn a_job_is_summed_up_by_term() {
        let budget = budget(&["policy.weights.stage=device"], FARM_MACHINE);
        let weights = bytes(&budget, "GPU memory", "weights");
        assert!((26.2e9..26.4e9).contains(&(weights as f64)), "{weights}");
        assert_eq!(bytes(&budget, "GPU memory", "a second set of weights"), weights);
        assert_eq!(bytes(&budget, "GPU memory", "state slots"), 102 * 148_865_024 + 256);
        assert_eq!(bytes(&budget, "GPU memory", "KV pages"), 25_601 * 64 * 24_576);
        assert_eq!(bytes(&budget, "GPU memory", "graphs, code, libraries"), 768 << 20);
        for part in
            ["tiles being encoded", "tile features", "logits and sampling", "CUDA context and kernels"]
        {
            assert!(bytes(&budget, "GPU memory", part) > 0, "{part}");
        }
        assert_eq!(bytes(&budget, "pinned memory", "states of idle sessions"), 60 * GIB);
        assert_eq!(bytes(&budget, "pinned memory", "staging of copies"), 64 << 20);
        assert_eq!(bytes(&budget, "memory of processes", "browsers"), 100 * 41_400_000);
        // 100 sessions x 7 tiles x 3 x 512 x 512 float32.
        assert_eq!(bytes(&budget, "memory of processes", "screenshots cut into tiles"), 700 * 3_145_728);
        assert!(bytes(&budget, "page cache", "weight files") > 26_000_000_000);
        assert!(bytes(&budget, "disk to run", "checkpoint") > 26_000_000_000);
        for sum in &budget.sums {
            assert_eq!(sum.total(), sum.terms.iter().map(|term| term.bytes).sum::<u64>());
        }
        // Pinned memory is taken from the memory of processes, and both from the page cache.
        let there = |what: &str| {
            let sum = budget.sums.iter().find(|it| it.what == what).unwrap();
            (sum.available.as_ref().unwrap().bytes, sum.total())
        };
        let pinned = there("pinned memory");
        let processes = there("memory of processes");
        let cache = there("page cache");
        assert_eq!(
            (pinned.0, processes.0, cache.0),
            (128 * GIB, 128 * GIB - pinned.1, processes.0 - processes.1)
        );
        assert_eq!(budget.refusals(), [""; 0]);
    }

    #[test]
    fn each_sum_that_does_not_fit_is_named_by_itself_and_to_the_byte() {
        let fits = budget(&[], FARM_MACHINE);
        assert_eq!(fits.refusals(), [""; 0]);
        let total = |what: &str| fits.sums.iter().find(|it| it.what == what).unwrap().total();
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        let names = |lines: Vec<String>| -> Vec<String> {
            lines.iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
        };
        let named = |gib: [f64; 3]| names(budget(&[], gib).refusals());
        // Estimates warn. The page cache and the end of the data set warn, too; they are left out
        // here.
        let warned = |gib: [f64; 3]| {
            let mut lines = names(budget(&[], gib).warnings());
            lines.retain(|line| ["memory of processes", "disk to run"].contains(&line.as_str()));
            lines
        };
        let gpu = gib(total("GPU memory"));
        assert_eq!(named([gpu, 128.0, 64.0]), [""; 0]);
        assert_eq!(named([gpu - 1e-8, 128.0, 64.0]), ["GPU memory"]);
        let memory = gib(total("pinned memory") + total("memory of processes"));
        assert_eq!(warned([139.0, memory, 64.0]), [""; 0]);
        assert_eq!(warned([139.0, memory - 1e-8, 64.0]), ["memory of processes"]);
        assert_eq!(named([139.0, memory - 1e-8, 64.0]), [""; 0]);
        assert_eq!(named([139.0, 59.0, 64.0]), ["pinned memory"]);
        let disk = gib(total("disk to run"));
        assert_eq!(warned([139.0, 128.0, disk]), [""; 0]);
        assert_eq!(warned([139.0, 128.0, disk - 1e-8]), ["disk to run"]);
        let line = &budget(&[], [70.0, 128.0, 64.0]).refusals()[0];
        for part in ["does not fit", "KV pages 40.27 GB", "weights 26", "policy.engine.kv_tokens", "75.16 GB"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
        // A page cache that is too small costs time, and the data set ends long after the start:
        // neither is refused.
        let tight = budget(&["tasks.groups=100000"], [139.0, memory + 1.0, 64.0]);
        assert_eq!(tight.refusals(), [""; 0]);
        let warned: Vec<String> =
            tight.warnings().iter().map(|line| line.split(':').next().unwrap().to_owned()).collect();
        assert_eq!(warned, ["page cache", "disk to the end", "policy.engine"], "{:?}", tight.warnings());
    }

    #[test]
    fn sessions_that_do_not_fit_are_swapped_out_and_counted() {
        let fits = budget(&[], FARM_MACHINE).residency.unwrap();
        // 60,000 tokens at the end of 30 steps of 7 x 256 rows, 60 of text and 150 generated, and
        // half of that on average.
        assert!((59_000..62_000).contains(&fits.tokens[0]), "{fits:?}");
        assert!((480..510).contains(&fits.even.pages), "{fits:?}");
        assert_eq!(fits.even.resident, 25_600 / fits.even.pages);
        assert_eq!(
            (fits.even.resident + fits.even.swapped_out, fits.longest.resident + fits.longest.swapped_out),
            (100, 100)
        );
        assert_eq!(fits.longest.resident, 25_600 / fits.longest.pages);
        // A session of 492 pages takes 95 + 492 blocks of 1.57 MB.
        assert_eq!(fits.even.bytes, fits.even.swapped_out * (95 + fits.even.pages) * 64 * 24_576);
        let seconds = fits.longest.bytes_a_step as f64 / 55e9;
        assert!((fits.longest.seconds_a_step() - seconds).abs() < 1e-12 && seconds > 0.0);
        // Fewer slots than the KV pages allow; a session that works on a fork takes two.
        let few = budget(&["policy.engine.state_slots=20"], FARM_MACHINE).residency.unwrap();
        assert_eq!((few.even.resident, few.even.swapped_out), (20, 80));
        let forks = budget(&["policy.context.keep=last_image", "policy.engine.state_slots=20"], FARM_MACHINE);
        assert_eq!(forks.residency.unwrap().even.resident, 10);
        // Too little memory to swap out to: fewer sessions are admitted than exist.
        let short = budget(&["policy.engine.offload_bytes=1000000000"], FARM_MACHINE);
        assert!(
            short.warnings().iter().any(|line| line.contains("sessions are admitted")),
            "{:?}",
            short.warnings()
        );
        let long = budget(&["policy.engine.context_tokens_max=30000"], FARM_MACHINE);
        assert!(long.warnings().iter().any(|line| line.contains("context_full")), "{:?}", long.warnings());
    }

    #[test]
    fn a_job_on_the_processor_is_never_refused() {
        let small = budget(&["policy.engine.backend=cpu"], [0.1, 0.1, 0.1]);
        assert_eq!(small.refusals(), [""; 0]);
        assert!(small.residency.is_none() && !small.warnings().is_empty());
    }
}
