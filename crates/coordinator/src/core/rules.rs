//! Settings that affect decisions.

use crate::assign::AdmissionPacing;

/// Settings that affect decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreRules {
    /// Attempts at one slot before it is given up.
    pub attempts_max: u32,
    /// Share of failed attempts beyond which the job stops.
    pub failure_budget: f64,
    /// Failed attempts that are allowed before the share applies; `None`: by the size of the job.
    pub failures_free: Option<u64>,
    /// How long a lease lasts without a renewal, and a worker's registration without a heartbeat.
    pub lease_millis: u64,
    /// How often a worker sends a heartbeat.
    pub heartbeat_millis: u64,
    /// Longest time a request for work stays open, whatever its worker asks for.
    pub lease_wait_millis: u64,
    /// Most assignments in one answer.
    pub leases_per_call_max: u32,
    /// Time for running trajectories to finish when the coordinator stops.
    pub drain_grace_millis: u64,
    /// How often evidence is sent to a scorer that fails.
    pub score_attempts_max: u32,
    /// Trajectories that may wait to be scored or committed.
    pub backlog_max: usize,
    /// Paces admission, if set.
    pub pacing: Option<AdmissionPacing>,
    /// Whether stale tokens are refused. Only a planted bug disables it.
    pub fencing: bool,
}
