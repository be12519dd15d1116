//! The core in a world of air: workers that crash, stall and repeat themselves, a network that loses messages, a coordinator that dies
//! at any moment; a ledger, a spool and a data set that survive it.
//!
//! Everything descends from one seed. Faults stop after a while, so that a job that does not end is a bug and not bad luck. Run more of
//! it with `FURROW_SIM_SEEDS=100000 cargo test -p furrow-coordinator --release simulation`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use furrow_records::{Table, WrittenFile};
use furrow_rollout::{End, Group as GroupId, Hashes, Id, PolicyKind, PolicyWorker, Score, Split, Trajectory};
use furrow_telemetry::PauseReason;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::{
    Answer, Call, Core, Decision, Discarded, Drawn, Effect, Event, Grant, Health, Notice, Now, Over, Plan,
    Publication, Reported, Rules, Schedule, ShardNews, Spooled, Tallies, WeightsRun, WorkerId,
};
use crate::assign::{Pacing, PolicyOffer};
use crate::ledger::{
    EvaluationRow, EvaluationStanding, Ledger, MemoryLedger, Mutation, RunOpening, ShardOpening, Standing,
    Verdict,
};
use crate::versions::Source;
use crate::versions::tests::hash;

const ENVS: usize = 3;
const POLICIES: usize = 2;
const GROUPS: u64 = 4;
const GROUP_SIZE: u32 = 3;
/// Readers of the trainer that discards.
const READERS: u32 = 2;
const LEASE: u64 = 4_000;
const BEAT: u64 = 1_000;
/// Faults stop then.
const CALM: u64 = 12_000;
/// Nine slots of three short steps take seconds; with every fault behind it a job that is not done by then hangs.
const TOO_LATE: u64 = 300_000;

/// Each is played twice; together they take a few seconds in a build without optimisation.
const SEEDS: u64 = 400;

/// What was noticed to be wrong.
type Violation = String;

