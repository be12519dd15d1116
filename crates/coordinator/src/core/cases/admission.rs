//! When nothing new is leased, and what a trainer's discards change.

use super::*;

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

#[test]
fn a_policy_worker_that_still_loads_is_no_pause_to_report() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.env("env", 8);
    let ask = |office: &mut CoreFixture| {
        let worker = Id::new("env").unwrap();
        office.try_request(|call| Event::Lease { call, worker, slots: 1, wait_millis: 400 })
    };
    let is_reported = |office: &CoreFixture| {
        office.effects.iter().any(|effect| matches!(effect, Effect::Notify(CoreNotice::Paused { .. })))
    };
    assert!(ask(&mut office).is_none(), "it waits");
    assert!(!is_reported(&office), "the policy worker registers in a moment");
    office.pass_alive(1_100);
    assert!(ask(&mut office).is_none());
    assert!(is_reported(&office), "after a lease term none has come");
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
    assert_eq!(office.discard((0, 1), 2), Ok((2, 2)), "a repeated report changes nothing");
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
