//! A session whose step runs: its stage, and the sequence that runs in it.
//!
//! The active sequence of a running session has a span to run, except between a batch's end and the
//! token sampled from it.

use std::ops::Range;
use std::time::Instant;

use furrow_model::backend::Slot;
use furrow_rollout::{FinishReason, PolicyVersion};

use super::reply::Reply;
use super::session::{
    EndedStep, FinishedStep, ReleasedSession, ReleasedStep, SessionCore, StateTier, StepResources,
};
use super::step::{PendingStep, StepCosts, StepSender};
use crate::response::PartialResponse;
use crate::sequence::Sequence;
use crate::slots::{Allocation, PageReservation};
use crate::snapshots::SnapshotKey;

/// A session whose step has its slots and pages.
pub(super) struct RunningSession {
    pub core: SessionCore,
    pub step: RunningStep,
    stage: Stage,
}

/// What a step has in all stages.
pub(super) struct RunningStep {
    done: StepSender,
    pub arrived: Instant,
    /// When it arrived, on the engine's clock; later, when it last decoded.
    pub since: u64,
    /// Whether its next span was deferred once, because it would have blocked a batch.
    pub was_left_out: bool,
    pub costs: StepCosts,
    /// Pages reserved for it.
    reserve: PageReservation,
    /// Snapshots it will make, by position.
    pub promised: Vec<(u32, SnapshotKey)>,
}

/// What a step runs now, and where.
pub(super) enum Stage {
    /// The kept tokens, after which the step ends.
    Rebuild { base: Allocation },
    /// Kept tokens, prompt and reply, all on the base.
    Extend { base: Allocation, reply: Reply },
    /// The kept tokens, after which the fork begins with a copy of their state.
    BeforeFork { base: Allocation, fork: SequenceFork, reply: Reply },
    /// Prompt and reply. Without a base, the fork begins with the empty state.
    OnFork { base: Option<Allocation>, fork: SequenceFork, reply: Reply },
}

/// Prompt and reply that run beside the base and are dropped.
pub(super) struct SequenceFork {
    /// Begins where the base ends.
    pub sequence: Sequence,
    pub allocation: Allocation,
    /// Oldest version that wrote a part of its state.
    pub version_min: Option<PolicyVersion>,
}

/// A running session after a span.
pub(super) enum AfterSpan {
    /// It stays in its stage.
    Runs(RunningSession),
    /// It has entered the fork, whose slot needs a copy of the base's state.
    ForkBegins(RunningSession),
    /// Its past is rebuilt, and no reply is requested.
    Rebuilt(RunningSession),
}

/// The sequence that runs now, and its state.
pub(super) struct ActiveSequence<'a> {
    pub sequence: &'a Sequence,
    pub allocation: &'a Allocation,
    pub version_min: Option<PolicyVersion>,
}

/// The sequence that runs now, its state and the pages reserved for both.
pub(super) struct ActiveSequenceMut<'a> {
    pub sequence: &'a mut Sequence,
    pub allocation: &'a mut Allocation,
    pub version_min: &'a mut Option<PolicyVersion>,
    pub reserve: &'a mut PageReservation,
}

impl SequenceFork {
    pub(super) fn new(sequence: Sequence, slot: Slot) -> Self {
        Self { sequence, allocation: Allocation { slot, pages: Vec::new() }, version_min: None }
    }
}

impl RunningSession {
    pub(super) fn new(core: SessionCore, step: PendingStep, reserve: PageReservation, stage: Stage) -> Self {
        let PendingStep { done, since, arrived } = step;
        let slot = match &stage {
            Stage::Rebuild { base } | Stage::Extend { base, .. } => base.slot,
            Stage::BeforeFork { fork, .. } | Stage::OnFork { fork, .. } => fork.allocation.slot,
        };
        let costs = StepCosts { slot: Some(slot.0), ..StepCosts::default() };
        let was_left_out = false;
        let promised = Vec::new();
        let step = RunningStep { done, arrived, since, was_left_out, costs, reserve, promised };
        Self { core, step, stage }
    }

