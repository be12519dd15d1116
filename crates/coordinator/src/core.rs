//! Decides: (state, event, time) → mutations to record and effects to perform after. It uses no
//! clock, no I/O and no randomness, so any decision can be reproduced exactly.
//!
//! Randomness enters only through [`GroupPlan::draw`], a function of the job's seed and the group's
//! number. Iteration is always in order of ids: no hash map is ever iterated.

mod answer;
mod discards;
mod ending;
mod evaluation;
mod leasing;
mod notice;
mod restore;
mod stopping;
mod weights;
mod workers;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod simulation;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use furrow_rollout::{
    EndKind, EnvWorker, GroupRecord, Id, PolicyWorker, Run, Shard, Split, Trajectory, TrajectoryAncestry,
};

use crate::assign::{AdmissionPacing, PolicyOffer, WorkerCapacity};
use crate::groups::OpenGroup;
use crate::lease::{Lease, LeaseTable};
use crate::ledger::{Mutation, TaskDraw, TaskTally, TimedScore, TrajectoryEnd, TrajectoryStart};
use crate::versions::VersionTable;

pub use answer::{
    CallRefusal, CallResponse, HeartbeatStatus, LeaseGrant, LeasedTrajectory, PublicationRefusal,
    RunProgress, WorkerStanding,
};
pub use discards::DiscardReport;
pub use evaluation::{EvaluationResult, EvaluationSchedule};
pub use notice::CoreNotice;
pub use restore::SpoolProgress;
pub use stopping::JobOutcome;
pub use weights::{WeightsPublication, WeightsReport, WeightsStanding, WorkerVersion};

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
        /// Answered with [`CallResponse::Leased`], at the latest after `wait_millis`.
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
        /// The trajectories, each with its token.
        leases: Vec<(Id<Trajectory>, u64)>,
    },
    /// A step arrived; it may be spooled if its sender still holds the lease.
    StepArrived {
        call: CallId,
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
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
        /// Answered with [`CallResponse::Go`], or with [`CallResponse::Finished`] if this same
        /// ending was acknowledged before.
        call: CallId,
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
        /// SHA-256 of the encoded ending.
        digest: [u8; 32],
    },
    /// An ending is spooled and synced.
    EndingKept {
        /// Answered with [`CallResponse::Finished`] once it is in the ledger.
        call: CallId,
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
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
        groups: Vec<Id<furrow_rollout::Group>>,
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
        /// Answered with [`CallResponse::Draining`], if there is a caller.
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

/// A worker's id where its role is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerId {
    /// As an environment worker.
    pub env: Id<EnvWorker>,
    /// As a policy worker.
    pub policy: Id<PolicyWorker>,
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

/// The time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTime {
    /// The coordinator's monotonic clock, in milliseconds; leases use it.
    pub millis: u64,
    /// Microseconds since the Unix epoch; recorded, never used for decisions.
    pub wall_micros: i64,
}

/// The result of an event.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// Performed at once: these effects depend on nothing that is not durable already.
    pub at_once: Vec<Effect>,
    /// Recorded in one transaction, after the mutations of all earlier decisions.
    pub commit: Vec<Mutation>,
    /// Performed once this and all earlier decisions are durable.
    pub then: Vec<Effect>,
}

/// An action to perform.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A call is answered. Each call is answered once.
    Reply { call: CallId, answer: CallResponse },
    /// A finished trajectory's evidence goes to its scorer; [`Event::Scored`] comes back.
    Score {
        trajectory: Id<Trajectory>,
        /// Its task and seed.
        draw: Arc<TaskDraw>,
        /// Its slot in the group.
        sample_index: u32,
    },
    /// An ended trajectory's rows go to the data set; [`Event::ShardCommitted`] comes back.
    CommitTrajectory(Box<EndedTrajectory>),
    /// A closed group's row goes to the data set, after those of its trajectories;
    /// [`Event::ShardCommitted`] comes back.
    CommitGroup { record: Box<GroupRecord> },
    /// Nothing more comes for now: open shards close without waiting for more.
    CloseShards,
    /// A notice for logs and metrics.
    Notify(CoreNotice),
    /// The job is over.
    Over(JobOutcome),
}

