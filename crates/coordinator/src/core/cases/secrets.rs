//! Who is accepted for a lease: its worker with its token and its secret, and no other caller in
//! any state of the lease.

use furrow_rollout::{LEASE_SECRET_BYTES, LeaseSecret};
use furrow_wire::{Peer, PeerRole, RevokedPeer};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::ledger::{SqliteLedger, TrajectoryStanding};

fn peer(name: &str) -> Caller {
    Caller::identified(Peer::of_run(Id::new("run").unwrap(), PeerRole::Env, name))
}

fn own(grant: &LeaseGrant) -> LeaseClaim {
    LeaseClaim { caller: peer("env"), proof: grant.proof() }
}

/// Ways to be wrong about a lease, with what another lease of the same worker came with.
fn forgeries(grant: &LeaseGrant, other: &LeaseGrant) -> Vec<(&'static str, LeaseClaim)> {
    let with = |change: &dyn Fn(&mut LeaseClaim)| {
        let mut claim = own(grant);
        change(&mut claim);
        claim
    };
    let mut bit = *grant.secret.reveal();
    bit[LEASE_SECRET_BYTES - 1] ^= 1;
    vec![
        ("zeros", with(&|claim| claim.proof.secret = LeaseSecret::new([0; LEASE_SECRET_BYTES]))),
        ("a bit that differs", with(&|claim| claim.proof.secret = LeaseSecret::new(bit))),
        ("the secret of another lease", with(&|claim| claim.proof.secret = other.secret.clone())),
        ("the token of another lease", with(&|claim| claim.proof.token = other.token)),
        ("another identity", with(&|claim| claim.caller = peer("rogue"))),
        ("an identity that begins alike", with(&|claim| claim.caller = peer("en"))),
    ]
}

/// What a caller gets that may not act for a trajectory, whatever became of that.
fn stale(claim: &LeaseClaim) -> CallResponse {
    let LeaseProof { trajectory_id, token, .. } = claim.proof.clone();
    CallResponse::Refused(CallRefusal::Stale { trajectory: trajectory_id, token })
}

/// Makes each call of a lease, and asserts that all of them are refused in the same terms.
fn check_refused(office: &mut CoreFixture, what: &str, claim: &LeaseClaim) {
    let before = (office.core.leases.clone(), office.core.progress().scoring);
    let want = stale(claim);
    let calls: [&dyn Fn(CallId, LeaseClaim) -> Event; 4] = [
        &|call, claim| Event::StepArrived { call, claim },
        &|call, claim| Event::FirstShown { call, claim },
        &|call, claim| Event::EndingArrived { call, claim, digest: [1; 32] },
        &|call, claim| Event::EndingKept { call, claim, ending: answered() },
    ];
    for event in calls {
        assert_eq!(office.request(|call| event(call, claim.clone())), want, "{what}");
    }
    assert_eq!((office.core.leases.clone(), office.core.progress().scoring), before, "{what}");
}

#[test]
fn a_forged_call_is_refused_in_every_state_and_learns_none() {
    type Change = fn(&mut CoreFixture, &LeaseGrant);
    let states: [(&str, Change); 6] = [
        ("running", |_, _| {}),
        ("acknowledged", |office, grant| drop(office.end(grant, EndKind::Answered))),
        ("scored and committed", |office, grant| {
            office.answer(grant, 1.0);
            office.commit_all();
        }),
        ("expired", |office, _| office.pass_alive(1_100)),
        ("revoked", |office, _| {
            office.apply(Event::Revoked { peer: RevokedPeer::parse("env/env").unwrap() });
        }),
        ("restarted", |office, _| office.restart(&BTreeMap::new())),
    ];
    for (state, change) in states {
        let mut office = CoreFixture::staffed(2, 1, rules());
        let grants = office.lease(2);
        change(&mut office, &grants[0]);
        for (forgery, claim) in forgeries(&grants[0], &grants[1]) {
            check_refused(&mut office, &format!("{state}, {forgery}"), &claim);
            let worker = if claim.caller == peer("env") { "env" } else { "rogue" };
            let lost = office.renew_as(worker, claim.proof).0;
            assert_eq!(lost, 1, "{state}, {forgery}: a renewal says no more");
        }
        let unknown = LeaseProof { trajectory_id: Id::new("run-g9").unwrap(), ..grants[0].proof() };
        check_refused(&mut office, state, &LeaseClaim { proof: unknown, ..own(&grants[0]) });
        let is_over = matches!(state, "expired" | "revoked");
        if is_over {
            check_refused(&mut office, state, &own(&grants[0]));
        }
    }
}

