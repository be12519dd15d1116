//! Turns a checked job into running services: what each role needs of it, made in one place for `run` and for the roles alone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use furrow_coordinator::{Identity, RunLock};
use furrow_env::sim::{Air, SimConfig};
use furrow_env::{Archives, Chromium, EnvConfig, Made, Make, Root, Site, Sites, Stages};
use furrow_policy::{Endpoint, PolicyConfig};
use furrow_rollout::Id;
use furrow_tasks::{Pictures, SiteRoot, TaskSet};
use furrow_telemetry::{Exporter, Logs, Origin, Otlp, Role, TelemetryConfig, TimeSource, log_path};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::job::Job;
use crate::{Failure, output, run_dir};

/// A job, its tasks, and where it runs.
pub struct Launch {
    /// The checked job.
    pub job: Job,
    /// Its tasks.
    pub set: TaskSet,
    /// Those it is evaluated on, if it is.
    pub eval: Option<TaskSet>,
}

/// Pages of air instead of a browser's.
#[derive(Debug, Default, clap::Args)]
pub struct AirArgs {
    /// Act on pages of air with screenshots of this many bytes instead of in browsers: to size a farm
    #[arg(long, value_name = "BYTES")]
    air: Option<usize>,
    /// Time that a page of air takes to settle after an action
    #[arg(long, value_name = "MILLIS", requires = "air", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=600_000))]
    air_settle: u64,
}

/// Keys of the resolved job that a resumed run must not change.
const IDENTITY: &[&str] = &[
    "run.name",
    "run.seed",
    "tasks",
    "eval.every_versions",
    "eval.group_size",
    "eval.seed",
    "eval.source",
    "policy.kind",
    "policy.grammar",
    "policy.sampling",
    "policy.context",
    "policy.instructions",
    "policy.remote.model",
    "score.judge.model",
    "score.judge.screenshots",
    "score.judge.votes",
    "score.judge.show_reference",
];

impl Launch {
    /// Reads the job and loads its tasks, or says all that is wrong with them.
    pub fn read(args: &crate::JobArgs) -> Result<Self, Failure> {
        let job = Job::read(&args.job, &args.set).map_err(Failure::Input)?;
        let (set, eval) = load(&job)?;
        for warning in &job.warnings {
            output::complain(&format!("warning: {}", warning.at(&args.job)));
        }
        for note in set.notes().iter().chain(eval.iter().flat_map(TaskSet::notes)) {
            output::complain(&format!("note: {note}"));
        }
        let sets = || [Some(&set), eval.as_ref()].into_iter().flatten();
        let judged: usize = sets().map(TaskSet::judged).sum();
        if judged > 0 && job.score.judge.is_none() {
            output::complain(&format!(
                "note: {} of {} tasks need a judge and the job names none: their trajectories would end as scorer_error; \
                 set score.judge.endpoint and score.judge.model, or leave them out with exclude",
                judged,
                sets().map(|set| set.specs().len()).sum::<usize>()
            ));
        }
        Ok(Self { job, set, eval })
    }

    /// Reads the judge's key, where there is a judge: a job without it is wrong for this place.
    pub fn with_key(mut self) -> Result<Self, Failure> {
        let judge = self.job.score.judge.take().map(furrow_coordinator::JudgeConfig::with_key).transpose();
        self.job.score.judge = judge.map_err(|problem| Failure::Input(vec![problem]))?;
        Ok(self)
    }

    /// Reads the key of the policy's endpoint, where there is one.
    pub fn with_policy_key(mut self) -> Result<Self, Failure> {
        self.job.policy = self.job.policy.with_key().map_err(|problem| Failure::Input(vec![problem]))?;
        Ok(self)
    }

    /// What the coordinator is told. It holds the run directory by `lock` until it is over.
    pub fn coordinator(self, resume: bool, lock: RunLock) -> Result<furrow_coordinator::Job, Failure> {
        let Self { job, set, eval } = self;
        let evaluated = eval.as_ref().map(TaskSet::fingerprint).unwrap_or_default();
        let identity = identity(&job.resolved, &[set.fingerprint(), evaluated].join(" "))?;

        Ok(furrow_coordinator::Job {
            run_id: job.run_name,
            run_dir: job.run_dir,
            lock: Some(lock),
            resume,
            identity,
            job_toml: job.resolved,
            tasks: set,
            tasks_config: job.tasks,
            eval: eval.zip(job.eval),
            session: job.policy.session,
            judge: job.score.judge,
            limits: job.limits,
            sessions: job.env.sessions_max.min(job.policy.sessions_max),
            records: job.records,
        })
    }

