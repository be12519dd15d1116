//! Events of the coordinator.

use std::time::Duration;

use furrow_rollout::{EndKind, GroupRecord, Id, Run, Score, Shard, TrajectoryAncestry};
use tracing::{error, info, warn};

use super::{cut, log_event};
use crate::labels::{Label, PauseReason, WorkerKind};
use crate::names::{event, process_metrics};
use crate::otel;

/// The coordinator starts or continues to fill a run directory.
#[derive(Debug)]
pub struct RunStarted<'a> {
    pub run_id: &'a Id<Run>,
    /// Whether an earlier process started the run.
    pub resumed: bool,
}

/// The run is over: everything planned is in the data set, or the job was stopped.
#[derive(Debug)]
pub struct RunEnded<'a> {
    pub run_id: &'a Id<Run>,
    /// Whether everything planned was done.
    pub complete: bool,
    /// Scored trajectories in the data set.
    pub scored: u64,
    /// Failed trajectories in the data set.
    pub failed: u64,
}

/// A worker registered and can take work.
#[derive(Debug)]
pub struct WorkerRegistered<'a> {
    pub kind: WorkerKind,
    pub worker: &'a str,
    /// Number of trajectories or sessions it takes at once.
    pub slots: u32,
}

/// A worker's registration was refused: another protocol version, an invalid id.
#[derive(Debug)]
pub struct WorkerRefused<'a> {
    pub kind: WorkerKind,
    /// The id it sent.
    pub worker: &'a str,
    pub reason: &'a str,
}

/// A registered worker deregistered.
#[derive(Debug)]
pub struct WorkerLeft<'a> {
    pub kind: WorkerKind,
    pub worker: &'a str,
}

/// A registered worker went silent.
#[derive(Debug)]
pub struct WorkerLost<'a> {
    pub kind: WorkerKind,
    pub worker: &'a str,
    pub reason: &'a str,
}

/// A trajectory was leased to an environment worker.
#[derive(Debug)]
pub struct AssignmentLeased<'a> {
    pub of: &'a TrajectoryAncestry,
    /// Fencing token of this lease.
    pub token: u64,
    /// The worker with the lease.
    pub worker: &'a str,
    pub task_id: &'a str,
}

/// A lease was revoked; its token and its secret are refused from now on.
#[derive(Debug)]
pub struct LeaseLost<'a> {
    pub of: &'a TrajectoryAncestry,
    pub token: u64,
    /// The worker that had the lease.
    pub worker: &'a str,
}

/// A call was refused because its caller does not hold the lease that it names.
#[derive(Debug)]
pub struct CallFenced<'a> {
    pub of: &'a TrajectoryAncestry,
    /// The token it carried.
    pub token: u64,
    /// Name of the call, such as `record_step`.
    pub call: &'static str,
    /// What is wrong, such as `other secret`; the caller does not learn it.
    pub why: &'static str,
}

/// A call repeated what was already durable; it was acknowledged again.
#[derive(Debug)]
pub struct CallRepeated<'a> {
    pub of: &'a TrajectoryAncestry,
    pub call: &'static str,
}

/// A step is spooled and synced; its acknowledgement may go out.
#[derive(Debug)]
pub struct StepRecorded<'a> {
    pub of: &'a TrajectoryAncestry,
    pub step: u32,
    /// Fencing token of the call.
    pub token: u64,
}

/// The end of a trajectory is in the ledger; its acknowledgement may go out.
#[derive(Debug)]
pub struct TrajectoryFinished<'a> {
    pub of: &'a TrajectoryAncestry,
    /// Fencing token of the call.
    pub token: u64,
    pub end: EndKind,
    pub steps: u32,
}

/// A scorer gave a verdict. Emitted once the verdict is in the ledger.
#[derive(Debug)]
pub struct TrajectoryScored<'a> {
    pub of: &'a TrajectoryAncestry,
    pub end: EndKind,
    pub score: &'a Score,
    /// The reward in it.
    pub reward: f32,
    /// Time that scoring took.
    pub score_micros: u64,
}

/// A trajectory ended by a fault of the farm. Emitted once that is in the ledger.
#[derive(Debug)]
pub struct TrajectoryFailed<'a> {
    pub of: &'a TrajectoryAncestry,
    pub end: EndKind,
    /// Why, in a sentence.
    pub reason: &'a str,
    /// Whether its slot is retried.
    pub retried: bool,
}

/// A group closed; its row is final.
#[derive(Debug)]
pub struct GroupClosed<'a> {
    pub group: &'a GroupRecord,
}

/// A version of the weights is being evaluated.
#[derive(Debug)]
pub struct EvaluationBegun {
    pub version: i32,
    /// Number of problems to evaluate.
    pub problems: u64,
}

/// The weights of a version are broken on every worker that runs it.
#[derive(Debug)]
pub struct VersionWithdrawn<'a> {
    pub version: i32,
    /// What the workers found.
    pub reason: &'a str,
}

