//! How a job stops, and what the next coordinator takes up.

use super::*;

#[test]
fn a_drain_stops_leasing_waits_and_then_cancels() {
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
fn a_stop_cancels_running_trajectories_and_ends_the_drain_grace() {
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
    assert_eq!(stopped_after(0.0, Some(0)), Some(1));
    assert_eq!(stopped_after(0.0, Some(5)), Some(6));
    assert_eq!(stopped_after(0.5, Some(5)), Some(11)); // 11 > 5 + 0.5 × 11
    assert_eq!(stopped_after(0.5, None), Some(17)); // 17 > 8 + 0.5 × 17
    assert_eq!(stopped_after(1.0, Some(0)), None);
}

/// 25 slots with three attempts each fail 75 times where nothing works: the job must stop before.
#[test]
fn the_failures_that_a_job_may_have_follow_its_size() {
    let free = |groups, group_size, failures_free| {
        let rules = CoreRules { failure_budget: 0.0, failures_free, attempts_max: 100, ..rules() };
        let mut office = CoreFixture::staffed(groups, group_size, rules);
        let mut failed = 0u64;
        loop {
            let Some((grants, false)) = office.try_lease(1) else { break failed - 1 };
            office.end(&grants[0], EndKind::EnvCrash);
            failed += 1;
        }
    };
    let cases = [(1, 1, 8), (25, 1, 8), (40, 1, 10), (10, 8, 20), (40, 4, 40), (1000, 4, 40)];
    for (groups, group_size, want) in cases {
        assert_eq!(free(groups, group_size, None), want, "{groups} groups of {group_size}");
    }
    assert_eq!(free(25, 1, Some(3)), 3, "a number that the job names is kept");
}

/// A rate divides what this start scored by the time since this start.
#[test]
fn progress_says_what_earlier_starts_scored_and_how_long_this_one_runs() {
    let mut office = CoreFixture::staffed(4, 1, rules());
    for grant in office.lease(3) {
        office.answer(&grant, 1.0);
    }
    let counts = |office: &CoreFixture| {
        let now = office.core.progress();
        (now.scored, now.scored_before, now.uptime_millis)
    };
    office.pass(700);
    assert_eq!(counts(&office), (3, 0, 700));
    office.millis += 50_000;
    office.restart(&BTreeMap::new());
    assert_eq!(counts(&office), (3, 3, 0));
    office.pass(300);
    assert_eq!(counts(&office), (3, 3, 300));
}

#[test]
fn a_job_that_ends_says_so_instead_of_a_reason_to_pause() {
    let mut office = CoreFixture::staffed(2, 1, rules());
    assert_eq!(office.core.progress().admission, "open");
    let grants = office.lease(1);
    office.request(|call| Event::Leave { call, worker: worker("policy") });
    assert!(office.core.progress().admission.starts_with("no policy worker is registered"));
    office.request(|call| Event::Drain { call: Some(call) });
    assert_eq!(office.core.progress().admission, "draining");
    drop(grants);
    let mut office = CoreFixture::staffed(1, 1, rules());
    let grants = office.lease(1);
    office.answer(&grants[0], 1.0);
    office.request(|call| Event::Leave { call, worker: worker("policy") });
    assert_eq!(office.core.progress().admission, "every group is closed");
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
    let expected = "1 attempts failed against 0 scored (browser_dead 1), limits.failure_budget = 0.1 and limits.failures_free = 0 allow 0: ";
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
    let go = office.request(|call| Event::StepArrived { call, claim: grants[3].claim() });
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
