//! A session of the engine and its current step: the prompt, the reply sampled so far, and the next
//! span.

use std::time::Instant;

use furrow_model::backend::OffloadedState;
use furrow_model::sample::{SampledToken, TokenRanking};
use furrow_rollout::{EngineStats, FinishReason, PolicyVersion, StateOrigin};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Engine, EngineFault, SessionId};
use crate::constrain::IllegalToken;
use crate::response::{PartialResponse, ResponseState, TokenColumns};
use crate::sequence::{Sequence, TokenSegment};
use crate::slots::{Allocation, PageReservation};
use crate::snapshots::SnapshotKey;

/// A prompt and how to reply to it.
pub struct GenerationRequest {
    /// Follows the kept tokens. Its last chunk group stays open, because forced tokens may join it.
    pub prompt: TokenSegment,
    /// Whether prompt and reply stay after the kept tokens; otherwise they run on a fork that is
    /// dropped.
    pub keeps_reply: bool,
    /// The empty response with its sampling settings and its constraint.
    pub response: PartialResponse,
    /// Most tokens of the response, appended ones included.
    pub tokens_max: u32,
}

/// A reply and its trace.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    /// The tokens of the reply with their columns.
    pub columns: TokenColumns,
    pub finish_reason: FinishReason,
    /// Oldest version that wrote a part of the state it was sampled from.
    pub state_version_min: PolicyVersion,
    /// What the step cost; the caller fills `worker` and `service_micros`.
    pub engine: EngineStats,
}

/// A session of the engine.
pub struct EngineSession {
    /// Cancelled when its owner has dropped it.
    pub life: CancellationToken,
    pub base: Sequence,
    /// Version of the weights it stays on; `None`: the newest.
    pub pinned: Option<PolicyVersion>,
    /// Location of the base's state.
    pub state: StateTier,
    /// Oldest version that wrote a part of that state.
    pub version_min: Option<PolicyVersion>,
    /// Where the state of its next reply came from, if it was not resident.
    pub origin: Option<StateOrigin>,
    /// Cost of rebuilding its past, which is added to the next reply.
    pub rebuild_costs: StepCosts,
    pub step: Option<Step>,
    /// When it was last used, on the engine's clock; the idlest is offloaded first.
    pub touched: u64,
}

/// Location of a base's state.
#[derive(Debug)]
pub enum StateTier {
    /// No token has run yet.
    Empty,
    Device(Allocation),
    Host(OffloadedState),
}

/// Prompt and reply that run beside the base and are dropped.
pub struct SequenceFork {
    /// Begins where the base ends.
    pub sequence: Sequence,
    /// Its slot and pages, from the admission of the step.
    pub allocation: Option<Allocation>,
}

/// One step of a session.
pub struct Step {
    /// Receives the result; `None` once answered.
    pub done: Option<oneshot::Sender<Result<StepOutput, EngineFault>>>,
    /// The fork for prompt and reply, if they do not stay.
    pub fork: Option<SequenceFork>,
    /// Pages reserved for it.
    pub reserve: PageReservation,
    /// Snapshots it will make, by position.
    pub promised: Vec<(u32, SnapshotKey)>,
    /// Whether its slots and pages are allocated.
    pub is_admitted: bool,
    /// Whether its next span was deferred once, because it would have blocked a batch.
    pub was_left_out: bool,
    /// When it arrived, on the engine's clock; later, when it last decoded.
    pub since: u64,
    /// Oldest version that wrote a part of its state.
    pub version_min: Option<PolicyVersion>,
    pub costs: StepCosts,
    pub arrived: Instant,
    pending: Option<PendingResponse>,
}

struct PendingResponse {
    response: PartialResponse,
    tokens_max: u32,
}

/// The costs of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepCosts {
    /// Tokens run before the first sampled one.
    pub prefill_tokens: u32,
    /// Tokens that the state held when the step was admitted.
    pub reused_tokens: u32,
    /// Spans run after the first sampled token.
    pub decode_steps: u32,
    /// Sessions that decoded in these batches, summed.
    pub decoded_together: u64,
    /// Microseconds from its arrival to its first batch.
    pub queue_micros: Option<u64>,
    /// Its share of the device's time, in microseconds.
    pub device_micros: f64,
    /// Slot it ran in.
    pub slot: Option<u32>,
}

