//! Checkpoints of the manifest: a reader that begins at one sees what the commits say, and a
//! damaged one is passed over.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use furrow_records::fixtures::data_set::{commit_group, open};
use furrow_records::{
    CommitDraft, CommitOutcome, DataSet, Manifest, Op, StoredCommits, Table, VerifyCheck, WrittenFile, hex,
    verify,
};
use furrow_rollout::Id;
use futures::executor::block_on;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn file(table: &str, shard: u64) -> WrittenFile {
    let path = format!("{table}/s{shard}.parquet");
    WrittenFile { table: Table::parse(table).unwrap(), path, rows: 1, bytes: 9, sha256: "ab".repeat(32) }
}

fn draft(shard: &str, op: Op, files: Vec<WrittenFile>, removed: Vec<String>) -> CommitDraft {
    let draft = CommitDraft::append(files, Id::new("test").unwrap(), 1, Id::new(shard).unwrap(), 5);
    CommitDraft { op, removed, ..draft }
}

/// A manifest of this many commits; every tenth one merges the files of the nine before it.
fn grow(manifest: &mut Manifest, from: u64, to: u64) {
    for number in from..=to {
        let draft = if number.is_multiple_of(10) {
            let parts: Vec<_> = (number - 9..number).map(|n| file("steps", n).path).collect();
            let merged = WrittenFile { rows: 9, ..file("steps", number) };
            draft(&format!("s{number}"), Op::Replace, vec![merged], parts)
        } else {
            draft(&format!("s{number}"), Op::Append, vec![file("steps", number)], Vec::new())
        };
        assert_eq!(block_on(manifest.commit(&draft)).unwrap(), CommitOutcome::Now(number));
        block_on(manifest.write_checkpoint_if_due()).unwrap();
    }
}

/// Without the syncs of a durable store.
fn store(dir: &Path) -> Arc<dyn ObjectStore> {
    fs::create_dir_all(dir.join("manifest")).unwrap();
    Arc::new(LocalFileSystem::new_with_prefix(dir).unwrap())
}

fn grown(dir: &Path, to: u64) -> Manifest {
    let mut manifest = block_on(Manifest::open(store(dir))).unwrap();
    let from = manifest.snapshot().version() + 1;
    grow(&mut manifest, from, to);
    manifest
}

fn checkpoint(dir: &Path, version: u64) -> std::path::PathBuf {
    dir.join("checkpoints").join(format!("{version:020}.json"))
}

fn from_commits(dir: &Path) -> Vec<WrittenFile> {
    let stored = block_on(StoredCommits::read(&store(dir))).unwrap();
    stored.into_snapshot().unwrap().files(Table::Steps).cloned().collect()
}

/// Number of the checkpoint that a reader begins at, once it lists what the commits list.
#[track_caller]
fn begins_at(dir: &Path) -> u64 {
    let stored = block_on(StoredCommits::read_newest(&store(dir), None)).unwrap();
    let begun = stored.checkpoint();
    let snapshot = stored.into_snapshot().unwrap();
    assert_eq!(snapshot.files(Table::Steps).cloned().collect::<Vec<_>>(), from_commits(dir));
    begun
}

#[test]
fn a_reader_begins_at_the_newest_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = grown(dir.path(), 2_345);
    assert_eq!(begins_at(dir.path()), 2_000);
    assert_eq!(block_on(Manifest::open(store(dir.path()))).unwrap().snapshot(), manifest.snapshot());
    let known = |known| block_on(StoredCommits::read_newest(&store(dir.path()), Some(known))).unwrap();
    assert_eq!(known(1_999).checkpoint(), 1_000, "one that is newer than what is known is not used");
    assert_eq!((known(999).checkpoint(), known(999).first(), known(999).newest()), (0, 1, 2_345));
    // Another commit of a shard among the newest is still found out.
    let mut manifest = block_on(Manifest::open(store(dir.path()))).unwrap();
    let again = draft("s2344", Op::Append, vec![file("steps", 2_344)], Vec::new());
    assert_eq!(block_on(manifest.commit(&again)).unwrap(), CommitOutcome::Earlier(2_344));
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    grown(dir.path(), 2_010);
    let newest = checkpoint(dir.path(), 2_000);
    let whole = fs::read_to_string(&newest).unwrap();
    let damages: [(&str, String); 5] = [
        ("a bit", whole.replacen("\"rows\":9", "\"rows\":8", 1)),
        ("cut", whole[..whole.len() / 2].to_owned()),
        ("empty", String::new()),
        ("the wrong one", fs::read_to_string(checkpoint(dir.path(), 1_000)).unwrap()),
        ("no hash", whole.lines().next().unwrap().to_owned()),
    ];
    for (what, text) in damages {
        assert_ne!(text, whole, "{what}");
        fs::write(&newest, text).unwrap();
        assert_eq!(begins_at(dir.path()), 1_000, "{what}");
    }
    fs::write(checkpoint(dir.path(), 1_000), "").unwrap();
    assert_eq!(begins_at(dir.path()), 0);
    fs::write(&newest, whole).unwrap();
    assert_eq!(begins_at(dir.path()), 2_000);
    // Its commit is another one: the checkpoint is of another data set.
    let commit = dir.path().join("manifest").join(format!("{:020}.json", 2_000));
    let text = fs::read_to_string(&commit).unwrap();
    fs::write(&commit, text.replace("\"epoch\": 1", "\"epoch\": 2")).unwrap();
    assert_eq!(begins_at(dir.path()), 0);
}

