//! Single decisions of the core, one test per rule. The simulation covers how they interact.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{EndKind, Id, PolicyHashes, PolicyKind, Score, Split, Trajectory};
use furrow_telemetry::{PauseReason, WorkerKind};

use super::{
    CallId, CallRefusal, CallResponse, Core, CoreNotice, CoreRules, Decision, DiscardReport, Effect,
    EvaluationResult, EvaluationSchedule, Event, EventTime, GroupPlan, HeartbeatStatus, JobOutcome,
    LeaseGrant, ReportedEnd, SampledTask, ShardSummary, SpoolProgress, TaskTallies, WeightsPublication,
    WeightsReport, WeightsStanding, WorkerId,
};
use crate::assign::{AdmissionPacing, PolicyOffer};
use crate::ledger::{Ledger, MemoryLedger, Mutation, RunOpening, TimedScore};
use crate::versions::tests::hash;
use crate::versions::{VersionSource, VersionState};

/// A core whose decisions are durable at once.
struct CoreFixture {
    core: Core,
    ledger: MemoryLedger,
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
        failures_free: 0,
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
        (group_size, needs): (u32, u32),
        rules: CoreRules,
        schedule: Option<EvaluationSchedule>,
    ) -> Self {
        let mut ledger = MemoryLedger::default();
        let plan = FixedPlan(groups, group_size, needs, schedule);
        let core = started(&mut ledger, &rules, plan, &BTreeMap::new(), 0).0;
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
        let (core, decision) = started(&mut self.ledger, &self.rules, plan, spooled, self.millis);
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
        let leases = vec![(grant.of.trajectory_id.clone(), grant.token)];
        let worker = Id::new("env").unwrap();
        match self.request(|call| Event::Renew { call, worker, leases }) {
            CallResponse::Renewed { lost, moves } => (lost.len(), moves),
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, grant: &LeaseGrant, end: EndKind) -> CallResponse {
        self.report(grant, ReportedEnd { end, ..answered() })
    }

    fn report(&mut self, grant: &LeaseGrant, ending: ReportedEnd) -> CallResponse {
        let trajectory = grant.of.trajectory_id.clone();
        let token = grant.token;
        self.request(|call| Event::EndingKept { call, trajectory, token, ending })
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

fn started(
    ledger: &mut MemoryLedger,
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
    Core::start(rules.clone(), Arc::new(plan), (run, snapshot), spooled, now)
}

fn worker(name: &str) -> WorkerId {
    WorkerId { env: Id::new(name).unwrap(), policy: Id::new(name).unwrap() }
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

#[test]
fn a_lost_record_of_an_open_group_is_tried_again() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let [first, second] = office.lease(2).try_into().unwrap();
    office.answer(&first, 1.0);
    office.lose_record(&first);
    assert_eq!(office.failed(), [(EndKind::RecordLost, true)]);
    assert_eq!(
        (office.core.tally.scored, office.core.tally.reward_sum, office.core.tally.successes),
        (0, 0.0, 0)
    );
    let retries = office.lease(2);
    assert_eq!((retries[0].of.sample_index, retries[0].of.attempt), (first.of.sample_index, 1));
    office.answer(&retries[0], 0.0);
    office.answer(&second, 1.0);
    assert_eq!(office.group_rows(), [(2, 1, Some(0.5))]);
    office.commit_all();
    assert_eq!(office.take_over(), Some(JobOutcome::Complete));
    assert_eq!(office.ledger.load().unwrap().totals.scored, 2);
}

#[test]
fn a_lost_record_of_a_closed_group_changes_its_row_and_nothing_is_tried_again() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let [first, second] = office.lease(2).try_into().unwrap();
    office.answer(&first, 1.0);
    office.answer(&second, 0.0);
    office.lose_record(&first);
    assert_eq!(office.failed(), [(EndKind::RecordLost, false)]);
    assert_eq!(office.group_rows(), [(2, 0, Some(0.5)), (1, 1, Some(0.0))]);
    assert_eq!(office.lease(2), []);
    // Committed, failed and unknown trajectories lose nothing.
    office.lose_record(&first);
    office.commit_all();
    office.lose_record(&second);
    assert_eq!(office.failed().len(), 1);
    assert_eq!(office.take_over(), Some(JobOutcome::Complete));
    let totals = office.ledger.load().unwrap().totals;
    assert_eq!((totals.scored, totals.failed), (1, [(EndKind::RecordLost, 1)].into()));
}

#[test]
fn a_lost_record_survives_a_restart() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let [first, second] = office.lease(2).try_into().unwrap();
    office.answer(&first, 1.0);
    office.answer(&second, 0.0);
    office.lose_record(&first);
    let before = office.core.tally.clone();
    office.restart(&BTreeMap::new());
    assert_eq!((office.core.tally.scored, office.core.tally.reward_sum), (before.scored, before.reward_sum));
    assert_eq!(office.group_rows(), [(1, 1, Some(0.0))]);
}

#[test]
fn slots_are_leased_group_by_group_under_rising_tokens() {
    let mut office = CoreFixture::staffed(2, 2, rules());
    let grants = office.lease(3);
    assert_eq!(ids(&grants), ["run-g000000-s0-a0", "run-g000000-s1-a0", "run-g000001-s0-a0"]);
    assert_eq!(grants.iter().map(|grant| grant.token).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(grants[0].draw.seed, grants[1].draw.seed, "siblings share a draw");
    assert_eq!(ids(&office.lease(3)), ["run-g000001-s1-a0"]);
    assert_eq!(office.try_lease(3), Some((Vec::new(), false)), "all are leased, and one may be returned");
}

#[test]
fn a_waiting_request_is_answered_when_there_is_work_or_its_time_is_up() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.env("env", 8);
    let env = || Id::new("env").unwrap();
    let wait = |office: &mut CoreFixture, wait_millis| {
        office.try_request(|call| Event::Lease { call, worker: env(), slots: 1, wait_millis })
    };
    let answers = |office: &mut CoreFixture| {
        let answer = |effect: Effect| match effect {
            Effect::Reply { answer: CallResponse::Leased { grants, .. }, .. } => Some(grants.len()),
            _ => None,
        };
        std::mem::take(&mut office.effects).into_iter().filter_map(answer).collect::<Vec<_>>()
    };
    assert_eq!(wait(&mut office, 200), None);
    office.pass(199);
    assert_eq!(answers(&mut office), [0usize; 0]);
    office.pass(1);
    assert_eq!(answers(&mut office), [0]);
    assert_eq!(wait(&mut office, 60_000), None);
    assert_eq!(wait(&mut office, 60_000), None);
    assert_eq!(answers(&mut office), [0], "a newer request replaces the older one");
    office.policy("policy", "there:1", 8);
    assert_eq!(answers(&mut office), [1]);
    assert_eq!(wait(&mut office, 60_000), None);
    office.pass_alive(500);
    assert!(answers(&mut office).contains(&0), "no request stays open longer than the rules allow");
}

