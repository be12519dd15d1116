//! Decides: (state, event, now) → what must be remembered and what is done after. No clock, no I/O, no chance, so that whatever
//! happened can be decided again, exactly.
//!
//! Chance enters once, through [`Plan::draw`], a function of the job's seed and the group's number. The order of everything is the
//! order of ids: no hash map is ever walked.

mod answer;
mod discards;
mod ending;
mod evaluation;
mod lending;
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
    Ancestry, End, EnvWorker, GroupRecord, Id, PolicyWorker, Run, Shard, Split, Trajectory,
};

use crate::assign::{Pacing, PolicyOffer, Rooms};
use crate::groups::Group;
use crate::lease::{Lease, Leases};
use crate::ledger::{Draw, Ended, Mutation, Start, TaskTally, Verdict};
use crate::versions::Versions;

pub use answer::{Answer, Grant, Health, Progress, Refused, Running, WorkerStanding};
pub use discards::Discarded;
pub use evaluation::{Evaluated, Schedule};
pub use notice::Notice;
pub use restore::Spooled;
pub use stopping::Over;
pub use weights::{Follower, Publication, Run as WeightsRun, WeightsStanding};

/// Everything that can wake the coordinator. To learn what it reacts to, read this.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An environment worker shakes hands.
    RegisterEnv {
        /// Answered with [`Answer::Registered`].
        call: Call,
        /// Its id.
        worker: Id<EnvWorker>,
        /// Trajectories it acts at once.
        sessions_max: u32,
    },
    /// A policy worker shakes hands.
    RegisterPolicy {
        /// Answered with [`Answer::Registered`].
        call: Call,
        /// Its id.
        worker: Id<PolicyWorker>,
        /// What it has to give.
        offer: PolicyOffer,
        /// What it says of its weights.
        run: WeightsRun,
    },
    /// A worker says that it is there.
    Heartbeat {
        /// Answered with [`Answer::Heard`].
        call: Call,
        /// Its id.
        worker: WorkerId,
        /// What a policy worker says of its weights.
        run: WeightsRun,
        /// How it is.
        health: Health,
    },
    /// Somebody publishes weights.
    Publish {
        /// Answered with [`Answer::VersionProposed`].
        call: Call,
        /// Which.
        publication: Publication,
    },
    /// A trainer says how many trajectories it discarded.
    Discarded {
        /// Answered with [`Answer::Discarded`].
        call: Call,
        /// Its cumulative count.
        report: Discarded,
    },
    /// Somebody asks how far a version is.
    Weights {
        /// Answered with [`Answer::Weights`].
        call: Call,
        /// Which; 0: the newest.
        version: i32,
    },
    /// A worker says goodbye; what it holds is handed back.
    Leave {
        /// Answered with [`Answer::Left`].
        call: Call,
        /// Its id.
        worker: WorkerId,
    },
    /// An environment worker asks for work.
    Lease {
        /// Answered with [`Answer::Leased`], at the latest after `wait_millis`.
        call: Call,
        /// Who asks.
        worker: Id<EnvWorker>,
        /// How many trajectories it can take.
        slots: u32,
        /// How long it would wait.
        wait_millis: u64,
    },
    /// An environment worker still holds these.
    Renew {
        /// Answered with [`Answer::Renewed`].
        call: Call,
        /// Who holds them.
        worker: Id<EnvWorker>,
        /// What, under which token.
        held: Vec<(Id<Trajectory>, u64)>,
    },
    /// A step arrived and may be spooled if its sender still holds the trajectory.
    StepArrived {
        /// Answered with [`Answer::Go`].
        call: Call,
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
    },
    /// A step is spooled and synced.
    StepKept {
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// Its number.
        step: u32,
        /// Oldest and newest policy version among its tokens.
        policy_versions: Option<(i32, i32)>,
    },
    /// An ending arrived and may be spooled if its sender still holds the trajectory.
    EndingArrived {
        /// Answered with [`Answer::Go`], or with [`Answer::Finished`] if this very ending was acknowledged before.
        call: Call,
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
        /// SHA-256 of the encoded ending.
        digest: [u8; 32],
    },
    /// An ending is spooled and synced.
    EndingKept {
        /// Answered with [`Answer::Finished`] once it is in the ledger.
        call: Call,
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// Token it came under.
        token: u64,
        /// What it says.
        ending: Reported,
    },
    /// A scorer came to a verdict, or failed.
    Judged {
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// The verdict, or why there is none.
        verdict: Result<Verdict, String>,
    },
    /// The manifest names these rows.
    Published {
        /// The shard they are in.
        shard: ShardNews,
        /// Trajectories.
        trajectories: Vec<Id<Trajectory>>,
        /// Groups.
        groups: Vec<Id<furrow_rollout::Group>>,
    },
    /// What was acknowledged of a scored trajectory cannot be read back, so it is in no shard.
    RecordLost {
        /// Which.
        trajectory: Id<Trajectory>,
        /// Steps from the first one on that can be read.
        steps: u32,
        /// What is wrong with the next.
        why: String,
    },
    /// Assignments whose asker was gone before the answer.
    Undelivered {
        /// Which.
        trajectories: Vec<Id<Trajectory>>,
    },
    /// Nobody waits for the answers to these any more; only requests for work are held so long that it matters.
    HungUp {
        /// Which.
        calls: Vec<Call>,
    },
    /// The disk was looked at.
    Disk {
        /// `None` if there is room above the reserve, else the numbers, in a sentence.
        low: Option<String>,
    },
    /// Somebody asks how far the job is.
    Progress {
        /// Answered with [`Answer::Progress`].
        call: Call,
    },
    /// Somebody asks what runs.
    Running {
        /// Answered with [`Answer::Running`].
        call: Call,
    },
    /// The coordinator shall stop: nothing new is lent, work in hand has a while to finish.
    Drain {
        /// Answered with [`Answer::Draining`], if somebody asked.
        call: Option<Call>,
    },
    /// The same, and work in hand is taken back now. Of a job that drains already, the grace ends.
    Stop {
        /// Answered with [`Answer::Draining`].
        call: Call,
    },
    /// Time passed.
    Tick,
}

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call(pub u64);

