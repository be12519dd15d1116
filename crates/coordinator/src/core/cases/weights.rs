//! Published weights: orders to workers, refusals, rollbacks.

use super::*;

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
    assert!(other.contains("is already version 1, with other weights; publish under a new id"), "{other}");
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
