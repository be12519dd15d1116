//! Single decisions of the core, one test per rule. The simulation covers how they interact.

mod admission;
mod endings;
mod evaluations;
mod leases;
mod restarts;
mod secrets;
mod weights;
mod withdrawal;

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{EndKind, Id, LeaseProof, PolicyHashes, PolicyKind, Score, Split, Trajectory};
use furrow_telemetry::{PauseReason, WorkerKind};
use furrow_wire::Caller;

use super::{
    CallId, CallRefusal, CallResponse, Core, CoreNotice, CoreRules, Decision, DiscardReport, Effect,
    EvaluationResult, EvaluationSchedule, Event, EventTime, GroupPlan, HeartbeatStatus, JobOutcome,
    LeaseClaim, LeaseGrant, ReportedEnd, SampledTask, ShardSummary, SpoolProgress, TaskTallies,
    WeightsPublication, WeightsReport, WeightsStanding, WorkerId,
};
use crate::assign::{AdmissionPacing, PolicyOffer};
use crate::lease_secret::SecretSource;
use crate::ledger::{Ledger, MemoryLedger, Mutation, RunOpening, TimedScore};
use crate::versions::tests::hash;
use crate::versions::{VersionSource, VersionState};

/// A core whose decisions are durable at once.
struct CoreFixture {
    core: Core,
    ledger: Box<dyn Ledger>,
    rules: CoreRules,
    groups: u64,
    group_size: u32,
    needs: u32,
    schedule: Option<EvaluationSchedule>,
    millis: u64,
    calls: u64,
    /// Effects since they were last checked, answers excluded.
    effects: Vec<Effect>,
}

struct FixedPlan(u64, u32, u32, Option<EvaluationSchedule>);

impl GroupPlan for FixedPlan {
    fn groups(&self) -> u64 {
        self.0
    }
    fn group_size(&self) -> u32 {
        self.1
    }
    fn group_needs(&self) -> u32 {
        self.2
    }
    fn draw(&self, index: u64, _tallies: &TaskTallies) -> SampledTask {
        SampledTask {
            suite: "starter".into(),
            task_id: "click".into(),
            split: Split::Train,
            seed: index,
            task_json: "{}".into(),
            chance: None,
        }
    }
    fn schedule(&self) -> Option<EvaluationSchedule> {
        self.3
    }
    fn problem(&self, index: u64) -> SampledTask {
        SampledTask {
            split: Split::Eval,
            task_id: format!("held out {index}"),
            ..self.draw(index, &TaskTallies::new())
        }
    }
}

/// A policy worker's report that it runs a version.
fn runs(version: i32) -> WeightsReport {
    WeightsReport { version: Some(version), weights_sha256: Some(hash(version)), refused: None }
}

fn rules() -> CoreRules {
    CoreRules {
        attempts_max: 3,
        failure_budget: 1.0,
        failures_free: Some(0),
        lease_millis: 1_000,
        heartbeat_millis: 100,
        lease_wait_millis: 500,
        leases_per_call_max: 16,
        drain_grace_millis: 300,
        score_attempts_max: 2,
        backlog_max: 100,
        pacing: None,
        fencing: true,
    }
}

impl CoreFixture {
    fn new(groups: u64, group_size: u32, rules: CoreRules) -> Self {
        Self::sparing(groups, (group_size, group_size), rules)
    }

    /// With groups that need fewer trajectories than they have slots.
    fn sparing(groups: u64, sizes: (u32, u32), rules: CoreRules) -> Self {
        Self::scheduled(groups, sizes, rules, None)
    }

    fn scheduled(
        groups: u64,
        sizes: (u32, u32),
        rules: CoreRules,
        schedule: Option<EvaluationSchedule>,
    ) -> Self {
        Self::on(Box::<MemoryLedger>::default(), groups, sizes, rules, schedule)
    }

    fn on(
        mut ledger: Box<dyn Ledger>,
        groups: u64,
        (group_size, needs): (u32, u32),
        rules: CoreRules,
        schedule: Option<EvaluationSchedule>,
    ) -> Self {
        let plan = FixedPlan(groups, group_size, needs, schedule);
        let core = started(&mut *ledger, &rules, plan, &BTreeMap::new(), 0).0;
        let millis = 0;
        let calls = 0;
        let effects = Vec::new();
        Self { core, ledger, rules, groups, group_size, needs, schedule, millis, calls, effects }
    }

    /// With an environment worker and a policy worker of eight sessions each.
    fn staffed(groups: u64, group_size: u32, rules: CoreRules) -> Self {
        let mut office = Self::new(groups, group_size, rules);
        office.env("env", 8);
        office.policy("policy", "there:1", 8);
        office
    }