/// A worker's id where its role is not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerId {
    /// As an environment worker.
    pub env: Id<EnvWorker>,
    /// As a policy worker.
    pub policy: Id<PolicyWorker>,
}

/// What an environment worker reports of an end, so far as it decides anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// Its name.
    pub end: End,
    /// Why, in a sentence.
    pub reason: String,
    /// Hash of the evidence, if anything was seen.
    pub evidence_sha256: Option<[u8; 32]>,
    /// Steps in the spool.
    pub steps: u32,
    /// SHA-256 of the encoded ending.
    pub digest: [u8; 32],
}

/// A shard that was published, so far as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardNews {
    /// Which.
    pub shard_id: Id<Shard>,
    /// The manifest commit that names it.
    pub version: u64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The moment of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// By the coordinator's monotonic clock: leases run on it.
    pub millis: u64,
    /// Microseconds since the Unix epoch: a column, never a decision.
    pub wall_micros: i64,
}

/// What an event leads to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// Done at once: it promises nothing that is not durable already.
    pub at_once: Vec<Effect>,
    /// Remembered in one transaction, after those of all earlier decisions.
    pub commit: Vec<Mutation>,
    /// Done when this and all earlier decisions are durable.
    pub then: Vec<Effect>,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A call is answered. Each is answered once.
    Reply {
        /// The call.
        call: Call,
        /// The answer.
        answer: Answer,
    },
    /// A finished trajectory's evidence is shown to its scorer; [`Event::Judged`] comes back.
    Score {
        /// The trajectory.
        trajectory: Id<Trajectory>,
        /// Its task and seed.
        draw: Arc<Draw>,
        /// Its slot in the group.
        sample_index: u32,
    },
    /// An ended trajectory's rows go to the data set; [`Event::Published`] comes back.
    Publish(Box<Outgoing>),
    /// A closed group's row goes to the data set, not before its trajectories'; [`Event::Published`] comes back.
    PublishGroup {
        /// The row.
        record: Box<GroupRecord>,
    },
    /// Nothing more will come for now: open shards are closed without waiting for more.
    CloseShards,
    /// Something happened that the farm says about itself.
    Tell(Notice),
    /// All is done.
    Over(Over),
}

