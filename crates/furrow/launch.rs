//! Turns a checked job into running services: builds what each role needs, for `run` and for single
//! roles alike.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use furrow_coordinator::{JobIdentity, RunLock};
use furrow_env::simulated::{SimConfig, SimulatedBrowser};
use furrow_env::{
    ArchiveMode, ChromiumPool, EnvConfig, EnvironmentFactory, FileMaker, FileRoot, SharedMaker, SiteServer,
    StaticSite, WorkerSecrets,
};
use furrow_identity::Identity;
use furrow_policy::{ChatEndpoint, PolicyConfig};
use furrow_records::DataCard;
use furrow_rollout::Id;
use furrow_tasks::{PictureSet, SiteRoot, TaskSampler, TaskSet, TasksConfig};
use furrow_telemetry::{
    LogTargets, MetricsExporter, OtlpExporter, ProcessOrigin, Role, TelemetryConfig, TimeSource, log_path,
};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::job::{Job, shared};
use crate::run_dir::RunStart;
use crate::{CommandFailure, identity, output};

/// The job file and the changes to it.
#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Path of the job file (TOML)
    pub job: PathBuf,
    /// Replace one key, such as `policy.sampling.temperature=0.7`; repeat the option for more keys
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// A job, its tasks, and the tasks of its evaluations.
pub(crate) struct JobLaunch {
    pub job: Job,
    pub set: TaskSet,
    /// The tasks the job is evaluated on, if it has evaluations.
    pub eval: Option<TaskSet>,
}

/// Options that replace the browsers by simulated ones.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SimulatedBrowserArgs {
    /// Act on simulated pages with screenshots of this many bytes instead of in browsers, to size a
    /// farm without them. Scorers of the final page and of back ends find nothing there: reward 0
    #[arg(long, value_name = "BYTES")]
    simulate_browser: Option<usize>,
    /// Milliseconds that a simulated page takes to settle after an action
    #[arg(long, value_name = "MILLIS", requires = "simulate_browser", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=600_000))]
    simulate_settle: u64,
}

impl SimulatedBrowserArgs {
    /// Whether no browser is started.
    pub(crate) fn is_on(&self) -> bool {
        self.simulate_browser.is_some()
    }
}

impl JobLaunch {
    /// Reads the job and loads its tasks; fails with every problem found.
    pub(crate) fn read(args: &JobArgs) -> Result<Self, CommandFailure> {
        Self::of(Job::read(&args.job, &args.set), args)
    }

    /// The same for a start that may resume a run.
    pub(crate) fn read_to_begin(args: &JobArgs, begin: RunStart) -> Result<Self, CommandFailure> {
        match begin {
            RunStart::Resume => Self::of(Job::read_to_resume(&args.job, &args.set), args),
            RunStart::Fresh | RunStart::Clean => Self::read(args),
        }
    }

    fn of(job: Result<Job, Vec<String>>, args: &JobArgs) -> Result<Self, CommandFailure> {
        let job = job.map_err(CommandFailure::Input)?;
        let (set, eval) = load(&job)?;
        for warning in &job.warnings {
            output::error_line(&format!("warning: {}", warning.with_location(&args.job)));
        }
        for note in &job.notes {
            output::error_line(&format!("note: {note}"));
        }
        for warning in set.warnings().iter().chain(eval.iter().flat_map(TaskSet::warnings)) {
            output::error_line(&format!("warning: {warning}"));
        }
        for note in set.notes().iter().chain(eval.iter().flat_map(TaskSet::notes)) {
            output::error_line(&format!("note: {note}"));
        }
        let sets = || [Some(&set), eval.as_ref()].into_iter().flatten();
        let judged: usize = sets().map(TaskSet::tasks_with_judge).sum();
        if judged > 0 && job.score.judge.is_none() {
            output::error_line(&format!(
                "note: {} of {} tasks need a judge and the job names none, so their trajectories would end as scorer_error; \
                 set score.judge.endpoint and score.judge.model, or leave these tasks out with exclude",
                judged,
                sets().map(|set| set.specs().len()).sum::<usize>()
            ));
        }
        if judged == 0 && job.score.judge.is_some() {
            output::error_line("note: no task of the job needs a judge, so score.judge has no effect");
        }
        Ok(Self { job, set, eval })
    }

