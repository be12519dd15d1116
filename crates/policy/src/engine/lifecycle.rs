//! Sessions open, begin steps, get answers and end.

use furrow_model::backend::DeviceLost;
use furrow_rollout::{FinishReason, PolicyVersion, StateOrigin};
use tokio_util::sync::CancellationToken;

use super::phase::{BegunStep, EngineSession};
use super::running::RunningSession;
use super::session::{
    FinishedStep, IdleSession, ReleasedSession, ReleasedStep, SessionCore, StateTier, StepResources,
};
use super::step::{GenerationRequest, PendingStep, StepSender};
use super::{Engine, EngineFault, SessionId};
use crate::sequence::TokenSegment;

impl Engine {
    pub(super) fn open(
        &mut self,
        id: SessionId,
        rebuilt: bool,
        life: CancellationToken,
    ) -> Result<(), EngineFault> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone().into());
        }
        if let Some(broken) = self.refusal() {
            return Err(broken);
        }
        if self.sessions.len() >= self.sessions_max as usize {
            return Err(EngineFault::Full { sessions_max: self.sessions_max });
        }
        let origin = rebuilt.then_some(StateOrigin::Rebuilt);
        let pinned = self.version_to_pin();
        self.sessions.insert(id, EngineSession::Idle(IdleSession::new(life, origin, pinned)));
        Ok(())
    }

    /// Begins a step. Answers it if there is nothing to run, or with a fault.
    pub(super) fn begin(
        &mut self,
        id: SessionId,
        kept: Vec<TokenSegment>,
        ask: Option<GenerationRequest>,
        done: StepSender,
    ) {
        self.clock += 1;
        let Some(session) = self.sessions.take_idle(id) else {
            tracing::debug!(session = id.0, "a step arrived for a session that has ended or has a step");
            return answer_fault(done, self.refusal().unwrap_or(EngineFault::Gone));
        };
        if let Err(fault) = self.check_length(&session.core, &kept, ask.as_ref()) {
            self.sessions.insert(id, EngineSession::Idle(session));
            return answer_fault(done, fault);
        }
        let version = self.version_of(&session.core);
        let step = PendingStep::new(done, self.clock);
        match session.begin(kept, ask, step, self.settings.chunk, version) {
            BegunStep::Waiting(session) => self.sessions.insert(id, EngineSession::Waiting(session)),
            BegunStep::Finished(finished) => {
                self.clock += 1;
                self.answer(id, finished);
            }
            BegunStep::NoPrompt(session) => {
                if let Some(done) = self.release(EngineSession::Waiting(session)) {
                    answer_fault(done, EngineFault::NoPrompt);
                }
            }
        }
    }

    fn check_length(
        &self,
        session: &SessionCore,
        kept: &[TokenSegment],
        ask: Option<&GenerationRequest>,
    ) -> Result<(), EngineFault> {
        let tokens = session.tokens_with(kept, ask);
        let tokens_max = self.settings.context_tokens_max;
        if tokens > tokens_max { Err(EngineFault::TooLong { tokens, tokens_max }) } else { Ok(()) }
    }

    /// Ends a session's step, frees what it had and answers it.
    pub(super) fn finish(&mut self, id: SessionId, session: RunningSession, finish_reason: FinishReason) {
        self.clock += 1;
        let version = self.version_of(&session.core);
        let (finished, resources) = session.finish(finish_reason, version);
        self.release_step(resources);
        self.answer(id, finished);
    }

    fn answer(&mut self, id: SessionId, finished: FinishedStep) {
        let FinishedStep { mut session, done, output } = finished;
        session.touched = self.clock;
        self.sessions.insert(id, EngineSession::Idle(session));
        // The caller may have left; the session's token is cancelled then.
        done.send(Ok(output)).ok();
    }

    /// Removes sessions whose owners have dropped them.
    pub(super) fn sweep(&mut self) {
        self.sessions.abandoned().into_iter().for_each(|id| self.close(id));
    }

    pub(super) fn close(&mut self, id: SessionId) {
        // Dropping the sender tells the caller that the session has ended.
        drop(self.remove(id));
    }

    pub(super) fn close_all(&mut self) {
        self.sessions.ids().into_iter().for_each(|id| self.close(id));
    }

    /// Ends a session and its step with a fault. Its state cannot be used any more.
    pub(super) fn fail(&mut self, id: SessionId, fault: EngineFault) {
        if let Some(done) = self.remove(id) {
            answer_fault(done, fault);
        }
    }

    /// Removes a session and frees everything it has. Returns the sender of its step, if it has
    /// one.
    fn remove(&mut self, id: SessionId) -> Option<StepSender> {
        match self.sessions.remove(id) {
            Some(session) => self.release(session),
            None => {
                // A `Close` may arrive after the session was swept.
                tracing::debug!(session = id.0, "a session that has ended is closed again");
                None
            }
        }
    }

    /// Frees everything that a session has. Returns the sender of its step, if it has one.
    fn release(&mut self, session: EngineSession) -> Option<StepSender> {
        let ReleasedSession { state, step } = session.release();
        self.release_state(state);
        step.map(|ReleasedStep { done, resources }| {
            self.release_step(resources);
            done
        })
    }

    pub(super) fn release_state(&mut self, state: StateTier) {
        match state {
            StateTier::Empty => {}
            StateTier::Device(allocation) => self.allocator.release(allocation),
            StateTier::Host(offloaded) => self.offload_budget.release(&offloaded),
        }
    }

    fn release_step(&mut self, resources: StepResources) {
        let StepResources { reserve, promised, fork } = resources;
        self.allocator.unreserve(reserve);
        for (_, name) in promised {
            self.snapshots.settle(&name);
        }
        if let Some(allocation) = fork {
            self.allocator.release(allocation);
        }
    }

    /// Why no session can be opened or continued on the newest weights, if they are broken.
    pub(super) fn refusal(&self) -> Option<EngineFault> {
        self.breaker.of(self.weight_versions.newest()).map(EngineFault::Broken)
    }

    /// Ends the sessions of a version that turned out to be broken. They can continue on another
    /// worker, and here once other weights are in use.
    pub(super) fn end_if_broken(&mut self, version: PolicyVersion) -> Result<(), DeviceLost> {
        let Some(broken) = self.breaker.of(version) else { return Ok(()) };
        self.breaker.check_device(broken)?;
        for id in self.sessions.ids_where(|session| self.version_of(session) == version) {
            self.fail(id, EngineFault::Broken(broken));
        }
        Ok(())
    }

    /// Answers every request with the device's failure. No session is at fault.
    pub(super) fn fail_all(&mut self, lost: DeviceLost) {
        if self.lost.is_none() {
            tracing::error!(
                why = lost.0,
                sessions = self.sessions.len(),
                "the device failed; its sessions can continue on another worker"
            );
        }
        for id in self.sessions.ids() {
            self.fail(id, lost.clone().into());
        }
        self.lose_weights(&lost);
        self.lost = Some(lost);
    }
}

fn answer_fault(done: StepSender, fault: EngineFault) {
    // The caller may have left; the session's token is cancelled then.
    done.send(Err(fault)).ok();
}
