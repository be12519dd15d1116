//! The ledger in one SQLite file: write-ahead log, full synchronisation, constraints that enforce
//! the farm's invariants.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use furrow_records::WrittenFile;
use furrow_rollout::{
    EndKind, Group, Id, IdKind, PolicyHashes, PolicyKind, Score, ScoreComponent, Shard, Split, Trajectory,
    WeightsForm, WeightsLink,
};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, named_params,
    params,
};
use serde::{Deserialize, Serialize};

use super::{
    CommittedShard, EvaluationProblem, EvaluationRow, EvaluationStanding, GroupRow, Ledger, LedgerError,
    LedgerRefusal, LedgerSnapshot, Mutation, PolicyFacts, RunOpening, RunRow, RunTotals, ShardOpening,
    ShardPhase, ShardRow, TaskDraw, TaskTally, TimedScore, TrajectoryEnd, TrajectoryFate, TrajectoryRow,
    TrajectoryStanding, TrajectoryStart, expect_next, may_be_scored, may_begin, may_draw, may_end, may_fail,
};
use crate::durable;
use crate::versions::{VersionRefusal, VersionRow, VersionSource, VersionState, VersionTable};

/// "frrw": tells `file` and SQLite's own tools which program owns the database.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"frrw");

/// Raised whenever `schema.sql` changes; [`migrate`] upgrades an older ledger to it.
const SCHEMA: i32 = 4;

/// The schema of v0.1.0, which is that of all earlier runs that can be resumed.
const OLDEST_SCHEMA: i32 = 3;

/// A user of the `sqlite3` tool may hold a read lock for a moment; a longer wait is a fault.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A ledger in one file.
#[derive(Debug)]
pub struct SqliteLedger {
    path: PathBuf,
    connection: Connection,
    stopped: bool,
}

/// Why a mutation could not be applied: the ledger refuses it, or SQLite fails.
enum MutationFailure {
    Refused(LedgerRefusal),
    Other(LedgerError),
    Sqlite(rusqlite::Error),
}

