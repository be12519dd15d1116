//! Why a coordinator did not start or had to stop.

use std::io;
use std::path::PathBuf;

use furrow_rollout::{Id, Trajectory};
use tokio::task::JoinError;

use crate::commit::CommitError;
use crate::durable::DurableError;
use crate::ledger::LedgerError;
use crate::lock::LockError;
use crate::plan::UnknownTask;
use crate::spool::SpoolError;

/// Why a coordinator did not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The run directory cannot be created or used.
    #[error("cannot use the run directory")]
    RunDir(#[source] DurableError),
    /// Another process holds the run directory.
    #[error("cannot take the run directory")]
    Lock(#[source] LockError),
    /// The directory holds a run, and the job does not resume.
    #[error(
        "run directory {run_dir} already holds a run: resume it with --resume, start over with --clean, or \
         choose another output_dir"
    )]
    NotEmpty { run_dir: PathBuf },
    #[error("the ledger failed")]
    Ledger(#[source] LedgerError),
    #[error("the spool failed")]
    Spool(#[source] SpoolError),
    /// The shard committer failed.
    #[error("committing a shard failed")]
    Commit(#[source] CommitError),
    /// A resumed run refers to a task that the job no longer has.
    #[error("the job's tasks changed")]
    UnknownTask(#[source] UnknownTask),
    /// An acknowledged step in the spool is not readable.
    #[error("the spool holds a step of {trajectory} that this version of furrow cannot read")]
    Undecodable { trajectory: Id<Trajectory>, source: furrow_wire::WireError },
    #[error("cannot serve")]
    Serve(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// One of the coordinator's own tasks panicked.
    #[error("the coordinator's {part} panicked")]
    Panicked { part: &'static str, source: JoinError },
}
