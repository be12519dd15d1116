//! The rows of shards, and which trajectories and groups each holds.

use furrow_records::WrittenFile;
use furrow_rollout::{Group, Id, IdKind, Shard};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::failure::MutationFailure;
use super::rows::{collect, expect_one, first_text, id, json, parsed, unsigned};
use super::tallies;
use crate::ledger::{CommittedShard, LedgerRefusal, RunRow, ShardOpening, ShardPhase, ShardRow, expect_next};

pub(super) fn open_shard(
    transaction: &Transaction<'_>,
    run: &RunRow,
    opening: &ShardOpening,
) -> Result<(), MutationFailure> {
    expect_next("shard", run.next_shard, opening.index)?;
    let shard_id = opening.shard_id.as_str();
    transaction.prepare_cached("UPDATE run SET next_shard = next_shard + 1")?.execute([])?;
    let sql =
        "INSERT INTO shards (shard_id, shard_index, state, replaces_json) VALUES (?1, ?2, 'opened', ?3)";
    let replaces = json(&opening.replaces);
    transaction.prepare_cached(sql)?.execute(params![shard_id, opening.index.cast_signed(), replaces])?;
    for id in &opening.trajectories {
        let sql = "UPDATE trajectories SET shard_id = ?2
                   WHERE trajectory_id = ?1 AND shard_id IS NULL AND state IN ('scored', 'failed')";
        let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), shard_id])?;
        expect_one(changed, LedgerRefusal::TrajectoryNotReady { trajectory: id.to_string() })?;
    }
    for id in &opening.groups {
        put_group(transaction, id, shard_id)?;
    }
    Ok(())
}

fn put_group(transaction: &Transaction<'_>, id: &Id<Group>, shard_id: &str) -> Result<(), MutationFailure> {
    let sql = "SELECT trajectory_id FROM trajectories t LEFT JOIN shards s USING (shard_id)
               WHERE group_id = ?1 AND s.state IS NOT 'published' AND t.shard_id IS NOT ?2 LIMIT 1";
    if let Some(trajectory) = first_text(transaction, sql, params![id.as_str(), shard_id])? {
        return Err(LedgerRefusal::GroupBeforeTrajectory { group: id.to_string(), trajectory }.into());
    }
    let sql = "UPDATE groups SET shard_id = ?2
               WHERE group_id = ?1 AND shard_id IS NULL AND closed_at_micros IS NOT NULL";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), shard_id])?;
    expect_one(changed, LedgerRefusal::GroupNotReady { group: id.to_string() })
}

pub(super) fn write_shard(
    transaction: &Transaction<'_>,
    id: &Id<Shard>,
    files: &[WrittenFile],
) -> Result<(), MutationFailure> {
    let sql = "UPDATE shards SET state = 'written', files_json = ?2 WHERE shard_id = ?1 AND state = 'opened'";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), json(&files)])?;
    expect_one(changed, LedgerRefusal::ShardNotOpened)?;
    let sql =
        "SELECT shard_id FROM shards WHERE shard_id = ?1 AND files_json = '[]' AND replaces_json = '[]'";
    match first_text(transaction, sql, params![id.as_str()])? {
        Some(_) => Err(LedgerRefusal::NoFiles.into()),
        None => Ok(()),
    }
}

pub(super) fn commit_shard(
    transaction: &Transaction<'_>,
    id: &Id<Shard>,
    version: u64,
) -> Result<(), MutationFailure> {
    let sql = "UPDATE shards SET state = 'published', manifest_version = ?2 WHERE shard_id = ?1 AND state = 'written'";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), version.cast_signed()])?;
    expect_one(changed, LedgerRefusal::ShardNotWritten)?;
    tallies::count(transaction, tallies::SHARDS_COMMITTED)
}

