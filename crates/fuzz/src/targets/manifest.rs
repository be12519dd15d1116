//! Commits and checkpoints of a data set's manifest.

use std::sync::Arc;

use furrow_records::fixtures::{STARTED, plan};
use furrow_records::{
    Commit, CommitDraft, Manifest, ManifestSnapshot, Op, StoredCommits, Table, WrittenFile,
};
use futures::executor::block_on;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{FuzzTarget, Seed, accept, files, models};

pub(super) const MANIFEST: FuzzTarget = FuzzTarget {
    name: "manifest",
    run,
    repair: Some(repair),
    memory_max: |_| 64 << 20,
    bytes_max: 16 << 10,
    catches_panics: false,
    seeds,
};

const CHECKPOINT: &str = "checkpoint ";

/// A file `N` is the commit of that number, a file `checkpoint N` its checkpoint.
///
/// What is read is written and read back equal, and every question about it has an answer.
fn run(input: &[u8]) {
    let store = store_of(input);
    let Ok(stored) = block_on(StoredCommits::read(&store)) else { return };
    for (version, commit) in stored.iter() {
        let Ok(commit) = commit else { continue };
        let text = serde_json::to_vec(commit).expect("a commit contains only plain values");
        let again: Commit = serde_json::from_slice(&text).expect("a commit is read back");
        assert_eq!((again.version, &again), (version, commit), "a commit is read back");
    }
    if let Ok(snapshot) = stored.into_snapshot() {
        ask(&snapshot);
    }
    if let Ok(manifest) = block_on(Manifest::open(store)) {
        ask(manifest.snapshot());
    }
}

fn ask(snapshot: &ManifestSnapshot) {
    if snapshot.version() > 0 {
        accept();
    }
    for (path, removed) in snapshot.removed() {
        assert!(snapshot.is_expired(path) || removed.into.is_some(), "{path} went somewhere or expired");
        assert!(snapshot.holder(path).is_none_or(|file| snapshot.holds(&file.path)), "{path} is held");
    }
    for table in Table::ALL {
        assert!(snapshot.files(table).all(|file| file.table == table && snapshot.holds(&file.path)));
    }
    let text = serde_json::to_vec(snapshot).expect("a snapshot contains only plain values");
    let again: ManifestSnapshot = serde_json::from_slice(&text).expect("a snapshot is read back");
    assert_eq!(again, *snapshot, "a snapshot is read back");
}

fn store_of(input: &[u8]) -> Arc<dyn ObjectStore> {
    let store = InMemory::new();
    for (name, bytes) in files::split(input) {
        let folder = if name.starts_with(CHECKPOINT) { "checkpoints" } else { "manifest" };
        let Ok(version) = name.trim_start_matches(CHECKPOINT).parse::<u64>() else { continue };
        let path = Path::from(format!("{folder}/{version:020}.json"));
        block_on(store.put(&path, PutPayload::from(bytes.to_vec()))).expect("a file in memory is written");
    }
    Arc::new(store)
}

/// Corrects the hashes of checkpoints.
fn repair(input: &[u8]) -> Vec<u8> {
    let split = files::split(input);
    let checked = split.iter().map(|(name, bytes)| {
        let version = name.strip_prefix(CHECKPOINT);
        let commit = version.and_then(|version| split.iter().find(|(name, _)| *name == version));
        let bytes = commit.and_then(|(_, commit)| with_hashes(bytes, commit));
        (*name, bytes)
    });
    let checked: Vec<(&str, Option<Vec<u8>>)> = checked.collect();
    let repaired = checked.iter().zip(&split);
    files::join(repaired.map(|((name, new), (_, old))| (*name, new.as_deref().unwrap_or(old))))
}

/// A checkpoint of this commit: its text, and the hash of that on a second line.
fn with_hashes(checkpoint: &[u8], commit: &[u8]) -> Option<Vec<u8>> {
    let body = checkpoint.split(|byte| *byte == b'\n').next()?;
    let mut body: Value = serde_json::from_slice(body).ok()?;
    *body.get_mut("commit_sha256")? = models::hex(&Sha256::digest(commit)).into();
    let body = body.to_string();
    let sha256 = models::hex(&Sha256::digest(&body));
    Some(format!("{body}\n{sha256}\n").into_bytes())
}

fn seeds() -> Vec<Seed> {
    let file = |table: Table, shard: &str| WrittenFile {
        table,
        path: format!("{table}/{shard}.parquet"),
        rows: 3,
        bytes: 100,
        sha256: "ab".repeat(32),
    };
    let draft = |shard: &str, op: Op, files: Vec<WrittenFile>, removed: &[&str]| {
        let plan = plan(std::path::Path::new("data"), shard);
        CommitDraft {
            op,
            removed: removed.iter().map(|path| (*path).to_owned()).collect(),
            ..CommitDraft::append(files, plan.run_id, 1, plan.shard_id, STARTED)
        }
    };
    let merged = WrittenFile { rows: 6, ..file(Table::Steps, "m") };
    let drafts = [
        draft("a", Op::Append, vec![file(Table::Steps, "a"), file(Table::Groups, "a")], &[]),
        draft("b", Op::Append, vec![file(Table::Steps, "b")], &[]),
        draft("m", Op::Replace, vec![merged], &["steps/a.parquet", "steps/b.parquet"]),
        draft("e", Op::Expire, Vec::new(), &["groups/a.parquet"]),
    ];
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut manifest = block_on(Manifest::open(store)).expect("an empty manifest");
    let mut texts: Vec<(String, Vec<u8>)> = Vec::new();
    for draft in &drafts {
        let version = block_on(manifest.commit(draft)).expect("a sound commit").version();
        let text = serde_json::to_vec(&draft.numbered(version)).expect("plain values");
        texts.push((version.to_string(), text));
    }
    let body = json!({
        "version": 4, "commit_sha256": "", "run_id": "test",
        "snapshot": manifest.snapshot(),
    });
    let commits = files::join(texts.iter().map(|(name, text)| (name.as_str(), &text[..])));
    texts.push((format!("{CHECKPOINT}4"), format!("{body}\n\n").into_bytes()));
    let all = files::join(texts.iter().map(|(name, text)| (name.as_str(), &text[..])));
    vec![Seed::new("commits", commits), Seed::new("checkpoint", repair(&all))]
}
