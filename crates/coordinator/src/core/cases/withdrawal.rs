//! Versions whose weights are broken: who serves, what is ordered next.

use super::*;

const WHY: &str = "the logits of 4 sessions were not finite";

/// A policy worker's report that its own version is broken.
fn broken(own: i32) -> WeightsReport {
    WeightsReport { refused: Some((own, WHY.into())), ..runs(own) }
}

/// Publishes a version that a worker runs from then on.
fn run_next(office: &mut CoreFixture, name: &str, version: i32) {
    let published = office.publish(&format!("p{version}"), full(&format!("/w/{version}")));
    assert_eq!(published, Ok((version, false)));
    assert_eq!(office.beat(name, runs(version)), Some(version));
}

fn links(office: &CoreFixture) -> Vec<String> {
    let order = office.core.weights_order().unwrap();
    order.links.into_iter().map(|link| link.directory).collect()
}

fn state(office: &mut CoreFixture, version: i32) -> &'static str {
    office.weights(version).state.as_str()
}

#[test]
fn a_version_that_is_broken_on_every_worker_is_withdrawn_and_the_one_before_follows() {
    let mut office = CoreFixture::new(1, 4, rules());
    office.env("env", 8);
    office.model("a", runs(0));
    run_next(&mut office, "a", 1);
    run_next(&mut office, "a", 2);
    assert_eq!(office.beat("a", broken(2)), Some(3));
    let standing = office.weights(2);
    assert_eq!((standing.current, standing.state), (2, VersionState::Withdrawn { reason: WHY.into() }));
    assert_eq!(standing.workers[0].lags.as_deref(), Some(WHY));
    assert_eq!((links(&office), standing.needed), (vec!["/w/1".to_owned()], vec!["/w/1".to_owned()]));
    assert!(office.serving().is_empty());
    assert_eq!(office.try_lease(1), Some((Vec::new(), false)));
    let (reason, detail) = office.core.pause_reason().unwrap();
    assert_eq!(reason, PauseReason::NoPolicyWorker);
    assert_eq!(detail, format!("no policy worker may serve version 2; a runs 2: {WHY}"));
    assert_eq!(office.beat("a", broken(2)), Some(3), "it is withdrawn once");
    let lags = |effect: &Effect| matches!(effect, Effect::Notify(CoreNotice::VersionLags { .. }));
    let withdrawn = |effect: &Effect| matches!(effect, Effect::Notify(CoreNotice::VersionWithdrawn { .. }));
    assert_eq!((office.count(lags), office.count(withdrawn)), (1, 1));

    office.restart(&BTreeMap::new());
    office.env("env", 8);
    assert_eq!(office.model("b", runs(0)), Some(3), "no worker that starts loads it");
    assert_eq!(office.model("a", runs(2)), Some(3));
    assert!(office.serving().is_empty(), "a worker that registers again still runs it");
    assert_eq!(office.beat("a", runs(3)), Some(3));
    assert_eq!((office.serving(), office.pause()), (vec!["a".to_owned()], None));
    assert_eq!((state(&mut office, 3), state(&mut office, 2)), ("taken", "withdrawn"));
    office.beat("a", broken(2));
    assert_eq!(office.serving(), ["a"], "a late report is of what it ran before");
    let form = furrow_rollout::WeightsForm::Delta;
    let link = furrow_rollout::WeightsLink { form, directory: "/w/4".into() };
    let over = office.publish("over", VersionSource::Directory { link, base_version: 2 }).unwrap_err();
    assert!(over.contains("version 2 was withdrawn"), "{over}");
}

#[test]
fn a_newer_version_that_waits_follows_a_withdrawn_one() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.model("a", runs(0));
    run_next(&mut office, "a", 1);
    assert_eq!(office.publish("q", full("/w/2")), Ok((2, false)));
    assert_eq!(office.beat("a", broken(1)), Some(2));
    assert_eq!((office.weights(0).version, links(&office)), (2, vec!["/w/2".to_owned()]));
    assert_eq!(
        office.beat("a", cannot(1, 2)),
        Some(3),
        "where that is refused, there is nothing but the job's"
    );
    assert!(links(&office).is_empty() && office.serving().is_empty());
    assert_eq!(office.beat("a", runs(3)), Some(3));
    assert_eq!(office.serving(), ["a"]);
}

