//! What the core wants said about the farm. The shell says it, when it is durable.

use std::time::Duration;

use furrow_rollout::{Ancestry, End, EnvWorker, GroupRecord, Id, PolicyWorker, Run, Trajectory};
use furrow_telemetry as say;
use furrow_telemetry::{PauseReason, Role, WorkerKind};

use super::{Evaluated, ShardNews};
use crate::ledger::Verdict;

/// One thing to say.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each is the event of the same name, with the same fields")]
pub enum Notice {
    WorkerRegistered { kind: WorkerKind, worker: String, slots: u32 },
    WorkerLeft { kind: WorkerKind, worker: String },
    WorkerLost { kind: WorkerKind, worker: String, reason: &'static str },
    Leased { of: Ancestry, token: u64, worker: Id<EnvWorker>, task_id: String },
    LeaseLost { of: Ancestry, token: u64, worker: Id<EnvWorker> },
    Fenced { run_id: Id<Run>, trajectory: Id<Trajectory>, token: u64, call: &'static str },
    Repeated { run_id: Id<Run>, trajectory: Id<Trajectory> },
    Finished { of: Ancestry, token: u64, end: End, steps: u32 },
    Scored { of: Ancestry, end: End, reward: f32, verdict: Verdict },
    Failed { of: Ancestry, end: End, reason: String, retried: bool },
    GroupClosed(Box<GroupRecord>),
    Published { shard: ShardNews, delays_millis: Vec<u64> },
    VersionProposed { version: i32 },
    VersionTaken { version: i32, worker: Id<PolicyWorker> },
    VersionRefused { version: i32, reason: String },
    VersionLags { version: i32, worker: Id<PolicyWorker>, reason: String },
    EvaluationBegun { version: i32, problems: u64 },
    EvaluationEnded(Evaluated),
    Discarded { discarded: u64, accepted: u64 },
    Paused { reason: PauseReason, detail: String },
    Resumed { reason: PauseReason },
    Draining { in_hand: u64 },
    Drained { left: u64, millis: u64 },
}

impl Notice {
    /// Says it: one log line, and the figures.
    pub fn emit(&self) {
        match self {
            Notice::WorkerRegistered { kind, worker, slots } => {
                say::WorkerRegistered { kind: *kind, worker, slots: *slots }.emit();
            }
            Notice::WorkerLeft { kind, worker } => say::WorkerLeft { kind: *kind, worker }.emit(),
            Notice::WorkerLost { kind, worker, reason } => {
                say::WorkerLost { kind: *kind, worker, reason }.emit();
            }
            Notice::Leased { of, token, worker, task_id } => {
                say::AssignmentLeased { of, token: *token, worker: worker.as_str(), task_id }.emit();
            }
            Notice::LeaseLost { of, token, worker } => {
                say::LeaseLost { of, token: *token, worker: worker.as_str() }.emit();
            }
            Notice::Fenced { run_id, trajectory, token, call } => {
                if let Some(of) = ancestry(run_id, trajectory) {
                    say::CallFenced { of: &of, token: *token, call }.emit();
                }
            }
            Notice::Repeated { run_id, trajectory } => {
                if let Some(of) = ancestry(run_id, trajectory) {
                    say::CallRepeated { of: &of, call: "finish" }.emit();
                }
            }
            Notice::Finished { of, token, end, steps } => {
                say::TrajectoryFinished { of, token: *token, end: *end, steps: *steps }.emit();
            }
            Notice::Scored { of, end, reward, verdict } => {
                let (score, score_micros) = (&verdict.score, verdict.micros);
                say::TrajectoryScored { of, end: *end, score, reward: *reward, score_micros }.emit();
            }
            Notice::Failed { of, end, reason, retried } => {
                say::TrajectoryFailed { of, end: *end, reason, retried: *retried }.emit();
            }
            Notice::GroupClosed(group) => say::GroupClosed { group }.emit(),
            Notice::Published { shard: ShardNews { shard_id, version, bytes }, delays_millis } => {
                let delays: Vec<_> = delays_millis.iter().copied().map(Duration::from_millis).collect();
                say::ShardPublished { shard_id, version: *version, delays: &delays, bytes: *bytes }.emit();
            }
            Notice::VersionProposed { version } => tracing::info!(version, "weights are published"),
            Notice::VersionTaken { version, worker } => {
                tracing::info!(version, %worker, "published weights are in use");
            }
            Notice::VersionRefused { version, reason } => {
                tracing::error!(version, reason, "no policy worker can run published weights");
            }
            Notice::VersionLags { version, worker, reason } => {
                tracing::warn!(version, %worker, reason, "a policy worker cannot run published weights");
            }
            Notice::EvaluationBegun { version, problems } => {
                say::EvaluationBegun { version: *version, problems: *problems }.emit();
            }
            Notice::EvaluationEnded(Evaluated { version, problems, drawn, scored, succeeded, cut }) => {
                say::EvaluationEnded {
                    version: *version,
                    problems: *problems,
                    drawn: *drawn,
                    scored: *scored,
                    succeeded: *succeeded,
                    cut: cut.as_deref(),
                }
                .emit();
            }
            Notice::Discarded { discarded, accepted } => {
                tracing::debug!(discarded, accepted, "a trainer discarded trajectories; others are admitted");
            }
            Notice::Paused { reason, detail } => say::AdmissionPaused { reason: *reason, detail }.emit(),
            Notice::Draining { in_hand } => {
                say::Draining { role: Role::Coordinator, in_hand: *in_hand }.emit();
            }
            Notice::Drained { left, millis } => {
                say::Drained { role: Role::Coordinator, left: *left, micros: millis * 1000 }.emit();
            }
            Notice::Resumed { reason } => say::AdmissionResumed { reason: *reason }.emit(),
        }
    }
}

/// Where a trajectory that is not lent any more belonged, read from its id; `None` of a name that is none of ours.
fn ancestry(run_id: &Id<Run>, trajectory: &Id<Trajectory>) -> Option<Ancestry> {
    let (rest, attempt) = trajectory.as_str().rsplit_once("-a")?;
    let (group, sample) = rest.rsplit_once("-s")?;
    Some(Ancestry {
        run_id: run_id.clone(),
        group_id: Id::new(group).ok()?,
        sample_index: sample.parse().ok()?,
        attempt: attempt.parse().ok()?,
        trajectory_id: trajectory.clone(),
    })
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