impl EngineSession {
    pub fn new(life: CancellationToken, origin: Option<StateOrigin>, pinned: Option<PolicyVersion>) -> Self {
        Self {
            life,
            pinned,
            base: Sequence::default(),
            state: StateTier::Empty,
            version_min: None,
            origin,
            rebuild_costs: StepCosts::default(),
            step: None,
            touched: 0,
        }
    }

    /// Length of the longest sequence that a step makes.
    pub fn tokens_with(&self, kept: &[TokenSegment], ask: Option<&GenerationRequest>) -> u32 {
        let kept: usize = kept.iter().map(|segment| segment.ids.len()).sum();
        let shown = ask.map_or(0, |ask| ask.prompt.ids.len() + ask.tokens_max as usize);
        self.base.len().saturating_add((kept + shown).min(u32::MAX as usize) as u32)
    }

    /// Starts the prompt. [`EngineSession::proceed`] continues it.
    pub fn begin_prompt(&mut self, ask: GenerationRequest, chunk: u32) {
        let GenerationRequest { prompt, keeps_reply: stays, response, tokens_max } = ask;
        let Some(step) = &mut self.step else { return };
        step.pending = Some(PendingResponse { response, tokens_max });
        if stays {
            self.base.extend(prompt, chunk);
        } else {
            let mut sequence = self.base.fork();
            sequence.extend(prompt, chunk);
            step.fork = Some(SequenceFork { sequence, allocation: None });
        }
    }

    /// The sequence to run, and whether it is the fork. The kept tokens run first.
    pub fn active(&self) -> (&Sequence, bool) {
        match self.step.as_ref().and_then(|step| step.fork.as_ref()) {
            Some(fork) if self.base.next().is_none() => (&fork.sequence, true),
            _ => (&self.base, false),
        }
    }

    /// The same sequence, mutable.
    pub fn active_mut(&mut self) -> &mut Sequence {
        match self.step.as_mut().and_then(|step| step.fork.as_mut()) {
            Some(fork) if self.base.next().is_none() => &mut fork.sequence,
            _ => &mut self.base,
        }
    }

    /// Advances to where a token must be sampled: forced tokens join the chunk group, which then
    /// ends. `Some` when the reply is complete.
    pub fn proceed(&mut self, chunk: u32, version: PolicyVersion) -> Option<FinishReason> {
        let step = self.step.as_mut()?;
        let pending = step.pending.as_mut()?;
        let sequence = step.fork.as_mut().map_or(&mut self.base, |fork| &mut fork.sequence);
        pending.response.append_forced(version.0).iter().for_each(|id| sequence.push(*id));
        match pending.response.state() {
            ResponseState::Finished(reason) => Some(reason),
            ResponseState::Sample => {
                sequence.end_chunk_group(chunk);
                None
            }
        }
    }

    /// Adds a sampled token.
    pub fn take(
        &mut self,
        token: &SampledToken,
        ranking: Option<TokenRanking>,
        version: PolicyVersion,
    ) -> Result<(), IllegalToken> {
        let Some(step) = &mut self.step else { return Ok(()) };
        let Some(pending) = &mut step.pending else { return Ok(()) };
        let sequence = step.fork.as_mut().map_or(&mut self.base, |fork| &mut fork.sequence);
        sequence.push(token.id);
        pending.response.rank(ranking);
        pending.response.take(token, version.0)
    }

    /// The next span to run.
    pub fn next(&self) -> Option<std::ops::Range<u32>> {
        self.active().0.next()
    }

    /// The span after the active one if that runs now; otherwise the active one.
    pub fn span_ahead(&self, is_running: bool) -> Option<(&Sequence, std::ops::Range<u32>)> {
        let (sequence, is_fork) = self.active();
        if !is_running {
            return Some((sequence, sequence.next()?));
        }
        if let Some(span) = sequence.after_next() {
            return Some((sequence, span));
        }
        let fork = self.step.as_ref()?.fork.as_ref().filter(|_| !is_fork)?;
        Some((&fork.sequence, fork.sequence.next()?))
    }

    /// Length of the sequence that the reply extends.
    pub fn replying_len(&self) -> u32 {
        let fork = self.step.as_ref().and_then(|step| step.fork.as_ref());
        fork.map_or(self.base.len(), |fork| fork.sequence.len())
    }

