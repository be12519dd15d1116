//! Notices of the core about the farm. The shell emits them once they are durable.

use std::time::Duration;

use furrow_rollout::{
    EndKind, EnvWorker, GroupRecord, Id, PolicyWorker, Run, Trajectory, TrajectoryAncestry,
};
use furrow_telemetry as telemetry;
use furrow_telemetry::{PauseReason, Role, WorkerKind};

use super::event::ShardSummary;
use crate::ledger::TimedScore;

#[derive(Debug, Clone, PartialEq)]
pub enum CoreNotice {
    WorkerRegistered { kind: WorkerKind, worker: String, slots: u32 },
    WorkerLeft { kind: WorkerKind, worker: String },
    WorkerLost { kind: WorkerKind, worker: String, reason: &'static str },
    Leased { of: TrajectoryAncestry, token: u64, worker: Id<EnvWorker>, task_id: String },
    LeaseLost { of: TrajectoryAncestry, token: u64, worker: Id<EnvWorker> },
    Fenced { run_id: Id<Run>, trajectory: Id<Trajectory>, token: u64, call: &'static str, why: &'static str },
    Repeated { run_id: Id<Run>, trajectory: Id<Trajectory> },
    Finished { of: TrajectoryAncestry, token: u64, end: EndKind, steps: u32 },
    Scored { of: TrajectoryAncestry, end: EndKind, reward: f32, verdict: TimedScore },
    Failed { of: TrajectoryAncestry, end: EndKind, reason: String, retried: bool },
    GroupClosed(Box<GroupRecord>),
    ShardCommitted { shard: ShardSummary, delays_millis: Vec<u64> },
    VersionProposed { version: i32 },
    VersionTaken { version: i32, worker: Id<PolicyWorker> },
    VersionRefused { version: i32, reason: String },
    VersionWithdrawn { version: i32, reason: String },
    VersionLags { version: i32, worker: Id<PolicyWorker>, reason: String },
    EvaluationBegun { version: i32, problems: u64 },
    EvaluationEnded(EvaluationResult),
    Discarded { discarded: u64, accepted: u64 },
    Paused { reason: PauseReason, detail: String },
    Resumed { reason: PauseReason },
    Draining { in_hand: u64 },
    Drained { left: u64, millis: u64 },
}

impl CoreNotice {
    /// Emits the notice as one log line and updates the metrics.
    pub fn emit(&self) {
        match self {
            CoreNotice::WorkerRegistered { kind, worker, slots } => {
                telemetry::WorkerRegistered { kind: *kind, worker, slots: *slots }.emit();
            }
            CoreNotice::WorkerLeft { kind, worker } => telemetry::WorkerLeft { kind: *kind, worker }.emit(),
            CoreNotice::WorkerLost { kind, worker, reason } => {
                telemetry::WorkerLost { kind: *kind, worker, reason }.emit();
            }
            CoreNotice::Leased { of, token, worker, task_id } => {
                telemetry::AssignmentLeased { of, token: *token, worker: worker.as_str(), task_id }.emit();
            }
            CoreNotice::LeaseLost { of, token, worker } => {
                telemetry::LeaseLost { of, token: *token, worker: worker.as_str() }.emit();
            }
            CoreNotice::Fenced { run_id, trajectory, token, call, why } => {
                if let Some(of) = ancestry(run_id, trajectory) {
                    telemetry::CallFenced { of: &of, token: *token, call, why }.emit();
                }
            }
            CoreNotice::Repeated { run_id, trajectory } => {
                if let Some(of) = ancestry(run_id, trajectory) {
                    telemetry::CallRepeated { of: &of, call: "finish" }.emit();
                }
            }
            CoreNotice::Finished { of, token, end, steps } => {
                telemetry::TrajectoryFinished { of, token: *token, end: *end, steps: *steps }.emit();
            }
            CoreNotice::Scored { of, end, reward, verdict } => {
                let score = &verdict.score;
                let score_micros = verdict.micros;
                telemetry::TrajectoryScored { of, end: *end, score, reward: *reward, score_micros }.emit();
            }
            CoreNotice::Failed { of, end, reason, retried } => {
                telemetry::TrajectoryFailed { of, end: *end, reason, retried: *retried }.emit();
            }
            CoreNotice::GroupClosed(group) => telemetry::GroupClosed { group }.emit(),
            CoreNotice::ShardCommitted { shard, delays_millis } => emit_commit(shard, delays_millis),
            CoreNotice::VersionProposed { version } => tracing::info!(version, "weights published"),
            CoreNotice::VersionTaken { version, worker } => {
                tracing::info!(version, %worker, "a policy worker runs published weights");
            }
            CoreNotice::VersionRefused { version, reason } => {
                tracing::error!(version, reason, "no policy worker can run published weights");
            }
            CoreNotice::VersionWithdrawn { version, reason } => {
                telemetry::VersionWithdrawn { version: *version, reason }.emit();
            }
            CoreNotice::VersionLags { version, worker, reason } => {
                tracing::warn!(version, %worker, reason, "a policy worker cannot run published weights");
            }
            CoreNotice::EvaluationBegun { version, problems } => {
                telemetry::EvaluationBegun { version: *version, problems: *problems }.emit();
            }
            CoreNotice::EvaluationEnded(result) => emit_evaluation_end(result),
            CoreNotice::Discarded { discarded, accepted } => log_discards(*discarded, *accepted),
            CoreNotice::Paused { reason, detail } => {
                telemetry::AdmissionPaused { reason: *reason, detail }.emit();
            }
            CoreNotice::Draining { in_hand } => {
                telemetry::ProcessDraining { role: Role::Coordinator, in_hand: *in_hand }.emit();
            }
            CoreNotice::Drained { left, millis } => {
                telemetry::ProcessDrained { role: Role::Coordinator, left: *left, micros: millis * 1000 }
                    .emit();
            }
            CoreNotice::Resumed { reason } => telemetry::AdmissionResumed { reason: *reason }.emit(),
        }
    }
}

fn emit_commit(shard: &ShardSummary, delays_millis: &[u64]) {
    let ShardSummary { shard_id, version, bytes } = shard;
    let delays: Vec<_> = delays_millis.iter().copied().map(Duration::from_millis).collect();
    telemetry::ShardCommitted { shard_id, version: *version, delays: &delays, bytes: *bytes }.emit();
}

fn emit_evaluation_end(result: &EvaluationResult) {
    let EvaluationResult { version, problems, drawn, scored, succeeded, ref cut } = *result;
    let cut = cut.as_deref();
    telemetry::EvaluationEnded { version, problems, drawn, scored, succeeded, cut }.emit();
}

fn log_discards(discarded: u64, accepted: u64) {
    tracing::debug!(discarded, accepted, "a trainer discarded trajectories; admitting replacements");
}

/// Run, group, slot and attempt of a trajectory that is no longer leased, read from its id; `None`
/// for an id of another run.
fn ancestry(run_id: &Id<Run>, trajectory: &Id<Trajectory>) -> Option<TrajectoryAncestry> {
    let (rest, attempt) = trajectory.as_str().rsplit_once("-a")?;
    let (group, sample) = rest.rsplit_once("-s")?;
    Some(TrajectoryAncestry {
        run_id: run_id.clone(),
        group_id: Id::new(group).ok()?,
        sample_index: sample.parse().ok()?,
        attempt: attempt.parse().ok()?,
        trajectory_id: trajectory.clone(),
    })
}

/// How an evaluation ended, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationResult {
    pub version: i32,
    /// Problems it was planned with.
    pub problems: u64,
    /// Problems that were drawn.
    pub drawn: u64,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Those that count as solved.
    pub succeeded: u64,
    /// Why it ended before it was complete.
    pub cut: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trajectorys_id_says_where_it_belongs() {
        let run = Id::new("my-aa-run").unwrap();
        let group = Id::nth(&run, 12);
        let trajectory = Id::attempt(&group, 3, 2);
        let of = ancestry(&run, &trajectory).unwrap();
        assert_eq!((of.group_id, of.sample_index, of.attempt), (group, 3, 2));
        assert_eq!(ancestry(&run, &Id::new("stranger").unwrap()), None);
    }
}
