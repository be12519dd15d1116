//! Start: takes the run directory and brings ledger, spool and data set into agreement before anybody is served.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use furrow_records::RecordsConfig;
use furrow_rollout::{Id, PolicyKind, Run, SessionSpec, Trajectory};
use furrow_tasks::{EvalConfig, TaskSet, TasksConfig};
use furrow_telemetry::{SpoolRecovered, TimeSource};
use tokio::task::JoinError;

use crate::assign::FirstSteps;
use crate::config::LimitsConfig;
use crate::core::Spooled;
use crate::crash;
use crate::durable::{DurableError, make_durable_dir};
use crate::groups::span;
use crate::identity::Identity;
use crate::judge::JudgeConfig;
use crate::ledger::{Ledger, LedgerError, Mutation, RunOpening, SqliteLedger, Standing, TrajectoryRow};
use crate::lock::{LockError, RunLock};
use crate::plan::{JobPlan, UnknownTask};
use crate::publish::{PublishError, PublishSettings, Publisher, Recovered, check_run_dir};
use crate::service::versions;
use crate::spool::{Key, RecoveredTrajectory, Spool, SpoolError};

/// What the coordinator is told of a job.
#[derive(Debug)]
pub struct Job {
    /// The run.
    pub run_id: Id<Run>,
    /// Its directory: `ledger.sqlite`, `spool/` and `data/` are made in it.
    pub run_dir: PathBuf,
    /// The lock on the directory, where the caller has taken it to prepare the directory; `None`: it is taken here.
    pub lock: Option<RunLock>,
    /// Whether a run that is in the directory goes on; else the directory must be without one.
    pub resume: bool,
    /// What a resumed job must not change.
    pub identity: Identity,
    /// The resolved job as TOML; it travels in every file of the data set.
    pub job_toml: String,
    /// Its tasks.
    pub tasks: TaskSet,
    /// `[tasks]`: how they are drawn and how large groups are.
    pub tasks_config: TasksConfig,
    /// `[eval]` and its tasks; `None`: nothing is evaluated.
    pub eval: Option<(TaskSet, EvalConfig)>,
    /// How sessions are set up.
    pub session: SessionSpec,
    /// `[score.judge]`, its key read; `None`: there is nobody to ask.
    pub judge: Option<JudgeConfig>,
    /// `[limits]`.
    pub limits: LimitsConfig,
    /// Trajectories at once.
    pub sessions: u32,
    /// `[records]`.
    pub records: RecordsConfig,
}

/// A run that is recovered and not yet served.
pub struct Coordinator {
    pub(crate) run_id: Id<Run>,
    pub(crate) run_dir: PathBuf,
    pub(crate) judge: Option<JudgeConfig>,
    pub(crate) limits: LimitsConfig,
    pub(crate) disk_reserve_bytes: u64,
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) spool: Spool,
    pub(crate) recovered: Recovered,
    pub(crate) spooled: BTreeMap<Id<Trajectory>, Spooled>,
    pub(crate) lock: RunLock,
}