    /// Reads the judge's key if the job has a judge: without the key the job is wrong on this
    /// machine.
    pub(crate) fn with_key(mut self) -> Result<Self, CommandFailure> {
        let judge = self.job.score.judge.take().map(furrow_coordinator::JudgeConfig::with_key).transpose();
        self.job.score.judge = judge.map_err(|error| CommandFailure::Input(vec![error.to_string()]))?;
        Ok(self)
    }

    /// Reads the key of the policy's endpoint if the job has one.
    pub(crate) fn with_policy_key(mut self) -> Result<Self, CommandFailure> {
        self.job.policy =
            self.job.policy.with_key().map_err(|error| CommandFailure::Input(vec![error.to_string()]))?;
        Ok(self)
    }

    /// The coordinator's job. The coordinator keeps the run directory locked by `lock` until it
    /// ends.
    pub(crate) fn coordinator(
        self,
        resume: bool,
        lock: RunLock,
        link: Identity,
    ) -> Result<furrow_coordinator::CoordinatorJob, CommandFailure> {
        let Self { job, set, eval } = self;
        let evaluated = eval.as_ref().map(TaskSet::fingerprint).unwrap_or_default();
        let tasks = [set.fingerprint(), evaluated].join(" ");
        let identity = ledger_identity(&job.resolved, &tasks)?;
        let began = job.began.as_ref().map(|began| ledger_identity(&began.text, &tasks)).transpose()?;
        let shared_job = shared_job(&job.resolved)?;
        let card = data_card(&job, [Some(&set), eval.as_ref()].into_iter().flatten())?;
        Ok(furrow_coordinator::CoordinatorJob {
            run_id: job.run_name,
            run_dir: job.run_dir,
            lock: Some(lock),
            resume,
            identity,
            began,
            job_toml: job.resolved,
            shared_job,
            card,
            tasks: set,
            tasks_config: job.tasks,
            eval: eval.zip(job.eval),
            session: job.policy.session,
            judge: job.score.judge,
            limits: job.limits,
            sessions: job.env.sessions_max.min(job.policy.sessions_max),
            records: job.records,
            link: Some(link),
            weight_roots: job.policy.weight_roots,
        })
    }

    /// Refuses to resume a run that began with another job, and names the differences.
    pub(crate) fn check_same_job(&self) -> Result<(), CommandFailure> {
        let Some(began) = &self.job.began else { return Ok(()) };
        let now: toml::Table = self
            .job
            .resolved
            .parse()
            .map_err(|why| CommandFailure::Input(vec![format!("job.toml: {why}")]))?;
        let whole_pass = TasksConfig { groups: None, ..self.job.tasks.clone() };
        let pass = TaskSampler::new(&self.set, &whole_pass).groups();
        let differences = identity::differences(&now, &began.table, &self.job.written, pass);
        if differences.is_empty() { Ok(()) } else { Err(CommandFailure::Input(differences)) }
    }

    /// What trajectories act on: real browsers, or simulated ones if the options say so.
    pub(crate) async fn environments(
        &self,
        simulated: &SimulatedBrowserArgs,
    ) -> Result<Arc<dyn EnvironmentFactory>, CommandFailure> {
        if let Some(screenshot_bytes) = simulated.simulate_browser {
            let settle = Duration::from_millis(simulated.simulate_settle);
            return Ok(Arc::new(SimulatedBrowser::new(SimConfig {
                screenshot_bytes,
                settle,
                ..SimConfig::default()
            })));
        }
        let env = &self.job.env;
        let sites = sites(&self.set, self.eval.as_ref(), env)?;
        let archives =
            env.archive.map(|limits| ArchiveMode::Record { folder: archive(&self.job.run_dir), limits });
        browsers(env, sites, archives).await
    }
}

/// The tasks of a job, and those of its evaluations.
pub(crate) fn load(job: &Job) -> Result<(TaskSet, Option<TaskSet>), CommandFailure> {
    let set = furrow_tasks::load(&job.tasks).map_err(CommandFailure::Input)?;
    let eval = job.eval.as_ref().map(|eval| furrow_tasks::load(&eval.tasks)).transpose();
    let eval = eval.map_err(CommandFailure::Input)?;
    if let Some(eval) = &eval {
        set.sites_with(eval).map_err(CommandFailure::Input)?;
    }
    Ok((set, eval))
}