impl SqliteLedger {
    /// Opens the ledger, creating it where needed, and checks all of it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, LedgerError> {
        let path = path.into();
        check_files(&path)?;
        let connection = Connection::open(&path).map_err(|error| storage("open", &path, error))?;
        let mut ledger = Self { path, connection, stopped: false };
        ledger.set_up().map_err(|error| ledger.ledger_error("open", error))?;
        Ok(ledger)
    }

    /// Opens an existing ledger of any readable version for reading. Commits fail.
    pub fn open_to_read(path: impl Into<PathBuf>) -> Result<Self, LedgerError> {
        let path = path.into();
        check_files(&path)?;
        let opened = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let connection = opened.map_err(|error| storage("open", &path, error))?;
        let ledger = Self { path, connection, stopped: false };
        ledger.check_version().map_err(|error| ledger.ledger_error("open", error))?;
        Ok(ledger)
    }

    fn set_up(&mut self) -> Result<(), MutationFailure> {
        self.connection.busy_timeout(BUSY_TIMEOUT)?;
        let sql = "SELECT count(*) FROM sqlite_schema";
        let is_new = self.connection.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0;
        if !is_new {
            self.check_version()?; // before anything changes: it may be another program's
        }
        // In the write-ahead log every commit is one fsync; FULL makes it happen before the commit
        // is answered.
        self.connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;",
        )?;
        if is_new {
            return self.create();
        }
        self.check_pages()?;
        self.migrate()
    }

    fn create(&mut self) -> Result<(), MutationFailure> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        transaction.execute_batch(&schema())?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
        transaction.commit()?;
        let directory =
            self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        durable::sync_dir(directory).map_err(|error| {
            MutationFailure::Other(LedgerError::Storage {
                operation: "create",
                path: self.path.clone(),
                source: Arc::new(error),
            })
        })
    }

    fn check_version(&self) -> Result<(), MutationFailure> {
        let pragma = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let application = pragma("application_id")?;
        let version = pragma("user_version")?;
        if application != APPLICATION_ID {
            return Err(self.foreign("another program's database"));
        }
        if !(OLDEST_SCHEMA..=SCHEMA).contains(&version) {
            return Err(self.foreign(format!(
                "its schema is version {version}, and this furrow reads {OLDEST_SCHEMA} to {SCHEMA}; finish \
                 the run with the version of furrow that began it"
            )));
        }
        Ok(())
    }

    /// Upgrades an older ledger to the current tables, in one transaction.
    fn migrate(&mut self) -> Result<(), MutationFailure> {
        let version: i32 = self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == SCHEMA {
            return Ok(());
        }
        // Rebuilding a table drops it for a moment, which its foreign keys would refuse. The pragma
        // does nothing inside a transaction.
        self.connection.pragma_update(None, "foreign_keys", false)?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        rebuild_trajectories(&transaction)?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
        transaction.commit()?;
        self.connection.pragma_update(None, "foreign_keys", true)?;
        tracing::info!(from = version, to = SCHEMA, "upgraded the ledger's tables");
        Ok(())
    }

    fn check_pages(&self) -> Result<(), MutationFailure> {
        let verdict: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if verdict == "ok" { Ok(()) } else { Err(self.foreign(format!("damaged: {verdict}"))) }
    }

    fn foreign(&self, why: impl Into<String>) -> MutationFailure {
        MutationFailure::Other(LedgerError::Foreign { path: self.path.clone(), why: why.into() })
    }

    fn ledger_error(&self, operation: &'static str, failure: MutationFailure) -> LedgerError {
        match failure {
            MutationFailure::Sqlite(error) => storage(operation, &self.path, error),
            MutationFailure::Other(error) => error,
            MutationFailure::Refused(why) => {
                LedgerError::Foreign { path: self.path.clone(), why: why.to_string() }
            }
        }
    }

    fn transact(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        let path = self.path.clone();
        let failed = |error| storage("commit to", &path, error);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        for mutation in mutations {
            apply(&transaction, mutation).map_err(|failure| match failure {
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
        query(&self.connection).map_err(|failure| self.ledger_error("read", failure))
    }
}

impl Ledger for SqliteLedger {
    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped);
        }
        let result = self.transact(mutations);
        // A batch whose commit frame did not fit was rolled back. After any other fault SQLite may
        // or may not have made it durable, and a retry could answer from a cache that never reached
        // the disk.
        self.stopped = matches!(result, Err(LedgerError::Storage { .. } | LedgerError::Foreign { .. }));
        result
    }

    fn load(&mut self) -> Result<LedgerSnapshot, LedgerError> {
        self.read(|connection| {
            Ok(LedgerSnapshot {
                run: load_run(connection)?,
                groups: load_groups(connection)?,
                trajectories: load_trajectories(connection)?,
                shards: load_shards(connection)?,
                versions: load_versions(connection)?,
                evaluations: load_evaluations(connection)?,
                totals: load_totals(connection)?,
            })
        })
    }

    fn fate(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<TrajectoryFate>, LedgerError> {
        self.read(|connection| {
            let sql = "SELECT CASE WHEN s.state = 'published' THEN 'published' ELSE t.state END
                       FROM trajectories t LEFT JOIN shards s USING (shard_id) WHERE trajectory_id = ?1";
            let state: Option<String> =
                connection.query_row(sql, [trajectory.as_str()], |row| row.get(0)).optional()?;
            Ok(state.map(|state| match state.as_str() {
                "assigned" => TrajectoryFate::Open,
                "published" => TrajectoryFate::Committed,
                _ => TrajectoryFate::Ended,
            }))
        })
    }

    fn shard_of(&mut self, trajectory: &Id<Trajectory>) -> Result<Option<Id<Shard>>, LedgerError> {
        let sql = "SELECT shard_id FROM trajectories WHERE trajectory_id = ?1";
        self.read(|connection| {
            let mut query = connection.prepare_cached(sql)?;
            let mut rows = query.query([trajectory.as_str()])?;
            Ok(rows.next()?.map(|row| maybe_id(row, 0)).transpose()?.flatten())
        })
    }

    fn committed_shards(&mut self) -> Result<Vec<CommittedShard>, LedgerError> {
        let sql = "SELECT shard_id, manifest_version, files_json, replaces_json FROM shards
                   WHERE state = 'published' ORDER BY manifest_version";
        self.read(|connection| {
            collect(connection, sql, |row| {
                Ok(CommittedShard {
                    shard_id: id(row, 0)?,
                    manifest_version: unsigned(row, 1)?,
                    files: parsed(row, "files_json")?,
                    replaces: parsed(row, "replaces_json")?,
                })
            })
        })
    }

    fn shard_phase(&mut self, shard: &Id<Shard>) -> Result<Option<ShardPhase>, LedgerError> {
        let sql = "SELECT state, manifest_version FROM shards WHERE shard_id = ?1";
        self.read(|connection| {
            let found = connection.query_row(sql, [shard.as_str()], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, Option<i64>>(1)?))
            });
            Ok(found.optional()?.map(|(state, version)| match (state.as_str(), version) {
                ("opened", _) => ShardPhase::Opened,
                ("written", _) => ShardPhase::Written,
                (_, Some(version)) => ShardPhase::Committed { manifest_version: version.cast_unsigned() },
                _ => ShardPhase::Abandoned,
            }))
        })
    }
}

