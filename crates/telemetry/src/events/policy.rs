//! Events of a policy worker.

use furrow_rollout::{EngineStats, Id, PolicyKind, Trajectory};
use tracing::{debug, info, warn};

use super::cut;
use crate::labels::{Label, SessionEnd};
use crate::names::{event, process_metrics};
use crate::otel;

/// A session opened for a trajectory.
#[derive(Debug)]
pub struct SessionOpened<'a> {
    pub trajectory_id: &'a Id<Trajectory>,
    pub worker: &'a str,
    /// Kind of the policy.
    pub policy_kind: PolicyKind,
}

/// A session was rebuilt from the traces that its `Open` carried.
#[derive(Debug)]
pub struct SessionRebuilt<'a> {
    pub trajectory_id: &'a Id<Trajectory>,
    pub worker: &'a str,
    /// Number of steps it was rebuilt from.
    pub steps: u32,
}

/// A session ended and its state is gone.
#[derive(Debug)]
pub struct SessionClosed<'a> {
    pub trajectory_id: &'a Id<Trajectory>,
    pub worker: &'a str,
    pub end: SessionEnd,
    /// Number of replies it gave.
    pub replies: u32,
}

/// A reply went out.
#[derive(Debug)]
pub struct ReplySent<'a> {
    pub trajectory_id: &'a Id<Trajectory>,
    pub step: u32,
    /// Whether it holds an action.
    pub valid: bool,
    /// What was computed for it, and how long that took.
    pub engine: &'a EngineStats,
}

/// A step was requested again and got the same reply.
#[derive(Debug)]
pub struct ReplyRepeated<'a> {
    pub trajectory_id: &'a Id<Trajectory>,
    pub step: u32,
}

/// Log-probs of a step's tokens were recomputed by the prefill path.
#[derive(Debug)]
pub struct LogprobsRecomputed<'a> {
    /// Recorded log-prob minus the prefill path's, in nats, one per token.
    pub gaps: &'a [f64],
}

impl LogprobsRecomputed<'_> {
    pub fn emit(self) {
        let max_abs = self.gaps.iter().map(|gap| gap.abs()).fold(0.0, f64::max);
        let tokens = self.gaps.len();
        debug!(event = event::LOGPROBS_RECOMPUTED, tokens, max_abs, "log-probs recomputed");
        let figures = process_metrics();
        figures.recomputed_tokens.add(tokens as u64);
        self.gaps.iter().for_each(|gap| figures.prefill_gap.record((gap.abs() * 1e6).round() as u64));
    }
}

/// A model behind an endpoint gave a reply.
#[derive(Debug)]
pub struct RemoteAnswered {
    /// Tokens of the prompt, as the endpoint counts them.
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    pub completion_tokens: u64,
    pub attempts: u32,
    /// From the need for a reply, the wait for capacity included, to the reply.
    pub micros: u64,
    /// Cost in US dollars, where prices are known.
    pub cost_usd: Option<f64>,
}

/// A model behind an endpoint gave no reply after all attempts.
#[derive(Debug)]
pub struct RemoteFailed<'a> {
    pub step: u32,
    pub reason: &'a str,
}

/// A chat got a reply.
#[derive(Debug)]
pub struct ChatAnswered {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Number of prompt tokens that its session already had.
    pub cached_tokens: u64,
    /// Tokens of the reply.
    pub completion_tokens: u64,
    /// From the request's head to the end of the reply.
    pub micros: u64,
}

/// A chat got no reply.
#[derive(Debug)]
pub struct ChatRefused {
    pub status: u16,
    pub code: &'static str,
}

impl ChatAnswered {
    pub fn emit(self) {
        let Self { prompt_tokens, cached_tokens, completion_tokens, micros } = self;
        let event = event::CHAT_ANSWERED;
        debug!(event, prompt_tokens, cached_tokens, completion_tokens, micros, "chat answered");
        let figures = process_metrics();
        figures.serve_replies.add(1);
        figures.serve_prompt_tokens.add(prompt_tokens);
        figures.serve_cached_tokens.add(cached_tokens);
        figures.serve_completion_tokens.add(completion_tokens);
        figures.serve_micros.record(micros);
    }
}

impl ChatRefused {
    /// Logs and counts. Any client can cause a refusal, so the line is not a warning.
    pub fn emit(self) {
        let Self { status, code } = self;
        debug!(event = event::CHAT_REFUSED, status, code, "chat refused");
        process_metrics().serve_refusals.add(1);
    }
}

impl RemoteAnswered {
    pub fn emit(self) {
        let Self { prompt_tokens, completion_tokens, attempts, micros, cost_usd } = self;
        let event = event::REMOTE_ANSWERED;
        debug!(event, prompt_tokens, completion_tokens, attempts, micros, cost_usd, "the endpoint answered");
        let figures = process_metrics();
        figures.remote_replies.add(1);
        figures.remote_retries.add(attempts.saturating_sub(1).into());
        figures.remote_prompt_tokens.add(prompt_tokens);
        figures.remote_completion_tokens.add(completion_tokens);
        figures.remote_cost.add((cost_usd.unwrap_or(0.0) * 1e6) as u64);
        figures.remote_micros.record(micros);
    }
}

impl RemoteFailed<'_> {
    pub fn emit(self) {
        let Self { step, reason } = self;
        warn!(event = event::REMOTE_FAILED, step, reason = cut(reason), "the endpoint gave no reply");
        process_metrics().remote_failures.add(1);
    }
}

impl SessionOpened<'_> {
    pub fn emit(self) {
        let Self { trajectory_id, worker, policy_kind } = self;
        let policy_kind = policy_kind.as_str();
        info!(event = event::SESSION_OPENED, %trajectory_id, worker, policy_kind, "session opened");
        process_metrics().sessions_opened.add(1);
        process_metrics().sessions.add(1);
    }
}

impl SessionRebuilt<'_> {
    pub fn emit(self) {
        let Self { trajectory_id, worker, steps } = self;
        info!(event = event::SESSION_REBUILT, %trajectory_id, worker, steps, "session rebuilt");
        process_metrics().sessions_rebuilt.add(1);
    }
}

impl SessionClosed<'_> {
    pub fn emit(self) {
        let Self { trajectory_id, worker, replies, .. } = self;
        let end = self.end.value();
        info!(event = event::SESSION_CLOSED, %trajectory_id, worker, end, replies, "session closed");
        process_metrics().sessions_ended.at(self.end).add(1);
        process_metrics().sessions.add(-1);
    }
}

impl ReplySent<'_> {
    pub fn emit(self) {
        otel::trace(&self);
        let Self { trajectory_id, step, valid, .. } = self;
        let service_micros = self.engine.service_micros;
        debug!(event = event::REPLY_SENT, %trajectory_id, step, valid, service_micros, "reply sent");
        process_metrics().replies.add(1);
        process_metrics().replies_invalid.add((!valid).into());
        process_metrics().service_micros.record(service_micros);
    }
}

impl ReplyRepeated<'_> {
    pub fn emit(self) {
        let Self { trajectory_id, step } = self;
        debug!(event = event::REPLY_REPEATED, %trajectory_id, step, "reply repeated");
        process_metrics().replies_repeated.add(1);
    }
}
