//! The totals of a run, summed over its rows.

use furrow_rollout::EndKind;
use rusqlite::{Connection, Row};

use super::failure::MutationFailure;
use super::rows::{collect, parse_column, unsigned};
use crate::ledger::{RunTotals, TaskTally};

pub(super) fn load_totals(connection: &Connection) -> Result<RunTotals, MutationFailure> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let failed = "SELECT ended, count(*) FROM trajectories WHERE state = 'failed' GROUP BY ended";
    let tasks = "SELECT suite, task_id, count(*), total(success), total(reward), count(success) FROM trajectories JOIN groups USING (group_id)
                 WHERE state = 'scored' AND eval_version IS NULL GROUP BY suite, task_id";
    let evaluated = "SELECT '', '', count(*), total(success), total(reward), count(success) FROM trajectories JOIN groups USING (group_id)
                     WHERE state = 'scored' AND eval_version IS NOT NULL";
    Ok(RunTotals {
        scored: number("SELECT count(*) FROM trajectories WHERE state = 'scored'")?.cast_unsigned(),
        failed: collect(connection, failed, |row| {
            Ok((parse_column(row, 0, EndKind::parse)?, unsigned(row, 1)?))
        })?
        .into_iter()
        .collect(),
        groups_closed: number(
            "SELECT count(*) FROM groups WHERE closed_at_micros IS NOT NULL AND eval_version IS NULL",
        )?
        .cast_unsigned(),
        shards_committed: number("SELECT count(*) FROM shards WHERE state = 'published'")?.cast_unsigned(),
        tasks: collect(connection, tasks, tally)?.into_iter().collect(),
        evaluated: collect(connection, evaluated, tally)?.pop().unwrap_or_default().1,
    })
}

fn tally(row: &Row<'_>) -> Result<((String, String), TaskTally), MutationFailure> {
    let succeeded: f64 = row.get(3)?;
    let tally = TaskTally {
        scored: unsigned(row, 2)?,
        success_known: unsigned(row, 5)?,
        succeeded: succeeded as u64,
        reward_sum: row.get(4)?,
    };
    Ok(((row.get(0)?, row.get(1)?), tally))
}