#[test]
fn a_request_whose_asker_hung_up_is_given_nothing() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.env("env", 8);
    let env = Id::new("env").unwrap();
    assert_eq!(
        office.try_request(|call| Event::Lease { call, worker: env, slots: 1, wait_millis: 400 }),
        None
    );
    office.apply(Event::HungUp { calls: vec![CallId(office.calls)] });
    office.policy("policy", "there:1", 8);
    assert_eq!(office.core.progress().assigned, 0);
}

/// Ends the first slot's attempts with these reports, and checks how each failed and whether it was
/// tried again; `None` where it is to be scored.
#[track_caller]
fn check_ends(reports: &[(EndKind, bool)], want: &[Option<(EndKind, bool)>]) {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let mut got = Vec::new();
    for (end, saw) in reports {
        let grant = office.lease(1).remove(0);
        let evidence_sha256 = saw.then_some([5; 32]);
        office.effects.clear();
        office.report(&grant, ReportedEnd { end: *end, evidence_sha256, ..answered() });
        got.push(office.failed().first().copied());
    }
    assert_eq!(got, want, "{reports:?}");
}

#[test]
fn the_farms_ends_are_tried_again_and_the_policys_own_are_scored() {
    use EndKind::*;
    check_ends(&[(Answered, true)], &[None]);
    check_ends(&[(MaxSteps, true)], &[None]);
    check_ends(&[(Answered, false), (Done, true)], &[Some((PageCrash, true)), None]);
    check_ends(
        &[(EnvCrash, false), (BrowserDead, false), (Blocked, true)],
        &[Some((EnvCrash, true)), Some((BrowserDead, true)), Some((Blocked, false))],
    );
    check_ends(&[(PageHang, true), (PageHang, true)], &[Some((PageHang, true)), None]);
    check_ends(
        &[(PageHang, true), (PageHang, false), (PolicyFault, false)],
        &[Some((PageHang, true)), Some((PageCrash, true)), Some((PolicyFault, false))],
    );
}

#[test]
fn a_failing_scorer_is_retried_and_then_given_up() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    office.end(&grant, EndKind::Answered);
    let failures = [
        Err("it crashed".to_owned()),
        Ok(verdict(None, [5; 32])),
        Ok(verdict(Some(f32::NAN), [5; 32])),
        Ok(verdict(Some(1.0), [6; 32])),
    ];
    for verdict in failures {
        let mut office = CoreFixture::staffed(1, 1, rules());
        let grant = office.lease(1).remove(0);
        office.end(&grant, EndKind::Answered);
        for requests in 1..=2 {
            assert_eq!(office.count(|effect| matches!(effect, Effect::Score { .. })), requests);
            assert_eq!(office.failed(), vec![]);
            let trajectory = grant.of.trajectory_id.clone();
            office.apply(Event::Scored { trajectory, verdict: verdict.clone() });
            office.pass_alive(600);
        }
        assert_eq!(office.failed(), [(EndKind::ScorerError, true)], "{verdict:?}");
    }
    office.score(&grant, 0.5);
    assert_eq!((office.core.progress().scored, office.core.progress().reward_sum), (1, 0.5));
}

#[test]
fn a_group_closes_once_and_its_row_follows_its_last_trajectory() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let grants = office.lease(2);
    grants.iter().for_each(|grant| drop(office.end(grant, EndKind::Answered)));
    office.score(&grants[0], 1.0);
    let closed = |effect: &Effect| matches!(effect, Effect::CommitGroup { .. });
    assert_eq!(office.count(closed), 0);
    office.score(&grants[1], 0.0);
    assert_eq!(office.count(closed), 1);
    let order = |is_meant: fn(&Effect) -> bool| office.effects.iter().rposition(is_meant);
    let last = order(|effect| matches!(effect, Effect::CommitTrajectory(_)));
    assert!(last < order(|effect| matches!(effect, Effect::CommitGroup { .. })));
    assert!(order(|effect| matches!(effect, Effect::CloseShards)).is_some(), "nothing more comes");
    assert_eq!(office.take_over(), None, "it is not committed yet");
    office.commit_all();
    assert_eq!(office.take_over(), Some(JobOutcome::Complete));
    assert_eq!(office.try_lease(1), Some((Vec::new(), true)));
    assert!(office.core.groups.is_empty() && office.core.uncommitted.is_empty());
}

#[test]
fn a_repeated_ending_is_acknowledged_and_another_one_is_not() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    assert_eq!(office.end(&grant, EndKind::Answered), CallResponse::Finished);
    assert_eq!(office.end(&grant, EndKind::Answered), CallResponse::Finished);
    let other = office.report(&grant, ReportedEnd { digest: [2; 32], ..answered() });
    assert!(matches!(other, CallResponse::Refused(CallRefusal::OtherEnding { .. })), "{other:?}");
    let token = grant.token + 1;
    let stale = office.end(&LeaseGrant { token, ..grant.clone() }, EndKind::Answered);
    assert!(matches!(stale, CallResponse::Refused(CallRefusal::Stale { .. })), "{stale:?}");
    assert_eq!(office.renew(&grant).0, 0, "its holder may not know yet that it was acknowledged");
    assert_eq!(office.count(|effect| matches!(effect, Effect::Score { .. })), 1);
}

#[test]
fn an_acknowledgement_waits_for_the_ledger() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    let trajectory = grant.of.trajectory_id.clone();
    let token = grant.token;
    let now = EventTime { millis: 0, wall_micros: 0 };
    for round in 0..2 {
        let trajectory = trajectory.clone();
        let call = CallId(90 + round);
        let decision =
            office.core.apply(Event::EndingKept { call, trajectory, token, ending: answered() }, now);
        let says = |effects: &[Effect]| {
            effects.contains(&Effect::Reply { call: CallId(90 + round), answer: CallResponse::Finished })
        };
        assert!(!says(&decision.at_once) && says(&decision.then), "round {round}");
        assert_eq!(
            decision.commit.is_empty(),
            round == 1,
            "the second is not spooled again, but still waits"
        );
    }
}

#[test]
fn a_lease_lasts_while_its_holder_renews_it() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let grants = office.lease(2);
    for _ in 0..5 {
        office.pass_alive(500);
        assert_eq!(office.renew(&grants[0]).0, 0);
    }
    assert_eq!(office.failed(), [(EndKind::LeaseLost, true)], "the other was not renewed");
    assert_eq!(office.renew(&grants[1]).0, 1);
    assert_eq!(ids(&office.lease(1)), ["run-g000000-s1-a1"]);
    let trajectory = grants[0].of.trajectory_id.clone();
    let token = grants[0].token;
    office.pass_alive(900);
    let go = office.request(|call| Event::StepArrived { call, trajectory, token });
    assert!(matches!(go, CallResponse::Go { .. }), "{go:?}");
    office.pass_alive(900);
    assert_eq!(office.renew(&grants[0]).0, 0, "a step renews, too");
}

