//! Why a backup was not taken or not restored.

use std::path::PathBuf;

use furrow_records::RecordsError;

use crate::commit::CommitError;
use crate::durable::DurableError;
use crate::ledger::LedgerError;
use crate::lock::LockError;

/// Why a backup was not taken or not restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file operation failed. After a full disk, repeat the command: it goes on.
    #[error(transparent)]
    File(#[from] DurableError),
    #[error("cannot copy the ledger")]
    Ledger(#[from] LedgerError),
    #[error("cannot read the manifest")]
    Records(#[from] RecordsError),
    #[error("cannot compare the copy with itself")]
    Commit(#[from] CommitError),
    #[error("cannot take the folder")]
    Lock(#[from] LockError),
    /// The folder is no run directory.
    #[error("{path} is no run directory, which holds ledger.sqlite")]
    NoRun { path: PathBuf },
    /// What the backup would be written to holds something else.
    #[error("{path} {what}; name a folder that does not exist yet")]
    Occupied { path: PathBuf, what: String },
    /// The run committed during every try.
    #[error(
        "the run committed faster than it could be copied, {rounds} times: stop it for the backup, or raise \
         records.max_delay_millis"
    )]
    TooFast { rounds: u32 },
    /// The manifest names what the ledger of the same run does not know.
    #[error(
        "manifest commit {version} names shard {shard_id}, which ledger.sqlite does not know: the ledger is \
         older than data/, and a backup of both would be refused at its start. Restore the ledger that \
         belongs to this data set"
    )]
    LedgerBehind { version: u64, shard_id: String },
    /// The list of a backup is missing or malformed.
    #[error("{path}: {why}")]
    List { path: PathBuf, why: String },
    /// A file of a backup is not what its list says, or not in it.
    #[error("{path}: {why}; nothing was restored")]
    Damaged { path: PathBuf, why: String },
}
