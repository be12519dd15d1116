//! The row of the run: its epoch, and the next number of everything that is numbered.

use rusqlite::{Connection, Transaction, params};

use super::failure::MutationFailure;
use super::rows::{id, unsigned};
use crate::ledger::{RunOpening, RunRow};

pub(super) fn open_run(transaction: &Transaction<'_>, opening: &RunOpening) -> Result<(), MutationFailure> {
    if let Some(run) = load_run(transaction)? {
        run.check_same(opening).map_err(MutationFailure::Other)?;
        transaction
            .execute("UPDATE run SET epoch = epoch + 1, job_sha256 = ?1", params![opening.job_sha256])?;
        return Ok(());
    }
    let first = RunRow::first(opening);
    transaction.execute(
        "INSERT INTO run VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            first.run_id.as_str(),
            first.job_sha256,
            first.epoch.cast_signed(),
            first.next_token.cast_signed(),
            first.next_group.cast_signed(),
            first.next_shard.cast_signed(),
            first.draws.cast_signed(),
            first.opened_at_micros,
        ],
    )?;
    Ok(())
}

pub(super) fn load_run(connection: &Connection) -> Result<Option<RunRow>, MutationFailure> {
    let sql = "SELECT run_id, job_sha256, epoch, next_token, next_group, next_shard, draws, opened_at_micros FROM run";
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query([])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(RunRow {
        run_id: id(row, 0)?,
        job_sha256: row.get(1)?,
        epoch: unsigned(row, 2)?,
        next_token: unsigned(row, 3)?,
        next_group: unsigned(row, 4)?,
        next_shard: unsigned(row, 5)?,
        draws: unsigned(row, 6)?,
        opened_at_micros: row.get(7)?,
    }))
}