#[test]
fn weights_whose_files_are_gone_are_passed_over_and_nothing_is_tried_twice() {
    let mut office = CoreFixture::new(1, 1, rules());
    office.model("a", runs(0));
    run_next(&mut office, "a", 1);
    // A publisher may have used the name.
    assert_eq!(office.publish("withdrawn-2", full("/w/2")), Ok((2, false)));
    assert_eq!(office.beat("a", runs(2)), Some(2));
    assert_eq!(office.beat("a", broken(2)), Some(3));
    assert_eq!(office.beat("a", cannot(2, 3)), Some(4));
    assert!(links(&office).is_empty(), "the job's own weights are always there");
    assert!(office.serving().is_empty(), "it is still broken while it reports another version");
    assert_eq!(office.beat("a", runs(4)), Some(4));
    assert_eq!(office.serving(), ["a"]);
    assert_eq!(office.beat("a", broken(4)), Some(5), "the files of 1 may be back");
    assert_eq!(office.beat("a", cannot(4, 5)), Some(1), "which it does not run, because it is older");
    assert!(office.pause().is_some());
    assert_eq!(office.publish("good", full("/w/6")), Ok((6, false)));
    assert_eq!(office.beat("a", runs(6)), Some(6));
    assert_eq!((office.serving(), office.pause()), (vec!["a".to_owned()], None));
}

#[test]
fn a_version_that_is_broken_on_one_worker_stays_and_its_sessions_move() {
    let mut office = CoreFixture::new(4, 1, rules());
    office.env("env", 8);
    office.model("a", runs(0));
    run_next(&mut office, "a", 1);
    office.model("b", runs(1));
    let grants = office.lease(4);
    let on = |grant: &&LeaseGrant, address: &str| grant.policy_address == address;
    let mine: Vec<_> = grants.iter().filter(|grant| on(grant, "a:1")).collect();
    assert_eq!(mine.len(), 2);
    assert_eq!(office.beat("a", broken(1)), Some(1));
    assert_eq!((office.serving(), state(&mut office, 1)), (vec!["b".to_owned()], "taken"));
    for grant in &mine {
        let moved = (grant.of.trajectory_id.clone(), "b:1".to_owned());
        assert_eq!(office.renew(grant), (0, vec![moved]));
    }
    let lags: Vec<_> = office.weights(1).workers.into_iter().map(|worker| worker.lags).collect();
    assert_eq!(lags, [Some(WHY.to_owned()), None]);
    // One that runs other weights under that number says nothing about it.
    office.model("z", WeightsReport { weights_sha256: Some(hash(7)), ..runs(1) });
    office.beat("z", WeightsReport { weights_sha256: Some(hash(7)), ..broken(1) });
    assert_eq!(state(&mut office, 1), "taken");
    // The last worker that ran it well leaves.
    office.request(|call| Event::Leave { call, worker: worker("b") });
    office.pass(100);
    assert_eq!(state(&mut office, 1), "withdrawn");
    assert_eq!(office.beat("a", broken(1)), Some(2));
    assert_eq!(office.beat("a", runs(2)), Some(2));
    assert_eq!(office.serving(), ["a"]);
}

#[test]
fn the_evaluation_of_a_withdrawn_version_is_cut() {
    let mut office = CoreFixture::evaluating(9, rules());
    let grants = office.lease(4);
    grants.iter().for_each(|grant| office.solve(grant, 0, 1.0));
    office.publish("p", full("/w/1")).unwrap();
    office.publish("q", full("/w/2")).unwrap();
    assert_eq!(office.beat("a", runs(2)), Some(2));
    let grants = office.lease(2);
    assert!(grants.iter().all(|grant| grant.draw.problem.is_some_and(|problem| problem.version == 2)));
    assert_eq!(office.publish("r", full("/w/3")), Ok((3, false)));
    assert_eq!(office.beat("a", broken(2)), Some(3), "nothing holds newer weights back");
    let cut = office.evaluated().pop().and_then(|ended| ended.cut);
    assert_eq!(cut, Some(format!("version 2 was withdrawn: {WHY}")));
    assert_eq!(office.renew(&grants[0]).0, 1, "its trajectories are cancelled");
    assert_eq!(office.beat("a", runs(3)), Some(3));
    assert_eq!(office.serving(), ["a"]);
}
