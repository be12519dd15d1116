//! Start: takes the run directory and reconciles ledger, spool and data set before anything is
//! served.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use furrow_identity::Authority;
use furrow_records::{DataCard, RecordsConfig};
use furrow_rollout::{Id, PolicyKind, Run, SessionSpec, Trajectory, WeightRoots};
use furrow_tasks::{EvalConfig, TaskSet, TasksConfig};
use furrow_telemetry::{SpoolRecovered, TimeSource};
use furrow_wire::Identity;

use crate::assign::FirstSteps;
use crate::commit::{CommitSettings, RecoveredRun, ShardCommitter, check_run_dir};
use crate::config::LimitsConfig;
use crate::core::SpoolProgress;
use crate::crash;
use crate::disk::DiskGate;
use crate::durable::{DurableError, make_durable_dir};
use crate::error::CoordinatorError;
use crate::identity::JobIdentity;
use crate::judge::JudgeConfig;
use crate::ledger::{
    Ledger, LedgerError, Mutation, RunOpening, SqliteLedger, TrajectoryRow, TrajectoryStanding,
};
use crate::lock::RunLock;
use crate::plan::JobPlan;
use crate::spool::{EntryKey, RecoveredTrajectory, Spool};
use crate::version_range::{merge_ranges, versions_of};

/// Everything the coordinator needs to know about a job.
#[derive(Debug)]
pub struct CoordinatorJob {
    pub run_id: Id<Run>,
    /// Its directory, which holds `ledger.sqlite`, `spool/` and `data/`.
    pub run_dir: PathBuf,
    /// The lock on the directory, where the caller already took it to prepare the directory. With
    /// `None`, `open` takes it.
    pub lock: Option<RunLock>,
    /// Whether to resume a run that is in the directory. Without it, the directory must not hold a
    /// run.
    pub resume: bool,
    /// Settings that a resumed job must not change.
    pub identity: JobIdentity,
    /// The same of the job that the run directory keeps, where this job resumes its run.
    pub began: Option<JobIdentity>,
    /// The resolved job as TOML, which the run directory keeps.
    pub job_toml: String,
    /// The same without secrets and paths of this machine, which the data set keeps.
    pub shared_job: String,
    /// What the card of the data set says.
    pub card: DataCard,
    pub tasks: TaskSet,
    /// `[tasks]`: how tasks are drawn and how large groups are.
    pub tasks_config: TasksConfig,
    /// `[eval]` and its tasks; `None` disables evaluation.
    pub eval: Option<(TaskSet, EvalConfig)>,
    /// How sessions are set up.
    pub session: SessionSpec,
    /// `[score.judge]` with its key read; `None` means that the job has no judge.
    pub judge: Option<JudgeConfig>,
    pub limits: LimitsConfig,
    pub sessions: u32,
    pub records: RecordsConfig,
    /// `policy.weights.roots`: where published weights may lie.
    pub weight_roots: WeightRoots,
    /// What the coordinator shows to its callers, whose certificates must be of the same authority.
    /// `None` serves any caller without TLS; for tests.
    pub link: Option<Identity>,
}

/// A recovered run that is not served yet.
pub struct Coordinator {
    pub(crate) run_id: Id<Run>,
    pub(crate) judge: Option<JudgeConfig>,
    pub(crate) limits: LimitsConfig,
    pub(crate) disk: DiskGate,
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) spool: Spool,
    pub(crate) recovered: RecoveredRun,
    pub(crate) spooled: BTreeMap<Id<Trajectory>, SpoolProgress>,
    pub(crate) lock: RunLock,
    pub(crate) link: Option<Identity>,
    pub(crate) identity_dir: PathBuf,
    pub(crate) weight_roots: WeightRoots,
}

impl Coordinator {
    /// How often the run directory was opened, this time included.
    pub(crate) fn epoch(&self) -> u64 {
        self.recovered.snapshot.run.as_ref().map_or(0, |run| run.epoch)
    }

