//! The ledger: what was decided and must not be forgotten. It keeps fencing tokens, never deadlines.
//!
//! The core emits [`Mutation`]s, the shell commits a batch of them in one transaction and only then performs the replies. Each
//! implementation refuses a mutation that does not follow from its state: a decision that contradicts an earlier one stops the
//! farm instead of reaching the data set.

mod memory;
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
    End, EnvWorker, Fault, Group, Hashes, Id, PolicyKind, PolicyWorker, Run, Score, Shard, Split, Trajectory,
};

use crate::versions::{VersionRow, Versions};

pub use memory::MemoryLedger;
pub use sqlite::SqliteLedger;
pub use thread::{LEDGER_FAIL_POINTS, LedgerHandle, LedgerLimits};

/// Longest id of a run.
pub const RUN_ID_BYTES_MAX: usize = 96;

/// Durable memory of one run. Called from one thread.
pub trait Ledger: Send {
    /// Applies all mutations in order, or none: when it answers `Ok` they survive a power cut.
    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError>;

    /// Everything that is not settled yet, and the sums over everything that is.
    fn load(&mut self) -> Result<Snapshot, LedgerError>;

    /// What became of a trajectory, settled ones included; `None` when the ledger never heard of it.
    fn fate(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<Fate>, LedgerError>;

    /// The shard that holds a trajectory's rows, opened ones included.
    fn shard_of(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<Id<Shard>>, LedgerError>;

    /// Every shard that the manifest names, as the ledger remembers it, in the order of the manifest's versions.
    fn published_shards(&mut self) -> Result<Vec<PublishedShard>, LedgerError>;

    /// How far a shard is; `None` when the ledger never heard of it.
    fn shard_phase(&mut self, shard: &Id<Shard>) -> Result<Option<ShardPhase>, LedgerError>;
}

/// A decision to be remembered.
#[derive(Debug, Clone, PartialEq)]
pub enum Mutation {
    /// The run directory is opened: the first time it is named, later the name and the job must be the same. Raises the epoch.
    RunOpened(RunOpening),
    /// A task is drawn and its group planned; `draws` is the sampler's count after it.
    GroupDrawn {
        /// The group.
        draw: Draw,
        /// Draws of the sampler so far, this one included.
        draws: u64,
    },
    /// A trajectory is lent under the next token.
    Assigned(Start),
    /// The policy brought a trajectory to its end; its ending is in the spool.
    Finished {
        /// Which.
        trajectory_id: Id<Trajectory>,
        /// Token it was finished under.
        token: u64,
        /// Its end, one of the policy's own.
        ended: Ended,
        /// Hash of the evidence in the spool.
        evidence_sha256: [u8; 32],
    },
    /// A scorer saw the evidence of a finished trajectory.
    Scored {
        /// Which.
        trajectory_id: Id<Trajectory>,
        /// What the scorer said.
        verdict: Verdict,
    },
    /// A trajectory ended by the farm's fault, lent or already finished.
    Failed {
        /// Which.
        trajectory_id: Id<Trajectory>,
        /// Its end, one of the farm's.
        ended: Ended,
    },
    /// What was acknowledged of a trajectory is damaged. It may have been scored, but no shard holds it: from now on it failed.
    RecordLost {
        /// Which.
        trajectory_id: Id<Trajectory>,
        /// Its end, `record_lost`.
        ended: Ended,
    },
    /// A group takes no more attempts; none is open.
    GroupClosed {
        /// Which.
        group_id: Id<Group>,
        /// Wall clock, microseconds since the Unix epoch.
        at_micros: i64,
    },
    /// A shard will hold these rows. Committed before its first byte.
    ShardOpened(ShardOpening),
    /// The shard's files are whole and durable under their final names.
    ShardWritten {
        /// Which.
        shard_id: Id<Shard>,
        /// Its files.
        files: Vec<WrittenFile>,
    },
    /// The manifest names the shard.
    ShardPublished {
        /// Which.
        shard_id: Id<Shard>,
        /// Version of the manifest commit.
        manifest_version: u64,
    },
    /// Weights are published as a new version.
    VersionProposed(VersionRow),
    /// A policy worker runs a version.
    VersionTaken {
        /// Which.
        version: i32,
        /// What its weights hash to.
        weights_sha256: String,
    },
    /// No policy worker can run a version.
    VersionRefused {
        /// Which.
        version: i32,
        /// Why.
        reason: String,
    },
    /// A version is being evaluated: so many problems are drawn for it. None is under way.
    EvaluationBegun {
        /// Which; newer than those evaluated before.
        version: i32,
        /// Problems of it.
        problems: u64,
        /// Wall clock, microseconds since the Unix epoch.
        at_micros: i64,
    },
    /// The evaluation of a version is over; none of its groups is open.
    EvaluationEnded {
        /// Which.
        version: i32,
        /// Why problems were left out; `None`: none were.
        cut: Option<String>,
    },
    /// A shard that no manifest names is given up, opened or written; its rows wait for another.
    ShardAbandoned {
        /// Which.
        shard_id: Id<Shard>,
    },
}

/// Who opens a run directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOpening {
    /// The run.
    pub run_id: Id<Run>,
    /// Hash of the resolved job.
    pub job_sha256: [u8; 32],
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// A task drawn for a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The group.
    pub group_id: Id<Group>,
    /// Its number within the run: the run's `next_group`.
    pub index: u64,
    /// Suite of the task.
    pub suite: String,
    /// The task.
    pub task_id: String,
    /// Its split.
    pub split: Split,
    /// The draw all slots share.
    pub seed: u64,
    /// Slots planned, spares included.
    pub group_size: u32,
    /// The task's line in its file, so that a changed file changes nothing that was drawn.
    pub task_json: String,
    /// By which chance the task was drawn, where that depends on what was measured of the tasks.
    pub chance: Option<f64>,
    /// The problem of an evaluation that it is; `None`: it is one of the job's own groups.
    pub problem: Option<Problem>,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
}

/// A problem of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// The policy version that is evaluated.
    pub version: i32,
    /// Its number in the evaluation, from 0: the evaluation's `drawn`.
    pub index: u64,
}

