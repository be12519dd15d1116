//! What the coordinator reacts to.

use furrow_rollout::{
    EndKind, EnvWorker, Group, Id, LeaseProof, PolicyWorker, Shard, Trajectory, WeightsLink,
};
use furrow_wire::{Caller, RevokedPeer};

use crate::assign::PolicyOffer;
use crate::ledger::TimedScore;
use crate::versions::VersionSource;

/// Every event the coordinator reacts to.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An environment worker registers.
    RegisterEnv {
        call: CallId,
        worker: Id<EnvWorker>,
        /// Trajectories it acts at once.
        sessions_max: u32,
    },
    /// A policy worker registers.
    RegisterPolicy {
        call: CallId,
        worker: Id<PolicyWorker>,
        /// Its capacity and policy.
        offer: PolicyOffer,
        /// Its report about its weights.
        run: WeightsReport,
    },
    /// A worker reports that it is alive.
    Heartbeat {
        call: CallId,
        worker: WorkerId,
        /// A policy worker's report about its weights.
        run: WeightsReport,
        health: HeartbeatStatus,
    },
    /// A client publishes weights.
    Publish {
        call: CallId,
        publication: WeightsPublication,
    },
    /// A trainer reports how many trajectories it discarded.
    Discarded {
        call: CallId,
        report: DiscardReport,
    },
    /// A client asks how far a version is.
    Weights {
        call: CallId,
        /// The version; 0 selects the newest.
        version: i32,
    },
    /// A worker leaves; its leases are returned.
    Leave {
        call: CallId,
        worker: WorkerId,
    },
    /// An environment worker asks for work.
    Lease {
        /// Answered with [`Leased`](super::CallResponse::Leased), at the latest after
        /// `wait_millis`.
        call: CallId,
        /// The worker that asks.
        worker: Id<EnvWorker>,
        /// How many trajectories it can take.
        slots: u32,
        /// How long it is willing to wait.
        wait_millis: u64,
    },
    /// An environment worker renews these leases.
    Renew {
        call: CallId,
        /// The worker that holds them.
        worker: Id<EnvWorker>,
        leases: Vec<LeaseProof>,
    },
    /// A step arrived; it may be spooled if its sender still holds the lease.
    StepArrived {
        call: CallId,
        claim: LeaseClaim,
    },
    /// A first screenshot arrived; observers may see it if its sender still holds the lease.
    FirstShown {
        call: CallId,
        claim: LeaseClaim,
    },
    /// A step is spooled and synced.
    StepKept {
        trajectory: Id<Trajectory>,
        step: u32,
        /// Oldest and newest policy version among its tokens.
        policy_versions: Option<(i32, i32)>,
    },
    /// An ending arrived; it may be spooled if its sender still holds the lease.
    EndingArrived {
        /// Answered with [`Go`](super::CallResponse::Go), or with
        /// [`Finished`](super::CallResponse::Finished) if this same ending was acknowledged before.
        call: CallId,
        claim: LeaseClaim,
        /// SHA-256 of the encoded ending.
        digest: [u8; 32],
    },
    /// An ending is spooled and synced.
    EndingKept {
        /// Answered with [`Finished`](super::CallResponse::Finished) once it is in the ledger.
        call: CallId,
        claim: LeaseClaim,
        ending: ReportedEnd,
    },
    /// A scorer returned a verdict or failed.
    Scored {
        trajectory: Id<Trajectory>,
        /// The verdict, or why there is none.
        verdict: Result<TimedScore, String>,
    },
    /// The manifest names these rows.
    ShardCommitted {
        /// The shard that holds them.
        shard: ShardSummary,
        trajectories: Vec<Id<Trajectory>>,
        groups: Vec<Id<Group>>,
    },
    /// The record of a scored trajectory cannot be read back, so no shard holds it.
    RecordLost {
        trajectory: Id<Trajectory>,
        /// Steps that can be read, from the first one on.
        steps: u32,
        /// What is wrong with the next step.
        why: String,
    },
    /// Assignments whose caller was gone before the answer.
    Undelivered {
        trajectories: Vec<Id<Trajectory>>,
    },
    /// The callers of these calls are gone; it matters only for requests for work, which stay open
    /// for a long time.
    HungUp {
        calls: Vec<CallId>,
    },
    /// The free disk space was measured.
    Disk {
        /// `None` above the reserve, otherwise the numbers as a sentence.
        low: Option<String>,
    },
    /// The run refuses the certificates of a worker from now on.
    Revoked {
        peer: RevokedPeer,
    },
    /// A client asks how far the job is.
    Progress {
        call: CallId,
    },
    /// A client asks what runs.
    Running {
        call: CallId,
    },
    /// The coordinator shall stop: it leases nothing new, and running trajectories have a grace
    /// period.
    Drain {
        /// Answered with [`Draining`](super::CallResponse::Draining), if there is a caller.
        call: Option<CallId>,
    },
    /// The same, and running trajectories are reclaimed now. If the job drains already, the grace
    /// period ends.
    Stop {
        call: CallId,
    },
    Tick,
}

