//! The ledger: decisions that must survive a restart. It keeps fencing tokens and digests of
//! secrets, never deadlines and never a secret.
//!
//! The core emits [`Mutation`]s; the shell commits a batch of them in one transaction and only then
//! sends the replies. Each implementation refuses a mutation that does not follow from its state: a
//! decision that contradicts an earlier one stops the farm instead of reaching the data set.

mod memory;
mod refusal;
mod sqlite;
mod thread;

#[cfg(test)]
pub(crate) mod conformance;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use furrow_records::WrittenFile;
use furrow_rollout::{
    EndKind, EnvWorker, FaultOwner, Group, Id, PolicyHashes, PolicyKind, PolicyWorker, Run, Score, Shard,
    Split, Trajectory,
};

use crate::lease_secret::SecretDigest;
use crate::versions::{VersionRow, VersionTable};

pub use memory::MemoryLedger;
pub use refusal::LedgerRefusal;
pub(crate) use refusal::RUN_ID_BYTES_MAX;
pub use sqlite::SqliteLedger;
pub use thread::{LEDGER_FAIL_POINTS, LedgerHandle, LedgerLimits};

/// Durable state of one run. Called from one thread.
pub trait Ledger: Send {
    /// Applies all mutations in order, or none. After `Ok` they survive a power cut.
    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError>;

    /// Everything that is not settled, and the totals over everything that is.
    fn load(&mut self) -> Result<LedgerSnapshot, LedgerError>;

