//! Damaged spool files and shards: which rows are lost, and which copies are kept.

use super::*;

/// One spool file is damaged in every way; its trajectory ends as `record_lost`, all others are
/// committed.
#[test]
fn a_damaged_spool_file_costs_its_own_trajectory_alone() {
    let damages: [(&str, DamageFile); 6] = [
        ("a bit of the first header", |bytes| bytes[20] ^= 1),
        ("a bit of the first payload", |bytes| bytes[300] ^= 1),
        ("the first length", |bytes| bytes[13] ^= 0x10),
        ("the last byte", |bytes| bytes.truncate(bytes.len() - 1)),
        ("a bit of the ending", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("all of it", Vec::clear),
    ];
    for (what, damage) in damages {
        let world = TestRun::new(&plots());
        let id = "r-g000000-s0-a0";
        let path = world.dir.path().join(format!("spool/{id}.spool"));
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let RecoveredRun { snapshot, lost, spooled, .. } = restart(world.dir.path()).unwrap();
        assert_eq!(lost.iter().map(Id::as_str).collect::<Vec<_>>(), [id], "{what}");
        let row = |id: &str| {
            snapshot.trajectories.iter().find(|row| row.start.trajectory_id.as_str() == id).unwrap()
        };
        let TrajectoryStanding::Failed { ended } = &row(id).standing else { panic!("{what}: {:?}", row(id)) };
        assert_eq!(ended.end, EndKind::RecordLost, "{what}");
        assert!(ended.reason.starts_with("of 3 acknowledged steps "), "{what}: {}", ended.reason);
        let others = world.stories.keys().filter(|other| other.as_str() != id);
        for other in others {
            assert_eq!(
                row(other.as_str()).standing.ended().unwrap().end,
                world.stories[other].record.ending.end
            );
        }
        let found = spooled.iter().find(|found| found.trajectory_id.as_str() == id).unwrap();
        assert_eq!((found.steps.len() as u32, found.ending), (ended.steps, None), "{what}");
        let aside = tree(&world.dir.path().join("lost+found"));
        assert!(aside.values().any(|kept| *kept == bytes), "{what}: the damaged file was not kept unchanged");
        // what is left of it is committed as a failed trajectory, and the next start finds nothing
        // to do
        let RecoveredRun { mut committer, snapshot, lost, .. } = restart(world.dir.path()).unwrap();
        assert_eq!(lost, [], "{what}");
        let mut batch = world.batch(&snapshot);
        batch.groups.clear();
        for facts in &mut batch.trajectories {
            if facts.ancestry.trajectory_id.as_str() == id {
                (facts.ended, facts.verdict) = (ended.clone(), None);
            }
        }
        committer.commit(&batch).unwrap();
        drop(committer);
        let set = DataSet::open(world.dir.path()).unwrap();
        let records: Vec<TrajectoryRecord> = set.trajectories().map(Result::unwrap).collect();
        assert_eq!(records.len(), world.stories.len(), "{what}");
        let scored = records.iter().filter(|record| record.score.is_some()).count();
        assert_eq!(scored, 2, "{what}");
    }
}

/// The ledger was restored from a time when a shard was unfinished; its rows have left the spool
/// since, so its files are the only copy.
#[test]
fn an_unfinished_shard_whose_rows_are_nowhere_else_is_kept() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    let images = photograph(&mut committer, world.dir.path(), album.path());
    committer.merge().unwrap();
    drop(committer);
    let (_, opened) = images.lock().unwrap()[0].clone();
    let run_dir = world.dir.path();
    let merged: Vec<_> = tree(&run_dir.join("data"))
        .into_iter()
        .filter(|(path, _)| {
            !opened.join("data").join(path).exists()
                && path.extension().is_some_and(|end| end == "parquet")
                && !path.starts_with("replaced")
        })
        .collect();
    assert!(!merged.is_empty());
    // The grace of the parts is over, and ledger and manifest are from when the merge began.
    fs::remove_dir_all(run_dir.join("data/replaced")).unwrap();
    fs::remove_dir_all(run_dir.join("data/manifest")).unwrap();
    copy_tree(&opened.join("data/manifest"), &run_dir.join("data/manifest"));
    for name in ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"] {
        fs::remove_file(run_dir.join(name)).ok();
        if opened.join(name).exists() {
            fs::copy(opened.join(name), run_dir.join(name)).unwrap();
        }
    }
    drop(restart(run_dir).unwrap());
    let kept: Vec<_> = tree(run_dir).into_values().collect();
    for (path, bytes) in &merged {
        assert!(kept.contains(bytes), "{} is gone", path.display());
    }
}