#[test]
fn a_suspended_coordinator_expires_no_worker() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    office.pass(60_000);
    assert_eq!((office.failed(), office.core.progress().env_workers), (vec![], 1));
    assert_eq!(office.renew(&grant).0, 0);
    office.pass_alive(1_000);
    assert_eq!(office.failed(), [(EndKind::LeaseLost, true)]);
}

#[test]
fn a_leaving_worker_returns_its_leases() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let grants = office.lease(2);
    office.end(&grants[0], EndKind::Answered);
    office.request(|call| Event::Leave { call, worker: worker("env") });
    assert_eq!(office.failed(), [(EndKind::Cancelled, true)]);
    assert_eq!(office.core.progress().env_workers, 0);
}

#[test]
fn an_undelivered_assignment_is_leased_again() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    office.apply(Event::Undelivered { trajectories: vec![grant.of.trajectory_id.clone()] });
    assert_eq!(ids(&office.lease(1)), ["run-g000000-s0-a1"]);
    office.apply(Event::Undelivered { trajectories: vec![grant.of.trajectory_id] });
    assert_eq!(office.core.progress().assigned, 1, "the newer one stays");
}

#[test]
fn sessions_of_a_lost_policy_worker_go_on_elsewhere() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let grants = office.lease(2);
    office.policy("other", "elsewhere:1", 1);
    for grant in [&grants[0], &grants[1], &grants[0], &grants[1]] {
        office.pass_alive(300); // longer than a policy worker is expected to take to return
        assert_eq!(office.renew(grant), (0, vec![]));
    }
    office.request(|call| Event::Leave {
        call,
        worker: WorkerId { env: Id::new("x").unwrap(), ..worker("policy") },
    });
    let moves: Vec<_> = grants.iter().flat_map(|grant| office.renew(grant).1).collect();
    assert_eq!(moves, [(grants[0].of.trajectory_id.clone(), "elsewhere:1".to_owned())], "one fits");
    assert_eq!(office.renew(&grants[0]).1.len(), 1, "repeated: the first answer may have been lost");
    office.policy("policy", "there:2", 8);
    assert_eq!(office.renew(&grants[1]).1, [(grants[1].of.trajectory_id.clone(), "there:2".to_owned())]);
}

#[test]
fn admission_pauses_for_named_reasons() {
    use PauseReason::{Backlog, DiskReserve, NoPolicyWorker, OffPolicy};
    let pacing = Some(AdmissionPacing { trajectories_per_version: 2, max_off_policy_versions: 0 });
    let mut office = CoreFixture::new(4, 1, CoreRules { pacing, backlog_max: 3, ..rules() });
    office.env("env", 8);
    assert_eq!(office.pause(), Some(NoPolicyWorker));
    office.policy("policy", "there:1", 8);
    assert_eq!(office.pause(), None);
    office.apply(Event::Disk { low: Some("full".into()) });
    assert_eq!(office.pause(), Some(DiskReserve));
    assert_eq!(office.try_lease(8), Some((Vec::new(), false)));
    office.apply(Event::Disk { low: None });
    let grants = office.lease(8);
    assert_eq!((grants.len(), office.pause()), (2, Some(OffPolicy)));
    let published = |call| Event::Heartbeat {
        call,
        worker: worker("policy"),
        run: runs(1),
        health: HeartbeatStatus::default(),
    };
    office.request(published);
    assert_eq!(office.lease(1).len(), 1);
    office.end(&grants[0], EndKind::Answered);
    office.end(&grants[1], EndKind::EnvCrash);
    assert_eq!(office.pause(), None);
    let third = office.lease(1).remove(0);
    office.end(&third, EndKind::Answered);
    assert_eq!(office.pause(), Some(Backlog));
    let paused: Vec<_> = office
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Notify(CoreNotice::Paused { reason, .. }) => Some(*reason),
            _ => None,
        })
        .collect();
    assert_eq!(paused, [DiskReserve, OffPolicy, Backlog]);
}

/// A farm with one trajectory per group, whose trainer consumes two per version, none ahead.
fn paced(groups: u64) -> CoreFixture {
    let pacing = Some(AdmissionPacing { trajectories_per_version: 2, max_off_policy_versions: 0 });
    CoreFixture::staffed(groups, 1, CoreRules { pacing, ..rules() })
}

#[test]
fn a_run_of_which_everything_is_discarded_goes_on_to_its_end() {
    let mut office = paced(9);
    let mut discarded = 0;
    while let Some(grants) = Some(office.lease(8)).filter(|grants| !grants.is_empty()) {
        assert!(grants.len() <= 2, "never more than the version allows are running");
        grants.iter().for_each(|grant| office.answer(grant, 0.0));
        if grants.len() == 2 {
            assert_eq!(office.pause(), Some(PauseReason::OffPolicy));
            assert!(office.lease(1).is_empty(), "unreported trajectories hold back admission");
        }
        discarded += grants.len() as u64;
        assert_eq!(office.discard((0, 1), discarded), Ok((discarded, discarded)));
        assert_eq!(office.pause(), None);
    }
    office.commit_all();
    assert_eq!((discarded, office.take_over()), (9, Some(JobOutcome::Complete)));
}

#[test]
fn what_is_kept_fills_a_version_whatever_was_discarded() {
    let mut office = paced(9);
    let first = office.lease(8);
    office.answer(&first[0], 1.0);
    office.discard((0, 1), 1).unwrap();
    assert_eq!((office.lease(8).len(), office.pause()), (1, Some(PauseReason::OffPolicy)));
    let detail = office.core.pause_reason().unwrap().1;
    assert_eq!(detail, "1 accepted, 1 of them discarded, and 2 running fill what version 0 allows: 2");
    assert_eq!(office.core.progress().admission, detail);
    assert_eq!(office.core.progress().discarded, 1);
}

#[test]
fn a_report_is_cumulative_and_the_largest_holds() {
    let mut office = paced(9);
    let grants = office.lease(8);
    let more = |accepted: u64, discarded: u64| Err(CallRefusal::Discarded { discarded, accepted });
    assert_eq!(office.discard((0, 1), 1), more(0, 1));
    grants.iter().for_each(|grant| office.answer(grant, 0.0));
    assert_eq!(office.discard((0, 1), 2), Ok((2, 2)));
    assert_eq!(office.discard((0, 1), 2), Ok((2, 2)), "again");
    assert_eq!(office.discard((0, 1), 1), Ok((2, 2)), "one that ran for a long time");
    assert_eq!(office.discard((0, 1), u64::MAX), more(2, u64::MAX));
    assert_eq!(office.core.progress().discarded, 2, "a refused report changes nothing");
    assert_eq!(office.lease(8).len(), 2);
}

#[test]
fn readers_that_share_a_run_are_added_up_and_those_of_another_sharing_are_not() {
    let mut office = paced(9);
    office.lease(8).iter().for_each(|grant| office.answer(grant, 0.0));
    assert_eq!(office.discard((0, 2), 1), Ok((1, 2)));
    assert_eq!(office.discard((1, 2), 1), Ok((2, 2)));
    assert_eq!(office.discard((1, 2), 2), Err(CallRefusal::Discarded { discarded: 3, accepted: 2 }));
    assert_eq!(office.discard((1, 2), 0), Ok((2, 2)));
    assert_eq!(office.discard((0, 1), 1), Ok((1, 2)));
}

