//! How trajectories end and groups close: faults, retries, scores, spare slots, lost records.

use super::*;

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
    // A policy that stalls, or whose input makes a page loop, gets no second try.
    check_ends(&[(MaxTime, true)], &[None]);
    check_ends(&[(ScriptLoop, true)], &[None]);
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
fn committed_trajectories_are_forgotten() {
    let mut office = CoreFixture::staffed(3_000, 1, rules());
    for _ in 0..3_000 {
        let grant = office.lease(1).remove(0);
        office.end(&grant, EndKind::Answered);
        office.score(&grant, 1.0);
        office.commit_all();
        office.effects.clear();
        let Core { groups, scoring, uncommitted, leases, waiting, .. } = &office.core;
        let kept = groups.len() + scoring.len() + uncommitted.len() + leases.len() + waiting.len();
        assert_eq!(kept, 0);
    }
    assert_eq!((office.core.progress().committed, office.core.progress().groups_closed), (3_000, 3_000));
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
