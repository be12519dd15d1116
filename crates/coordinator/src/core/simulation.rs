//! The core in a simulated farm: workers that crash, stall and repeat themselves, a network that
//! loses messages, a coordinator that dies at any moment; a ledger, a spool and a data set that
//! survive it.
//!
//! Everything derives from one seed. Faults stop after a while, so that a job that does not end is
//! a bug. Run more seeds with
//! `FURROW_SIM_SEEDS=100000 cargo test -p furrow-coordinator --release simulation`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use furrow_records::{Table, WrittenFile};
use furrow_rollout::{
    EndKind, Group as GroupId, Id, PolicyHashes, PolicyKind, PolicyWorker, Score, Split, Trajectory,
};
use furrow_telemetry::PauseReason;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::{
    CallId, CallResponse, Core, CoreNotice, CoreRules, Decision, DiscardReport, Effect, EvaluationSchedule,
    Event, EventTime, GroupPlan, HeartbeatStatus, JobOutcome, LeaseGrant, ReportedEnd, SampledTask,
    ShardSummary, SpoolProgress, TaskTallies, WeightsPublication, WeightsReport, WorkerId,
};
use crate::assign::{AdmissionPacing, PolicyOffer};
use crate::ledger::{
    EvaluationRow, EvaluationStanding, Ledger, MemoryLedger, Mutation, RunOpening, ShardOpening, TimedScore,
    TrajectoryStanding,
};
use crate::versions::VersionSource;
use crate::versions::tests::hash;

const ENVS: usize = 3;
const POLICIES: usize = 2;
const GROUPS: u64 = 4;
const GROUP_SIZE: u32 = 3;
/// Readers of the trainer that discards.
const READERS: u32 = 2;
const LEASE: u64 = 4_000;
const BEAT: u64 = 1_000;
/// Faults stop at this time.
const CALM: u64 = 12_000;
/// Nine slots of three short steps take seconds; once all faults are over, a job that is not done
/// by this time hangs.
const TOO_LATE: u64 = 300_000;

/// Each seed runs twice; all of them take a few seconds in a build without optimisation.
const SEEDS: u64 = 400;

type InvariantViolation = String;

/// Simulates one run to its end.
fn simulate(seed: u64, fencing: bool) -> Result<SimulatedFarm, InvariantViolation> {
    let mut world = SimulatedFarm::new(seed, fencing);
    world.begin()?;
    while !world.is_done() {
        let Some(((at, _), happening)) = world.agenda.pop_first() else {
            return Err("no event is left".into());
        };
        if at > TOO_LATE {
            return Err(format!("not done after {TOO_LATE} ms: {:?}", world.core));
        }
        world.now = at;
        world.happen(happening)?;
    }
    world.check_harvest()?;
    Ok(world)
}

struct SimulatedFarm {
    chance: ChaCha12Rng,
    /// In two thirds of the runs weights are published; in half of these every second version is
    /// evaluated.
    has_weights: bool,
    schedule: Option<EvaluationSchedule>,
    /// Number of published weights; `evaluated_on` holds what each trajectory of an evaluation was
    /// leased on.
    published: u32,
    evaluated_on: BTreeMap<Id<Trajectory>, (i32, i32)>,
    /// Slots of a group beyond those it needs.
    spares: u32,
    now: u64,
    agenda: BTreeMap<(u64, u64), SimulatedEvent>,
    scheduled: u64,
    rules: CoreRules,

    core: Option<Core>,
    /// Number of the coordinator's current life; events of an earlier one are void.
    life: u32,
    undurable: VecDeque<Decision>,
    calls: BTreeMap<CallId, RpcCaller>,
    next_call: u64,
    to_commit: Vec<Id<Trajectory>>,
    groups_to_commit: Vec<Id<GroupId>>,
    over: Option<JobOutcome>,
    drained: u32,

    ledger: MemoryLedger,
    spool: BTreeMap<Id<Trajectory>, SimulatedSpoolFile>,
    manifest: Vec<ShardOpening>,
    next_shard: u64,
    scored: Vec<Id<Trajectory>>,
    /// The end of each trajectory in the ledger.
    ended: BTreeMap<Id<Trajectory>, EndKind>,
    /// The reported end of each acknowledged trajectory.
    acknowledged: BTreeMap<Id<Trajectory>, EndKind>,
    /// Trajectories whose record was damaged after they were scored.
    damaged: BTreeSet<Id<Trajectory>>,

    envs: Vec<EnvState>,
    policies: Vec<PolicyState>,
    log: Vec<(Event, Decision)>,
}

#[derive(Default)]
struct SimulatedSpoolFile {
    steps: u32,
    ending: Option<ReportedEnd>,
}

/// An environment worker in its current life.
#[derive(Default)]
struct EnvState {
    life: u32,
    stalled_until: u64,
    registered: bool,
    requesting: bool,
    leases: BTreeMap<Id<Trajectory>, LeaseState>,
    unanswered: BTreeSet<u64>,
}

struct LeaseState {
    token: u64,
    steps: u32,
    steps_planned: u32,
    report: ReportedEnd,
    policy: String,
    stuck_since: Option<u64>,
}

#[derive(Default)]
struct PolicyState {
    life: u32,
    dead_until: u64,
    /// The version it runs, the one it was ordered to run, and the last one it could not run.
    runs: i32,
    ordered: i32,
    refused: Option<i32>,
}

#[derive(Clone)]
struct Rpc {
    id: u64,
    env: usize,
    life: u32,
    request: RpcRequest,
}

#[derive(Clone)]
enum RpcRequest {
    Register,
    Heartbeat,
    Lease,
    Renew,
    Step { trajectory: Id<Trajectory>, token: u64, step: u32 },
    Finish { trajectory: Id<Trajectory>, token: u64, report: ReportedEnd },
}

enum RpcReply {
    Registered,
    HeartbeatAcknowledged { known: bool },
    Leased { grants: Vec<LeaseGrant> },
    Renewed { lost: Vec<Id<Trajectory>>, moves: Vec<(Id<Trajectory>, String)> },
    Acknowledged,
    Refused,
}

enum RpcCaller {
    Env(Rpc),
    Policy(usize),
    Trainer,
}