#[test]
fn a_restarted_coordinator_gets_discards_reported_again() {
    let mut office = paced(9);
    office.lease(8).iter().for_each(|grant| office.answer(grant, 0.0));
    office.discard((0, 1), 2).unwrap();
    office.lease(8).iter().for_each(|grant| office.answer(grant, 0.0));
    office.discard((0, 1), 4).unwrap();
    office.restart(&BTreeMap::new());
    office.env("env", 8);
    office.policy("policy", "there:1", 8);
    assert_eq!((office.lease(8).len(), office.pause()), (0, Some(PauseReason::OffPolicy)));
    assert_eq!(office.discard((0, 1), 4), Ok((4, 4)));
    assert_eq!(office.lease(8).len(), 2);
}

#[test]
fn trajectories_of_evaluations_cannot_be_discarded() {
    let pacing = Some(AdmissionPacing { trajectories_per_version: 1, max_off_policy_versions: 0 });
    let mut office = CoreFixture::evaluating(9, CoreRules { pacing, ..rules() });
    let grants = office.lease(8);
    grants[..4].iter().for_each(|grant| office.solve(grant, 0, 1.0));
    assert_eq!(office.discard((0, 1), 1), Err(CallRefusal::Discarded { discarded: 1, accepted: 0 }));
    office.solve(&grants[4], 0, 0.0);
    assert_eq!(office.discard((0, 1), 1), Ok((1, 1)));
}

#[test]
fn draining_leases_nothing_waits_and_cancels_the_rest() {
    let mut office = CoreFixture::staffed(2, 2, rules());
    let grants = office.lease(3);
    office.end(&grants[0], EndKind::Answered);
    assert_eq!(office.request(|call| Event::Drain { call: Some(call) }), CallResponse::Draining);
    assert_eq!(office.try_lease(1), Some((Vec::new(), true)));
    office.score(&grants[0], 1.0);
    office.pass(100);
    office.end(&grants[1], EndKind::Answered);
    office.score(&grants[1], 1.0);
    assert_eq!(office.failed(), vec![]);
    office.pass(200);
    assert_eq!(office.failed(), [(EndKind::Cancelled, true)]);
    assert_eq!(office.take_over(), None);
    office.commit_all();
    assert_eq!(office.take_over(), Some(JobOutcome::Drained { cancelled: 1 }));
    office.restart(&BTreeMap::new());
    office.env("env", 8);
    office.policy("policy", "there:1", 8);
    assert_eq!(ids(&office.lease(8)), ["run-g000001-s0-a1", "run-g000001-s1-a0"]);
}

#[test]
fn stopping_at_once_takes_back_what_runs_and_ends_the_grace_of_a_drain() {
    for is_draining in [false, true] {
        let mut office = CoreFixture::staffed(2, 2, CoreRules { drain_grace_millis: 60_000, ..rules() });
        let grants = office.lease(3);
        office.end(&grants[0], EndKind::Answered);
        office.score(&grants[0], 1.0);
        if is_draining {
            office.request(|call| Event::Drain { call: Some(call) });
            assert_eq!(office.failed(), vec![], "the grace is a minute");
        }
        assert_eq!(office.request(|call| Event::Stop { call }), CallResponse::Draining);
        assert_eq!(office.failed(), [(EndKind::Cancelled, true), (EndKind::Cancelled, true)]);
        office.commit_all();
        assert_eq!(office.take_over(), Some(JobOutcome::Drained { cancelled: 2 }));
        office.restart(&BTreeMap::new());
        office.env("env", 8);
        office.policy("policy", "there:1", 8);
        assert_eq!(office.lease(8).len(), 3, "they are tried again");
    }
}

#[test]
fn workers_are_reported_as_their_last_heartbeat_describes_them() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    office.pass(100);
    let health = HeartbeatStatus { sessions: 7, memory_bytes: Some(9), memory_left_bytes: Some(11) };
    let run = WeightsReport::default();
    office.request(|call| Event::Heartbeat { call, worker: worker("env"), run, health });
    office.pass(300);
    let workers = office.core.progress().workers;
    let of = |kind| workers.iter().find(|standing| standing.kind == kind).unwrap();
    let env = of(WorkerKind::Env);
    let policy = of(WorkerKind::Policy);
    assert_eq!((env.worker.as_str(), env.last_contact_millis, env.health), ("env", 300, health));
    assert_eq!(
        (policy.last_contact_millis, policy.health),
        (400, HeartbeatStatus::default()),
        "it has sent no heartbeat yet"
    );
    assert_eq!((env.version, &policy.waits), (None, &None));
    office.request(|call| Event::Leave { call, worker: worker("env") });
    assert_eq!(office.core.progress().workers.len(), 1);
}

#[test]
fn a_success_rate_counts_scores_before_a_restart_and_after() {
    let mut office = CoreFixture::staffed(2, 2, rules());
    let grants = office.lease(4);
    for (grant, success) in grants.iter().zip([Some(true), Some(false), None]) {
        office.end(grant, EndKind::Answered);
        assert_eq!(office.core.progress().scoring, 1);
        office.score_as(grant, success);
    }
    let counts = |office: &CoreFixture| {
        let now = office.core.progress();
        (now.scored, now.training_success_known, now.training_successes, now.scoring)
    };
    assert_eq!(counts(&office), (3, 2, 1, 0));
    office.restart(&BTreeMap::new());
    assert_eq!(counts(&office), (3, 2, 1, 0));
}

#[test]
fn a_farm_that_fails_too_often_stops() {
    let stopped_after = |failure_budget, failures_free| {
        let rules = CoreRules { failure_budget, failures_free, attempts_max: 100, ..rules() };
        let mut office = CoreFixture::staffed(1, 1, rules);
        for failures in 1..50 {
            let (grants, run_over) = office.try_lease(1)?;
            if run_over {
                return Some(failures - 1);
            }
            office.end(&grants[0], EndKind::BrowserDead);
        }
        None
    };
    assert_eq!(stopped_after(0.0, 0), Some(1));
    assert_eq!(stopped_after(0.0, 5), Some(6));
    assert_eq!(stopped_after(0.5, 5), Some(11)); // 11 > 5 + 0.5 × 11
    assert_eq!(stopped_after(1.0, 0), None);
}

#[test]
fn the_error_of_a_stopped_job_says_what_failed() {
    let mut office = CoreFixture::staffed(1, 2, CoreRules { failure_budget: 0.1, ..rules() });
    let grants = office.lease(2);
    office.end(&grants[0], EndKind::BrowserDead);
    office.end(&grants[1], EndKind::Answered);
    office.score(&grants[1], 1.0);
    office.commit_all();
    let Some(JobOutcome::TooManyFailures { detail }) = office.take_over() else {
        panic!("{:?}", office.effects)
    };
    let expected =
        "1 attempts failed against 0 scored (browser_dead 1), limits.failure_budget = 0.1 allows 0: ";
    assert!(detail.starts_with(expected), "{detail}");
}

