//! Registration and calls: what is refused, with which code and reason.

use super::*;

#[tokio::test]
async fn workers_register_or_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    let with = |change: &dyn Fn(&mut v1::RegisterRequest)| {
        let mut request = policy("policy");
        change(&mut request);
        request
    };
    let with_info = |change: &dyn Fn(&mut v1::PolicyWorkerInfo)| {
        with(&|request| {
            let Some(v1::register_request::Role::Policy(info)) = &mut request.role else { unreachable!() };
            change(info);
        })
    };
    let protocol = PROTOCOL_VERSION + 1;
    let schema = SCHEMA_VERSION + 1;
    let table = [
        (
            with(&|request| request.protocol_version = protocol),
            Code::FailedPrecondition,
            format!("protocol version {protocol}, the coordinator {PROTOCOL_VERSION}"),
        ),
        (
            with(&|request| request.schema_version = schema),
            Code::FailedPrecondition,
            format!("schema version {schema}, the coordinator {SCHEMA_VERSION}"),
        ),
        (with(&|request| request.role = None), Code::InvalidArgument, "role is missing".into()),
        (with(&|request| request.worker_id = "a/b".into()), Code::InvalidArgument, "worker_id".into()),
        (with_info(&|info| info.address = "nowhere".into()), Code::InvalidArgument, "host:port".into()),
        (with_info(&|info| info.address = "host:0".into()), Code::InvalidArgument, "host:port".into()),
        (
            with_info(&|info| info.address = "0.0.0.0:9".into()),
            Code::InvalidArgument,
            "policy.advertise".into(),
        ),
        (
            with_info(&|info| info.policy_kind = "oracle".into()),
            Code::InvalidArgument,
            "scripted, random".into(),
        ),
        (with_info(&|info| info.sessions_max = 0), Code::InvalidArgument, "policy.sessions_max is 0".into()),
        (
            with_info(&|info| info.weights_sha256 = Some("x".into())),
            Code::InvalidArgument,
            "policy.weights_sha256".into(),
        ),
    ];
    for (request, code, part) in table {
        refused(farm.registration.register(request).await, code, &part);
    }
    let known = farm.registration.register(policy("policy")).await.unwrap().into_inner();
    assert_eq!((known.run_id.as_str(), known.epoch, known.heartbeat_millis), ("loopback", 1, 3_000));
    for (worker_id, want) in [("policy", true), ("stranger", false)] {
        let request = v1::HeartbeatRequest { worker_id: worker_id.into(), ..v1::HeartbeatRequest::default() };
        let response = farm.registration.heartbeat(request).await.unwrap().into_inner();
        assert_eq!((response.known, response.run_over), (want, false), "{worker_id}");
    }
    let request = v1::LeaseRequest { worker_id: "stranger".into(), slots_free: 1, wait_millis: 0 };
    refused(farm.calls.lease(request).await, Code::Aborted, "register again");
    farm.stop().await.unwrap();
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_what_was_kept_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    farm.register().await;
    let assignment = farm.lease(1).await.assignments.remove(0);
    assert_eq!((assignment.policy_address.as_str(), assignment.lease_millis), ("127.0.0.1:9", 60_000));
    assert_eq!(assignment.task.clone().unwrap().goal.as_deref(), Some("Say 42."));
    let leased = LeasedAssignment::new(assignment);
    assert_eq!(leased.trajectory_id, "loopback-g000000-s0-a0");

    farm.record(leased.step(0)).await.unwrap();
    farm.record(leased.step(0)).await.unwrap(); // its answer may have been lost
    let changed = |change: &dyn Fn(&mut v1::RecordStepRequest)| {
        let mut request = leased.step(1);
        change(&mut request);
        request
    };
    let other_zero = changed(&|request| {
        let mut bytes = record(0).to_vec();
        bytes.extend_from_slice(&[0x38, 0x07]); // field 7, observed_at_micros, again
        request.digest = Bytes::copy_from_slice(&digest(&bytes));
        (request.step, request.record) = (0, bytes.into());
    });
    let huge = changed(&|request| request.record = vec![0; MESSAGE_BYTES_MAX + 1].into());
    let steps = [
        (
            changed(&|request| request.token += 1),
            Code::FailedPrecondition,
            "under token 2: the lease is over",
        ),
        (changed(&|request| request.token = 0), Code::FailedPrecondition, "token 0"),
        (
            changed(&|request| request.trajectory_id = "loopback-g000000-s0-a1".into()),
            Code::FailedPrecondition,
            "holds no lease of loopback-g000000-s0-a1",
        ),
        (changed(&|request| request.digest = vec![0; 32].into()), Code::InvalidArgument, "digest"),
        (changed(&|request| request.digest = vec![0; 31].into()), Code::InvalidArgument, "31 bytes"),
        (
            changed(&|request| request.record = Bytes::from_static(b"\xff\xff")),
            Code::InvalidArgument,
            "cannot be decoded",
        ),
        (changed(&|request| request.step = 2), Code::InvalidArgument, "record is of step 1"),
        (leased.step(2), Code::OutOfRange, "step 2 came before step 1"),
        (other_zero, Code::AlreadyExists, "another digest"),
        (huge, Code::OutOfRange, "too large"),
    ];
    for (request, code, part) in steps {
        refused(farm.record(request).await, code, part);
    }
    farm.record(leased.step(1)).await.unwrap();

    let ending = leased.ending(2, EndKind::Answered, Some("42"));
    refused(
        farm.finish(leased.ending(3, EndKind::Answered, Some("42"))).await,
        Code::OutOfRange,
        "2 steps are recorded",
    );
    let stale = v1::FinishRequest { token: 9, ..ending.clone() };
    refused(farm.finish(stale).await, Code::FailedPrecondition, "holds no lease");
    farm.finish(ending.clone()).await.unwrap();
    farm.finish(ending).await.unwrap();
    let other = leased.ending(2, EndKind::Answered, Some("41"));
    refused(farm.finish(other).await, Code::AlreadyExists, "another ending");

    let summary = farm.end().await.unwrap();
    assert_eq!(summary.over, JobOutcome::Complete);
    let data = DataSet::open(&dir.path().join("run")).unwrap();
    let rows: Vec<_> = data.trajectories().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].status, rows[0].ending.steps), (Scored::Scored, 2));
    assert_eq!(rows[0].score.as_ref().unwrap().reward, Some(1.0));
}

