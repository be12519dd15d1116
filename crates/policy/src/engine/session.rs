//! What a session has in every phase, and what is left of its step when that ends.

use furrow_model::backend::OffloadedState;
use furrow_rollout::{FinishReason, PolicyVersion, StateOrigin};
use tokio_util::sync::CancellationToken;

use super::reply::Reply;
use super::step::{GenerationRequest, StepCosts, StepOutput, StepSender};
use crate::response::TokenColumns;
use crate::sequence::{Sequence, TokenSegment};
use crate::slots::{Allocation, PageReservation};
use crate::snapshots::SnapshotKey;

/// What a session has in every phase.
pub(super) struct SessionCore {
    /// Cancelled when its owner has dropped it.
    pub life: CancellationToken,
    /// Version of the weights it stays on; `None`: the newest.
    pub pinned: Option<PolicyVersion>,
    /// The kept tokens. While a step extends them by its reply, prompt and reply too.
    pub base: Sequence,
    /// Oldest version that wrote a part of the base's state.
    pub version_min: Option<PolicyVersion>,
    /// Where the state of its next reply came from, if it was not resident.
    pub origin: Option<StateOrigin>,
    /// Cost of rebuilding its past, which is added to the next reply.
    pub rebuild_costs: StepCosts,
}

/// Location of the base's state while no step runs.
#[derive(Debug)]
pub(super) enum StateTier {
    /// No token has run yet.
    Empty,
    Device(Allocation),
    Host(OffloadedState),
}

/// A session between two steps.
pub(super) struct IdleSession {
    pub core: SessionCore,
    pub state: StateTier,
    /// When its last step ended, on the engine's clock; the idlest is offloaded first.
    pub touched: u64,
}

/// A session whose step has ended, and the answer.
pub(super) struct FinishedStep {
    pub session: IdleSession,
    pub done: StepSender,
    pub output: StepOutput,
}

/// A step at its end, without its session.
pub(super) struct EndedStep {
    pub done: StepSender,
    /// `None` after a rebuild.
    pub reply: Option<Reply>,
    pub costs: StepCosts,
    /// Oldest version that wrote a part of the fork's state.
    pub fork_version_min: Option<PolicyVersion>,
    pub finish_reason: FinishReason,
}

/// Everything a session had on the device and in host memory.
pub(super) struct ReleasedSession {
    pub state: StateTier,
    /// Its step, if it had one.
    pub step: Option<ReleasedStep>,
}

/// A step without an answer, whose session is removed.
pub(super) struct ReleasedStep {
    pub done: StepSender,
    pub resources: StepResources,
}

/// What to free when a step ends.
#[derive(Default)]
pub(super) struct StepResources {
    pub reserve: PageReservation,
    pub promised: Vec<(u32, SnapshotKey)>,
    /// Slot and pages of the fork.
    pub fork: Option<Allocation>,
}

impl SessionCore {
    /// Length of the longest sequence that a step makes.
    pub(super) fn tokens_with(&self, kept: &[TokenSegment], ask: Option<&GenerationRequest>) -> u32 {
        let kept: usize = kept.iter().map(|segment| segment.ids.len()).sum();
        let shown = ask.map_or(0, |ask| ask.prompt.ids.len() + ask.tokens_max as usize);
        self.base.len().saturating_add((kept + shown).min(u32::MAX as usize) as u32)
    }

    /// Ends a step. `version` is that of the weights the session runs on.
    pub(super) fn finish(
        mut self,
        state: StateTier,
        step: EndedStep,
        version: PolicyVersion,
    ) -> FinishedStep {
        let EndedStep { done, reply, mut costs, fork_version_min, finish_reason } = step;
        let versions = [self.version_min, fork_version_min].into_iter().flatten();
        let state_version_min = versions.min().unwrap_or(version);
        let output = match reply {
            None => {
                self.rebuild_costs.add(&costs);
                let engine = StepCosts::default().account(StateOrigin::Resident);
                StepOutput { columns: TokenColumns::default(), finish_reason, state_version_min, engine }
            }
            Some(reply) => {
                let rebuild = std::mem::take(&mut self.rebuild_costs);
                costs.reused_tokens = costs.reused_tokens.saturating_sub(rebuild.prefill_tokens);
                costs.add(&rebuild);
                let origin = self.origin.take().unwrap_or(StateOrigin::Resident);
                let engine = costs.account(origin);
                StepOutput { columns: reply.into_columns(), finish_reason, state_version_min, engine }
            }
        };
        FinishedStep { session: IdleSession { core: self, state, touched: 0 }, done, output }
    }
}

impl IdleSession {
    /// A session without a token.
    pub(super) fn new(
        life: CancellationToken,
        origin: Option<StateOrigin>,
        pinned: Option<PolicyVersion>,
    ) -> Self {
        let core = SessionCore {
            life,
            pinned,
            base: Sequence::default(),
            version_min: None,
            origin,
            rebuild_costs: StepCosts::default(),
        };
        Self { core, state: StateTier::Empty, touched: 0 }
    }
}

impl EndedStep {
    /// A step that ends when it arrives.
    pub(super) fn at_once(done: StepSender, reply: Option<Reply>, finish_reason: FinishReason) -> Self {
        Self { done, reply, costs: StepCosts::default(), fork_version_min: None, finish_reason }
    }
}