enum SimulatedEvent {
    Arrive(Rpc),
    Answered(Rpc, RpcReply),
    Timeout(Rpc),
    Beat { env: usize, life: u32 },
    Seek { env: usize, life: u32 },
    Act { env: usize, life: u32, trajectory: Id<Trajectory> },
    PolicyBeat { policy: usize },
    TakeUp { policy: usize, life: u32 },
    Train,
    Report { rank: u32 },
    Append { life: u32, rpc: Rpc },
    Durable { life: u32 },
    Judge { life: u32, trajectory: Id<Trajectory> },
    CommitShard { life: u32 },
    ShardWritten { life: u32, opening: ShardOpening },
    Tick { life: u32 },
    Restart,
    Fault,
}

/// Groups with or without a spare slot.
struct TinyPlan {
    spares: u32,
    schedule: Option<EvaluationSchedule>,
}

impl GroupPlan for TinyPlan {
    fn groups(&self) -> u64 {
        GROUPS
    }
    fn group_size(&self) -> u32 {
        GROUP_SIZE
    }
    fn group_needs(&self) -> u32 {
        GROUP_SIZE - self.spares
    }
    fn draw(&self, index: u64, _tallies: &TaskTallies) -> SampledTask {
        SampledTask {
            suite: "starter".into(),
            task_id: format!("t{index}"),
            split: Split::Train,
            seed: index,
            task_json: "{}".into(),
            chance: None,
        }
    }
    fn schedule(&self) -> Option<EvaluationSchedule> {
        self.schedule
    }
    fn problem(&self, index: u64) -> SampledTask {
        SampledTask {
            split: Split::Eval,
            task_id: format!("e{index}"),
            ..self.draw(index, &TaskTallies::new())
        }
    }
}

impl SimulatedFarm {
    fn new(seed: u64, fencing: bool) -> Self {
        let rules = CoreRules {
            attempts_max: 3,
            failure_budget: 1.0,
            failures_free: 0,
            lease_millis: LEASE,
            heartbeat_millis: BEAT,
            lease_wait_millis: 2_000,
            leases_per_call_max: 2,
            drain_grace_millis: 5_000,
            score_attempts_max: 2,
            backlog_max: 6,
            // No weights are published in these runs: admission continues only as discards are
            // reported.
            pacing: (seed % 3 == 2).then_some(AdmissionPacing {
                trajectories_per_version: u64::from(GROUP_SIZE),
                max_off_policy_versions: 0,
            }),
            fencing,
        };
        Self {
            chance: ChaCha12Rng::seed_from_u64(seed),
            has_weights: seed % 3 < 2,
            schedule: seed.is_multiple_of(3).then_some(EvaluationSchedule {
                every_versions: 2,
                problems: 2,
                group_size: 2,
                // Half of them cannot finish in time when a worker is away.
                hold_millis: if seed.is_multiple_of(2) { LEASE } else { 60_000 },
            }),
            published: 0,
            evaluated_on: BTreeMap::new(),
            spares: (seed % 2) as u32,
            now: 0,
            agenda: BTreeMap::new(),
            scheduled: 0,
            rules,
            core: None,
            life: 0,
            undurable: VecDeque::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            to_commit: Vec::new(),
            groups_to_commit: Vec::new(),
            over: None,
            drained: 0,
            ledger: MemoryLedger::default(),
            spool: BTreeMap::new(),
            manifest: Vec::new(),
            next_shard: 0,
            scored: Vec::new(),
            ended: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            damaged: BTreeSet::new(),
            envs: (0..ENVS).map(|_| EnvState::default()).collect(),
            policies: (0..POLICIES).map(|_| PolicyState::default()).collect(),
            log: Vec::new(),
        }
    }

    fn begin(&mut self) -> Result<(), InvariantViolation> {
        self.restart()?;
        for env in 0..ENVS {
            self.wake_env(env);
        }
        for policy in 0..POLICIES {
            self.soon(100, SimulatedEvent::PolicyBeat { policy });
        }
        self.soon(1_500, SimulatedEvent::Fault);
        if self.has_weights {
            self.soon(2_000, SimulatedEvent::Train);
        }
        if self.rules.pacing.is_some() {
            (0..READERS).for_each(|rank| self.soon(1_000, SimulatedEvent::Report { rank }));
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.over.is_some()
    }

    fn is_calm(&self) -> bool {
        self.now >= CALM
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.chance.random_range(0..count) == 0
    }

    /// Schedules an event after at most this many milliseconds.
    fn soon(&mut self, within: u64, happening: SimulatedEvent) {
        let at = self.now + self.chance.random_range(1..=within);
        self.at(at, happening);
    }

    fn at(&mut self, at: u64, happening: SimulatedEvent) {
        self.scheduled += 1;
        self.agenda.insert((at, self.scheduled), happening);
    }

    fn happen(&mut self, happening: SimulatedEvent) -> Result<(), InvariantViolation> {
        match happening {
            SimulatedEvent::Arrive(rpc) => self.arrive(rpc),
            SimulatedEvent::Answered(rpc, reply) => {
                self.answered(rpc, reply);
                Ok(())
            }
            SimulatedEvent::Timeout(rpc) => {
                self.repeat(rpc);
                Ok(())
            }
            SimulatedEvent::Beat { env, life } => {
                self.beat(env, life);
                Ok(())
            }
            SimulatedEvent::Seek { env, life } => {
                self.seek(env, life);
                Ok(())
            }
            SimulatedEvent::Act { env, life, trajectory } => {
                self.act(env, life, trajectory);
                Ok(())
            }
            SimulatedEvent::PolicyBeat { policy } => self.policy_beat(policy),
            SimulatedEvent::TakeUp { policy, life } => {
                let cannot = !self.is_calm() && self.one_in(4);
                let policy = &mut self.policies[policy];
                if policy.life == life {
                    policy.refused = cannot.then_some(policy.ordered);
                    policy.runs = if cannot { policy.runs } else { policy.ordered.max(policy.runs) };
                }
                Ok(())
            }
            SimulatedEvent::Train => self.train(),
            SimulatedEvent::Report { rank } => self.report(rank),
            SimulatedEvent::Append { life, rpc } if life == self.life => self.append(rpc),
            SimulatedEvent::Durable { life } if life == self.life => self.make_durable(),
            SimulatedEvent::Judge { life, trajectory } if life == self.life => self.judge(trajectory),
            SimulatedEvent::CommitShard { life } if life == self.life => self.open_shard(),
            SimulatedEvent::ShardWritten { life, opening } if life == self.life => {
                self.commit_shard(&opening)
            }
            SimulatedEvent::Tick { life } if life == self.life => {
                self.at(self.now + 500, SimulatedEvent::Tick { life });
                self.apply(Event::Tick)
            }
            SimulatedEvent::Restart => self.restart(),
            SimulatedEvent::Fault => self.fault(),
            _ => Ok(()), // a reply to an earlier life of the coordinator
        }
    }
}

/// The coordinator and its storage.
impl SimulatedFarm {
    fn apply(&mut self, event: Event) -> Result<(), InvariantViolation> {
        let now = EventTime { millis: self.now, wall_micros: self.now as i64 * 1000 };
        let Some(core) = &mut self.core else { return Ok(()) };
        let decision = core.apply(event.clone(), now);
        self.log.push((event, decision.clone()));
        self.check_pace()?;
        self.follow(decision)
    }