pub(crate) fn sites(
    set: &TaskSet,
    eval: Option<&TaskSet>,
    env: &EnvConfig,
) -> Result<SiteServer, CommandFailure> {
    let specs = match eval {
        Some(eval) => set.sites_with(eval).map_err(CommandFailure::Input)?,
        None => set.sites().iter().collect(),
    };
    let sites: Vec<StaticSite> = specs.into_iter().map(site).collect();
    Ok(SiteServer::open(&sites, env.sites)?)
}

/// Where a run keeps the recorded network traffic of its trajectories: `<run>/archive`, on the
/// machine of the environment worker.
pub(crate) fn archive(run_dir: &Path) -> PathBuf {
    run_dir.join("archive")
}

/// Browsers that serve these sites, and write or read archives.
pub(crate) async fn browsers(
    env: &EnvConfig,
    sites: SiteServer,
    archives: Option<ArchiveMode>,
) -> Result<Arc<dyn EnvironmentFactory>, CommandFailure> {
    let mut browser = env.browser.clone();
    browser.secrets = Arc::new(match archives {
        // What was typed is recorded by its name, and so are the requests that it was in.
        Some(ArchiveMode::Replay { .. }) => WorkerSecrets::placeholders(&env.secrets),
        _ => WorkerSecrets::read(&env.secrets).map_err(CommandFailure::Input)?,
    });
    let sites = Arc::new(sites);
    let pool = match archives {
        Some(archives) => ChromiumPool::start_archived(browser, sites, env.egress.clone(), archives).await,
        None => ChromiumPool::start(browser, sites, env.egress.clone()).await,
    };
    Ok(Arc::new(pool.map_err(|error| CommandFailure::Input(vec![crate::chain(&error.into())]))?))
}

/// A grounding set, served as a site.
#[derive(Debug)]
struct PictureSite(Arc<PictureSet>);

impl FileMaker for PictureSite {
    fn make_file(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.0.read(name)
    }
}

fn site(spec: &furrow_tasks::SiteSpec) -> StaticSite {
    let root = match &spec.root {
        SiteRoot::Folder(folder) => FileRoot::Folder(folder.clone()),
        SiteRoot::Layers(folders) => FileRoot::Layers(folders.clone()),
        SiteRoot::SinglePage(folders) => FileRoot::SinglePage(folders.clone()),
        SiteRoot::Wheel { path, prefix } => {
            FileRoot::Zip { path: path.clone(), prefix: prefix.trim_end_matches('/').to_owned() }
        }
        SiteRoot::Pictures(pictures) => FileRoot::Made(SharedMaker(Arc::new(PictureSite(pictures.clone())))),
    };
    StaticSite { host: spec.host.clone(), root }
}

/// What the card of the job's data set says.
fn data_card<'a>(job: &Job, sets: impl Iterator<Item = &'a TaskSet>) -> Result<DataCard, CommandFailure> {
    let suites: BTreeSet<&String> = sets.flat_map(TaskSet::specs).map(|spec| &spec.task.suite).collect();
    let table = resolved_table(&job.resolved)?;
    let text = |key| identity::at(&table, key).and_then(toml::Value::as_str).unwrap_or_default();
    let policy = match text("policy.kind") {
        "openai" => format!("openai {}", text("policy.remote.model")),
        kind => kind.to_owned(),
    };
    let suites = suites.into_iter().cloned().collect();
    Ok(DataCard { run: job.run_name.to_string(), policy, suites })
}

/// The job as files of the data set name it.
pub(crate) fn shared_job(resolved: &str) -> Result<String, CommandFailure> {
    shared::text(resolved).map_err(|why| CommandFailure::Input(vec![format!("job.toml: {why}")]))
}

/// What the ledger knows a job by.
fn ledger_identity(text: &str, tasks: &str) -> Result<JobIdentity, CommandFailure> {
    Ok(identity::of(&resolved_table(text)?, tasks))
}

fn resolved_table(text: &str) -> Result<toml::Table, CommandFailure> {
    text.parse().map_err(|why| CommandFailure::Input(vec![format!("job.toml: {why}")]))
}

/// The given worker name, or one made of role, process and a random tail: a restarted worker gets
/// another name.
pub(crate) fn worker_name<K: furrow_rollout::IdKind>(
    given: Option<&str>,
    role: &str,
) -> Result<Id<K>, CommandFailure> {
    let text = given.map_or_else(|| process_name(role), ToOwned::to_owned);
    Id::new(&text).map_err(|bad| CommandFailure::Input(vec![format!("--id: {bad}")]))
}