/// The database and the files SQLite keeps beside it must be files of this run, not links to
/// others.
fn check_files(path: &Path) -> Result<(), LedgerError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let file = PathBuf::from(name);
        if let Err(source) = furrow_storage::check_file(&file) {
            return Err(LedgerError::Storage { operation: "open", path: file, source: Arc::new(source) });
        }
    }
    Ok(())
}

fn schema() -> String {
    let names = |chosen: fn(EndKind) -> bool| {
        let quoted =
            EndKind::ALL.into_iter().filter(|end| chosen(*end)).map(|end| format!("'{}'", end.as_str()));
        quoted.collect::<Vec<_>>().join(", ")
    };
    include_str!("schema.sql")
        .replace("{scorable}", &names(may_be_scored))
        .replace("{failing}", &names(may_fail))
}

/// 3 to 4: a trajectory may end as `record_lost`. A constraint cannot change in place, so the table
/// is created anew and its rows are copied
/// (<https://www.sqlite.org/lang_altertable.html#otheralter>).
fn rebuild_trajectories(transaction: &Transaction<'_>) -> Result<(), MutationFailure> {
    let today = schema();
    let statements = || today.split_inclusive(";\n").map(str::trim);
    let table = statements().find(|sql| sql.contains("CREATE TABLE trajectories ("));
    let table = table.ok_or_else(|| unreadable("schema.sql has no table of trajectories"))?;
    let indexes = statements().filter(|sql| sql.contains("INDEX") && sql.contains("ON trajectories "));
    transaction.execute_batch(&table.replace("CREATE TABLE trajectories (", "CREATE TABLE rebuilt ("))?;
    transaction.execute_batch(
        "INSERT INTO rebuilt SELECT * FROM trajectories; DROP TABLE trajectories;
         ALTER TABLE rebuilt RENAME TO trajectories;",
    )?;
    for sql in indexes {
        transaction.execute_batch(sql)?;
    }
    Ok(())
}

fn apply(transaction: &Transaction<'_>, mutation: &Mutation) -> Result<(), MutationFailure> {
    if let Some(flaw) = mutation.flaw() {
        return Err(flaw.into());
    }
    if let Mutation::RunOpened(opening) = mutation {
        return open_run(transaction, opening);
    }
    let run = load_run(transaction)?.ok_or(LedgerRefusal::NoRun)?;
    match mutation {
        Mutation::RunOpened(_) => Ok(()),
        Mutation::GroupDrawn { draw, draws } => draw_group(transaction, &run, draw, *draws),
        Mutation::Assigned(start) => assign(transaction, &run, start),
        Mutation::Finished { trajectory_id, token, ended, evidence_sha256 } => {
            finish(transaction, trajectory_id, *token, ended, evidence_sha256)
        }
        Mutation::Scored { trajectory_id, verdict } => score(transaction, trajectory_id, verdict),
        Mutation::Failed { trajectory_id, ended } => fail(transaction, trajectory_id, ended),
        Mutation::RecordLost { trajectory_id, ended } => lose_record(transaction, trajectory_id, ended),
        Mutation::GroupClosed { group_id, at_micros } => close_group(transaction, group_id, *at_micros),
        Mutation::ShardOpened(opening) => open_shard(transaction, &run, opening),
        Mutation::ShardWritten { shard_id, files } => write_shard(transaction, shard_id, files),
        Mutation::ShardCommitted { shard_id, manifest_version } => {
            commit_shard(transaction, shard_id, *manifest_version)
        }
        Mutation::ShardAbandoned { shard_id } => abandon_shard(transaction, shard_id),
        Mutation::VersionProposed(row) => propose_version(transaction, row),
        Mutation::VersionTaken { version, weights_sha256 } => {
            take_version(transaction, *version, weights_sha256)
        }
        Mutation::VersionRefused { version, reason } => refuse_version(transaction, *version, reason),
        Mutation::EvaluationBegun { version, problems, at_micros } => {
            begin_evaluation(transaction, *version, *problems, *at_micros)
        }
        Mutation::EvaluationEnded { version, cut } => end_evaluation(transaction, *version, cut.as_deref()),
    }
}