/// A trajectory lent to an environment worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The trajectory.
    pub trajectory_id: Id<Trajectory>,
    /// Its group, still open.
    pub group_id: Id<Group>,
    /// Slot, below the group's size.
    pub sample_index: u32,
    /// Attempt at the slot: as many as went before.
    pub attempt: u32,
    /// Fencing token: the run's `next_token`.
    pub token: u64,
    /// Who acts it.
    pub env_worker: Id<EnvWorker>,
    /// Who decides in it.
    pub policy: PolicyFacts,
    /// Wall clock, microseconds since the Unix epoch.
    pub at_micros: i64,
    /// How long the slot had waited.
    pub queue_micros: u64,
}

/// The policy a trajectory runs on, as it was when the trajectory was lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFacts {
    /// Policy worker.
    pub worker: Id<PolicyWorker>,
    /// Address it advertises.
    pub address: String,
    /// What it runs.
    pub kind: PolicyKind,
    /// Version of its weights.
    pub version: Option<i32>,
    /// What it is made of.
    pub hashes: Hashes,
}

/// How a trajectory ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The end.
    pub end: End,
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

/// What a scorer said, and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The score; its reward is present and finite.
    pub score: Score,
    /// Time the scoring took.
    pub micros: u64,
}

/// The rows of a shard about to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOpening {
    /// The shard.
    pub shard_id: Id<Shard>,
    /// Its number within the run: the run's `next_shard`.
    pub index: u64,
    /// Trajectories, scored or failed, in no other shard.
    pub trajectories: Vec<Id<Trajectory>>,
    /// Closed groups; each one's trajectories are here or published.
    pub groups: Vec<Id<Group>>,
    /// Files of the data set whose rows it holds instead; a merge holds nothing else.
    pub replaces: Vec<String>,
}

/// What a restarted coordinator starts from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// The run; `None` in a directory that was never opened.
    pub run: Option<RunRow>,
    /// Groups that are not published, in the order they were drawn.
    pub groups: Vec<GroupRow>,
    /// All trajectories of those groups, published ones included, in the order of their tokens.
    pub trajectories: Vec<TrajectoryRow>,
    /// Shards that are opened or written.
    pub shards: Vec<ShardRow>,
    /// All published versions of the weights.
    pub versions: Versions,
    /// All evaluations, in the order of their versions; only the last may be under way.
    pub evaluations: Vec<EvaluationRow>,
    /// Sums over the whole run.
    pub totals: Totals,
}

