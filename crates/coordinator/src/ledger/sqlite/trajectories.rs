//! The rows of trajectories, from the lease to the score.

use furrow_rollout::{EndKind, Id, PolicyKind, Score, ScoreComponent, Shard, Trajectory};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params};

use super::failure::MutationFailure;
use super::rows::{collect, expect_one, id, json, maybe_id, parse_column, parsed, unsigned};
use super::stored::{StoredHashes, StoredScore};
use super::{groups, schema, tallies};
use crate::lease_secret::SecretDigest;
use crate::ledger::{
    LedgerRefusal, PolicyFacts, RunRow, TimedScore, TrajectoryEnd, TrajectoryFate, TrajectoryRow,
    TrajectoryStanding, TrajectoryStart, expect_next,
};

pub(super) fn assign(
    transaction: &Transaction<'_>,
    run: &RunRow,
    start: &TrajectoryStart,
) -> Result<(), MutationFailure> {
    expect_next("token", run.next_token, start.token)?;
    check_slot(transaction, start)?;
    transaction.prepare_cached("UPDATE run SET next_token = next_token + 1")?.execute([])?;
    let sql = "INSERT INTO trajectories (trajectory_id, group_id, sample_index, attempt, token, env_worker, policy_worker,
                   policy_address, policy_kind, policy_version, hashes_json, started_at_micros, queue_micros,
                   secret_sha256, state)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, 'assigned')";
    transaction.prepare_cached(sql)?.execute(params![
        start.trajectory_id.as_str(),
        start.group_id.as_str(),
        start.sample_index,
        start.attempt,
        start.token.cast_signed(),
        start.env_worker.as_str(),
        start.policy.worker.as_str(),
        start.policy.address,
        start.policy.kind.as_str(),
        start.policy.version,
        json(&StoredHashes::from(&start.policy.hashes)),
        start.at_micros,
        start.queue_micros.cast_signed(),
        start.secret.as_ref().map(SecretDigest::bytes),
    ])?;
    Ok(())
}

