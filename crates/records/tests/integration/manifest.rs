//! The manifest: commits are stored once and in order, and an inconsistent data set is refused.

use std::path::Path;
use std::sync::Arc;

use furrow_records::fixtures::data_set::{append, commit_files, commit_group, open, write};
use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_records::{
    CommitDraft, CommitOutcome, DataSet, Manifest, Op, RecordsError, Table, VerifyCheck, WrittenFile, verify,
};
use furrow_rollout::Id;
use futures::executor::block_on;
use object_store::ObjectStore;
use object_store::memory::InMemory;

fn file(path: &str, rows: u64) -> WrittenFile {
    let table = Table::parse(path.split('/').next().unwrap()).unwrap_or(Table::Steps);
    WrittenFile { table, path: path.into(), rows, bytes: 9, sha256: "ab".repeat(32) }
}

fn draft(shard: &str, op: Op, files: &[WrittenFile], removed: &[&str]) -> CommitDraft {
    CommitDraft {
        op,
        files: files.to_vec(),
        removed: removed.iter().map(ToString::to_string).collect(),
        run_id: Id::new("test").unwrap(),
        epoch: 1,
        shard_id: Id::new(shard).unwrap(),
        schema_version: furrow_rollout::SCHEMA_VERSION,
        created_at_micros: 5,
    }
}

fn commit(manifest: &mut Manifest, draft: &CommitDraft) -> Result<CommitOutcome, String> {
    block_on(manifest.commit(draft)).map_err(|error| error.to_string())
}

fn memory() -> (Arc<dyn ObjectStore>, Manifest) {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let manifest = block_on(Manifest::open(store.clone())).unwrap();
    (store, manifest)
}

fn paths(manifest: &Manifest, table: Table) -> Vec<&str> {
    manifest.snapshot().files(table).map(|file| &*file.path).collect()
}

#[test]
fn a_commit_is_a_file_that_people_can_read() {
    let dir = tempfile::tempdir().unwrap();
    commit_group(dir.path(), 0, 1);
    let text = std::fs::read_to_string(dir.path().join("manifest/00000000000000000001.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["version", "op", "files", "schema_version", "run_id", "txn", "created_at_micros"]);
    assert_eq!(json["op"], "append");
    assert_eq!(json["txn"], serde_json::json!({ "epoch": 1, "shard_id": "shard-0000" }));
    assert_eq!(json["files"][1]["table"], "steps");
    assert_eq!(json["files"][1]["path"], "steps/shard-0000.parquet");
    assert_eq!(json["files"][1]["rows"], 3);
}

#[test]
fn a_commit_that_is_tried_again_stands_once() {
    let (store, mut manifest) = memory();
    let first = draft("a", Op::Append, &[file("steps/a.parquet", 1)], &[]);
    assert_eq!(commit(&mut manifest, &first), Ok(CommitOutcome::Now(1)));
    assert_eq!(commit(&mut manifest, &first), Ok(CommitOutcome::Earlier(1)));
    // A restarted coordinator has another epoch and has lost what it had read.
    let repeated = CommitDraft { epoch: 2, ..first.clone() };
    let mut restarted = block_on(Manifest::open(store.clone())).unwrap();
    assert_eq!(commit(&mut restarted, &repeated), Ok(CommitOutcome::Earlier(1)));
    // One that opened the manifest before the commit learns of it during its own.
    let (store, mut early) = memory();
    let mut other = block_on(Manifest::open(store)).unwrap();
    assert_eq!(commit(&mut other, &first), Ok(CommitOutcome::Now(1)));
    assert_eq!(commit(&mut early, &repeated), Ok(CommitOutcome::Earlier(1)));
    assert_eq!(early.snapshot().version_of(&first.shard_id), Some(1));
    // The same shard with other files would be two shards under one name.
    let other = CommitDraft { files: vec![file("steps/b.parquet", 1)], ..first };
    assert_eq!(
        commit(&mut early, &other),
        Err("manifest commit 1: committed shard a with other files".to_string())
    );
}

#[test]
fn racing_writers_each_get_their_own_number() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let threads: Vec<_> = (0..8)
        .map(|writer| {
            let store = store.clone();
            std::thread::spawn(move || {
                let mut manifest = block_on(Manifest::open(store)).unwrap();
                let commits = (0..10).map(|n| {
                    let path = format!("steps/w{writer}-{n}.parquet");
                    draft(&format!("w{writer}-{n}"), Op::Append, &[file(&path, 1)], &[])
                });
                // Each is tried twice, as after a lost answer.
                commits
                    .map(|draft| {
                        let now = commit(&mut manifest, &draft).unwrap();
                        assert_eq!(commit(&mut manifest, &draft), Ok(CommitOutcome::Earlier(now.version())));
                        now.version()
                    })
                    .collect::<Vec<u64>>()
            })
        })
        .collect();
    let mut versions: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=80).collect::<Vec<u64>>());
    let manifest = block_on(Manifest::open(store)).unwrap();
    assert_eq!(manifest.snapshot().files(Table::Steps).count(), 80);
}