/// The run itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// The run.
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

/// A group and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRow {
    /// How it began.
    pub draw: Draw,
    /// When it closed; `None` while it is open.
    pub closed_at_micros: Option<i64>,
    /// Shard its row is in.
    pub shard_id: Option<Id<Shard>>,
}

/// A trajectory and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryRow {
    /// How it began.
    pub start: Start,
    /// How far it is.
    pub standing: Standing,
    /// Shard its rows are in.
    pub shard_id: Option<Id<Shard>>,
    /// Whether the manifest names that shard.
    pub published: bool,
}

/// How far a trajectory is.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// Lent.
    Assigned,
    /// Its end is acknowledged; no scorer saw it yet.
    Finished {
        /// Its end.
        ended: Ended,
        /// Hash of the evidence in the spool.
        evidence_sha256: [u8; 32],
    },
    /// A scorer saw its evidence.
    Scored {
        /// Its end.
        ended: Ended,
        /// What the scorer said.
        verdict: Verdict,
    },
    /// It ended by the farm's fault.
    Failed {
        /// Its end.
        ended: Ended,
    },
}

/// A shard that is not published yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRow {
    /// The shard.
    pub shard_id: Id<Shard>,
    /// Its number within the run.
    pub index: u64,
    /// Files, once they are written.
    pub files: Option<Vec<WrittenFile>>,
    /// Trajectories in it, in order of their ids.
    pub trajectories: Vec<Id<Trajectory>>,
    /// Groups in it, in order of their ids.
    pub groups: Vec<Id<Group>>,
    /// Files of the data set whose rows it holds instead.
    pub replaces: Vec<String>,
}

/// A shard that the manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedShard {
    /// The shard.
    pub shard_id: Id<Shard>,
    /// Number of the manifest commit that names it.
    pub manifest_version: u64,
    /// Its files.
    pub files: Vec<WrittenFile>,
    /// Files of the data set whose rows it holds instead.
    pub replaces: Vec<String>,
}

/// How far a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardPhase {
    /// Its id is taken; its files may be anywhere between the first byte and the last name.
    Opened,
    /// Its files are whole and durable.
    Written,
    /// The manifest names it.
    Published {
        /// Number of the manifest commit.
        manifest_version: u64,
    },
    /// It was given up; its files may be removed.
    Abandoned,
}

/// An evaluation and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationRow {
    /// The policy version it is of.
    pub version: i32,
    /// Problems it is planned with.
    pub problems: u64,
    /// Problems that are drawn.
    pub drawn: u64,
    /// Trajectories of it with a reward.
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
    /// Under way.
    Open,
    /// Every problem has all its trajectories, or is out of retries.
    Complete,
    /// It was ended before that.
    Cut {
        /// Why.
        reason: String,
    },
}

/// Sums over the whole run, settled trajectories included.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// Trajectories with a reward.
    pub scored: u64,
    /// Failed ones by end.
    pub failed: BTreeMap<End, u64>,
    /// Groups that closed, those of evaluations left out.
    pub groups_closed: u64,
    /// Shards the manifest names.
    pub shards_published: u64,
    /// Measured success of each task, by suite and task id, evaluations left out.
    pub tasks: BTreeMap<(String, String), TaskTally>,
    /// The same of all evaluations together.
    pub evaluated: TaskTally,
}

/// What trajectories of one task earned.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TaskTally {
    /// Trajectories with a reward.
    pub scored: u64,
    /// Those whose scorer says whether they count as solved.
    pub judged: u64,
    /// Those that count as solved.
    pub succeeded: u64,
    /// Sum of their rewards.
    pub reward_sum: f64,
}

/// What became of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is lent.
    Open,
    /// Its end is acknowledged; the spool holds what its rows need.
    Ended,
    /// The manifest names its shard; the spool need not keep it.
    Published,
}

