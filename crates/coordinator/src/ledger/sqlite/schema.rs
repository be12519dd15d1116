//! The tables: they are created in a new file, recognised in an existing one, and upgraded from
//! those of earlier releases.

use std::path::Path;
use std::sync::Arc;

use furrow_rollout::EndKind;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::failure::{MutationFailure, foreign, unreadable};
use super::tallies;
use crate::durable;
use crate::ledger::{LedgerError, may_be_scored, may_fail};

/// "frrw": tells `file` and SQLite's own tools which program owns the database.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"frrw");

/// Raised whenever `schema.sql` changes; [`migrate`] upgrades an older ledger to it.
const SCHEMA: i32 = 7;

/// The schema of v0.1.0, which is that of all earlier runs that can be resumed.
const OLDEST_SCHEMA: i32 = 3;

/// The first schema with tallies as rows.
const TALLIES_SCHEMA: i32 = 5;

/// The first schema with the digests of the secrets of leases.
const SECRETS_SCHEMA: i32 = 7;

/// Creates the tables of a new file.
pub(super) fn create(connection: &mut Connection, path: &Path) -> Result<(), MutationFailure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    transaction.execute_batch(&schema())?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA)?;
    transaction.commit()?;
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    durable::sync_dir(directory).map_err(|error| {
        MutationFailure::Other(LedgerError::Storage {
            operation: "create",
            path: path.to_owned(),
            source: Arc::new(error),
        })
    })
}

/// Refuses another program's database, and a version of the tables that cannot be read.
pub(super) fn check_version(connection: &Connection, path: &Path) -> Result<(), MutationFailure> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let application = pragma("application_id")?;
    let version = pragma("user_version")?;
    if application != APPLICATION_ID {
        return Err(foreign(path, "another program's database"));
    }
    if !(OLDEST_SCHEMA..=SCHEMA).contains(&version) {
        let why = format!(
            "its schema is version {version}, and this furrow reads {OLDEST_SCHEMA} to {SCHEMA}; finish \
             the run with the version of furrow that began it"
        );
        return Err(foreign(path, why));
    }
    Ok(())
}

fn version(connection: &Connection) -> Result<i32, MutationFailure> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Whether an earlier release wrote the tables.
pub(super) fn is_outdated(connection: &Connection) -> Result<bool, MutationFailure> {
    Ok(version(connection)? != SCHEMA)
}

/// Upgrades an older ledger to the current tables, in one transaction.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), MutationFailure> {
    let version = version(connection)?;
    // Rebuilding a table drops it for a moment, which its foreign keys would refuse. The pragma
    // does nothing inside a transaction.
    connection.pragma_update(None, "foreign_keys", false)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    if version < 4 {
        // A trajectory may end as `record_lost`.
        rebuild(&transaction, "trajectories")?;
    }
    if version < TALLIES_SCHEMA {
        add_tallies(&transaction)?;
    }
    if version < 6 {
        // A version of the weights may be withdrawn.
        rebuild(&transaction, "weights")?;
    }
    if (4..SECRETS_SCHEMA).contains(&version) {
        // In place: a table of a long run has millions of rows.
        transaction.execute_batch(&format!("ALTER TABLE trajectories ADD COLUMN {SECRET_COLUMN}"))?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA)?;
    transaction.commit()?;
    connection.pragma_update(None, "foreign_keys", true)?;
    tracing::info!(from = version, to = SCHEMA, "upgraded the ledger's tables");
    Ok(())
}

/// Whether the ledger keeps its sums as rows. One of an earlier release that is only read does not.
pub(super) fn has_tallies(connection: &Connection) -> Result<bool, MutationFailure> {
    Ok(version(connection)? >= TALLIES_SCHEMA)
}

/// Whether the ledger has digests of secrets. One of an earlier release that is only read does not.
pub(super) fn has_secrets(connection: &Connection) -> Result<bool, MutationFailure> {
    Ok(version(connection)? >= SECRETS_SCHEMA)
}

/// As `schema.sql` defines it.
const SECRET_COLUMN: &str = "secret_sha256 BLOB CHECK (length(secret_sha256) = 32)";

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

