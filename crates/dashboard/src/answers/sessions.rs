//! The answers of `/api/sessions`.

use serde::{Deserialize, Serialize};

use super::head::SessionsHead;

/// Data of the page Sessions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct SessionsAnswer {
    pub head: SessionsHead,
    /// Whether a coordinator answers.
    pub is_live: bool,
    pub sessions: Vec<RunningSession>,
}

/// A trajectory that an environment worker runs now.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RunningSession {
    pub trajectory_id: String,
    pub task_id: String,
    pub suite: String,
    /// Number of its durable steps.
    pub steps: u32,
    pub env_worker: String,
    pub policy_worker: String,
    /// Time of its lease, microseconds since the Unix epoch.
    pub started_at: i64,
    /// Whether it has no durable step yet and its first screenshot is there. A dashboard of an
    /// earlier version does not say.
    #[serde(default)]
    pub first_shown: bool,
}

/// The newest durable step of a running trajectory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct SessionStep {
    pub step: u32,
    pub title: String,
    pub url: String,
    pub action: String,
    pub outcome: String,
    /// Microseconds since the Unix epoch.
    pub observed_at: i64,
}