    /// Makes sure that no more trajectories are running or accepted than the version allows, even
    /// after a restart.
    fn check_pace(&self) -> Result<(), InvariantViolation> {
        let (Some(core), Some(pacing)) = (&self.core, self.rules.pacing) else { return Ok(()) };
        let discarded: u64 = (0..READERS).map(|rank| self.discarded(rank)).sum();
        let fills = core.accepted().saturating_sub(discarded) + core.training_in_flight();
        let allowed = pacing.allowed(None);
        if fills > allowed {
            return Err(format!("{fills} trajectories fill a version that allows {allowed}: {core:?}"));
        }
        Ok(())
    }

    fn follow(&mut self, mut decision: Decision) -> Result<(), InvariantViolation> {
        for effect in std::mem::take(&mut decision.at_once) {
            self.perform(effect)?;
        }
        if !decision.commit.is_empty() || !decision.then.is_empty() {
            self.undurable.push_back(decision);
            let life = self.life;
            self.soon(30, SimulatedEvent::Durable { life });
        }
        Ok(())
    }

    /// Commits everything decided so far in one transaction.
    fn make_durable(&mut self) -> Result<(), InvariantViolation> {
        let decisions: Vec<_> = self.undurable.drain(..).collect();
        let mutations: Vec<_> = decisions.iter().flat_map(|decision| decision.commit.clone()).collect();
        self.commit(&mutations)?;
        let life = self.life;
        for effect in decisions.into_iter().flat_map(|decision| decision.then) {
            if self.life == life {
                self.perform(effect)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), InvariantViolation> {
        for mutation in mutations {
            match mutation {
                Mutation::Scored { trajectory_id, .. } => self.scored.push(trajectory_id.clone()),
                Mutation::Finished { trajectory_id, ended, .. }
                | Mutation::Failed { trajectory_id, ended } => {
                    self.ended.insert(trajectory_id.clone(), ended.end);
                }
                Mutation::RecordLost { trajectory_id, ended } => {
                    self.ended.insert(trajectory_id.clone(), ended.end);
                    self.scored.retain(|scored| scored != trajectory_id);
                }
                _ => {}
            }
        }
        self.ledger.commit(mutations).map_err(|error| error.to_string())
    }

    fn perform(&mut self, effect: Effect) -> Result<(), InvariantViolation> {
        let life = self.life;
        match effect {
            Effect::Reply { call, answer } => {
                let caller = self.calls.remove(&call).ok_or(format!("{call:?} was answered twice"))?;
                self.deliver(caller, answer)?;
            }
            Effect::Score { trajectory, .. } => self.soon(200, SimulatedEvent::Judge { life, trajectory }),
            Effect::CommitTrajectory(outgoing) => {
                self.to_commit.push(outgoing.of.trajectory_id);
                self.soon(2_000, SimulatedEvent::CommitShard { life });
            }
            Effect::CommitGroup { record } => {
                self.groups_to_commit.push(record.group_id);
                self.soon(2_000, SimulatedEvent::CommitShard { life });
            }
            Effect::CloseShards => self.soon(10, SimulatedEvent::CommitShard { life }),
            Effect::Notify(_) => {}
            Effect::Over(JobOutcome::Drained { .. }) => return self.resume(),
            Effect::Over(over) => self.over = Some(over),
        }
        Ok(())
    }

    /// Restarts after a clean stop: everything that ended must be committed.
    fn resume(&mut self) -> Result<(), InvariantViolation> {
        let core = self.core.as_ref().ok_or("a coordinator drained while dead")?;
        if core.leases.len() + core.scoring.len() + core.uncommitted.len() > 0 {
            return Err(format!("it drained and left work: {core:?}"));
        }
        self.drained += 1;
        self.crash()
    }

    fn deliver(&mut self, caller: RpcCaller, answer: CallResponse) -> Result<(), InvariantViolation> {
        let rpc = match caller {
            RpcCaller::Env(rpc) => rpc,
            RpcCaller::Policy(policy) => {
                match answer {
                    CallResponse::HeartbeatAcknowledged { known: false, .. } => {
                        return self.register_policy(policy);
                    }
                    CallResponse::HeartbeatAcknowledged { weights: Some(order), .. }
                    | CallResponse::Registered { weights: Some(order), .. } => {
                        self.follow_order(policy, order.version.0, order.taken);
                    }
                    _ => {}
                }
                return Ok(());
            }
            RpcCaller::Trainer => {
                return match answer {
                    CallResponse::Discarded { .. } => Ok(()),
                    other => Err(format!("discarding committed trajectories was refused: {other:?}")),
                };
            }
        };
        let reply = match answer {
            CallResponse::Go { .. } => {
                let life = self.life;
                self.soon(20, SimulatedEvent::Append { life, rpc });
                return Ok(());
            }
            CallResponse::Finished => {
                if let RpcRequest::Finish { trajectory, report, .. } = &rpc.request {
                    self.acknowledged.insert(trajectory.clone(), report.end);
                }
                RpcReply::Acknowledged
            }
            CallResponse::Registered { .. } => RpcReply::Registered,
            CallResponse::HeartbeatAcknowledged { known, .. } => RpcReply::HeartbeatAcknowledged { known },
            CallResponse::Leased { grants, .. } => RpcReply::Leased { grants },
            CallResponse::Renewed { lost, moves } => RpcReply::Renewed { lost, moves },
            CallResponse::Refused(_) => RpcReply::Refused,
            other => return Err(format!("unexpected reply {other:?}")),
        };
        self.send_back(rpc, reply);
        Ok(())
    }

    fn send_back(&mut self, rpc: Rpc, reply: RpcReply) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, SimulatedEvent::Answered(rpc, reply));
        }
    }