/// An ended trajectory on its way to the data set.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTrajectory {
    /// Its run, group, slot and attempt.
    pub of: TrajectoryAncestry,
    pub start: TrajectoryStart,
    pub ended: TrajectoryEnd,
    /// The scorer's verdict; `None` when it failed.
    pub verdict: Option<TimedScore>,
    /// Its task and seed.
    pub draw: Arc<TaskDraw>,
}

/// Settings that affect decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreRules {
    /// Attempts at one slot before it is given up.
    pub attempts_max: u32,
    /// Share of failed attempts beyond which the job stops.
    pub failure_budget: f64,
    /// Failed attempts that are allowed before the share applies.
    pub failures_free: u64,
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

/// Supplies the task of each group. The answers do not depend on the order of the calls.
pub trait GroupPlan: Send + Sync {
    /// Groups in the whole job.
    fn groups(&self) -> u64;

    /// Slots of each group, spares included.
    fn group_size(&self) -> u32;

    /// Scored slots with which a group is complete; its other trajectories are then cancelled.
    fn group_needs(&self) -> u32 {
        self.group_size()
    }

    /// The draw of the `index`th group, given the success measured so far.
    fn draw(&self, index: u64, tallies: &TaskTallies) -> SampledTask;

    /// How the job is evaluated while it runs, if it is.
    fn schedule(&self) -> Option<EvaluationSchedule> {
        None
    }

    /// The `index`th problem of every evaluation.
    fn problem(&self, index: u64) -> SampledTask {
        self.draw(index, &TaskTallies::new())
    }
}

/// Measured success of each task, by suite and task id.
pub type TaskTallies = BTreeMap<(String, String), TaskTally>;

/// The task of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledTask {
    /// Suite of the task.
    pub suite: String,
    pub task_id: String,
    pub split: Split,
    /// The seed all slots share.
    pub seed: u64,
    /// The task's line in its file.
    pub task_json: String,
    /// The probability with which it was drawn, where it depends on measured success.
    pub chance: Option<f64>,
}

/// The deciding part of the coordinator. Its size follows what is open or uncommitted, not what is
/// done.
pub struct Core {
    rules: CoreRules,
    plan: Arc<dyn GroupPlan>,
    run_id: Id<Run>,
    epoch: u64,
    next_token: u64,
    next_group: u64,
    /// Draws of the plan; groups of evaluations take group numbers and no draws.
    next_draw: u64,
    groups: BTreeMap<u64, OpenGroup>,
    leases: LeaseTable,
    scoring: BTreeMap<Id<Trajectory>, PendingScore>,
    /// Ended and not yet in the data set.
    uncommitted: BTreeMap<Id<Trajectory>, UncommittedTrajectory>,
    env_workers: BTreeMap<Id<EnvWorker>, WorkerEntry<u32>>,
    policy_workers: BTreeMap<Id<PolicyWorker>, WorkerEntry<PolicyOffer>>,
    /// Newest version any policy worker has had.
    newest_version: Option<i32>,
    versions: VersionTable,
    /// Policy workers that registered after a version was taken, and the version they must reach
    /// before any trajectory is leased to them.
    behind: BTreeMap<Id<PolicyWorker>, i32>,
    /// The last version each policy worker could not run, and why.
    refusals: BTreeMap<Id<PolicyWorker>, (i32, String)>,
    /// Policy workers whose weights differ from those of their version, and how.
    strangers: BTreeMap<Id<PolicyWorker>, String>,
    /// Until this time a missing policy worker is expected to return: it has not yet noticed that
    /// the coordinator restarted.
    settled_millis: u64,
    waiting: VecDeque<PendingRequest>,
    /// Time of the last tick. A coordinator that was suspended in between received nothing, so no
    /// worker is late.
    ticked_millis: u64,
    disk_low: Option<String>,
    discards: discards::DiscardCounts,
    reported_pause: Option<furrow_telemetry::PauseReason>,
    stopping: Option<stopping::ShutdownState>,
    shards_closing: bool,
    over: bool,
    tally: RunTally,
    tallies: TaskTallies,
    evaluation: Option<evaluation::OpenEvaluation>,
    /// The last version whose evaluation began.
    evaluated: Option<i32>,
}

#[derive(Debug, Clone, PartialEq)]
struct WorkerEntry<T> {
    offer: T,
    last_contact_millis: u64,
    health: HeartbeatStatus,
}

/// A request for work that stays open.
#[derive(Debug, Clone, PartialEq)]
struct PendingRequest {
    call: CallId,
    worker: Id<EnvWorker>,
    slots: u32,
    until_millis: u64,
}

