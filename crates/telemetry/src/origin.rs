//! Which process of which run tells something.

use crate::labels::Role;

/// What an exported figure or span is said to come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// What the process does.
    pub role: Role,
    /// The run it does it for.
    pub run: String,
    /// This process and no other, not even the one that takes its place.
    pub instance: String,
}
