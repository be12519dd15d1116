//! One run: its hosts, its faults, and its end.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use furrow_coordinator::core::JobOutcome;
use furrow_coordinator::{Coordinator, CoordinatorJob, JobIdentity, LimitsFile};
use furrow_env::simulated::{FaultRates, SimConfig, SimulatedBrowser};
use furrow_env::{EnvFile, RetryPolicy, WorkerConfig};
use furrow_policy::{PolicyFile, WorkerConnections};
use furrow_records::{DataCard, RecordsFile};
use furrow_rollout::{ContextPolicy, Grammar, Id, SamplingParams, SessionSpec, WeightRoots};
use furrow_tasks::{SourceFile, TasksFile, load};
use furrow_telemetry::{ManualTime, TimeSource};
use rand::SeedableRng;
use rand::rngs::ChaCha12Rng;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt;
use turmoil::Sim;

use crate::TICK;
use crate::accounts::Accounts;
use crate::check::check_run;
use crate::faults::{self, KINDS, NetworkFault, PlannedFault};
use crate::transport::{SimulatedConnector, incoming};

pub(crate) const COORDINATOR: &str = "coordinator";
pub(crate) const GROUPS: u64 = 5;
pub(crate) const GROUP_SIZE: u32 = 3;
const ENVS: usize = 2;
const POLICIES: usize = 2;
const PORT: u16 = 7000;

/// Faults begin after the first one of these times, and none begins after the second one.
const QUIET_UNTIL: Duration = Duration::from_secs(1);
const CALM_FROM: Duration = Duration::from_secs(40);
/// A run that is not over by this time hangs.
const TOO_LATE: Duration = Duration::from_secs(600);
/// Wall-clock time of a tick at least: threads that write need time, too.
const TICK_PAUSE: Duration = Duration::from_micros(100);
/// Time for the threads of a crashed coordinator to let go of its files.
const RELEASE_DEADLINE: Duration = Duration::from_secs(60);

/// What is wrong, with the seed and the faults of the run.
pub(crate) type Violation = String;

/// What a number of runs went through.
#[derive(Debug, Default, Clone)]
pub(crate) struct RunCounts {
    pub runs: u64,
    pub faults: [u64; KINDS.len()],
    pub virtual_seconds: u64,
    pub acknowledged: u64,
    /// Attempts beyond the first of each slot.
    pub repeated: u64,
}

impl RunCounts {
    pub(crate) fn add(&mut self, other: &RunCounts) {
        self.runs += other.runs;
        self.virtual_seconds += other.virtual_seconds;
        self.acknowledged += other.acknowledged;
        self.repeated += other.repeated;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, count)| *sum += count);
    }

    /// Whether faults of every kind happened, and made an attempt fail: others prove nothing.
    pub(crate) fn is_varied(&self) -> bool {
        self.repeated > 0 && self.faults.iter().all(|count| *count > 0)
    }
}

impl fmt::Display for RunCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, virtual_seconds, acknowledged, repeated, .. } = self;
        write!(
            f,
            "{runs} runs of {virtual_seconds} s, {acknowledged} trajectories acknowledged, {repeated} repeated"
        )?;
        for (kind, count) in KINDS.iter().zip(self.faults) {
            write!(f, ", {count} {kind}")?;
        }
        Ok(())
    }
}

/// How the coordinator's last life ended.
type RunEnd = Arc<Mutex<Option<Result<JobOutcome, String>>>>;

/// Runs a farm with the faults of a seed until its job is over, and checks what it left.
pub(crate) fn run_seed(seed: u64) -> Result<RunCounts, Violation> {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::default();
    let subscriber = tracing_subscriber::registry().with(accounts.clone());
    let logging = tracing::subscriber::set_default(subscriber);
    let mut chance = ChaCha12Rng::seed_from_u64(seed);
    let end = RunEnd::default();
    let (time, hands) = TimeSource::manual(1_790_000_000_000_000);
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .simulation_duration(TOO_LATE * 2)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        // Messages that a partition keeps.
        .tcp_capacity(1 << 16)
        .build();
    let hosts = add_hosts(&mut sim, seed, dir.path(), &time, &end);
    let faults = faults::plan(&mut chance, &hosts, QUIET_UNTIL, CALM_FROM);
    let went = drive(&mut sim, &hands, &faults, &end);
    let virtual_seconds = sim.elapsed().as_secs();
    drop(sim);
    drop(logging);
    let described = |violation| {
        let faults: Vec<String> = faults.iter().map(|fault| format!("  {fault}\n")).collect();
        format!("seed {seed}, after {virtual_seconds} s: {violation}\n{}", faults.concat())
    };
    let begun = went.map_err(described)?;
    let accounts = accounts.all();
    let repeated = check_run(&dir.path().join("run"), &accounts).map_err(described)?;
    let acknowledged = accounts.values().filter(|account| account.end.is_some()).count() as u64;
    let mut counts = RunCounts { runs: 1, virtual_seconds, acknowledged, repeated, ..RunCounts::default() };
    faults[..begun].iter().for_each(|fault| counts.faults[fault.fault.kind()] += 1);
    Ok(counts)
}