/// The evaluation of a version is over. `furrow report` computes intervals and pass@k.
#[derive(Debug)]
pub struct EvaluationEnded<'a> {
    pub version: i32,
    /// Number of problems planned.
    pub problems: u64,
    /// Number of problems sampled.
    pub drawn: u64,
    /// Trajectories with a reward.
    pub scored: u64,
    /// Trajectories that solved their task.
    pub succeeded: u64,
    /// Why it ended early, if it did.
    pub cut: Option<&'a str>,
}

/// A shard is in the manifest: readers see it from now on.
#[derive(Debug)]
pub struct ShardCommitted<'a> {
    pub shard_id: &'a Id<Shard>,
    /// The manifest commit that names it.
    pub version: u64,
    /// For each of its trajectories, the time from its end to the commit.
    pub delays: &'a [Duration],
    /// Bytes of its files.
    pub bytes: u64,
}

/// The oldest rows are no longer part of the data set. Their files leave the disk later.
#[derive(Debug)]
pub struct RowsExpired {
    /// The manifest commit that removes them.
    pub version: u64,
    /// The newest commit whose rows they are.
    pub up_to: u64,
    /// Rows of the table `trajectories`.
    pub trajectories: u64,
    /// Rows of the table `steps`.
    pub steps: u64,
    /// Files of all tables.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

/// Nothing is assigned for now.
#[derive(Debug)]
pub struct AdmissionPaused<'a> {
    pub reason: PauseReason,
    /// The numbers behind it, in a sentence.
    pub detail: &'a str,
}

/// This reason no longer blocks assignments.
#[derive(Debug)]
pub struct AdmissionResumed {
    pub reason: PauseReason,
}

/// The coordinator recovered from the spool what an earlier process had acknowledged and not
/// committed.
#[derive(Debug)]
pub struct SpoolRecovered {
    pub files: u64,
    /// Whole records in them.
    pub records: u64,
    /// Bytes of incomplete records at the ends, which were cut off.
    pub cut_bytes: u64,
}

impl RunStarted<'_> {
    pub fn emit(self) {
        info!(event = event::RUN_STARTED, run_id = %self.run_id, resumed = self.resumed, "run started");
    }
}

impl RunEnded<'_> {
    pub fn emit(self) {
        info!(
            event = event::RUN_ENDED,
            run_id = %self.run_id,
            complete = self.complete,
            scored = self.scored,
            failed = self.failed,
            "run ended"
        );
    }
}

impl WorkerRegistered<'_> {
    pub fn emit(self) {
        let kind = self.kind.value();
        let worker = cut(self.worker);
        info!(event = event::WORKER_REGISTERED, kind, worker, slots = self.slots, "worker registered");
        process_metrics().workers.at(self.kind).add(1);
    }
}

impl WorkerRefused<'_> {
    pub fn emit(self) {
        let kind = self.kind.value();
        let worker = cut(self.worker);
        warn!(event = event::WORKER_REFUSED, kind, worker, reason = self.reason, "worker refused");
        process_metrics().workers_refused.at(self.kind).add(1);
    }
}

impl WorkerLeft<'_> {
    pub fn emit(self) {
        let kind = self.kind.value();
        let worker = cut(self.worker);
        info!(event = event::WORKER_LEFT, kind, worker, "worker left");
        process_metrics().workers.at(self.kind).add(-1);
    }
}

impl WorkerLost<'_> {
    pub fn emit(self) {
        let kind = self.kind.value();
        let worker = cut(self.worker);
        warn!(event = event::WORKER_LOST, kind, worker, reason = self.reason, "worker lost");
        process_metrics().workers.at(self.kind).add(-1);
    }
}

impl AssignmentLeased<'_> {
    pub fn emit(self) {
        let worker = cut(self.worker);
        let task_id = cut(self.task_id);
        log_event!(
            info,
            ASSIGNMENT_LEASED,
            self.of,
            "assignment leased",
            token = self.token,
            worker,
            task_id
        );
        process_metrics().assignments.add(1);
    }
}

impl LeaseLost<'_> {
    pub fn emit(self) {
        log_event!(warn, LEASE_LOST, self.of, "lease lost", token = self.token, worker = cut(self.worker));
        process_metrics().leases_lost.add(1);
    }
}

impl CallFenced<'_> {
    pub fn emit(self) {
        let Self { of, token, call, why } = self;
        log_event!(warn, CALL_FENCED, of, "call without its lease refused", token, call, why);
        process_metrics().calls_fenced.add(1);
    }
}

impl CallRepeated<'_> {
    pub fn emit(self) {
        log_event!(debug, CALL_REPEATED, self.of, "repeated call acknowledged again", call = self.call);
        process_metrics().calls_repeated.add(1);
    }
}

impl StepRecorded<'_> {
    pub fn emit(self) {
        log_event!(debug, STEP_RECORDED, self.of, "step recorded", step = self.step, token = self.token);
        process_metrics().steps.add(1);
    }
}

impl TrajectoryFinished<'_> {
    /// Logs. The counters change when it is scored or failed.
    pub fn emit(self) {
        let end = self.end.as_str();
        let steps = self.steps;
        let token = self.token;
        log_event!(debug, TRAJECTORY_FINISHED, self.of, "trajectory finished", end, steps, token);
    }
}

