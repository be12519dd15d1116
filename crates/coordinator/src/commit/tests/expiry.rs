//! Rows that expire, and crashes in the middle of it: what is left is there exactly once, and
//! nothing that expired comes back.

use furrow_records::{Manifest, RetentionConfig, Table};

use super::*;
use crate::backup::{restore_backup, take_backup};
use crate::commit::inspect::inspect_run;

/// Six groups of one slot; the third is tried again after a failure.
fn six_groups() -> Vec<TrajectoryFixture> {
    let plot = |group, attempt, end, steps| TrajectoryFixture {
        run: "r".into(),
        group,
        attempt,
        group_size: 1,
        end,
        steps,
        ..TrajectoryFixture::default()
    };
    let mut plots: Vec<_> = (0..6).map(|group| plot(group, 0, EndKind::Answered, 2)).collect();
    plots[2].end = EndKind::BrowserDead;
    plots.insert(3, plot(2, 1, EndKind::Done, 2));
    plots
}

/// Commits each group as a shard of its own.
fn commit_each(world: &TestRun, committer: &mut ShardCommitter, snapshot: &LedgerSnapshot) {
    let whole = world.batch(snapshot);
    for group in whole.groups {
        let of_group = |facts: &&TrajectoryFacts| facts.ancestry.group_id == group.group_id;
        let trajectories = whole.trajectories.iter().filter(of_group).cloned().collect();
        committer.commit(&ShardBatch { trajectories, groups: vec![group] }).unwrap();
    }
}

/// Settings that keep the newest three groups of a data set.
fn keeping_three(run_dir: &Path) -> RetentionConfig {
    let set = DataSet::open(run_dir).unwrap();
    let bytes = |table: Table| set.snapshot().files(table).map(|file| file.bytes).collect::<Vec<_>>();
    // The files of a table are in the order of their shards.
    let newest = Table::ALL.iter().flat_map(|table| bytes(*table).into_iter().rev().take(3)).sum();
    RetentionConfig { bytes: Some(newest), age: None }
}

fn restart_keeping(run_dir: &Path, retention: RetentionConfig) -> RecoveredRun {
    let mut settings = settings(run_dir.join("data"));
    settings.records.retention = retention;
    restart_with(run_dir, settings).unwrap()
}

/// A run of which nothing has expired yet, and how much of it is to be kept.
fn committed_run() -> (TestRun, RetentionConfig) {
    let world = TestRun::new(&six_groups());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    commit_each(&world, &mut committer, &snapshot);
    drop(committer);
    let retention = keeping_three(world.dir.path());
    (world, retention)
}

/// Checks that the data set holds the groups from this one on, each once and whole, and nothing of
/// the others.
#[track_caller]
fn check_left(world: &TestRun, run_dir: &Path, first: u64, what: &str) {
    let set = DataSet::open(run_dir).unwrap();
    let is_left =
        |record: &TrajectoryRecord| record.ancestry.group_id >= Id::nth(&Id::new("r").unwrap(), first);
    let mut want: Vec<_> =
        world.stories.values().map(ExpectedTrajectory::expected).filter(|record| is_left(record)).collect();
    want.sort_by_key(|record| record.token);
    let mut records: Vec<TrajectoryRecord> = set.trajectories().map(Result::unwrap).collect();
    records.sort_by_key(|record| record.token);
    let ids = |records: &[TrajectoryRecord]| -> Vec<String> {
        records.iter().map(|record| record.ancestry.trajectory_id.to_string()).collect()
    };
    assert_eq!(ids(&records), ids(&want), "{what}");
    assert!(records == want, "{what}: a record differs");
    for story in world.stories.values() {
        let rows = if story.is_scored() { set.steps() } else { set.failed_steps() };
        let rows = rows.map(Result::unwrap).filter(|row| row.ancestry == story.record.ancestry).count();
        let wanted = if is_left(&story.record) { story.steps.len() } else { 0 };
        assert_eq!(rows, wanted, "{what}: {}", story.record.ancestry.trajectory_id);
    }
    let report = verify(run_dir).unwrap();
    assert!(report.is_sound() && report.warnings.is_empty(), "{what}: {report:?}");
    let gone = world.stories.len() - want.len();
    assert_eq!(report.expired.map_or(0, |expired| expired.trajectories), gone as u64, "{what}");
    for file in local_files(&run_dir.join("data")).unwrap() {
        assert!(set.snapshot().holds(&file.name), "{what}: {} was left behind", file.name);
    }
    let found = inspect_run(run_dir);
    assert_eq!(found.problems().collect::<Vec<_>>(), Vec::<&RunFinding>::new(), "{what}");
    assert!(names(run_dir).iter().all(|name| name != "lost+found"), "{what}: something was put aside");
}