#[test]
fn the_right_secret_goes_on_after_a_restart_and_repeats_get_the_same_answer_once() {
    let mut office = CoreFixture::staffed(2, 1, rules());
    let grants = office.lease(2);
    let arrived = |office: &mut CoreFixture, grant: &LeaseGrant| {
        let claim = own(grant);
        office.request(|call| Event::EndingArrived { call, claim, digest: [1; 32] })
    };
    assert!(matches!(arrived(&mut office, &grants[0]), CallResponse::Go { .. }));
    for _ in 0..3 {
        let claim = own(&grants[0]);
        let kept = office.request(|call| Event::EndingKept { call, claim, ending: answered() });
        assert_eq!(kept, CallResponse::Finished);
        assert_eq!(arrived(&mut office, &grants[0]), CallResponse::Finished);
    }
    assert_eq!(office.count(|effect| matches!(effect, Effect::Score { .. })), 1, "it counts once");
    let ended = SpoolProgress { ending: Some([1; 32]), ..SpoolProgress::default() };
    office.restart(&[(grants[0].of.trajectory_id.clone(), ended)].into());
    assert_eq!(arrived(&mut office, &grants[0]), CallResponse::Finished);
    for (forgery, claim) in forgeries(&grants[0], &grants[1]) {
        check_refused(&mut office, forgery, &claim);
    }
    let step = office.request(|call| Event::StepArrived { call, claim: own(&grants[1]) });
    assert!(matches!(step, CallResponse::Go { .. }), "{step:?}");
    assert_eq!(office.renew(&grants[1]).0, 0);
}

#[test]
fn the_ledger_and_its_printed_form_have_no_secret() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    let snapshot = office.ledger.load().unwrap();
    let bytes = format!("{:?}", grant.secret.reveal());
    let bytes = bytes.trim_matches(['[', ']']);
    let printed = [format!("{snapshot:?}"), format!("{grant:?}"), format!("{:?}", own(&grant))];
    assert!(printed.iter().all(|text| !text.contains(bytes)), "{printed:?}");
    assert!(snapshot.trajectories[0].start.secret.is_some_and(|digest| digest.is_of(&grant.secret)));
}

/// A lease of an earlier release has no digest: no caller can go on with it, and its slot is free.
#[test]
fn a_lease_without_a_digest_ends_with_the_restart_and_is_no_failure() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    let mut snapshot = office.ledger.load().unwrap();
    snapshot.trajectories[0].start.secret = None;
    let run = snapshot.run.take().unwrap();
    let plan = Arc::new(FixedPlan(1, 1, 1, None));
    let spooled = [(grant.of.trajectory_id.clone(), SpoolProgress { steps: 3, ..SpoolProgress::default() })];
    let now = EventTime { millis: 0, wall_micros: 0 };
    let secrets = SecretSource::seeded(2);
    let (core, decision) =
        Core::start(rules(), plan, (run, snapshot), &BTreeMap::from(spooled), secrets, now);
    office.core = core;
    office.keep(decision, None);
    assert_eq!(office.failed(), [(EndKind::Cancelled, true)]);
    let row = office.ledger.load().unwrap().trajectories.remove(0);
    let TrajectoryStanding::Failed { ended } = row.standing else { panic!("{row:?}") };
    assert_eq!((ended.end, ended.steps), (EndKind::Cancelled, 3), "its steps are in the data set");
    check_refused(&mut office, "an older lease", &own(&grant));
    office.env("env", 8);
    office.policy("policy", "there:1", 8);
    assert_eq!(ids(&office.lease(1)), ["run-g000000-s0-a1"]);
}

/// One thing that may happen, to the lease that a number selects.
#[derive(Debug, Clone)]
enum Happening {
    Lease,
    Step(usize),
    End(usize, u8),
    Renew(usize),
    Forge(usize, usize),
    Pass(u64),
    Restart,
}

fn happening() -> impl Strategy<Value = Happening> {
    let lease = || 0..8usize;
    prop_oneof![
        4 => Just(Happening::Lease),
        3 => lease().prop_map(Happening::Step),
        3 => (lease(), 1..3u8).prop_map(|(lease, digest)| Happening::End(lease, digest)),
        2 => lease().prop_map(Happening::Renew),
        6 => (lease(), 0..6usize).prop_map(|(lease, forgery)| Happening::Forge(lease, forgery)),
        3 => (100..300u64).prop_map(Happening::Pass),
        1 => Just(Happening::Restart),
    ]
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    RunningUntil(u64),
    Ended(u8),
    Lost,
}

/// A core beside a model of what each lease allows.
struct Walk {
    office: CoreFixture,
    leases: Vec<(LeaseGrant, Fate)>,
}

impl Walk {
    fn new(ledger: Box<dyn Ledger>) -> Self {
        let rules = CoreRules { attempts_max: 100, ..rules() };
        let mut office = CoreFixture::on(ledger, 1_000, (1, 1), rules, None);
        office.env("env", 8);
        office.policy("policy", "there:1", 8);
        Self { office, leases: Vec::new() }
    }

    fn at(&self, number: usize) -> Option<usize> {
        (!self.leases.is_empty()).then(|| number % self.leases.len())
    }

