//! The phases of a session, and every transition between them.
//!
//! Each phase is a type that owns what exists in it alone: only a running session has a stage, only
//! a session at rest can have its state in host memory. A transition consumes one phase and returns
//! the next. A running session passes through stages (`running.rs`).
//!
//! | from | when | to | by |
//! |---|---|---|---|
//! | | it is opened | idle | [`IdleSession::new`] |
//! | idle | a step arrives | waiting | [`IdleSession::begin`] |
//! | idle | a step arrives with nothing to run | idle, answered | [`IdleSession::begin`] |
//! | idle | no token precedes the reply | removed, answered | [`IdleSession::begin`] |
//! | idle, waiting | another step needs its slot | the same, offloaded | [`RestingState`] |
//! | waiting | slots and pages are free | running | [`WaitingSession::admit`] |
//! | running | the last kept token of a rebuild ran | idle, answered | [`RunningSession::finish`] |
//! | running | the last token before a fork ran | running | [`RunningSession::after_span`] |
//! | running | the reply is complete | idle, answered | [`RunningSession::finish`] |
//! | any | it is closed, abandoned or at fault | removed | [`EngineSession::release`] |
//!
//! A reply that needs no sampled token is complete when its step arrives. A rebuild of which a
//! sibling's snapshot holds all tokens is complete when it is admitted.

use furrow_model::backend::{OffloadedState, Slot};
use furrow_rollout::{FinishReason, PolicyVersion, StateOrigin};

use super::reply::Reply;
use super::running::{RunningSession, SequenceFork, Stage};
use super::session::{
    EndedStep, FinishedStep, IdleSession, ReleasedSession, ReleasedStep, SessionCore, StateTier,
    StepResources,
};
use super::step::{GenerationRequest, PendingStep};
use crate::response::ResponseState;
use crate::sequence::{Sequence, TokenSegment};
use crate::slots::{Allocation, Allocator, PageReservation, pages_for};

/// A session of the engine, in one of its phases.
pub(super) enum EngineSession {
    /// It waits for its next step.
    Idle(IdleSession),
    /// A step waits for slots and pages.
    Waiting(WaitingSession),
    /// A step has slots and pages, and runs.
    Running(RunningSession),
}

/// A session whose step waits for slots and pages.
pub(super) struct WaitingSession {
    pub core: SessionCore,
    pub state: StateTier,
    pub step: PendingStep,
    pub work: StepWork,
}

/// What a step runs.
pub(super) enum StepWork {
    /// The kept tokens, without a reply. The base has spans to run.
    Rebuild,
    /// A reply that extends the base. The base has spans to run.
    Extend(Reply),
    /// A reply on a fork, after the kept tokens. The fork has spans to run.
    Fork { sequence: Sequence, reply: Reply },
}

/// Result of the arrival of a step.
pub(super) enum BegunStep {
    Waiting(WaitingSession),
    /// Nothing of it needs to run.
    Finished(FinishedStep),
    /// No token precedes the reply, so there are no logits to sample from.
    NoPrompt(WaitingSession),
}

/// What has to happen to the base's slot before a step runs.
pub(super) enum BaseFill {
    /// It holds the base's state, or the base has no slot because none of its tokens runs.
    Nothing,
    /// It must hold the state before any token.
    Clear,
    Restore(OffloadedState),
}

/// A session that can be offloaded if its state is on the device.
pub(super) struct RestingState<'a> {
    /// The lower, the earlier it is offloaded: sessions that wait for nothing come first, and among
    /// them the one that has been idle longest.
    pub order: (bool, u64),
    pub state: &'a mut StateTier,
}

impl EngineSession {
    pub(super) fn core(&self) -> &SessionCore {
        match self {
            Self::Idle(session) => &session.core,
            Self::Waiting(session) => &session.core,
            Self::Running(session) => &session.core,
        }
    }

    /// The location of its state; `None` while a step runs on it.
    pub(super) fn at_rest(&mut self) -> Option<RestingState<'_>> {
        match self {
            Self::Idle(session) => {
                Some(RestingState { order: (false, session.touched), state: &mut session.state })
            }
            Self::Waiting(session) => {
                Some(RestingState { order: (true, session.step.since), state: &mut session.state })
            }
            Self::Running(_) => None,
        }
    }

    /// Ends the session in whatever phase it is.
    pub(super) fn release(self) -> ReleasedSession {
        match self {
            Self::Idle(session) => ReleasedSession { state: session.state, step: None },
            Self::Waiting(WaitingSession { state, step, .. }) => {
                let resources = StepResources::default();
                ReleasedSession { state, step: Some(ReleasedStep { done: step.done, resources }) }
            }
            Self::Running(session) => session.release(),
        }
    }
}