    /// How far a trajectory is, including settled ones; `None` when the ledger does not know it.
    fn fate(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<TrajectoryFate>, LedgerError>;

    /// The shard that holds a trajectory's rows, including opened shards.
    fn shard_of(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<Id<Shard>>, LedgerError>;

    /// Every shard that the manifest names from this version on, by the ledger's record, in order
    /// of manifest versions.
    fn committed_shards(&mut self, from: u64) -> Result<Vec<CommittedShard>, LedgerError>;

    /// The newest manifest version by the ledger's record; 0 before the first.
    fn newest_commit(&mut self) -> Result<u64, LedgerError>;

    /// How far a shard is; `None` when the ledger does not know it.
    fn shard_phase(&mut self, shard: &Id<Shard>) -> Result<Option<ShardPhase>, LedgerError>;
}

/// A decision to record.
#[derive(Debug, Clone, PartialEq)]
pub enum Mutation {
    /// The run directory is opened. The first opening sets the run and the job; later ones must
    /// match. Raises the epoch.
    RunOpened(RunOpening),
    /// A task is drawn and its group planned.
    GroupDrawn {
        draw: TaskDraw,
        /// The sampler's draws so far, including this one.
        draws: u64,
    },
    /// A trajectory is leased under the next token.
    Assigned(TrajectoryStart),
    /// The policy brought a trajectory to its end; its ending is in the spool.
    Finished {
        trajectory_id: Id<Trajectory>,
        /// Token it finished under.
        token: u64,
        /// Its end, one of the policy's own.
        ended: TrajectoryEnd,
        /// Hash of the evidence in the spool.
        evidence_sha256: [u8; 32],
    },
    /// A scorer received the evidence of a finished trajectory.
    Scored { trajectory_id: Id<Trajectory>, verdict: TimedScore },
    /// A trajectory, leased or already finished, ended by the farm's fault.
    Failed {
        trajectory_id: Id<Trajectory>,
        /// Its end, one of the farm's.
        ended: TrajectoryEnd,
    },
    /// The record of a trajectory is damaged. It may have been scored, but no shard holds it: from
    /// now on it counts as failed.
    RecordLost { trajectory_id: Id<Trajectory>, ended: TrajectoryEnd },
    /// A group takes no more attempts; none is open.
    GroupClosed {
        group_id: Id<Group>,
        /// Wall clock, microseconds since the Unix epoch.
        at_micros: i64,
    },
    /// A shard will hold these rows. Committed before its first byte is written.
    ShardOpened(ShardOpening),
    /// The shard's files are whole and durable under their final names. An expiry has none.
    ShardWritten { shard_id: Id<Shard>, files: Vec<WrittenFile> },
    /// The manifest names the shard.
    ShardCommitted {
        shard_id: Id<Shard>,
        /// Version of the manifest commit.
        manifest_version: u64,
    },
    /// Weights are published as a new version.
    VersionProposed(VersionRow),
    /// A policy worker runs a version.
    VersionTaken {
        version: i32,
        /// Hash of its weights.
        weights_sha256: String,
    },
    /// No policy worker can run a version.
    VersionRefused { version: i32, reason: String },
    /// The weights of a version that workers run are broken.
    VersionWithdrawn { version: i32, reason: String },
    /// An evaluation of a version begins with this many problems. No other evaluation is open.
    EvaluationBegun {
        /// The version; newer than those evaluated before.
        version: i32,
        problems: u64,
        /// Wall clock, microseconds since the Unix epoch.
        at_micros: i64,
    },
    /// The evaluation of a version is over; none of its groups is open.
    EvaluationEnded {
        version: i32,
        /// Why problems were left out; `None` when none were.
        cut: Option<String>,
    },
    /// A shard that no manifest names is abandoned, opened or written; its rows wait for another
    /// shard.
    ShardAbandoned { shard_id: Id<Shard> },
}

/// The opening of a run directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOpening {
    pub run_id: Id<Run>,
    /// Hash of the resolved job. A run that is opened again has it from then on.
    pub job_sha256: [u8; 32],
    /// Hash of the job that the run began with, which may be another where a release between added
    /// keys.
    pub began_sha256: Option<[u8; 32]>,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// A task drawn for a group.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDraw {
    pub group_id: Id<Group>,
    /// Its number within the run, which is the run's `next_group`.
    pub index: u64,
    /// Suite of the task.
    pub suite: String,
    pub task_id: String,
    pub split: Split,
    /// The seed all slots share.
    pub seed: u64,
    /// Slots planned, including spares.
    pub group_size: u32,
    /// The task's line in its file, so that a change to the file affects nothing already drawn.
    pub task_json: String,
    /// The probability with which the task was drawn, where it depends on measured success.
    pub chance: Option<f64>,
    /// The evaluation problem it belongs to; `None` for the job's own groups.
    pub problem: Option<EvaluationProblem>,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// A problem of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationProblem {
    /// The policy version that is evaluated.
    pub version: i32,
    /// Its number in the evaluation, from 0; equals the evaluation's `drawn`.
    pub index: u64,
}

/// A trajectory leased to an environment worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrajectoryStart {
    pub trajectory_id: Id<Trajectory>,
    /// Its group, still open.
    pub group_id: Id<Group>,
    /// Slot, below the group's size.
    pub sample_index: u32,
    /// Attempt at the slot, which is the number of earlier attempts.
    pub attempt: u32,
    /// Fencing token, which is the run's `next_token`.
    pub token: u64,
    /// The environment worker that acts it.
    pub env_worker: Id<EnvWorker>,
    /// The policy that decides in it.
    pub policy: PolicyFacts,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
    /// How long the slot had waited.
    pub queue_micros: u64,
    /// Digest of the lease's secret; `None` for a lease of a release that gave none.
    pub secret: Option<SecretDigest>,
}

/// The policy a trajectory runs on, as of its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFacts {
    pub worker: Id<PolicyWorker>,
    pub address: String,
    /// The kind of policy it runs.
    pub kind: PolicyKind,
    /// Version of its weights.
    pub version: Option<i32>,
    /// Hashes of what the policy consists of.
    pub hashes: PolicyHashes,
}

/// How a trajectory ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrajectoryEnd {
    pub end: EndKind,
    /// Why, in a sentence.
    pub reason: String,
    /// Steps in the spool.
    pub steps: u32,
    /// Oldest and newest policy version among its tokens.
    pub policy_versions: Option<(i32, i32)>,
    /// Versions published between its start and its end.
    pub staleness: Option<i32>,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// A scorer's verdict and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedScore {
    /// The score; its reward is present and finite.
    pub score: Score,
    /// Time the scoring took.
    pub micros: u64,
}