    /// Whether the next token is sampled from the logits of the active span.
    pub fn samples_next(&self) -> bool {
        let Some(step) = &self.step else { return false };
        let (sequence, is_fork) = self.active();
        step.pending.is_some() && sequence.is_last() && is_fork == step.fork.is_some()
    }

    /// Whether a token was sampled already.
    pub fn is_decoding(&self) -> bool {
        self.step.as_ref().is_some_and(Step::has_sampled)
    }
}

impl Step {
    pub fn new(done: oneshot::Sender<Result<StepOutput, EngineFault>>, since: u64) -> Self {
        Self {
            done: Some(done),
            fork: None,
            reserve: PageReservation::default(),
            promised: Vec::new(),
            is_admitted: false,
            was_left_out: false,
            since,
            version_min: None,
            costs: StepCosts::default(),
            arrived: Instant::now(),
            pending: None,
        }
    }

    fn has_sampled(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.response.columns().mask.contains(&true))
    }

    /// Whether the step has a reply.
    pub fn wants_reply(&self) -> bool {
        self.pending.is_some()
    }

    /// Most tokens that the reply can still get.
    pub fn tokens_left(&self) -> u32 {
        let left = |pending: &PendingResponse| {
            pending.tokens_max.saturating_sub(pending.response.columns().ids.len() as u32)
        };
        self.pending.as_ref().map_or(0, left)
    }

    /// The reply in progress.
    pub fn response(&self) -> Option<&PartialResponse> {
        self.pending.as_ref().map(|pending| &pending.response)
    }
}

impl StepCosts {
    fn add(&mut self, other: &StepCosts) {
        self.prefill_tokens += other.prefill_tokens;
        self.device_micros += other.device_micros;
    }

    fn account(self, origin: StateOrigin) -> EngineStats {
        let decoded = f64::from(self.decode_steps.max(1));
        EngineStats {
            worker: String::new(),
            slot: self.slot,
            state_origin: Some(origin),
            batch_size_mean: (self.decoded_together as f64 / decoded) as f32,
            prefill_tokens: self.prefill_tokens,
            reused_tokens: self.reused_tokens,
            decode_steps: self.decode_steps,
            queue_micros: self.queue_micros.unwrap_or_default(),
            service_micros: 0,
            gpu_micros: self.device_micros as u64,
            cost_usd: None,
        }
    }
}

impl Engine {
    /// Continues a reply after its prompt started or a token was sampled.
    pub(super) fn proceed(&mut self, id: SessionId) {
        let chunk = self.settings.chunk;
        let newest = self.weight_versions.newest();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let version = session.pinned.unwrap_or(newest);
        if let Some(reason) = session.proceed(chunk, version) {
            self.finish(id, reason);
        }
    }

    /// Answers a step and frees what it held.
    pub(super) fn finish(&mut self, id: SessionId, finish_reason: FinishReason) {
        self.clock += 1;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(mut step) = session.step.take() else { return };
        self.waiting.retain(|waiting| *waiting != id);
        session.touched = self.clock;
        let versions = [session.version_min, step.version_min].into_iter().flatten();
        let state_version_min =
            versions.min().unwrap_or(session.pinned.unwrap_or(self.weight_versions.newest()));
        let reply = match step.pending.take() {
            None => {
                session.rebuild_costs.add(&step.costs);
                let engine = StepCosts::default().account(StateOrigin::Resident);
                StepOutput { columns: TokenColumns::default(), finish_reason, state_version_min, engine }
            }
            Some(pending) => {
                let brought = std::mem::take(&mut session.rebuild_costs);
                step.costs.reused_tokens = step.costs.reused_tokens.saturating_sub(brought.prefill_tokens);
                step.costs.add(&brought);
                let origin = session.origin.take().unwrap_or(StateOrigin::Resident);
                let engine = step.costs.account(origin);
                StepOutput {
                    columns: pending.response.into_columns(),
                    finish_reason,
                    state_version_min,
                    engine,
                }
            }
        };
        if let Some(done) = self.release_step(step) {
            // The caller may have left; the session's token is cancelled then.
            done.send(Ok(reply)).ok();
        }
    }
}