fn open_run(transaction: &Transaction<'_>, opening: &RunOpening) -> Result<(), MutationFailure> {
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

fn draw_group(
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

fn assign(
    transaction: &Transaction<'_>,
    run: &RunRow,
    start: &TrajectoryStart,
) -> Result<(), MutationFailure> {
    expect_next("token", run.next_token, start.token)?;
    check_slot(transaction, start)?;
    transaction.prepare_cached("UPDATE run SET next_token = next_token + 1")?.execute([])?;
    let sql = "INSERT INTO trajectories (trajectory_id, group_id, sample_index, attempt, token, env_worker, policy_worker,
                   policy_address, policy_kind, policy_version, hashes_json, started_at_micros, queue_micros, state)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 'assigned')";
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

fn finish(
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

fn fail(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
    ended: &TrajectoryEnd,
) -> Result<(), MutationFailure> {
    let sql = "UPDATE trajectories SET state = 'failed', ended = :ended, reason = :reason, steps = :steps,
                   version_min = :version_min, version_max = :version_max, staleness = :staleness, ended_at_micros = :at
               WHERE trajectory_id = :id AND state IN ('assigned', 'finished')";
    let changed = end_with(transaction, sql, id, ended)?;
    expect_one(changed, LedgerRefusal::EndedAlready)
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

fn lose_record(
    transaction: &Transaction<'_>,
    id: &Id<Trajectory>,
    ended: &TrajectoryEnd,
) -> Result<(), MutationFailure> {
    let sql = "UPDATE trajectories SET state = 'failed', ended = :ended, reason = :reason, steps = :steps,
                   version_min = :version_min, version_max = :version_max, staleness = :staleness, ended_at_micros = :at,
                   reward = NULL, success = NULL, score_json = NULL, scorer_saw_sha256 = NULL, score_micros = NULL
               WHERE trajectory_id = :id AND state <> 'failed' AND shard_id IS NULL";
    let changed = end_with(transaction, sql, id, ended)?;
    expect_one(changed, LedgerRefusal::FailedOrInShard)
}

fn score(
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
    expect_one(changed, LedgerRefusal::NotAwaitingScore)
}

fn close_group(transaction: &Transaction<'_>, id: &Id<Group>, at_micros: i64) -> Result<(), MutationFailure> {
    let sql = "SELECT trajectory_id FROM trajectories WHERE group_id = ?1 AND state IN ('assigned', 'finished') LIMIT 1";
    if let Some(trajectory) = first_text(transaction, sql, params![id.as_str()])? {
        return Err(LedgerRefusal::AttemptOpen { trajectory }.into());
    }
    let sql = "UPDATE groups SET closed_at_micros = ?2 WHERE group_id = ?1 AND closed_at_micros IS NULL";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), at_micros])?;
    expect_one(changed, LedgerRefusal::GroupNotOpen)
}

fn open_shard(
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

fn write_shard(
    transaction: &Transaction<'_>,
    id: &Id<Shard>,
    files: &[WrittenFile],
) -> Result<(), MutationFailure> {
    let sql = "UPDATE shards SET state = 'written', files_json = ?2 WHERE shard_id = ?1 AND state = 'opened'";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), json(&files)])?;
    expect_one(changed, LedgerRefusal::ShardNotOpened)
}

fn commit_shard(transaction: &Transaction<'_>, id: &Id<Shard>, version: u64) -> Result<(), MutationFailure> {
    let sql = "UPDATE shards SET state = 'published', manifest_version = ?2 WHERE shard_id = ?1 AND state = 'written'";
    let changed = transaction.prepare_cached(sql)?.execute(params![id.as_str(), version.cast_signed()])?;
    expect_one(changed, LedgerRefusal::ShardNotWritten)
}