    /// The answer to its own worker, as far as it depends on the lease.
    fn expect(&self, index: usize, digest: Option<u8>) -> &'static str {
        match (self.leases[index].1, digest) {
            (Fate::RunningUntil(_), None) => "go",
            (Fate::RunningUntil(_), Some(_)) => "finished",
            (Fate::Ended(ended), Some(digest)) if ended == digest => "finished",
            (Fate::Ended(_), Some(_)) => "other ending",
            _ => "refused",
        }
    }

    fn extend(&mut self, index: usize) {
        let until = self.office.millis + self.office.rules.lease_millis;
        if let (_, Fate::RunningUntil(at)) = &mut self.leases[index] {
            *at = until;
        }
    }

    fn check(&mut self, happening: &Happening) {
        match *happening {
            Happening::Lease if self.leases.len() < 8 => {
                let until = self.office.millis + self.office.rules.lease_millis;
                for grant in self.office.lease(1) {
                    self.leases.push((grant, Fate::RunningUntil(until)));
                }
            }
            Happening::Step(number) => {
                let Some(index) = self.at(number) else { return };
                let claim = own(&self.leases[index].0);
                let answer = self.office.request(|call| Event::StepArrived { call, claim });
                assert_eq!(kind(&answer), self.expect(index, None));
                self.extend(index);
            }
            Happening::End(number, digest) => {
                let Some(index) = self.at(number) else { return };
                let claim = own(&self.leases[index].0);
                let ending = ReportedEnd { digest: [digest; 32], ..answered() };
                let answer = self.office.request(|call| Event::EndingKept { call, claim, ending });
                assert_eq!(kind(&answer), self.expect(index, Some(digest)));
                if let (_, fate @ Fate::RunningUntil(_)) = &mut self.leases[index] {
                    *fate = Fate::Ended(digest);
                }
            }
            Happening::Renew(number) => {
                let Some(index) = self.at(number) else { return };
                let grant = self.leases[index].0.clone();
                let lost = self.office.renew(&grant).0;
                assert_eq!(lost, usize::from(self.leases[index].1 == Fate::Lost));
                self.extend(index);
            }
            Happening::Forge(number, forgery) => {
                let Some(index) = self.at(number) else { return };
                let other = self.at(number + 1).filter(|other| *other != index);
                let Some(other) = other else { return };
                let claims = forgeries(&self.leases[index].0, &self.leases[other].0);
                let (what, claim) = &claims[forgery];
                check_refused(&mut self.office, what, claim);
            }
            Happening::Pass(millis) => {
                self.office.pass_alive(100);
                self.office.pass(millis - 100);
                self.lapse();
            }
            Happening::Restart => self.restart(),
            Happening::Lease => {}
        }
    }

    fn lapse(&mut self) {
        let now = self.office.millis;
        for (_, fate) in &mut self.leases {
            if matches!(fate, Fate::RunningUntil(until) if *until <= now) {
                *fate = Fate::Lost;
            }
        }
    }

    fn restart(&mut self) {
        let ended = self.leases.iter().filter_map(|(grant, fate)| match fate {
            Fate::Ended(digest) => {
                let ending = Some([*digest; 32]);
                Some((grant.of.trajectory_id.clone(), SpoolProgress { ending, ..SpoolProgress::default() }))
            }
            _ => None,
        });
        self.office.restart(&ended.collect());
        self.office.env("env", 8);
        self.office.policy("policy", "there:1", 8);
        (0..self.leases.len()).for_each(|index| self.extend(index));
    }
}

fn kind(answer: &CallResponse) -> &'static str {
    match answer {
        CallResponse::Go { .. } => "go",
        CallResponse::Finished => "finished",
        CallResponse::Refused(CallRefusal::OtherEnding { .. }) => "other ending",
        CallResponse::Refused(CallRefusal::Stale { .. }) => "refused",
        _ => "unexpected",
    }
}

type MakeLedger<'a> = dyn FnMut() -> Box<dyn Ledger> + 'a;

/// On either ledger, any order of calls, expiries and restarts leaves each lease to its own worker.
#[test]
fn no_order_of_calls_lets_another_caller_in_or_its_own_worker_down() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = 0;
    let mut ledgers: [(u32, Box<MakeLedger>); 2] = [
        (128, Box::new(|| Box::<MemoryLedger>::default())),
        (
            16,
            Box::new(|| {
                files += 1;
                Box::new(SqliteLedger::open(folder.path().join(format!("{files}.sqlite"))).unwrap())
            }),
        ),
    ];
    for (cases, make) in &mut ledgers {
        let mut runner = TestRunner::new(ProptestConfig { cases: *cases, ..ProptestConfig::default() });
        let make = std::cell::RefCell::new(make);
        let walk = |happenings: Vec<Happening>| {
            let mut walk = Walk::new(make.borrow_mut()());
            happenings.iter().for_each(|happening| walk.check(happening));
            Ok(())
        };
        runner.run(&prop::collection::vec(happening(), 1..60), walk).unwrap();
    }
}