/// Role, process id and a random tail: differs from the name of every other process on any machine.
pub(crate) fn process_name(role: &str) -> String {
    format!("{role}-{}-{}", std::process::id(), random_tail())
}

/// Six random characters: enough to tell the processes of one machine apart.
pub(crate) fn random_tail() -> String {
    let text = uuid::Uuid::now_v7().simple().to_string();
    text[text.len() - 6..].to_owned()
}

/// Listens for chats if the job serves them, and prints the address.
pub(crate) async fn chats(config: &PolicyConfig) -> Result<Option<ChatEndpoint>, CommandFailure> {
    let Some(serve) = &config.serve else { return Ok(None) };
    let endpoint = ChatEndpoint::bind(serve).await;
    let endpoint = endpoint.map_err(|error| CommandFailure::Input(vec![crate::chain(&error.into())]))?;
    output::progress_line(format!(
        "chats with {:?} are served at http://{}/v1",
        serve.model,
        endpoint.address()
    ));
    Ok(Some(endpoint))
}

pub(crate) fn logs(run_dir: &Path, role: Role, config: &TelemetryConfig) -> Result<(), CommandFailure> {
    Ok(LogTargets::to_file(log_path(run_dir, role), config).start()?)
}

/// Writes metrics to `<run>/metrics.jsonl` until `stop`; sends metrics and spans to an endpoint if
/// the job names one.
pub(crate) fn metrics(
    job: &Job,
    role: Role,
    instance: &str,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, CommandFailure> {
    let config = job.telemetry.clone();
    let run = job.run_name.to_string();
    let path = job.run_dir.join("metrics.jsonl");
    let exporter = MetricsExporter::open(&path, role, TimeSource::system(), config.rotation)?;
    let otlp = OtlpExporter::open(&config, &ProcessOrigin { role, run, instance: instance.to_owned() })?;
    Ok(tokio::spawn(async move {
        let sending = async {
            if let Some(otlp) = otlp {
                otlp.export(stop.clone()).await;
            }
        };
        tokio::join!(furrow_telemetry::export(exporter, config, stop.clone()), sending);
    }))
}

pub fn runtime() -> Result<Runtime, CommandFailure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// A checkpoint that is still being loaded when everything else is over is waited for no longer.
const LOADING_GRACE: Duration = Duration::from_secs(1);

/// Does the work of a command that loads checkpoints, and does not wait for one at its end.
pub(crate) fn run_loading(
    work: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(LOADING_GRACE);
    done
}

/// Returns at the first SIGTERM or SIGINT.
pub(crate) async fn signalled() -> Result<(), CommandFailure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Within this time after the first signal another one counts as the same: `timeout` and some
/// supervisors signal a process and its group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// What a signal stops, for the lines that announce it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SignalledWork {
    /// A run, or one of its roles.
    Run,
    /// Chats without a run.
    Chats,
    /// Answers to machines that join a run.
    Enrolment,
    /// A second scoring: `furrow score`, which writes all verdicts or none.
    Scoring,
}

impl SignalledWork {
    /// What happens at the first signal.
    fn first(self) -> &'static str {
        match self {
            Self::Run => {
                "draining: running trajectories finish, no new ones start; signal again to end at once"
            }
            Self::Chats => "draining: running chats finish, no new ones start; signal again to end at once",
            Self::Enrolment => "stopping: no machine joins any more",
            Self::Scoring => {
                "stopping after the trajectories in hand, and nothing is written; signal again to end at once"
            }
        }
    }

    /// What happens at the second one.
    fn second(self) -> &'static str {
        match self {
            Self::Run => "second signal: ending at once; continue later with --resume",
            Self::Chats => "second signal: ending at once; running chats are cut off",
            Self::Enrolment => "second signal: ending at once",
            Self::Scoring => "second signal: ending at once, and nothing is written",
        }
    }
}

/// A token that the first SIGTERM or SIGINT cancels. A later one ends the process at once; its
/// browsers die with it.
pub(crate) fn stop_on_signal(work: SignalledWork) -> Result<CancellationToken, CommandFailure> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cancelled = stop.clone();
    tokio::spawn(async move {
        let mut first = None;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            match first {
                None => {
                    first = Some(Instant::now());
                    output::error_line(work.first());
                    cancelled.cancel();
                }
                Some(at) if at.elapsed() < SAME_SIGNAL => {}
                Some(_) => {
                    output::error_line(work.second());
                    std::process::exit(130);
                }
            }
        }
    });
    Ok(stop)
}
