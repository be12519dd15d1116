//! What recovery makes again, puts aside or refuses where files, manifest and ledger disagree.

use super::*;

/// A run whose two shards and their merge are committed.
fn committed_run() -> TestRun {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    committer.merge().unwrap();
    world
}

fn kept(world: &TestRun) -> Vec<(String, String)> {
    let entries = crate::lost_and_found(world.dir.path()).unwrap();
    entries.into_iter().map(|entry| (entry.from.display().to_string(), entry.why)).collect()
}

#[test]
fn files_of_no_shard_are_put_aside_and_only_abandoned_ones_removed() {
    let world = TestRun::new(&plots());
    let data = world.dir.path().join("data");
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    let abandoned = committer.opening(Vec::new(), Vec::new(), vec!["steps/x.parquet".into()]).unwrap();
    committer.remember_opening(&abandoned).unwrap();
    committer.undo(&abandoned.shard_id).unwrap();
    drop(committer);
    fs::create_dir_all(data.join("scores")).unwrap();
    fs::create_dir_all(data.join("steps/folder")).unwrap();
    let removed = format!("steps/{}.parquet", abandoned.shard_id);
    let foreign = [
        "steps/r-x000009.parquet",
        "groups/.r-x000009.parquet.tmp",
        "trajectories/notes.txt",
        "steps/folder/inside",
    ];
    let staged = "manifest/00000000000000000002.json#1";
    let others = ["scores/mine.parquet", "README"];
    for name in foreign.iter().chain(&others).chain([&staged, &removed.as_str()]) {
        fs::write(data.join(name), *name).unwrap();
    }
    drop(restart(world.dir.path()).unwrap());
    for name in foreign.iter().chain([&staged, &removed.as_str()]) {
        assert!(!data.join(name).exists(), "{name}");
    }
    assert!(others.iter().all(|name| data.join(name).exists()));
    let aside = tree(&world.dir.path().join("lost+found"));
    for name in foreign {
        let at = aside.iter().find(|(path, _)| path.ends_with(Path::new("data").join(name)));
        assert_eq!(at.map(|(_, bytes)| bytes.as_slice()), Some(name.as_bytes()), "{name} was not kept");
    }
    assert!(
        !aside.keys().any(|path| path.ends_with(&removed)),
        "files of a shard that the ledger abandoned do not belong in lost+found"
    );
    fs::remove_file(data.join("scores/mine.parquet")).unwrap();
    world.check(world.dir.path(), "after the moves to lost+found");
}

/// A regression test: commits are missing, and the start removed what they named.
#[test]
fn missing_commits_are_made_again_and_no_file_is_removed() {
    for lost in [vec![1], vec![2], vec![3], vec![2, 3], vec![1, 2, 3], vec![1, 3]] {
        let world = committed_run();
        let commits = names(&world.dir.path().join("data/manifest"));
        assert!(commits.len() >= 3, "{commits:?}");
        let before = tree(&world.dir.path().join("data"));
        let manifest = |version: u64| world.dir.path().join("data").join(StoredCommits::file_name(version));
        lost.iter().for_each(|version| fs::remove_file(manifest(*version)).unwrap());
        drop(restart(world.dir.path()).unwrap());
        let after = tree(&world.dir.path().join("data"));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{lost:?}");
        let is_table = |path: &&PathBuf| !path.starts_with("manifest");
        for path in before.keys().filter(is_table) {
            assert_eq!(before[path], after[path], "{lost:?}: {}", path.display());
        }
        for path in before.keys().filter(|path| path.starts_with("manifest")) {
            let commit = |bytes: &[u8]| -> serde_json::Value {
                let mut commit: serde_json::Value = serde_json::from_slice(bytes).unwrap();
                commit["created_at_micros"] = 0.into();
                commit["txn"]["epoch"] = 0.into();
                commit
            };
            assert_eq!(commit(&before[path]), commit(&after[path]), "{lost:?}: {}", path.display());
        }
        world.check(world.dir.path(), &format!("{lost:?}"));
        // and the run continues: the next number is free
        let RecoveredRun { mut committer, .. } = restart(world.dir.path()).unwrap();
        committer.merge().unwrap();
    }
}

#[test]
fn the_whole_manifest_is_made_again() {
    let world = committed_run();
    fs::remove_dir_all(world.dir.path().join("data/manifest")).unwrap();
    drop(restart(world.dir.path()).unwrap());
    world.check(world.dir.path(), "no manifest");
    assert_eq!(kept(&world), []);
}

