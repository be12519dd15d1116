//! Why a request gets no answer.

use std::fmt;

use furrow_records::RecordsError;

/// Why a request gets no answer.
#[derive(Debug)]
pub(crate) enum DashboardApiError {
    /// The request is invalid.
    BadRequest(String),
    /// The requested item does not exist.
    NotFound(String),
    /// It exists and cannot be read.
    Unreadable(String),
    /// The coordinator or a reader did not answer in time.
    Timeout(String),
}

impl fmt::Display for DashboardApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::BadRequest(what) | Self::NotFound(what) | Self::Unreadable(what) | Self::Timeout(what)) =
            self;
        f.write_str(what)
    }
}

impl From<RecordsError> for DashboardApiError {
    fn from(error: RecordsError) -> Self {
        DashboardApiError::Unreadable(furrow_records::chain(&error))
    }
}
