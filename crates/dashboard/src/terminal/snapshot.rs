//! What the terminal shows at one time.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// One snapshot of a run: the answers, and their time.
#[derive(Debug, Clone)]
pub struct RunSnapshot {
    pub(super) overview: Value,
    pub(super) sessions: Value,
    pub(super) job: Value,
    /// Microseconds since the Unix epoch, by the local clock.
    pub(super) at_micros: i64,
}

impl RunSnapshot {
    pub(crate) fn new(overview: Value, sessions: Value, job: Value) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { overview, sessions, job, at_micros: now.as_micros() as i64 }
    }

    /// The answers as JSON, for programs.
    pub fn to_json(&self) -> Value {
        json!({ "overview": self.overview, "sessions": self.sessions, "job": self.job })
    }
}