#[test]
fn replace_and_expire_take_files_away() {
    let (_, mut manifest) = memory();
    let a = file("steps/a.parquet", 2);
    let b = file("steps/b.parquet", 3);
    commit(&mut manifest, &draft("a", Op::Append, &[a], &[])).unwrap();
    commit(&mut manifest, &draft("b", Op::Append, &[b], &[])).unwrap();
    let merged = file("steps/m.parquet", 5);
    let parts = ["steps/a.parquet", "steps/b.parquet"];
    commit(&mut manifest, &draft("m", Op::Replace, &[merged], &parts)).unwrap();
    assert_eq!(paths(&manifest, Table::Steps), ["steps/m.parquet"]);
    assert_eq!(manifest.snapshot().removed().keys().collect::<Vec<_>>(), parts);
    assert!(!manifest.snapshot().has_expired());
    commit(&mut manifest, &draft("e", Op::Expire, &[], &["steps/m.parquet"])).unwrap();
    assert_eq!(paths(&manifest, Table::Steps), [""; 0]);
    assert!(manifest.snapshot().has_expired());
    assert_eq!(manifest.snapshot().version(), 4);
}

#[test]
fn commits_that_do_not_fit_are_refused() {
    let a = file("steps/a.parquet", 2);
    let check = |op, files: &[WrittenFile], removed: &[&str], want: &str| {
        let (_, mut manifest) = memory();
        commit(&mut manifest, &draft("a", Op::Append, std::slice::from_ref(&a), &[])).unwrap();
        let error = commit(&mut manifest, &draft("x", op, files, removed)).unwrap_err();
        assert!(error.contains(want), "{error:?} lacks {want:?}");
        assert_eq!(manifest.snapshot().version(), 1);
    };
    let b = file("steps/b.parquet", 3);
    check(Op::Append, &[], &[], "Append adds 0 and removes 0 files");
    check(Op::Append, std::slice::from_ref(&b), &["steps/a.parquet"], "Append adds 1 and removes 1 files");
    check(Op::Expire, std::slice::from_ref(&b), &["steps/a.parquet"], "Expire adds 1");
    check(Op::Append, std::slice::from_ref(&a), &[], "adds steps/a.parquet, which an earlier commit added");
    check(Op::Append, &[b.clone(), b.clone()], &[], "names a file twice");
    check(Op::Expire, &[], &["steps/z.parquet"], "removes steps/z.parquet, which is not part");
    check(Op::Replace, std::slice::from_ref(&b), &["steps/a.parquet"], "a replacement holds the same rows");
    check(
        Op::Replace,
        &[file("groups/g.parquet", 2)],
        &["steps/a.parquet"],
        "a replacement holds the same rows",
    );
    check(Op::Append, &[file("steps/../../x.parquet", 1)], &[], "is not steps/<shard>.parquet");
    check(Op::Append, &[file("/etc/passwd", 1)], &[], "is not steps/<shard>.parquet");
    check(Op::Append, &[file("steps/.hidden.parquet", 1)], &[], "is not steps/<shard>.parquet");
    check(Op::Append, &[file("steps/b.parquet", 0)], &[], "holds no rows");
    let hash = WrittenFile { sha256: "AB".repeat(32), ..b };
    check(Op::Append, &[hash], &[], "is not 64 lower-case hexadecimal digits");
    let many: Vec<_> = (0..10_001).map(|n| file(&format!("steps/n{n}.parquet"), 1)).collect();
    check(Op::Append, &many, &[], "names more than 10000 files");
}

/// A data set of three commits, one of them damaged.
#[track_caller]
fn refused(spoil: impl FnOnce(&Path), want: &str) {
    let dir = tempfile::tempdir().unwrap();
    (0..3).for_each(|group| drop(commit_group(dir.path(), group, 1)));
    spoil(&dir.path().join("manifest"));
    let error = DataSet::open(dir.path()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains(want), "{error:?} lacks {want:?}");
    if matches!(error, RecordsError::Manifest { .. }) {
        let report = verify(dir.path()).unwrap();
        assert_eq!(
            report.breaches.iter().map(|breach| breach.check).collect::<Vec<_>>(),
            [VerifyCheck::Manifest]
        );
    }
}

const SECOND: &str = "00000000000000000002.json";

fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join(SECOND);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text} lacks {from}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn a_manifest_that_cannot_be_trusted_is_refused() {
    refused(|dir| std::fs::remove_file(dir.join(SECOND)).unwrap(), "commit 2: is missing, but 3 exists");
    refused(|dir| std::fs::write(dir.join(SECOND), "{").unwrap(), "commit 2: is not a valid commit");
    refused(|dir| std::fs::write(dir.join(SECOND), b"\xff\xfe").unwrap(), "commit 2: is not a valid commit");
    refused(
        |dir| {
            std::fs::copy(dir.join("00000000000000000001.json"), dir.join(SECOND)).unwrap();
        },
        "commit 2: contains commit 1",
    );
    refused(|dir| edit(dir, "\"version\": 2", "\"version\": 2, \"colour\": 1"), "unknown field `colour`");
    refused(
        |dir| edit(dir, "\"schema_version\": 4", "\"schema_version\": 5"),
        "has schema version 5, this furrow reads 1 to 4",
    );
    refused(
        |dir| edit(dir, "steps/shard-0001.parquet", "steps/shard-0000.parquet"),
        "which an earlier commit added",
    );
    refused(
        |dir| edit(dir, "\"shard_id\": \"shard-0001\"", "\"shard_id\": \"shard-0000\""),
        "was already committed by commit 1",
    );
    refused(|dir| edit(dir, "\"rows\": 3", "\"rows\": -3"), "commit 2: is not a valid commit");
    refused(
        |dir| std::fs::File::create(dir.join(SECOND)).unwrap().set_len(5 << 20).unwrap(),
        "is 5242880 bytes long; at most 4194304 are allowed",
    );
}