#[tokio::test]
async fn a_call_presents_the_secret_of_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let setup = JobSetup { groups: 2, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let leased = farm.lease_one().await;
    let table = [
        (None, Code::InvalidArgument, "secret is missing"),
        (secret(0), Code::InvalidArgument, "secret is \"0 bytes\""),
        (secret(15), Code::InvalidArgument, "secret is \"15 bytes\""),
        (
            secret(17),
            Code::InvalidArgument,
            "secret is \"17 bytes\"; expected the 16 bytes of its assignment",
        ),
        (secret(16), Code::FailedPrecondition, "or its worker, token or secret is another"),
    ];
    let check_refused = async |farm: &mut TestFarm, steps| {
        for (secret, code, part) in table.clone() {
            let forged = LeasedAssignment { secret, ..leased.clone() };
            refused(farm.record(forged.step(steps)).await, code, part);
            refused(farm.finish(forged.ending(steps, EndKind::Answered, Some("42"))).await, code, part);
            let picture = Bytes::from_static(b"\x89PNG");
            refused(farm.calls.show_first(forged.show(picture)).await, code, part);
            let renewing = v1::RenewRequest { worker_id: "env".into(), leases: vec![forged.lease()] };
            match farm.calls.renew(renewing).await {
                Ok(renewed) if code == Code::FailedPrecondition => {
                    assert_eq!(renewed.into_inner().lost.len(), 1);
                }
                renewed => refused(renewed, code, &part.replace("secret is", "leases.secret is")),
            }
        }
    };
    check_refused(&mut farm, 0).await;
    farm.record(leased.step(0)).await.unwrap();
    check_refused(&mut farm, 1).await;
    let ending = leased.ending(1, EndKind::Answered, Some("42"));
    farm.finish(ending.clone()).await.unwrap();
    check_refused(&mut farm, 1).await;
    farm.finish(ending).await.unwrap();
    assert_eq!(farm.stop().await.unwrap().progress.scored, 1);
}