/// Files that replaced each other would be followed without end.
#[test]
fn a_checkpoint_whose_replacements_go_in_a_circle_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    grown(dir.path(), 1_010);
    let newest = checkpoint(dir.path(), 1_000);
    let text = fs::read_to_string(&newest).unwrap();
    for (other, begins) in [(5, 1_000), (4, 0), (3, 0)] {
        let mut body: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        for (name, into, by) in [("x", "y", 4), ("y", "x", other)] {
            let path = |name: &str| format!("steps/{name}.parquet");
            let sha256 = "0".repeat(64);
            let file = json!({"table": "steps", "path": path(name), "rows": 1, "bytes": 1, "sha256": sha256});
            // Of the one that a commit can have made, the other was removed for good.
            let into = (other < 5 || name == "x").then(|| path(into));
            body["snapshot"]["removed"][path(name)] =
                json!({"by": by, "at_micros": 1, "into": into, "file": file});
        }
        let body = body.to_string();
        fs::write(&newest, format!("{body}\n{}\n", hex(&Sha256::digest(&body)))).unwrap();
        assert_eq!(begins_at(dir.path()), begins, "{other}");
    }
}

#[test]
fn a_gap_behind_a_checkpoint_is_found() {
    let dir = tempfile::tempdir().unwrap();
    grown(dir.path(), 1_010);
    fs::remove_file(dir.path().join("manifest").join(format!("{:020}.json", 1_005))).unwrap();
    let error = block_on(Manifest::open(store(dir.path()))).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("commit 1005: is missing, but 1010 exists"), "{error}");
}

#[test]
fn old_checkpoints_go_and_the_list_of_removed_files_stays_short() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = grown(dir.path(), 2_000);
    assert_eq!(manifest.snapshot().removed().len(), 1_800);
    let gone: Vec<String> = manifest.snapshot().removed().keys().cloned().collect();
    manifest.forget(&gone);
    assert!(manifest.snapshot().removed().is_empty());
    let sizes = |version| fs::metadata(checkpoint(dir.path(), version)).unwrap().len();
    let before = sizes(2_000);
    grow(&mut manifest, 2_001, 3_000);
    assert!(sizes(3_000) < before, "{} bytes, {before} before", sizes(3_000));
    for number in 4..=24 {
        let text = fs::read(checkpoint(dir.path(), 1_000)).unwrap_or_default();
        fs::write(checkpoint(dir.path(), number * 100_000), text).unwrap();
    }
    grow(&mut manifest, 3_001, 4_000);
    let left = fs::read_dir(dir.path().join("checkpoints")).unwrap().count();
    assert_eq!(left, 20);
}

/// A part may be merged twice before the first copy leaves the disk.
#[test]
fn the_way_to_the_merged_file_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = block_on(Manifest::open(store(dir.path()))).unwrap();
    let mut commit = |shard: &str, op, number, rows, removed: &[u64]| {
        let added = WrittenFile { rows, ..file("steps", number) };
        let removed = removed.iter().map(|n| file("steps", *n).path).collect();
        block_on(manifest.commit(&draft(shard, op, vec![added], removed))).unwrap();
    };
    commit("s1", Op::Append, 1, 1, &[]);
    commit("s2", Op::Replace, 2, 1, &[1]);
    commit("s3", Op::Replace, 3, 1, &[2]);
    let holder =
        |manifest: &Manifest| manifest.snapshot().holder("steps/s1.parquet").map(|file| file.path.clone());
    let there = Some("steps/s3.parquet".to_owned());
    manifest.forget(&["steps/s2.parquet".to_owned()]);
    assert_eq!(holder(&manifest), there, "its only copy would count as gone");
    manifest.forget(&["steps/s1.parquet".to_owned()]);
    manifest.forget(&["steps/s2.parquet".to_owned()]);
    assert!(manifest.snapshot().removed().is_empty());
}

#[test]
fn verify_compares_the_checkpoint_with_the_commits() {
    let dir = tempfile::tempdir().unwrap();
    (0..2).for_each(|group| drop(commit_group(dir.path(), group, 1)));
    let mut manifest = open(dir.path());
    assert!(!block_on(manifest.write_checkpoint_if_due()).unwrap());
    let whole = verify(dir.path()).unwrap();
    assert!(whole.is_sound(), "{:#?}", whole.breaches);
    // A checkpoint with a right hash that lists other files: the writer was wrong.
    let other = tempfile::tempdir().unwrap();
    grown(other.path(), 1_000);
    for folder in ["manifest", "checkpoints"] {
        fs::remove_dir_all(dir.path().join(folder)).ok();
        fs::rename(other.path().join(folder), dir.path().join(folder)).unwrap();
    }
    let path = checkpoint(dir.path(), 1_000);
    let text = fs::read_to_string(&path).unwrap();
    let body = text.lines().next().unwrap().replacen("steps/s1000.parquet", "steps/s1001.parquet", 8);
    let sha256 = hex(&Sha256::digest(&body));
    fs::write(&path, format!("{body}\n{sha256}\n")).unwrap();
    let report = verify(dir.path()).unwrap();
    let found: Vec<_> = report.breaches.iter().map(|breach| breach.check).collect();
    assert_eq!(found, [VerifyCheck::Manifest], "{:#?}", report.breaches);
    assert!(report.breaches[0].what.contains("remove checkpoints/"), "{:#?}", report.breaches);
    fs::remove_dir_all(dir.path().join("checkpoints")).unwrap();
    assert_eq!(DataSet::open(dir.path()).unwrap().snapshot().version(), 1_000);
}
