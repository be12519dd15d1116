//! What every policy has in common: a turn in, a reply and its account out.

use furrow_rollout::{
    Ancestry, Hashes, Observation, Outcome, PolicyKind, PolicyVersion, Reply, SessionSpec, Trace,
    WeightsOrder,
};
use furrow_wire::{Opening, PastStep};

/// What a policy is given at one step.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Whose session it is.
    pub ancestry: &'a Ancestry,
    /// How to speak and sample.
    pub session: &'a SessionSpec,
    /// The instruction.
    pub goal: &'a str,
    /// Counted from 0.
    pub step: u32,
    /// What is seen.
    pub observation: &'a Observation,
    /// What came of the last action.
    pub last_outcome: Option<&'a Outcome>,
    /// What a demonstration says; only policies that ask for hints may look.
    pub hint_json: Option<&'a str>,
}

/// What a session says to a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A reply and its account.
    Reply(Box<(Reply, Trace)>),
    /// The model's context is full: the trajectory ends.
    ContextFull,
}

/// Why a policy gave no reply, or no session.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The demonstration cannot be read or written in the job's grammar.
    #[error("step {step}: the demonstration cannot be followed: {why}")]
    Hint {
        /// Where.
        step: u32,
        /// What is wrong with it.
        why: String,
    },
    /// There is no room for another session now.
    #[error("{why}; close sessions, give policy.engine more room or add a policy worker")]
    Full {
        /// Of what there is too little.
        why: String,
    },
    /// The session's settings cannot be acted on by this policy.
    #[error("the session cannot be opened: {why}")]
    Settings {
        /// What is wrong.
        why: String,
    },
    /// An earlier step does not continue the session.
    #[error("step {step} of the past: {why}")]
    Past {
        /// Which.
        step: u32,
        /// What is wrong.
        why: String,
    },
    /// A step came that is not the next one.
    #[error("step {step} was observed, the session is at step {next}")]
    OutOfOrder {
        /// Which came.
        step: u32,
        /// Which was due.
        next: u32,
    },
    /// The screenshot cannot be shown to the model.
    #[error("step {step}: the screenshot cannot be read: {why}")]
    Screenshot {
        /// Where.
        step: u32,
        /// What is wrong with it.
        why: String,
    },
    /// The model failed in this session.
    #[error("step {step}: {why}")]
    Failed {
        /// Where.
        step: u32,
        /// What happened.
        why: String,
    },
    /// The device or its thread is gone: no session can go on here.
    #[error("this policy worker's model is gone: {why}")]
    Gone {
        /// What happened.
        why: String,
    },
}

/// What it took to bring weights into use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// To read, verify and make them ready, beside running sessions.
    pub load_micros: u64,
    /// In which nothing else ran.
    pub pause_micros: u64,
    /// Sessions that were there.
    pub sessions: u32,
}

/// Opens sessions.
#[tonic::async_trait]
pub trait Policy: Send + Sync + 'static {
    /// What the records call it.
    fn kind(&self) -> PolicyKind;

    /// Whether environment workers should run the pages' demonstrations for it.
    fn wants_hints(&self) -> bool;

    /// Hashes of what it is made of now.
    fn hashes(&self) -> Hashes;

    /// Version of its weights, if it has weights.
    fn version(&self) -> Option<PolicyVersion> {
        None
    }

    /// Sessions it can hold at once, if it knows a limit of its own.
    fn places(&self) -> Option<u32> {
        None
    }

    /// Brings published weights into use beside running sessions. Those in use stay when it says why not.
    async fn take_weights(&self, _order: &WeightsOrder) -> Result<Taken, String> {
        Err(format!("a {} policy has no weights", self.kind().as_str()))
    }

    /// Opens a session: from its beginning, or to be told its past.
    async fn open(&self, opening: &Opening) -> Result<Box<dyn Session>, PolicyError>;

    /// Resolves when no session can go on any more, with the reason.
    async fn failed(&self) -> String {
        std::future::pending().await
    }

    /// Lets go of all it holds. Sessions that are still open can do nothing any more.
    async fn stop(&self) {}
}

/// Turns observations into replies. Dropping it frees all it holds.
#[tonic::async_trait]
pub trait Session: Send {
    /// Brings the session up to a step that was acted elsewhere. Called for each earlier step in order, before any `act`.
    async fn recall(&mut self, past: PastStep) -> Result<(), PolicyError>;

    /// Answers one observation.
    async fn act(&mut self, turn: Turn<'_>) -> Result<Answer, PolicyError>;
}

/// A trace without tokens, for policies that have none.
pub(crate) fn tokenless(kind: PolicyKind) -> Trace {
    Trace {
        policy_kind: kind,
        policy_version: None,
        state_version_min: None,
        tokens: None,
        engine: Default::default(),
        scored_again: Vec::new(),
    }
}