/// A scoring of stored trajectories commits between two shards; the ledger does not know of it.
#[test]
fn the_commit_of_a_scoring_is_made_again_from_its_file() {
    let world = TestRun::new(&plots());
    let data_dir = world.dir.path().join("data");
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let [first, second] = world.batches(&snapshot);
    committer.commit(&first).unwrap();
    let story = world.stories.values().find(|story| story.is_scored()).unwrap();
    let shard_id = Id::new("r-score-17").unwrap();
    let mut scores = ShardWriter::create(committer.shard_plan(&shard_id));
    let task = story.record.task.clone();
    scores
        .add_rescore(&RescoreRecord {
            ancestry: story.record.ancestry.clone(),
            task_id: task.task_id,
            suite: task.suite,
            split: task.split,
            score: story.record.score.clone().unwrap(),
            scored_at_micros: 17,
        })
        .unwrap();
    let files = scores.finish(|_, _| {}).unwrap();
    let draft = CommitDraft::append(files, Id::new("r").unwrap(), 0, shard_id, 17);
    committer.runtime.block_on(committer.manifest.commit(&draft)).unwrap();
    committer.commit(&second).unwrap();
    drop(committer);
    let commits = names(&data_dir.join("manifest"));
    fs::remove_dir_all(data_dir.join("manifest")).unwrap();
    let refused = check_manifest_is_whole(world.dir.path(), &data_dir).unwrap_err().to_string();
    assert!(refused.contains("3 commits of the manifest are missing or damaged"), "{refused}");
    drop(restart(world.dir.path()).unwrap());
    assert_eq!(names(&data_dir.join("manifest")), commits);
    check_manifest_is_whole(world.dir.path(), &data_dir).unwrap();
    let set = DataSet::open(world.dir.path()).unwrap();
    assert_eq!(set.snapshot().version_of(&Id::new("r-score-17").unwrap()), Some(2));
    world.check(world.dir.path(), "scored between the shards");
}

#[test]
fn a_damaged_commit_is_put_aside_and_made_again() {
    let damages: [DamageFile; 4] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| {
            let at = bytes.windows(6).position(|part| part == b"sha256").unwrap() + 10;
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        },
        |bytes| bytes[0] ^= 1,
    ];
    for version in [1, 2, 3] {
        for damage in damages {
            let world = committed_run();
            let path = world.dir.path().join("data").join(StoredCommits::file_name(version));
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            drop(restart(world.dir.path()).unwrap());
            world.check(world.dir.path(), "damaged commit");
            let aside = tree(&world.dir.path().join("lost+found"));
            assert!(aside.values().any(|kept| *kept == bytes), "commit {version}: {:?}", kept(&world));
        }
    }
}

#[test]
fn what_contradicts_the_ledger_is_refused_before_anything_changes() {
    let spool = |world: &TestRun, id: &str| world.dir.path().join(format!("spool/r-{id}.spool"));
    refused(
        &TestRun::new(&plots()),
        |world| fs::remove_file(spool(world, "g000000-s0-a0")).unwrap(),
        "r-g000000-s0-a0 was acknowledged (3 steps and the ending), but spool/ has no file of it",
    );
    refused(
        &TestRun::new(&plots()),
        |world| fs::remove_dir_all(world.dir.path().join("spool")).unwrap(),
        "but spool/ has no file of it",
    );
    refused(
        &TestRun::new(&plots()),
        |world| fs::write(spool(world, "g000007-s0-a0"), "").unwrap(),
        "spool/ holds r-g000007-s0-a0, which the ledger does not know",
    );
    refused(
        &TestRun::new(&plots()),
        |world| {
            let ledger = world.dir.path().join("ledger.sqlite");
            let old = fs::read(&ledger).unwrap();
            let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
            committer.commit(&world.batch(&snapshot)).unwrap();
            drop(committer);
            fs::write(&ledger, old).unwrap();
        },
        "manifest commit 1 names shard r-x000000, which the ledger does not know: ledger.sqlite is older \
         than data/",
    );
    // data/ restored from before the shards: neither commits nor files
    refused(
        &committed_run(),
        |world| fs::remove_dir_all(world.dir.path().join("data")).unwrap(),
        "that ledger.sqlite records as committed are neither in the manifest nor whole on disk",
    );
    // more than lost+found takes: none of them is moved
    refused(
        &committed_run(),
        |world| {
            for index in 0..1_001 {
                fs::write(world.dir.path().join(format!("data/steps/other-{index}.parquet")), "x").unwrap();
            }
        },
        "and 1001 more to add",
    );
    // a commit of a scoring that cannot be restored
    refused(
        &committed_run(),
        |world| {
            let name = |version| world.dir.path().join("data").join(StoredCommits::file_name(version));
            let newest = names(&world.dir.path().join("data/manifest")).len() as u64;
            let Commit { files, .. } = serde_json::from_slice(&fs::read(name(1)).unwrap()).unwrap();
            let mut file = files[0].clone();
            (file.table, file.path) = (Table::Scores, "scores/r-score-1.parquet".into());
            let draft =
                CommitDraft::append(vec![file], Id::new("r").unwrap(), 0, Id::new("r-score-1").unwrap(), 1);
            let commit = draft.numbered(newest + 2);
            fs::write(name(newest + 2), serde_json::to_vec(&commit).unwrap()).unwrap();
        },
        "neither the ledger nor data/scores/ holds what it named",
    );
}

#[test]
fn a_ledger_older_than_the_data_set_is_refused() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let images = photograph(&mut committer, world.dir.path(), album.path());
    committer.commit(&world.batch(&snapshot)).unwrap();
    let opened = images.lock().unwrap()[0].1.clone();
    copy_tree(&world.dir.path().join("data"), &opened.join("data"));
    let error = restart(&opened).map(drop).unwrap_err();
    assert!(matches!(error, CommitError::Disagreement(LedgerDisagreement::LedgerBehind { .. })), "{error}");
}
