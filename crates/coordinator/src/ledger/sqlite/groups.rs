//! The rows of groups.

use furrow_rollout::{Group, Id, Split};
use rusqlite::{Connection, Transaction, params};

use super::evaluations::last_evaluation;
use super::failure::MutationFailure;
use super::rows::{collect, expect_one, first_text, id, maybe_id, parse_column, unsigned};
use super::tallies;
use crate::ledger::{EvaluationProblem, GroupRow, LedgerRefusal, RunRow, TaskDraw, expect_next, may_draw};

pub(super) fn draw_group(
    transaction: &Transaction<'_>,
    run: &RunRow,
    draw: &TaskDraw,
    draws: u64,
) -> Result<(), MutationFailure> {
    expect_next("group", run.next_group, draw.index)?;
    if draws < run.draws {
        return Err(LedgerRefusal::DrawsWentBack { drawn: run.draws, got: draws }.into());
    }
    if let Some(problem) = draw.problem {
        may_draw(last_evaluation(transaction)?.as_ref(), problem)?;
        let sql = "UPDATE evaluations SET drawn = drawn + 1 WHERE version = ?1 AND state = 'open'";
        let changed = transaction.prepare_cached(sql)?.execute([problem.version])?;
        expect_one(changed, LedgerRefusal::NoEvaluation { version: problem.version })?;
    }
    let counted = "UPDATE run SET next_group = next_group + 1, draws = ?1";
    transaction.prepare_cached(counted)?.execute([draws.cast_signed()])?;
    let sql = "INSERT INTO groups (group_id, group_index, suite, task_id, split, seed, group_size, task_json, drawn_at_micros, chance,
                   eval_version, eval_problem)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    transaction.prepare_cached(sql)?.execute(params![
        draw.group_id.as_str(),
        draw.index.cast_signed(),
        draw.suite,
        draw.task_id,
        draw.split.as_str(),
        draw.seed.cast_signed(),
        draw.group_size,
        draw.task_json,
        draw.at_micros,
        draw.chance,
        draw.problem.map(|problem| problem.version),
        draw.problem.map(|problem| problem.index.cast_signed()),
    ])?;
    Ok(())
}

pub(super) fn close_group(
    transaction: &Transaction<'_>,
    id: &Id<Group>,
    at_micros: i64,
) -> Result<(), MutationFailure> {
    let sql = "SELECT trajectory_id FROM trajectories WHERE group_id = ?1 AND state IN ('assigned', 'finished') LIMIT 1";
    if let Some(trajectory) = first_text(transaction, sql, params![id.as_str()])? {
        return Err(LedgerRefusal::AttemptOpen { trajectory }.into());
    }
    let sql = "UPDATE groups SET closed_at_micros = ?2 WHERE group_id = ?1 AND closed_at_micros IS NULL";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), at_micros])?;
    expect_one(changed, LedgerRefusal::GroupNotOpen)?;
    let sql = "SELECT group_id FROM groups WHERE group_id = ?1 AND eval_version IS NULL";
    match first_text(transaction, sql, params![id.as_str()])? {
        Some(_) => tallies::count(transaction, tallies::GROUPS_CLOSED),
        None => Ok(()),
    }
}

/// A query for these columns of the groups that are not committed. It reads no others: each half
/// has an index.
pub(super) fn uncommitted(columns: &str) -> String {
    format!(
        "SELECT {columns} FROM groups WHERE shard_id IS NULL
         UNION ALL SELECT {columns} FROM groups
         WHERE shard_id IN (SELECT shard_id FROM shards WHERE state IN ('opened', 'written'))"
    )
}

pub(super) fn load_groups(connection: &Connection) -> Result<Vec<GroupRow>, MutationFailure> {
    let columns =
        "group_id, group_index, suite, task_id, split, seed, group_size, task_json, drawn_at_micros,
                   closed_at_micros, shard_id, chance, eval_version, eval_problem";
    let sql = format!("{} ORDER BY group_index", uncommitted(columns));
    collect(connection, &sql, |row| {
        let problem = match row.get::<_, Option<i32>>(12)? {
            Some(version) => Some(EvaluationProblem { version, index: unsigned(row, 13)? }),
            None => None,
        };
        Ok(GroupRow {
            draw: TaskDraw {
                group_id: id(row, 0)?,
                index: unsigned(row, 1)?,
                suite: row.get(2)?,
                task_id: row.get(3)?,
                split: parse_column(row, 4, Split::parse)?,
                seed: unsigned(row, 5)?,
                group_size: row.get(6)?,
                task_json: row.get(7)?,
                chance: row.get(11)?,
                problem,
                at_micros: row.get(8)?,
            },
            closed_at_micros: row.get(9)?,
            shard_id: maybe_id(row, 10)?,
        })
    })
}