/// An ended trajectory on its way to the data set.
#[derive(Debug, Clone, PartialEq)]
struct UncommittedTrajectory {
    since_millis: u64,
    outgoing: Box<EndedTrajectory>,
}

/// A finished trajectory that waits for its verdict.
#[derive(Debug, Clone, PartialEq)]
struct PendingScore {
    start: TrajectoryStart,
    of: TrajectoryAncestry,
    group: u64,
    ended: TrajectoryEnd,
    evidence_sha256: [u8; 32],
    attempts: u32,
    /// When it goes to the scorer again; `None` while a scorer has it.
    retry_at_millis: Option<u64>,
}

/// Totals over the whole run.
#[derive(Debug, Clone, PartialEq, Default)]
struct RunTally {
    scored: u64,
    failed: BTreeMap<EndKind, u64>,
    committed: u64,
    groups_closed: u64,
    reward_sum: f64,
    successes: u64,
    /// Trajectories outside of evaluations with a known success.
    training_success_known: u64,
    training_successes: u64,
    steps: u64,
    /// Those of the scored trajectories that belong to evaluations.
    evaluated: u64,
}

/// A caller that acts for a trajectory.
#[derive(Debug, Clone, Copy)]
struct LeaseClaim<'a> {
    call: CallId,
    trajectory: &'a Id<Trajectory>,
    token: u64,
}

/// An event being handled.
#[derive(Debug)]
struct EventContext {
    now: EventTime,
    decision: Decision,
}

impl Core {
    /// Decides what an event leads to.
    pub fn apply(&mut self, event: Event, now: EventTime) -> Decision {
        let mut turn = EventContext::at(now);
        let matters = event.affects_leasing();
        self.handle_event(event, &mut turn);
        if matters {
            self.begin_evaluation(&mut turn);
            self.serve(&mut turn);
            self.report_admission(&mut turn);
            self.finish_if_done(&mut turn);
        }
        turn.decision
    }

    /// Whether no worker is registered.
    pub fn is_alone(&self) -> bool {
        self.env_workers.is_empty() && self.policy_workers.is_empty()
    }

    fn running(&self) -> Vec<LeasedTrajectory> {
        let running = |lease: &Lease| {
            let draw = self.groups.get(&lease.group)?.draw();
            Some(LeasedTrajectory {
                of: lease.of.clone(),
                draw: draw.clone(),
                env_worker: lease.start.env_worker.clone(),
                policy_worker: lease.policy.worker.clone(),
                steps: lease.steps,
                started_at_micros: lease.start.at_micros,
            })
        };
        self.leases.iter().filter_map(running).collect()
    }

    /// How far the job is.
    pub fn progress(&self) -> RunProgress {
        let tally = &self.tally;
        RunProgress {
            run_id: self.run_id.clone(),
            groups_planned: self.plan.groups(),
            groups_closed: tally.groups_closed,
            assigned: self.leases.len() as u64,
            scored: tally.scored,
            failed: tally.failed.clone(),
            committed: tally.committed,
            reward_sum: tally.reward_sum,
            successes: tally.successes,
            training_success_known: tally.training_success_known,
            training_successes: tally.training_successes,
            scoring: self.scoring.len() as u64,
            workers: self.worker_standings(),
            steps: tally.steps,
            discarded: self.discards.total(),
            env_workers: self.env_workers.len() as u64,
            policy_workers: self.policy_workers.len() as u64,
            admission: self.pause_reason().map_or_else(|| "open".to_owned(), |(_, detail)| detail),
            run_over: self.over,
        }
    }

