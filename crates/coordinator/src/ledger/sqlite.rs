//! The ledger in one SQLite file: write-ahead log, full synchronisation, constraints that enforce
//! the farm's invariants.
//!
//! `open.rs` opens the file, `page_check.rs` checks it, `schema.rs` creates and upgrades its
//! tables. `apply.rs` gives each mutation to the file of the table that it changes: `run.rs`,
//! `groups.rs`, `trajectories.rs`, `shards.rs`, `weights.rs` and `evaluations.rs` have all
//! statements on their tables, those that change a row and those that restore it. They keep the
//! sums of `tallies.rs`, which `totals.rs` reads. All of them use `rows.rs`, `stored.rs` for
//! columns of JSON, and `failure.rs`.

mod apply;
mod evaluations;
mod failure;
mod groups;
mod open;
mod page_check;
mod rows;
mod run;
mod schema;
mod shards;
mod stored;
mod tallies;
mod totals;
mod trajectories;
mod weights;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use furrow_rollout::{Id, Shard, Trajectory};
use rusqlite::{Connection, TransactionBehavior};

use super::{
    CommittedShard, Ledger, LedgerError, LedgerRefusal, LedgerSnapshot, Mutation, ShardPhase, TrajectoryFate,
};
use failure::{MutationFailure, is_constraint, storage};
use page_check::PageCheck;

/// A ledger in one file.
#[derive(Debug)]
pub struct SqliteLedger {
    path: PathBuf,
    /// Of a large file. Ends before the connection, which empties the write-ahead log as it closes.
    page_check: Option<PageCheck>,
    connection: Connection,
    stopped: bool,
}

impl SqliteLedger {
    /// Opens the ledger, creating it where needed, and checks all of it. The check of a large file
    /// goes on beside the run: a commit fails once it finds damage.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, LedgerError> {
        let path = path.into();
        let (connection, page_check) = open::open(&path)?;
        Ok(Self { path, connection, page_check, stopped: false })
    }

    /// Opens an existing ledger of any readable version for reading. Commits fail.
    pub fn open_to_read(path: impl Into<PathBuf>) -> Result<Self, LedgerError> {
        let path = path.into();
        let connection = open::open_to_read(&path)?;
        Ok(Self { path, connection, page_check: None, stopped: false })
    }

    /// Checks every page of the file.
    pub(crate) fn check_pages(&mut self) -> Result<(), LedgerError> {
        let path = self.path.clone();
        self.read(|connection| page_check::check_pages(connection, &path))
    }

    /// Writes a copy of the ledger as of one moment into a new file, also while another process
    /// commits.
    pub(crate) fn copy_to(&mut self, to: &Path) -> Result<(), LedgerError> {
        let name = to.to_string_lossy().into_owned();
        self.read(|connection| Ok(connection.execute("VACUUM INTO ?1", [name]).map(drop)?))
    }

    /// Fails where the check of the pages has ended and found damage.
    fn fetch_verdict(&mut self) -> Result<(), LedgerError> {
        let Some(verdict) = self.page_check.as_ref().and_then(PageCheck::poll) else { return Ok(()) };
        self.page_check = None;
        tracing::info!(path = %self.path.display(), is_sound = verdict.is_ok(), "checked the ledger's pages");
        verdict
    }

    fn transact(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        let path = self.path.clone();
        let failed = |error| storage("commit to", &path, error);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        for mutation in mutations {
            apply::apply(&transaction, mutation).map_err(|failure| match failure {
                MutationFailure::Refused(why) => mutation.refused(why),
                MutationFailure::Other(error) => error,
                MutationFailure::Sqlite(error) if is_constraint(&error) => {
                    mutation.refused(LedgerRefusal::Constraint(error.to_string()))
                }
                MutationFailure::Sqlite(error) => failed(error),
            })?;
        }
        transaction.commit().map_err(failed)
    }

    fn read<T>(
        &mut self,
        query: impl FnOnce(&Connection) -> Result<T, MutationFailure>,
    ) -> Result<T, LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped);
        }
        query(&self.connection).map_err(|failure| failure.into_ledger_error("read", &self.path))
    }
}

impl Ledger for SqliteLedger {
    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped);
        }
        let result = self.fetch_verdict().and_then(|()| self.transact(mutations));
        // A batch whose commit frame did not fit was rolled back. After any other fault SQLite may
        // or may not have made it durable, and a retry could answer from a cache that never reached
        // the disk.
        self.stopped = matches!(result, Err(LedgerError::Storage { .. } | LedgerError::Foreign { .. }));
        result
    }

    fn load(&mut self) -> Result<LedgerSnapshot, LedgerError> {
        self.read(|connection| {
            Ok(LedgerSnapshot {
                run: run::load_run(connection)?,
                groups: groups::load_groups(connection)?,
                trajectories: trajectories::load_trajectories(connection)?,
                shards: shards::load_shards(connection)?,
                versions: weights::load_versions(connection)?,
                evaluations: evaluations::load_evaluations(connection)?,
                totals: totals::load_totals(connection)?,
            })
        })
    }

    fn fate(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<TrajectoryFate>, LedgerError> {
        self.read(|connection| trajectories::fate(connection, trajectory))
    }

    fn shard_of(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<Id<Shard>>, LedgerError> {
        self.read(|connection| trajectories::shard_of(connection, trajectory))
    }

    fn committed_shards(&mut self, from: u64) -> Result<Vec<CommittedShard>, LedgerError> {
        self.read(|connection| shards::committed_shards(connection, from))
    }

    fn newest_commit(&mut self) -> Result<u64, LedgerError> {
        self.read(shards::newest_commit)
    }

    fn shard_phase(&mut self, shard: &Id<Shard>) -> Result<Option<ShardPhase>, LedgerError> {
        self.read(|connection| shards::shard_phase(connection, shard))
    }
}