pub(super) fn abandon_shard(transaction: &Transaction<'_>, id: &Id<Shard>) -> Result<(), MutationFailure> {
    let sql = "UPDATE shards SET state = 'abandoned', files_json = NULL WHERE shard_id = ?1 AND state IN ('opened', 'written')";
    let changed = transaction.prepare_cached(sql)?.execute([id.as_str()])?;
    expect_one(changed, LedgerRefusal::ShardSettled)?;
    for sql in [
        "UPDATE trajectories SET shard_id = NULL WHERE shard_id = ?1",
        "UPDATE groups SET shard_id = NULL WHERE shard_id = ?1",
    ] {
        transaction.prepare_cached(sql)?.execute([id.as_str()])?;
    }
    Ok(())
}

/// `manifest_version` is unique, so its index finds them: only committed shards have one.
pub(super) fn committed_shards(
    connection: &Connection,
    from: u64,
) -> Result<Vec<CommittedShard>, MutationFailure> {
    let sql = "SELECT shard_id, manifest_version, files_json, replaces_json FROM shards
               WHERE manifest_version >= ?1 ORDER BY manifest_version";
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query([from.cast_signed()])?;
    let mut shards = Vec::new();
    while let Some(row) = rows.next()? {
        shards.push(CommittedShard {
            shard_id: id(row, 0)?,
            manifest_version: unsigned(row, 1)?,
            files: parsed(row, "files_json")?,
            replaces: parsed(row, "replaces_json")?,
        });
    }
    Ok(shards)
}

pub(super) fn newest_commit(connection: &Connection) -> Result<u64, MutationFailure> {
    let sql = "SELECT ifnull(max(manifest_version), 0) FROM shards";
    Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?.cast_unsigned())
}

pub(super) fn shard_phase(
    connection: &Connection,
    shard: &Id<Shard>,
) -> Result<Option<ShardPhase>, MutationFailure> {
    let sql = "SELECT state, manifest_version FROM shards WHERE shard_id = ?1";
    let found = connection.query_row(sql, [shard.as_str()], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Option<i64>>(1)?))
    });
    Ok(found.optional()?.map(|(state, version)| match (state.as_str(), version) {
        ("opened", _) => ShardPhase::Opened,
        ("written", _) => ShardPhase::Written,
        (_, Some(version)) => ShardPhase::Committed { manifest_version: version.cast_unsigned() },
        _ => ShardPhase::Abandoned,
    }))
}

pub(super) fn load_shards(connection: &Connection) -> Result<Vec<ShardRow>, MutationFailure> {
    let sql = "SELECT shard_id, shard_index, replaces_json, files_json FROM shards WHERE state IN ('opened', 'written') ORDER BY shard_index";
    let mut shards = collect(connection, sql, |row| {
        let is_written = row.get::<_, Option<String>>("files_json")?.is_some();
        Ok(ShardRow {
            shard_id: id(row, 0)?,
            index: unsigned(row, 1)?,
            files: is_written.then(|| parsed::<Vec<WrittenFile>>(row, "files_json")).transpose()?,
            trajectories: Vec::new(),
            groups: Vec::new(),
            replaces: parsed(row, "replaces_json")?,
        })
    })?;
    for shard in &mut shards {
        shard.trajectories = ids_in(connection, "trajectory_id", "trajectories", &shard.shard_id)?;
        shard.groups = ids_in(connection, "group_id", "groups", &shard.shard_id)?;
    }
    Ok(shards)
}

fn ids_in<K: IdKind>(
    connection: &Connection,
    column: &str,
    table: &str,
    shard: &Id<Shard>,
) -> Result<Vec<Id<K>>, MutationFailure> {
    let sql = format!("SELECT {column} FROM {table} WHERE shard_id = ?1 ORDER BY {column}");
    let mut query = connection.prepare_cached(&sql)?;
    let mut rows = query.query([shard.as_str()])?;
    let mut ids = Vec::new();
    while let Some(row) = rows.next()? {
        ids.push(id(row, 0)?);
    }
    Ok(ids)
}