    /// Refuses to resume a run whose job was another, and says what differs.
    pub fn check_same_job(&self) -> Result<(), Failure> {
        let path = self.job.run_dir.join("job.toml");
        let refused = |why: &dyn std::fmt::Display| {
            let remedy =
                "put the job that began this run there, or move the file away: --resume writes it again";
            Failure::Input(vec![format!("{}: {why}; {remedy}", path.display())])
        };
        let Some(began) = run_dir::job_text(&self.job.run_dir).map_err(|why| refused(&why))? else {
            return Ok(());
        };
        // What a power cut leaves of a file that an older version wrote without a sync.
        if began.trim().is_empty() {
            return Err(refused(&"it is empty"));
        }
        let differences = identity(&self.job.resolved, "")?.differences(&identity(&began, "")?);
        if differences.is_empty() { Ok(()) } else { Err(Failure::Input(differences)) }
    }

    /// Where trajectories are acted: real browsers, or air where it is asked for.
    pub async fn stages(&self, air: &AirArgs) -> Result<Arc<dyn Stages>, Failure> {
        if let Some(screenshot_bytes) = air.air {
            let settle = Duration::from_millis(air.air_settle);
            return Ok(Arc::new(Air::new(SimConfig { screenshot_bytes, settle, ..SimConfig::default() })));
        }
        let env = &self.job.env;
        let sites = sites(&self.set, self.eval.as_ref(), env)?;
        let archives =
            env.archive.map(|limits| Archives::Record { folder: archive(&self.job.run_dir), limits });
        browsers(env, sites, archives).await
    }
}

/// The tasks of a job, and those it is evaluated on.
pub fn load(job: &Job) -> Result<(TaskSet, Option<TaskSet>), Failure> {
    let set = furrow_tasks::load(&job.tasks).map_err(Failure::Input)?;
    let eval = job.eval.as_ref().map(|eval| furrow_tasks::load(&eval.tasks)).transpose();
    let eval = eval.map_err(Failure::Input)?;
    if let Some(eval) = &eval {
        set.sites_with(eval).map_err(Failure::Input)?;
    }
    Ok((set, eval))
}

/// The sites of these tasks.
pub fn sites(set: &TaskSet, eval: Option<&TaskSet>, env: &EnvConfig) -> Result<Sites, Failure> {
    let specs = match eval {
        Some(eval) => set.sites_with(eval).map_err(Failure::Input)?,
        None => set.sites().iter().collect(),
    };
    let sites: Vec<Site> = specs.into_iter().map(site).collect();
    Ok(Sites::open(&sites, env.sites)?)
}

/// Where the network of a run's trajectories is kept: `<run>/archive`, on the machine whose environment worker acted them.
pub fn archive(run_dir: &Path) -> PathBuf {
    run_dir.join("archive")
}

/// Browsers that serve these sites, and make or use archives.
pub async fn browsers(
    env: &EnvConfig,
    sites: Sites,
    archives: Option<Archives>,
) -> Result<Arc<dyn Stages>, Failure> {
    let (browser, sites) = (env.browser.clone(), Arc::new(sites));
    let pool = match archives {
        Some(archives) => Chromium::start_archived(browser, sites, env.egress.clone(), archives).await,
        None => Chromium::start(browser, sites, env.egress.clone()).await,
    };
    Ok(Arc::new(pool.map_err(|error| Failure::Input(vec![crate::chain(&error.into())]))?))
}

/// A grounding set as an environment worker serves it.
#[derive(Debug)]
struct PictureSite(Arc<Pictures>);

impl Make for PictureSite {
    fn make(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.0.read(name)
    }
}

fn site(spec: &furrow_tasks::SiteSpec) -> Site {
    let root = match &spec.root {
        SiteRoot::Folder(folder) => Root::Folder(folder.clone()),
        SiteRoot::Layers(folders) => Root::Layers(folders.clone()),
        SiteRoot::Wheel { path, prefix } => {
            Root::Zip { path: path.clone(), prefix: prefix.trim_end_matches('/').to_owned() }
        }
        SiteRoot::Pictures(pictures) => Root::Made(Made(Arc::new(PictureSite(pictures.clone())))),
    };
    Site { host: spec.host.clone(), root }
}

/// The settings of a resolved job that make it this job.
fn identity(resolved: &str, tasks: &str) -> Result<Identity, Failure> {
    let table: toml::Table =
        resolved.parse().map_err(|why| Failure::Input(vec![format!("job.toml: {why}")]))?;
    let mut settings = vec![("task files".to_owned(), tasks.to_owned())];
    for key in IDENTITY {
        let mut parts = key.split('.');
        let first = parts.next().and_then(|part| table.get(part));
        let value = parts.fold(first, |value, part| value.and_then(|value| value.get(part)));
        settings.push(((*key).to_owned(), value.map(ToString::to_string).unwrap_or_default()));
    }
    settings.extend(spread(&table));
    Ok(Identity::new(settings))
}

