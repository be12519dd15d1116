//! An attempt at a task, as metrics and comparisons use it.

/// One attempt at a task, as the metrics use it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskAttempt {
    /// Suite of the task.
    pub suite: String,
    /// Version of the suite; empty where its record names none.
    pub suite_version: String,
    /// Id of the task, unique within its suite.
    pub task_id: String,
    /// Site of the task: the name in its file, else the host of its start page.
    pub site: String,
    /// Difficulty in the task's file.
    pub difficulty: Option<String>,
    /// Hash of the task's definition.
    pub definition: [u8; 32],
    /// Seed of the draw: attempts at one task under one seed are attempts at one problem.
    pub seed: u64,
    /// Its slot: the unit that is retried after a failure of the farm.
    pub slot: String,
    /// What it counts as: a reward with or without success, or a failure of the farm.
    pub verdict: AttemptResult,
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptResult {
    /// A scorer received its evidence.
    Scored {
        /// The reward it earned.
        reward: f64,
        /// Whether the task counts as solved; `None` where the scorer does not decide.
        success: Option<bool>,
    },
    /// The farm failed, with this end.
    Failed(String),
}