/// The rows of a shard that is about to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOpening {
    pub shard_id: Id<Shard>,
    /// Its number within the run, which is the run's `next_shard`.
    pub index: u64,
    /// Trajectories, scored or failed, that are in no other shard.
    pub trajectories: Vec<Id<Trajectory>>,
    /// Closed groups; the trajectories of each are here or committed.
    pub groups: Vec<Id<Group>>,
    /// Files that leave the data set with it: a merge replaces their rows, an expiry removes them.
    /// Neither has new rows.
    pub replaces: Vec<String>,
}

/// What a restarted coordinator starts from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LedgerSnapshot {
    /// The run; `None` in a directory that was never opened.
    pub run: Option<RunRow>,
    /// Groups that are not committed, in the order they were drawn.
    pub groups: Vec<GroupRow>,
    /// All trajectories of those groups, committed ones included, in order of their tokens.
    pub trajectories: Vec<TrajectoryRow>,
    /// Shards that are opened or written.
    pub shards: Vec<ShardRow>,
    /// All published versions of the weights.
    pub versions: VersionTable,
    /// All evaluations, in order of their versions; only the last may be open.
    pub evaluations: Vec<EvaluationRow>,
    /// Sums over the whole run.
    pub totals: RunTotals,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub run_id: Id<Run>,
    /// Hash of the resolved job.
    pub job_sha256: [u8; 32],
    /// How often the directory was opened.
    pub epoch: u64,
    /// Token of the next assignment, from 1.
    pub next_token: u64,
    /// Index of the next group.
    pub next_group: u64,
    /// Index of the next shard.
    pub next_shard: u64,
    /// Draws of the sampler.
    pub draws: u64,
    /// Wall clock when it was first opened.
    pub opened_at_micros: i64,
}

/// A group and its state.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRow {
    pub draw: TaskDraw,
    /// When it closed; `None` while it is open.
    pub closed_at_micros: Option<i64>,
    /// Shard that holds its row.
    pub shard_id: Option<Id<Shard>>,
}

/// A trajectory and its state.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryRow {
    pub start: TrajectoryStart,
    /// How far it is.
    pub standing: TrajectoryStanding,
    /// Shard that holds its rows.
    pub shard_id: Option<Id<Shard>>,
    /// Whether the manifest names that shard.
    pub committed: bool,
}

/// How far a trajectory is.
#[derive(Debug, Clone, PartialEq)]
pub enum TrajectoryStanding {
    Assigned,
    /// Its end is acknowledged; no scorer has received it yet.
    Finished {
        ended: TrajectoryEnd,
        /// Hash of the evidence in the spool.
        evidence_sha256: [u8; 32],
    },
    /// A scorer received its evidence.
    Scored {
        ended: TrajectoryEnd,
        verdict: TimedScore,
    },
    /// It ended by the farm's fault.
    Failed {
        ended: TrajectoryEnd,
    },
}

/// A shard that is not committed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRow {
    pub shard_id: Id<Shard>,
    /// Its number within the run.
    pub index: u64,
    /// Files, once they are written.
    pub files: Option<Vec<WrittenFile>>,
    /// Trajectories in it, in order of their ids.
    pub trajectories: Vec<Id<Trajectory>>,
    /// Groups in it, in order of their ids.
    pub groups: Vec<Id<Group>>,
    /// Files that leave the data set with it.
    pub replaces: Vec<String>,
}

/// A shard that the manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedShard {
    pub shard_id: Id<Shard>,
    /// Number of the manifest commit that names it.
    pub manifest_version: u64,
    pub files: Vec<WrittenFile>,
    /// Files that leave the data set with it.
    pub replaces: Vec<String>,
}

/// How far a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardPhase {
    /// Its id is taken; its files may be in any state of being written.
    Opened,
    /// Its files are whole and durable.
    Written,
    /// The manifest names it.
    Committed {
        /// Number of the manifest commit.
        manifest_version: u64,
    },
    /// It was abandoned; its files may be removed.
    Abandoned,
}

/// An evaluation and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationRow {
    /// The policy version it evaluates.
    pub version: i32,
    /// Problems it was planned with.
    pub problems: u64,
    /// Problems drawn so far.
    pub drawn: u64,
    /// Its trajectories with a reward.
    pub scored: u64,
    /// Those that count as solved.
    pub succeeded: u64,
    /// How far it is.
    pub standing: EvaluationStanding,
    /// Wall clock when it began, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// How far an evaluation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvaluationStanding {
    Open,
    /// Every problem has all its trajectories, or is out of retries.
    Complete,
    /// It ended before all problems were done.
    Cut {
        reason: String,
    },
}