    fn restart(&mut self, spooled: &BTreeMap<Id<Trajectory>, SpoolProgress>) {
        let plan = FixedPlan(self.groups, self.group_size, self.needs, self.schedule);
        let (core, decision) = started(&mut *self.ledger, &self.rules, plan, spooled, self.millis);
        self.core = core;
        self.effects.clear();
        self.keep(decision, None);
    }

    fn apply(&mut self, event: Event) {
        let now = EventTime { millis: self.millis, wall_micros: self.millis as i64 * 1000 };
        let decision = self.core.apply(event, now);
        self.keep(decision, None);
    }

    /// Applies an event and returns its answer, if there is one at once.
    fn try_request(&mut self, event: impl FnOnce(CallId) -> Event) -> Option<CallResponse> {
        self.calls += 1;
        let call = CallId(self.calls);
        let now = EventTime { millis: self.millis, wall_micros: self.millis as i64 * 1000 };
        let decision = self.core.apply(event(call), now);
        self.keep(decision, Some(call))
    }

    fn request(&mut self, event: impl FnOnce(CallId) -> Event) -> CallResponse {
        self.try_request(event).expect("an answer")
    }

    fn keep(&mut self, decision: Decision, awaited: Option<CallId>) -> Option<CallResponse> {
        self.ledger.commit(&decision.commit).expect("the ledger accepts what the core decides");
        let mut answered = None;
        for effect in decision.at_once.into_iter().chain(decision.then) {
            match effect {
                Effect::Reply { call, answer } if Some(call) == awaited => answered = Some(answer),
                effect => self.effects.push(effect),
            }
        }
        answered
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        self.apply(Event::Tick);
    }

    /// Passes this much time, in steps within which all workers stay alive.
    fn pass_alive(&mut self, millis: u64) {
        for _ in 0..millis / 100 {
            for name in ["env", "policy", "other"] {
                self.request(|call| Event::Heartbeat {
                    call,
                    worker: worker(name),
                    run: WeightsReport::default(),
                    health: HeartbeatStatus::default(),
                });
            }
            self.pass(100);
        }
    }

    fn env(&mut self, name: &str, sessions_max: u32) {
        let worker = Id::new(name).unwrap();
        self.request(|call| Event::RegisterEnv { call, worker, sessions_max });
    }

    fn policy(&mut self, name: &str, address: &str, sessions_max: u32) {
        let offer = PolicyOffer {
            address: address.into(),
            kind: PolicyKind::Random,
            sessions_max,
            version: Some(0),
            hashes: PolicyHashes::default(),
        };
        let worker = Id::new(name).unwrap();
        self.request(|call| Event::RegisterPolicy { call, worker, offer, run: WeightsReport::default() });
    }

    fn try_lease(&mut self, slots: u32) -> Option<(Vec<LeaseGrant>, bool)> {
        let worker = Id::new("env").unwrap();
        match self.try_request(|call| Event::Lease { call, worker, slots, wait_millis: 0 })? {
            CallResponse::Leased { grants, run_over } => Some((grants, run_over)),
            other => panic!("{other:?}"),
        }
    }

    fn lease(&mut self, slots: u32) -> Vec<LeaseGrant> {
        self.try_lease(slots).expect("an answer").0
    }

    fn renew(&mut self, grant: &LeaseGrant) -> (usize, Vec<(Id<Trajectory>, String)>) {
        self.renew_as("env", grant.proof())
    }

