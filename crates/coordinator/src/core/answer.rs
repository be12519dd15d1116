//! What callers are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{Ancestry, End, EnvWorker, Id, PolicyWorker, Run, Trajectory, WeightsOrder};
use furrow_telemetry::WorkerKind;

use super::{Claim, WeightsStanding};
use crate::lease::Stale;
use crate::ledger::Draw;

/// What a call is answered with.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The worker is known from now on.
    Registered {
        /// The run.
        run_id: Id<Run>,
        /// How often its directory was opened.
        epoch: u64,
        /// How often the worker shall say that it is there.
        heartbeat_millis: u64,
        /// What a policy worker shall run, if not what the job names.
        weights: Option<WeightsOrder>,
    },
    /// A heartbeat was heard.
    Heard {
        /// Whether the worker is registered.
        known: bool,
        /// Whether nothing more will come.
        run_over: bool,
        /// What a policy worker shall run, if not what the job names.
        weights: Option<WeightsOrder>,
    },
    /// A publication is a version, durably.
    VersionProposed {
        /// Its number.
        version: i32,
        /// Whether it was before.
        repeated: bool,
    },
    /// What a trainer discarded is counted.
    Discarded {
        /// Trajectories, of all readers of the run.
        discarded: u64,
        /// Scored trajectories outside of evaluations.
        accepted: u64,
    },
    /// How far a version is.
    Weights(Box<WeightsStanding>),
    /// Goodbye.
    Left,
    /// Trajectories to act.
    Leased {
        /// Which.
        grants: Vec<Grant>,
        /// Whether nothing more will come.
        run_over: bool,
    },
    /// Leases were prolonged, but for these.
    Renewed {
        /// No longer lent to the caller.
        lost: Vec<Id<Trajectory>>,
        /// Trajectories that go on with another policy worker, and its address.
        moves: Vec<(Id<Trajectory>, String)>,
    },
    /// The caller holds the trajectory: what it brought may be spooled.
    Go {
        /// Where the trajectory belongs.
        of: Ancestry,
        /// Steps of it that are durable.
        steps: u32,
    },
    /// The end is durable.
    Finished,
    /// How far the job is.
    Progress(Box<Progress>),
    /// What runs.
    Running(Vec<Running>),
    /// Nothing new will be lent.
    Draining,
    /// No.
    Refused(Refused),
}

/// A trajectory, lent.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Where it belongs.
    pub of: Ancestry,
    /// Fencing token.
    pub token: u64,
    /// How long the lease lasts without a renewal.
    pub lease_millis: u64,
    /// Its task and seed.
    pub draw: Arc<Draw>,
    /// Policy worker to talk to.
    pub policy_address: String,
}

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The worker is not registered here.
    #[error("{worker} is not registered with this coordinator: register again")]
    UnknownWorker {
        /// Who called.
        worker: String,
    },
    /// The caller does not hold the trajectory.
    #[error("token {token} of {trajectory} is stale: {}", stale(.current))]
    Stale {
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
        /// The token it is lent under, if it is.
        current: Option<u64>,
    },
    /// A publication cannot be a version.
    #[error("it is not published: {why}")]
    Publication {
        /// Why.
        why: String,
    },
    /// A trainer discarded what it never got.
    #[error(
        "{discarded} trajectories cannot be discarded: this run has accepted {accepted} outside of evaluations; report the cumulative count of one training of this very run"
    )]
    Discarded {
        /// Of all readers of the run.
        discarded: u64,
        /// Scored trajectories outside of evaluations.
        accepted: u64,
    },
    /// No such version was published.
    #[error("there is no version {version}; none was published under that number")]
    NoVersion {
        /// Which.
        version: i32,
    },
    /// Another ending was acknowledged.
    #[error("{trajectory} was acknowledged with another ending")]
    OtherEnding {
        /// The trajectory.
        trajectory: Id<Trajectory>,
    },
}

/// A trajectory that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Where it belongs.
    pub of: Ancestry,
    /// Its task and seed.
    pub draw: Arc<Draw>,
    /// Who acts it.
    pub env_worker: Id<EnvWorker>,
    /// Who decides in it.
    pub policy_worker: Id<PolicyWorker>,
    /// Steps that are durable.
    pub steps: u32,
    /// When it was lent, wall clock, microseconds since the Unix epoch.
    pub started_at_micros: i64,
}

/// How far the job is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The run.
    pub run_id: Id<Run>,
    /// Groups in the whole job.
    pub groups_planned: u64,
    /// Groups whose row is final.
    pub groups_closed: u64,
    /// Trajectories lent now.
    pub assigned: u64,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Trajectories that ended by the farm's fault.
    pub failed: BTreeMap<End, u64>,
    /// Trajectories in the data set.
    pub published: u64,
    /// Sum of all rewards.
    pub reward_sum: f64,
    /// Scored trajectories that solved their task.
    pub successes: u64,
    /// Scored trajectories outside of evaluations whose scorer says whether they solved their task.
    pub training_judged: u64,
    /// Those of them that did.
    pub training_successes: u64,
    /// Trajectories that ended and have no verdict yet.
    pub scoring: u64,
    /// Who is there.
    pub workers: Vec<WorkerStanding>,
    /// Steps acknowledged since this coordinator started.
    pub steps: u64,
    /// Scored trajectories that a trainer discarded, as far as it reported them to this coordinator.
    pub discarded: u64,
    /// Environment workers there.
    pub env_workers: u64,
    /// Policy workers there.
    pub policy_workers: u64,
    /// `open`, or why nothing is lent.
    pub admission: String,
    /// Whether all is done.
    pub run_over: bool,
}

/// What a worker says of itself with each sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    /// Sessions it holds.
    pub sessions: u32,
    /// Resident memory of its process and all that it started.
    pub memory_bytes: Option<u64>,
    /// Memory that its machine or container has left.
    pub memory_left_bytes: Option<u64>,
}

/// A worker that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStanding {
    /// Its name.
    pub worker: String,
    /// What it does.
    pub kind: WorkerKind,
    /// Sessions it can hold.
    pub sessions_max: u32,
    /// Milliseconds since its last word.
    pub heard_millis: u64,
    /// What that was.
    pub health: Health,
    /// The policy version it runs; of a policy worker with weights.
    pub version: Option<i32>,
    /// Why it is given no sessions, if it is a policy worker that waits.
    pub waits: Option<String>,
}

impl Refused {
    pub(super) fn stale(claim: Claim, why: Stale) -> Self {
        let current = match why {
            Stale::NotLent => None,
            Stale::OtherToken { current } => Some(current),
        };
        Self::Stale { trajectory: claim.trajectory.clone(), token: claim.token, current }
    }
}

fn stale(current: &Option<u64>) -> String {
    match current {
        Some(current) => format!("it is lent under {current}"),
        None => "it is not lent any more".to_owned(),
    }
}
