//! What an attempt needs of a page. The real browser context and the twin of air both are one, so the same attempt runs on either.

use async_trait::async_trait;
use furrow_rollout::{
    Action, Assignment, End, EnvironmentFingerprint, Evidence, Hint, Observation, Outcome, OutcomeName, Task,
};

/// Where stages come from: a pool of browsers, or air.
#[async_trait]
pub trait Stages: Send + Sync + 'static {
    /// What the records say of the place; the worker's name is filled in by the worker.
    fn environment(&self, task: Option<&Task>) -> EnvironmentFingerprint;

    /// How many more stages there is memory for.
    fn room(&self) -> Room {
        Room::AMPLE
    }

    /// A fresh stage of its own for one trajectory. It comes or fails within deadlines of its own; a caller stops waiting for it only when
    /// [`Stages::close`] follows.
    async fn open(&self, assignment: &Assignment) -> Result<Box<dyn Stage>, StageError>;

    /// Ends everything that is left.
    async fn close(&self);
}

/// A page on which one trajectory is acted. Every call ends by itself within deadlines of the stage's own, and a caller may stop
/// waiting for any of them and go on with another.
#[async_trait]
pub trait Stage: Send {
    /// The browser it lives in, for the log.
    fn browser(&self) -> &str;

    /// Loads the start page, starts the task in it, takes its clock in hand. Returns the goal that the page made, if it made one.
    async fn begin(&mut self) -> Result<Option<String>, StageError>;

    /// What the policy is shown.
    async fn observe(&mut self) -> Result<Observation, StageError>;

    /// What the demonstration beside the page says to do next; `None` where there is no demonstration.
    async fn hint(&mut self, goal: &str, step: u32) -> Result<Option<Hint>, StageError>;

    /// Delivers the input of an action.
    async fn act(&mut self, action: &Action) -> Result<Outcome, StageError>;

    /// Waits until the page is quiet. What happened meanwhile may replace the outcome of the action.
    async fn settle(&mut self, outcome: Outcome) -> Result<Outcome, StageError>;

    /// What the suite's probe says, a JSON object; `None` where there is no probe.
    async fn probe(&mut self) -> Result<Option<String>, StageError>;

    /// What is to be seen at the end, without an answer; `None` when nothing can be seen any more. A page that hangs is stopped first.
    async fn evidence(&mut self) -> Option<Evidence>;

    /// Requests since the last call that an archive acted from had no answer to: method and address of each.
    fn unrecorded(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What is known of why the page or its browser died, beyond that it did.
    fn cause_of_death(&self) -> Option<String> {
        None
    }

    /// Throws it away.
    async fn close(self: Box<Self>);
}

/// What memory leaves to new stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// So many more may be opened now.
    pub stages: u32,
    /// Bytes left to this process.
    pub available_bytes: u64,
    /// Bytes that must stay free.
    pub reserve_bytes: u64,
}

impl Room {
    /// Memory is nothing to think of.
    pub const AMPLE: Self = Self { stages: u32::MAX, available_bytes: u64::MAX, reserve_bytes: 0 };
}

/// Why a stage cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The page stopped answering.
    #[error("the page did not answer: {waited_for}")]
    PageHang {
        /// What was waited for, such as `screenshot`.
        waited_for: &'static str,
    },
    /// The page's process died.
    #[error("the page's process died")]
    PageCrash,
    /// The browser died.
    #[error("the browser died")]
    BrowserDead,
    /// The site refuses to serve us.
    #[error("{0}")]
    Blocked(String),
    /// The worker itself could not do it.
    #[error("{0}")]
    Failed(String),
}

impl StageError {
    /// How the trajectory ends.
    pub fn end(&self) -> End {
        match self {
            StageError::PageHang { .. } => End::PageHang,
            StageError::PageCrash => End::PageCrash,
            StageError::BrowserDead => End::BrowserDead,
            StageError::Blocked(_) => End::Blocked,
            StageError::Failed(_) => End::EnvCrash,
        }
    }

    /// What came of the action that met it; `None` where the page had no part in it.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            StageError::PageHang { .. } => Some(Outcome::told(OutcomeName::PageHang, self.to_string())),
            StageError::PageCrash => Some(Outcome::named(OutcomeName::PageCrash)),
            StageError::BrowserDead => Some(Outcome::named(OutcomeName::BrowserDead)),
            StageError::Blocked(_) | StageError::Failed(_) => None,
        }
    }
}