impl IdleSession {
    /// Adds kept tokens and starts the prompt. `version` is that of the weights the session runs
    /// on.
    pub(super) fn begin(
        self,
        kept: Vec<TokenSegment>,
        ask: Option<GenerationRequest>,
        step: PendingStep,
        chunk: u32,
        version: PolicyVersion,
    ) -> BegunStep {
        let Self { mut core, state, .. } = self;
        for segment in kept {
            core.base.extend(segment, chunk);
        }
        let Some(GenerationRequest { prompt, keeps_reply, response, tokens_max }) = ask else {
            if core.base.next().is_none() {
                let ended = EndedStep::at_once(step.done, None, FinishReason::Stop);
                return BegunStep::Finished(core.finish(state, ended, version));
            }
            return BegunStep::Waiting(WaitingSession { core, state, step, work: StepWork::Rebuild });
        };
        let mut reply = Reply::new(response, tokens_max);
        let mut fork = (!keeps_reply).then(|| core.base.fork());
        let sequence = fork.as_mut().unwrap_or(&mut core.base);
        sequence.extend(prompt, chunk);
        let response = reply.proceed(sequence, chunk, version);
        let has_spans = sequence.next().is_some();
        if let ResponseState::Finished(reason) = response {
            let ended = EndedStep::at_once(step.done, Some(reply), reason);
            return BegunStep::Finished(core.finish(state, ended, version));
        }
        let work = match fork {
            Some(sequence) => StepWork::Fork { sequence, reply },
            None => StepWork::Extend(reply),
        };
        let session = WaitingSession { core, state, step, work };
        if has_spans { BegunStep::Waiting(session) } else { BegunStep::NoPrompt(session) }
    }
}

impl WaitingSession {
    /// The sequence that runs first.
    pub(super) fn first_sequence(&self) -> &Sequence {
        match &self.work {
            StepWork::Fork { sequence, .. } if self.core.base.next().is_none() => sequence,
            _ => &self.core.base,
        }
    }

    /// Allocates the slots and pages of the step. The caller has freed the slots, and fills them.
    pub(super) fn admit(
        self,
        allocator: &mut Allocator,
        mut reserve: PageReservation,
    ) -> (RunningSession, BaseFill) {
        let Self { mut core, state, step, work } = self;
        if matches!(state, StateTier::Host(_)) {
            core.origin.get_or_insert(StateOrigin::Offloaded);
        }
        let kept = core.base.done();
        let mut on_device = |state: StateTier| state.on_device(kept, allocator, &mut reserve);
        let (stage, fill) = match work {
            StepWork::Rebuild => {
                let (base, fill) = on_device(state);
                (Stage::Rebuild { base }, fill)
            }
            StepWork::Extend(reply) => {
                let (base, fill) = on_device(state);
                (Stage::Extend { base, reply }, fill)
            }
            StepWork::Fork { sequence, reply } if core.base.next().is_some() => {
                let (base, fill) = on_device(state);
                let fork = SequenceFork::new(sequence, freed_slot(allocator));
                (Stage::BeforeFork { base, fork, reply }, fill)
            }
            StepWork::Fork { sequence, reply } => {
                let (base, fill) = match state {
                    StateTier::Empty => (None, BaseFill::Nothing),
                    state => {
                        let (base, fill) = on_device(state);
                        (Some(base), fill)
                    }
                };
                let fork = SequenceFork::new(sequence, freed_slot(allocator));
                (Stage::OnFork { base, fork, reply }, fill)
            }
        };
        (RunningSession::new(core, step, reserve, stage), fill)
    }
}

impl StateTier {
    /// Slot and pages for this state of `tokens` tokens, and how they are to be filled.
    fn on_device(
        self,
        tokens: u32,
        allocator: &mut Allocator,
        reserve: &mut PageReservation,
    ) -> (Allocation, BaseFill) {
        match self {
            Self::Device(allocation) => (allocation, BaseFill::Nothing),
            Self::Empty => (Allocation { slot: freed_slot(allocator), pages: Vec::new() }, BaseFill::Clear),
            Self::Host(offloaded) => {
                let slot = freed_slot(allocator);
                let pages = allocator.take_pages(pages_for(tokens), reserve);
                (Allocation { slot, pages }, BaseFill::Restore(offloaded))
            }
        }
    }
}

/// A slot that was freed for the step that takes it.
fn freed_slot(allocator: &mut Allocator) -> Slot {
    allocator.take_slot().unwrap_or_else(|| unreachable!("the caller freed a slot"))
}