    fn arrive(&mut self, rpc: Rpc) -> Result<(), InvariantViolation> {
        if self.core.is_none() {
            return Ok(());
        }
        let call = self.call(RpcCaller::Env(rpc.clone()));
        let worker = Id::new(env_name(&rpc)).map_err(|error| error.to_string())?;
        self.apply(match rpc.request {
            RpcRequest::Register => Event::RegisterEnv { call, worker, sessions_max: 4 },
            RpcRequest::Heartbeat => Event::Heartbeat {
                call,
                worker: worker_id(&env_name(&rpc)),
                run: WeightsReport::default(),
                health: HeartbeatStatus::default(),
            },
            RpcRequest::Lease => {
                let free = 4 - self.envs[rpc.env].leases.len().min(4) as u32;
                Event::Lease { call, worker, slots: free, wait_millis: 1_000 }
            }
            RpcRequest::Renew => {
                let leases = self.envs[rpc.env].leases.iter().map(|(id, lease)| (id.clone(), lease.token));
                Event::Renew { call, worker, leases: leases.collect() }
            }
            RpcRequest::Step { trajectory, token, .. } => Event::StepArrived { call, trajectory, token },
            RpcRequest::Finish { trajectory, token, report } => {
                Event::EndingArrived { call, trajectory, token, digest: report.digest }
            }
        })
    }

    fn call(&mut self, caller: RpcCaller) -> CallId {
        self.next_call += 1;
        self.calls.insert(CallId(self.next_call), caller);
        CallId(self.next_call)
    }

    /// Spools a step or an ending that the core allowed.
    fn append(&mut self, rpc: Rpc) -> Result<(), InvariantViolation> {
        match rpc.request.clone() {
            RpcRequest::Step { trajectory, step, .. } => {
                let file = self.spool.entry(trajectory.clone()).or_default();
                if step > file.steps || (file.ending.is_some() && step >= file.steps) {
                    self.send_back(rpc, RpcReply::Refused);
                    return Ok(());
                }
                file.steps = file.steps.max(step + 1);
                let policy_versions = self.version_of(&rpc, &trajectory).map(|version| (version, version));
                if let Some((version, _)) = policy_versions {
                    let range = self.evaluated_on.entry(trajectory.clone()).or_insert((version, version));
                    *range = (range.0.min(version), range.1.max(version));
                }
                self.apply(Event::StepKept { trajectory, step, policy_versions })?;
                self.send_back(rpc, RpcReply::Acknowledged);
                Ok(())
            }
            RpcRequest::Finish { trajectory, token, report } => {
                self.spool.entry(trajectory.clone()).or_default().ending = Some(report.clone());
                let call = self.call(RpcCaller::Env(rpc));
                self.apply(Event::EndingKept { call, trajectory, token, ending: report })
            }
            _ => Err("only steps and endings are spooled".into()),
        }
    }

    fn judge(&mut self, trajectory: Id<Trajectory>) -> Result<(), InvariantViolation> {
        // Its group may be complete meanwhile, and its rows in the data set: then its scorer finds
        // nothing, and nothing waits for its verdict.
        let is_awaited = self.core.as_ref().is_some_and(|core| core.scoring.contains_key(&trajectory));
        if (self.spares > 0 || self.schedule.is_some())
            && !is_awaited
            && !self.spool.contains_key(&trajectory)
        {
            return Ok(());
        }
        let file =
            self.spool.get(&trajectory).ok_or(format!("{trajectory} is to be scored without a spool"))?;
        let report = file.ending.clone().ok_or(format!("{trajectory} is to be scored without an ending"))?;
        let verdict = if self.one_in(6) {
            Err("the scorer failed".to_owned())
        } else {
            Ok(TimedScore { score: score(&report), micros: 10 })
        };
        self.apply(Event::Scored { trajectory, verdict })
    }

    /// Damages the spool file of one scored trajectory; the committer finds it and leaves out the
    /// trajectory and its group's row.
    fn damage(&mut self) -> Result<(), InvariantViolation> {
        let is_scored = |id: &&Id<Trajectory>| self.scored.contains(id) && !self.damaged.contains(*id);
        let Some(trajectory) = self.to_commit.iter().find(is_scored).cloned() else { return Ok(()) };
        self.to_commit.retain(|waiting| *waiting != trajectory);
        let group = group_name(&trajectory).to_owned();
        self.groups_to_commit.retain(|waiting| waiting.as_str() != group);
        self.damaged.insert(trajectory.clone());
        self.apply(Event::RecordLost { trajectory, steps: 0, why: "the CRC is another".into() })
    }

    fn open_shard(&mut self) -> Result<(), InvariantViolation> {
        if !self.is_calm() && self.one_in(8) {
            self.damage()?;
        }
        let trajectories = std::mem::take(&mut self.to_commit);
        let groups = std::mem::take(&mut self.groups_to_commit);
        if trajectories.is_empty() && groups.is_empty() {
            return Ok(());
        }
        let index = self.next_shard;
        self.next_shard += 1;
        let shard_id = Id::new(format!("shard-{index}")).map_err(|error| error.to_string())?;
        let opening = ShardOpening { shard_id, index, trajectories, groups, replaces: Vec::new() };
        self.commit(&[Mutation::ShardOpened(opening.clone())])?;
        let life = self.life;
        // One shard after another, so that a group never overtakes its trajectories.
        self.at(self.now, SimulatedEvent::ShardWritten { life, opening });
        Ok(())
    }

    fn commit_shard(&mut self, opening: &ShardOpening) -> Result<(), InvariantViolation> {
        let files = vec![WrittenFile {
            table: Table::Trajectories,
            path: opening.shard_id.to_string(),
            rows: 1,
            bytes: 1,
            sha256: "00".repeat(32),
        }];
        self.commit(&[Mutation::ShardWritten { shard_id: opening.shard_id.clone(), files }])?;
        let manifest_version = self.manifest.len() as u64;
        self.manifest.push(opening.clone());
        let shard_id = opening.shard_id.clone();
        self.commit(&[Mutation::ShardCommitted { shard_id, manifest_version }])?;
        for trajectory in &opening.trajectories {
            self.spool.remove(trajectory);
        }
        let trajectories = opening.trajectories.clone();
        let groups = opening.groups.clone();
        let shard = ShardSummary { shard_id: opening.shard_id.clone(), version: manifest_version, bytes: 1 };
        self.apply(Event::ShardCommitted { shard, trajectories, groups })
    }

