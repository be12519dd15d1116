//! Backups of a run directory at every stage of a commit, what a backup refuses, and what an
//! inspection and a repair say of damage.

use super::*;
use crate::backup::{restore_backup, take_backup};
use crate::commit::inspect::{RepairedBy, inspect_run};
use crate::commit::repair::repair_run;

/// Takes backups at every stage from now on.
fn back_up_at_stages(committer: &mut ShardCommitter, run_dir: &Path, backups_dir: &Path) -> StageImages {
    let images = StageImages::default();
    let taken = Arc::clone(&images);
    let run_dir = run_dir.to_owned();
    let backups_dir = backups_dir.to_owned();
    committer.on_stage(move |stage| {
        let mut taken = taken.lock().unwrap();
        let name = format!("{:03}-{}", taken.len(), stage.fail_point());
        let summary = take_backup(&run_dir, &backups_dir.join(&name)).unwrap();
        assert_eq!(summary.damaged, [], "{name}");
        taken.push((name.clone(), backups_dir.join(name)));
    });
    images
}

#[test]
fn a_backup_at_any_stage_loses_nothing_and_doubles_nothing() {
    let world = TestRun::new(&plots());
    let backups_dir = quick_dir();
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    let backups = back_up_at_stages(&mut committer, world.dir.path(), backups_dir.path());
    for batch in world.batches(&snapshot) {
        committer.commit(&batch).unwrap();
    }
    committer.merge().unwrap();
    drop(committer);
    world.check(world.dir.path(), "undisturbed");
    let backups = backups.lock().unwrap().clone();
    assert!(backups.len() > 30, "{}", backups.len());
    for (name, backup) in backups {
        let run_dir = backups_dir.path().join(format!("{name}-restored"));
        restore_backup(&backup, &run_dir).unwrap();
        let found = inspect_run(&run_dir);
        assert_eq!(found.problems().collect::<Vec<_>>(), Vec::<&RunFinding>::new(), "{name}");
        drop(restart(&run_dir).unwrap());
        let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
        let rest = world.batch(&snapshot);
        if rest != ShardBatch::default() {
            committer.commit(&rest).unwrap();
        }
        drop(committer);
        world.check(&run_dir, &name);
        assert!(names(&run_dir).iter().all(|name| name != "lost+found"), "{name}: something was put aside");
    }
}

/// An earlier try was killed: its copies may be whole, cut or of another time.
#[test]
fn an_incomplete_backup_is_continued_and_nothing_of_it_is_trusted() {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    committer.commit(&world.batches(&snapshot)[0]).unwrap();
    drop(committer);
    let backups_dir = quick_dir();
    let backup = backups_dir.path().join("backup");
    take_backup(world.dir.path(), &backup).unwrap();
    fs::rename(backup.join("backup.json"), backups_dir.path().join("list")).unwrap();
    let list: serde_json::Value =
        serde_json::from_slice(&fs::read(backups_dir.path().join("list")).unwrap()).unwrap();
    let run = serde_json::json!({"run_id": list["run_id"], "opened_at_micros": list["opened_at_micros"]});
    fs::write(backup.join("backup.incomplete"), run.to_string()).unwrap();
    for (path, bytes) in tree(&backup.join("run")) {
        let changed = bytes.iter().map(|byte| byte ^ 1).collect::<Vec<_>>();
        fs::write(backup.join("run").join(path), changed).unwrap();
    }
    fs::write(backup.join("run/spool/.r-g000000-s0-a0.spool.part"), "half").unwrap();
    fs::write(backup.join("run/spool/r-g000009-s0-a0.spool"), "of another time").unwrap();
    let summary = take_backup(world.dir.path(), &backup).unwrap();
    assert_eq!((summary.damaged, summary.left_out), (Vec::new(), Vec::new()));
    let run_dir = backups_dir.path().join("restored");
    restore_backup(&backup, &run_dir).unwrap();
    let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    drop(committer);
    world.check(&run_dir, "continued");
    let refused = take_backup(world.dir.path(), &backup).unwrap_err().to_string();
    assert!(refused.contains("holds a complete backup"), "{refused}");
}

