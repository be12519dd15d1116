//! The state that decisions read and change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use furrow_rollout::{EndKind, EnvWorker, Id, PolicyWorker, Run, Trajectory, TrajectoryAncestry};
use furrow_telemetry::PauseReason;

use super::decision::EndedTrajectory;
use super::event::{CallId, HeartbeatStatus};
use super::group_plan::{GroupPlan, TaskTallies};
use super::rules::CoreRules;
use crate::assign::PolicyOffer;
use crate::groups::OpenGroup;
use crate::lease::LeaseTable;
use crate::lease_secret::SecretSource;
use crate::ledger::{TrajectoryEnd, TrajectoryStart};
use crate::versions::VersionTable;

/// The deciding part of the coordinator. Its size follows what is open or uncommitted, not what is
/// done.
pub struct Core {
    pub(super) rules: CoreRules,
    pub(super) plan: Arc<dyn GroupPlan>,
    pub(super) run_id: Id<Run>,
    pub(super) epoch: u64,
    pub(super) next_token: u64,
    pub(super) secrets: SecretSource,
    pub(super) next_group: u64,
    /// Draws of the plan; groups of evaluations take group numbers and no draws.
    pub(super) next_draw: u64,
    pub(super) groups: BTreeMap<u64, OpenGroup>,
    pub(super) leases: LeaseTable,
    pub(super) scoring: BTreeMap<Id<Trajectory>, PendingScore>,
    /// Ended and not yet in the data set.
    pub(super) uncommitted: BTreeMap<Id<Trajectory>, UncommittedTrajectory>,
    pub(super) env_workers: BTreeMap<Id<EnvWorker>, WorkerEntry<u32>>,
    pub(super) policy_workers: BTreeMap<Id<PolicyWorker>, WorkerEntry<PolicyOffer>>,
    /// Newest version any policy worker has had.
    pub(super) newest_version: Option<i32>,
    pub(super) versions: VersionTable,
    /// Policy workers that registered after a version was taken, and the version they must reach
    /// before any trajectory is leased to them.
    pub(super) behind: BTreeMap<Id<PolicyWorker>, i32>,
    /// The last version each policy worker could not run, and why.
    pub(super) refusals: BTreeMap<Id<PolicyWorker>, (i32, String)>,
    /// Policy workers whose own version is broken, that version and why.
    pub(super) broken: BTreeMap<Id<PolicyWorker>, (i32, String)>,
    /// Policy workers whose weights differ from those of their version, and how.
    pub(super) strangers: BTreeMap<Id<PolicyWorker>, String>,
    /// Until this time a missing policy worker is expected to return: it has not yet noticed that
    /// the coordinator restarted.
    pub(super) settled_millis: u64,
    pub(super) waiting: VecDeque<PendingRequest>,
    /// Time of the last tick. A coordinator that was suspended in between received nothing, so no
    /// worker is late.
    pub(super) ticked_millis: u64,
    pub(super) disk_low: Option<String>,
    pub(super) discards: DiscardCounts,
    pub(super) reported_pause: Option<PauseReason>,
    pub(super) stopping: Option<ShutdownState>,
    pub(super) shards_closing: bool,
    pub(super) over: bool,
    pub(super) tally: RunTally,
    /// When this start began, and what earlier starts had scored: a rate is of one start.
    pub(super) began_millis: u64,
    pub(super) scored_before: u64,
    pub(super) tallies: TaskTallies,
    pub(super) evaluation: Option<OpenEvaluation>,
    /// The last version whose evaluation began.
    pub(super) evaluated: Option<i32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkerEntry<T> {
    pub offer: T,
    pub last_contact_millis: u64,
    pub health: HeartbeatStatus,
}

/// A request for work that stays open.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PendingRequest {
    pub call: CallId,
    pub worker: Id<EnvWorker>,
    pub slots: u32,
    pub until_millis: u64,
}

/// An ended trajectory on its way to the data set.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UncommittedTrajectory {
    pub since_millis: u64,
    pub outgoing: Box<EndedTrajectory>,
}

/// A finished trajectory that waits for its verdict.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PendingScore {
    pub start: TrajectoryStart,
    pub of: TrajectoryAncestry,
    pub group: u64,
    pub ended: TrajectoryEnd,
    pub evidence_sha256: [u8; 32],
    pub attempts: u32,
    /// When it goes to the scorer again; `None` while a scorer has it.
    pub retry_at_millis: Option<u64>,
}

/// Totals over the whole run.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RunTally {
    pub scored: u64,
    pub failed: BTreeMap<EndKind, u64>,
    pub committed: u64,
    pub groups_closed: u64,
    pub reward_sum: f64,
    pub successes: u64,
    /// Trajectories outside of evaluations with a known success.
    pub training_success_known: u64,
    pub training_successes: u64,
    pub steps: u64,
    /// Those of the scored trajectories that belong to evaluations.
    pub evaluated: u64,
}

/// The largest count reported by each reader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DiscardCounts {
    pub world: u32,
    pub by_rank: BTreeMap<u32, u64>,
}

/// A shutdown in progress.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShutdownState {
    pub since_millis: u64,
    pub until_millis: u64,
    pub cancelled: u64,
    /// The failures, where they caused the shutdown.
    pub failures: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenEvaluation {
    pub version: i32,
    pub problems: u64,
    pub drawn: u64,
    pub scored: u64,
    pub succeeded: u64,
    /// Since when newer weights wait. After a restart they wait one whole term.
    pub holds_since_millis: Option<u64>,
    /// Since when policy workers are registered and none of them runs the version. After a restart
    /// it counts anew.
    pub idle_since_millis: Option<u64>,
}