    /// Kills the coordinator; some decisions may have reached the disk without a reply.
    fn crash(&mut self) -> Result<(), InvariantViolation> {
        self.core = None;
        self.life += 1;
        let reached = self.chance.random_range(0..=self.undurable.len());
        let mutations: Vec<_> =
            self.undurable.drain(..).take(reached).flat_map(|decision| decision.commit).collect();
        self.commit(&mutations)?;
        self.undurable.clear();
        self.calls.clear();
        self.to_commit.clear();
        self.groups_to_commit.clear();
        self.soon(1_500, SimulatedEvent::Restart);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), InvariantViolation> {
        let run_id = Id::new("sim").map_err(|error| error.to_string())?;
        self.commit(&[Mutation::RunOpened(RunOpening {
            run_id,
            job_sha256: [1; 32],
            began_sha256: None,
            at_micros: 0,
        })])?;
        let shards = self.ledger.load().map_err(|error| error.to_string())?.shards;
        for shard in shards {
            self.commit(&[Mutation::ShardAbandoned { shard_id: shard.shard_id }])?;
        }
        let mut snapshot = self.ledger.load().map_err(|error| error.to_string())?;
        let run = snapshot.run.take().ok_or("the run is gone")?;
        let spooled = self.spool.iter().map(|(id, file)| {
            let ending = file.ending.as_ref().map(|report| report.digest);
            let policy_versions = self.evaluated_on.get(id).copied();
            (id.clone(), SpoolProgress { steps: file.steps, policy_versions, ending })
        });
        let now = EventTime { millis: self.now, wall_micros: self.now as i64 * 1000 };
        let (core, decision) = Core::start(
            self.rules.clone(),
            Arc::new(TinyPlan { spares: self.spares, schedule: self.schedule }),
            (run, snapshot),
            &spooled.collect(),
            now,
        );
        self.core = Some(core);
        let life = self.life;
        self.soon(500, SimulatedEvent::Tick { life });
        self.follow(decision)
    }
}

/// Everything but the coordinator.
impl SimulatedFarm {
    fn fault(&mut self) -> Result<(), InvariantViolation> {
        if self.is_calm() {
            return Ok(());
        }
        self.soon(1_500, SimulatedEvent::Fault);
        let env = self.chance.random_range(0..ENVS);
        match self.chance.random_range(0..8) {
            0 | 1 if self.core.is_some() => self.crash()?,
            2 => {
                self.envs[env] = EnvState { life: self.envs[env].life + 1, ..EnvState::default() };
                self.wake_env(env);
            }
            3..=5 => {
                let pause = self.chance.random_range(LEASE / 2..LEASE * 3);
                self.envs[env].stalled_until = self.now + pause;
            }
            6 => {
                let policy = self.chance.random_range(0..POLICIES);
                let pause = self.chance.random_range(100..LEASE * 3);
                let PolicyState { life, .. } = self.policies[policy];
                let dead_until = self.now + pause;
                self.policies[policy] = PolicyState { life: life + 1, dead_until, ..PolicyState::default() };
            }
            7 if self.core.is_some() && self.one_in(2) => self.apply(Event::Drain { call: None })?,
            _ if self.core.is_some() => {
                let rpc = Rpc { id: 0, env, life: self.envs[env].life, request: RpcRequest::Heartbeat };
                self.leave(&rpc)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn leave(&mut self, rpc: &Rpc) -> Result<(), InvariantViolation> {
        let name = env_name(rpc);
        self.envs[rpc.env] = EnvState { life: rpc.life + 1, ..EnvState::default() };
        self.wake_env(rpc.env);
        let call = self.call(RpcCaller::Policy(0)); // its caller died
        self.apply(Event::Leave { call, worker: worker_id(&name) })
    }

    fn wake_env(&mut self, env: usize) {
        let life = self.envs[env].life;
        self.soon(BEAT, SimulatedEvent::Beat { env, life });
        self.soon(BEAT, SimulatedEvent::Seek { env, life });
    }

    fn send(&mut self, env: usize, request: RpcRequest) {
        self.scheduled += 1;
        let rpc = Rpc { id: self.scheduled, env, life: self.envs[env].life, request };
        self.envs[env].unanswered.insert(rpc.id);
        self.transmit(rpc);
    }

    fn transmit(&mut self, rpc: Rpc) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, SimulatedEvent::Arrive(rpc.clone()));
        }
        self.at(self.now + 2_500, SimulatedEvent::Timeout(rpc));
    }

    /// The worker, if it is still in that life and awake; a stalled worker gets the event when it
    /// wakes.
    fn awake(
        &mut self,
        env: usize,
        life: u32,
        later: impl FnOnce() -> SimulatedEvent,
    ) -> Option<&mut EnvState> {
        let until = self.envs[env].stalled_until;
        if self.envs[env].life == life && until > self.now {
            self.at(until, later());
        }
        let env = &mut self.envs[env];
        (env.life == life && until <= self.now).then_some(env)
    }

    /// Repeats a call that got no answer.
    fn repeat(&mut self, rpc: Rpc) {
        let repeated = rpc.clone();
        let Some(env) = self.awake(rpc.env, rpc.life, || SimulatedEvent::Timeout(repeated)) else { return };
        if !env.unanswered.contains(&rpc.id) {
            return;
        }
        match rpc.request {
            RpcRequest::Step { .. } | RpcRequest::Finish { .. } => self.transmit(rpc),
            RpcRequest::Lease => {
                env.unanswered.remove(&rpc.id);
                env.requesting = false;
            }
            _ => {
                env.unanswered.remove(&rpc.id);
            }
        }
    }

