//! The interface that all policies implement: a turn in, a reply and its trace out.

use furrow_rollout::{
    Observation, Outcome, PolicyHashes, PolicyKind, PolicyReply, PolicyVersion, SessionSpec, Trace,
    TrajectoryAncestry, WeightsOrder,
};
use furrow_wire::{PastStep, SessionOpening};

/// The input of a policy at one step.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInput<'a> {
    /// Run, group and trajectory of the session.
    pub ancestry: &'a TrajectoryAncestry,
    /// Grammar, sampling and context of the session.
    pub session: &'a SessionSpec,
    pub goal: &'a str,
    pub step: u32,
    /// The page as it is now.
    pub observation: &'a Observation,
    /// Outcome of the previous action.
    pub last_outcome: Option<&'a Outcome>,
    /// The demonstration's hint, which only policies that ask for hints may read.
    pub hint_json: Option<&'a str>,
}

/// A policy's answer to a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicyOutput {
    /// A reply and its trace.
    Reply(Box<(PolicyReply, Trace)>),
    /// The model's context is full: the trajectory ends.
    ContextFull,
}

/// Why a policy gave no reply, or opened no session.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The demonstration cannot be read, or its action cannot be written in the job's grammar.
    #[error("step {step}: the demonstration cannot be followed: {why}")]
    Hint { step: u32, why: String },
    /// The policy has no capacity for another session now.
    #[error(
        "{why}; close sessions, raise policy.engine.state_slots or policy.engine.offload_bytes, or add a policy worker"
    )]
    Full { why: String },
    /// This policy does not support the session's settings.
    #[error("the session cannot be opened: {why}")]
    Settings { why: String },
    /// An earlier step does not continue the session.
    #[error("step {step} of the session's past: {why}")]
    PastStep { step: u32, why: String },
    /// A step arrived that is not the next one.
    #[error("step {step} arrived, but the next step of the session is {next}")]
    OutOfOrder {
        /// The step that arrived.
        step: u32,
        /// The step that is due.
        next: u32,
    },
    /// The screenshot cannot be shown to the model.
    #[error("step {step}: the screenshot cannot be read: {why}")]
    Screenshot { step: u32, why: String },
    /// The model failed in this session only.
    #[error("step {step}: {why}")]
    Failed { step: u32, why: String },
    /// The device or its thread has failed. No session can continue on this worker.
    #[error("the model of this policy worker has failed: {why}")]
    Gone { why: String },
}

/// What an update of the weights took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightSwapStats {
    /// Microseconds to read, verify and prepare the weights while sessions run.
    pub load_micros: u64,
    /// Microseconds in which no batch ran.
    pub pause_micros: u64,
    /// Sessions that were open.
    pub sessions: u32,
}

/// Opens the sessions of a job.
#[tonic::async_trait]
pub trait Policy: Send + Sync + 'static {
    /// The policy's kind in the records.
    fn kind(&self) -> PolicyKind;

    /// Whether environment workers should run the pages' demonstrations for it.
    fn wants_hints(&self) -> bool;

    /// Hashes of its current parts.
    fn hashes(&self) -> PolicyHashes;

    /// Version of its weights, if it has weights.
    fn version(&self) -> Option<PolicyVersion> {
        None
    }

    /// Most sessions it can hold at once, if it has a limit of its own.
    fn sessions_max(&self) -> Option<u32> {
        None
    }

    /// The version in use, if its weights cannot be used any more, and why. The policy serves no
    /// session then until it has taken other weights.
    fn broken(&self) -> Option<(PolicyVersion, String)> {
        None
    }

    /// Resolves when [`broken`](Self::broken) changes.
    async fn break_changed(&self) {
        std::future::pending::<()>().await;
    }

    /// Loads published weights beside running sessions and switches to them. On an error, which is
    /// the reason that the coordinator receives, the weights in use stay.
    async fn take_weights(&self, _order: &WeightsOrder) -> Result<WeightSwapStats, String> {
        Err(format!("a {} policy has no weights", self.kind().as_str()))
    }

    /// Opens a session. One with past steps waits for `rebuild_step` calls.
    async fn open(&self, opening: &SessionOpening) -> Result<Box<dyn Session>, PolicyError>;

    /// Resolves with the reason when no session can continue any more.
    async fn failed(&self) -> String {
        std::future::pending().await
    }

    /// Marks that the worker drains: a device that has stalled is given up sooner from now on.
    fn prepare_to_stop(&self) {}

    /// Releases all resources. Sessions that are still open fail from then on. Returns the reason
    /// as an error if the policy has failed, be it while it stopped.
    async fn stop(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Turns observations into replies. Dropping it frees all its resources.
#[tonic::async_trait]
pub trait Session: Send {
    /// Adds a step that was acted earlier. Called for each earlier step in order, before any `act`.
    async fn rebuild_step(&mut self, past: PastStep) -> Result<(), PolicyError>;

    async fn act(&mut self, turn: PolicyInput<'_>) -> Result<PolicyOutput, PolicyError>;
}

/// A trace for policies that have no tokens.
pub(crate) fn trace_without_tokens(kind: PolicyKind) -> Trace {
    Trace {
        policy_kind: kind,
        policy_version: None,
        state_version_min: None,
        tokens: None,
        engine: Default::default(),
        rescored: Vec::new(),
    }
}
