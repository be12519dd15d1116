//! The totals of a run: from its tallies, or summed over its rows where the ledger has none.

use furrow_rollout::EndKind;
use rusqlite::{Connection, Row};

use super::failure::{MutationFailure, unreadable};
use super::rows::{collect, parse_column, unsigned};
use super::schema::has_tallies;
use super::tallies::{FAILED, GROUPS_CLOSED, SHARDS_COMMITTED};
use crate::ledger::{RunTotals, TaskTally};

pub(super) fn load_totals(connection: &Connection) -> Result<RunTotals, MutationFailure> {
    if !has_tallies(connection)? {
        return recount(connection);
    }
    let tasks = "SELECT suite, task_id, scored, succeeded, reward_sum, success_known FROM task_tallies";
    let evaluated = "SELECT '', '', ifnull(sum(scored), 0), total(succeeded), total(reward_sum), ifnull(sum(success_known), 0)
                     FROM evaluation_tallies";
    let mut totals = RunTotals {
        tasks: collect(connection, tasks, tally)?.into_iter().collect(),
        evaluated: collect(connection, evaluated, tally)?.pop().unwrap_or_default().1,
        ..RunTotals::default()
    };
    totals.scored = totals.tasks.values().chain([&totals.evaluated]).map(|tally| tally.scored).sum();
    let counts = "SELECT name, count FROM counts";
    for (name, count) in collect(connection, counts, |row| Ok((row.get::<_, String>(0)?, unsigned(row, 1)?)))?
    {
        match name.as_str() {
            GROUPS_CLOSED => totals.groups_closed = count,
            SHARDS_COMMITTED => totals.shards_committed = count,
            name => {
                let end = name.strip_prefix(FAILED).and_then(EndKind::parse);
                let end = end.ok_or_else(|| unreadable(format!("{name:?} is no count of this furrow")))?;
                totals.failed.insert(end, count);
            }
        }
    }
    Ok(totals)
}

/// Adds up all rows.
pub(super) fn recount(connection: &Connection) -> Result<RunTotals, MutationFailure> {
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