    fn beat(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || SimulatedEvent::Beat { env, life }) else { return };
        let first = if state.registered { RpcRequest::Heartbeat } else { RpcRequest::Register };
        let has_leases = !state.leases.is_empty();
        self.send(env, first);
        if has_leases {
            self.send(env, RpcRequest::Renew);
        }
        self.at(self.now + BEAT, SimulatedEvent::Beat { env, life });
    }

    fn seek(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || SimulatedEvent::Seek { env, life }) else { return };
        if state.registered && !state.requesting && state.leases.len() < 4 {
            state.requesting = true;
            self.send(env, RpcRequest::Lease);
        }
        self.at(self.now + 300, SimulatedEvent::Seek { env, life });
    }

    fn act(&mut self, env: usize, life: u32, trajectory: Id<Trajectory>) {
        let now = self.now;
        let same = trajectory.clone();
        let later = || SimulatedEvent::Act { env, life, trajectory: same };
        let Some(policy) = self
            .awake(env, life, later)
            .and_then(|state| state.leases.get(&trajectory).map(|lease| lease.policy.clone()))
        else {
            return;
        };
        let is_there = self.policy_lives(&policy);
        let Some(lease) = self.envs[env].leases.get_mut(&trajectory) else { return };
        let token = lease.token;
        if lease.steps == lease.steps_planned {
            let report = ReportedEnd { steps: lease.steps, ..lease.report.clone() };
            self.send(env, RpcRequest::Finish { trajectory, token, report });
        } else if is_there {
            lease.stuck_since = None;
            let step = lease.steps;
            self.send(env, RpcRequest::Step { trajectory, token, step });
        } else if now - *lease.stuck_since.get_or_insert(now) > 2 * LEASE {
            lease.steps_planned = lease.steps;
            lease.report = ReportedEnd {
                end: EndKind::PolicyFault,
                evidence_sha256: None,
                ..report(&trajectory, EndKind::Done, 0)
            };
            self.at(now + 1, SimulatedEvent::Act { env, life, trajectory });
        } else {
            self.at(now + 400, SimulatedEvent::Act { env, life, trajectory });
        }
    }

    fn answered(&mut self, rpc: Rpc, reply: RpcReply) {
        let env = rpc.env;
        if self.envs[env].life == rpc.life && self.envs[env].stalled_until > self.now {
            return self.at(self.envs[env].stalled_until, SimulatedEvent::Answered(rpc, reply));
        }
        if self.envs[env].life != rpc.life || !self.envs[env].unanswered.remove(&rpc.id) {
            return;
        }
        match (rpc.request, reply) {
            (RpcRequest::Register, RpcReply::Registered) => self.envs[env].registered = true,
            (RpcRequest::Heartbeat, RpcReply::HeartbeatAcknowledged { known: false }) => {
                self.envs[env].registered = false;
            }
            (RpcRequest::Lease, RpcReply::Leased { grants }) => {
                self.envs[env].requesting = false;
                grants.into_iter().for_each(|grant| self.take_lease(env, grant));
            }
            (RpcRequest::Lease, _) => self.envs[env].requesting = false,
            (RpcRequest::Renew, RpcReply::Renewed { lost, moves }) => {
                self.envs[env].leases.retain(|trajectory, _| !lost.contains(trajectory));
                for (trajectory, address) in moves {
                    if let Some(lease) = self.envs[env].leases.get_mut(&trajectory) {
                        lease.policy = address;
                    }
                }
            }
            (RpcRequest::Step { trajectory, .. }, RpcReply::Acknowledged) => {
                let life = rpc.life;
                if let Some(lease) = self.envs[env].leases.get_mut(&trajectory) {
                    lease.steps += 1;
                    self.soon(1_000, SimulatedEvent::Act { env, life, trajectory });
                }
            }
            (RpcRequest::Step { trajectory, .. } | RpcRequest::Finish { trajectory, .. }, _) => {
                self.envs[env].leases.remove(&trajectory);
            }
            _ => {}
        }
    }

    fn take_lease(&mut self, env: usize, grant: LeaseGrant) {
        let ends = [
            EndKind::Answered,
            EndKind::Answered,
            EndKind::Done,
            EndKind::MaxSteps,
            EndKind::PageHang,
            EndKind::EnvCrash,
            EndKind::BrowserDead,
        ];
        let end = ends[self.chance.random_range(0..ends.len())];
        let trajectory = grant.of.trajectory_id;
        let evidence = self.chance.random_range(0..8);
        let lease = LeaseState {
            token: grant.token,
            steps: 0,
            steps_planned: self.chance.random_range(0..6),
            report: report(&trajectory, end, evidence),
            policy: grant.policy_address,
            stuck_since: None,
        };
        self.envs[env].leases.insert(trajectory.clone(), lease);
        let life = self.envs[env].life;
        self.soon(500, SimulatedEvent::Act { env, life, trajectory });
    }

    fn policy_lives(&self, address: &str) -> bool {
        (0..POLICIES)
            .any(|policy| policy_name(policy, &self.policies[policy]) == address && self.is_up(policy))
    }

    fn is_up(&self, policy: usize) -> bool {
        self.policies[policy].dead_until <= self.now
    }

    fn policy_beat(&mut self, policy: usize) -> Result<(), InvariantViolation> {
        self.at(self.now + BEAT, SimulatedEvent::PolicyBeat { policy });
        if !self.is_up(policy) || self.core.is_none() {
            return Ok(());
        }
        let worker = worker_id(&policy_name(policy, &self.policies[policy]));
        let call = self.call(RpcCaller::Policy(policy));
        let run = self.run_of(policy);
        self.apply(Event::Heartbeat { call, worker, run, health: HeartbeatStatus::default() })
    }

    /// A reader of a trainer that discards every committed trajectory; some reports are lost, and
    /// each holds the whole count.
    fn report(&mut self, rank: u32) -> Result<(), InvariantViolation> {
        self.soon(1_000, SimulatedEvent::Report { rank });
        let is_lost = !self.is_calm() && self.one_in(3);
        if self.core.is_none() || is_lost {
            return Ok(());
        }
        let report = DiscardReport { rank, world: READERS, trajectories: self.discarded(rank) };
        let call = self.call(RpcCaller::Trainer);
        self.apply(Event::Discarded { call, report })
    }

    /// Scored trajectories of the committed groups that belong to a reader.
    fn discarded(&self, rank: u32) -> u64 {
        let groups = self.manifest.iter().flat_map(|shard| &shard.groups);
        let mine = groups
            .filter(|group| group.as_str().bytes().last().map(u32::from).unwrap_or(0) % READERS == rank);
        let mine: BTreeSet<&str> = mine.map(Id::as_str).collect();
        let group_of = |trajectory: &Id<Trajectory>| {
            trajectory.as_str().rsplit_once("-s").is_some_and(|(group, _)| mine.contains(group))
        };
        self.scored.iter().filter(|trajectory| group_of(trajectory)).count() as u64
    }

    /// Publishes weights for as long as faults occur.
    fn train(&mut self) -> Result<(), InvariantViolation> {
        if !self.is_calm() {
            self.soon(2_000, SimulatedEvent::Train);
        }
        if self.core.is_none() {
            return Ok(());
        }
        self.published += 1;
        let publication = WeightsPublication {
            publication_id: format!("p{}", self.published),
            source: VersionSource::Rollback { to: 0 },
            weights_sha256: None,
        };
        let call = self.call(RpcCaller::Policy(0)); // without a caller
        self.apply(Event::Publish { call, publication })
    }

    /// Handles an ordered version: one that failed is tried again if other workers run it.
    fn follow_order(&mut self, policy: usize, version: i32, taken: bool) {
        let PolicyState { life, runs, ordered, refused, .. } = self.policies[policy];
        let once_more = taken && refused == Some(version);
        if version > runs && (version != ordered || once_more) {
            self.policies[policy].ordered = version;
            self.soon(800, SimulatedEvent::TakeUp { policy, life });
        }
    }

    /// A policy worker's report about its weights, if it has any.
    fn run_of(&self, policy: usize) -> WeightsReport {
        let version = self.has_weights.then_some(self.policies[policy].runs);
        let refused = self.policies[policy].refused.filter(|_| version.is_some());
        let refused = refused.map(|version| (version, "its file is torn".to_owned()));
        WeightsReport { version, weights_sha256: version.map(hash), refused }
    }

    /// The version the policy worker of a trajectory runs as it acts.
    fn version_of(&self, rpc: &Rpc, trajectory: &Id<Trajectory>) -> Option<i32> {
        self.schedule?;
        let address = &self.envs[rpc.env].leases.get(trajectory)?.policy;
        let named = |policy: &usize| policy_name(*policy, &self.policies[*policy]) == *address;
        (0..POLICIES).find(named).map(|policy| self.policies[policy].runs)
    }

    fn register_policy(&mut self, policy: usize) -> Result<(), InvariantViolation> {
        let name = policy_name(policy, &self.policies[policy]);
        let worker: Id<PolicyWorker> = Id::new(&name).map_err(|error| error.to_string())?;
        let offer = PolicyOffer {
            address: name,
            kind: PolicyKind::Random,
            sessions_max: 6,
            version: self.run_of(policy).version,
            hashes: PolicyHashes::default(),
        };
        let call = self.call(RpcCaller::Policy(policy));
        let run = self.run_of(policy);
        self.apply(Event::RegisterPolicy { call, worker, offer, run })
    }
}