#[test]
fn a_restart_takes_up_what_was_open() {
    let mut office = CoreFixture::staffed(3, 2, rules());
    let grants = office.lease(6);
    office.end(&grants[0], EndKind::Answered);
    office.end(&grants[1], EndKind::Answered);
    office.score(&grants[1], 1.0);
    office.end(&grants[2], EndKind::PageHang);
    let open = SpoolProgress { steps: 4, policy_versions: Some((1, 2)), ending: None };
    let ended = SpoolProgress { steps: 0, policy_versions: None, ending: Some([1; 32]) };
    let spooled = [(grants[3].of.trajectory_id.clone(), open), (grants[0].of.trajectory_id.clone(), ended)];
    office.millis = 50_000;
    office.restart(&spooled.into());

    let progress = office.core.progress();
    assert_eq!((progress.assigned, progress.scored, progress.committed), (3, 1, 0));
    assert_eq!(office.count(|effect| matches!(effect, Effect::Score { .. })), 1);
    assert_eq!(office.count(|effect| matches!(effect, Effect::CommitTrajectory(_))), 2);
    assert_eq!(
        office.end(&grants[0], EndKind::Answered),
        CallResponse::Finished,
        "acknowledged by the coordinator before"
    );

    office.env("env", 8);
    office.policy("policy", "there:1", 8);
    office.pass_alive(100);
    let trajectory = grants[3].of.trajectory_id.clone();
    let token = grants[3].token;
    let go = office.request(|call| Event::StepArrived { call, trajectory, token });
    assert!(matches!(go, CallResponse::Go { steps: 4, .. }), "{go:?}");
    let retries = office.lease(8);
    assert_eq!(ids(&retries), ["run-g000001-s0-a1"]);
    assert_eq!(retries[0].token, 7, "tokens continue");
    office.effects.clear();
    office.end(&retries[0], EndKind::PageHang);
    assert_eq!(office.failed(), vec![], "it hung before: now it is the policy's fault");

    let epoch =
        office.request(|call| Event::RegisterEnv { call, worker: Id::new("e").unwrap(), sessions_max: 1 });
    assert!(matches!(epoch, CallResponse::Registered { epoch: 2, .. }), "{epoch:?}");
    office.pass_alive(900);
    assert_eq!(office.failed().len(), 2, "each got one whole term, and the renewed one has more");
}

#[test]
fn an_ending_that_came_too_late_is_not_acknowledged_after_a_restart_either() {
    let mut office = CoreFixture::staffed(1, 2, rules());
    let grants = office.lease(2);
    office.end(&grants[0], EndKind::BrowserDead);
    office.pass_alive(1_000);
    assert_eq!(office.failed(), [(EndKind::BrowserDead, true), (EndKind::LeaseLost, true)]);
    let spooled = SpoolProgress { steps: 0, policy_versions: None, ending: Some([1; 32]) };
    let spooled = grants.iter().map(|grant| (grant.of.trajectory_id.clone(), spooled));
    office.restart(&spooled.collect());
    assert_eq!(office.end(&grants[0], EndKind::BrowserDead), CallResponse::Finished);
    let late = office.end(&grants[1], EndKind::Answered);
    assert!(matches!(late, CallResponse::Refused(CallRefusal::Stale { .. })), "{late:?}");
}

#[test]
fn committed_trajectories_are_forgotten() {
    let mut office = CoreFixture::staffed(3_000, 1, rules());
    for _ in 0..3_000 {
        let grant = office.lease(1).remove(0);
        office.end(&grant, EndKind::Answered);
        office.score(&grant, 1.0);
        office.commit_all();
        office.effects.clear();
        let Core { groups, scoring, uncommitted: unpublished, leases, waiting, .. } = &office.core;
        let kept = groups.len() + scoring.len() + unpublished.len() + leases.len() + waiting.len();
        assert_eq!(kept, 0);
    }
    assert_eq!((office.core.progress().committed, office.core.progress().groups_closed), (3_000, 3_000));
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

#[test]
fn a_version_is_ordered_run_and_remembered() {
    let mut office = CoreFixture::new(1, 1, rules());
    assert_eq!(office.model("a", runs(0)), None);
    assert_eq!(office.publish("p", full("/w/1")), Ok((1, false)));
    assert_eq!(
        office.publish("p", full("/w/1")),
        Ok((1, true)),
        "a repeated publication is the same version"
    );
    let other = office.publish("p", full("/w/2")).unwrap_err();
    assert!(other.contains("was version 1, of other weights"), "{other}");
    assert_eq!(office.beat("a", runs(0)), Some(1));
    let standing = office.weights(0);
    assert_eq!((standing.version, standing.current, &standing.state), (1, 0, &VersionState::Proposed));
    assert_eq!(standing.workers[0].lags.as_deref(), Some("it has not loaded it yet"));
    assert_eq!(office.beat("a", runs(1)), Some(1));
    let standing = office.weights(1);
    assert_eq!((standing.current, &standing.state), (1, &VersionState::Taken));
    assert_eq!(standing.weights_sha256, Some(hash(1)));
    assert_eq!((standing.workers[0].version, &standing.workers[0].lags), (1, &None));
    assert_eq!(standing.needed, ["/w/1"]);

    office.restart(&BTreeMap::new());
    assert_eq!(office.core.newest_version, Some(1), "admission does not go back either");
    assert_eq!(office.publish("p", full("/w/1")), Ok((1, true)), "not even after a restart");
    assert_eq!(office.publish("q", full("/w/2")), Ok((2, false)));
    let missing = office.request(|call| Event::Weights { call, version: 3 });
    assert!(matches!(missing, CallResponse::Refused(CallRefusal::NoVersion { version: 3 })), "{missing:?}");
}

#[test]
fn a_worker_that_was_started_again_gets_nothing_until_it_has_caught_up() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.model("a", runs(0));
    office.publish("p", full("/w/1")).unwrap();
    assert_eq!(office.serving(), ["a"], "it serves while it loads");
    office.beat("a", runs(1));
    // Another worker, which starts with the weights the job names.
    assert_eq!(office.model("b", runs(0)), Some(1));
    assert_eq!(office.serving(), ["a"]);
    office.publish("q", full("/w/2")).unwrap();
    assert_eq!(office.beat("b", runs(1)), Some(2));
    assert_eq!(office.serving(), ["a", "b"], "the version that was current at its registration is enough");
    assert_eq!(office.beat("a", runs(2)), Some(2));
    office.restart(&BTreeMap::new());
    assert_eq!(office.model("c", runs(0)), Some(2));
    assert_eq!(office.model("a", runs(2)), Some(2));
    assert_eq!(office.serving(), ["a"]);
    office.beat("c", runs(2));
    assert_eq!(office.serving(), ["a", "c"]);
}

