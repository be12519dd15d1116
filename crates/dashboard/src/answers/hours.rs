//! Time by cause: where every microsecond of devices, slots and sessions went.

use serde::{Deserialize, Serialize};

/// A named share of a total.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TimeShare {
    /// What the time was used for.
    pub cause: String,
    /// The kind of wait or work it belongs to.
    pub group: String,
    pub micros: u64,
    /// Share of the total, 0 to 1.
    pub share: f64,
}

/// Device, slot and session time by cause, with the sums that must agree.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TimeLedger {
    pub device: TimeAccount,
    pub slots: TimeAccount,
    pub sessions: TimeAccount,
    /// CPU time of the run's processes and their descendants.
    pub cpu_micros: Option<u64>,
}

/// A total and its parts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TimeAccount {
    pub micros: u64,
    pub parts: Vec<TimeShare>,
}