/// Moves hosts and clock until the job is over. Returns how many faults had begun.
fn drive(
    sim: &mut Sim<'_>,
    hands: &ManualTime,
    faults: &[PlannedFault],
    end: &RunEnd,
) -> Result<usize, String> {
    let mut begun = 0;
    let mut open: Vec<&PlannedFault> = Vec::new();
    let mut crashed: BTreeSet<&str> = BTreeSet::new();
    loop {
        let now = sim.elapsed();
        for fault in open.extract_if(.., |fault| fault.ends <= now) {
            finish(sim, &fault.fault, &mut crashed);
        }
        while let Some(fault) = faults.get(begun).filter(|fault| fault.begins <= now) {
            begun += 1;
            if begin(sim, &fault.fault, &mut crashed) {
                open.push(fault);
            }
        }
        sim.step().map_err(|error| error.to_string())?;
        hands.advance(TICK.as_micros() as u64);
        let ended = end.lock().unwrap().take();
        match ended {
            Some(Ok(JobOutcome::Complete)) => return Ok(begun),
            Some(other) => return Err(format!("the coordinator ended with {other:?}")),
            None if now > TOO_LATE => return Err("the run hangs".into()),
            None => pause(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "gives threads wall-clock time; no state is waited for")]
fn pause() {
    std::thread::sleep(TICK_PAUSE);
}

/// Begins a fault; false if there is nothing to end later.
fn begin<'a>(sim: &mut Sim<'_>, fault: &'a NetworkFault, crashed: &mut BTreeSet<&'a str>) -> bool {
    match fault {
        NetworkFault::Cut(a, b) => sim.partition(a.as_str(), b.as_str()),
        NetworkFault::CutOneWay(a, b) => sim.partition_oneway(a.as_str(), b.as_str()),
        NetworkFault::HoldBack(a, b) => sim.hold(a.as_str(), b.as_str()),
        NetworkFault::Slow(longest) => sim.set_max_message_latency(*longest),
        NetworkFault::Crash(host) => {
            if !crashed.insert(host) {
                return false;
            }
            sim.crash(host.as_str());
        }
    }
    true
}

fn finish<'a>(sim: &mut Sim<'_>, fault: &'a NetworkFault, crashed: &mut BTreeSet<&'a str>) {
    match fault {
        NetworkFault::Cut(a, b) => sim.repair(a.as_str(), b.as_str()),
        NetworkFault::CutOneWay(a, b) => sim.repair_oneway(a.as_str(), b.as_str()),
        NetworkFault::HoldBack(a, b) => sim.release(a.as_str(), b.as_str()),
        NetworkFault::Slow(_) => sim.set_max_message_latency(Duration::from_millis(20)),
        NetworkFault::Crash(host) => {
            crashed.remove(host.as_str());
            sim.bounce(host.as_str());
        }
    }
}

/// Adds a coordinator and its workers; returns their names.
fn add_hosts(sim: &mut Sim<'_>, seed: u64, dir: &Path, time: &TimeSource, end: &RunEnd) -> Vec<String> {
    let mut hosts = vec![COORDINATOR.to_owned()];
    let dir = dir.to_owned();
    let time = time.clone();
    let end = end.clone();
    sim.host(COORDINATOR, move || {
        let life = coordinate(dir.clone(), time.clone());
        let end = end.clone();
        async move {
            let outcome = life.await;
            *end.lock().unwrap() = Some(outcome);
            Ok(())
        }
    });
    for number in 0..ENVS {
        let name = format!("env-{number}");
        hosts.push(name.clone());
        sim.host(name.clone(), move || act(name.clone(), seed));
    }
    for number in 0..POLICIES {
        let name = format!("policy-{number}");
        hosts.push(name.clone());
        sim.host(name.clone(), move || decide(name.clone()));
    }
    hosts
}

/// A life of the coordinator.
async fn coordinate(dir: PathBuf, time: TimeSource) -> Result<JobOutcome, String> {
    let opening = tokio::task::spawn_blocking(move || {
        wait_released(&dir.join("run"))?;
        Coordinator::open(job(&dir)).map_err(|error| furrow_records::chain(&error))
    });
    let coordinator = opening.await.map_err(|error| error.to_string())??;
    let listener = incoming(PORT).await.map_err(|error| error.to_string())?;
    let served = coordinator.serve(listener, CancellationToken::new(), time).await;
    served.map(|summary| summary.over).map_err(|error| furrow_records::chain(&error))
}