/// Totals over the whole run, settled trajectories included.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunTotals {
    /// Trajectories with a reward.
    pub scored: u64,
    /// Failed ones by end.
    pub failed: BTreeMap<EndKind, u64>,
    /// Closed groups, evaluations excluded.
    pub groups_closed: u64,
    /// Shards the manifest names.
    pub shards_committed: u64,
    /// Measured success of each task, by suite and task id, evaluations excluded.
    pub tasks: BTreeMap<(String, String), TaskTally>,
    /// The success of all evaluations together.
    pub evaluated: TaskTally,
}

/// Measured success of one task.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TaskTally {
    /// Trajectories with a reward.
    pub scored: u64,
    /// Those whose scorer decides whether they count as solved.
    pub success_known: u64,
    /// Those that count as solved.
    pub succeeded: u64,
    /// Sum of their rewards.
    pub reward_sum: f64,
}

/// How far a trajectory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrajectoryFate {
    Open,
    /// Its end is acknowledged; the spool holds what its rows need.
    Ended,
    /// The manifest names its shard; the spool need not keep it.
    Committed,
}

/// Why a ledger operation failed. After anything but `Refused`, `DiskFull` and `Busy` nothing more
/// may be acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// The mutation contradicts the ledger; the whole batch was rolled back.
    #[error("the ledger refused {mutation}: {why}")]
    Refused { mutation: String, why: LedgerRefusal },
    /// The directory holds another run, or this run with another job.
    #[error(
        "this run directory belongs to {found}, not to {requested}; use another output_dir, or --clean to start over"
    )]
    OtherRun {
        /// The run the ledger holds.
        found: String,
        /// The run that was requested.
        requested: String,
    },
    /// The file is not a ledger that this program can read.
    #[error("{path} is not a furrow ledger that this version can read: {why}")]
    Foreign {
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The disk is full; the batch was rolled back and may be retried.
    #[error("no space left for the ledger {path}; nothing was acknowledged; free disk space")]
    DiskFull {
        path: PathBuf,
        /// The error of SQLite.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// Another process has the database locked; nothing was begun, and the batch may be retried.
    #[error(
        "another process has the ledger {path} locked; nothing was acknowledged; end that process (`fuser \
         {path}` names it)"
    )]
    Busy {
        path: PathBuf,
        /// The error of SQLite.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The storage failed; whether the batch is durable is unknown until the next start.
    #[error("cannot {operation} the ledger {path}")]
    Storage {
        /// The operation that failed.
        operation: &'static str,
        path: PathBuf,
        source: Arc<dyn Error + Send + Sync>,
    },
    /// It failed before; only a restart shows what is durable.
    #[error("the ledger stopped after an earlier failure: restart with --resume")]
    Stopped,
}

