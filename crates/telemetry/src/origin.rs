//! Identifies the process that exports metrics and spans.

use crate::labels::Role;

/// The source of an exported metric or span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOrigin {
    /// Role of the process.
    pub role: Role,
    /// Name of the run.
    pub run: String,
    /// Unique id of this process; a restarted one gets another.
    pub instance: String,
}