    fn renew_as(&mut self, worker: &str, lease: LeaseProof) -> (usize, Vec<(Id<Trajectory>, String)>) {
        let worker = Id::new(worker).unwrap();
        match self.request(|call| Event::Renew { call, worker, leases: vec![lease] }) {
            CallResponse::Renewed { lost, moves } => (lost.len(), moves),
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, grant: &LeaseGrant, end: EndKind) -> CallResponse {
        self.report(grant, ReportedEnd { end, ..answered() })
    }

    fn report(&mut self, grant: &LeaseGrant, ending: ReportedEnd) -> CallResponse {
        let claim = grant.claim();
        self.request(|call| Event::EndingKept { call, claim, ending })
    }

    fn score(&mut self, grant: &LeaseGrant, reward: f32) {
        let verdict = Ok(verdict(Some(reward), [5; 32]));
        self.apply(Event::Scored { trajectory: grant.of.trajectory_id.clone(), verdict });
    }

    /// Acts a trajectory to its end and scores it with 1 and this success.
    fn score_as(&mut self, grant: &LeaseGrant, success: Option<bool>) {
        let mut verdict = verdict(Some(1.0), [5; 32]);
        verdict.score.success = success;
        self.apply(Event::Scored { trajectory: grant.of.trajectory_id.clone(), verdict: Ok(verdict) });
    }

    /// Acts a trajectory to its end and scores it.
    fn answer(&mut self, grant: &LeaseGrant, reward: f32) {
        self.end(grant, EndKind::Answered);
        self.score(grant, reward);
    }

    /// A trainer's report; returns the totals of the answer, or why it was refused.
    fn discard(&mut self, (rank, world): (u32, u32), trajectories: u64) -> Result<(u64, u64), CallRefusal> {
        match self
            .request(|call| Event::Discarded { call, report: DiscardReport { rank, world, trajectories } })
        {
            CallResponse::Discarded { discarded, accepted } => Ok((discarded, accepted)),
            CallResponse::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    fn commit_all(&mut self) {
        let mut trajectories = Vec::new();
        let mut groups = Vec::new();
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::CommitTrajectory(outgoing) => trajectories.push(outgoing.of.trajectory_id),
                Effect::CommitGroup { record } => groups.push(record.group_id),
                other => self.effects.push(other),
            }
        }
        let shard = ShardSummary { shard_id: Id::new("shard").unwrap(), version: 0, bytes: 1 };
        self.apply(Event::ShardCommitted { shard, trajectories, groups });
    }

    /// The committer cannot read a record back.
    fn lose_record(&mut self, grant: &LeaseGrant) {
        let trajectory = grant.of.trajectory_id.clone();
        let why = "the CRC is another".to_owned();
        self.apply(Event::RecordLost { trajectory, steps: 1, why });
    }

    /// The rows of groups that were handed over, with their counts.
    fn group_rows(&self) -> Vec<(u32, u32, Option<f64>)> {
        let rows = self.effects.iter().filter_map(|effect| match effect {
            Effect::CommitGroup { record } => {
                let lost = record.failed.get("record_lost").copied().unwrap_or_default();
                Some((record.valid, lost, record.rewards.map(|rewards| rewards.mean)))
            }
            _ => None,
        });
        rows.collect()
    }

    fn take_over(&mut self) -> Option<JobOutcome> {
        let over = |effect: &Effect| match effect {
            Effect::Over(over) => Some(over.clone()),
            _ => None,
        };
        self.effects.iter().find_map(over)
    }

    fn failed(&self) -> Vec<(EndKind, bool)> {
        let failed = |effect: &Effect| match effect {
            Effect::Notify(CoreNotice::Failed { end, retried, .. }) => Some((*end, *retried)),
            _ => None,
        };
        self.effects.iter().filter_map(failed).collect()
    }

    fn count(&self, is_meant: impl Fn(&Effect) -> bool) -> usize {
        self.effects.iter().filter(|effect| is_meant(effect)).count()
    }

    fn pause(&self) -> Option<PauseReason> {
        self.core.pause_reason().map(|(reason, _)| reason)
    }
}

impl LeaseGrant {
    fn proof(&self) -> LeaseProof {
        LeaseProof {
            trajectory_id: self.of.trajectory_id.clone(),
            token: self.token,
            secret: self.secret.clone(),
        }
    }

    /// What its worker claims, on a server without identities.
    fn claim(&self) -> LeaseClaim {
        LeaseClaim { caller: Caller::default(), proof: self.proof() }
    }
}

fn started(
    ledger: &mut dyn Ledger,
    rules: &CoreRules,
    plan: FixedPlan,
    spooled: &BTreeMap<Id<Trajectory>, SpoolProgress>,
    millis: u64,
) -> (Core, Decision) {
    let run_id = Id::new("run").unwrap();
    ledger
        .commit(&[Mutation::RunOpened(RunOpening {
            run_id,
            job_sha256: [0; 32],
            began_sha256: None,
            at_micros: 0,
        })])
        .expect("the run opens");
    let mut snapshot = ledger.load().unwrap();
    let run = snapshot.run.take().unwrap();
    let now = EventTime { millis, wall_micros: millis as i64 * 1000 };
    let secrets = SecretSource::seeded(run.epoch);
    Core::start(rules.clone(), Arc::new(plan), (run, snapshot), spooled, secrets, now)
}

fn worker(name: &str) -> WorkerId {
    WorkerId { env: Id::new(name).ok(), policy: Id::new(name).ok() }
}

fn answered() -> ReportedEnd {
    ReportedEnd {
        end: EndKind::Answered,
        reason: String::new(),
        evidence_sha256: Some([5; 32]),
        steps: 0,
        digest: [1; 32],
    }
}

fn verdict(reward: Option<f32>, evidence_sha256: [u8; 32]) -> TimedScore {
    let score = Score {
        reward,
        success: reward.map(|reward| reward > 0.0),
        components: Vec::new(),
        scorer: "probe".into(),
        version: 1,
        rationale: "because".into(),
        evidence_sha256,
    };
    TimedScore { score, micros: 1 }
}

fn ids(grants: &[LeaseGrant]) -> Vec<&str> {
    grants.iter().map(|grant| grant.of.trajectory_id.as_str()).collect()
}

impl CoreFixture {
    /// A policy worker with weights registers, whether it just started or returns.
    fn model(&mut self, name: &str, run: WeightsReport) -> Option<i32> {
        let offer = PolicyOffer {
            address: format!("{name}:1"),
            kind: PolicyKind::Model,
            sessions_max: 8,
            version: run.version,
            hashes: PolicyHashes { weights: run.weights_sha256.clone(), ..PolicyHashes::default() },
        };
        let worker = Id::new(name).unwrap();
        match self.request(|call| Event::RegisterPolicy { call, worker, offer, run }) {
            CallResponse::Registered { weights, .. } => weights.map(|order| order.version.0),
            other => panic!("{other:?}"),
        }
    }