/// Invariants at the end of a run.
impl SimulatedFarm {
    fn check_harvest(&mut self) -> Result<(), InvariantViolation> {
        if self.over != Some(JobOutcome::Complete) {
            return Err(format!("it ended as {:?}", self.over));
        }
        let snapshot = self.ledger.load().map_err(|error| error.to_string())?;
        let core = self.core.as_ref().ok_or("the coordinator is dead")?;
        if !snapshot.groups.is_empty() || core.leases.len() + core.groups.len() + core.scoring.len() > 0 {
            return Err(format!("work is left open: {:?}, {core:?}", snapshot.groups));
        }
        let progress = core.progress();
        let want = (GROUPS, progress.scored + progress.failed.values().sum::<u64>());
        if (progress.groups_closed, progress.committed) != want {
            return Err(format!("the totals do not agree: {progress:?}"));
        }
        self.check_rows()?;
        self.check_evaluations(&snapshot.evaluations)
    }

    /// Every evaluation ended, on problems drawn once and trajectories of one version.
    fn check_evaluations(&mut self, rows: &[EvaluationRow]) -> Result<(), InvariantViolation> {
        let Some(schedule) = self.schedule else { return Ok(()) };
        if rows.is_empty() || rows.iter().any(EvaluationRow::is_open) {
            return Err(format!("evaluations are missing or open: {rows:?}"));
        }
        let mut draws = BTreeMap::new();
        for (_, decision) in &self.log {
            for mutation in &decision.commit {
                let Mutation::GroupDrawn { draw, .. } = mutation else { continue };
                draws.extend(draw.problem.map(|problem| (draw.group_id.clone(), problem.version)));
            }
        }
        for trajectory in &self.scored {
            let group = group_name(trajectory);
            let version = draws.iter().find(|(id, _)| id.as_str() == group).map(|(_, version)| *version);
            let acted_on = self.evaluated_on.get(trajectory);
            if let (Some(version), Some(range)) = (version, acted_on)
                && *range != (version, version)
            {
                return Err(format!("{trajectory} of the evaluation of {version} was acted on {range:?}"));
            }
        }
        let slots = schedule.problems * u64::from(schedule.group_size);
        match rows.iter().find(|row| row.scored > slots || row.drawn > row.problems) {
            Some(row) => Err(format!("more was evaluated than was drawn: {row:?}")),
            None => Ok(()),
        }
    }

    /// Every acknowledged end is in the data set once, as it was reported; every slot is scored at
    /// most once.
    fn check_rows(&self) -> Result<(), InvariantViolation> {
        let mut rows = BTreeMap::new();
        let mut slots = BTreeMap::new();
        for trajectory in self.manifest.iter().flat_map(|shard| &shard.trajectories) {
            *rows.entry(trajectory.clone()).or_insert(0) += 1;
        }
        for trajectory in &self.scored {
            let slot = trajectory.as_str().rsplit_once("-a").map(|(slot, _)| slot.to_owned());
            *slots.entry(slot).or_insert(0) += 1;
        }
        for (trajectory, reported) in &self.acknowledged {
            if rows.get(trajectory) != Some(&1) {
                return Err(format!(
                    "{trajectory} was acknowledged and is in the data set {:?} times",
                    rows.get(trajectory)
                ));
            }
            // Without evidence it is a page crash, and a scorer may fail; no other end is valid.
            let end = self.ended.get(trajectory);
            // The same holds for a cut evaluation.
            let may_be_late = self.spares > 0 || self.schedule.is_some();
            let is_late = may_be_late && end == Some(&EndKind::Cancelled);
            let is_lost = end == Some(&EndKind::RecordLost) && self.damaged.contains(trajectory);
            if !is_late
                && !is_lost
                && !end.is_some_and(|end| [*reported, EndKind::PageCrash, EndKind::ScorerError].contains(end))
            {
                return Err(format!("{trajectory} was acknowledged as {reported:?} and became {end:?}"));
            }
        }
        match (rows.values().max(), slots.values().max()) {
            (Some(1), None | Some(1)) => Ok(()),
            other => Err(format!("a row or a slot is there more than once: {other:?}")),
        }
    }
}