impl Mutation {
    /// Name of the decision, in errors and fail points.
    pub fn verb(&self) -> &'static str {
        match self {
            Mutation::RunOpened(_) => "run_open",
            Mutation::GroupDrawn { .. } => "group_draw",
            Mutation::Assigned(_) => "assign",
            Mutation::Finished { .. } => "finish",
            Mutation::Scored { .. } => "score",
            Mutation::Failed { .. } => "fail",
            Mutation::RecordLost { .. } => "record_lost",
            Mutation::GroupClosed { .. } => "group_close",
            Mutation::ShardOpened(_) => "shard_open",
            Mutation::ShardWritten { .. } => "shard_write",
            Mutation::ShardCommitted { .. } => "shard_commit",
            Mutation::ShardAbandoned { .. } => "shard_abandon",
            Mutation::VersionProposed(_) => "version_propose",
            Mutation::VersionTaken { .. } => "version_take",
            Mutation::VersionRefused { .. } => "version_refuse",
            Mutation::VersionWithdrawn { .. } => "version_withdraw",
            Mutation::EvaluationBegun { .. } => "evaluation_begin",
            Mutation::EvaluationEnded { .. } => "evaluation_end",
        }
    }

    /// The subject of the decision.
    pub fn subject(&self) -> String {
        self.id().map_or_else(|| self.version().to_string(), str::to_owned)
    }

    /// The version it concerns; 0 where it concerns something else.
    fn version(&self) -> i32 {
        match self {
            Mutation::VersionProposed(row) => row.version,
            Mutation::VersionTaken { version, .. }
            | Mutation::VersionRefused { version, .. }
            | Mutation::VersionWithdrawn { version, .. }
            | Mutation::EvaluationBegun { version, .. }
            | Mutation::EvaluationEnded { version, .. } => *version,
            _ => 0,
        }
    }

    fn id(&self) -> Option<&str> {
        Some(match self {
            Mutation::RunOpened(opening) => opening.run_id.as_str(),
            Mutation::GroupDrawn { draw, .. } => draw.group_id.as_str(),
            Mutation::Assigned(start) => start.trajectory_id.as_str(),
            Mutation::Finished { trajectory_id, .. }
            | Mutation::Scored { trajectory_id, .. }
            | Mutation::Failed { trajectory_id, .. }
            | Mutation::RecordLost { trajectory_id, .. } => trajectory_id.as_str(),
            Mutation::GroupClosed { group_id, .. } => group_id.as_str(),
            Mutation::ShardOpened(opening) => opening.shard_id.as_str(),
            Mutation::ShardWritten { shard_id, .. }
            | Mutation::ShardCommitted { shard_id, .. }
            | Mutation::ShardAbandoned { shard_id } => shard_id.as_str(),
            Mutation::VersionProposed(_)
            | Mutation::VersionTaken { .. }
            | Mutation::VersionRefused { .. }
            | Mutation::VersionWithdrawn { .. }
            | Mutation::EvaluationBegun { .. }
            | Mutation::EvaluationEnded { .. } => return None,
        })
    }

    /// What is wrong with the mutation in any state; both implementations check it first.
    fn flaw(&self) -> Option<LedgerRefusal> {
        match self {
            Mutation::RunOpened(opening) => opening.flaw(),
            Mutation::GroupDrawn { draw, .. } if draw.group_size == 0 => Some(LedgerRefusal::EmptyGroup),
            Mutation::GroupDrawn { draw, .. }
                if draw.chance.is_some_and(|chance| !(chance > 0.0 && chance <= 1.0)) =>
            {
                Some(LedgerRefusal::ChanceOutOfRange)
            }
            Mutation::Assigned(TrajectoryStart { secret: None, .. }) => Some(LedgerRefusal::NoSecret),
            Mutation::Finished { ended, .. } if !may_be_scored(ended.end) => {
                Some(LedgerRefusal::FarmsEnd { end: ended.end })
            }
            Mutation::Failed { ended, .. } if !may_fail(ended.end) => {
                Some(LedgerRefusal::PolicysEnd { end: ended.end })
            }
            Mutation::RecordLost { ended, .. } if ended.end != EndKind::RecordLost => {
                Some(LedgerRefusal::NotDamage { end: ended.end })
            }
            Mutation::Scored { verdict, .. } => match verdict.score.reward {
                Some(reward) if reward.is_finite() => verdict.flaw(),
                reward => Some(LedgerRefusal::NoFiniteReward { reward }),
            },
            Mutation::EvaluationBegun { problems: 0, .. } => Some(LedgerRefusal::EmptyEvaluation),
            Mutation::ShardOpened(opening) => opening.flaw(),
            _ => None,
        }
    }

    fn refused(&self, why: LedgerRefusal) -> LedgerError {
        LedgerError::Refused { mutation: format!("{} of {}", self.verb(), self.subject()), why }
    }
}

impl RunOpening {
    /// Ids of groups, trajectories and shards begin with the run's id and must be ids themselves,
    /// so the run's id leaves space for `-g000000-s000-a000`.
    fn flaw(&self) -> Option<LedgerRefusal> {
        let bytes = self.run_id.as_str().len();
        (bytes > RUN_ID_BYTES_MAX).then_some(LedgerRefusal::LongRunId { bytes })
    }
}

impl TimedScore {
    fn flaw(&self) -> Option<LedgerRefusal> {
        let odd = self.score.components.iter().find(|part| !part.value.is_finite());
        odd.map(|part| LedgerRefusal::ComponentNotFinite { name: part.name.clone(), value: part.value })
    }
}