/// A crash before the spool deleted its copy, and a committed file that a disk damaged: the spool
/// has the last readable copy.
#[test]
fn the_spool_keeps_the_last_copy() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    committer.commit(&world.batch(&snapshot)).unwrap();
    let images = images.lock().unwrap().clone();
    let (_, run_dir) =
        images.iter().find(|(name, _)| name.ends_with(CommitStage::Committed.fail_point())).unwrap().clone();
    let spooled = tree(&run_dir.join("spool"));
    assert!(!spooled.is_empty());
    let path = run_dir.join("data/steps/r-x000000.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    drop(restart(&run_dir).unwrap());
    let aside = tree(&run_dir.join("lost+found"));
    for (name, copy) in &spooled {
        assert!(aside.values().any(|kept| kept == copy), "{} is gone", name.display());
    }
    assert_eq!(fs::read(&path).unwrap(), bytes, "the damaged file changed");
}

#[test]
fn a_written_shard_with_a_damaged_file_is_written_again() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let written = killed_after(CommitStage::Written, &world, album.path());
    for damage in ["a bit", "a cut", "gone", "a pipe"] {
        let run_dir = album.path().join(damage.replace(' ', "-"));
        copy_tree(&written, &run_dir);
        let path = run_dir.join("data/steps/r-x000000.parquet");
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            "a bit" => bytes[100] ^= 1,
            _ => bytes.truncate(50),
        }
        fs::write(&path, &bytes).unwrap();
        if damage == "gone" || damage == "a pipe" {
            fs::remove_file(&path).unwrap();
        }
        if damage == "a pipe" {
            make_pipe(&path);
        }
        let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
        committer.commit(&world.batch(&snapshot)).unwrap();
        drop(committer);
        world.check(&run_dir, damage);
        let aside = crate::lost_and_found(&run_dir).unwrap();
        assert_eq!(aside.len(), usize::from(damage != "gone"), "{damage}");
    }
}

/// A kill between the manifest's commit and its record in the ledger, and then a damaged file: the
/// start is refused, and succeeds once the file and the commit are moved away as its error says.
#[test]
fn a_damaged_file_that_a_commit_names_is_refused_with_a_remedy_that_works() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Manifest, &world, album.path());
    let path = run_dir.join("data/steps/r-x000000.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let data = tree(&run_dir.join("data"));
    let error = restart(&run_dir).map(drop).unwrap_err();
    let CommitError::NamedAndDamaged { path: damaged, commit, .. } = error else { panic!("{error}") };
    assert_eq!((&damaged, &data), (&path, &tree(&run_dir.join("data"))));
    fs::remove_file(damaged).unwrap();
    fs::remove_file(commit).unwrap();
    let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    drop(committer);
    world.check(&run_dir, "after the remedy");
}

#[test]
fn a_written_shard_that_is_the_only_copy_is_abandoned_by_the_steps_its_errors_name() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Written, &world, album.path());
    let spooled = run_dir.join("spool/r-g000000-s0-a0.spool");
    fs::remove_file(&spooled).unwrap();
    let damaged = run_dir.join("data/groups/r-x000000.parquet");
    fs::write(&damaged, "x").unwrap();
    let why = restart(&run_dir).map(drop).unwrap_err().to_string();
    assert!(why.contains("move the file away and start again"), "{why}");
    fs::remove_file(&damaged).unwrap();
    let why = restart(&run_dir).map(drop).unwrap_err().to_string();
    assert!(why.contains("an empty file r-g000000-s0-a0.spool"), "{why}");
    fs::write(&spooled, "").unwrap();
    let RecoveredRun { mut committer, snapshot, lost, .. } = restart(&run_dir).unwrap();
    assert_eq!(lost, [Id::new("r-g000000-s0-a0").unwrap()]);
    let kept: Vec<_> = crate::lost_and_found(&run_dir).unwrap().into_iter().map(|kept| kept.from).collect();
    for table in ["steps", "trajectories"] {
        let file = PathBuf::from(format!("data/{table}/r-x000000.parquet"));
        assert!(kept.contains(&file), "{kept:?}");
    }
    let mut batch = world.batch(&snapshot);
    batch.groups.clear();
    batch.trajectories.retain(|facts| facts.ancestry.trajectory_id != lost[0]);
    committer.commit(&batch).unwrap();
    drop(committer);
    let report = verify(&run_dir).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// All steps are in the spool and the ending is not: the written shard is the only copy of the
