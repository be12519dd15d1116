//! The core in a simulated farm: workers that crash, stall and repeat themselves, a network that
//! loses messages, a coordinator that dies at any moment; a ledger, a spool and a data set that
//! survive it.
//!
//! Everything derives from one seed. Faults stop after a while, so that a job that does not end is
//! a bug. Run more seeds with
//! `FURROW_SIM_SEEDS=100000 cargo test -p furrow-coordinator --release simulation`.

mod coordinator;
mod invariants;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use furrow_records::{Table, WrittenFile};
use furrow_rollout::{
    EndKind, Group as GroupId, Id, LEASE_SECRET_BYTES, LeaseProof, LeaseSecret, PolicyHashes, PolicyKind,
    PolicyWorker, Score, Split, Trajectory, WeightsForm, WeightsLink, WeightsOrder,
};
use furrow_telemetry::PauseReason;
use furrow_wire::{Caller, Peer, PeerRole};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::{
    CallId, CallRefusal, CallResponse, Core, CoreNotice, CoreRules, Decision, DiscardReport, Effect,
    EvaluationSchedule, Event, EventTime, GroupPlan, HeartbeatStatus, JobOutcome, LeaseClaim, LeaseGrant,
    ReportedEnd, SampledTask, ShardSummary, SpoolProgress, TaskTallies, WeightsPublication, WeightsReport,
    WorkerId,
};
use crate::assign::{AdmissionPacing, PolicyOffer};
use crate::lease_secret::SecretSource;
use crate::ledger::{
    EvaluationRow, EvaluationStanding, Ledger, MemoryLedger, Mutation, RunOpening, ShardOpening, TimedScore,
    TrajectoryStanding,
};
use crate::versions::tests::hash;
use crate::versions::{VersionSource, VersionState};

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
const SEEDS: u64 = 200;

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
    seed: u64,
    chance: ChaCha12Rng,
    /// In two thirds of the runs weights are published; in half of these every second version is
    /// evaluated.
    has_weights: bool,
    schedule: Option<EvaluationSchedule>,
    /// Number of published weights; `evaluated_on` holds what each trajectory of an evaluation was
    /// leased on.
    published: u32,
    /// Published directories whose weights are broken, and the versions withdrawn so far.
    broken: BTreeSet<String>,
    withdrawn: BTreeSet<i32>,
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
    /// What every lease so far came with, and how many calls with another's were refused.
    proofs: Vec<LeaseProof>,
    forged: u64,
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
    proof: LeaseProof,
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
    /// The directory of the version it runs and of the ordered one; none for what the job names.
    directory: Option<String>,
    ordered_directory: Option<String>,
    /// Whether its own version is broken, and the first version that was.
    is_broken: bool,
    broke_on: Option<i32>,
    beats: u32,
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
    Step { proof: LeaseProof, step: u32 },
    Finish { proof: LeaseProof, report: ReportedEnd },
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
    Forger,
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
    Break { policy: usize, life: u32, version: i32 },
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
            failures_free: Some(0),
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
            seed,
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
            broken: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
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
            proofs: Vec::new(),
            forged: 0,
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
            SimulatedEvent::Arrive(rpc) => self.arrive(&rpc),
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
                self.take_up(policy, life);
                Ok(())
            }
            SimulatedEvent::Break { policy, life, version } => {
                self.break_version(policy, life, version);
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

fn peer(name: &str) -> Caller {
    Caller::identified(Peer::of_run(Id::new("sim").unwrap(), PeerRole::Env, name))
}

fn worker_id(name: &str) -> WorkerId {
    WorkerId { env: Id::new(name).ok(), policy: Id::new(name).ok() }
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
    let mut withdrawn = 0;
    let mut paused = 0;
    let mut forged = 0;
    for seed in seeds(SEEDS) {
        let mut world = simulate(seed, true).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        let second = simulate(seed, true).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(world.log == second.log, "seed {seed} gave other decisions in its second run");
        for row in world.ledger.load().unwrap().evaluations {
            complete += u64::from(row.standing == EvaluationStanding::Complete);
            cut += u64::from(matches!(row.standing, EvaluationStanding::Cut { .. }));
        }
        kills += world.life - world.drained;
        drains += world.drained;
        forged += world.forged;
        stale += world.log.iter().filter(|(_, decision)| is_fenced(decision)).count() as u64 - world.forged;
        for (_, decision) in &world.log {
            let is = |of: fn(&Mutation) -> bool| decision.commit.iter().filter(|one| of(one)).count() as u64;
            taken += is(|mutation| matches!(mutation, Mutation::VersionTaken { .. }));
            refused += is(|mutation| matches!(mutation, Mutation::VersionRefused { .. }));
            withdrawn += is(|mutation| matches!(mutation, Mutation::VersionWithdrawn { .. }));
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
    println!("{withdrawn} versions withdrawn");
    println!("{forged} calls with another's secret, token or identity refused, none accepted");
    println!("{paused} times nothing was leased until discards were reported");
    // A few seeds say little about how often something happens.
    assert!(seeds < 100 || u64::from(kills) > seeds && u64::from(drains) > seeds / 8 && stale > seeds / 4);
    assert!(seeds < 100 || paused > seeds, "{paused}");
    assert!(seeds < 100 || forged > seeds, "{forged}");
    assert!(seeds < 100 || complete > seeds / 4 && cut > seeds / 20, "{complete} {cut}");
    assert!(
        seeds < 100 || taken > seeds / 4 && refused > seeds / 50 && lags > seeds / 10,
        "{taken} {refused} {lags}"
    );
    assert!(seeds < 100 || withdrawn > seeds / 10, "{withdrawn}");
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
        matches!(refused, CallRefusal::Stale { .. })
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