impl TrajectoryScored<'_> {
    pub fn emit(self) {
        otel::trace(&self);
        let end = self.end.as_str();
        let scorer = self.score.scorer.as_str();
        let reward = f64::from(self.reward);
        let success = self.score.success;
        log_event!(info, TRAJECTORY_SCORED, self.of, "trajectory scored", reward, success, end, scorer);
        let figures = process_metrics();
        figures.trajectories.add(1);
        figures.scored.add(1);
        figures.ends.at(self.end).add(1);
        figures.successes.add(u64::from(success == Some(true)));
        figures.reward.record(reward);
        figures.score_micros.record(self.score_micros);
    }
}

impl TrajectoryFailed<'_> {
    pub fn emit(self) {
        otel::trace(&self);
        let end = self.end.as_str();
        let reason = cut(self.reason);
        let retried = self.retried;
        log_event!(warn, TRAJECTORY_FAILED, self.of, "trajectory failed", end, retried, reason);
        let figures = process_metrics();
        figures.trajectories.add(1);
        figures.failed.add(1);
        figures.ends.at(self.end).add(1);
        figures.retries.add(retried.into());
    }
}

impl GroupClosed<'_> {
    pub fn emit(self) {
        let GroupRecord { run_id, group_id, planned, valid, rewards, .. } = self.group;
        let mean = rewards.map(|r| r.mean);
        let std = rewards.map(|r| r.std);
        info!(event = event::GROUP_CLOSED, %run_id, %group_id, planned, valid, mean, std, "group closed");
        let figures = process_metrics();
        figures.groups.add(1);
        figures.groups_short.add((valid < planned).into());
        figures.groups_zero_variance.add(rewards.is_some_and(|r| r.zero_variance).into());
    }
}

impl EvaluationBegun {
    pub fn emit(self) {
        let Self { version, problems } = self;
        info!(event = event::EVALUATION_BEGUN, version, problems, "evaluation of a version started");
    }
}

impl VersionWithdrawn<'_> {
    pub fn emit(self) {
        let Self { version, reason } = self;
        error!(event = event::VERSION_WITHDRAWN, version, reason, "version withdrawn");
        process_metrics().versions_withdrawn.add(1);
    }
}

impl EvaluationEnded<'_> {
    pub fn emit(self) {
        let Self { version, problems, drawn, scored, succeeded, cut } = self;
        let success = (scored > 0).then(|| succeeded as f64 / scored as f64);
        let event = event::EVALUATION_ENDED;
        match cut {
            None => info!(
                event,
                version, problems, scored, succeeded, success, "evaluation of a version complete"
            ),
            Some(why) => {
                warn!(
                    event,
                    version,
                    problems,
                    drawn,
                    scored,
                    succeeded,
                    success,
                    why,
                    "evaluation of a version ended early"
                );
            }
        }
        let figures = process_metrics();
        figures.evaluations.add(1);
        figures.evaluations_cut.add(cut.is_some().into());
        figures.evaluated_version.set(version.into());
        figures.evaluated_scored.set(scored as i64);
        figures.evaluated_successes.set(succeeded as i64);
    }
}

impl ShardCommitted<'_> {
    pub fn emit(self) {
        let slowest_micros = self.delays.iter().max().map(|delay| micros(*delay));
        let trajectories = self.delays.len() as u64;
        info!(
            event = event::SHARD_COMMITTED,
            shard_id = %self.shard_id,
            version = self.version,
            trajectories,
            bytes = self.bytes,
            slowest_micros,
            "shard committed"
        );
        let figures = process_metrics();
        figures.shards.add(1);
        figures.committed.add(trajectories);
        figures.committed_bytes.add(self.bytes);
        self.delays.iter().for_each(|delay| figures.commit_micros.record(micros(*delay)));
    }
}

impl RowsExpired {
    pub fn emit(self) {
        info!(
            event = event::ROWS_EXPIRED,
            version = self.version,
            up_to = self.up_to,
            trajectories = self.trajectories,
            steps = self.steps,
            files = self.files,
            bytes = self.bytes,
            "the oldest rows expired"
        );
        let figures = process_metrics();
        figures.expired.add(self.trajectories);
        figures.expired_bytes.add(self.bytes);
    }
}

impl AdmissionPaused<'_> {
    pub fn emit(self) {
        let reason = self.reason.value();
        warn!(event = event::ADMISSION_PAUSED, reason, detail = self.detail, "assignments paused");
        process_metrics().paused.at(self.reason).set(1);
    }
}

impl AdmissionResumed {
    pub fn emit(self) {
        info!(event = event::ADMISSION_RESUMED, reason = self.reason.value(), "assignments resumed");
        process_metrics().paused.at(self.reason).set(0);
    }
}

impl SpoolRecovered {
    pub fn emit(self) {
        let Self { files, records, cut_bytes } = self;
        info!(event = event::SPOOL_RECOVERED, files, records, cut_bytes, "spool recovered");
        process_metrics().spool_recovered.add(files);
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}
