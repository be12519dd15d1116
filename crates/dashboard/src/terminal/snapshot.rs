//! What the terminal shows at one time.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::answers::{JobAnswer, OverviewAnswer, SessionsAnswer};

/// One snapshot of a run: the answers, and their time. Serialized, it is the answers, for programs.
#[derive(Debug, Clone, Serialize)]
pub struct RunSnapshot {
    pub(super) overview: OverviewAnswer,
    /// `None`: the dashboard refused, since the coordinator did not answer in time.
    pub(super) sessions: Option<SessionsAnswer>,
    pub(super) job: JobAnswer,
    /// Microseconds since the Unix epoch, by the local clock.
    #[serde(skip)]
    pub(super) at_micros: i64,
}

impl RunSnapshot {
    pub(crate) fn new(overview: OverviewAnswer, sessions: Option<SessionsAnswer>, job: JobAnswer) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { overview, sessions, job, at_micros: now.as_micros() as i64 }
    }
}
