//! Whole jobs: run, stopped, resumed, with many sessions at once.

use super::*;

#[tokio::test]
async fn a_job_becomes_a_data_set_that_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let setup = JobSetup { groups: 3, group_size: 2, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let mut acted = 0;
    loop {
        let leased = farm.lease(4).await;
        for assignment in leased.assignments.into_iter().map(LeasedAssignment::new) {
            match acted {
                // The first one's browser dies: it is tried again.
                0 => farm.finish(assignment.ending(0, EndKind::BrowserDead, None)).await.unwrap(),
                // This one ends without evidence: nothing to score.
                1 => {
                    farm.record(assignment.step(0)).await.unwrap();
                    farm.finish(assignment.ending(1, EndKind::Done, None)).await.unwrap();
                }
                _ => farm.act(&assignment, 2, if acted % 2 == 0 { "42" } else { "no idea" }).await,
            }
            acted += 1;
        }
        if leased.run_over {
            break;
        }
    }
    let progress = farm.progress().await;
    assert_eq!((progress.groups_planned, progress.assigned, progress.scored, progress.failed), (3, 0, 6, 2));
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.over, summary.progress.committed, acted), (JobOutcome::Complete, 8, 8));

    let run = dir.path().join("run");
    let report = verify(&run).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let data = DataSet::open(&run).unwrap();
    let mut ends: Vec<_> = data.trajectories().map(|row| row.unwrap().ending.end).collect();
    ends.sort();
    let mut want = vec![EndKind::Answered; 6];
    want.extend([EndKind::BrowserDead, EndKind::PageCrash]);
    assert_eq!(ends, want);
    let groups: Vec<_> = data.groups().map(Result::unwrap).collect();
    assert_eq!(groups.iter().map(|group| (group.planned, group.valid)).collect::<Vec<_>>(), [(2, 2); 3]);
    assert_eq!(std::fs::read_dir(run.join("spool")).unwrap().count(), 0, "the spool deleted everything");

    let resumed = JobSetup { resume: true, groups: 3, group_size: 2, ..JobSetup::default() };
    let summary = TestFarm::open(resumed, dir.path()).await.unwrap().end().await.unwrap();
    assert_eq!((summary.over, summary.progress.committed), (JobOutcome::Complete, 8), "no work is left");
}

#[tokio::test]
async fn a_stopped_job_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let setup = || JobSetup { groups: 2, group_size: 2, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup(), dir.path()).await.unwrap();
    farm.register().await;
    let first = farm.lease_one().await;
    let second = farm.lease_one().await;
    farm.act(&first, 2, "42").await;
    farm.record(second.step(0)).await.unwrap();
    let summary = farm.stop().await.unwrap();
    assert_eq!(summary.over, JobOutcome::Drained { cancelled: 1 });
    assert_eq!(summary.progress.committed, 2);

    let error =
        TestFarm::open(setup(), dir.path()).await.err().expect("a run directory is not reused by accident");
    assert!(error.to_string().contains("--resume"), "{error}");
    let other = JobSetup { resume: true, seed: 2, ..setup() };
    let error = TestFarm::open(other, dir.path()).await.err().expect("another job is another run");
    assert!(matches!(error, CoordinatorError::Ledger(_)), "{error:?}");

    let mut farm = TestFarm::open(JobSetup { resume: true, ..setup() }, dir.path()).await.unwrap();
    farm.register().await;
    refused(farm.record(second.step(1)).await, Code::FailedPrecondition, "holds no lease");
    let mut ids = Vec::new();
    for _ in 0..3 {
        let assignment = farm.lease_one().await;
        farm.act(&assignment, 1, "42").await;
        ids.push(assignment.trajectory_id);
    }
    assert_eq!(ids, ["loopback-g000000-s1-a1", "loopback-g000001-s0-a0", "loopback-g000001-s1-a0"]);
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.over, summary.progress.scored), (JobOutcome::Complete, 4));
    assert!(verify(&dir.path().join("run")).unwrap().is_sound());
}