#[test]
fn a_backup_overwrites_nothing_else() {
    let world = TestRun::new(&plots());
    let backups_dir = quick_dir();
    let at = |name: &str| backups_dir.path().join(name);
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/mine"), "mine").unwrap();
    fs::write(at("file"), "mine").unwrap();
    fs::create_dir(at("other")).unwrap();
    fs::write(at("other/backup.incomplete"), r#"{"run_id":"other","opened_at_micros":1}"#).unwrap();
    let inside = world.dir.path().join("spool/backup");
    let cases = [
        (at("full"), "is not empty"),
        (at("file"), "is no folder"),
        (at("other"), "another run"),
        (inside, "inside the run directory"),
    ];
    let before = tree(backups_dir.path());
    for (backup, part) in cases {
        let refused = take_backup(world.dir.path(), &backup).unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}, not {part}");
    }
    assert!(before == tree(backups_dir.path()), "a refused backup changed something");
    let refused = take_backup(backups_dir.path(), &at("new")).unwrap_err().to_string();
    assert!(refused.contains("is no run directory"), "{refused}");
}

/// Links are left out and named; a published file behind a link counts only with its hash.
#[test]
fn a_backup_follows_no_link_out_of_the_run() {
    let world = TestRun::new(&plots());
    let RecoveredRun { mut committer, snapshot, .. } = restart(world.dir.path()).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    drop(committer);
    let backups_dir = quick_dir();
    let secret = backups_dir.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let run = world.dir.path();
    fs::create_dir(run.join("logs")).unwrap();
    std::os::unix::fs::symlink(&secret, run.join("logs/run.jsonl")).unwrap();
    std::os::unix::fs::symlink(backups_dir.path(), run.join("archive.link")).unwrap();
    let summary = take_backup(run, &backups_dir.path().join("backup")).unwrap();
    assert_eq!(summary.left_out, [Path::new("logs/run.jsonl")]);
    let copied = tree(&backups_dir.path().join("backup"));
    assert!(copied.values().all(|bytes| bytes != b"secret"), "a file outside of the run was copied");
}