/// An ended trajectory on its way to the data set.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// Where it belongs.
    pub of: Ancestry,
    /// How it began.
    pub start: Start,
    /// How it ended.
    pub ended: Ended,
    /// What its scorer said; `None` says that it failed.
    pub verdict: Option<Verdict>,
    /// Its task and seed.
    pub draw: Arc<Draw>,
}

/// Settings that decide.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Attempts at one slot before it is given up.
    pub attempts_max: u32,
    /// Share of failed attempts beyond which the job stops.
    pub failure_budget: f64,
    /// Failed attempts that are allowed before the share is looked at.
    pub failures_free: u64,
    /// How long a lease lasts without a renewal, and a worker without a word.
    pub lease_millis: u64,
    /// How often a worker says that it is there.
    pub heartbeat_millis: u64,
    /// Longest time a request for work is held open, whatever its worker asks.
    pub lease_wait_millis: u64,
    /// Most assignments in one answer.
    pub leases_per_call_max: u32,
    /// Time for work in hand when the coordinator stops.
    pub drain_grace_millis: u64,
    /// How often evidence is shown to a scorer that fails.
    pub score_attempts_max: u32,
    /// Trajectories that may wait to be scored or published.
    pub backlog_max: usize,
    /// What paces admission, if anything does.
    pub pacing: Option<Pacing>,
    /// Whether stale tokens are refused. Only a planted bug says no.
    pub fencing: bool,
}

/// Which task each group is about. Asked in any order, it answers the same.
pub trait Plan: Send + Sync {
    /// Groups in the whole job.
    fn groups(&self) -> u64;

    /// Slots of each group, spares included.
    fn group_size(&self) -> u32;

    /// Scored slots with which a group is done; then what is left of it is cancelled.
    fn group_needs(&self) -> u32 {
        self.group_size()
    }

    /// What the `index`th group draws, by what was measured until now.
    fn draw(&self, index: u64, tallies: &Tallies) -> Drawn;

    /// How the job is evaluated while it runs, if it is.
    fn schedule(&self) -> Option<Schedule> {
        None
    }

    /// The `index`th problem of every evaluation.
    fn problem(&self, index: u64) -> Drawn {
        self.draw(index, &Tallies::new())
    }
}

/// What was measured of each task, by suite and task id.
pub type Tallies = BTreeMap<(String, String), TaskTally>;

/// What a group is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Suite of the task.
    pub suite: String,
    /// The task.
    pub task_id: String,
    /// Its split.
    pub split: Split,
    /// The draw all slots share.
    pub seed: u64,
    /// The task's line in its file.
    pub task_json: String,
    /// By which chance it was drawn, where that depends on what was measured.
    pub chance: Option<f64>,
}

/// The deciding half of the coordinator. Its size follows what is open or unpublished, never what was done.
pub struct Core {
    rules: Rules,
    plan: Arc<dyn Plan>,
    run_id: Id<Run>,
    epoch: u64,
    next_token: u64,
    next_group: u64,
    /// Draws of the plan: groups of evaluations take numbers and are none.
    next_draw: u64,
    groups: BTreeMap<u64, Group>,
    leases: Leases,
    scoring: BTreeMap<Id<Trajectory>, Scoring>,
    /// Ended and not yet in the data set.
    unpublished: BTreeMap<Id<Trajectory>, Unpublished>,
    env_workers: BTreeMap<Id<EnvWorker>, Seat<u32>>,
    policy_workers: BTreeMap<Id<PolicyWorker>, Seat<PolicyOffer>>,
    /// Newest version any policy worker has had.
    newest_version: Option<i32>,
    /// Published weights.
    versions: Versions,
    /// Policy workers that were started since a version was taken, and the version they must reach before anything is lent to them.
    behind: BTreeMap<Id<PolicyWorker>, i32>,
    /// The last version each policy worker could not run, and why.
    refusals: BTreeMap<Id<PolicyWorker>, (i32, String)>,
    /// Policy workers whose weights are not those of their version, and how that shows.
    strangers: BTreeMap<Id<PolicyWorker>, String>,
    /// Until then a policy worker that is not there is believed to come back: it has not heard yet that the coordinator restarted.
    settled_millis: u64,
    waiting: VecDeque<Waiting>,
    /// When time passed last. A coordinator that was stopped in between heard nobody, so nobody is late.
    ticked_millis: u64,
    disk_low: Option<String>,
    discards: discards::Discards,
    told_pause: Option<furrow_telemetry::PauseReason>,
    stopping: Option<stopping::Stopping>,
    shards_closing: bool,
    over: bool,
    tally: Tally,
    tallies: Tallies,
    evaluation: Option<evaluation::Evaluation>,
    /// The last version whose evaluation began.
    evaluated: Option<i32>,
}