/// A secret of so many bytes that no lease has.
fn secret(bytes: usize) -> Option<v1::LeaseSecret> {
    Some(v1::LeaseSecret { value: vec![7; bytes].into() })
}

#[tokio::test]
async fn discarded_trajectories_free_capacity_and_more_than_there_are_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LimitsFile {
        trajectories_per_version: Some(1),
        max_off_policy_versions: 0,
        ..JobSetup::default().limits
    };
    let mut farm =
        TestFarm::open(JobSetup { groups: 3, limits, ..JobSetup::default() }, dir.path()).await.unwrap();
    farm.register().await;
    let wrong = [
        ((1, 0, 0), Code::OutOfRange, "1 trajectories cannot be discarded: this run has accepted 0"),
        ((0, 2, 2), Code::InvalidArgument, "reader 2 of 2 is out of range"),
        ((0, 1, 0), Code::InvalidArgument, "reader 1 of 0 is out of range"),
        ((0, 0, 5000), Code::InvalidArgument, "at most 4096 readers"),
    ];
    for ((trajectories, rank, world), code, part) in wrong {
        let request = v1::ReportDiscardedRequest { trajectories, rank, world };
        refused(farm.calls.report_discarded(request).await, code, part);
    }
    for discarded in 1..=3 {
        let assignment = farm.lease_one().await;
        farm.act(&assignment, 1, "no idea").await;
        while farm.progress().await.scored < discarded {
            tokio::task::yield_now().await;
        }
        if discarded < 3 {
            let admission = farm.progress().await.admission;
            assert!(
                admission.ends_with("of them discarded, and 0 running fill what version 0 allows: 1"),
                "{admission}"
            );
            assert!(farm.lease(1).await.assignments.is_empty());
        }
        let request = v1::ReportDiscardedRequest { trajectories: discarded.into(), rank: 0, world: 0 };
        let answer = farm.calls.report_discarded(request).await.unwrap().into_inner();
        assert_eq!((answer.discarded, answer.accepted), (discarded.into(), discarded.into()));
        assert_eq!(farm.progress().await.discarded, discarded);
    }
    assert_eq!(farm.end().await.unwrap().over, JobOutcome::Complete);
}

#[tokio::test]
async fn a_silent_worker_loses_its_trajectory_and_its_late_ending_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LimitsFile { lease_millis: 300, heartbeat_millis: 100, ..JobSetup::default().limits };
    let mut farm = TestFarm::open(JobSetup { limits, ..JobSetup::default() }, dir.path()).await.unwrap();
    farm.register().await;
    let late = farm.lease_one().await;
    farm.record(late.step(0)).await.unwrap();
    while farm.progress().await.failed == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let leases = vec![late.lease()];
    let renewed = farm.calls.renew(v1::RenewRequest { worker_id: "env".into(), leases }).await.unwrap();
    assert_eq!(renewed.into_inner().lost, std::slice::from_ref(&late.trajectory_id));
    refused(
        farm.finish(late.ending(1, EndKind::Answered, Some("42"))).await,
        Code::FailedPrecondition,
        "the lease is over",
    );
    farm.register().await; // it was silent for too long and is unknown
    let assignment = farm.lease_one().await;
    assert_eq!((assignment.trajectory_id.as_str(), assignment.token), ("loopback-g000000-s0-a1", 2));
    farm.act(&assignment, 1, "42").await;
    assert_eq!(farm.end().await.unwrap().over, JobOutcome::Complete);
    let data = DataSet::open(&dir.path().join("run")).unwrap();
    let rows: Vec<_> = data.trajectories().map(|row| row.unwrap().ending).collect();
    assert_eq!(rows.iter().map(|row| row.end).collect::<Vec<_>>(), [EndKind::LeaseLost, EndKind::Answered]);
    assert_eq!(data.failed_steps().count(), 1);
}