fn abandon_shard(transaction: &Transaction<'_>, id: &Id<Shard>) -> Result<(), MutationFailure> {
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

fn propose_version(transaction: &Transaction<'_>, row: &VersionRow) -> Result<(), MutationFailure> {
    load_versions(transaction)?.propose(row.clone()).map_err(LedgerRefusal::from)?;
    let (form, directory) = match &row.source {
        VersionSource::Directory { link, .. } => (Some(link.form.as_str()), Some(&link.directory)),
        VersionSource::Rollback { .. } => (None, None),
    };
    let sql = "INSERT INTO weights (version, publication_id, form, directory, base_version, state, weights_sha256, published_at_micros)
               VALUES (?1, ?2, ?3, ?4, ?5, 'proposed', ?6, ?7)";
    transaction.prepare_cached(sql)?.execute(params![
        row.version,
        row.publication_id,
        form,
        directory,
        row.source.base(),
        row.weights_sha256,
        row.at_micros,
    ])?;
    Ok(())
}

fn take_version(
    transaction: &Transaction<'_>,
    version: i32,
    weights_sha256: &str,
) -> Result<(), MutationFailure> {
    load_versions(transaction)?.take(version, weights_sha256).map_err(LedgerRefusal::from)?;
    let sql =
        "UPDATE weights SET state = 'taken', weights_sha256 = ?2 WHERE version = ?1 AND state = 'proposed'";
    let changed = transaction.prepare_cached(sql)?.execute(params![version, weights_sha256])?;
    expect_one(changed, VersionRefusal::Unknown { version }.into())
}

fn refuse_version(transaction: &Transaction<'_>, version: i32, reason: &str) -> Result<(), MutationFailure> {
    load_versions(transaction)?.refuse(version, reason).map_err(LedgerRefusal::from)?;
    let sql = "UPDATE weights SET state = 'refused', reason = ?2 WHERE version = ?1 AND state = 'proposed'";
    let changed = transaction.prepare_cached(sql)?.execute(params![version, reason])?;
    expect_one(changed, VersionRefusal::Unknown { version }.into())
}

fn begin_evaluation(
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

fn end_evaluation(
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
fn load_evaluations(connection: &Connection) -> Result<Vec<EvaluationRow>, MutationFailure> {
    let sql = "SELECT version, problems, drawn, e.state, e.reason, began_at_micros, count(t.reward), total(t.success)
               FROM evaluations e LEFT JOIN groups g ON g.eval_version = e.version
                   LEFT JOIN trajectories t ON t.group_id = g.group_id AND t.state = 'scored'
               GROUP BY version ORDER BY version";
    collect(connection, sql, evaluation)
}

/// The newest one, without the sums: what decides whether a mutation follows.
fn last_evaluation(connection: &Connection) -> Result<Option<EvaluationRow>, MutationFailure> {
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

fn load_versions(connection: &Connection) -> Result<VersionTable, MutationFailure> {
    let sql = "SELECT version, publication_id, form, directory, base_version, state, reason, weights_sha256, published_at_micros
               FROM weights ORDER BY version";
    let rows = collect(connection, sql, |row| {
        let base_version = row.get("base_version")?;
        let source = match row.get::<_, Option<String>>("directory")? {
            None => VersionSource::Rollback { to: base_version },
            Some(directory) => {
                let link = WeightsLink { form: parse_column(row, "form", WeightsForm::parse)?, directory };
                VersionSource::Directory { link, base_version }
            }
        };
        let state = match row.get::<_, String>("state")?.as_str() {
            "proposed" => VersionState::Proposed,
            "taken" => VersionState::Taken,
            _ => VersionState::Refused { reason: row.get("reason")? },
        };
        Ok(VersionRow {
            version: row.get("version")?,
            publication_id: row.get("publication_id")?,
            source,
            state,
            weights_sha256: row.get("weights_sha256")?,
            at_micros: row.get("published_at_micros")?,
        })
    })?;
    Ok(VersionTable::of(rows))
}

fn load_run(connection: &Connection) -> Result<Option<RunRow>, MutationFailure> {
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

fn load_groups(connection: &Connection) -> Result<Vec<GroupRow>, MutationFailure> {
    let sql =
        "SELECT group_id, group_index, suite, task_id, split, seed, group_size, task_json, drawn_at_micros,
                   closed_at_micros, shard_id, chance, eval_version, eval_problem
               FROM groups LEFT JOIN shards s USING (shard_id)
               WHERE s.state IS NOT 'published' ORDER BY group_index";
    collect(connection, sql, |row| {
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

fn load_trajectories(connection: &Connection) -> Result<Vec<TrajectoryRow>, MutationFailure> {
    let sql = "SELECT t.*, s.state IS 'published' AS is_published
               FROM trajectories t LEFT JOIN shards s USING (shard_id)
               WHERE group_id IN (SELECT group_id FROM groups g LEFT JOIN shards gs ON gs.shard_id = g.shard_id
                                  WHERE gs.state IS NOT 'published')
               ORDER BY token";
    collect(connection, sql, |row| {
        Ok(TrajectoryRow {
            start: start(row)?,
            standing: standing(row)?,
            shard_id: maybe_id(row, "shard_id")?,
            committed: row.get("is_published")?,
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

fn load_shards(connection: &Connection) -> Result<Vec<ShardRow>, MutationFailure> {
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

fn load_totals(connection: &Connection) -> Result<RunTotals, MutationFailure> {
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

#[derive(Serialize, Deserialize)]
struct StoredScore {
    components: Vec<(String, f32)>,
    scorer: String,
    version: u32,
    rationale: String,
}

#[derive(Serialize, Deserialize)]
struct StoredHashes {
    weights: Option<String>,
    tokenizer: Option<String>,
    template: Option<String>,
    grammar: Option<String>,
    processor: Option<String>,
}

impl From<&Score> for StoredScore {
    fn from(score: &Score) -> Self {
        Self {
            components: score.components.iter().map(|part| (part.name.clone(), part.value)).collect(),
            scorer: score.scorer.clone(),
            version: score.version,
            rationale: score.rationale.clone(),
        }
    }
}

impl From<&PolicyHashes> for StoredHashes {
    fn from(hashes: &PolicyHashes) -> Self {
        let PolicyHashes { weights, tokenizer, template, grammar, processor } = hashes.clone();
        Self { weights, tokenizer, template, grammar, processor }
    }
}

impl From<StoredHashes> for PolicyHashes {
    fn from(stored: StoredHashes) -> Self {
        let StoredHashes { weights, tokenizer, template, grammar, processor } = stored;
        Self { weights, tokenizer, template, grammar, processor }
    }
}

impl From<LedgerRefusal> for MutationFailure {
    fn from(why: LedgerRefusal) -> Self {
        MutationFailure::Refused(why)
    }
}

impl From<rusqlite::Error> for MutationFailure {
    fn from(error: rusqlite::Error) -> Self {
        MutationFailure::Sqlite(error)
    }
}

fn storage(operation: &'static str, path: &Path, error: rusqlite::Error) -> LedgerError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => LedgerError::DiskFull { path, source: Arc::new(error) },
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            LedgerError::Foreign { path, why: error.to_string() }
        }
        _ => LedgerError::Storage { operation, path, source: Arc::new(error) },
    }
}

fn is_constraint(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}

fn unreadable(why: impl Into<String>) -> MutationFailure {
    MutationFailure::Refused(LedgerRefusal::Unreadable(why.into()))
}

fn expect_one(changed: usize, why: LedgerRefusal) -> Result<(), MutationFailure> {
    if changed == 1 { Ok(()) } else { Err(why.into()) }
}

fn first_text(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<Option<String>, MutationFailure> {
    Ok(connection.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional()?)
}

fn collect<T>(
    connection: &Connection,
    sql: &str,
    read: impl Fn(&Row<'_>) -> Result<T, MutationFailure>,
) -> Result<Vec<T>, MutationFailure> {
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys always serialise")
}

fn unsigned(row: &Row<'_>, column: impl rusqlite::RowIndex) -> Result<u64, MutationFailure> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

fn id<K: IdKind>(row: &Row<'_>, column: impl rusqlite::RowIndex) -> Result<Id<K>, MutationFailure> {
    let text: String = row.get(column)?;
    Id::new(text).map_err(|bad| unreadable(bad.to_string()))
}

fn maybe_id<K: IdKind>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
) -> Result<Option<Id<K>>, MutationFailure> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| Id::new(text).map_err(|bad| unreadable(bad.to_string()))).transpose()
}

fn parse_column<T>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
    parse: fn(&str) -> Option<T>,
) -> Result<T, MutationFailure> {
    let text: String = row.get(column)?;
    parse(&text).ok_or_else(|| unreadable(format!("{text:?} is not a value this furrow knows")))
}

fn parsed<T: for<'a> Deserialize<'a>>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
) -> Result<T, MutationFailure> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| unreadable(format!("unreadable {text:.60}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;
    use crate::ledger::conformance::{
        assigned, close, draw, drawn, fail, finish, ledger_conformance, opened, score,
    };
    use crate::small_disk::{is_limited, on_small_disk};

    #[test]
    fn conforms() {
        let dir = tempfile::tempdir().unwrap();
        let count = Cell::new(0);
        ledger_conformance(|| {
            count.set(count.get() + 1);
            SqliteLedger::open(dir.path().join(format!("{}.sqlite", count.get()))).unwrap()
        });
    }

    fn a_little_of_everything() -> Vec<Mutation> {
        vec![
            opened(),
            drawn(0),
            assigned(0, 0, 0, 1),
            finish(0, 0, 0, 1, EndKind::Answered),
            score(0, 0, 0, 0.25),
            assigned(0, 1, 0, 2),
            fail(0, 1, 0, EndKind::Blocked),
            close(0),
            drawn(1),
            assigned(1, 0, 0, 3),
            finish(1, 0, 0, 3, EndKind::MaxSteps),
            assigned(1, 1, 0, 4),
        ]
    }

    #[test]
    fn it_is_all_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        let before = ledger.load().unwrap();
        drop(ledger);
        assert_eq!(SqliteLedger::open(&path).unwrap().load().unwrap(), before);
    }

    #[test]
    fn what_lies_in_the_log_is_there_after_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let copy = dir.path().join("copy.sqlite");
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        // what a crash now would leave: no checkpoint, and the file is not closed
        for suffix in ["", "-wal"] {
            let from = dir.path().join(format!("ledger.sqlite{suffix}"));
            fs::copy(from, dir.path().join(format!("copy.sqlite{suffix}"))).unwrap();
        }
        assert_eq!(SqliteLedger::open(copy).unwrap().load().unwrap(), ledger.load().unwrap());
    }

    #[track_caller]
    fn refused(path: &Path, part: &str) {
        let error = SqliteLedger::open(path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains("is not a furrow ledger that this version can read") && error.contains(part),
            "{error:?}"
        );
    }

    #[test]
    fn other_files_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("text"), "not a database, but longer than a header of one".repeat(9)).unwrap();
        refused(&path("text"), "not a database");
        Connection::open(path("other")).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
        let other = fs::read(path("other")).unwrap();
        refused(&path("other"), "another program's database");
        drop(SqliteLedger::open(path("newer")).unwrap());
        Connection::open(path("newer")).unwrap().pragma_update(None, "user_version", 9).unwrap();
        refused(&path("newer"), "its schema is version 9, and this furrow reads 3 to 4");
        assert_eq!(fs::read(path("other")).unwrap(), other);
    }

    /// The ledgers of the run directories that v0.1.0 left, one finished and one killed.
    #[test]
    fn a_ledger_of_an_older_schema_is_brought_up_to_date() {
        for name in ["finished", "killed"] {
            let dir = tempfile::tempdir().unwrap();
            let released =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/v0.1.0").join(name);
            for file in ["ledger.sqlite", "ledger.sqlite-wal"] {
                if released.join(file).exists() {
                    fs::copy(released.join(file), dir.path().join(file)).unwrap();
                }
            }
            let path = dir.path().join("ledger.sqlite");
            let rows = |connection: &Connection| -> (i32, i64, i64, f64) {
                let sql = "SELECT count(*), count(shard_id), total(reward) FROM trajectories";
                let version = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
                let sums =
                    connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
                let (all, in_shards, reward) = sums;
                (version, all, in_shards, reward)
            };
            let before = rows(&Connection::open(&path).unwrap());
            assert_eq!(before.0, 3, "the fixture is no longer what v0.1.0 wrote");
            drop(SqliteLedger::open(&path).unwrap());
            let mut ledger = SqliteLedger::open(&path).unwrap();
            assert_eq!(rows(&ledger.connection), (SCHEMA, before.1, before.2, before.3));
            let loaded = ledger.load().unwrap();
            assert_eq!(loaded.run.unwrap().run_id.as_str(), name);
            assert!(!ledger.committed_shards().unwrap().is_empty());
            let tables = |ledger: &SqliteLedger| -> Vec<String> {
                let sql = "SELECT replace(sql, '\"trajectories\"', 'trajectories') FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
                let mut query = ledger.connection.prepare(sql).unwrap();
                query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            };
            let new = SqliteLedger::open(dir.path().join("new.sqlite")).unwrap();
            assert_eq!(tables(&ledger), tables(&new));
            let broken: i64 = ledger
                .connection
                .query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0))
                .unwrap();
            assert_eq!(broken, 0);
        }
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        drop(ledger);
        let mut bytes = fs::read(&path).unwrap();
        let page = bytes.len() / 2 / 4096 * 4096;
        bytes[page..page + 2048].fill(0xee);
        fs::write(&path, bytes).unwrap();
        refused(&path, "");
    }

    /// The constraints hold even for a user of the `sqlite3` tool.
    #[test]
    fn the_tables_refuse_what_must_not_be() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = SqliteLedger::open(dir.path().join("ledger.sqlite")).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        let statements = [
            "UPDATE trajectories SET reward = 1 WHERE state = 'failed'",
            "UPDATE trajectories SET reward = NULL WHERE state = 'scored'",
            "UPDATE trajectories SET scorer_saw_sha256 = zeroblob(32) WHERE state = 'scored'",
            "UPDATE trajectories SET evidence_sha256 = NULL WHERE state = 'finished'",
            "UPDATE trajectories SET evidence_sha256 = x'00' WHERE state = 'finished'",
            "UPDATE trajectories SET state = 'scored' WHERE state = 'finished'",
            "UPDATE trajectories SET state = 'finished' WHERE state = 'assigned'",
            "UPDATE trajectories SET state = 'lost' WHERE state = 'failed'",
            "UPDATE trajectories SET ended = 'lease_lost' WHERE state = 'scored'",
            "UPDATE trajectories SET ended = 'answered' WHERE state = 'failed'",
            "UPDATE trajectories SET token = 1 WHERE token = 2",
            "UPDATE trajectories SET sample_index = 0, attempt = 1 WHERE token = 4",
            "UPDATE trajectories SET group_id = 'nowhere' WHERE token = 4",
            "UPDATE trajectories SET shard_id = 'nowhere' WHERE token = 1",
            "UPDATE trajectories SET steps = 'two' WHERE token = 1",
            "UPDATE groups SET group_size = 0",
            "INSERT INTO run SELECT 2, run_id, job_sha256, epoch, 1, 0, 0, 0, 0 FROM run",
            "INSERT INTO shards (shard_id, shard_index, state, replaces_json) VALUES ('x', 0, 'published', '[]')",
        ];
        for statement in statements {
            let result = ledger.connection.execute(statement, []);
            assert!(result.as_ref().is_err_and(is_constraint), "{statement}: {result:?}");
        }
    }

    #[test]
    fn a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_freed() {
        let name = "ledger::sqlite::tests::a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_freed";
        on_small_disk(name, |disk| {
            let path = disk.join("ledger.sqlite");
            let filler = |cycle: u32| disk.join(format!("filler{cycle}"));
            (0..5).for_each(|cycle| fs::write(filler(cycle), vec![0; 300_000]).unwrap());
            let mut ledger = SqliteLedger::open(&path).unwrap();
            ledger.commit(&[opened()]).unwrap();
            let group = |index| {
                let draw = TaskDraw { task_json: "x".repeat(20_000), ..draw(index, 1) };
                Mutation::GroupDrawn { draw, draws: index }
            };
            let mut drawn = 0;
            for cycle in 0..5 {
                let error = loop {
                    match ledger.commit(&[group(drawn)]) {
                        Ok(()) => drawn += 1,
                        Err(error) => break error,
                    }
                    assert!(drawn < 1000, "the small disk is not small");
                };
                if is_limited() {
                    // to SQLite a limit on file sizes is not a full disk: it stops, and keeps what
                    // it acknowledged
                    assert!(matches!(error, LedgerError::Storage { .. }), "{error:?}");
                    assert!(matches!(ledger.commit(&[group(drawn)]), Err(LedgerError::Stopped)));
                    break;
                }
                assert!(matches!(error, LedgerError::DiskFull { .. }), "cycle {cycle}: {error:?}");
                assert_eq!(ledger.load().unwrap().groups.len() as u64, drawn);
                fs::remove_file(filler(cycle)).unwrap();
                ledger.commit(&[group(drawn)]).unwrap();
                drawn += 1;
            }
            drop(ledger);
            assert!(drawn > 10);
            assert_eq!(SqliteLedger::open(&path).unwrap().load().unwrap().groups.len() as u64, drawn);
        });
    }
}