#[test]
fn the_oldest_rows_expire_and_their_files_go_after_the_grace() {
    let (world, retention) = committed_run();
    let run_dir = world.dir.path();
    let RecoveredRun { mut committer, .. } = restart_keeping(run_dir, retention);
    let before = DataSet::open(run_dir).unwrap();
    committer.expire().unwrap();
    check_left(&world, run_dir, 3, "expired");
    assert_eq!(before.trajectories().filter(Result::is_ok).count(), 7, "a reader in its grace");
    committer.expire().unwrap();
    assert_eq!(DataSet::open(run_dir).unwrap().snapshot().version(), 7, "nothing more is due");
    committer.settings.records.merge_grace = Duration::ZERO;
    committer.retired_at = None;
    committer.retire();
    let aside = tree(&run_dir.join("data/replaced"));
    assert_eq!(aside.keys().collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    drop(committer);
    let RecoveredRun { committer, gone, lost, .. } = restart_keeping(run_dir, retention);
    assert_eq!((gone, lost), (Vec::new(), Vec::new()), "what expired is not missed");
    drop(committer);
    check_left(&world, run_dir, 3, "without the files");
}

#[test]
fn a_crash_at_any_stage_of_an_expiry_brings_nothing_back_and_loses_nothing_more() {
    let (world, retention) = committed_run();
    let album = quick_dir();
    let run_dir = world.dir.path();
    let RecoveredRun { mut committer, .. } = restart_keeping(run_dir, retention);
    let images = photograph(&mut committer, run_dir, album.path());
    committer.expire().unwrap();
    drop(committer);
    let images = images.lock().unwrap().clone();
    let stages: Vec<&str> = images.iter().map(|(name, _)| &name[4..]).collect();
    let want =
        ["open", "written", "manifest", "aside", "committed"].map(|stage| format!("commit.after_{stage}"));
    assert_eq!(stages, want);
    for (name, run_dir) in images {
        // The key may be gone by the next start: what was decided is finished, and nothing else.
        let without = album.path().join(format!("{name}-without"));
        copy_tree(&run_dir, &without);
        drop(restart(&without).unwrap());
        drop(restart(&without).unwrap());
        check_left(&world, &without, if name.ends_with("open") { 0 } else { 3 }, &name);
        drop(restart_keeping(&run_dir, retention));
        let RecoveredRun { mut committer, snapshot, .. } = restart_keeping(&run_dir, retention);
        assert!(snapshot.shards.is_empty(), "{name}");
        committer.expire().unwrap();
        drop(committer);
        check_left(&world, &run_dir, 3, &name);
    }
}

#[test]
fn a_backup_at_any_stage_of_an_expiry_can_be_restored() {
    let (world, retention) = committed_run();
    let backups_dir = quick_dir();
    let run_dir = world.dir.path().to_owned();
    let RecoveredRun { mut committer, .. } = restart_keeping(&run_dir, retention);
    let folder = backups_dir.path().to_owned();
    committer.on_stage(move |stage| {
        let summary = take_backup(&run_dir, &folder.join(stage.fail_point())).unwrap();
        assert_eq!(summary.damaged, [], "{stage:?}");
    });
    committer.expire().unwrap();
    drop(committer);
    let taken = names(backups_dir.path());
    assert_eq!(taken.len(), 5, "{taken:?}");
    for name in taken {
        let restored = backups_dir.path().join(format!("{name}-restored"));
        restore_backup(&backups_dir.path().join(&name), &restored).unwrap();
        let RecoveredRun { mut committer, .. } = restart_keeping(&restored, retention);
        committer.expire().unwrap();
        drop(committer);
        check_left(&world, &restored, 3, &name);
    }
}

/// The ledger remembers what expired, also where the manifest's commit is gone or damaged.
#[test]
fn a_lost_commit_of_an_expiry_is_restored_from_the_ledger() {
    for damage in ["gone", "damaged"] {
        let (world, retention) = committed_run();
        let run_dir = world.dir.path();
        let RecoveredRun { mut committer, .. } = restart_keeping(run_dir, retention);
        committer.expire().unwrap();
        committer.settings.records.merge_grace = Duration::ZERO;
        committer.retired_at = None;
        committer.retire();
        drop(committer);
        let path = run_dir.join("data").join(StoredCommits::file_name(7));
        match damage {
            "gone" => fs::remove_file(&path).unwrap(),
            _ => fs::write(&path, "{").unwrap(),
        }
        drop(restart_keeping(run_dir, retention));
        let stored = read_commits(&run_dir.join("data")).unwrap();
        let commit = stored.get(7).unwrap().as_ref().unwrap();
        assert_eq!((commit.op, commit.files.len()), (Op::Expire, 0), "{damage}");
        fs::remove_dir_all(run_dir.join("lost+found")).ok();
        check_left(&world, run_dir, 3, damage);
    }
}

#[test]
fn merged_rows_expire_with_the_rows_that_they_were_merged_with() {
    let world = TestRun::new(&six_groups());
    let run_dir = world.dir.path();
    let RecoveredRun { mut committer, snapshot, .. } = restart(run_dir).unwrap();
    let whole = world.batch(&snapshot);
    for (index, group) in whole.groups.into_iter().enumerate() {
        let of_group = |facts: &&TrajectoryFacts| facts.ancestry.group_id == group.group_id;
        let trajectories = whole.trajectories.iter().filter(of_group).cloned().collect();
        committer.commit(&ShardBatch { trajectories, groups: vec![group] }).unwrap();
        if index == 3 {
            // Everything so far is in one file a table.
            committer.merge().unwrap();
        }
    }
    let set = DataSet::open(run_dir).unwrap();
    let files = Table::ALL.iter().flat_map(|table| set.snapshot().files(*table));
    let bytes = files.map(|file| file.bytes).sum::<u64>() - 1;
    committer.settings.records.retention = RetentionConfig { bytes: Some(bytes), age: None };
    committer.expire().unwrap();
    check_left(&world, run_dir, 4, "the four that were merged");
}

/// Old ages are those of commits, by the wall clock.
#[test]
fn rows_expire_by_age() {
    let (world, _) = committed_run();
    let run_dir = world.dir.path();
    let young = RetentionConfig { bytes: None, age: Some(Duration::from_secs(3_600)) };
    let RecoveredRun { mut committer, .. } = restart_keeping(run_dir, young);
    committer.expire().unwrap();
    assert_eq!(DataSet::open(run_dir).unwrap().snapshot().version(), 6);
    committer.settings.records.retention.age = Some(Duration::ZERO);
    committer.expire().unwrap();
    drop(committer);
    check_left(&world, run_dir, 5, "all but the newest");
}

/// An expired run whose ledger was not restored with it must not go on.
#[test]
fn a_manifest_whose_expiry_the_ledger_does_not_know_is_refused() {
    let (world, retention) = committed_run();
    let run_dir = world.dir.path();
    let older = quick_dir();
    copy_tree(run_dir, older.path());
    let RecoveredRun { mut committer, .. } = restart_keeping(run_dir, retention);
    committer.expire().unwrap();
    drop(committer);
    for name in ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"] {
        fs::remove_file(run_dir.join(name)).ok();
        fs::copy(older.path().join(name), run_dir.join(name)).ok();
    }
    let error = restart(run_dir).map(drop).unwrap_err().to_string();
    assert!(error.contains("which the ledger does not know"), "{error}");
    let store = Manifest::local_store(&run_dir.join("data")).unwrap();
    let manifest = Runtime::new().unwrap().block_on(Manifest::open(store)).unwrap();
    assert!(manifest.snapshot().has_expired());
}
