//! Commits that a crash, a full disk or lost notes interrupt at any stage.

use super::*;

#[test]
fn a_crash_at_any_stage_loses_nothing_and_doubles_nothing() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    committer.merge().unwrap();
    drop(committer);
    world.check(world.dir.path(), "undisturbed");
    let images = images.lock().unwrap().clone();
    for stage in CommitStage::ALL {
        let visits = images.iter().filter(|(name, _)| name.ends_with(stage.fail_point())).count();
        assert!(visits >= 2, "{} was passed {visits} times", stage.fail_point());
    }
    for (name, run_dir) in images {
        drop(restart(&run_dir).unwrap()); // a crash right after recovery: recovery must be repeatable
        let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
        assert!(snapshot.shards.is_empty(), "{name}");
        let rest = world.batch(&snapshot);
        if rest != ShardBatch::default() {
            committer.commit(&rest).unwrap();
        }
        drop(committer);
        world.check(&run_dir, &name);
    }
}

#[test]
fn a_manifest_commit_missing_from_the_ledger_is_found_again() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    let committed = committer.commit(&world.batch(&snapshot)).unwrap();
    let after = |stage: CommitStage| {
        let images = images.lock().unwrap();
        images.iter().find(|(name, _)| name.ends_with(stage.fail_point())).unwrap().1.clone()
    };
    for (stage, commits_before) in [(CommitStage::Written, 0), (CommitStage::Manifest, 1)] {
        let run_dir = after(stage);
        assert_eq!(names(&run_dir.join("data/manifest")).len(), commits_before);
        drop(restart(&run_dir).unwrap());
        let set = DataSet::open(&run_dir).unwrap();
        assert_eq!(set.snapshot().version(), 1);
        assert_eq!(set.snapshot().version_of(&committed.shard_id), Some(committed.manifest_version));
        world.check(&run_dir, stage.fail_point());
    }
}

#[test]
fn an_undone_shard_comes_back_under_another_name() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    let committed = committer.commit(&world.batch(&snapshot)).unwrap();
    let (_, run_dir) = images.lock().unwrap()[3].clone();
    let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
    let repeated = committer.commit(&world.batch(&snapshot)).unwrap();
    assert_eq!((committed.shard_id.as_str(), repeated.shard_id.as_str()), ("r-x000000", "r-x000001"));
    assert_eq!((repeated.trajectories, repeated.groups), (committed.trajectories, committed.groups));
}

#[test]
fn a_full_disk_is_tried_again_with_the_same_shard() {
    on_small_disk("commit::tests::stages::a_full_disk_is_tried_again_with_the_same_shard", |disk| {
        let world = if is_limited() { TestRun::new(&heavy()) } else { TestRun::new(&plots()) };
        let RecoveredRun { mut committer, snapshot, .. } =
            restart_in(world.dir.path(), disk.join("data")).unwrap();
        if is_limited() {
            // a file at its size limit is not a full disk: the committer stops, and the next start
            // has everything
            let error = committer.commit(&world.batch(&snapshot)).unwrap_err();
            assert!(matches!(error, CommitError::Records(_)), "{error:?}");
            drop(committer);
            let RecoveredRun { snapshot: recovered, .. } =
                restart_in(world.dir.path(), disk.join("data")).unwrap();
            assert_eq!(recovered.trajectories, snapshot.trajectories);
            return;
        }
        let filler = disk.join("filler");
        for cycle in 0..5 {
            let free = crate::disk::free_bytes(disk).unwrap() as usize;
            fs::write(&filler, vec![0; free.saturating_sub(cycle * 8192)]).unwrap();
            let error = committer.commit(&world.batch(&snapshot)).unwrap_err();
            assert!(matches!(error, CommitError::DiskFull(_)), "cycle {cycle}: {error:?}");
            assert!(local_files(&disk.join("data")).unwrap().is_empty(), "cycle {cycle}");
            fs::remove_file(&filler).unwrap();
        }
        // Not one for each try: each would be a row of the ledger.
        let committed = committer.commit(&world.batch(&snapshot)).unwrap();
        assert_eq!((committed.shard_id.as_str(), committed.manifest_version), ("r-x000000", 1));
        assert_eq!(names(&world.dir.path().join("spool")), BTreeSet::new());
        assert!(verify(disk).unwrap().is_sound());
    });
}

/// What a crash leaves while a shard waits for the disk, and a batch that lost a trajectory
/// meanwhile.
#[test]
fn a_shard_that_waits_for_the_disk_is_undone_for_another_batch_and_by_the_next_start() {
    let name = "commit::tests::stages::a_shard_that_waits_for_the_disk_is_undone_for_another_batch_and_by_the_next_start";
    on_small_disk(name, |disk| {
        if is_limited() {
            return;
        }
        let world = TestRun::new(&plots());
        let RecoveredRun { mut committer, snapshot, .. } =
            restart_in(world.dir.path(), disk.join("data")).unwrap();
        let filler = disk.join("filler");
        let free = crate::disk::free_bytes(disk).unwrap() as usize;
        fs::write(&filler, vec![0; free.saturating_sub(8192)]).unwrap();
        let whole = world.batch(&snapshot);
        committer.commit(&whole).unwrap_err();
        let mut less = whole.clone();
        let group = less.trajectories.pop().unwrap().ancestry.group_id;
        less.groups.retain(|record| record.group_id != group);
        committer.commit(&less).unwrap_err();
        fs::remove_file(&filler).unwrap();
        drop(committer);
        let RecoveredRun { mut committer, snapshot, .. } =
            restart_in(world.dir.path(), disk.join("data")).unwrap();
        let committed = committer.commit(&world.batch(&snapshot)).unwrap();
        assert_eq!(committed.shard_id.as_str(), "r-x000002");
        assert!(verify(disk).unwrap().is_sound());
    });
}