/// What the unique indexes would refuse as well, with a readable reason.
fn check_slot(transaction: &Transaction<'_>, start: &TrajectoryStart) -> Result<(), MutationFailure> {
    let sql = "SELECT group_size, closed_at_micros IS NOT NULL FROM groups WHERE group_id = ?1";
    let group: Option<(u32, bool)> = transaction
        .prepare_cached(sql)?
        .query_row([start.group_id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let unknown = || LedgerRefusal::UnknownGroup { group: start.group_id.to_string() };
    let (group_size, closed) = group.ok_or_else(unknown)?;
    if closed {
        return Err(LedgerRefusal::GroupClosed.into());
    }
    if start.sample_index >= group_size {
        return Err(LedgerRefusal::NoSlot { slot: start.sample_index }.into());
    }
    let sql = "SELECT count(*), max(CASE WHEN state <> 'failed' THEN trajectory_id END)
               FROM trajectories WHERE group_id = ?1 AND sample_index = ?2";
    let (before, holder): (u32, Option<String>) = transaction
        .prepare_cached(sql)?
        .query_row(params![start.group_id.as_str(), start.sample_index], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    if before != start.attempt {
        let next = u64::from(before);
        return Err(LedgerRefusal::AttemptOutOfOrder { next, got: start.attempt }.into());
    }
    holder.map_or(Ok(()), |trajectory| Err(LedgerRefusal::SlotTaken { trajectory }.into()))
}

pub(super) fn finish(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
    token: u64,
    ended: &TrajectoryEnd,
    evidence_sha256: &[u8; 32],
) -> Result<(), MutationFailure> {
    let sql = "UPDATE trajectories SET state = 'finished', evidence_sha256 = :evidence, ended = :ended, reason = :reason,
                   steps = :steps, version_min = :version_min, version_max = :version_max, staleness = :staleness,
                   ended_at_micros = :at
               WHERE trajectory_id = :id AND token = :token AND state = 'assigned'";
    let (version_min, version_max) = ended.policy_versions.unzip();
    let changed = transaction.prepare_cached(sql)?.execute(named_params! {
        ":id": id.as_str(),
        ":token": token.cast_signed(),
        ":evidence": evidence_sha256,
        ":ended": ended.end.as_str(),
        ":reason": ended.reason,
        ":steps": ended.steps,
        ":version_min": version_min,
        ":version_max": version_max,
        ":staleness": ended.staleness,
        ":at": ended.at_micros,
    })?;
    expect_one(changed, LedgerRefusal::NotLeased)
}

pub(super) fn fail(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
    ended: &TrajectoryEnd,
) -> Result<(), MutationFailure> {
    let sql = "UPDATE trajectories SET state = 'failed', ended = :ended, reason = :reason, steps = :steps,
                   version_min = :version_min, version_max = :version_max, staleness = :staleness, ended_at_micros = :at
               WHERE trajectory_id = :id AND state IN ('assigned', 'finished')";
    let changed = end_with(transaction, sql, id, ended)?;
    expect_one(changed, LedgerRefusal::EndedAlready)?;
    count_failed(transaction, ended)
}

fn count_failed(transaction: &Transaction<'_>, ended: &TrajectoryEnd) -> Result<(), MutationFailure> {
    tallies::count(transaction, &format!("{}{}", tallies::FAILED, ended.end.as_str()))
}

/// Runs an update that ends a trajectory, and returns how many rows it changed.
fn end_with(
    transaction: &Transaction<'_>,
    sql: &str,
    id: &Id<Trajectory>,
    ended: &TrajectoryEnd,
) -> Result<usize, MutationFailure> {
    let (version_min, version_max) = ended.policy_versions.unzip();
    Ok(transaction.prepare_cached(sql)?.execute(named_params! {
        ":id": id.as_str(),
        ":ended": ended.end.as_str(),
        ":reason": ended.reason,
        ":steps": ended.steps,
        ":version_min": version_min,
        ":version_max": version_max,
        ":staleness": ended.staleness,
        ":at": ended.at_micros,
    })?)
}

pub(super) fn lose_record(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
    ended: &TrajectoryEnd,
) -> Result<(), MutationFailure> {
    tallies::subtract_scored(transaction, id)?;
    let sql = "UPDATE trajectories SET state = 'failed', ended = :ended, reason = :reason, steps = :steps,
                   version_min = :version_min, version_max = :version_max, staleness = :staleness, ended_at_micros = :at,
                   reward = NULL, success = NULL, score_json = NULL, scorer_saw_sha256 = NULL, score_micros = NULL
               WHERE trajectory_id = :id AND state <> 'failed' AND shard_id IS NULL";
    let changed = end_with(transaction, sql, id, ended)?;
    expect_one(changed, LedgerRefusal::FailedOrInShard)?;
    count_failed(transaction, ended)
}

pub(super) fn score(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
    verdict: &TimedScore,
) -> Result<(), MutationFailure> {
    let sql = "UPDATE trajectories SET state = 'scored', reward = ?2, success = ?3, score_json = ?4, scorer_saw_sha256 = ?5,
                   score_micros = ?6
               WHERE trajectory_id = ?1 AND state = 'finished'";
    let changed = transaction.prepare_cached(sql)?.execute(params![
        id.as_str(),
        verdict.score.reward,
        verdict.score.success,
        json(&StoredScore::from(&verdict.score)),
        verdict.score.evidence_sha256,
        verdict.micros.cast_signed(),
    ])?;
    expect_one(changed, LedgerRefusal::NotAwaitingScore)?;
    tallies::add_scored(transaction, id)
}

/// How far a trajectory is, also one that is settled.
pub(super) fn fate(
    connection: &Connection,
    trajectory: &Id<Trajectory>,
) -> Result<Option<TrajectoryFate>, MutationFailure> {
    let sql = "SELECT CASE WHEN s.state = 'published' THEN 'published' ELSE t.state END
               FROM trajectories t LEFT JOIN shards s USING (shard_id) WHERE trajectory_id = ?1";
    let state: Option<String> =
        connection.query_row(sql, [trajectory.as_str()], |row| row.get(0)).optional()?;
    Ok(state.map(|state| match state.as_str() {
        "assigned" => TrajectoryFate::Open,
        "published" => TrajectoryFate::Committed,
        _ => TrajectoryFate::Ended,
    }))
}

/// The shard that holds a trajectory's rows.
pub(super) fn shard_of(
    connection: &Connection,
    trajectory: &Id<Trajectory>,
) -> Result<Option<Id<Shard>>, MutationFailure> {
    let sql = "SELECT shard_id FROM trajectories WHERE trajectory_id = ?1";
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query([trajectory.as_str()])?;
    Ok(rows.next()?.map(|row| maybe_id(row, 0)).transpose()?.flatten())
}

pub(super) fn load_trajectories(connection: &Connection) -> Result<Vec<TrajectoryRow>, MutationFailure> {
    // A ledger of an earlier release that is only read has no such column.
    let no_secrets = if schema::has_secrets(connection)? { "" } else { ", NULL AS secret_sha256" };
    let sql = format!(
        "SELECT t.*, s.state IS 'published' AS is_committed{no_secrets}
         FROM trajectories t LEFT JOIN shards s USING (shard_id) WHERE group_id IN ({}) ORDER BY token",
        groups::uncommitted("group_id")
    );
    collect(connection, &sql, |row| {
        Ok(TrajectoryRow {
            start: start(row)?,
            standing: standing(row)?,
            shard_id: maybe_id(row, "shard_id")?,
            committed: row.get("is_committed")?,
        })
    })
}

fn start(row: &Row<'_>) -> Result<TrajectoryStart, MutationFailure> {
    Ok(TrajectoryStart {
        trajectory_id: id(row, "trajectory_id")?,
        group_id: id(row, "group_id")?,
        sample_index: row.get("sample_index")?,
        attempt: row.get("attempt")?,
        token: unsigned(row, "token")?,
        env_worker: id(row, "env_worker")?,
        policy: PolicyFacts {
            worker: id(row, "policy_worker")?,
            address: row.get("policy_address")?,
            kind: parse_column(row, "policy_kind", PolicyKind::parse)?,
            version: row.get("policy_version")?,
            hashes: parsed::<StoredHashes>(row, "hashes_json")?.into(),
        },
        at_micros: row.get("started_at_micros")?,
        queue_micros: unsigned(row, "queue_micros")?,
        secret: row.get::<_, Option<[u8; 32]>>("secret_sha256")?.map(SecretDigest::stored),
    })
}

fn standing(row: &Row<'_>) -> Result<TrajectoryStanding, MutationFailure> {
    let state: String = row.get("state")?;
    Ok(match state.as_str() {
        "assigned" => TrajectoryStanding::Assigned,
        "finished" => {
            TrajectoryStanding::Finished { ended: ended(row)?, evidence_sha256: row.get("evidence_sha256")? }
        }
        "scored" => TrajectoryStanding::Scored { ended: ended(row)?, verdict: verdict(row)? },
        _ => TrajectoryStanding::Failed { ended: ended(row)? },
    })
}

fn ended(row: &Row<'_>) -> Result<TrajectoryEnd, MutationFailure> {
    let versions: (Option<i32>, Option<i32>) = (row.get("version_min")?, row.get("version_max")?);
    Ok(TrajectoryEnd {
        end: parse_column(row, "ended", EndKind::parse)?,
        reason: row.get("reason")?,
        steps: row.get("steps")?,
        policy_versions: versions.0.zip(versions.1),
        staleness: row.get("staleness")?,
        at_micros: row.get("ended_at_micros")?,
    })
}

fn verdict(row: &Row<'_>) -> Result<TimedScore, MutationFailure> {
    let stored: StoredScore = parsed(row, "score_json")?;
    let components =
        stored.components.into_iter().map(|(name, value)| ScoreComponent { name, value }).collect();
    let score = Score {
        reward: row.get("reward")?,
        success: row.get("success")?,
        components,
        scorer: stored.scorer,
        version: stored.version,
        rationale: stored.rationale,
        evidence_sha256: row.get("scorer_saw_sha256")?,
    };
    Ok(TimedScore { score, micros: unsigned(row, "score_micros")? })
}