    fn handle_event(&mut self, event: Event, turn: &mut EventContext) {
        match event {
            Event::RegisterEnv { call, worker, sessions_max } => {
                self.register_env(call, &worker, sessions_max, turn);
            }
            Event::RegisterPolicy { call, worker, offer, run } => {
                self.register_policy(call, &worker, offer, &run, turn);
            }
            Event::Heartbeat { call, worker, run, health } => {
                self.heartbeat(call, &worker, &run, health, turn);
            }
            Event::Publish { call, publication } => self.publish_weights(call, publication, turn),
            Event::Discarded { call, report } => self.discard(call, report, turn),
            Event::Weights { call, version } => {
                let answer = match self.standing_of(version) {
                    Some(standing) => CallResponse::Weights(Box::new(standing)),
                    None => CallResponse::Refused(CallRefusal::NoVersion { version }),
                };
                turn.reply_when_durable(call, answer);
            }
            Event::Leave { call, worker } => self.leave(call, &worker, turn),
            Event::Lease { call, worker, slots, wait_millis } => {
                let until_millis = turn.now.millis + wait_millis.min(self.rules.lease_wait_millis);
                self.queue_request(PendingRequest { call, worker, slots, until_millis }, turn);
            }
            Event::Renew { call, worker, leases } => self.renew(call, &worker, &leases, turn),
            Event::StepArrived { call, trajectory, token } => {
                self.check_step(LeaseClaim { call, trajectory: &trajectory, token }, turn);
            }
            Event::StepKept { trajectory, step, policy_versions } => {
                self.keep_step(&trajectory, step, policy_versions);
            }
            Event::EndingArrived { call, trajectory, token, digest } => {
                self.check_ending(LeaseClaim { call, trajectory: &trajectory, token }, digest, turn);
            }
            Event::EndingKept { call, trajectory, token, ending } => {
                self.finish(LeaseClaim { call, trajectory: &trajectory, token }, ending, turn);
            }
            Event::Scored { trajectory, verdict } => self.record_score(&trajectory, verdict, turn),
            Event::RecordLost { trajectory, steps, why } => {
                self.lose_record(&trajectory, steps, &why, turn);
            }
            Event::ShardCommitted { shard, trajectories, groups } => {
                self.mark_committed(shard, &trajectories, &groups, turn);
            }
            Event::Undelivered { trajectories } => self.reclaim(&trajectories, turn),
            Event::HungUp { calls } => self.forget(&calls),
            Event::Disk { low } => self.disk_low = low,
            Event::Progress { call } => {
                let answer = CallResponse::Progress(Box::new(self.progress()));
                turn.at_once(Effect::Reply { call, answer });
            }
            Event::Running { call } => {
                let answer = CallResponse::Running(self.running());
                turn.at_once(Effect::Reply { call, answer });
            }
            Event::Drain { call } => self.drain(call, turn),
            Event::Stop { call } => self.stop_at_once(call, turn),
            Event::Tick => self.tick(turn),
        }
    }

    fn tick(&mut self, turn: &mut EventContext) {
        self.extend_after_suspension(turn.now);
        self.lapse_leases(turn);
        self.lapse_workers(turn);
        self.reassign_policy_workers(turn.now);
        self.retry_scoring(turn);
        self.cut_overdue_evaluation(turn);
        self.end_grace(turn);
    }

    /// Policy workers and how many sessions each has.
    fn worker_capacity(&self) -> WorkerCapacity<'_> {
        let ready = self.policy_workers.iter().filter(|(id, _)| self.may_serve(id));
        let workers = ready.map(|(id, entry)| (id, &entry.offer));
        WorkerCapacity::new(workers, self.leases.iter().map(|lease| &lease.policy.worker))
    }

    fn group(&mut self, index: u64) -> &mut OpenGroup {
        self.groups.get_mut(&index).expect("a group stays until its last trajectory is committed")
    }
}

impl Event {
    /// Whether the event may change what can be leased. The calls of a step do not, and they
    /// outnumber the others by thousands.
    fn affects_leasing(&self) -> bool {
        !matches!(
            self,
            Event::StepArrived { .. }
                | Event::StepKept { .. }
                | Event::EndingArrived { .. }
                | Event::Renew { .. }
                | Event::Progress { .. }
                | Event::Running { .. }
        )
    }
}

impl EventContext {
    fn at(now: EventTime) -> Self {
        Self { now, decision: Decision::default() }
    }

    fn at_once(&mut self, effect: Effect) {
        self.decision.at_once.push(effect);
    }

    fn commit(&mut self, mutation: Mutation) {
        self.decision.commit.push(mutation);
    }

    fn then(&mut self, effect: Effect) {
        self.decision.then.push(effect);
    }

    fn reply(&mut self, call: CallId, answer: CallResponse) {
        self.at_once(Effect::Reply { call, answer });
    }

    fn reply_when_durable(&mut self, call: CallId, answer: CallResponse) {
        self.then(Effect::Reply { call, answer });
    }

    fn notify(&mut self, notice: CoreNotice) {
        self.then(Effect::Notify(notice));
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