/// Identifies a call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A worker's id in calls that do not say its role: a name in both, or in the one role that the
/// caller's certificate has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerId {
    pub env: Option<Id<EnvWorker>>,
    pub policy: Option<Id<PolicyWorker>>,
}

/// An environment worker's report of an end, as far as it affects decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedEnd {
    pub end: EndKind,
    /// Why, in a sentence.
    pub reason: String,
    /// Hash of the evidence, if there is any.
    pub evidence_sha256: Option<[u8; 32]>,
    /// Steps in the spool.
    pub steps: u32,
    /// SHA-256 of the encoded ending.
    pub digest: [u8; 32],
}

/// A committed shard, as reported in events and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSummary {
    pub shard_id: Id<Shard>,
    /// The manifest commit that names it.
    pub version: u64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// A caller that acts for a trajectory.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseClaim {
    /// Who calls: the worker that holds the lease, and no other.
    pub caller: Caller,
    pub proof: LeaseProof,
}

impl LeaseClaim {
    /// Whether the caller's certificate covers the worker that a lease was given to.
    pub(super) fn holds(&self) -> impl Fn(&Id<EnvWorker>) -> bool + '_ {
        |holder| self.caller.covers(holder.as_str())
    }
}

/// The time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTime {
    /// The coordinator's monotonic clock, in milliseconds; leases use it.
    pub millis: u64,
    /// Microseconds since the Unix epoch; recorded, never used for decisions.
    pub wall_micros: i64,
}

impl Event {
    /// Whether the event may change what can be leased. The calls of a step do not, and they
    /// outnumber the others by thousands.
    pub(super) fn affects_leasing(&self) -> bool {
        !matches!(
            self,
            Event::StepArrived { .. }
                | Event::FirstShown { .. }
                | Event::StepKept { .. }
                | Event::EndingArrived { .. }
                | Event::Renew { .. }
                | Event::Progress { .. }
                | Event::Running { .. }
        )
    }
}

/// The trajectories one reader of a run has discarded since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardReport {
    /// The reader's number, less than `world`.
    pub rank: u32,
    /// Readers that share the run.
    pub world: u32,
    /// Scored trajectories outside of evaluations; it only grows.
    pub trajectories: u64,
}

/// Weights to become the next version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsPublication {
    /// Its name: a repeated publication is the same version.
    pub publication_id: String,
    /// What the weights consist of.
    pub source: VersionSource,
    /// The expected hash of its weights.
    pub weights_sha256: Option<String>,
}

/// A policy worker's report about its weights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WeightsReport {
    /// The version it runs; `None` for a policy without weights.
    pub version: Option<i32>,
    /// The hash of its weights.
    pub weights_sha256: Option<String>,
    /// The last version it could not run, and why.
    pub refused: Option<(i32, String)>,
}

impl WeightsPublication {
    /// A directory of weights on top of an earlier version.
    pub(crate) fn of_directory(
        publication_id: String,
        link: WeightsLink,
        base_version: i32,
        weights_sha256: Option<String>,
    ) -> Self {
        let source = VersionSource::Directory { link, base_version };
        Self { publication_id, source, weights_sha256 }
    }
}

/// A worker's report about itself with each heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeartbeatStatus {
    pub sessions: u32,
    /// Resident memory of its process and its child processes.
    pub memory_bytes: Option<u64>,
    /// Memory that its machine or container has left.
    pub memory_left_bytes: Option<u64>,
}