/// A worker that is there.
#[derive(Debug, Clone, PartialEq)]
struct Seat<T> {
    offer: T,
    seen_millis: u64,
    health: Health,
}

/// A request for work that is held open.
#[derive(Debug, Clone, PartialEq)]
struct Waiting {
    call: Call,
    worker: Id<EnvWorker>,
    slots: u32,
    until_millis: u64,
}

/// An ended trajectory on its way to the data set.
#[derive(Debug, Clone, PartialEq)]
struct Unpublished {
    since_millis: u64,
    outgoing: Box<Outgoing>,
}

/// A finished trajectory on its way to a verdict.
#[derive(Debug, Clone, PartialEq)]
struct Scoring {
    start: Start,
    of: Ancestry,
    group: u64,
    ended: Ended,
    evidence_sha256: [u8; 32],
    attempts: u32,
    /// When it is shown to the scorer again; `None` while a scorer has it.
    again_millis: Option<u64>,
}

/// Sums over the whole run.
#[derive(Debug, Clone, PartialEq, Default)]
struct Tally {
    scored: u64,
    failed: BTreeMap<End, u64>,
    published: u64,
    groups_closed: u64,
    reward_sum: f64,
    successes: u64,
    /// Outside of evaluations: with a verdict, and solved.
    training_judged: u64,
    training_successes: u64,
    steps: u64,
    /// Of the scored, those of evaluations.
    evaluated: u64,
}

/// A caller that speaks for a trajectory.
#[derive(Debug, Clone, Copy)]
struct Claim<'a> {
    call: Call,
    trajectory: &'a Id<Trajectory>,
    token: u64,
}

/// One event being decided.
#[derive(Debug)]
struct Turn {
    now: Now,
    decision: Decision,
}

impl Core {
    /// Decides what an event leads to.
    pub fn apply(&mut self, event: Event, now: Now) -> Decision {
        let mut turn = Turn::at(now);
        let matters = event.matters_to_lending();
        self.take(event, &mut turn);
        if matters {
            self.begin_evaluation(&mut turn);
            self.serve(&mut turn);
            self.tell_admission(&mut turn);
            self.finish_up(&mut turn);
        }
        turn.decision
    }

    /// Whether no worker is there any more.
    pub fn is_alone(&self) -> bool {
        self.env_workers.is_empty() && self.policy_workers.is_empty()
    }

