//! Compares ledger and manifest both ways, before anything in the run directory changes.
//!
//! A shard is committed when the manifest names it; the ledger records the commit's number and the
//! shard's files. So a missing or damaged commit can be restored from the ledger. The reverse has
//! no repair: a manifest that names what the ledger never wrote is newer than the ledger, and
//! continuing would assign the same ids a second time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use furrow_records::{Commit, CommitDraft, Op, StoredCommits, Table, WrittenFile, schema_version};
use furrow_rollout::{Id, Run, Shard};

use crate::ledger::{CommittedShard, LedgerError, ShardPhase};

/// What the manifest lacks of the ledger's record.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestGaps {
    /// Numbers of commits that cannot be read, or that differ from the ledger's record.
    pub damaged: Vec<u64>,
    /// Shards whose commits are missing or damaged, in order of their numbers.
    pub remembered: Vec<CommittedShard>,
    /// Numbers that neither the ledger nor the manifest knows: commits of scorings, which the
    /// ledger does not record.
    pub unknown: Vec<u64>,
}

/// A contradiction between manifest and ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerDisagreement {
    /// The manifest is newer.
    #[error(
        "manifest commit {version} names shard {shard_id}, {known}: ledger.sqlite is older than data/. \
         Restore the ledger (with its -wal file) that belongs to this data set"
    )]
    LedgerBehind {
        version: u64,
        /// The shard it names.
        shard_id: String,
        /// What the ledger holds of it.
        known: &'static str,
    },
    /// Both know a commit of this number, but not the same.
    #[error(
        "manifest commit {version} names shard {found}, the ledger records {remembered} under that number: \
         data/manifest/ and ledger.sqlite are from different runs or different times. Restore both from one \
         copy; if the ledger is right, move that one commit out of data/manifest/: the next start restores it"
    )]
    OtherShard {
        version: u64,
        found: String,
        /// What the ledger records.
        remembered: Id<Shard>,
    },
    /// The ledger could not be read.
    #[error("cannot compare the ledger with the manifest")]
    Ledger(#[from] LedgerError),
}

/// The run and start that restore the commits.
#[derive(Debug, Clone)]
pub(crate) struct CommitOrigin {
    pub run_id: Id<Run>,
    pub epoch: u64,
    /// Wall clock, microseconds since the Unix epoch.
    pub now_micros: i64,
}

/// Compares them from the first commit that was read; a checkpoint stands for those before it, and
/// the ledger's record begins there too. `phase` returns how far a shard is that the ledger does
/// not call committed.
pub(crate) fn compare(
    stored: &StoredCommits,
    committed: &[CommittedShard],
    mut phase: impl FnMut(&Id<Shard>) -> Result<Option<ShardPhase>, LedgerError>,
) -> Result<ManifestGaps, LedgerDisagreement> {
    let mut gaps = ManifestGaps::default();
    let remembered: BTreeMap<u64, &CommittedShard> =
        committed.iter().map(|shard| (shard.manifest_version, shard)).collect();
    for (&version, shard) in &remembered {
        match stored.get(version) {
            Some(Ok(commit)) if commit_names_shard(commit, shard) => continue,
            Some(Ok(commit)) if commit.txn.shard_id != shard.shard_id.as_str() => {
                let found = commit.txn.shard_id.clone();
                let remembered = shard.shard_id.clone();
                return Err(LedgerDisagreement::OtherShard { version, found, remembered });
            }
            Some(_) => gaps.damaged.push(version),
            None => {}
        }
        gaps.remembered.push((*shard).clone());
    }
    for (version, commit) in stored.iter().filter(|(version, _)| !remembered.contains_key(version)) {
        match commit {
            Ok(commit) if is_scoring(commit) => {}
            Ok(commit) => check_unrecorded(version, commit, &mut phase)?,
            Err(_) => {
                gaps.damaged.push(version);
                gaps.unknown.push(version);
            }
        }
    }
    let newest = stored.newest().max(remembered.keys().next_back().copied().unwrap_or(0));
    let missing = |version: &u64| stored.get(*version).is_none() && !remembered.contains_key(version);
    let unknown: BTreeSet<u64> =
        gaps.unknown.drain(..).chain((stored.first()..newest).filter(missing)).collect();
    gaps.unknown = unknown.into_iter().collect();
    gaps.damaged.sort_unstable();
    Ok(gaps)
}

/// The ledger wrote the shard, and a crash came before it recorded the commit; otherwise the ledger
/// is too old.
fn check_unrecorded(
    version: u64,
    commit: &Commit,
    phase: &mut impl FnMut(&Id<Shard>) -> Result<Option<ShardPhase>, LedgerError>,
) -> Result<(), LedgerDisagreement> {
    let behind = |known| {
        let shard_id = commit.txn.shard_id.clone();
        Err(LedgerDisagreement::LedgerBehind { version, shard_id, known })
    };
    let Ok(shard_id) = Id::<Shard>::new(&commit.txn.shard_id) else {
        return behind("which is not the name of a shard");
    };
    match phase(&shard_id)? {
        Some(ShardPhase::Written) => Ok(()),
        Some(ShardPhase::Committed { .. }) => behind("which the ledger records under another number"),
        Some(ShardPhase::Opened) => behind("which the ledger calls unfinished"),
        Some(ShardPhase::Abandoned) => behind("which the ledger abandoned"),
        None => behind("which the ledger does not know"),
    }
}

fn commit_names_shard(commit: &Commit, shard: &CommittedShard) -> bool {
    commit.txn.shard_id == shard.shard_id.as_str()
        && commit.files == shard.files
        && commit.removed == shard.replaces
}

/// A scoring of stored trajectories makes its own commit; the ledger does not record it.
fn is_scoring(commit: &Commit) -> bool {
    commit.op == Op::Append && commit.files.iter().all(|file| file.table == Table::Scores)
}

impl ManifestGaps {
    /// Whether the manifest lacks nothing.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The operation of a shard that has these files and lets those leave the data set.
pub(super) fn operation(files: &[WrittenFile], replaces: &[String]) -> Op {
    match (files, replaces) {
        (_, []) => Op::Append,
        ([], _) => Op::Expire,
        _ => Op::Replace,
    }
}

impl CommitOrigin {
    /// The commit of a shard that the ledger records. Files that an earlier release wrote keep
    /// their schema version.
    pub(super) fn commit(&self, data_dir: &Path, shard: CommittedShard) -> Commit {
        let CommittedShard { shard_id, manifest_version, files, replaces } = shard;
        let op = operation(&files, &replaces);
        let run_id = self.run_id.clone();
        let epoch = self.epoch;
        let created_at_micros = self.now_micros;
        let schema_version = schema_version(data_dir, &files);
        let removed = replaces;
        let draft =
            CommitDraft { op, files, removed, run_id, epoch, shard_id, schema_version, created_at_micros };
        draft.numbered(manifest_version)
    }

    /// The commit of a scoring whose file exists.
    pub(super) fn scoring(
        &self,
        data_dir: &Path,
        version: u64,
        file: WrittenFile,
        shard_id: Id<Shard>,
    ) -> Commit {
        let files = vec![file];
        let schema_version = schema_version(data_dir, &files);
        let draft = CommitDraft::append(files, self.run_id.clone(), 0, shard_id, self.now_micros);
        CommitDraft { schema_version, ..draft }.numbered(version)
    }
}