    /// Takes the run directory and reconciles everything in it. Blocks: not for async code.
    pub fn open(mut job: CoordinatorJob) -> Result<Self, CoordinatorError> {
        make_durable_dir(&job.run_dir).map_err(CoordinatorError::RunDir)?;
        let lock = match job.lock.take() {
            Some(lock) => lock,
            None => RunLock::take(&job.run_dir).map_err(CoordinatorError::Lock)?,
        };
        check_run_dir(&job.run_dir).map_err(CoordinatorError::RunDir)?;
        let ledger = open_ledger(&job)?;
        let opened = Spool::open(job.run_dir.join("spool"), job.limits.spool);
        let (spool, found) = opened.map_err(CoordinatorError::Spool)?;
        log_recovered(&found);
        let settings = CommitSettings {
            run_dir: job.run_dir.clone(),
            data_dir: job.run_dir.join("data"),
            run_id: job.run_id.clone(),
            job_toml: job.shared_job,
            records: job.records.clone(),
        };
        let recovered = ShardCommitter::recover(settings, ledger, job.limits.ledger, spool.clone(), found);
        let recovered = recovered.map_err(CoordinatorError::Commit)?;
        let first_steps = job.limits.spread_first_steps.then_some(FirstSteps { sessions: job.sessions });
        // Readers do without it, so a run does not fail for it.
        if let Err(error) = job.card.write(&job.run_dir.join("data")) {
            tracing::warn!(error = &error as &dyn Error, "the card of the data set was not written");
        }
        let plan = JobPlan::new(job.tasks, &job.tasks_config, job.session);
        let plan = plan.with_evaluations(job.eval).with_first_steps(first_steps);
        plan.check(&recovered.snapshot).map_err(CoordinatorError::UnknownTask)?;
        if job.resume {
            let path = job.run_dir.join("job.toml");
            furrow_storage::replace(&path, job.job_toml.as_bytes())
                .map_err(|error| CoordinatorError::RunDir(DurableError::on("write", &path)(error)))?;
        }
        Ok(Self {
            spooled: read_spool_progress(&spool, &recovered)?,
            run_id: job.run_id,
            judge: job.judge,
            limits: job.limits,
            identity_dir: Authority::dir_of_run(&job.run_dir),
            disk: DiskGate::new(job.run_dir, job.records.disk_reserve_bytes),
            plan: Arc::new(plan),
            spool,
            recovered,
            lock,
            link: job.link,
            weight_roots: job.weight_roots,
        })
    }
}

fn open_ledger(job: &CoordinatorJob) -> Result<SqliteLedger, CoordinatorError> {
    let path = job.run_dir.join("ledger.sqlite");
    if path.exists() && !job.resume {
        return Err(CoordinatorError::NotEmpty { run_dir: job.run_dir.clone() });
    }
    // SQLite takes an empty file for a new database: what the run directory holds would be unknown.
    if job.resume && path.metadata().is_ok_and(|found| found.len() == 0) {
        let why = "it is empty".to_owned();
        return Err(CoordinatorError::Ledger(LedgerError::Foreign { path, why }));
    }
    let mut ledger = SqliteLedger::open(path).map_err(CoordinatorError::Ledger)?;
    let opening = RunOpening {
        run_id: job.run_id.clone(),
        job_sha256: job.identity.sha256(),
        began_sha256: job.began.as_ref().map(JobIdentity::sha256),
        at_micros: TimeSource::system().wall_micros(),
    };
    crash::point("ledger.before_run_open");
    ledger.commit(&[Mutation::RunOpened(opening)]).map_err(CoordinatorError::Ledger)?;
    crash::point("ledger.after_run_open");
    Ok(ledger)
}

fn log_recovered(found: &[RecoveredTrajectory]) {
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

/// Reads what the core needs from the spool. Opens only steps of trajectories that continue, and
/// only where a policy has tokens.
fn read_spool_progress(
    spool: &Spool,
    recovered: &RecoveredRun,
) -> Result<BTreeMap<Id<Trajectory>, SpoolProgress>, CoordinatorError> {
    let has_tokens = |kind: PolicyKind| matches!(kind, PolicyKind::Model | PolicyKind::Openai);
    let goes_on = |row: &&TrajectoryRow| {
        row.standing == TrajectoryStanding::Assigned && has_tokens(row.start.policy.kind)
    };
    let rows = recovered.snapshot.trajectories.iter().filter(goes_on);
    let to_open: BTreeSet<_> = rows.map(|row| row.start.trajectory_id.clone()).collect();
    let stock = |found: &RecoveredTrajectory| {
        let trajectory = found.trajectory_id.clone();
        let opened =
            to_open.contains(&trajectory).then(|| read_policy_versions(spool, &trajectory)).transpose()?;
        let steps = found.steps.len() as u32;
        let ending = found.ending;
        Ok((trajectory, SpoolProgress { steps, policy_versions: opened.flatten(), ending }))
    };
    recovered.spooled.iter().map(stock).collect()
}

fn read_policy_versions(
    spool: &Spool,
    trajectory: &Id<Trajectory>,
) -> Result<Option<(i32, i32)>, CoordinatorError> {
    let mut range = None;
    for entry in spool.read(trajectory).map_err(CoordinatorError::Spool)? {
        let entry = entry.map_err(CoordinatorError::Spool)?;
        if let EntryKey::Step(_) = entry.key {
            let undecodable =
                |source| CoordinatorError::Undecodable { trajectory: trajectory.clone(), source };
            let record = furrow_wire::decode_step(entry.payload).map_err(undecodable)?;
            range = merge_ranges(range, versions_of(&record));
        }
    }
    Ok(range)
}