#[test]
fn a_backup_that_is_not_what_it_lists_is_not_restored() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 8] = [
        ("a changed byte", |backup| {
            let path = backup.join("run/ledger.sqlite");
            let mut bytes = fs::read(&path).unwrap();
            bytes[5000] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("a missing file", |backup| fs::remove_file(backup.join("run/ledger.sqlite")).unwrap()),
        ("one more file", |backup| fs::write(backup.join("run/spool/x.spool"), "x").unwrap()),
        ("a link", |backup| {
            let path = backup.join("run/ledger.sqlite");
            fs::rename(&path, backup.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink(backup.join("elsewhere"), path).unwrap();
        }),
        ("a link to a folder", |backup| {
            fs::rename(backup.join("run/spool"), backup.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink(backup.join("elsewhere"), backup.join("run/spool")).unwrap();
        }),
        ("a name that leads upwards", |backup| {
            let path = backup.join("backup.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(backup.join("escaped"), "x").unwrap();
            fs::write(path, text.replace("\"ledger.sqlite\"", "\"../escaped\"")).unwrap();
        }),
        ("an absolute name", |backup| {
            let path = backup.join("backup.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace("\"ledger.sqlite\"", "\"/etc/passwd\"")).unwrap();
        }),
        ("no list", |backup| {
            fs::rename(backup.join("backup.json"), backup.join("backup.incomplete")).unwrap();
        }),
    ];
    let world = TestRun::new(&plots());
    let backups_dir = quick_dir();
    for (what, change) in changes {
        let backup = backups_dir.path().join(what);
        take_backup(world.dir.path(), &backup).unwrap();
        change(&backup);
        let folder = backups_dir.path().join(format!("{what}, restored"));
        fs::create_dir(&folder).unwrap();
        let error = restore_backup(&backup, &folder.join("run")).unwrap_err();
        assert!(
            !folder.join("run").exists() && !backups_dir.path().join("escaped").exists(),
            "{what}: {error}"
        );
        assert!(!error.to_string().is_empty());
    }
    let backup = backups_dir.path().join("whole");
    take_backup(world.dir.path(), &backup).unwrap();
    let there = backups_dir.path().join("there");
    fs::create_dir(&there).unwrap();
    restore_backup(&backup, &there).unwrap();
    let refused = restore_backup(&backup, &there).unwrap_err().to_string();
    assert!(refused.contains("exists and is not empty"), "{refused}");
    // What a killed restore left is used where its hash is right, and replaced elsewhere.
    let unfinished = backups_dir.path().join(".again.restoring");
    copy_tree(&there, &unfinished);
    fs::write(unfinished.join("ledger.sqlite"), "cut").unwrap();
    fs::write(unfinished.join("stray"), "x").unwrap();
    restore_backup(&backup, &backups_dir.path().join("again")).unwrap();
    let whole = |name: &str| {
        let mut tree = tree(&backups_dir.path().join(name));
        tree.retain(|path, _| path != Path::new("lock"));
        tree
    };
    assert!(whole("again") == whole("there"), "the second restore differs from the first");
}

/// What is damaged, the file that must be named, and what repairs it.
type DamageCase = (&'static str, fn(&Path), &'static str, RepairedBy);

fn change_bytes(path: &Path, change: DamageFile) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn first_in(folder: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.remove(0)
}

const DAMAGE_CASES: [DamageCase; 11] = [
    (
        "a missing commit",
        |run| fs::remove_file(first_in(&run.join("data/manifest"))).unwrap(),
        "data/manifest/00000000000000000001.json",
        RepairedBy::Start,
    ),
    (
        "a damaged commit",
        |run| change_bytes(&first_in(&run.join("data/manifest")), |bytes| bytes.truncate(9)),
        "data/manifest/00000000000000000001.json",
        RepairedBy::Start,
    ),
    (
        "a bit of a committed file",
        |run| change_bytes(&first_in(&run.join("data/steps")), |bytes| bytes[100] ^= 1),
        "data/steps/r-x000000.parquet",
        RepairedBy::Backup,
    ),
    (
        "a missing committed file",
        |run| fs::remove_file(first_in(&run.join("data/groups"))).unwrap(),
        "data/groups/r-x000001.parquet",
        RepairedBy::Backup,
    ),
    (
        "a foreign file",
        |run| fs::write(run.join("data/steps/notes.txt"), "mine").unwrap(),
        "data/steps/notes.txt",
        RepairedBy::Start,
    ),
    (
        "a job that was changed",
        |run| change_bytes(&first_in(&run.join("data/jobs")), |bytes| bytes[0] ^= 1),
        "data/jobs",
        RepairedBy::User,
    ),
    (
        "a link instead of a log",
        |run| {
            fs::create_dir(run.join("logs")).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", run.join("logs/run.jsonl")).unwrap();
        },
        "logs/run.jsonl",
        RepairedBy::User,
    ),
    (
        "a link instead of a folder",
        |run| {
            fs::rename(run.join("data/groups"), run.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink("../elsewhere", run.join("data/groups")).unwrap();
        },
        "data/groups",
        RepairedBy::User,
    ),
    (
        "no ledger",
        |run| fs::remove_file(run.join("ledger.sqlite")).unwrap(),
        "ledger.sqlite",
        RepairedBy::Backup,
    ),
    (
        "another file as the ledger",
        |run| fs::write(run.join("ledger.sqlite"), "mine").unwrap(),
        "ledger.sqlite",
        RepairedBy::Backup,
    ),
    (
        "a bit of a spool file",
        |run| change_bytes(&first_in(&run.join("spool")), |bytes| bytes[20] ^= 1),
        "spool/r-g000001-s0-a0.spool",
        RepairedBy::Start,
    ),
];

#[test]
fn an_inspection_names_each_damage_and_changes_nothing() {
    for (what, damage, named, repaired_by) in DAMAGE_CASES {
        let world = TestRun::new(&plots());
        let run_dir = world.dir.path();
        let RecoveredRun { mut committer, snapshot, .. } = restart(run_dir).unwrap();
        let [first, mut second] = world.batches(&snapshot);
        let later = second.trajectories.split_off(1);
        committer.commit(&first).unwrap();
        second.groups.truncate(1);
        committer.commit(&second).unwrap();
        assert!(!later.is_empty());
        drop(committer);
        assert_eq!(inspect_run(run_dir).problems().next(), None, "{what}: before the damage");
        damage(run_dir);
        let kept = |run_dir: &Path| {
            let mut tree = tree(run_dir);
            tree.retain(|path, _| !path.to_string_lossy().ends_with("-shm"));
            tree
        };
        let before = kept(run_dir);
        let found = inspect_run(run_dir);
        assert!(before == kept(run_dir), "{what}: the inspection changed something");
        let finding = found.problems().find(|finding| finding.path.starts_with(named));
        let finding = finding.unwrap_or_else(|| panic!("{what}: {:?}", found.findings));
        assert_eq!(finding.repaired_by, repaired_by, "{what}: {finding:?}");
        if repaired_by != RepairedBy::Start {
            continue;
        }
        let repair = repair_run(run_dir).unwrap();
        assert!(repair.repaired.contains(finding), "{what}: {:?}", repair.repaired);
        assert_eq!(repair.left.problems().next(), None, "{what}");
        assert_eq!(repair.records_lost.is_empty(), !named.starts_with("spool"), "{what}");
    }
}

/// The spool still has the rows of a shard that was written and not committed.
#[test]
fn a_repair_gives_a_damaged_written_shard_back_to_the_spool() {
    let world = TestRun::new(&plots());
    let album = quick_dir();
    let run_dir = killed_after(CommitStage::Written, &world, album.path());
    change_bytes(&first_in(&run_dir.join("data/steps")), |bytes| bytes[100] ^= 1);
    let found = inspect_run(&run_dir);
    let problems: Vec<_> = found.problems().map(|finding| finding.what.clone()).collect();
    assert!(problems.len() == 1 && problems[0].contains("the spool still has its rows"), "{problems:?}");
    let repair = repair_run(&run_dir).unwrap();
    assert_eq!((repair.records_lost.len(), repair.left.problems().count()), (0, 0));
    let RecoveredRun { mut committer, snapshot, .. } = restart(&run_dir).unwrap();
    committer.commit(&world.batch(&snapshot)).unwrap();
    drop(committer);
    world.check(&run_dir, "repaired");
}

#[test]
fn a_repair_on_a_full_disk_changes_nothing_that_a_later_one_needs() {
    on_small_disk(
        "commit::tests::copies::a_repair_on_a_full_disk_changes_nothing_that_a_later_one_needs",
        |disk| {
            // Without a disk of its own nothing here can be filled.
            if is_limited() {
                return;
            }
            let world = TestRun::new(&plots());
            let run_dir = disk.join("run");
            copy_tree(world.dir.path(), &run_dir);
            let id = "r-g000000-s0-a0";
            change_bytes(&run_dir.join(format!("spool/{id}.spool")), |bytes| bytes[300] ^= 1);
            let damaged = fs::read(run_dir.join(format!("spool/{id}.spool"))).unwrap();
            let filler = disk.join("filler");
            for cycle in 0..16 {
                let free = crate::disk::free_bytes(disk).unwrap() as usize;
                fs::write(&filler, vec![0; free.saturating_sub(cycle * 2048)]).unwrap();
                if repair_run(&run_dir).is_ok() {
                    break;
                }
                fs::remove_file(&filler).unwrap();
                let now = fs::read(run_dir.join(format!("spool/{id}.spool"))).unwrap();
                let kept = if run_dir.join("lost+found").exists() {
                    tree(&run_dir.join("lost+found"))
                } else {
                    BTreeMap::new()
                };
                let is_kept = kept.values().any(|bytes| *bytes == damaged);
                assert!(now == damaged || is_kept, "cycle {cycle}: cut before it was copied");
            }
            drop(fs::remove_file(&filler));
            let RecoveredRun { snapshot, .. } = restart(&run_dir).unwrap();
            let failed = snapshot
                .trajectories
                .iter()
                .filter(|row| row.standing.ended().is_some_and(|ended| ended.end == EndKind::RecordLost));
            assert_eq!(failed.count(), 1);
            let kept = tree(&run_dir.join("lost+found"));
            assert!(kept.values().any(|bytes| *bytes == damaged), "the damaged file was not kept");
        },
    );
}