    /// The version that the answer to a heartbeat with this report orders.
    fn beat(&mut self, name: &str, run: WeightsReport) -> Option<i32> {
        self.order(name, run).map(|(version, _)| version)
    }

    /// The same, and whether any worker runs it.
    fn order(&mut self, name: &str, run: WeightsReport) -> Option<(i32, bool)> {
        match self.request(|call| Event::Heartbeat {
            call,
            worker: worker(name),
            run,
            health: HeartbeatStatus::default(),
        }) {
            CallResponse::HeartbeatAcknowledged { known: true, weights, .. } => {
                weights.map(|order| (order.version.0, order.taken))
            }
            other => panic!("{other:?}"),
        }
    }

    fn publish(&mut self, publication_id: &str, source: VersionSource) -> Result<(i32, bool), String> {
        let publication =
            WeightsPublication { publication_id: publication_id.into(), source, weights_sha256: None };
        match self.request(|call| Event::Publish { call, publication }) {
            CallResponse::VersionProposed { version, repeated } => Ok((version, repeated)),
            CallResponse::Refused(why) => Err(why.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn weights(&mut self, version: i32) -> WeightsStanding {
        match self.request(|call| Event::Weights { call, version }) {
            CallResponse::Weights(standing) => *standing,
            other => panic!("{other:?}"),
        }
    }

    /// The policy workers that new trajectories are leased to.
    fn serving(&self) -> Vec<String> {
        let names = self.core.policy_workers.keys();
        names.filter(|name| self.core.may_serve(name)).map(ToString::to_string).collect()
    }
}

fn full(directory: &str) -> VersionSource {
    let form = furrow_rollout::WeightsForm::Full;
    let link = furrow_rollout::WeightsLink { form, directory: directory.into() };
    VersionSource::Directory { link, base_version: 0 }
}

fn cannot(own: i32, version: i32) -> WeightsReport {
    WeightsReport { refused: Some((version, "its file is torn".into())), ..runs(own) }
}

/// Every second version is evaluated on two problems, two trajectories each; newer weights wait ten
/// seconds.
const SCHEDULE: EvaluationSchedule =
    EvaluationSchedule { every_versions: 2, problems: 2, group_size: 2, hold_millis: 10_000 };

impl CoreFixture {
    /// With an environment worker and a policy worker with weights, both of eight sessions.
    fn evaluating(groups: u64, rules: CoreRules) -> Self {
        let mut office = Self::scheduled(groups, (1, 1), rules, Some(SCHEDULE));
        office.env("env", 8);
        office.model("a", runs(0));
        office
    }

    /// Records a step of a trajectory that was acted on these versions.
    fn act(&mut self, grant: &LeaseGrant, policy_versions: (i32, i32)) {
        let trajectory = grant.of.trajectory_id.clone();
        self.apply(Event::StepKept { trajectory, step: 0, policy_versions: Some(policy_versions) });
    }

    /// Acts a trajectory on a version to its end and scores it.
    fn solve(&mut self, grant: &LeaseGrant, version: i32, reward: f32) {
        self.act(grant, (version, version));
        self.end(grant, EndKind::Done);
        self.score(grant, reward);
    }

    fn evaluated(&self) -> Vec<EvaluationResult> {
        let evaluated = |effect: &Effect| match effect {
            Effect::Notify(CoreNotice::EvaluationEnded(evaluated)) => Some(evaluated.clone()),
            _ => None,
        };
        self.effects.iter().filter_map(evaluated).collect()
    }

    fn weights_of(&mut self, version: i32) -> Option<String> {
        self.weights(version).workers.remove(0).lags
    }
}
