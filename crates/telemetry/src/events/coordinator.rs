//! What the coordinator says.

use std::time::Duration;

use furrow_rollout::{Ancestry, End, GroupRecord, Id, Run, Score, Shard};
use tracing::{info, warn};

use super::{cut, say};
use crate::labels::{Label, PauseReason, WorkerKind};
use crate::names::{event, figures};
use crate::otel;

/// The coordinator begins to fill a run directory, or goes on filling it.
#[derive(Debug)]
pub struct RunStarted<'a> {
    /// The run.
    pub run_id: &'a Id<Run>,
    /// Whether an earlier process began it.
    pub resumed: bool,
}

/// The coordinator is done: everything planned is in the data set, or the job was stopped.
#[derive(Debug)]
pub struct RunEnded<'a> {
    /// The run.
    pub run_id: &'a Id<Run>,
    /// Whether everything planned was done.
    pub complete: bool,
    /// Scored trajectories in the data set.
    pub scored: u64,
    /// Failed ones.
    pub failed: u64,
}

/// A worker shook hands and may be given work.
#[derive(Debug)]
pub struct WorkerRegistered<'a> {
    /// Its kind.
    pub kind: WorkerKind,
    /// Its id.
    pub worker: &'a str,
    /// Trajectories or sessions it can hold at once.
    pub slots: u32,
}

/// A worker was turned away: another protocol version, a bad id.
#[derive(Debug)]
pub struct WorkerRefused<'a> {
    /// Its kind.
    pub kind: WorkerKind,
    /// What it calls itself.
    pub worker: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// A registered worker said good-bye.
#[derive(Debug)]
pub struct WorkerLeft<'a> {
    /// Its kind.
    pub kind: WorkerKind,
    /// Its id.
    pub worker: &'a str,
}

/// A registered worker went silent.
#[derive(Debug)]
pub struct WorkerLost<'a> {
    /// Its kind.
    pub kind: WorkerKind,
    /// Its id.
    pub worker: &'a str,
    /// How that was noticed.
    pub reason: &'a str,
}

/// A trajectory was lent to an environment worker.
#[derive(Debug)]
pub struct AssignmentLeased<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// Fencing token of this lease.
    pub token: u64,
    /// Who has it now.
    pub worker: &'a str,
    /// Its task.
    pub task_id: &'a str,
}

/// A lease ran out; its token is stale from now on.
#[derive(Debug)]
pub struct LeaseLost<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// The token that is stale now.
    pub token: u64,
    /// Who had it.
    pub worker: &'a str,
}

/// A call was refused because its token is stale.
#[derive(Debug)]
pub struct CallFenced<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// The token it carried.
    pub token: u64,
    /// What was called, such as `record_step`.
    pub call: &'static str,
}

/// A call repeated what was durable and was acknowledged again.
#[derive(Debug)]
pub struct CallRepeated<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// What was called.
    pub call: &'static str,
}

/// A step is spooled and synced; its acknowledgement may go out.
#[derive(Debug)]
pub struct StepRecorded<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// The step.
    pub step: u32,
    /// Token it came under.
    pub token: u64,
}

/// The end of a trajectory is in the ledger; its acknowledgement may go out.
#[derive(Debug)]
pub struct TrajectoryFinished<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// Token it came under.
    pub token: u64,
    /// How it ended.
    pub end: End,
    /// Its steps.
    pub steps: u32,
}

/// A scorer came to a verdict. Emitted once the verdict is in the ledger.
#[derive(Debug)]
pub struct TrajectoryScored<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// How it ended.
    pub end: End,
    /// The verdict.
    pub score: &'a Score,
    /// The reward in it.
    pub reward: f32,
    /// Time it took to come to it.
    pub score_micros: u64,
}

/// A trajectory ended by the farm's fault. Emitted once that is in the ledger.
#[derive(Debug)]
pub struct TrajectoryFailed<'a> {
    /// The trajectory.
    pub of: &'a Ancestry,
    /// How it ended.
    pub end: End,
    /// Why, in a sentence.
    pub reason: &'a str,
    /// Whether its slot is tried again.
    pub retried: bool,
}