impl ShardOpening {
    fn flaw(&self) -> Option<LedgerRefusal> {
        let has_rows = !self.trajectories.is_empty() || !self.groups.is_empty();
        match (has_rows, !self.replaces.is_empty()) {
            (false, false) => return Some(LedgerRefusal::EmptyShard),
            (true, true) => return Some(LedgerRefusal::RowsAndMerge),
            _ => {}
        }
        let twice = |ids: &mut Vec<&str>| {
            ids.sort_unstable();
            ids.windows(2)
                .find(|pair| pair[0] == pair[1])
                .map(|pair| LedgerRefusal::TwiceInShard { id: pair[0].to_owned() })
        };
        twice(&mut self.trajectories.iter().map(Id::as_str).collect())
            .or_else(|| twice(&mut self.groups.iter().map(Id::as_str).collect()))
    }
}

impl TrajectoryStanding {
    /// Its end, once it has one.
    pub fn ended(&self) -> Option<&TrajectoryEnd> {
        match self {
            TrajectoryStanding::Assigned => None,
            TrajectoryStanding::Finished { ended, .. }
            | TrajectoryStanding::Scored { ended, .. }
            | TrajectoryStanding::Failed { ended } => Some(ended),
        }
    }

    /// Whether the attempt still occupies its slot.
    pub fn is_open(&self) -> bool {
        matches!(self, TrajectoryStanding::Assigned | TrajectoryStanding::Finished { .. })
    }
}

impl LedgerSnapshot {
    /// Trajectories that no shard holds and that are ready for one.
    pub fn uncommitted(&self) -> impl Iterator<Item = &TrajectoryRow> {
        self.trajectories.iter().filter(|row| row.shard_id.is_none() && !row.standing.is_open())
    }
}

/// Whether an end can be the policy's own; a recurring `page_hang` can.
fn may_be_scored(end: EndKind) -> bool {
    end.fault(true) == FaultOwner::Policy
}

/// Whether an end can be the farm's fault; a first `page_hang` can.
fn may_fail(end: EndKind) -> bool {
    end.fault(false) == FaultOwner::Farm
}

/// Checks that a group, token or shard has the next number.
fn expect_next(what: &'static str, next: u64, got: u64) -> Result<(), LedgerRefusal> {
    if next == got { Ok(()) } else { Err(LedgerRefusal::OutOfOrder { what, next, got }) }
}

/// Checks that an evaluation of a version may begin after the last one.
fn may_begin(last: Option<&EvaluationRow>, version: i32) -> Result<(), LedgerRefusal> {
    match last {
        Some(last) if last.is_open() => Err(LedgerRefusal::EvaluationOpen { version: last.version }),
        Some(last) if last.version >= version => Err(LedgerRefusal::Evaluated { version: last.version }),
        _ => Ok(()),
    }
}

/// Checks that a problem may be drawn in the last evaluation.
fn may_draw(last: Option<&EvaluationRow>, problem: EvaluationProblem) -> Result<(), LedgerRefusal> {
    let row = open_evaluation(last, problem.version)?;
    match problem.index == row.drawn && row.drawn < row.problems {
        true => Ok(()),
        false => Err(LedgerRefusal::ProblemOutOfOrder {
            problems: row.problems,
            next: row.drawn,
            got: problem.index,
        }),
    }
}

/// Checks that the last evaluation, of this version, may end.
fn may_end(last: Option<&EvaluationRow>, version: i32, cut: bool) -> Result<(), LedgerRefusal> {
    let row = open_evaluation(last, version)?;
    match cut || row.drawn == row.problems {
        true => Ok(()),
        false => Err(LedgerRefusal::ProblemsLeft { drawn: row.drawn, problems: row.problems }),
    }
}

fn open_evaluation(last: Option<&EvaluationRow>, version: i32) -> Result<&EvaluationRow, LedgerRefusal> {
    let open = last.filter(|last| last.is_open() && last.version == version);
    open.ok_or(LedgerRefusal::NoEvaluation { version })
}

impl EvaluationRow {
    /// Whether it is in progress.
    pub fn is_open(&self) -> bool {
        self.standing == EvaluationStanding::Open
    }
}