#[test]
fn a_worker_that_cannot_run_what_others_run_is_ordered_again_and_named() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.env("env", 8);
    office.model("a", runs(0));
    office.publish("p", full("/w/1")).unwrap();
    assert_eq!(office.order("a", runs(0)), Some((1, false)));
    assert_eq!(office.order("a", runs(1)), Some((1, true)));
    office.model("b", runs(0));
    assert_eq!(office.order("b", cannot(0, 1)), Some((1, true)), "others run it: it can be run");
    assert_eq!((office.serving(), office.pause()), (vec!["a".to_owned()], None));
    office.request(|call| Event::Leave { call, worker: worker("a") });
    assert_eq!(office.try_lease(1), Some((Vec::new(), false)));
    let (reason, detail) = office.core.pause_reason().unwrap();
    assert_eq!(reason, PauseReason::NoPolicyWorker);
    assert_eq!(detail, "no policy worker may serve version 1; b runs 0: its file is torn");
    let notices = office
        .effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Notify(CoreNotice::VersionLags { .. })));
    assert_eq!(notices.count(), 1, "it is reported once");
    assert_eq!(office.order("b", runs(1)), Some((1, true)));
    assert_eq!((office.lease(1).len(), office.pause()), (1, None));
}

#[test]
fn a_version_that_no_worker_can_run_is_refused_and_the_one_before_is_ordered_again() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.model("a", runs(0));
    office.publish("p", full("/w/1")).unwrap();
    office.beat("a", runs(1));
    office.publish("q", full("/w/2")).unwrap();
    assert_eq!(office.beat("a", cannot(1, 2)), Some(1));
    let standing = office.weights(2);
    assert_eq!(standing.state, VersionState::Refused { reason: "its file is torn".into() });
    assert_eq!((standing.current, standing.workers[0].lags.as_deref()), (1, Some("its file is torn")));
    let over =
        furrow_rollout::WeightsLink { form: furrow_rollout::WeightsForm::Delta, directory: "/w/3".into() };
    let over = VersionSource::Directory { link: over, base_version: 2 };
    assert!(office.publish("r", over).unwrap_err().contains("version 2 was refused"));
    assert_eq!(office.publish("q", full("/w/2")), Ok((3, false)), "it may be tried again");
    assert_eq!(office.beat("a", runs(1)), Some(3));
    // With two workers, the one that cannot run it only lags.
    office.model("b", runs(1));
    assert_eq!(office.beat("a", cannot(1, 3)), Some(3));
    assert_eq!(office.beat("b", runs(3)), Some(3));
    let standing = office.weights(3);
    assert_eq!((standing.current, standing.state), (3, VersionState::Taken));
    let lags: Vec<_> = standing.workers.iter().map(|follower| follower.lags.as_deref()).collect();
    assert_eq!(lags, [Some("its file is torn"), None]);
}

#[test]
fn weights_that_are_not_those_of_their_version_get_no_trajectories() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.model("a", runs(0));
    office.model("b", runs(0));
    office.publish("p", full("/w/1")).unwrap();
    office.beat("a", runs(1));
    office.beat("b", WeightsReport { weights_sha256: Some(hash(7)), ..runs(1) });
    assert_eq!(office.serving(), ["a"]);
    let standing = office.weights(1);
    let why = standing.workers[1].lags.as_deref().unwrap();
    assert!(why.contains(&hash(7)) && why.contains(&hash(1)), "{why}");
    assert_eq!(office.beat("b", runs(1)), Some(1));
    assert_eq!(office.serving(), ["a", "b"]);
}

#[test]
fn going_back_is_a_new_version_and_numbers_of_another_ledger_are_passed() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.model("a", runs(0));
    office.publish("p", full("/w/1")).unwrap();
    office.beat("a", runs(1));
    assert_eq!(office.publish("back", VersionSource::Rollback { to: 0 }), Ok((2, false)));
    assert_eq!(office.core.weights_order().unwrap().links, []);
    assert!(
        office
            .publish("no", VersionSource::Rollback { to: 9 })
            .unwrap_err()
            .contains("version 9, on which it is based, does not exist")
    );
    office.model("z", runs(40));
    assert_eq!(office.publish("q", full("/w/2")), Ok((41, false)));
    let mut demonstrations = CoreFixture::new(1, 1, rules());
    demonstrations.model("s", WeightsReport::default());
    assert!(
        demonstrations
            .publish("p", full("/w/1"))
            .unwrap_err()
            .contains("no policy worker of this job has weights")
    );
}

#[test]
fn a_group_that_has_enough_cancels_its_slowest_and_closes() {
    let mut office = CoreFixture::sparing(2, (4, 2), rules());
    office.env("env", 8);
    office.policy("policy", "there:1", 8);
    let grants = office.lease(8);
    assert_eq!(grants.len(), 8, "spares are leased like all others");
    let of_first: Vec<&LeaseGrant> =
        grants.iter().filter(|grant| grant.of.group_id == grants[0].of.group_id).collect();
    assert_eq!(of_first.len(), 4);
    // Three have ended, one still runs; the first two verdicts are enough.
    for grant in &of_first[..3] {
        office.end(grant, EndKind::Done);
    }
    office.effects.clear();
    office.score(of_first[1], 1.0);
    assert_eq!(office.failed(), []);
    office.score(of_first[0], 0.0);
    assert_eq!(office.failed(), [(EndKind::Cancelled, false), (EndKind::Cancelled, false)]);
    let closed = office.effects.iter().find_map(|effect| match effect {
        Effect::CommitGroup { record } => Some((record.planned, record.valid, record.failed.clone())),
        _ => None,
    });
    assert_eq!(closed, Some((4, 2, BTreeMap::from([("cancelled".to_owned(), 2)]))));
    // The late verdict and the late ending change nothing.
    office.effects.clear();
    office.score(of_first[2], 1.0);
    let late = office.end(of_first[3], EndKind::Done);
    assert!(matches!(late, CallResponse::Refused(CallRefusal::Stale { .. })), "{late:?}");
    assert_eq!(office.count(|effect| matches!(effect, Effect::CommitGroup { .. })), 0);
    assert_eq!(office.lease(8).len(), 0, "nothing of it is leased again");
    assert_eq!(office.core.progress().groups_closed, 1);
}