/// Step limits that are spread follow from how many trajectories run at once; without them that may change. A run that never had the key is the
/// run that it was.
fn spread(table: &toml::Table) -> Option<(String, String)> {
    let key = "limits.spread_first_steps";
    let value = |section: &str, key: &str| table.get(section)?.get(key);
    let whole = |section: &str| value(section, "sessions_max").and_then(toml::Value::as_integer);
    let is_on = value("limits", "spread_first_steps").and_then(toml::Value::as_bool) == Some(true);
    let sessions = whole("env").min(whole("policy")).unwrap_or_default();
    is_on.then(|| (key.to_owned(), format!("true with {sessions} trajectories at once (env.sessions_max)")))
}

/// A name for a worker that nobody named: role, machine's process and a random tail, so that a reborn one is another.
pub fn worker_name<K: furrow_rollout::Kind>(given: Option<&str>, role: &str) -> Result<Id<K>, Failure> {
    let text = given.map_or_else(|| process_name(role), ToOwned::to_owned);
    Id::new(&text).map_err(|bad| Failure::Input(vec![format!("--id: {bad}")]))
}

/// Role, process and a random tail: unlike that of any other process, also of another machine's.
pub fn process_name(role: &str) -> String {
    let tail = uuid::Uuid::now_v7().simple().to_string();
    format!("{role}-{}-{}", std::process::id(), &tail[tail.len() - 6..])
}

/// Listens for chats where the job has them served, and says where.
pub async fn chats(config: &PolicyConfig) -> Result<Option<Endpoint>, Failure> {
    let Some(serve) = &config.serve else { return Ok(None) };
    let endpoint = Endpoint::bind(serve).await;
    let endpoint = endpoint.map_err(|error| Failure::Input(vec![crate::chain(&error.into())]))?;
    output::aside(format!("chats with {:?} are served at http://{}/v1", serve.model, endpoint.address()));
    Ok(Some(endpoint))
}

/// Starts logging for the rest of the process.
pub fn logs(run_dir: &Path, role: Role, config: &TelemetryConfig) -> Result<(), Failure> {
    Ok(Logs::to_file(log_path(run_dir, role), config).start()?)
}

/// Writes figures to `<run>/metrics.jsonl`, and sends them and spans to an endpoint where the job names one, until `stop`.
pub fn metrics(
    job: &Job,
    role: Role,
    instance: &str,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let (config, run) = (job.telemetry.clone(), job.run_name.to_string());
    let exporter = Exporter::open(&job.run_dir.join("metrics.jsonl"), role, TimeSource::system())?;
    let otlp = Otlp::open(&config, &Origin { role, run, instance: instance.to_owned() })?;
    Ok(tokio::spawn(async move {
        let sending = async {
            if let Some(otlp) = otlp {
                otlp.export(stop.clone()).await;
            }
        };
        tokio::join!(furrow_telemetry::export(exporter, config, stop.clone()), sending);
    }))
}

/// A runtime for services.
pub fn runtime() -> Result<Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Comes back with the first SIGTERM or SIGINT.
pub async fn signalled() -> Result<(), Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// A token that the first SIGTERM or SIGINT cancels. The second ends the process at once; its browsers die with it.
pub fn stop_on_signal() -> Result<CancellationToken, Failure> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let told = stop.clone();
    tokio::spawn(async move {
        for already in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if already {
                output::complain("told twice to stop: ending at once; go on later with --resume");
                std::process::exit(130);
            }
            output::complain("draining: nothing new is started, work in hand ends; once more to end at once");
            told.cancel();
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a resumed job says differs from the one that began, each as TOML.
    fn differences(began: &str, now: &str) -> Vec<String> {
        identity(now, "").ok().unwrap().differences(&identity(began, "").ok().unwrap())
    }

    #[test]
    fn limits_that_are_spread_belong_to_a_job_and_sessions_then_do() {
        let job = |spread: &str, env: u32, policy: u32| {
            format!("[env]\nsessions_max = {env}\n[policy]\nsessions_max = {policy}\n[limits]\n{spread}")
        };
        let (off, on) = ("spread_first_steps = false", "spread_first_steps = true");
        // A run of a release that did not know the key.
        assert_eq!(differences(&job("", 8, 256), &job(off, 9, 256)), [""; 0]);
        assert_eq!(differences(&job(on, 8, 256), &job(on, 8, 200)), [""; 0]);
        for (began, now) in [
            (job(off, 8, 256), job(on, 8, 256)),
            (job(on, 8, 256), job(on, 9, 256)),
            (job(on, 8, 256), job(off, 8, 256)),
        ] {
            let found = differences(&began, &now);
            assert!(found.len() == 1 && found[0].starts_with("limits.spread_first_steps: "), "{found:?}");
        }
    }
}
