//! Evaluations of versions inside a job.

use super::*;

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
