//! Opens the database file: before anything changes, the file must be one of this program's and
//! undamaged.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::failure::{MutationFailure, storage};
use super::page_check::{self, PageCheck};
use super::schema;
use crate::ledger::LedgerError;

/// A user of the `sqlite3` tool may hold a read lock for a moment; a longer wait is a fault.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the database to write, creating it where needed, and checks all of it: a large one while
/// it is already in use.
pub(super) fn open(path: &Path) -> Result<(Connection, Option<PageCheck>), LedgerError> {
    check_files(path)?;
    // Commits of an earlier process that failed must not lie under those of this one.
    let log = beside(path, "-wal");
    let failed = |operation, path: &Path, error| LedgerError::Storage {
        operation,
        path: path.to_owned(),
        source: Arc::new(error),
    };
    furrow_storage::write_again(&log).map_err(|error| failed("write again", &log, error))?;
    let mut connection = Connection::open(path).map_err(|error| storage("open", path, error))?;
    let check = set_up(&mut connection, path).map_err(|failure| failure.into_ledger_error("open", path))?;
    // SQLite ignores errors of this sync, and does not repeat what a killed process left out.
    let folder = path.parent().unwrap_or(path);
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed("sync", folder, error))?;
    Ok((connection, check))
}

/// A file that SQLite keeps beside the database.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens an existing database of any readable version for reading.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, LedgerError> {
    check_files(path)?;
    let opened = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let connection = opened.map_err(|error| storage("open", path, error))?;
    schema::check_version(&connection, path).map_err(|failure| failure.into_ledger_error("open", path))?;
    Ok(connection)
}

fn set_up(connection: &mut Connection, path: &Path) -> Result<Option<PageCheck>, MutationFailure> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let sql = "SELECT count(*) FROM sqlite_schema";
    let is_new = connection.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0;
    if !is_new {
        // Before anything changes: it may be another program's.
        schema::check_version(connection, path)?;
    }
    // In the write-ahead log every commit is one fsync; FULL makes it happen before the commit is
    // answered.
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;",
    )?;
    if is_new {
        return schema::create(connection, path).map(|()| None);
    }
    if schema::is_outdated(connection)? {
        // The rows of damaged pages must not be copied.
        page_check::check_pages(connection, path)?;
        return schema::migrate(connection).map(|()| None);
    }
    page_check::begin(connection, path)
}

/// The database and the files SQLite keeps beside it must be files of this run, not links to
/// others.
fn check_files(path: &Path) -> Result<(), LedgerError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let file = beside(path, suffix);
        if let Err(source) = furrow_storage::check_file(&file) {
            return Err(LedgerError::Storage { operation: "open", path: file, source: Arc::new(source) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ledger::conformance::a_little_of_everything;
    use crate::ledger::{Ledger, SqliteLedger};

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
        refused(&path("newer"), "its schema is version 9, and this furrow reads 3 to 7");
        assert_eq!(fs::read(path("other")).unwrap(), other);
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
}
