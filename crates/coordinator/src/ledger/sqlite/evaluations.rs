//! The rows of evaluations of policy versions.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::failure::MutationFailure;
use super::rows::{collect, expect_one, unsigned};
use super::schema::has_tallies;
use crate::ledger::{EvaluationRow, EvaluationStanding, LedgerRefusal, may_begin, may_end};

pub(super) fn begin_evaluation(
    transaction: &Transaction<'_>,
    version: i32,
    problems: u64,
    at_micros: i64,
) -> Result<(), MutationFailure> {
    may_begin(last_evaluation(transaction)?.as_ref(), version)?;
    let sql = "INSERT INTO evaluations (version, problems, drawn, state, began_at_micros) VALUES (?1, ?2, 0, 'open', ?3)";
    transaction.prepare_cached(sql)?.execute(params![version, problems.cast_signed(), at_micros])?;
    Ok(())
}

pub(super) fn end_evaluation(
    transaction: &Transaction<'_>,
    version: i32,
    cut: Option<&str>,
) -> Result<(), MutationFailure> {
    may_end(last_evaluation(transaction)?.as_ref(), version, cut.is_some())?;
    let sql = "SELECT group_id FROM groups WHERE eval_version = ?1 AND closed_at_micros IS NULL LIMIT 1";
    let open: Option<String> =
        transaction.prepare_cached(sql)?.query_row([version], |row| row.get(0)).optional()?;
    if let Some(group) = open {
        return Err(LedgerRefusal::EvaluatedGroupOpen { group }.into());
    }
    let sql = "UPDATE evaluations SET state = iif(?2 IS NULL, 'complete', 'cut'), reason = ?2
               WHERE version = ?1 AND state = 'open'";
    let changed = transaction.prepare_cached(sql)?.execute(params![version, cut])?;
    expect_one(changed, LedgerRefusal::NoEvaluation { version })
}

/// All evaluations, with the sums over their trajectories.
pub(super) fn load_evaluations(connection: &Connection) -> Result<Vec<EvaluationRow>, MutationFailure> {
    if has_tallies(connection)? {
        let sql = "SELECT version, problems, drawn, state, reason, began_at_micros, ifnull(scored, 0), total(succeeded)
                   FROM evaluations LEFT JOIN evaluation_tallies USING (version) GROUP BY version ORDER BY version";
        return collect(connection, sql, evaluation);
    }
    let sql = "SELECT version, problems, drawn, e.state, e.reason, began_at_micros, count(t.reward), total(t.success)
               FROM evaluations e LEFT JOIN groups g ON g.eval_version = e.version
                   LEFT JOIN trajectories t ON t.group_id = g.group_id AND t.state = 'scored'
               GROUP BY version ORDER BY version";
    collect(connection, sql, evaluation)
}

/// The newest one, without the sums: what decides whether a mutation follows.
pub(super) fn last_evaluation(connection: &Connection) -> Result<Option<EvaluationRow>, MutationFailure> {
    let sql = "SELECT version, problems, drawn, state, reason, began_at_micros, 0, 0.0
               FROM evaluations ORDER BY version DESC LIMIT 1";
    Ok(collect(connection, sql, evaluation)?.pop())
}

fn evaluation(row: &Row<'_>) -> Result<EvaluationRow, MutationFailure> {
    let succeeded: f64 = row.get(7)?;
    let standing = match row.get::<_, String>(3)?.as_str() {
        "open" => EvaluationStanding::Open,
        "complete" => EvaluationStanding::Complete,
        _ => EvaluationStanding::Cut { reason: row.get(4)? },
    };
    Ok(EvaluationRow {
        version: row.get(0)?,
        problems: unsigned(row, 1)?,
        drawn: unsigned(row, 2)?,
        scored: unsigned(row, 6)?,
        succeeded: succeeded as u64,
        standing,
        at_micros: row.get(5)?,
    })
}