#[tokio::test]
async fn the_first_limits_are_spread_and_a_resumed_job_goes_on_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let limits = || LimitsFile { spread_first_steps: true, ..JobSetup::default().limits };
    let setup = || JobSetup { groups: 5, group_size: 2, limits: limits(), ..JobSetup::default() };
    let slot = |id: &str| id.rsplit_once("-a").unwrap().0.to_owned();
    let mut given = BTreeMap::new();
    let mut farm = TestFarm::open(setup(), dir.path()).await.unwrap();
    farm.register().await;
    // Six at once of tasks with 30 steps. The first is tried again under another token: its limit
    // stays the same.
    let first = farm.lease_limited().await;
    let second = farm.lease_limited().await;
    let third = farm.lease_limited().await;
    assert_eq!([first.1, second.1, third.1], [5, 10, 15]);
    farm.finish(first.0.ending(0, EndKind::BrowserDead, None)).await.unwrap();
    given.insert(slot(&first.0.trajectory_id), first.1);
    farm.act(&second.0, 10, "42").await;
    given.insert(slot(&second.0.trajectory_id), second.1);
    // The third is running when the coordinator stops.
    farm.record(third.0.step(0)).await.unwrap();
    farm.stop().await.unwrap();

    let mut farm = TestFarm::open(JobSetup { resume: true, ..setup() }, dir.path()).await.unwrap();
    farm.register().await;
    for _ in 0..9 {
        let (assignment, limit) = farm.lease_limited().await;
        let known = given.insert(slot(&assignment.trajectory_id), limit);
        assert!(known.is_none_or(|known| known == limit), "{} has {limit} now", assignment.trajectory_id);
        for step in 0..2 {
            farm.record(assignment.step(step)).await.unwrap();
        }
        farm.finish(assignment.ending(2, EndKind::MaxSteps, Some("no"))).await.unwrap();
    }
    assert_eq!(farm.end().await.unwrap().over, JobOutcome::Complete);
    assert_eq!(given.values().copied().collect::<Vec<_>>(), [5, 10, 15, 20, 25, 30, 30, 30, 30, 30]);

    // The records hold each limit; all of them verify.
    let run = dir.path().join("run");
    assert!(verify(&run).unwrap().is_sound());
    let mut rows = 0;
    for row in DataSet::open(&run).unwrap().trajectories() {
        let row = row.unwrap();
        assert_eq!(row.task.max_steps, given[&slot(row.ancestry.trajectory_id.as_str())]);
        rows += 1;
    }
    assert_eq!(rows, 12, "ten slots, two of them tried twice");
}

#[tokio::test]
async fn a_run_directory_has_one_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    let error = TestFarm::open(JobSetup { resume: true, ..JobSetup::default() }, dir.path())
        .await
        .err()
        .expect("it is in use");
    assert!(matches!(error, CoordinatorError::Lock(_)), "{error:?}");
    farm.stop().await.unwrap();
}

#[tokio::test]
async fn many_sessions_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let setup = JobSetup { groups: 20, group_size: 4, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let steps: Arc<Vec<Bytes>> = Arc::new((0..3).map(record).collect());
    let mut sessions = tokio::task::JoinSet::new();
    loop {
        let leased = farm.lease(8).await;
        for assignment in leased.assignments.into_iter().map(LeasedAssignment::new) {
            let mut calls = farm.calls.clone();
            let steps = Arc::clone(&steps);
            sessions.spawn(async move {
                for step in 0..3 {
                    let request = v1::RecordStepRequest {
                        trajectory_id: assignment.trajectory_id.clone(),
                        token: assignment.token,
                        secret: assignment.secret.clone(),
                        step,
                        record: steps[step as usize].clone(),
                        digest: Bytes::copy_from_slice(&digest(&steps[step as usize])),
                    };
                    calls.record_step(request).await.unwrap();
                }
                calls.finish(assignment.ending(3, EndKind::Answered, Some("42"))).await.unwrap();
            });
        }
        if leased.run_over {
            break;
        }
    }
    sessions.join_all().await;
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.progress.scored, summary.progress.committed, summary.progress.steps), (80, 80, 240));
    assert!(verify(&dir.path().join("run")).unwrap().is_sound());
}
