//! Ledger and manifest compared both ways, before anything in the run directory is changed.
//!
//! A shard is published when the manifest names it; the ledger remembers under which number, and what its files are. So a commit that
//! is missing or damaged can be made again from the ledger. The other way round there is no repair: a manifest that names what the
//! ledger never wrote is newer than the ledger, and going on would hand out the same ids a second time.

use std::collections::{BTreeMap, BTreeSet};

use furrow_records::{Commit, Draft, Op, StoredCommits, Table, WrittenFile};
use furrow_rollout::{Id, Run, Shard};

use crate::ledger::{LedgerError, PublishedShard, ShardPhase};

/// What the manifest lacks of what the ledger remembers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// Numbers of commits that cannot be read, or do not say what the ledger remembers.
    pub damaged: Vec<u64>,
    /// Shards whose commits are missing or damaged, in the order of their numbers.
    pub remembered: Vec<PublishedShard>,
    /// Numbers of which neither knows anything: commits of scorings, which the ledger does not see.
    pub unknown: Vec<u64>,
}

/// In what manifest and ledger contradict each other.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    /// The manifest is newer.
    #[error(
        "manifest commit {version} names shard {shard_id}, {known}: ledger.sqlite is older than data/. Put back the ledger (with its \
         -wal file) that belongs to this data set"
    )]
    LedgerBehind {
        /// The commit.
        version: u64,
        /// The shard it names.
        shard_id: String,
        /// What the ledger says of it.
        known: &'static str,
    },
    /// Both know a commit of this number, but not the same.
    #[error(
        "manifest commit {version} names shard {found}, the ledger remembers {remembered} under that number: data/manifest/ and \
         ledger.sqlite are of different runs or different times. Put both back from one copy; if the ledger is right, moving that one \
         commit out of data/manifest/ is enough, it is made again"
    )]
    OtherShard {
        /// The commit.
        version: u64,
        /// What it names.
        found: String,
        /// What the ledger remembers.
        remembered: Id<Shard>,
    },
    /// The ledger could not be asked.
    #[error("cannot compare the ledger with the manifest")]
    Ledger(#[from] LedgerError),
}

/// Who makes the commits again.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The run.
    pub run_id: Id<Run>,
    /// This start.
    pub epoch: u64,
    /// Wall clock, microseconds since the Unix epoch.
    pub now_micros: i64,
}

/// Compares them. `phase` says how far a shard is that the ledger does not call published.
pub(crate) fn compare(
    stored: &StoredCommits,
    published: &[PublishedShard],
    mut phase: impl FnMut(&Id<Shard>) -> Result<Option<ShardPhase>, LedgerError>,
) -> Result<Gaps, Disagreement> {
    let mut gaps = Gaps::default();
    let remembered: BTreeMap<u64, &PublishedShard> =
        published.iter().map(|shard| (shard.manifest_version, shard)).collect();
    for (&version, shard) in &remembered {
        match stored.get(version) {
            Some(Ok(commit)) if says(commit, shard) => continue,
            Some(Ok(commit)) if commit.txn.shard_id != shard.shard_id.as_str() => {
                let (found, remembered) = (commit.txn.shard_id.clone(), shard.shard_id.clone());
                return Err(Disagreement::OtherShard { version, found, remembered });
            }
            Some(_) => gaps.damaged.push(version),
            None => {}
        }
        gaps.remembered.push((*shard).clone());
    }
    for (version, commit) in stored.iter().filter(|(version, _)| !remembered.contains_key(version)) {
        match commit {
            Ok(commit) if is_scoring(commit) => {}
            Ok(commit) => check_unheard(version, commit, &mut phase)?,
            Err(_) => {
                gaps.damaged.push(version);
                gaps.unknown.push(version);
            }
        }
    }
    let newest = stored.newest().max(remembered.keys().next_back().copied().unwrap_or(0));
    let missing = |version: &u64| stored.get(*version).is_none() && !remembered.contains_key(version);
    let unknown: BTreeSet<u64> = gaps.unknown.drain(..).chain((1..newest).filter(missing)).collect();
    gaps.unknown = unknown.into_iter().collect();
    gaps.damaged.sort_unstable();
    Ok(gaps)
}

/// The ledger wrote the shard, and a crash kept it from hearing of the commit; anything else is a ledger that is too old.
fn check_unheard(
    version: u64,
    commit: &Commit,
    phase: &mut impl FnMut(&Id<Shard>) -> Result<Option<ShardPhase>, LedgerError>,
) -> Result<(), Disagreement> {
    let behind = |known| {
        let shard_id = commit.txn.shard_id.clone();
        Err(Disagreement::LedgerBehind { version, shard_id, known })
    };
    let Ok(shard_id) = Id::<Shard>::new(&commit.txn.shard_id) else {
        return behind("which is no shard's name");
    };
    match phase(&shard_id)? {
        Some(ShardPhase::Written) => Ok(()),
        Some(ShardPhase::Published { .. }) => behind("which the ledger remembers under another number"),
        Some(ShardPhase::Opened) => behind("which the ledger holds for unfinished"),
        Some(ShardPhase::Abandoned) => behind("which the ledger gave up"),
        None => behind("which the ledger never heard of"),
    }
}

fn says(commit: &Commit, shard: &PublishedShard) -> bool {
    commit.txn.shard_id == shard.shard_id.as_str()
        && commit.files == shard.files
        && commit.removed == shard.replaces
}

/// A scoring of stored trajectories commits on its own; the ledger knows nothing of it.
fn is_scoring(commit: &Commit) -> bool {
    commit.op == Op::Append && commit.files.iter().all(|file| file.table == Table::Scores)
}

impl Gaps {
    /// Whether the manifest lacks nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Origin {
    /// The commit of a shard that the ledger remembers.
    pub fn commit(&self, shard: PublishedShard) -> Commit {
        let PublishedShard { shard_id, manifest_version, files, replaces } = shard;
        let op = if replaces.is_empty() { Op::Append } else { Op::Replace };
        let (run_id, epoch, created_at_micros) = (self.run_id.clone(), self.epoch, self.now_micros);
        let draft = Draft { op, files, removed: replaces, run_id, epoch, shard_id, created_at_micros };
        draft.numbered(manifest_version)
    }

    /// The commit of a scoring whose file is there.
    pub fn scoring(&self, version: u64, file: WrittenFile, shard_id: Id<Shard>) -> Commit {
        Draft::append(vec![file], self.run_id.clone(), 0, shard_id, self.now_micros).numbered(version)
    }
}