/// Waits until no thread of an earlier life has a file of the run open: a process that is killed
/// takes its threads with it, and a host here does not.
#[expect(clippy::disallowed_methods, reason = "waits for a state with a deadline, on a thread that may")]
fn wait_released(run: &Path) -> Result<(), String> {
    let began = std::time::Instant::now();
    loop {
        let links = std::fs::read_dir("/proc/self/fd").map_err(|error| error.to_string())?;
        let mut targets = links.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        if !targets.any(|target| target.starts_with(run)) {
            return Ok(());
        }
        if began.elapsed() > RELEASE_DEADLINE {
            return Err("an earlier life of the coordinator did not end".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

async fn act(name: String, seed: u64) -> turmoil::Result {
    let browser = SimulatedBrowser::new(SimConfig {
        seed,
        screenshot_bytes: 20_000,
        boot: Duration::from_millis(300),
        observe: Duration::from_millis(80),
        settle: Duration::from_millis(200),
        clicks: 1..=4,
        faults: FaultRates { crash: 0.01, ..FaultRates::default() },
    });
    let retry =
        RetryPolicy { first: Duration::from_millis(100), longest: Duration::from_secs(2), timeout: TOO_LATE };
    let worker = EnvFile::default().check(Path::new("/")).map_err(|errors| errors.join("; "))?.worker;
    let config = WorkerConfig {
        sessions_max: 4,
        lease_wait: Duration::from_secs(2),
        call_deadline: Duration::from_secs(5),
        coordinator_retry: retry,
        policy_deadline: Duration::from_secs(5),
        policy_retry: RetryPolicy { timeout: Duration::from_secs(20), ..retry },
        ..worker
    };
    let id = Id::new(&name)?;
    let coordinator = format!("{COORDINATOR}:{PORT}");
    let connect = Arc::new(SimulatedConnector);
    furrow_env::run(config, id, Arc::new(browser), connect, &coordinator, CancellationToken::new()).await?;
    Ok(())
}

async fn decide(name: String) -> turmoil::Result {
    let address = format!("{name}:{PORT}");
    let file = PolicyFile {
        kind: "scripted".into(),
        listen: address.clone(),
        linger_millis: 10_000,
        think_millis: 300,
        ..PolicyFile::default()
    };
    let config = file.check().map_err(|errors| errors.join("; "))?;
    let connections = WorkerConnections { sessions: incoming(PORT).await?, address, chats: None, link: None };
    let coordinator = Some(format!("{COORDINATOR}:{PORT}"));
    let connect = Arc::new(SimulatedConnector);
    let grace = Duration::from_secs(5);
    let stop = CancellationToken::new();
    let id = Id::new(&name)?;
    furrow_policy::run_on(config, id, connections, connect, coordinator, grace, stop).await?;
    Ok(())
}

/// Tasks of a page that the simulated browser opens whatever is in it.
fn write_suite(dir: &Path) -> std::io::Result<PathBuf> {
    let suite = dir.join("simulated");
    std::fs::create_dir_all(&suite)?;
    std::fs::write(suite.join("page.html"), "<title>simulated</title><script>window.furrow = {}</script>")?;
    let lines = (0..GROUPS).map(|number| {
        format!(
            r#"{{"task_id":"simulated-{number}","start_url":"http://simulated.test/page.html","max_steps":6,"score":{{"kind":"probe","pointer":"/reward"}}}}"#,
        )
    });
    std::fs::write(suite.join("tasks.jsonl"), lines.collect::<Vec<_>>().join("\n") + "\n")?;
    Ok(suite)
}

fn job(dir: &Path) -> CoordinatorJob {
    let suite = write_suite(dir).unwrap();
    let source = SourceFile { suite: "simulated".into(), path: suite, ..SourceFile::default() };
    let tasks = TasksFile {
        group_size: GROUP_SIZE,
        groups: Some(GROUPS),
        seed: 1,
        source: vec![source],
        ..TasksFile::default()
    };
    let tasks_config = tasks.check(dir).unwrap();
    let records = RecordsFile {
        disk_reserve_bytes: 16 << 20,
        compression_level: 1,
        merge_files_min: 2,
        ..RecordsFile::default()
    };
    let limits = LimitsFile {
        lease_millis: 6_000,
        heartbeat_millis: 1_500,
        farewell_millis: 0,
        failure_budget: 1.0,
        attempts_max: 100,
        ..LimitsFile::default()
    };
    CoordinatorJob {
        run_id: Id::new("net").unwrap(),
        run_dir: dir.join("run"),
        lock: None,
        resume: dir.join("run/ledger.sqlite").exists(),
        identity: JobIdentity::new([("tasks.seed".to_owned(), "1".to_owned())]),
        began: None,
        job_toml: "[run]\nname = \"net\"\n".into(),
        shared_job: "[run]\nname = \"net\"\n".into(),
        card: DataCard { run: "net".into(), policy: "scripted".into(), suites: Vec::new() },
        tasks: load(&tasks_config).unwrap(),
        tasks_config,
        eval: None,
        session: SessionSpec {
            grammar: Grammar { name: "holo_navigation".into(), extra: Vec::new() },
            sampling: SamplingParams::default(),
            context: ContextPolicy::Append,
            instructions: String::new(),
        },
        judge: None,
        limits: limits.check().unwrap(),
        sessions: 8,
        records: records.check().unwrap(),
        weight_roots: WeightRoots::default(),
        link: None,
    }
}