#[test]
fn a_group_that_lost_its_spares_goes_on_with_what_it_has() {
    let mut office = CoreFixture::sparing(1, (3, 2), CoreRules { attempts_max: 1, ..rules() });
    office.env("env", 8);
    office.policy("policy", "there:1", 8);
    let grants = office.lease(8);
    office.end(&grants[0], EndKind::EnvCrash);
    office.end(&grants[1], EndKind::EnvCrash);
    office.end(&grants[2], EndKind::Done);
    office.score(&grants[2], 1.0);
    assert_eq!(office.core.progress().groups_closed, 1, "it closes with one, as no slot can be tried again");
    office.restart(&BTreeMap::new());
    assert_eq!(office.core.progress().groups_closed, 1);
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

fn problems(grants: &[LeaseGrant]) -> Vec<Option<(i32, u64)>> {
    grants.iter().map(|grant| grant.draw.problem.map(|problem| (problem.version, problem.index))).collect()
}

#[test]
fn an_evaluation_goes_first_on_one_version_and_newer_weights_wait_for_it() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(6);
    let want = [Some((0, 0)), Some((0, 0)), Some((0, 1)), Some((0, 1)), None, None];
    assert_eq!(
        problems(&grants),
        want,
        "the version the job starts with, then training in the remaining capacity"
    );
    assert!(grants[..4].iter().all(|grant| grant.draw.split == Split::Eval));
    assert_eq!(grants[4].draw.seed, 0, "the sampler's draws continue as without an evaluation");
    assert_eq!(office.publish("p", full("/w/1")), Ok((1, false)));
    assert_eq!(office.beat("a", runs(0)), None, "nothing newer is ordered");
    let why = "it waits for the evaluation of version 0: 0 of 2 problems are done";
    assert_eq!(office.weights_of(1).as_deref(), Some(why));
    office.solve(&grants[0], 0, 1.0);
    office.solve(&grants[1], 0, 0.0);
    office.solve(&grants[2], 0, 1.0);
    assert_eq!(office.beat("a", runs(0)), None);
    assert_eq!(office.weights_of(1).unwrap(), why.replace(": 0 of", ": 1 of"));
    office.solve(&grants[3], 0, 1.0);
    let ended = EvaluationResult { version: 0, problems: 2, drawn: 2, scored: 4, succeeded: 3, cut: None };
    assert_eq!(office.evaluated(), [ended]);
    assert_eq!(office.beat("a", runs(0)), Some(1));
    assert_eq!(office.beat("a", runs(1)), Some(1));
    assert_eq!(
        problems(&office.lease(2)),
        [None, None],
        "every second version, and this is the first after it"
    );
    assert_eq!(office.publish("q", full("/w/2")), Ok((2, false)));
    assert_eq!(office.publish("r", full("/w/3")), Ok((3, false)));
    assert_eq!(office.beat("a", runs(1)), Some(3), "2 was due, no worker runs it, and it is skipped");
    assert_eq!(office.weights_of(3).as_deref(), Some("it has not loaded it yet"));
    assert_eq!(office.beat("a", runs(3)), Some(3));
    assert_eq!(problems(&office.lease(1)), [Some((3, 0))], "the next one in use is evaluated");
    let passed_over = office.weights(2);
    assert_eq!((passed_over.state, passed_over.current), (VersionState::Proposed, 3));
    assert_eq!((passed_over.workers[0].lags.as_deref(), passed_over.needed), (None, vec!["/w/3".to_owned()]));
}

#[test]
fn versions_that_come_faster_than_evaluations_do_not_pile_up() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(4);
    for version in 1..=6 {
        office.publish(&format!("p{version}"), full(&format!("/w/{version}"))).unwrap();
    }
    assert_eq!(office.weights(0).needed, (1..=6).map(|version| format!("/w/{version}")).collect::<Vec<_>>());
    grants.iter().for_each(|grant| office.solve(grant, 0, 1.0));
    assert_eq!(office.beat("a", runs(0)), Some(6), "the newest, whatever was due before it");
    let torn = office.beat("a", cannot(0, 6));
    assert_eq!(torn, Some(5), "and where it is refused, the one before it");
    assert_eq!(office.beat("a", runs(5)), Some(5));
    assert_eq!(problems(&office.lease(1)), [Some((5, 0))]);
    assert_eq!(office.weights(0).needed, ["/w/5"]);
}

#[test]
fn trajectories_of_evaluations_are_not_for_trainers() {
    let pacing = Some(AdmissionPacing { trajectories_per_version: 1, max_off_policy_versions: 0 });
    let mut office = CoreFixture::evaluating(9, CoreRules { pacing, ..rules() });
    let grants = office.lease(8);
    assert_eq!(problems(&grants).iter().flatten().count(), 4);
    assert_eq!(grants.len(), 5, "one of training is all that version 0 allows");
    grants[..4].iter().for_each(|grant| office.solve(grant, 0, 1.0));
    assert_eq!(office.pause(), Some(PauseReason::OffPolicy));
    office.end(&grants[4], EndKind::EnvCrash);
    assert_eq!(office.pause(), None, "scores of evaluations do not count as accepted by a trainer");
    assert!(office.core.tallies.is_empty(), "nor do they reach the curriculum");
    assert_eq!(office.core.progress().groups_closed, 0);
    assert_eq!((office.core.progress().scored, office.core.progress().successes), (4, 4));
    assert_eq!(office.core.progress().training_success_known, 0, "and the success rate is that of training");
    office.restart(&BTreeMap::new());
    assert_eq!((office.core.progress().scored, office.core.progress().successes), (4, 4));
    assert!(office.core.tallies.is_empty() && office.core.progress().groups_closed == 0);
}

#[test]
fn what_was_acted_on_other_weights_is_tried_again() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(4);
    office.act(&grants[0], (0, 1));
    office.end(&grants[0], EndKind::Done);
    assert_eq!(office.failed(), [(EndKind::PolicyFault, true)]);
    let retries = office.lease(1);
    assert_eq!((problems(&retries), retries[0].of.attempt), (vec![Some((0, 0))], 1));
    office.model("b", runs(1));
    office.request(|call| Event::Leave { call, worker: worker("a") });
    assert_eq!(
        problems(&office.lease(8)),
        vec![None; 8],
        "and not leased to a worker that runs another version"
    );
    assert_eq!(office.renew(&grants[1]).1, [], "nor moved to one");
}

#[test]
fn an_end_by_the_farms_fault_keeps_its_name_on_other_weights() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(4);
    for (grant, end) in grants.iter().zip([EndKind::BrowserDead, EndKind::PageHang, EndKind::EnvCrash]) {
        office.act(grant, (0, 1));
        office.end(grant, end);
    }
    let want = [EndKind::BrowserDead, EndKind::PageHang, EndKind::EnvCrash].map(|end| (end, true));
    assert_eq!(office.failed(), want);
}

#[test]
fn a_worker_that_comes_back_with_other_weights_gets_no_trajectory_of_an_evaluation_back() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(5);
    assert_eq!(problems(&grants)[3..], [Some((0, 1)), None]);
    let elsewhere = |office: &mut CoreFixture, version| {
        let offer = PolicyOffer {
            address: format!("elsewhere:{version}"),
            kind: PolicyKind::Model,
            sessions_max: 8,
            version: Some(version),
            hashes: PolicyHashes { weights: Some(hash(version)), ..PolicyHashes::default() },
        };
        let worker = Id::new("a").unwrap();
        let run = runs(version);
        office.request(|call| Event::RegisterPolicy { call, worker, offer, run });
    };
    elsewhere(&mut office, 1);
    assert_eq!(office.renew(&grants[3]).1, [], "it runs another version");
    let trained = (grants[4].of.trajectory_id.clone(), "elsewhere:1".to_owned());
    assert_eq!(office.renew(&grants[4]).1, [trained], "training continues on its own worker");
    elsewhere(&mut office, 0);
    let evaluated = (grants[3].of.trajectory_id.clone(), "elsewhere:0".to_owned());
    assert_eq!(office.renew(&grants[3]).1, [evaluated]);
}

