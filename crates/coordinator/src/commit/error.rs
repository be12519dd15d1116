//! Why nothing was committed.

use std::path::PathBuf;

use furrow_records::RecordsError;
use furrow_rollout::{Id, Run, Trajectory};
use furrow_wire::WireError;

use super::reconcile::LedgerDisagreement;
use crate::durable::DurableError;
use crate::ledger::LedgerError;
use crate::lost_found::LostFoundError;
use crate::spool::{EntryKey, SpoolError};

/// Why nothing was committed. After anything but `DiskFull` and `NoDescriptor` the committer
/// must not continue: restart with `--resume`.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The disk was full; the shard was undone and its rows wait for another.
    #[error("no space left for a shard; its trajectories stay in the spool; free disk space")]
    DiskFull(#[source] RecordsError),
    /// No file descriptor was left; the shard was undone and its rows wait for another.
    #[error("no file descriptor left for a shard; raise the limit (`ulimit -n`)")]
    NoDescriptor(#[source] Box<CommitError>),
    #[error("cannot read the spool")]
    Spool(#[from] SpoolError),
    #[error("cannot record a shard")]
    Ledger(#[from] LedgerError),
    /// A file or the manifest failed.
    #[error("cannot write a shard")]
    Records(#[from] RecordsError),
    /// A file operation in the run directory failed.
    #[error("cannot clean up the run directory")]
    File(#[from] DurableError),
    /// An acknowledged entry is not a message of this version.
    #[error(
        "{trajectory}: this version of furrow cannot read {key} in the spool; finish the run with the \
         version that began it"
    )]
    Undecodable { trajectory: Id<Trajectory>, key: EntryKey, source: WireError },
    /// The record of a scored trajectory cannot be read back. The shard was undone; it can be
    /// written without this trajectory.
    #[error("{trajectory} was acknowledged, but {why}")]
    Unreadable {
        trajectory: Id<Trajectory>,
        /// Steps that can be read, from the first one on.
        steps: u32,
        why: String,
    },
    /// The spool holds a trajectory that the ledger does not know.
    #[error(
        "spool/ holds {trajectory}, which the ledger does not know ({count} such files): ledger.sqlite is \
         older than spool/, or its -wal file was left behind. Restore the ledger that belongs here, with its \
         -wal file; move files of another run away"
    )]
    UnknownTrajectory {
        trajectory: Id<Trajectory>,
        /// How many there are.
        count: usize,
    },
    /// An acknowledged trajectory has no file in the spool.
    #[error(
        "{trajectory} was acknowledged ({what}), but spool/ has no file of it ({count} such trajectories): \
         restore spool/ from when ledger.sqlite was copied, or the ledger that belongs to this spool/. If \
         the file is lost for good, create an empty file {trajectory}.spool there to give up this one \
         trajectory"
    )]
    Absent {
        trajectory: Id<Trajectory>,
        /// What the spool must hold of it.
        what: String,
        /// How many trajectories have no file.
        count: usize,
    },
    /// Ledger and manifest contradict each other.
    #[error(transparent)]
    Disagreement(#[from] LedgerDisagreement),
    /// A commit is missing that neither the ledger nor a file of scores can restore.
    #[error(
        "manifest commit {version} is missing or damaged, and neither the ledger nor data/scores/ holds what \
         it named: restore data/manifest/ from the copy that data/ came from"
    )]
    CommitLost { version: u64 },
    /// The manifest lacks commits, and this operation cannot restore them.
    #[error(
        "{count} commits of the manifest are missing or damaged: resume the run once (`furrow run … \
         --resume`), which restores them"
    )]
    ManifestBehind { count: usize },
    /// The ledger records files of the data set that are neither on disk nor in the manifest.
    #[error(
        "{count} files that ledger.sqlite records as committed are neither in the manifest nor whole on \
         disk, {} first: data/ is older than the ledger. Restore data/ from the copy that ledger.sqlite came \
         from", first.display()
    )]
    FilesLost { count: usize, first: PathBuf },
    /// A file of a shard that was written and not yet committed is damaged, and its rows exist
    /// nowhere else.
    #[error(
        "{}: {damage}. It was written and not yet committed, and its rows exist nowhere else: restore the \
         file, or spool/, from the copy that ledger.sqlite came from. Without a copy, move the file away and \
         start again: the shard is abandoned, and what is left of it is kept in lost+found/", path.display()
    )]
    OnlyCopyDamaged {
        path: PathBuf,
        /// What is wrong with it.
        damage: String,
    },
    /// A file is damaged, and a crash kept its commit from the ledger.
    #[error(
        "{}: {damage}. Restore the file from a copy; without one, move it and {} out of the run directory \
         and start again: its rows are in the spool, or in the files that were merged, and go into another \
         shard", path.display(), commit.display()
    )]
    NamedAndDamaged {
        path: PathBuf,
        /// What is wrong with it.
        damage: String,
        /// The commit that names it.
        commit: PathBuf,
    },
    /// A file could not be moved to `lost+found/`.
    #[error(transparent)]
    LostFound(#[from] LostFoundError),
    /// The name of the shard would not be an id.
    #[error("shard {index} of run {run_id} cannot be named")]
    Unnamable { run_id: Id<Run>, index: u64 },
    /// The committer's thread or its runtime could not be started, or the thread panicked.
    #[error("the shard committer stopped: {why}")]
    Stopped { why: String },
}

impl CommitError {
    /// Whether a file could not be opened for want of a descriptor.
    pub fn is_descriptor_shortage(&self) -> bool {
        match self {
            CommitError::NoDescriptor(_) => true,
            CommitError::Spool(error) => error.is_descriptor_shortage(),
            CommitError::Records(error) => error.is_descriptor_shortage(),
            CommitError::File(error) => error.is_descriptor_shortage(),
            _ => false,
        }
    }
}
