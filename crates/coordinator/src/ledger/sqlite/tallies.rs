//! The sums over a run, as rows: they change with what they count, in the same transaction.

use furrow_rollout::{Id, Trajectory};
use rusqlite::{Connection, Transaction, params};

use super::failure::MutationFailure;

/// Closed groups of the job's own.
pub(super) const GROUPS_CLOSED: &str = "groups_closed";
/// Shards that the manifest names.
pub(super) const SHARDS_COMMITTED: &str = "shards_committed";
/// Begins the name of a count of failed trajectories; the end follows.
pub(super) const FAILED: &str = "failed/";

/// Counts a trajectory that was scored just now.
pub(super) fn add_scored(transaction: &Transaction<'_>, id: &Id<Trajectory>) -> Result<(), MutationFailure> {
    let add = "scored = scored + 1, success_known = success_known + excluded.success_known,
               succeeded = succeeded + excluded.succeeded, reward_sum = reward_sum + excluded.reward_sum";
    let scored = "1, success IS NOT NULL, ifnull(success, 0), reward
                  FROM trajectories JOIN groups USING (group_id) WHERE trajectory_id = ?1";
    let of_tasks = format!(
        "INSERT INTO task_tallies SELECT suite, task_id, {scored} AND eval_version IS NULL
         ON CONFLICT (suite, task_id) DO UPDATE SET {add}"
    );
    let of_evaluations = format!(
        "INSERT INTO evaluation_tallies SELECT eval_version, {scored} AND eval_version IS NOT NULL
         ON CONFLICT (version) DO UPDATE SET {add}"
    );
    for sql in [of_tasks, of_evaluations] {
        transaction.prepare_cached(&sql)?.execute([id.as_str()])?;
    }
    Ok(())
}

/// Takes a trajectory back that is about to lose its score; any other one changes nothing.
pub(super) fn subtract_scored(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
) -> Result<(), MutationFailure> {
    let subtract = "SET scored = scored - 1, success_known = success_known - (t.success IS NOT NULL),
                    succeeded = succeeded - ifnull(t.success, 0), reward_sum = reward_sum - t.reward
                    FROM (SELECT success, reward, suite, task_id, eval_version
                          FROM trajectories JOIN groups USING (group_id)
                          WHERE trajectory_id = ?1 AND state = 'scored') AS t";
    let of_tasks = format!(
        "UPDATE task_tallies {subtract}
         WHERE t.eval_version IS NULL AND task_tallies.suite = t.suite AND task_tallies.task_id = t.task_id"
    );
    let of_evaluations = format!("UPDATE evaluation_tallies {subtract} WHERE version = t.eval_version");
    for sql in [of_tasks, of_evaluations] {
        transaction.prepare_cached(&sql)?.execute([id.as_str()])?;
    }
    // A sum without terms is 0, which the difference of rounded sums may miss.
    transaction.prepare_cached("DELETE FROM task_tallies WHERE scored = 0")?.execute([])?;
    transaction.prepare_cached("DELETE FROM evaluation_tallies WHERE scored = 0")?.execute([])?;
    Ok(())
}

/// Counts one more of what `name` stands for.
pub(super) fn count(transaction: &Transaction<'_>, name: &str) -> Result<(), MutationFailure> {
    let sql = "INSERT INTO counts VALUES (?1, 1) ON CONFLICT (name) DO UPDATE SET count = count + 1";
    transaction.prepare_cached(sql)?.execute(params![name])?;
    Ok(())
}

/// Adds up all rows of a ledger whose tallies are empty.
pub(super) fn fill(connection: &Connection) -> Result<(), MutationFailure> {
    let sums = "count(*), count(success), ifnull(sum(success), 0), total(reward)
                FROM trajectories JOIN groups USING (group_id) WHERE state = 'scored'";
    connection.execute_batch(&format!(
        "INSERT INTO task_tallies SELECT suite, task_id, {sums} AND eval_version IS NULL GROUP BY suite, task_id;
         INSERT INTO evaluation_tallies SELECT eval_version, {sums} AND eval_version IS NOT NULL
             GROUP BY eval_version;
         INSERT INTO counts SELECT '{FAILED}' || ended, count(*) FROM trajectories WHERE state = 'failed'
             GROUP BY ended;
         INSERT INTO counts SELECT '{GROUPS_CLOSED}', count(*) FROM groups
             WHERE closed_at_micros IS NOT NULL AND eval_version IS NULL;
         INSERT INTO counts SELECT '{SHARDS_COMMITTED}', count(*) FROM shards WHERE state = 'published';"
    ))?;
    Ok(())
}