/// A group closed; its row is final.
#[derive(Debug)]
pub struct GroupClosed<'a> {
    /// Its row.
    pub group: &'a GroupRecord,
}

/// A version of the weights is being evaluated.
#[derive(Debug)]
pub struct EvaluationBegun {
    /// Which.
    pub version: i32,
    /// Problems of it.
    pub problems: u64,
}

/// The evaluation of a version is over. Its intervals and pass@k are `furrow report`'s.
#[derive(Debug)]
pub struct EvaluationEnded<'a> {
    /// Which.
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
    pub cut: Option<&'a str>,
}

/// A shard is named in the manifest: readers see it from now on.
#[derive(Debug)]
pub struct ShardPublished<'a> {
    /// The shard.
    pub shard_id: &'a Id<Shard>,
    /// The manifest commit that names it.
    pub version: u64,
    /// For each of its trajectories the time from its end to now.
    pub delays: &'a [Duration],
    /// Bytes of its files.
    pub bytes: u64,
}

/// Nothing is assigned for now.
#[derive(Debug)]
pub struct AdmissionPaused<'a> {
    /// Why.
    pub reason: PauseReason,
    /// The numbers behind it, in a sentence.
    pub detail: &'a str,
}

/// This reason no longer holds assigning back.
#[derive(Debug)]
pub struct AdmissionResumed {
    /// Which.
    pub reason: PauseReason,
}

/// What an earlier process had acknowledged and not published was taken over from its spool.
#[derive(Debug)]
pub struct SpoolRecovered {
    /// Files.
    pub files: u64,
    /// Whole records in them.
    pub records: u64,
    /// Bytes of torn tails that were cut.
    pub cut_bytes: u64,
}

impl RunStarted<'_> {
    /// Logs.
    pub fn emit(self) {
        info!(event = event::RUN_STARTED, run_id = %self.run_id, resumed = self.resumed, "run started");
    }
}

impl RunEnded<'_> {
    /// Logs.
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
    /// Logs and counts.
    pub fn emit(self) {
        let (kind, worker) = (self.kind.word(), cut(self.worker));
        info!(event = event::WORKER_REGISTERED, kind, worker, slots = self.slots, "worker registered");
        figures().workers.at(self.kind).add(1);
    }
}

impl WorkerRefused<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (kind, worker) = (self.kind.word(), cut(self.worker));
        warn!(event = event::WORKER_REFUSED, kind, worker, reason = self.reason, "worker refused");
        figures().workers_refused.at(self.kind).add(1);
    }
}

impl WorkerLeft<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (kind, worker) = (self.kind.word(), cut(self.worker));
        info!(event = event::WORKER_LEFT, kind, worker, "worker left");
        figures().workers.at(self.kind).add(-1);
    }
}

impl WorkerLost<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (kind, worker) = (self.kind.word(), cut(self.worker));
        warn!(event = event::WORKER_LOST, kind, worker, reason = self.reason, "worker lost");
        figures().workers.at(self.kind).add(-1);
    }
}

impl AssignmentLeased<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (worker, task_id) = (cut(self.worker), cut(self.task_id));
        say!(info, ASSIGNMENT_LEASED, self.of, "assignment leased", token = self.token, worker, task_id);
        figures().assignments.add(1);
    }
}

impl LeaseLost<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(warn, LEASE_LOST, self.of, "lease lost", token = self.token, worker = cut(self.worker));
        figures().leases_lost.add(1);
    }
}

impl CallFenced<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(warn, CALL_FENCED, self.of, "stale token refused", token = self.token, call = self.call);
        figures().calls_fenced.add(1);
    }
}

impl CallRepeated<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(debug, CALL_REPEATED, self.of, "repeated call acknowledged again", call = self.call);
        figures().calls_repeated.add(1);
    }
}

impl StepRecorded<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        say!(debug, STEP_RECORDED, self.of, "step recorded", step = self.step, token = self.token);
        figures().steps.add(1);
    }
}