#[tokio::test]
async fn a_caller_that_hung_up_is_given_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    farm.registration.register(env("env")).await.unwrap();
    let request = v1::LeaseRequest { worker_id: "env".into(), slots_free: 1, wait_millis: 60_000 };
    let hung_up = tokio::time::timeout(Duration::from_millis(150), farm.calls.clone().lease(request)).await;
    assert!(hung_up.is_err(), "there was nothing to lease yet");
    tokio::time::sleep(Duration::from_millis(300)).await; // a tick drops closed calls every 100 ms
    farm.registration.register(policy("policy")).await.unwrap();
    let assignment = farm.lease_one().await;
    assert_eq!(
        assignment.trajectory_id, "loopback-g000000-s0-a0",
        "no attempt was wasted on the one that hung up"
    );
    farm.stop().await.unwrap();
}

/// A first screenshot is for observers alone: without one it is not kept, and a step is worth more.
#[tokio::test]
async fn observers_get_the_first_screenshot_until_there_is_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    farm.register().await;
    let leased = farm.lease_one().await;
    let screenshot = Bytes::from_static(b"\x89PNG");
    let show = leased.show(screenshot.clone());
    let renew = v1::RenewRequest { worker_id: "env".into(), leases: vec![] };
    let last = v1::LastStepRequest { trajectory_id: leased.trajectory_id.clone() };
    let is_shown = async |farm: &mut TestFarm| {
        let running = farm.calls.running(v1::RunningRequest {}).await.unwrap().into_inner();
        running.trajectories.iter().any(|running| running.first_shown)
    };

    assert!(!farm.calls.renew(renew.clone()).await.unwrap().into_inner().watched);
    farm.calls.show_first(show.clone()).await.unwrap();
    assert!(!is_shown(&mut farm).await, "no observer had looked");
    assert!(farm.calls.renew(renew).await.unwrap().into_inner().watched);
    farm.calls.show_first(show.clone()).await.unwrap();
    assert!(is_shown(&mut farm).await);
    let found = farm.calls.last_step(last.clone()).await.unwrap().into_inner();
    assert!(found.record.is_empty() && found.first_screenshot == screenshot);

    let table = [
        (v1::ShowFirstRequest { screenshot: Bytes::new(), ..show.clone() }, "screenshot has 0 bytes"),
        (v1::ShowFirstRequest { trajectory_id: "a/b".into(), ..show.clone() }, "trajectory_id"),
        (v1::ShowFirstRequest { secret: None, ..show.clone() }, "secret is missing"),
    ];
    for (request, part) in table {
        refused(farm.calls.show_first(request).await, Code::InvalidArgument, part);
    }

    farm.record(leased.step(0)).await.unwrap();
    assert!(!is_shown(&mut farm).await);
    // One that comes late hides no step, and goes with the trajectory.
    let late = show.clone();
    farm.calls.show_first(show).await.unwrap();
    let found = farm.calls.last_step(last.clone()).await.unwrap().into_inner();
    assert!(!found.record.is_empty() && found.first_screenshot.is_empty());
    farm.finish(leased.ending(1, EndKind::Answered, Some("42"))).await.unwrap();
    assert_eq!(farm.calls.last_step(last).await.unwrap().into_inner().first_screenshot, "");
    refused(farm.calls.show_first(late).await, Code::FailedPrecondition, "holds no lease");
    farm.stop().await.unwrap();
}