/// Why the ledger did not do as told. After anything but `Refused` and `DiskFull` nothing more may be acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// The mutation contradicts the ledger; the whole batch was rolled back.
    #[error("the ledger refused {mutation}: {why}")]
    Refused {
        /// Which mutation.
        mutation: String,
        /// What it contradicts.
        why: String,
    },
    /// The directory holds another run, or the same with another job.
    #[error(
        "this run directory belongs to {found}, not to {asked}; use another output_dir, or --clean to start over"
    )]
    OtherRun {
        /// What the ledger holds.
        found: String,
        /// What was asked for.
        asked: String,
    },
    /// The file is not a ledger this program can read.
    #[error("{path} is no furrow ledger of this version: {why}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no room; the batch was rolled back and may be tried again.
    #[error("no space left for the ledger {path}: free some; nothing was acknowledged")]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The storage failed; whether the batch is durable is unknown until the next start.
    #[error("cannot {operation} the ledger {path}")]
    Storage {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What failed.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// It failed before; only a restart tells what is durable.
    #[error("the ledger stopped after an earlier failure: start again with --resume")]
    Stopped,
}

impl Mutation {
    /// The word for what is decided, in errors and fail points.
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
            Mutation::ShardPublished { .. } => "shard_publish",
            Mutation::ShardAbandoned { .. } => "shard_abandon",
            Mutation::VersionProposed(_) => "version_propose",
            Mutation::VersionTaken { .. } => "version_take",
            Mutation::VersionRefused { .. } => "version_refuse",
            Mutation::EvaluationBegun { .. } => "evaluation_begin",
            Mutation::EvaluationEnded { .. } => "evaluation_end",
        }
    }

    /// What it is about.
    pub fn subject(&self) -> String {
        self.id().map_or_else(|| self.version().to_string(), str::to_owned)
    }

    /// The version it is about; 0 where it is about something else.
    fn version(&self) -> i32 {
        match self {
            Mutation::VersionProposed(row) => row.version,
            Mutation::VersionTaken { version, .. }
            | Mutation::VersionRefused { version, .. }
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
            | Mutation::ShardPublished { shard_id, .. }
            | Mutation::ShardAbandoned { shard_id } => shard_id.as_str(),
            Mutation::VersionProposed(_)
            | Mutation::VersionTaken { .. }
            | Mutation::VersionRefused { .. }
            | Mutation::EvaluationBegun { .. }
            | Mutation::EvaluationEnded { .. } => return None,
        })
    }

    /// What is wrong with it whatever the state is; both implementations ask first.
    fn flaw(&self) -> Option<String> {
        match self {
            Mutation::RunOpened(opening) => opening.flaw(),
            Mutation::GroupDrawn { draw, .. } if draw.group_size == 0 => {
                Some("a group of no slots".to_owned())
            }
            Mutation::GroupDrawn { draw, .. }
                if draw.chance.is_some_and(|chance| !(chance > 0.0 && chance <= 1.0)) =>
            {
                Some("a chance that is none".to_owned())
            }
            Mutation::Finished { ended, .. } if !may_be_scored(ended.end) => {
                Some(format!("{} is the farm's fault, no end to be scored", ended.end.as_str()))
            }
            Mutation::Failed { ended, .. } if !may_fail(ended.end) => {
                Some(format!("{} is the policy's own end, no failure", ended.end.as_str()))
            }
            Mutation::RecordLost { ended, .. } if ended.end != End::RecordLost => {
                Some(format!("{} is no damage", ended.end.as_str()))
            }
            Mutation::Scored { verdict, .. } => match verdict.score.reward {
                Some(reward) if reward.is_finite() => verdict.flaw(),
                other => Some(format!("a score needs a finite reward, got {other:?}")),
            },
            Mutation::EvaluationBegun { problems: 0, .. } => Some("an evaluation of no problems".to_owned()),
            Mutation::ShardOpened(opening) => opening.flaw(),
            Mutation::ShardWritten { files, .. } if files.is_empty() => {
                Some("a shard without files".to_owned())
            }
            _ => None,
        }
    }

    fn refused(&self, why: impl Into<String>) -> LedgerError {
        LedgerError::Refused { mutation: format!("{} of {}", self.verb(), self.subject()), why: why.into() }
    }
}