/// One run of the world, for as long as it takes.
fn simulate(seed: u64, fencing: bool) -> Result<World, Violation> {
    let mut world = World::new(seed, fencing);
    world.begin()?;
    while !world.is_done() {
        let Some(((at, _), happening)) = world.agenda.pop_first() else {
            return Err("nothing is left to happen".into());
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

struct World {
    chance: ChaCha12Rng,
    /// In two thirds of the worlds weights are published; in one of these thirds every second version is evaluated.
    has_weights: bool,
    schedule: Option<Schedule>,
    /// Weights that were published, and what each trajectory of an evaluation was lent on.
    published: u32,
    evaluated_on: BTreeMap<Id<Trajectory>, (i32, i32)>,
    /// Slots of a group that it does not need.
    spares: u32,
    now: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    scheduled: u64,
    rules: Rules,

    core: Option<Core>,
    /// Which of its lives the coordinator is in: what belongs to an earlier one died with it.
    life: u32,
    undurable: VecDeque<Decision>,
    calls: BTreeMap<Call, Caller>,
    next_call: u64,
    to_publish: Vec<Id<Trajectory>>,
    groups_to_publish: Vec<Id<GroupId>>,
    over: Option<Over>,
    drained: u32,

    ledger: MemoryLedger,
    spool: BTreeMap<Id<Trajectory>, SpoolFile>,
    manifest: Vec<ShardOpening>,
    next_shard: u64,
    scored: Vec<Id<Trajectory>>,
    /// The end the ledger has of each.
    ended: BTreeMap<Id<Trajectory>, End>,
    /// The end each acknowledged one was reported with.
    acknowledged: BTreeMap<Id<Trajectory>, End>,
    /// Those whose record was damaged after they were scored.
    damaged: BTreeSet<Id<Trajectory>>,

    envs: Vec<Env>,
    policies: Vec<Policy>,
    log: Vec<(Event, Decision)>,
}

#[derive(Default)]
struct SpoolFile {
    steps: u32,
    ending: Option<Reported>,
}

/// An environment worker, in the life it is in.
#[derive(Default)]
struct Env {
    life: u32,
    stalled_until: u64,
    registered: bool,
    asking: bool,
    holds: BTreeMap<Id<Trajectory>, Hold>,
    unanswered: BTreeSet<u64>,
}

struct Hold {
    token: u64,
    steps: u32,
    steps_planned: u32,
    report: Reported,
    policy: String,
    stuck_since: Option<u64>,
}

#[derive(Default)]
struct Policy {
    life: u32,
    dead_until: u64,
    /// The weights it runs, those it was told to, and the last that it could not.
    runs: i32,
    ordered: i32,
    refused: Option<i32>,
}

#[derive(Clone)]
struct Rpc {
    id: u64,
    env: usize,
    life: u32,
    ask: Ask,
}

#[derive(Clone)]
enum Ask {
    Register,
    Heartbeat,
    Lease,
    Renew,
    Step { trajectory: Id<Trajectory>, token: u64, step: u32 },
    Finish { trajectory: Id<Trajectory>, token: u64, report: Reported },
}

enum Reply {
    Registered,
    Heard { known: bool },
    Leased { grants: Vec<Grant> },
    Renewed { lost: Vec<Id<Trajectory>>, moves: Vec<(Id<Trajectory>, String)> },
    Acknowledged,
    Refused,
}

enum Caller {
    Env(Rpc),
    Policy(usize),
    Trainer,
}

enum Happening {
    Arrive(Rpc),
    Answered(Rpc, Reply),
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
    Publish { life: u32 },
    ShardWritten { life: u32, opening: ShardOpening },
    Tick { life: u32 },
    Restart,
    Fault,
}

/// Groups with a slot to spare, or without.
struct TinyPlan {
    spares: u32,
    schedule: Option<Schedule>,
}

impl Plan for TinyPlan {
    fn groups(&self) -> u64 {
        GROUPS
    }
    fn group_size(&self) -> u32 {
        GROUP_SIZE
    }
    fn group_needs(&self) -> u32 {
        GROUP_SIZE - self.spares
    }
    fn draw(&self, index: u64, _tallies: &Tallies) -> Drawn {
        Drawn {
            suite: "starter".into(),
            task_id: format!("t{index}"),
            split: Split::Train,
            seed: index,
            task_json: "{}".into(),
            chance: None,
        }
    }
    fn schedule(&self) -> Option<Schedule> {
        self.schedule
    }
    fn problem(&self, index: u64) -> Drawn {
        Drawn { split: Split::Eval, task_id: format!("e{index}"), ..self.draw(index, &Tallies::new()) }
    }
}

impl World {
    fn new(seed: u64, fencing: bool) -> Self {
        let rules = Rules {
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
            // No weights are published there: all that goes on is in the place of what was discarded.
            pacing: (seed % 3 == 2).then_some(Pacing {
                trajectories_per_version: u64::from(GROUP_SIZE),
                max_off_policy_versions: 0,
            }),
            fencing,
        };
        Self {
            chance: ChaCha12Rng::seed_from_u64(seed),
            has_weights: seed % 3 < 2,
            schedule: seed.is_multiple_of(3).then_some(Schedule {
                every_versions: 2,
                problems: 2,
                group_size: 2,
                // Half of them cannot be done in time when a worker is away.
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
            to_publish: Vec::new(),
            groups_to_publish: Vec::new(),
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
            envs: (0..ENVS).map(|_| Env::default()).collect(),
            policies: (0..POLICIES).map(|_| Policy::default()).collect(),
            log: Vec::new(),
        }
    }

    fn begin(&mut self) -> Result<(), Violation> {
        self.restart()?;
        for env in 0..ENVS {
            self.wake_env(env);
        }
        for policy in 0..POLICIES {
            self.soon(100, Happening::PolicyBeat { policy });
        }
        self.soon(1_500, Happening::Fault);
        if self.has_weights {
            self.soon(2_000, Happening::Train);
        }
        if self.rules.pacing.is_some() {
            (0..READERS).for_each(|rank| self.soon(1_000, Happening::Report { rank }));
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

    /// After up to so many milliseconds.
    fn soon(&mut self, within: u64, happening: Happening) {
        let at = self.now + self.chance.random_range(1..=within);
        self.at(at, happening);
    }

    fn at(&mut self, at: u64, happening: Happening) {
        self.scheduled += 1;
        self.agenda.insert((at, self.scheduled), happening);
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Arrive(rpc) => self.arrive(rpc),
            Happening::Answered(rpc, reply) => {
                self.answered(rpc, reply);
                Ok(())
            }
            Happening::Timeout(rpc) => {
                self.repeat(rpc);
                Ok(())
            }
            Happening::Beat { env, life } => {
                self.beat(env, life);
                Ok(())
            }
            Happening::Seek { env, life } => {
                self.seek(env, life);
                Ok(())
            }
            Happening::Act { env, life, trajectory } => {
                self.act(env, life, trajectory);
                Ok(())
            }
            Happening::PolicyBeat { policy } => self.policy_beat(policy),
            Happening::TakeUp { policy, life } => {
                let cannot = !self.is_calm() && self.one_in(4);
                let policy = &mut self.policies[policy];
                if policy.life == life {
                    policy.refused = cannot.then_some(policy.ordered);
                    policy.runs = if cannot { policy.runs } else { policy.ordered.max(policy.runs) };
                }
                Ok(())
            }
            Happening::Train => self.train(),
            Happening::Report { rank } => self.report(rank),
            Happening::Append { life, rpc } if life == self.life => self.append(rpc),
            Happening::Durable { life } if life == self.life => self.make_durable(),
            Happening::Judge { life, trajectory } if life == self.life => self.judge(trajectory),
            Happening::Publish { life } if life == self.life => self.open_shard(),
            Happening::ShardWritten { life, opening } if life == self.life => self.publish_shard(&opening),
            Happening::Tick { life } if life == self.life => {
                self.at(self.now + 500, Happening::Tick { life });
                self.apply(Event::Tick)
            }
            Happening::Restart => self.restart(),
            Happening::Fault => self.fault(),
            _ => Ok(()), // it died with the coordinator's earlier life
        }
    }
}

/// The coordinator and what it stands on.
impl World {
    fn apply(&mut self, event: Event) -> Result<(), Violation> {
        let now = Now { millis: self.now, wall_micros: self.now as i64 * 1000 };
        let Some(core) = &mut self.core else { return Ok(()) };
        let decision = core.apply(event.clone(), now);
        self.log.push((event, decision.clone()));
        self.check_pace()?;
        self.follow(decision)
    }

    /// No more than the version allows is ever under way or kept, whatever the coordinator forgot.
    fn check_pace(&self) -> Result<(), Violation> {
        let (Some(core), Some(pacing)) = (&self.core, self.rules.pacing) else { return Ok(()) };
        let discarded: u64 = (0..READERS).map(|rank| self.discarded(rank)).sum();
        let fills = core.accepted().saturating_sub(discarded) + core.training();
        let allowed = pacing.allowed(None);
        if fills > allowed {
            return Err(format!("{fills} fill a version of {allowed}: {core:?}"));
        }
        Ok(())
    }

    fn follow(&mut self, mut decision: Decision) -> Result<(), Violation> {
        for effect in std::mem::take(&mut decision.at_once) {
            self.perform(effect)?;
        }
        if !decision.commit.is_empty() || !decision.then.is_empty() {
            self.undurable.push_back(decision);
            let life = self.life;
            self.soon(30, Happening::Durable { life });
        }
        Ok(())
    }

    /// One transaction for all that was decided up to now.
    fn make_durable(&mut self) -> Result<(), Violation> {
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

    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), Violation> {
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

    fn perform(&mut self, effect: Effect) -> Result<(), Violation> {
        let life = self.life;
        match effect {
            Effect::Reply { call, answer } => {
                let caller = self.calls.remove(&call).ok_or(format!("{call:?} was answered twice"))?;
                self.deliver(caller, answer)?;
            }
            Effect::Score { trajectory, .. } => self.soon(200, Happening::Judge { life, trajectory }),
            Effect::Publish(outgoing) => {
                self.to_publish.push(outgoing.of.trajectory_id);
                self.soon(2_000, Happening::Publish { life });
            }
            Effect::PublishGroup { record } => {
                self.groups_to_publish.push(record.group_id);
                self.soon(2_000, Happening::Publish { life });
            }
            Effect::CloseShards => self.soon(10, Happening::Publish { life }),
            Effect::Tell(_) => {}
            Effect::Over(Over::Drained { .. }) => return self.resume(),
            Effect::Over(over) => self.over = Some(over),
        }
        Ok(())
    }

    /// It stopped cleanly: everything that ended is published. Somebody starts it again.
    fn resume(&mut self) -> Result<(), Violation> {
        let core = self.core.as_ref().ok_or("a dead coordinator has drained")?;
        if core.leases.len() + core.scoring.len() + core.unpublished.len() > 0 {
            return Err(format!("it drained and left something: {core:?}"));
        }
        self.drained += 1;
        self.crash()
    }

    fn deliver(&mut self, caller: Caller, answer: Answer) -> Result<(), Violation> {
        let rpc = match caller {
            Caller::Env(rpc) => rpc,
            Caller::Policy(policy) => {
                match answer {
                    Answer::Heard { known: false, .. } => return self.register_policy(policy),
                    Answer::Heard { weights: Some(order), .. }
                    | Answer::Registered { weights: Some(order), .. } => {
                        self.follow_order(policy, order.version.0, order.taken);
                    }
                    _ => {}
                }
                return Ok(());
            }
            Caller::Trainer => {
                return match answer {
                    Answer::Discarded { .. } => Ok(()),
                    other => Err(format!("what was published was discarded: {other:?}")),
                };
            }
        };
        let reply = match answer {
            Answer::Go { .. } => {
                let life = self.life;
                self.soon(20, Happening::Append { life, rpc });
                return Ok(());
            }
            Answer::Finished => {
                if let Ask::Finish { trajectory, report, .. } = &rpc.ask {
                    self.acknowledged.insert(trajectory.clone(), report.end);
                }
                Reply::Acknowledged
            }
            Answer::Registered { .. } => Reply::Registered,
            Answer::Heard { known, .. } => Reply::Heard { known },
            Answer::Leased { grants, .. } => Reply::Leased { grants },
            Answer::Renewed { lost, moves } => Reply::Renewed { lost, moves },
            Answer::Refused(_) => Reply::Refused,
            other => return Err(format!("nobody asked for {other:?}")),
        };
        self.send_back(rpc, reply);
        Ok(())
    }

    fn send_back(&mut self, rpc: Rpc, reply: Reply) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, Happening::Answered(rpc, reply));
        }
    }

    fn arrive(&mut self, rpc: Rpc) -> Result<(), Violation> {
        if self.core.is_none() {
            return Ok(());
        }
        let call = self.call(Caller::Env(rpc.clone()));
        let worker = Id::new(env_name(&rpc)).map_err(|error| error.to_string())?;
        self.apply(match rpc.ask {
            Ask::Register => Event::RegisterEnv { call, worker, sessions_max: 4 },
            Ask::Heartbeat => Event::Heartbeat {
                call,
                worker: worker_id(&env_name(&rpc)),
                run: WeightsRun::default(),
                health: Health::default(),
            },
            Ask::Lease => {
                let free = 4 - self.envs[rpc.env].holds.len().min(4) as u32;
                Event::Lease { call, worker, slots: free, wait_millis: 1_000 }
            }
            Ask::Renew => {
                let held = self.envs[rpc.env].holds.iter().map(|(id, hold)| (id.clone(), hold.token));
                Event::Renew { call, worker, held: held.collect() }
            }
            Ask::Step { trajectory, token, .. } => Event::StepArrived { call, trajectory, token },
            Ask::Finish { trajectory, token, report } => {
                Event::EndingArrived { call, trajectory, token, digest: report.digest }
            }
        })
    }

    fn call(&mut self, caller: Caller) -> Call {
        self.next_call += 1;
        self.calls.insert(Call(self.next_call), caller);
        Call(self.next_call)
    }

    /// The spool takes a step or an ending that the core let through.
    fn append(&mut self, rpc: Rpc) -> Result<(), Violation> {
        match rpc.ask.clone() {
            Ask::Step { trajectory, step, .. } => {
                let file = self.spool.entry(trajectory.clone()).or_default();
                if step > file.steps || (file.ending.is_some() && step >= file.steps) {
                    self.send_back(rpc, Reply::Refused);
                    return Ok(());
                }
                file.steps = file.steps.max(step + 1);
                let policy_versions = self.version_of(&rpc, &trajectory).map(|version| (version, version));
                if let Some((version, _)) = policy_versions {
                    let range = self.evaluated_on.entry(trajectory.clone()).or_insert((version, version));
                    *range = (range.0.min(version), range.1.max(version));
                }
                self.apply(Event::StepKept { trajectory, step, policy_versions })?;
                self.send_back(rpc, Reply::Acknowledged);
                Ok(())
            }
            Ask::Finish { trajectory, token, report } => {
                self.spool.entry(trajectory.clone()).or_default().ending = Some(report.clone());
                let call = self.call(Caller::Env(rpc));
                self.apply(Event::EndingKept { call, trajectory, token, ending: report })
            }
            _ => Err("only steps and endings are spooled".into()),
        }
    }

    fn judge(&mut self, trajectory: Id<Trajectory>) -> Result<(), Violation> {
        // Its group may have had enough meanwhile, and its rows may be in the data set: its scorer finds nothing, and nobody waits for it.
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
            Ok(Verdict { score: score(&report), micros: 10 })
        };
        self.apply(Event::Judged { trajectory, verdict })
    }

    /// The disk turns a bit of what one scored trajectory waits in; the publisher finds it and leaves the trajectory out, and the row of
    /// its group.
    fn damage(&mut self) -> Result<(), Violation> {
        let is_scored = |id: &&Id<Trajectory>| self.scored.contains(id) && !self.damaged.contains(*id);
        let Some(trajectory) = self.to_publish.iter().find(is_scored).cloned() else { return Ok(()) };
        self.to_publish.retain(|waiting| *waiting != trajectory);
        let group = group_name(&trajectory).to_owned();
        self.groups_to_publish.retain(|waiting| waiting.as_str() != group);
        self.damaged.insert(trajectory.clone());
        self.apply(Event::RecordLost { trajectory, steps: 0, why: "the CRC is another".into() })
    }

    fn open_shard(&mut self) -> Result<(), Violation> {
        if !self.is_calm() && self.one_in(8) {
            self.damage()?;
        }
        let trajectories = std::mem::take(&mut self.to_publish);
        let groups = std::mem::take(&mut self.groups_to_publish);
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
        self.at(self.now, Happening::ShardWritten { life, opening });
        Ok(())
    }

    fn publish_shard(&mut self, opening: &ShardOpening) -> Result<(), Violation> {
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
        self.commit(&[Mutation::ShardPublished { shard_id, manifest_version }])?;
        for trajectory in &opening.trajectories {
            self.spool.remove(trajectory);
        }
        let (trajectories, groups) = (opening.trajectories.clone(), opening.groups.clone());
        let shard = ShardNews { shard_id: opening.shard_id.clone(), version: manifest_version, bytes: 1 };
        self.apply(Event::Published { shard, trajectories, groups })
    }

    /// Dies between any two moments; some of what it had decided may have reached the disk unsaid.
    fn crash(&mut self) -> Result<(), Violation> {
        self.core = None;
        self.life += 1;
        let reached = self.chance.random_range(0..=self.undurable.len());
        let mutations: Vec<_> =
            self.undurable.drain(..).take(reached).flat_map(|decision| decision.commit).collect();
        self.commit(&mutations)?;
        self.undurable.clear();
        self.calls.clear();
        self.to_publish.clear();
        self.groups_to_publish.clear();
        self.soon(1_500, Happening::Restart);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Violation> {
        let run_id = Id::new("sim").map_err(|error| error.to_string())?;
        self.commit(&[Mutation::RunOpened(RunOpening { run_id, job_sha256: [1; 32], at_micros: 0 })])?;
        let shards = self.ledger.load().map_err(|error| error.to_string())?.shards;
        for shard in shards {
            self.commit(&[Mutation::ShardAbandoned { shard_id: shard.shard_id }])?;
        }
        let mut snapshot = self.ledger.load().map_err(|error| error.to_string())?;
        let run = snapshot.run.take().ok_or("the run is gone")?;
        let spooled = self.spool.iter().map(|(id, file)| {
            let ending = file.ending.as_ref().map(|report| report.digest);
            let policy_versions = self.evaluated_on.get(id).copied();
            (id.clone(), Spooled { steps: file.steps, policy_versions, ending })
        });
        let now = Now { millis: self.now, wall_micros: self.now as i64 * 1000 };
        let (core, decision) = Core::start(
            self.rules.clone(),
            Arc::new(TinyPlan { spares: self.spares, schedule: self.schedule }),
            (run, snapshot),
            &spooled.collect(),
            now,
        );
        self.core = Some(core);
        let life = self.life;
        self.soon(500, Happening::Tick { life });
        self.follow(decision)
    }
}

/// Everybody else.
impl World {
    fn fault(&mut self) -> Result<(), Violation> {
        if self.is_calm() {
            return Ok(());
        }
        self.soon(1_500, Happening::Fault);
        let env = self.chance.random_range(0..ENVS);
        match self.chance.random_range(0..8) {
            0 | 1 if self.core.is_some() => self.crash()?,
            2 => {
                self.envs[env] = Env { life: self.envs[env].life + 1, ..Env::default() };
                self.wake_env(env);
            }
            3..=5 => {
                let pause = self.chance.random_range(LEASE / 2..LEASE * 3);
                self.envs[env].stalled_until = self.now + pause;
            }
            6 => {
                let policy = self.chance.random_range(0..POLICIES);
                let pause = self.chance.random_range(100..LEASE * 3);
                let Policy { life, .. } = self.policies[policy];
                let dead_until = self.now + pause;
                self.policies[policy] = Policy { life: life + 1, dead_until, ..Policy::default() };
            }
            7 if self.core.is_some() && self.one_in(2) => self.apply(Event::Drain { call: None })?,
            _ if self.core.is_some() => {
                let rpc = Rpc { id: 0, env, life: self.envs[env].life, ask: Ask::Heartbeat };
                self.leave(&rpc)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn leave(&mut self, rpc: &Rpc) -> Result<(), Violation> {
        let name = env_name(rpc);
        self.envs[rpc.env] = Env { life: rpc.life + 1, ..Env::default() };
        self.wake_env(rpc.env);
        let call = self.call(Caller::Policy(0)); // nobody listens any more
        self.apply(Event::Leave { call, worker: worker_id(&name) })
    }

    fn wake_env(&mut self, env: usize) {
        let life = self.envs[env].life;
        self.soon(BEAT, Happening::Beat { env, life });
        self.soon(BEAT, Happening::Seek { env, life });
    }

    fn send(&mut self, env: usize, ask: Ask) {
        self.scheduled += 1;
        let rpc = Rpc { id: self.scheduled, env, life: self.envs[env].life, ask };
        self.envs[env].unanswered.insert(rpc.id);
        self.transmit(rpc);
    }

    fn transmit(&mut self, rpc: Rpc) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, Happening::Arrive(rpc.clone()));
        }
        self.at(self.now + 2_500, Happening::Timeout(rpc));
    }

    /// The worker this concerns, if it is in that life still and awake; when it is stalled, everything waits until it wakes.
    fn awake(&mut self, env: usize, life: u32, later: impl FnOnce() -> Happening) -> Option<&mut Env> {
        let until = self.envs[env].stalled_until;
        if self.envs[env].life == life && until > self.now {
            self.at(until, later());
        }
        let env = &mut self.envs[env];
        (env.life == life && until <= self.now).then_some(env)
    }

    /// Nobody answered: the very same once more.
    fn repeat(&mut self, rpc: Rpc) {
        let again = rpc.clone();
        let Some(env) = self.awake(rpc.env, rpc.life, || Happening::Timeout(again)) else { return };
        if !env.unanswered.contains(&rpc.id) {
            return;
        }
        match rpc.ask {
            Ask::Step { .. } | Ask::Finish { .. } => self.transmit(rpc),
            Ask::Lease => {
                env.unanswered.remove(&rpc.id);
                env.asking = false;
            }
            _ => {
                env.unanswered.remove(&rpc.id);
            }
        }
    }

    fn beat(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || Happening::Beat { env, life }) else { return };
        let first = if state.registered { Ask::Heartbeat } else { Ask::Register };
        let holds = !state.holds.is_empty();
        self.send(env, first);
        if holds {
            self.send(env, Ask::Renew);
        }
        self.at(self.now + BEAT, Happening::Beat { env, life });
    }

    fn seek(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || Happening::Seek { env, life }) else { return };
        if state.registered && !state.asking && state.holds.len() < 4 {
            state.asking = true;
            self.send(env, Ask::Lease);
        }
        self.at(self.now + 300, Happening::Seek { env, life });
    }

    fn act(&mut self, env: usize, life: u32, trajectory: Id<Trajectory>) {
        let (now, again) = (self.now, trajectory.clone());
        let later = || Happening::Act { env, life, trajectory: again };
        let Some(policy) = self
            .awake(env, life, later)
            .and_then(|state| state.holds.get(&trajectory).map(|hold| hold.policy.clone()))
        else {
            return;
        };
        let is_there = self.policy_lives(&policy);
        let Some(hold) = self.envs[env].holds.get_mut(&trajectory) else { return };
        let token = hold.token;
        if hold.steps == hold.steps_planned {
            let report = Reported { steps: hold.steps, ..hold.report.clone() };
            self.send(env, Ask::Finish { trajectory, token, report });
        } else if is_there {
            hold.stuck_since = None;
            let step = hold.steps;
            self.send(env, Ask::Step { trajectory, token, step });
        } else if now - *hold.stuck_since.get_or_insert(now) > 2 * LEASE {
            hold.steps_planned = hold.steps;
            hold.report = Reported {
                end: End::PolicyFault,
                evidence_sha256: None,
                ..report(&trajectory, End::Done, 0)
            };
            self.at(now + 1, Happening::Act { env, life, trajectory });
        } else {
            self.at(now + 400, Happening::Act { env, life, trajectory });
        }
    }

    fn answered(&mut self, rpc: Rpc, reply: Reply) {
        let env = rpc.env;
        if self.envs[env].life == rpc.life && self.envs[env].stalled_until > self.now {
            return self.at(self.envs[env].stalled_until, Happening::Answered(rpc, reply));
        }
        if self.envs[env].life != rpc.life || !self.envs[env].unanswered.remove(&rpc.id) {
            return;
        }
        match (rpc.ask, reply) {
            (Ask::Register, Reply::Registered) => self.envs[env].registered = true,
            (Ask::Heartbeat, Reply::Heard { known: false }) => self.envs[env].registered = false,
            (Ask::Lease, Reply::Leased { grants }) => {
                self.envs[env].asking = false;
                grants.into_iter().for_each(|grant| self.hold(env, grant));
            }
            (Ask::Lease, _) => self.envs[env].asking = false,
            (Ask::Renew, Reply::Renewed { lost, moves }) => {
                self.envs[env].holds.retain(|trajectory, _| !lost.contains(trajectory));
                for (trajectory, address) in moves {
                    if let Some(hold) = self.envs[env].holds.get_mut(&trajectory) {
                        hold.policy = address;
                    }
                }
            }
            (Ask::Step { trajectory, .. }, Reply::Acknowledged) => {
                let life = rpc.life;
                if let Some(hold) = self.envs[env].holds.get_mut(&trajectory) {
                    hold.steps += 1;
                    self.soon(1_000, Happening::Act { env, life, trajectory });
                }
            }
            (Ask::Step { trajectory, .. } | Ask::Finish { trajectory, .. }, _) => {
                self.envs[env].holds.remove(&trajectory);
            }
            _ => {}
        }
    }

    fn hold(&mut self, env: usize, grant: Grant) {
        let ends = [
            End::Answered,
            End::Answered,
            End::Done,
            End::MaxSteps,
            End::PageHang,
            End::EnvCrash,
            End::BrowserDead,
        ];
        let end = ends[self.chance.random_range(0..ends.len())];
        let trajectory = grant.of.trajectory_id;
        let evidence = self.chance.random_range(0..8);
        let hold = Hold {
            token: grant.token,
            steps: 0,
            steps_planned: self.chance.random_range(0..6),
            report: report(&trajectory, end, evidence),
            policy: grant.policy_address,
            stuck_since: None,
        };
        self.envs[env].holds.insert(trajectory.clone(), hold);
        let life = self.envs[env].life;
        self.soon(500, Happening::Act { env, life, trajectory });
    }

    fn policy_lives(&self, address: &str) -> bool {
        (0..POLICIES)
            .any(|policy| policy_name(policy, &self.policies[policy]) == address && self.is_up(policy))
    }

    fn is_up(&self, policy: usize) -> bool {
        self.policies[policy].dead_until <= self.now
    }

    fn policy_beat(&mut self, policy: usize) -> Result<(), Violation> {
        self.at(self.now + BEAT, Happening::PolicyBeat { policy });
        if !self.is_up(policy) || self.core.is_none() {
            return Ok(());
        }
        let worker = worker_id(&policy_name(policy, &self.policies[policy]));
        let (call, run) = (self.call(Caller::Policy(policy)), self.run_of(policy));
        self.apply(Event::Heartbeat { call, worker, run, health: Health::default() })
    }

    /// One of the readers of a trainer that discards whatever is published; some reports are lost, and each says all.
    fn report(&mut self, rank: u32) -> Result<(), Violation> {
        self.soon(1_000, Happening::Report { rank });
        let is_lost = !self.is_calm() && self.one_in(3);
        if self.core.is_none() || is_lost {
            return Ok(());
        }
        let report = Discarded { rank, world: READERS, trajectories: self.discarded(rank) };
        let call = self.call(Caller::Trainer);
        self.apply(Event::Discarded { call, report })
    }

    /// Scored trajectories of the published groups that are a reader's.
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

    /// A trainer, as long as there is anything to disturb.
    fn train(&mut self) -> Result<(), Violation> {
        if !self.is_calm() {
            self.soon(2_000, Happening::Train);
        }
        if self.core.is_none() {
            return Ok(());
        }
        self.published += 1;
        let publication = Publication {
            publication_id: format!("p{}", self.published),
            source: Source::Rollback { to: 0 },
            weights_sha256: None,
        };
        let call = self.call(Caller::Policy(0)); // nobody listens
        self.apply(Event::Publish { call, publication })
    }

    /// What could not be run is tried again if others run it.
    fn follow_order(&mut self, policy: usize, version: i32, taken: bool) {
        let Policy { life, runs, ordered, refused, .. } = self.policies[policy];
        let once_more = taken && refused == Some(version);
        if version > runs && (version != ordered || once_more) {
            self.policies[policy].ordered = version;
            self.soon(800, Happening::TakeUp { policy, life });
        }
    }

    /// What a policy worker says of its weights, where it has some.
    fn run_of(&self, policy: usize) -> WeightsRun {
        let version = self.has_weights.then_some(self.policies[policy].runs);
        let refused = self.policies[policy].refused.filter(|_| version.is_some());
        let refused = refused.map(|version| (version, "its file is torn".to_owned()));
        WeightsRun { version, weights_sha256: version.map(hash), refused }
    }

    /// What the policy worker of a trajectory runs as it acts.
    fn version_of(&self, rpc: &Rpc, trajectory: &Id<Trajectory>) -> Option<i32> {
        self.schedule?;
        let address = &self.envs[rpc.env].holds.get(trajectory)?.policy;
        let named = |policy: &usize| policy_name(*policy, &self.policies[*policy]) == *address;
        (0..POLICIES).find(named).map(|policy| self.policies[policy].runs)
    }

    fn register_policy(&mut self, policy: usize) -> Result<(), Violation> {
        let name = policy_name(policy, &self.policies[policy]);
        let worker: Id<PolicyWorker> = Id::new(&name).map_err(|error| error.to_string())?;
        let offer = PolicyOffer {
            address: name,
            kind: PolicyKind::Random,
            sessions_max: 6,
            version: self.run_of(policy).version,
            hashes: Hashes::default(),
        };
        let (call, run) = (self.call(Caller::Policy(policy)), self.run_of(policy));
        self.apply(Event::RegisterPolicy { call, worker, offer, run })
    }
}

/// What must be true in the end.
impl World {
    fn check_harvest(&mut self) -> Result<(), Violation> {
        if self.over != Some(Over::Complete) {
            return Err(format!("it ended as {:?}", self.over));
        }
        let snapshot = self.ledger.load().map_err(|error| error.to_string())?;
        let core = self.core.as_ref().ok_or("the coordinator is dead")?;
        if !snapshot.groups.is_empty() || core.leases.len() + core.groups.len() + core.scoring.len() > 0 {
            return Err(format!("something is left open: {:?}, {core:?}", snapshot.groups));
        }
        let progress = core.progress();
        let want = (GROUPS, progress.scored + progress.failed.values().sum::<u64>());
        if (progress.groups_closed, progress.published) != want {
            return Err(format!("the sums do not agree: {progress:?}"));
        }
        self.check_rows()?;
        self.check_evaluations(&snapshot.evaluations)
    }

    /// Every evaluation came to its end, on problems drawn once and trajectories of one version.
    fn check_evaluations(&mut self, rows: &[EvaluationRow]) -> Result<(), Violation> {
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
            Some(row) => Err(format!("more was evaluated than there is: {row:?}")),
            None => Ok(()),
        }
    }

    /// Every acknowledged end is in the data set once, as it was reported; every slot is scored at most once.
    fn check_rows(&self) -> Result<(), Violation> {
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
                    "{trajectory} was acknowledged and is there {:?} times",
                    rows.get(trajectory)
                ));
            }
            // Without evidence it is a page crash, and a scorer may fail; nothing else may become of it.
            let end = self.ended.get(trajectory);
            // Of a cut evaluation, too.
            let may_be_late = self.spares > 0 || self.schedule.is_some();
            let is_late = may_be_late && end == Some(&End::Cancelled);
            let is_lost = end == Some(&End::RecordLost) && self.damaged.contains(trajectory);
            if !is_late
                && !is_lost
                && !end.is_some_and(|end| [*reported, End::PageCrash, End::ScorerError].contains(end))
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