    /// What runs.
    fn running(&self) -> Vec<Running> {
        let running = |lease: &Lease| {
            let draw = self.groups.get(&lease.group)?.draw();
            Some(Running {
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
    pub fn progress(&self) -> Progress {
        let tally = &self.tally;
        Progress {
            run_id: self.run_id.clone(),
            groups_planned: self.plan.groups(),
            groups_closed: tally.groups_closed,
            assigned: self.leases.len() as u64,
            scored: tally.scored,
            failed: tally.failed.clone(),
            published: tally.published,
            reward_sum: tally.reward_sum,
            successes: tally.successes,
            training_judged: tally.training_judged,
            training_successes: tally.training_successes,
            scoring: self.scoring.len() as u64,
            workers: self.health(),
            steps: tally.steps,
            discarded: self.discards.total(),
            env_workers: self.env_workers.len() as u64,
            policy_workers: self.policy_workers.len() as u64,
            admission: self.pause().map_or_else(|| "open".to_owned(), |(_, detail)| detail),
            run_over: self.over,
        }
    }

    fn take(&mut self, event: Event, turn: &mut Turn) {
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
                    Some(standing) => Answer::Weights(Box::new(standing)),
                    None => Answer::Refused(Refused::NoVersion { version }),
                };
                turn.reply_when_durable(call, answer);
            }
            Event::Leave { call, worker } => self.leave(call, &worker, turn),
            Event::Lease { call, worker, slots, wait_millis } => {
                let until_millis = turn.now.millis + wait_millis.min(self.rules.lease_wait_millis);
                self.ask(Waiting { call, worker, slots, until_millis }, turn);
            }
            Event::Renew { call, worker, held } => self.renew(call, &worker, &held, turn),
            Event::StepArrived { call, trajectory, token } => {
                self.check_step(Claim { call, trajectory: &trajectory, token }, turn);
            }
            Event::StepKept { trajectory, step, policy_versions } => {
                self.keep_step(&trajectory, step, policy_versions);
            }
            Event::EndingArrived { call, trajectory, token, digest } => {
                self.check_ending(Claim { call, trajectory: &trajectory, token }, digest, turn);
            }
            Event::EndingKept { call, trajectory, token, ending } => {
                self.finish(Claim { call, trajectory: &trajectory, token }, ending, turn);
            }
            Event::Judged { trajectory, verdict } => self.judge(&trajectory, verdict, turn),
            Event::RecordLost { trajectory, steps, why } => {
                self.lose_record(&trajectory, steps, &why, turn);
            }
            Event::Published { shard, trajectories, groups } => {
                self.published(shard, &trajectories, &groups, turn);
            }
            Event::Undelivered { trajectories } => self.take_back(&trajectories, turn),
            Event::HungUp { calls } => self.forget(&calls),
            Event::Disk { low } => self.disk_low = low,
            Event::Progress { call } => {
                let answer = Answer::Progress(Box::new(self.progress()));
                turn.at_once(Effect::Reply { call, answer });
            }
            Event::Running { call } => {
                let answer = Answer::Running(self.running());
                turn.at_once(Effect::Reply { call, answer });
            }
            Event::Drain { call } => self.drain(call, turn),
            Event::Stop { call } => self.stop_at_once(call, turn),
            Event::Tick => self.tick(turn),
        }
    }

    fn tick(&mut self, turn: &mut Turn) {
        self.forgive_own_absence(turn.now);
        self.lapse_leases(turn);
        self.lapse_workers(turn);
        self.rehome(turn.now);
        self.score_again(turn);
        self.cut_overdue_evaluation(turn);
        self.end_grace(turn);
    }

    /// Policy workers and how full they are.
    fn rooms(&self) -> Rooms<'_> {
        let ready = self.policy_workers.iter().filter(|(id, _)| self.may_serve(id));
        let workers = ready.map(|(id, seat)| (id, &seat.offer));
        Rooms::new(workers, self.leases.iter().map(|lease| &lease.policy.worker))
    }

    fn group(&mut self, index: u64) -> &mut Group {
        self.groups.get_mut(&index).expect("a group stays until its last trajectory is published")
    }
}

impl Event {
    /// Whether more or less may be lent after it. The calls of a step do not, and there are thousands of them for each that does.
    fn matters_to_lending(&self) -> bool {
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

impl Turn {
    fn at(now: Now) -> Self {
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

    fn reply(&mut self, call: Call, answer: Answer) {
        self.at_once(Effect::Reply { call, answer });
    }

    fn reply_when_durable(&mut self, call: Call, answer: Answer) {
        self.then(Effect::Reply { call, answer });
    }

    fn tell(&mut self, notice: Notice) {
        self.then(Effect::Tell(notice));
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
