//! What the core answers to each call of a worker, a publisher or a trainer, and why it refuses
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{
    EndKind, EnvWorker, Id, LeaseSecret, PolicyWorker, Run, Trajectory, TrajectoryAncestry, WeightsOrder,
};
use furrow_telemetry::WorkerKind;

use super::event::HeartbeatStatus;
use crate::ledger::TaskDraw;
use crate::versions::{VersionRefusal, VersionState};

/// The answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallResponse {
    /// The worker is registered.
    Registered {
        run_id: Id<Run>,
        /// How often its directory was opened.
        epoch: u64,
        /// How often the worker shall send a heartbeat.
        heartbeat_millis: u64,
        /// The version a policy worker shall run, if not the one the job names.
        weights: Option<WeightsOrder>,
    },
    /// A heartbeat was received.
    HeartbeatAcknowledged {
        /// Whether the worker is registered.
        known: bool,
        /// Whether the run is over.
        run_over: bool,
        /// The version a policy worker shall run, if not the one the job names.
        weights: Option<WeightsOrder>,
    },
    /// A publication is a version, durably.
    VersionProposed {
        version: i32,
        /// Whether it already was one.
        repeated: bool,
    },
    /// A trainer's discards were counted.
    Discarded {
        /// Discarded trajectories, over all readers of the run.
        discarded: u64,
        /// Scored trajectories outside of evaluations.
        accepted: u64,
    },
    /// How far a version is.
    Weights(Box<WeightsStanding>),
    /// The worker was removed.
    Left,
    Leased {
        grants: Vec<LeaseGrant>,
        /// Whether the run is over.
        run_over: bool,
    },
    /// Leases were renewed, except for these.
    Renewed {
        /// Trajectories no longer leased to the caller.
        lost: Vec<Id<Trajectory>>,
        /// Trajectories that continue with another policy worker, and its address.
        moves: Vec<(Id<Trajectory>, String)>,
    },
    /// The caller holds the lease: its step or ending may be spooled.
    Go {
        /// Run, group, slot and attempt of the trajectory.
        of: TrajectoryAncestry,
        steps: u32,
        /// Its task and seed, while its group is open.
        draw: Option<Arc<TaskDraw>>,
    },
    /// The end is durable.
    Finished,
    /// How far the job is.
    Progress(Box<RunProgress>),
    Running(Vec<LeasedTrajectory>),
    /// Nothing new will be leased.
    Draining,
    /// The call is refused.
    Refused(CallRefusal),
}

#[derive(Debug, Clone, PartialEq)]
pub struct LeaseGrant {
    /// Its run, group, slot and attempt.
    pub of: TrajectoryAncestry,
    pub token: u64,
    /// For the worker that gets the lease, and no other.
    pub secret: LeaseSecret,
    /// How long the lease lasts without a renewal.
    pub lease_millis: u64,
    /// Its task and seed.
    pub draw: Arc<TaskDraw>,
    /// Address of its policy worker.
    pub policy_address: String,
}

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallRefusal {
    /// The worker is not registered here.
    #[error("{worker} is not registered with this coordinator: register again")]
    UnknownWorker { worker: String },
    /// The caller does not hold the trajectory. It does not learn whether another one does, or
    /// whether it has ended.
    #[error(
        "the caller holds no lease of {trajectory} under token {token}: the lease is over, or its worker, \
         token or secret is another"
    )]
    Stale {
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
    },
    /// A publication cannot become a version.
    #[error("the weights were not published: {why}")]
    Publication { why: PublicationRefusal },
    /// A trainer reported more discards than were accepted.
    #[error(
        "{discarded} trajectories cannot be discarded: this run has accepted {accepted} outside of \
         evaluations; report the cumulative count of one training on this run"
    )]
    Discarded {
        /// Over all readers of the run.
        discarded: u64,
        /// Scored trajectories outside of evaluations.
        accepted: u64,
    },
    /// No such version was published.
    #[error("version {version} does not exist; no weights were published under that number")]
    NoVersion { version: i32 },
    /// Another ending was acknowledged.
    #[error("{trajectory} was acknowledged with another ending")]
    OtherEnding { trajectory: Id<Trajectory> },
}

/// Why a publication cannot become a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublicationRefusal {
    /// Its name is that of an earlier one.
    #[error(
        "publication {publication_id} is already version {version}, with other weights; publish under a new id"
    )]
    OtherWeights { publication_id: String, version: i32 },
    #[error("no policy worker of this job has weights")]
    NoWeights,
    #[error(transparent)]
    Version(#[from] VersionRefusal),
}

#[derive(Debug, Clone, PartialEq)]
pub struct LeasedTrajectory {
    /// Its run, group, slot and attempt.
    pub of: TrajectoryAncestry,
    /// Its task and seed.
    pub draw: Arc<TaskDraw>,
    /// The environment worker that acts it.
    pub env_worker: Id<EnvWorker>,
    /// The policy worker that decides in it.
    pub policy_worker: Id<PolicyWorker>,
    /// Steps that are durable.
    pub steps: u32,
    /// Wall clock at its lease, microseconds since the Unix epoch.
    pub started_at_micros: i64,
}

/// How far the job is.
#[derive(Debug, Clone, PartialEq)]
pub struct RunProgress {
    pub run_id: Id<Run>,
    /// Groups in the whole job.
    pub groups_planned: u64,
    /// Groups whose row is final.
    pub groups_closed: u64,
    pub assigned: u64,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Those of them that an earlier start of this run scored.
    pub scored_before: u64,
    /// Time since this start.
    pub uptime_millis: u64,
    /// Trajectories that ended by the farm's fault.
    pub failed: BTreeMap<EndKind, u64>,
    /// Trajectories in the data set.
    pub committed: u64,
    /// Sum of all rewards.
    pub reward_sum: f64,
    /// Scored trajectories that solved their task.
    pub successes: u64,
    /// Scored trajectories outside of evaluations whose scorer decides whether they solved their
    /// task.
    pub training_success_known: u64,
    /// Those of them that solved it.
    pub training_successes: u64,
    /// Trajectories that ended and have no verdict yet.
    pub scoring: u64,
    pub workers: Vec<WorkerStanding>,
    /// Steps acknowledged since this coordinator started.
    pub steps: u64,
    /// Scored trajectories that a trainer discarded, as far as it reported them to this
    /// coordinator.
    pub discarded: u64,
    pub env_workers: u64,
    pub policy_workers: u64,
    /// `open`, or why nothing is leased.
    pub admission: String,
    /// Whether the run is over.
    pub run_over: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStanding {
    pub worker: String,
    pub kind: WorkerKind,
    /// Sessions it can hold.
    pub sessions_max: u32,
    /// Milliseconds since its last heartbeat.
    pub last_contact_millis: u64,
    pub health: HeartbeatStatus,
    /// The policy version it runs, for a policy worker with weights.
    pub version: Option<i32>,
    /// Why a policy worker gets no sessions, if it waits.
    pub waits: Option<String>,
}

/// How far a version is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsStanding {
    /// The newest version that a policy worker runs or ran.
    pub current: i32,
    pub version: i32,
    pub state: VersionState,
    /// The hash of its weights, once known.
    pub weights_sha256: Option<String>,
    /// Policy workers with weights.
    pub workers: Vec<WorkerVersion>,
    /// Directories that must not be deleted.
    pub needed: Vec<String>,
}

/// A policy worker and the requested version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerVersion {
    pub worker: Id<PolicyWorker>,
    pub version: i32,
    /// Why it runs neither the requested version nor a newer one, if so.
    pub lags: Option<String>,
}