/// The group that a trajectory belongs to, by its name.
fn group_name(trajectory: &Id<Trajectory>) -> &str {
    trajectory.as_str().rsplit_once("-s").map_or("", |(group, _)| group)
}

fn env_name(rpc: &Rpc) -> String {
    format!("env{}.{}", rpc.env, rpc.life)
}

fn policy_name(index: usize, policy: &PolicyState) -> String {
    format!("policy{index}.{}", policy.life)
}

fn worker_id(name: &str) -> WorkerId {
    WorkerId { env: Id::new(name).unwrap(), policy: Id::new(name).unwrap() }
}

fn report(trajectory: &Id<Trajectory>, end: EndKind, evidence: u32) -> ReportedEnd {
    ReportedEnd {
        end,
        reason: String::new(),
        // One in eight has no evidence.
        evidence_sha256: (evidence > 0).then_some([evidence as u8; 32]),
        steps: 0,
        digest: furrow_wire::digest(format!("{trajectory} {end:?} {evidence}").as_bytes()),
    }
}

fn score(report: &ReportedEnd) -> Score {
    Score {
        reward: Some(1.0),
        success: Some(true),
        components: Vec::new(),
        scorer: "probe".into(),
        version: 1,
        rationale: String::new(),
        evidence_sha256: report.evidence_sha256.unwrap_or_default(),
    }
}

/// Seeds to run: `FURROW_SIM_SEEDS` of them, or the usual number.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let requested = std::env::var("FURROW_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    0..requested.unwrap_or(usual)
}

#[test]
fn nothing_is_lost_nothing_is_twice_and_every_seed_replays() {
    let mut kills = 0;
    let mut drains = 0;
    let mut stale = 0;
    let mut complete = 0;
    let mut cut = 0;
    let mut taken = 0;
    let mut refused = 0;
    let mut lags = 0;
    let mut paused = 0;
    for seed in seeds(SEEDS) {
        let mut world = simulate(seed, true).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        let again = simulate(seed, true).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(world.log == again.log, "seed {seed} gave other decisions in its second run");
        for row in world.ledger.load().unwrap().evaluations {
            complete += u64::from(row.standing == EvaluationStanding::Complete);
            cut += u64::from(matches!(row.standing, EvaluationStanding::Cut { .. }));
        }
        kills += world.life - world.drained;
        drains += world.drained;
        stale += world.log.iter().filter(|(_, decision)| is_fenced(decision)).count();
        for (_, decision) in &world.log {
            let is = |of: fn(&Mutation) -> bool| decision.commit.iter().filter(|one| of(one)).count() as u64;
            taken += is(|mutation| matches!(mutation, Mutation::VersionTaken { .. }));
            refused += is(|mutation| matches!(mutation, Mutation::VersionRefused { .. }));
            let is_paced = |effect: &&Effect| {
                matches!(effect, Effect::Notify(CoreNotice::Paused { reason: PauseReason::OffPolicy, .. }))
            };
            paused += decision.at_once.iter().filter(is_paced).count() as u64;
            let lag = |effect: &&Effect| matches!(effect, Effect::Notify(CoreNotice::VersionLags { .. }));
            lags += decision.at_once.iter().chain(&decision.then).filter(lag).count() as u64;
        }
    }
    let seeds = seeds(SEEDS).end;
    println!("{seeds} seeds: {kills} coordinators killed, {drains} drained, {stale} stale calls refused");
    println!("{complete} evaluations complete, {cut} cut");
    println!("{taken} versions taken, {refused} refused, {lags} times a worker could not run one");
    println!("{paused} times nothing was leased until discards were reported");
    // A few seeds say little about how often something happens.
    assert!(
        seeds < 100 || u64::from(kills) > seeds && u64::from(drains) > seeds / 8 && stale as u64 > seeds / 4
    );
    assert!(seeds < 100 || paused > seeds, "{paused}");
    assert!(seeds < 100 || complete > seeds / 4 && cut > seeds / 20, "{complete} {cut}");
    assert!(
        seeds < 100 || taken > seeds / 4 && refused > seeds / 50 && lags > seeds / 10,
        "{taken} {refused} {lags}"
    );
}

#[test]
fn a_farm_without_fencing_is_caught() {
    // An assertion of the core that catches it counts as well.
    let refused = |violation: &InvariantViolation| violation.starts_with("the ledger refused");
    let catches = |seed: u64| std::panic::catch_unwind(|| simulate(seed, false).map(drop));
    let caught = (0..60)
        .filter(|seed| {
            catches(*seed).map_or(true, |result| result.is_err_and(|violation| refused(&violation)))
        })
        .count();
    println!("{caught} of 60 seeds caught it");
    assert!(caught >= 5, "{caught} of 60");
}

fn is_fenced(decision: &Decision) -> bool {
    let stale = |effect: &Effect| {
        let Effect::Reply { answer: CallResponse::Refused(refused), .. } = effect else { return false };
        matches!(refused, super::CallRefusal::Stale { .. })
    };
    decision.at_once.iter().any(stale)
}

/// A restarted coordinator reaches the state it had, as far as it affects decisions.
#[test]
fn a_restart_forgets_nothing_that_was_durable() {
    for seed in 0..100 {
        let mut world = SimulatedFarm::new(seed, true);
        world.begin().unwrap();
        while world.now < CALM && !world.is_done() {
            let ((at, _), happening) = world.agenda.pop_first().unwrap();
            world.now = at;
            world.happen(happening).unwrap();
            if !world.undurable.is_empty() || world.core.is_none() {
                continue;
            }
            let snapshot = world.ledger.load().unwrap();
            let core = world.core.as_ref().unwrap();
            let leased: BTreeSet<_> =
                core.leases.iter().map(|lease| lease.start.trajectory_id.clone()).collect();
            let open = |standing: &TrajectoryStanding| matches!(standing, TrajectoryStanding::Assigned);
            let durable: BTreeSet<_> = snapshot
                .trajectories
                .iter()
                .filter(|row| open(&row.standing))
                .map(|row| row.start.trajectory_id.clone())
                .collect();
            assert_eq!(leased, durable, "seed {seed} at {}", world.now);
            let scored = core.tally.scored;
            assert_eq!(scored, snapshot.totals.scored, "seed {seed} at {}", world.now);
        }
    }
}