    /// The sequence to run. The kept tokens run first.
    pub(super) fn active(&self) -> ActiveSequence<'_> {
        match &self.stage {
            Stage::Rebuild { base } | Stage::Extend { base, .. } | Stage::BeforeFork { base, .. } => {
                ActiveSequence {
                    sequence: &self.core.base,
                    allocation: base,
                    version_min: self.core.version_min,
                }
            }
            Stage::OnFork { fork, .. } => ActiveSequence {
                sequence: &fork.sequence,
                allocation: &fork.allocation,
                version_min: fork.version_min,
            },
        }
    }

    /// The same sequence, mutable.
    pub(super) fn active_mut(&mut self) -> ActiveSequenceMut<'_> {
        let Self { core, step, stage } = self;
        let reserve = &mut step.reserve;
        match stage {
            Stage::Rebuild { base } | Stage::Extend { base, .. } | Stage::BeforeFork { base, .. } => {
                ActiveSequenceMut {
                    sequence: &mut core.base,
                    allocation: base,
                    version_min: &mut core.version_min,
                    reserve,
                }
            }
            Stage::OnFork { fork, .. } => ActiveSequenceMut {
                sequence: &mut fork.sequence,
                allocation: &mut fork.allocation,
                version_min: &mut fork.version_min,
                reserve,
            },
        }
    }

    /// The base's slot and pages, if the step runs or copies its state.
    pub(super) fn base(&self) -> Option<&Allocation> {
        match &self.stage {
            Stage::Rebuild { base } | Stage::Extend { base, .. } | Stage::BeforeFork { base, .. } => {
                Some(base)
            }
            Stage::OnFork { base, .. } => base.as_ref(),
        }
    }

    /// The fork, if the step has one.
    pub(super) fn fork(&self) -> Option<&SequenceFork> {
        match &self.stage {
            Stage::Rebuild { .. } | Stage::Extend { .. } => None,
            Stage::BeforeFork { fork, .. } | Stage::OnFork { fork, .. } => Some(fork),
        }
    }

    /// The state with which the fork begins and the fork, once the kept tokens have run.
    pub(super) fn fork_source(&mut self) -> Option<(ActiveSequence<'_>, &mut SequenceFork)> {
        let Self { core, stage, .. } = self;
        match stage {
            Stage::OnFork { base: Some(base), fork, .. } => {
                let base =
                    ActiveSequence { sequence: &core.base, allocation: base, version_min: core.version_min };
                Some((base, fork))
            }
            _ => None,
        }
    }

    /// The reply and the sequence that it extends, once that sequence runs.
    pub(super) fn replying(&mut self) -> Option<(&mut Reply, &mut Sequence)> {
        match &mut self.stage {
            Stage::Rebuild { .. } | Stage::BeforeFork { .. } => None,
            Stage::Extend { reply, .. } => Some((reply, &mut self.core.base)),
            Stage::OnFork { reply, fork, .. } => Some((reply, &mut fork.sequence)),
        }
    }

    /// The response whose next token is sampled from the logits of the next span.
    pub(super) fn sampling(&self) -> Option<&PartialResponse> {
        let (reply, sequence) = match &self.stage {
            Stage::Rebuild { .. } | Stage::BeforeFork { .. } => return None,
            Stage::Extend { reply, .. } => (reply, &self.core.base),
            Stage::OnFork { reply, fork, .. } => (reply, &fork.sequence),
        };
        sequence.is_last().then(|| reply.response())
    }

    /// Whether a token was sampled already.
    pub(super) fn is_decoding(&self) -> bool {
        match &self.stage {
            Stage::Rebuild { .. } | Stage::BeforeFork { .. } => false,
            Stage::Extend { reply, .. } | Stage::OnFork { reply, .. } => reply.has_sampled(),
        }
    }

    /// The span after the active one if that runs now; otherwise the active one.
    pub(super) fn span_ahead(&self, is_running: bool) -> Option<(&Sequence, Range<u32>)> {
        let sequence = self.active().sequence;
        if !is_running {
            return Some((sequence, sequence.next()?));
        }
        match (sequence.after_next(), &self.stage) {
            (Some(span), _) => Some((sequence, span)),
            (None, Stage::BeforeFork { fork, .. }) => Some((&fork.sequence, fork.sequence.next()?)),
            (None, _) => None,
        }
    }

    /// Whether the step can begin with a state that a sibling left at this position. A reply needs
    /// a span after it, to have logits to sample from.
    pub(super) fn can_start_at(&self, position: u32) -> bool {
        match &self.stage {
            Stage::Rebuild { .. } | Stage::BeforeFork { .. } => true,
            Stage::Extend { .. } | Stage::OnFork { .. } => position < self.active().sequence.planned(),
        }
    }

    /// Marks the span as run on weights of this version. Returns whether siblings may fork from its
    /// end.
    pub(super) fn advance(&mut self, version: PolicyVersion) -> bool {
        self.step.was_left_out = false;
        let active = self.active_mut();
        active.version_min.get_or_insert(version);
        active.sequence.advance()
    }

    /// Whether its stage is over because the kept tokens have run.
    pub(super) fn has_run_kept(&self) -> bool {
        match &self.stage {
            Stage::Rebuild { .. } | Stage::BeforeFork { .. } => self.core.base.next().is_none(),
            Stage::Extend { .. } | Stage::OnFork { .. } => false,
        }
    }

    /// Enters the next stage if the kept tokens have run.
    pub(super) fn after_span(self) -> AfterSpan {
        let has_run_kept = self.has_run_kept();
        let Self { core, step, stage } = self;
        match stage {
            Stage::BeforeFork { base, fork, reply } if has_run_kept => {
                let stage = Stage::OnFork { base: Some(base), fork, reply };
                AfterSpan::ForkBegins(Self { core, step, stage })
            }
            Stage::Rebuild { .. } if has_run_kept => AfterSpan::Rebuilt(Self { core, step, stage }),
            stage => AfterSpan::Runs(Self { core, step, stage }),
        }
    }

    /// Ends the step. `version` is that of the weights the session runs on.
    pub(super) fn finish(
        self,
        finish_reason: FinishReason,
        version: PolicyVersion,
    ) -> (FinishedStep, StepResources) {
        let Self { core, step, stage } = self;
        let (state, fork, reply) = stage.into_parts();
        let fork_version_min = fork.as_ref().and_then(|fork| fork.version_min);
        let RunningStep { done, costs, reserve, promised, .. } = step;
        let ended = EndedStep { done, reply, costs, fork_version_min, finish_reason };
        let resources = StepResources { reserve, promised, fork: fork.map(|fork| fork.allocation) };
        (core.finish(state, ended, version), resources)
    }

    /// Ends the session without an answer to its step.
    pub(super) fn release(self) -> ReleasedSession {
        let (state, fork, _) = self.stage.into_parts();
        let RunningStep { done, reserve, promised, .. } = self.step;
        let resources = StepResources { reserve, promised, fork: fork.map(|fork| fork.allocation) };
        ReleasedSession { state, step: Some(ReleasedStep { done, resources }) }
    }

    /// The stage, for tests of its transitions.
    #[cfg(test)]
    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }
}

impl RunningStep {
    /// The snapshot promised to siblings at this position. `None` if another session makes it, or
    /// new weights withdrew the promise.
    pub(super) fn take_promised(&mut self, position: u32) -> Option<SnapshotKey> {
        let index = self.promised.iter().position(|(promised, _)| *promised == position)?;
        Some(self.promised.swap_remove(index).1)
    }
}

impl Stage {
    /// The base's state, the fork and the reply.
    fn into_parts(self) -> (StateTier, Option<SequenceFork>, Option<Reply>) {
        match self {
            Self::Rebuild { base } => (StateTier::Device(base), None, None),
            Self::Extend { base, reply } => (StateTier::Device(base), None, Some(reply)),
            Self::BeforeFork { base, fork, reply } => (StateTier::Device(base), Some(fork), Some(reply)),
            Self::OnFork { base, fork, reply } => {
                (base.map_or(StateTier::Empty, StateTier::Device), Some(fork), Some(reply))
            }
        }
    }
}