impl RunOpening {
    /// Ids of groups, trajectories and shards begin with the run's and must be ids themselves: `-g000000-s000-a000` and room.
    fn flaw(&self) -> Option<String> {
        let length = self.run_id.as_str().len();
        (length > RUN_ID_BYTES_MAX)
            .then(|| format!("its name has {length} letters; use at most {RUN_ID_BYTES_MAX}"))
    }
}

impl Verdict {
    fn flaw(&self) -> Option<String> {
        let odd = self.score.components.iter().find(|part| !part.value.is_finite());
        odd.map(|part| format!("component {} is {}, no number", part.name, part.value))
    }
}

impl ShardOpening {
    fn flaw(&self) -> Option<String> {
        let has_rows = !self.trajectories.is_empty() || !self.groups.is_empty();
        match (has_rows, !self.replaces.is_empty()) {
            (false, false) => return Some("an empty shard".to_owned()),
            (true, true) => return Some("new rows and a merge in one shard".to_owned()),
            _ => {}
        }
        let twice = |ids: &mut Vec<&str>| {
            ids.sort_unstable();
            ids.windows(2)
                .find(|pair| pair[0] == pair[1])
                .map(|pair| format!("{} twice in one shard", pair[0]))
        };
        twice(&mut self.trajectories.iter().map(Id::as_str).collect())
            .or_else(|| twice(&mut self.groups.iter().map(Id::as_str).collect()))
    }
}

impl Standing {
    /// Its end, once it has one.
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Standing::Assigned => None,
            Standing::Finished { ended, .. }
            | Standing::Scored { ended, .. }
            | Standing::Failed { ended } => Some(ended),
        }
    }

    /// Whether the attempt still occupies its slot.
    pub fn is_open(&self) -> bool {
        matches!(self, Standing::Assigned | Standing::Finished { .. })
    }
}

impl Snapshot {
    /// Trajectories that no shard holds and that are ready for one.
    pub fn unpublished(&self) -> impl Iterator<Item = &TrajectoryRow> {
        self.trajectories.iter().filter(|row| row.shard_id.is_none() && !row.standing.is_open())
    }
}

/// Whether an end can be the policy's own; `page_hang` can, when it recurs.
fn may_be_scored(end: End) -> bool {
    end.fault(true) == Fault::Policy
}

/// Whether an end can be the farm's fault; `page_hang` can, the first time.
fn may_fail(end: End) -> bool {
    end.fault(false) == Fault::Farm
}

/// Whether an evaluation of a version may begin after the last one; says why not.
fn may_begin(last: Option<&EvaluationRow>, version: i32) -> Result<(), String> {
    match last {
        Some(last) if last.is_open() => Err(format!("that of version {} is under way", last.version)),
        Some(last) if last.version >= version => Err(format!("version {} was evaluated", last.version)),
        _ => Ok(()),
    }
}

/// Whether a problem may be drawn where this is the last evaluation; says why not.
fn may_draw(last: Option<&EvaluationRow>, problem: Problem) -> Result<(), String> {
    let row = under_way(last, problem.version)?;
    match problem.index == row.drawn && row.drawn < row.problems {
        true => Ok(()),
        false => Err(format!("the next problem of {} is {}, not {}", row.problems, row.drawn, problem.index)),
    }
}

/// Whether the evaluation of a version may end where this is the last one; says why not.
fn may_end(last: Option<&EvaluationRow>, version: i32, cut: bool) -> Result<(), String> {
    let row = under_way(last, version)?;
    match cut || row.drawn == row.problems {
        true => Ok(()),
        false => Err(format!("{} of its {} problems are drawn", row.drawn, row.problems)),
    }
}

fn under_way(last: Option<&EvaluationRow>, version: i32) -> Result<&EvaluationRow, String> {
    let open = last.filter(|last| last.is_open() && last.version == version);
    open.ok_or_else(|| format!("no evaluation of version {version} is under way"))
}

impl EvaluationRow {
    /// Whether it is under way.
    pub fn is_open(&self) -> bool {
        self.standing == EvaluationStanding::Open
    }
}