/// Gives a table today's columns and constraints. A constraint cannot change in place, so the
/// table is created anew and its rows are copied
/// (<https://www.sqlite.org/lang_altertable.html#otheralter>).
fn rebuild(transaction: &Transaction<'_>, name: &str) -> Result<(), MutationFailure> {
    let today = schema();
    let statements = || today.split_inclusive(";\n").map(str::trim);
    let begin = format!("CREATE TABLE {name} (");
    let table = statements().find(|sql| sql.contains(&begin));
    let table = table.ok_or_else(|| unreadable(format!("schema.sql has no table {name}")))?;
    let indexes = statements().filter(|sql| sql.contains("INDEX") && sql.contains(&format!("ON {name} ")));
    transaction.execute_batch(&table.replace(&begin, "CREATE TABLE rebuilt ("))?;
    let columns = columns_of(transaction, name)?.join(", ");
    transaction.execute_batch(&format!(
        "INSERT INTO rebuilt ({columns}) SELECT {columns} FROM {name};
         DROP TABLE {name};
         ALTER TABLE rebuilt RENAME TO {name};"
    ))?;
    for sql in indexes {
        transaction.execute_batch(sql)?;
    }
    Ok(())
}

fn columns_of(transaction: &Transaction<'_>, name: &str) -> Result<Vec<String>, MutationFailure> {
    let mut query = transaction.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let names = query.query_map([name], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// 4 to 5: the sums that a start needs become rows, and what it loads has indexes.
fn add_tallies(transaction: &Transaction<'_>) -> Result<(), MutationFailure> {
    let names = ["task_tallies", "evaluation_tallies", "counts", "unsettled_shards", "groups_in_no_shard"];
    let today = schema();
    for name in names {
        let begins = [format!("CREATE TABLE {name} "), format!("CREATE INDEX {name} ")];
        let found =
            today.split_inclusive(";\n").find(|sql| begins.iter().any(|begin| sql.contains(begin.as_str())));
        transaction.execute_batch(found.ok_or_else(|| unreadable(format!("schema.sql has no {name}")))?)?;
    }
    tallies::fill(transaction)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ledger::conformance::{a_little_of_everything, assigned, fail, versions_in_every_state};
    use crate::ledger::sqlite::failure::is_constraint;
    use crate::ledger::sqlite::totals::recount;
    use crate::ledger::{Ledger, LedgerSnapshot, Mutation, SqliteLedger};

    /// The definitions of all tables and indexes, whatever their spaces and quotes are.
    fn tables(ledger: &SqliteLedger) -> Vec<String> {
        let sql = "SELECT replace(sql, '\"', '') FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
        let mut query = ledger.connection.prepare(sql).unwrap();
        let texts = query.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap);
        texts.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// What a release without secrets has of a snapshot.
    fn without_secrets(mut snapshot: LedgerSnapshot) -> LedgerSnapshot {
        snapshot.trajectories.iter_mut().for_each(|row| row.start.secret = None);
        snapshot
    }

    const DROP_SECRETS: &str = "ALTER TABLE trajectories DROP COLUMN secret_sha256;";

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
            let totals = SqliteLedger::open_to_read(&path).unwrap().load().unwrap().totals;
            drop(SqliteLedger::open(&path).unwrap());
            let mut ledger = SqliteLedger::open(&path).unwrap();
            assert_eq!(rows(&ledger.connection), (SCHEMA, before.1, before.2, before.3));
            let loaded = ledger.load().unwrap();
            assert_eq!(loaded.totals, recount(&ledger.connection).unwrap_or_else(|_| panic!("unreadable")));
            assert_eq!(loaded.totals, totals, "the older ledger, only read, had other totals");
            assert!(loaded.totals.scored > 0);
            assert_eq!(loaded.run.unwrap().run_id.as_str(), name);
            assert!(!ledger.committed_shards(0).unwrap().is_empty());
            let new = SqliteLedger::open(dir.path().join("new.sqlite")).unwrap();
            assert_eq!(tables(&ledger), tables(&new));
            let broken: i64 = ledger
                .connection
                .query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0))
                .unwrap();
            assert_eq!(broken, 0);
        }
    }

    /// A ledger of schema 4 has today's tables without the tallies and their indexes.
    #[test]
    fn a_ledger_without_tallies_gains_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        let before = without_secrets(ledger.load().unwrap());
        assert_eq!((before.totals.scored, before.totals.groups_closed), (1, 1));
        ledger
            .connection
            .execute_batch(&format!(
                "{DROP_SECRETS} DROP TABLE task_tallies; DROP TABLE evaluation_tallies; DROP TABLE counts;
                 DROP INDEX unsettled_shards; DROP INDEX groups_in_no_shard; PRAGMA user_version = 4;"
            ))
            .unwrap();
        drop(ledger);
        assert_eq!(SqliteLedger::open_to_read(&path).unwrap().load().unwrap(), before);
        let mut ledger = SqliteLedger::open(&path).unwrap();
        assert_eq!(version(&ledger.connection).ok(), Some(SCHEMA));
        assert_eq!(ledger.load().unwrap(), before);
    }

    /// A ledger of schema 5 has no versions that were withdrawn.
    #[test]
    fn a_ledger_without_withdrawn_versions_may_have_some() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        ledger.commit(&versions_in_every_state()).unwrap();
        let before = ledger.load().unwrap();
        let states = before.versions.rows().iter().map(|row| row.state.as_str());
        assert_eq!(states.collect::<Vec<_>>(), ["taken", "refused", "proposed", "withdrawn"]);
        let table: String = ledger
            .connection
            .query_row("SELECT sql FROM sqlite_schema WHERE name = 'weights'", [], |row| row.get(0))
            .unwrap();
        let older = table
            .replace("CREATE TABLE weights", "CREATE TABLE older")
            .replace(", 'withdrawn')", ")")
            .replace("state IN ('refused')", "state = 'refused'")
            .replace("state NOT IN ('taken')", "state <> 'taken'");
        assert!(!older.contains("withdrawn"), "{older}");
        ledger
            .connection
            .execute_batch(&format!(
                "{DROP_SECRETS} {older}; INSERT INTO older SELECT * FROM weights WHERE state <> 'withdrawn';
                 DROP TABLE weights; ALTER TABLE older RENAME TO weights;
                 CREATE UNIQUE INDEX one_version_a_publication ON weights (publication_id) WHERE state <> 'refused';
                 PRAGMA user_version = 5;"
            ))
            .unwrap();
        drop(ledger);
        assert!(SqliteLedger::open_to_read(&path).unwrap().load().is_ok());
        let mut ledger = SqliteLedger::open(&path).unwrap();
        assert_eq!(version(&ledger.connection).ok(), Some(SCHEMA));
        let loaded = ledger.load().unwrap();
        assert_eq!(loaded.versions.rows(), &before.versions.rows()[..3]);
        assert_eq!(loaded.totals, before.totals);
        let reason = "its logits are not finite".to_owned();
        ledger.commit(&[Mutation::VersionWithdrawn { version: 1, reason }]).unwrap();
        assert_eq!(ledger.load().unwrap().versions.get(1).unwrap().state.as_str(), "withdrawn");
    }

    /// A ledger of schema 6 has no digests. Its leases have none afterwards, and new ones have one.
    #[test]
    fn a_ledger_without_secrets_gains_them_for_new_leases() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let mut ledger = SqliteLedger::open(&path).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        let before = ledger.load().unwrap();
        assert!(before.trajectories.iter().all(|row| row.start.secret.is_some()));
        let before = without_secrets(before);
        ledger.connection.execute_batch(&format!("{DROP_SECRETS} PRAGMA user_version = 6;")).unwrap();
        drop(ledger);
        assert_eq!(SqliteLedger::open_to_read(&path).unwrap().load().unwrap(), before);
        let mut ledger = SqliteLedger::open(&path).unwrap();
        assert_eq!(version(&ledger.connection).ok(), Some(SCHEMA));
        assert_eq!(ledger.load().unwrap(), before);
        let new = SqliteLedger::open(dir.path().join("new.sqlite")).unwrap();
        assert_eq!(tables(&ledger), tables(&new));
        let lease = assigned(1, 1, 1, 5);
        let Mutation::Assigned(start) = lease.clone() else { unreachable!() };
        ledger.commit(&[fail(1, 1, 0, EndKind::Cancelled), lease]).unwrap();
        drop(ledger);
        let loaded = SqliteLedger::open(&path).unwrap().load().unwrap();
        assert_eq!(loaded.trajectories.last().map(|row| &row.start), Some(&start));
        assert!(start.secret.is_some());
    }

    /// The constraints hold even for a user of the `sqlite3` tool.
    #[test]
    fn the_tables_refuse_what_must_not_be() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = SqliteLedger::open(dir.path().join("ledger.sqlite")).unwrap();
        ledger.commit(&a_little_of_everything()).unwrap();
        ledger.commit(&versions_in_every_state()).unwrap();
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
            "UPDATE trajectories SET secret_sha256 = x'00' WHERE token = 1",
            "UPDATE groups SET group_size = 0",
            "UPDATE weights SET state = 'withdrawn', reason = NULL WHERE state = 'taken'",
            "UPDATE weights SET state = 'withdrawn', reason = 'NaN' WHERE weights_sha256 IS NULL",
            "INSERT INTO run SELECT 2, run_id, job_sha256, epoch, 1, 0, 0, 0, 0 FROM run",
            "INSERT INTO shards (shard_id, shard_index, state, replaces_json) VALUES ('x', 0, 'published', '[]')",
        ];
        for statement in statements {
            let result = ledger.connection.execute(statement, []);
            assert!(result.as_ref().is_err_and(is_constraint), "{statement}: {result:?}");
        }
    }
}