fn policy_name(index: usize, policy: &Policy) -> String {
    format!("policy{index}.{}", policy.life)
}

fn worker_id(name: &str) -> WorkerId {
    WorkerId { env: Id::new(name).unwrap(), policy: Id::new(name).unwrap() }
}

fn report(trajectory: &Id<Trajectory>, end: End, evidence: u32) -> Reported {
    Reported {
        end,
        reason: String::new(),
        // One in eight saw nothing.
        evidence_sha256: (evidence > 0).then_some([evidence as u8; 32]),
        steps: 0,
        digest: furrow_wire::digest(format!("{trajectory} {end:?} {evidence}").as_bytes()),
    }
}

fn score(report: &Reported) -> Score {
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

/// Seeds to try: as many as `FURROW_SIM_SEEDS` says, or as usual.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("FURROW_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    0..asked.unwrap_or(usual)
}

#[test]
fn nothing_is_lost_nothing_is_twice_and_every_seed_replays() {
    let (mut kills, mut drains, mut stale) = (0, 0, 0);
    let (mut complete, mut cut) = (0, 0);
    let (mut taken, mut refused, mut lags, mut paused) = (0, 0, 0, 0);
    for seed in seeds(SEEDS) {
        let mut world = simulate(seed, true).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        let again = simulate(seed, true).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(world.log == again.log, "seed {seed} was decided otherwise when it was played again");
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
                matches!(effect, Effect::Tell(Notice::Paused { reason: PauseReason::OffPolicy, .. }))
            };
            paused += decision.at_once.iter().filter(is_paced).count() as u64;
            let lag = |effect: &&Effect| matches!(effect, Effect::Tell(Notice::VersionLags { .. }));
            lags += decision.at_once.iter().chain(&decision.then).filter(lag).count() as u64;
        }
    }
    let seeds = seeds(SEEDS).end;
    println!("{seeds} seeds: {kills} coordinators killed, {drains} drained, {stale} stale calls refused");
    println!("{complete} evaluations complete, {cut} cut");
    println!("{taken} versions taken, {refused} refused, {lags} times a worker could not run one");
    println!("{paused} times nothing was lent until what was discarded was reported");
    // Few seeds prove nothing about how often something happens.
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
    // An assertion of the core that catches it is as good.
    let refused = |violation: &Violation| violation.starts_with("the ledger refused");
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
        let Effect::Reply { answer: Answer::Refused(refused), .. } = effect else { return false };
        matches!(refused, super::Refused::Stale { .. })
    };
    decision.at_once.iter().any(stale)
}

/// The state a restarted coordinator comes to is the one it had, as far as it decides anything.
#[test]
fn a_restart_forgets_nothing_that_was_durable() {
    for seed in 0..100 {
        let mut world = World::new(seed, true);
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
            let lent: BTreeSet<_> =
                core.leases.iter().map(|lease| lease.start.trajectory_id.clone()).collect();
            let open = |standing: &Standing| matches!(standing, Standing::Assigned);
            let durable: BTreeSet<_> = snapshot
                .trajectories
                .iter()
                .filter(|row| open(&row.standing))
                .map(|row| row.start.trajectory_id.clone())
                .collect();
            assert_eq!(lent, durable, "seed {seed} at {}", world.now);
            let scored = core.tally.scored;
            assert_eq!(scored, snapshot.totals.scored, "seed {seed} at {}", world.now);
        }
    }
}
