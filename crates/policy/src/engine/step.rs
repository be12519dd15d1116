//! One step of a session: what is requested, what it costs and what is answered.

use std::time::Instant;

use furrow_rollout::{EngineStats, FinishReason, PolicyVersion, StateOrigin};
use tokio::sync::oneshot;

use super::fault::EngineFault;
use crate::response::{PartialResponse, TokenColumns};
use crate::sequence::TokenSegment;

/// A prompt and how to reply to it.
pub(crate) struct GenerationRequest {
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
pub(crate) struct StepOutput {
    /// The tokens of the reply with their columns.
    pub columns: TokenColumns,
    pub finish_reason: FinishReason,
    /// Oldest version that wrote a part of the state it was sampled from.
    pub state_version_min: PolicyVersion,
    /// What the step cost; the caller fills `worker` and `service_micros`.
    pub engine: EngineStats,
}

/// Receives the result of a step.
pub(super) type StepSender = oneshot::Sender<Result<StepOutput, EngineFault>>;

/// A step that is not answered yet.
pub(super) struct PendingStep {
    pub done: StepSender,
    /// When it arrived, on the engine's clock.
    pub since: u64,
    pub arrived: Instant,
}

/// The costs of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StepCosts {
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

impl PendingStep {
    /// A step that arrives now.
    pub(super) fn new(done: StepSender, since: u64) -> Self {
        Self { done, since, arrived: Instant::now() }
    }
}

impl StepCosts {
    /// Adds the costs of rebuilding a session's past.
    pub(super) fn add(&mut self, rebuild: &StepCosts) {
        self.prefill_tokens += rebuild.prefill_tokens;
        self.device_micros += rebuild.device_micros;
    }

    /// The costs as the records store them.
    pub(super) fn account(self, origin: StateOrigin) -> EngineStats {
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