impl TrajectoryFinished<'_> {
    /// Logs. It is counted when it is scored or failed.
    pub fn emit(self) {
        let (end, steps, token) = (self.end.as_str(), self.steps, self.token);
        say!(debug, TRAJECTORY_FINISHED, self.of, "trajectory finished", end, steps, token);
    }
}

impl TrajectoryScored<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        otel::trace(&self);
        let (end, scorer) = (self.end.as_str(), self.score.scorer.as_str());
        let (reward, success) = (f64::from(self.reward), self.score.success);
        say!(info, TRAJECTORY_SCORED, self.of, "trajectory scored", reward, success, end, scorer);
        let figures = figures();
        figures.trajectories.add(1);
        figures.scored.add(1);
        figures.ends.at(self.end).add(1);
        figures.successes.add(u64::from(success == Some(true)));
        figures.reward.record(reward);
        figures.score_micros.record(self.score_micros);
    }
}

impl TrajectoryFailed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        otel::trace(&self);
        let (end, reason, retried) = (self.end.as_str(), cut(self.reason), self.retried);
        say!(warn, TRAJECTORY_FAILED, self.of, "trajectory failed", end, retried, reason);
        let figures = figures();
        figures.trajectories.add(1);
        figures.failed.add(1);
        figures.ends.at(self.end).add(1);
        figures.retries.add(retried.into());
    }
}

impl GroupClosed<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let GroupRecord { run_id, group_id, planned, valid, rewards, .. } = self.group;
        let (mean, std) = (rewards.map(|r| r.mean), rewards.map(|r| r.std));
        info!(event = event::GROUP_CLOSED, %run_id, %group_id, planned, valid, mean, std, "group closed");
        let figures = figures();
        figures.groups.add(1);
        figures.groups_short.add((valid < planned).into());
        figures.groups_zero_variance.add(rewards.is_some_and(|r| r.zero_variance).into());
    }
}

impl EvaluationBegun {
    /// Logs.
    pub fn emit(self) {
        let Self { version, problems } = self;
        info!(event = event::EVALUATION_BEGUN, version, problems, "a version is being evaluated");
    }
}

impl EvaluationEnded<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { version, problems, drawn, scored, succeeded, cut } = self;
        let success = (scored > 0).then(|| succeeded as f64 / scored as f64);
        let event = event::EVALUATION_ENDED;
        match cut {
            None => info!(event, version, problems, scored, succeeded, success, "a version is evaluated"),
            Some(why) => {
                warn!(
                    event,
                    version, problems, drawn, scored, succeeded, success, why, "an evaluation was cut"
                );
            }
        }
        let figures = figures();
        figures.evaluations.add(1);
        figures.evaluations_cut.add(cut.is_some().into());
        figures.evaluated_version.set(version.into());
        figures.evaluated_scored.set(scored as i64);
        figures.evaluated_successes.set(succeeded as i64);
    }
}

impl ShardPublished<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let slowest_micros = self.delays.iter().max().map(|delay| micros(*delay));
        let trajectories = self.delays.len() as u64;
        info!(
            event = event::SHARD_PUBLISHED,
            shard_id = %self.shard_id,
            version = self.version,
            trajectories,
            bytes = self.bytes,
            slowest_micros,
            "shard published"
        );
        let figures = figures();
        figures.shards.add(1);
        figures.published.add(trajectories);
        figures.published_bytes.add(self.bytes);
        self.delays.iter().for_each(|delay| figures.publish_micros.record(micros(*delay)));
    }
}

impl AdmissionPaused<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let reason = self.reason.word();
        warn!(event = event::ADMISSION_PAUSED, reason, detail = self.detail, "nothing is assigned for now");
        figures().paused.at(self.reason).set(1);
    }
}

impl AdmissionResumed {
    /// Logs and counts.
    pub fn emit(self) {
        info!(event = event::ADMISSION_RESUMED, reason = self.reason.word(), "assigning goes on");
        figures().paused.at(self.reason).set(0);
    }
}

impl SpoolRecovered {
    /// Logs and counts.
    pub fn emit(self) {
        let Self { files, records, cut_bytes } = self;
        info!(event = event::SPOOL_RECOVERED, files, records, cut_bytes, "spool recovered");
        figures().spool_recovered.add(files);
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}
