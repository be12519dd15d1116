//! Why a ledger refuses a mutation. Both implementations give the same reasons, so that the cases
//! of `conformance.rs` hold for each.

use furrow_rollout::EndKind;

use crate::versions::VersionRefusal;

/// Longest id of a run.
pub(crate) const RUN_ID_BYTES_MAX: usize = 96;

/// What contradicts the ledger, or is wrong in any state. `it` is the mutation's subject.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LedgerRefusal {
    #[error("no run was opened")]
    NoRun,
    #[error("its name has {bytes} bytes; use at most {RUN_ID_BYTES_MAX}")]
    LongRunId { bytes: usize },
    /// Groups, tokens and shards are numbered without gaps.
    #[error("the next {what} is {next}, not {got}")]
    OutOfOrder { what: &'static str, next: u64, got: u64 },
    #[error("the {what} exists already")]
    Exists { what: &'static str },
    #[error("the sampler has drawn {drawn} times, not {got}")]
    DrawsWentBack { drawn: u64, got: u64 },
    #[error("a group of 0 slots")]
    EmptyGroup,
    #[error("a chance outside (0, 1]")]
    ChanceOutOfRange,
    #[error("no group {group}")]
    UnknownGroup { group: String },
    #[error("its group is closed")]
    GroupClosed,
    #[error("its group has no slot {slot}")]
    NoSlot { slot: u32 },
    #[error("the slot's next attempt is {next}, not {got}")]
    AttemptOutOfOrder { next: u64, got: u32 },
    #[error("{trajectory} still holds the slot")]
    SlotTaken { trajectory: String },
    /// A group closes only after its attempts.
    #[error("{trajectory} is still open")]
    AttemptOpen { trajectory: String },
    #[error("it is unknown or closed already")]
    GroupNotOpen,
    #[error("no trajectory {trajectory}")]
    UnknownTrajectory { trajectory: String },
    #[error("a lease needs the digest of its secret")]
    NoSecret,
    #[error("it is not leased under this token")]
    NotLeased,
    #[error("it is unknown or has ended already")]
    EndedAlready,
    #[error("{} is the farm's fault and cannot be scored", .end.as_str())]
    FarmsEnd { end: EndKind },
    #[error("{} is the policy's own end, not a failure", .end.as_str())]
    PolicysEnd { end: EndKind },
    #[error("{} is not damage", .end.as_str())]
    NotDamage { end: EndKind },
    #[error("it failed already or is in a shard")]
    FailedOrInShard,
    #[error("it is not waiting for a score")]
    NotAwaitingScore,
    #[error("a score needs a finite reward, got {reward:?}")]
    NoFiniteReward { reward: Option<f32> },
    #[error("component {name} is {value}, not a finite number")]
    ComponentNotFinite { name: String, value: f32 },
    #[error("the scorer received other evidence than the one acknowledged")]
    OtherEvidence,
    #[error("an empty shard")]
    EmptyShard,
    #[error("new rows and a merge in one shard")]
    RowsAndMerge,
    #[error("{id} twice in one shard")]
    TwiceInShard { id: String },
    /// Only an expiry, which removes files, has none of its own.
    #[error("a shard without files")]
    NoFiles,
    #[error("{trajectory} has not ended or is in another shard")]
    TrajectoryNotReady { trajectory: String },
    #[error("{group} would be committed before its {trajectory}")]
    GroupBeforeTrajectory { group: String, trajectory: String },
    #[error("{group} is unknown, open or in another shard")]
    GroupNotReady { group: String },
    #[error("it is not opened")]
    ShardNotOpened,
    #[error("it is not written")]
    ShardNotWritten,
    #[error("it is neither opened nor written")]
    ShardSettled,
    #[error("another shard is manifest version {version}")]
    ManifestVersionTaken { version: u64 },
    #[error(transparent)]
    Version(#[from] VersionRefusal),
    #[error("an evaluation of 0 problems")]
    EmptyEvaluation,
    #[error("the evaluation of version {version} is open")]
    EvaluationOpen { version: i32 },
    #[error("version {version} was evaluated")]
    Evaluated { version: i32 },
    #[error("no evaluation of version {version} is open")]
    NoEvaluation { version: i32 },
    #[error("the next problem of {problems} is {next}, not {got}")]
    ProblemOutOfOrder { problems: u64, next: u64, got: u64 },
    #[error("{drawn} of its {problems} problems are drawn")]
    ProblemsLeft { drawn: u64, problems: u64 },
    /// An evaluation ends only after its groups.
    #[error("{group} is open")]
    EvaluatedGroupOpen { group: String },
    /// A constraint of the database refused it; the text is SQLite's.
    #[error("{0}")]
    Constraint(String),
    /// A row that the mutation depends on cannot be read.
    #[error("{0}")]
    Unreadable(String),
}