/// Version 2 is taken by a worker that dies, and the other one cannot run it.
#[test]
fn an_evaluation_whose_version_no_worker_can_run_is_cut_and_the_job_ends() {
    let mut office = CoreFixture::evaluating(2, rules());
    let grants = office.lease(5);
    grants.iter().for_each(|grant| office.solve(grant, 0, 1.0));
    for version in [1, 2] {
        office.publish(&format!("p{version}"), full(&format!("/w/{version}"))).unwrap();
    }
    office.model("b", runs(0));
    assert_eq!(office.beat("a", runs(2)), Some(2));
    assert_eq!(office.evaluated().len(), 1);
    office.request(|call| Event::Leave { call, worker: worker("a") });
    let last = office.lease(8);
    assert_eq!(problems(&last), [None], "the rest of the training is for the other worker");
    office.solve(&last[0], 0, 1.0);
    office.commit_all();
    let refusing = |office: &mut CoreFixture, times| {
        for _ in 0..times {
            office.beat("b", cannot(0, 2));
            office.pass(900);
        }
    };
    refusing(&mut office, 11);
    assert_eq!((office.evaluated().len(), office.take_over()), (1, None));
    office.model("a", runs(2));
    refusing(&mut office, 1);
    office.request(|call| Event::Leave { call, worker: worker("a") });
    refusing(&mut office, 11);
    assert_eq!(office.evaluated().len(), 1, "the clock restarts when a worker runs it");
    refusing(&mut office, 3);
    let [_, ended] = &office.evaluated()[..] else { panic!("{:?}", office.evaluated()) };
    assert_eq!((ended.version, ended.scored), (2, 0));
    let why = ended.cut.as_deref().unwrap();
    assert!(why.contains("no policy worker ran version 2") && why.contains("eval.hold_millis"), "{why}");
    office.commit_all();
    assert_eq!(office.take_over(), Some(JobOutcome::Complete));
}

#[test]
fn an_evaluation_is_not_cut_while_the_coordinator_stops() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(1);
    office.act(&grants[0], (0, 0));
    office.end(&grants[0], EndKind::Done);
    office.publish("p", full("/w/1")).unwrap();
    office.apply(Event::Tick);
    office.try_request(|call| Event::Drain { call: Some(call) });
    // The grace of 300 ms ends with a scorer at work: its slot is taken and not closed.
    for _ in 0..13 {
        office.beat("a", runs(0));
        office.pass(900);
    }
    assert_eq!(office.evaluated(), []);
    office.restart(&BTreeMap::new());
    office.env("env", 8);
    assert_eq!(office.model("a", runs(0)), None, "it continues, and newer weights wait for it again");
}

#[test]
fn an_evaluation_that_newer_weights_waited_for_too_long_is_cut() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(3);
    office.solve(&grants[0], 0, 1.0);
    office.publish("p", full("/w/1")).unwrap();
    let alive = |office: &mut CoreFixture| {
        office.beat("a", runs(0));
        grants[1..].iter().for_each(|grant| drop(office.renew(grant)));
        office.pass(900);
    };
    (0..11).for_each(|_| alive(&mut office));
    assert_eq!(office.evaluated(), []);
    alive(&mut office);
    alive(&mut office);
    let [ended] = &office.evaluated()[..] else { panic!("{:?}", office.evaluated()) };
    assert_eq!((ended.version, ended.drawn, ended.scored, ended.succeeded), (0, 2, 1, 1));
    let why = ended.cut.as_deref().unwrap();
    assert!(why.contains("version 1 waited") && why.contains("eval.hold_millis = 10000"), "{why}");
    assert_eq!(office.failed(), [(EndKind::Cancelled, false), (EndKind::Cancelled, false)]);
    assert_eq!(office.beat("a", runs(0)), Some(1));
    assert!(
        office.lease(8).iter().all(|grant| grant.draw.problem.is_none()),
        "nothing of it is leased again"
    );
    office.restart(&BTreeMap::new());
    assert_eq!(office.model("a", runs(1)), Some(1));
    assert_eq!(office.core.version_limit(), None);
}

#[test]
fn an_evaluation_goes_on_where_it_was_when_the_coordinator_dies() {
    let mut office = CoreFixture::evaluating(1, rules());
    let grants = office.lease(3);
    office.solve(&grants[0], 0, 1.0);
    office.solve(&grants[1], 0, 0.0);
    office.commit_all();
    office.publish("p", full("/w/1")).unwrap();
    office.act(&grants[2], (0, 0));
    let kept = SpoolProgress { steps: 1, policy_versions: Some((0, 0)), ending: None };
    office.restart(&[(grants[2].of.trajectory_id.clone(), kept)].into());
    office.env("env", 8);
    assert_eq!(office.model("a", runs(0)), None, "newer weights continue to wait");
    assert!(office.take_over().is_none());
    let rest = office.lease(8);
    assert_eq!(
        problems(&rest),
        [Some((0, 1)), None],
        "one slot of the second problem, and none of the first"
    );
    office.solve(&grants[2], 0, 1.0);
    office.solve(&rest[0], 0, 1.0);
    let ended = EvaluationResult { version: 0, problems: 2, drawn: 2, scored: 4, succeeded: 3, cut: None };
    assert_eq!(office.evaluated(), [ended]);
    office.solve(&rest[1], 0, 1.0);
    office.commit_all();
    assert_eq!(office.take_over(), Some(JobOutcome::Complete));
}

#[test]
fn a_job_is_not_over_while_a_version_is_evaluated_and_a_policy_without_weights_has_one_evaluation() {
    let mut office = CoreFixture::scheduled(1, (1, 1), rules(), Some(SCHEDULE));
    office.env("env", 8);
    let offer = PolicyOffer {
        address: "there:1".into(),
        kind: PolicyKind::Random,
        sessions_max: 8,
        version: None,
        hashes: PolicyHashes::default(),
    };
    let name = Id::new("policy").unwrap();
    office.request(|call| Event::RegisterPolicy { call, worker: name, offer, run: WeightsReport::default() });
    let grants = office.lease(8);
    assert_eq!(problems(&grants).iter().flatten().count(), 4);
    office.end(&grants[4], EndKind::Done);
    office.score(&grants[4], 1.0);
    office.commit_all();
    assert_eq!(office.take_over(), None);
    for grant in &grants[..4] {
        office.end(grant, EndKind::Done);
        office.score(grant, 0.0);
    }
    office.commit_all();
    assert_eq!((office.evaluated().len(), office.take_over()), (1, Some(JobOutcome::Complete)));
}