/// evidence.
#[test]
fn a_written_shard_is_kept_where_the_spool_lacks_an_ending() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Written, &world, album.path());
    let spooled = run_dir.join("spool/r-g000000-s0-a0.spool");
    let bytes = fs::read(&spooled).unwrap();
    // Each entry begins with its magic.
    let entries: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"FSP1")).collect();
    assert_eq!(entries.len(), 4, "three steps and an ending");
    fs::write(&spooled, &bytes[..entries[3]]).unwrap();
    fs::write(run_dir.join("data/groups/r-x000000.parquet"), "x").unwrap();
    let before = tree(&run_dir.join("data"));
    let error = restart(&run_dir).map(drop).unwrap_err();
    assert!(matches!(error, CommitError::OnlyCopyDamaged { .. }), "{error}");
    assert!(before == tree(&run_dir.join("data")), "a refused start changed something");
}

/// A backup by hard links, made during the run: the file is whole, so no record is lost for it.
#[test]
fn a_second_name_of_a_spool_file_stops_the_run_and_costs_nothing() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    let spooled = fed.world.dir.path().join("spool/r-g000000-s0-a0.spool");
    let second = fed.world.dir.path().join("copy");
    let away = fed.world.dir.path().join("spool-away");
    let spool = fed.world.dir.path().join("spool");
    let world = fed.world.dir.path().to_owned();
    fs::hard_link(&spooled, &second).unwrap();
    fed.feed();
    let failed = |fed: &mut CommitterFixture| match fed.runtime.block_on(fed.reports.next()) {
        Some(CommitReport::Failed(error)) => furrow_records::chain(&error),
        other => panic!("{:?}", other.map(|_| "the start succeeded")),
    };
    let why = failed(&mut fed);
    assert!(why.contains("it has 2 names"), "{why}");
    fs::remove_file(second).unwrap();
    let RecoveredRun { committer, snapshot, lost, .. } = restart(&world).unwrap();
    assert_eq!(lost, []);
    // The folder is gone: that is not damage to one file.
    fs::rename(&spool, &away).unwrap();
    let (handle, reports) = committer.start(2).unwrap();
    fed = CommitterFixture { batch: fed.world.batch(&snapshot), handle: Some(handle), reports, ..fed };
    fed.feed();
    let why = failed(&mut fed);
    assert!(why.contains("No such file"), "{why}");
    fs::rename(&away, &spool).unwrap();
    let RecoveredRun { mut committer, snapshot, lost, .. } = restart(&world).unwrap();
    assert_eq!(lost, []);
    committer.commit(&fed.world.batch(&snapshot)).unwrap();
    drop(committer);
    fed.world.check(&world, "after both");
}

#[test]
fn a_scored_trajectory_whose_evidence_changed_is_not_committed() {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let mut batch = world.batch(&snapshot);
    let verdict = batch.trajectories[0].verdict.as_mut().unwrap();
    verdict.score.evidence_sha256 = [0; 32];
    let error = committer.commit(&batch).unwrap_err().to_string();
    assert!(error.contains("the evidence in the spool is not what the scorer saw"), "{error}");
    let mut batch = world.batch(&snapshot);
    batch.trajectories[0].ended.steps += 1;
    batch.trajectories.truncate(1);
    batch.groups.clear();
    drop(committer);
    let RecoveredRun { mut committer, .. } = restart(world.dir.path()).unwrap();
    let error = committer.commit(&batch).unwrap_err().to_string();
    assert!(error.contains("of its 4 steps the spool holds 3"), "{error}");
}

/// Merging used to stop for good after its first failure.
#[test]
fn a_damaged_part_is_left_out_and_the_others_are_merged() {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    for facts in world.batch(&snapshot).trajectories {
        committer.commit(&ShardBatch { trajectories: vec![facts], groups: Vec::new() }).unwrap();
    }
    let path = world.dir.path().join("data/trajectories/r-x000001.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    committer.merge().unwrap();
    drop(committer);
    let set = DataSet::open(world.dir.path()).unwrap();
    let files: Vec<(&str, u64)> =
        set.snapshot().files(Table::Trajectories).map(|file| (file.path.as_str(), file.rows)).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.contains(&("trajectories/r-x000001.parquet", 1)), "{files:?}");
    assert_eq!(files.iter().map(|(_, rows)| rows).sum::<u64>(), 5);
    assert_eq!(fs::read(&path).unwrap(), bytes, "the damaged file was moved or removed");
}