/// Why a coordinator did not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The run directory cannot be made or used.
    #[error("cannot use the run directory")]
    RunDir(#[source] DurableError),
    /// Somebody else has it.
    #[error("cannot take the run directory")]
    Lock(#[source] LockError),
    /// There is a run in it and nobody said to go on.
    #[error(
        "run directory {run_dir} already holds a run: go on with --resume, start over with --clean, or choose another output_dir"
    )]
    NotEmpty {
        /// The directory.
        run_dir: PathBuf,
    },
    /// The ledger failed.
    #[error("the ledger failed")]
    Ledger(#[source] LedgerError),
    /// The spool failed.
    #[error("the spool failed")]
    Spool(#[source] SpoolError),
    /// The publisher failed.
    #[error("publishing failed")]
    Publish(#[source] PublishError),
    /// A resumed run is about a task that is gone.
    #[error("the job's tasks changed")]
    UnknownTask(#[source] UnknownTask),
    /// An acknowledged step in the spool is not readable.
    #[error("the spool holds a step of {trajectory} that this furrow cannot read")]
    Undecodable {
        /// Whose.
        trajectory: Id<Trajectory>,
        /// Why.
        source: furrow_wire::WireError,
    },
    /// The server failed.
    #[error("cannot serve")]
    Serve(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// One of our own tasks panicked.
    #[error("the coordinator's {part} panicked")]
    Panicked {
        /// Which.
        part: &'static str,
        /// How.
        source: JoinError,
    },
}

impl Coordinator {
    /// Takes the run directory and brings everything in it into agreement. Blocks: not for async code.
    pub fn open(mut job: Job) -> Result<Self, CoordinatorError> {
        make_durable_dir(&job.run_dir).map_err(CoordinatorError::RunDir)?;
        let lock = match job.lock.take() {
            Some(lock) => lock,
            None => RunLock::take(&job.run_dir).map_err(CoordinatorError::Lock)?,
        };
        check_run_dir(&job.run_dir).map_err(CoordinatorError::RunDir)?;
        let ledger = open_ledger(&job)?;
        let opened = Spool::open(job.run_dir.join("spool"), job.limits.spool);
        let (spool, found) = opened.map_err(CoordinatorError::Spool)?;
        tell_recovered(&found);
        let resolved = job.job_toml.clone();
        let settings = PublishSettings {
            run_dir: job.run_dir.clone(),
            data_dir: job.run_dir.join("data"),
            run_id: job.run_id.clone(),
            job_toml: job.job_toml,
            records: job.records.clone(),
        };
        let recovered = Publisher::recover(settings, ledger, job.limits.ledger, spool.clone(), found);
        let recovered = recovered.map_err(CoordinatorError::Publish)?;
        let first_steps = job.limits.spread_first_steps.then_some(FirstSteps { sessions: job.sessions });
        let plan = JobPlan::new(job.tasks, &job.tasks_config, job.session);
        let plan = plan.evaluated(job.eval).spread(first_steps);
        plan.check(&recovered.snapshot).map_err(CoordinatorError::UnknownTask)?;
        if job.resume {
            let path = job.run_dir.join("job.toml");
            furrow_storage::replace(&path, resolved.as_bytes())
                .map_err(|error| CoordinatorError::RunDir(DurableError::on("write", &path)(error)))?;
        }
        Ok(Self {
            spooled: take_stock(&spool, &recovered)?,
            run_id: job.run_id,
            run_dir: job.run_dir,
            judge: job.judge,
            limits: job.limits,
            disk_reserve_bytes: job.records.disk_reserve_bytes,
            plan: Arc::new(plan),
            spool,
            recovered,
            lock,
        })
    }
}

fn open_ledger(job: &Job) -> Result<SqliteLedger, CoordinatorError> {
    let path = job.run_dir.join("ledger.sqlite");
    if path.exists() && !job.resume {
        return Err(CoordinatorError::NotEmpty { run_dir: job.run_dir.clone() });
    }
    let mut ledger = SqliteLedger::open(path).map_err(CoordinatorError::Ledger)?;
    let opening = RunOpening {
        run_id: job.run_id.clone(),
        job_sha256: job.identity.sha256(),
        at_micros: TimeSource::system().wall_micros(),
    };
    crash::point("ledger.before_run_open");
    ledger.commit(&[Mutation::RunOpened(opening)]).map_err(CoordinatorError::Ledger)?;
    crash::point("ledger.after_run_open");
    Ok(ledger)
}

fn tell_recovered(found: &[RecoveredTrajectory]) {
    if found.is_empty() {
        return;
    }
    let records = |found: &RecoveredTrajectory| found.steps.len() as u64 + u64::from(found.ending.is_some());
    SpoolRecovered {
        files: found.len() as u64,
        records: found.iter().map(records).sum(),
        cut_bytes: found.iter().map(|found| found.tail.torn_bytes()).sum(),
    }
    .emit();
}

/// What the core wants to know of the spool. Only steps of trajectories that go on are opened, and only where a policy has tokens.
fn take_stock(
    spool: &Spool,
    recovered: &Recovered,
) -> Result<BTreeMap<Id<Trajectory>, Spooled>, CoordinatorError> {
    let has_tokens = |kind: PolicyKind| matches!(kind, PolicyKind::Model | PolicyKind::Openai);
    let goes_on =
        |row: &&TrajectoryRow| row.standing == Standing::Assigned && has_tokens(row.start.policy.kind);
    let rows = recovered.snapshot.trajectories.iter().filter(goes_on);
    let to_open: BTreeSet<_> = rows.map(|row| row.start.trajectory_id.clone()).collect();
    let stock = |found: &RecoveredTrajectory| {
        let trajectory = found.trajectory_id.clone();
        let opened = to_open.contains(&trajectory).then(|| versions_of(spool, &trajectory)).transpose()?;
        let (steps, ending) = (found.steps.len() as u32, found.ending);
        Ok((trajectory, Spooled { steps, policy_versions: opened.flatten(), ending }))
    };
    recovered.spooled.iter().map(stock).collect()
}

fn versions_of(spool: &Spool, trajectory: &Id<Trajectory>) -> Result<Option<(i32, i32)>, CoordinatorError> {
    let mut range = None;
    for entry in spool.read(trajectory).map_err(CoordinatorError::Spool)? {
        let entry = entry.map_err(CoordinatorError::Spool)?;
        if let Key::Step(_) = entry.key {
            let undecodable =
                |source| CoordinatorError::Undecodable { trajectory: trajectory.clone(), source };
            let record = furrow_wire::decode_step(entry.payload).map_err(undecodable)?;
            range = span(range, versions(&record));
        }
    }
    Ok(range)
}