#[test]
fn other_names_in_the_folder_are_not_commits() {
    let dir = tempfile::tempdir().unwrap();
    commit_group(dir.path(), 0, 1);
    for name in ["README.md", "00000000000000000009.json#1", "9.json", "00000000000000000009.json.tmp"] {
        std::fs::write(dir.path().join("manifest").join(name), "").unwrap();
    }
    assert_eq!(open(dir.path()).snapshot().version(), 1);
    Manifest::clear_staged(dir.path()).unwrap();
    let left =
        std::fs::read_dir(dir.path().join("manifest")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
    left.sort_unstable();
    let kept = ["00000000000000000001.json", "00000000000000000009.json.tmp", "9.json", "README.md"];
    assert_eq!(left, kept, "foreign files stay");
}

#[test]
fn a_reader_that_follows_sees_each_commit_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = open(dir.path());
    assert_eq!(follower.snapshot().version(), 0);
    for group in 0..3 {
        commit_group(dir.path(), group, 1);
        block_on(follower.refresh()).unwrap();
        assert_eq!(follower.snapshot().version(), group + 1);
        assert_eq!(follower.snapshot().files(Table::Trajectories).count() as u64, group + 1);
    }
}

#[test]
fn a_run_directory_or_its_data_folder_will_do() {
    let run = tempfile::tempdir().unwrap();
    let data = run.path().join("data");
    commit_group(&data, 0, 2);
    for dir in [run.path(), &data] {
        assert_eq!(DataSet::open(dir).unwrap().trajectories().count(), 2);
    }
    let error = DataSet::open(&run.path().join("elsewhere")).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("give a run directory or its `data` folder"), "{error}");
    assert!(matches!(verify(&run.path().join("elsewhere")), Err(RecordsError::NoDataSet { .. })));
    assert!(!run.path().join("elsewhere").exists(), "opening creates nothing");
}

#[test]
fn verify_compares_files_with_the_manifest() {
    let check = |spoil: &dyn Fn(&Path), wanted: &[VerifyCheck]| {
        let dir = tempfile::tempdir().unwrap();
        commit_group(dir.path(), 0, 2);
        spoil(dir.path());
        let report = verify(dir.path()).unwrap();
        let mut found: Vec<VerifyCheck> = report.breaches.iter().map(|breach| breach.check).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, wanted, "{:#?}", report.breaches);
        report
    };
    let steps = |dir: &Path| dir.join("steps/shard-0000.parquet");
    check(&|_| {}, &[]);
    let report =
        check(&|dir| std::fs::remove_file(steps(dir)).unwrap(), &[VerifyCheck::File, VerifyCheck::StepCount]);
    assert_eq!(report.breaches[0].file.as_deref(), Some("steps/shard-0000.parquet"));
    check(&|dir| std::fs::write(steps(dir), "PAR1").unwrap(), &[VerifyCheck::File, VerifyCheck::StepCount]);
    let groups = |dir: &Path| dir.join("groups/shard-0000.parquet");
    check(
        &|dir| std::fs::rename(steps(dir), groups(dir)).unwrap(),
        &[VerifyCheck::File, VerifyCheck::StepCount],
    );
    let report = check(
        &|dir| {
            let (record, trajectory) =
                TrajectoryFixture { group: 9, ..TrajectoryFixture::default() }.trajectory();
            write(dir, "stray", &[(record, trajectory)], &[], &[]);
        },
        &[],
    );
    let about: Vec<_> = report.warnings.iter().map(|warning| &*warning.about).collect();
    assert_eq!(about, ["steps/stray.parquet", "trajectories/stray.parquet"]);
}

#[test]
fn the_manifest_survives_what_it_committed() {
    let dir = tempfile::tempdir().unwrap();
    let files = write(dir.path(), "s", &[TrajectoryFixture::default().trajectory()], &[], &[]);
    assert_eq!(commit_files(dir.path(), "s", files.clone()), CommitOutcome::Now(1));
    assert_eq!(commit_files(dir.path(), "s", files.clone()), CommitOutcome::Earlier(1));
    let listed: Vec<_> = Table::ALL
        .iter()
        .flat_map(|&table| open(dir.path()).snapshot().files(table).cloned().collect::<Vec<_>>())
        .collect();
    assert_eq!(listed, files);
    assert_eq!(append(dir.path(), "s", files).created_at_micros, fixtures::STARTED);
}
