//! Why an operation on the database fails, and the error of the ledger that follows from it.

use std::path::Path;
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::ledger::{LedgerError, LedgerRefusal};

/// Why a mutation could not be applied: the ledger refuses it, or SQLite fails.
pub(super) enum MutationFailure {
    Refused(LedgerRefusal),
    Other(LedgerError),
    Sqlite(rusqlite::Error),
}

impl MutationFailure {
    /// The ledger's error, where no mutation is to blame.
    pub(super) fn into_ledger_error(self, operation: &'static str, path: &Path) -> LedgerError {
        match self {
            MutationFailure::Sqlite(error) => storage(operation, path, error),
            MutationFailure::Other(error) => error,
            MutationFailure::Refused(why) => {
                LedgerError::Foreign { path: path.to_owned(), why: why.to_string() }
            }
        }
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

pub(super) fn storage(operation: &'static str, path: &Path, error: rusqlite::Error) -> LedgerError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            LedgerError::Busy { path, source: Arc::new(error) }
        }
        Some(ErrorCode::DiskFull) => LedgerError::DiskFull { path, source: Arc::new(error) },
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            LedgerError::Foreign { path, why: error.to_string() }
        }
        _ => LedgerError::Storage { operation, path, source: Arc::new(error) },
    }
}

pub(super) fn is_constraint(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}

/// The file is not a ledger that this version can read.
pub(super) fn foreign(path: &Path, why: impl Into<String>) -> MutationFailure {
    MutationFailure::Other(LedgerError::Foreign { path: path.to_owned(), why: why.into() })
}

pub(super) fn unreadable(why: impl Into<String>) -> MutationFailure {
    MutationFailure::Refused(LedgerRefusal::Unreadable(why.into()))
}
