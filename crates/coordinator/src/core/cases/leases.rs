//! Who gets a slot and for how long: requests, renewals, workers that leave or go silent.

use super::*;

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

#[test]
fn an_acknowledgement_waits_for_the_ledger() {
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grant = office.lease(1).remove(0);
    let now = EventTime { millis: 0, wall_micros: 0 };
    for round in 0..2 {
        let call = CallId(90 + round);
        let ending = Event::EndingKept { call, claim: grant.claim(), ending: answered() };
        let decision = office.core.apply(ending, now);
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
    office.pass_alive(900);
    let go = office.request(|call| Event::StepArrived { call, claim: grants[0].claim() });
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
        worker: WorkerId { env: Id::new("x").ok(), ..worker("policy") },
    });
    let moves: Vec<_> = grants.iter().flat_map(|grant| office.renew(grant).1).collect();
    assert_eq!(moves, [(grants[0].of.trajectory_id.clone(), "elsewhere:1".to_owned())], "one fits");
    assert_eq!(office.renew(&grants[0]).1.len(), 1, "repeated: the first answer may have been lost");
    office.policy("policy", "there:2", 8);
    assert_eq!(office.renew(&grants[1]).1, [(grants[1].of.trajectory_id.clone(), "there:2".to_owned())]);
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
