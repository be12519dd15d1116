//! The drift audit: scores a share of a session's sampled tokens again by the prefill path, while
//! the worker serves other sessions.
//!
//! Decoding writes a state token by token and prefill writes it in chunks. A trainer computes
//! log-probs by prefill, so the difference between the two is an error of every importance ratio.
//! An audit runs the earlier steps in a session of its own, whose state decoding never wrote.

use furrow_rollout::{PolicyVersion, RescoredToken, TokenTrace, Trace};
use furrow_telemetry::LogprobsRecomputed;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::response::RandomStream;

/// Which share of the tokens is scored again.
pub(super) struct DriftAudit {
    share: f64,
    /// One audit runs at a time, and a step that finds one running is not audited. So the share is
    /// an upper bound, and no session waits for the audit of another.
    permit: Semaphore,
}

/// A step whose audit runs. Other steps are not audited until it is dropped.
pub(super) struct AuditedStep<'a> {
    indices: Vec<usize>,
    version: PolicyVersion,
    _permit: SemaphorePermit<'a>,
}

impl DriftAudit {
    /// `None` for a share of 0.
    pub(super) fn of(share: f64) -> Option<Self> {
        (share > 0.0).then(|| Self { share, permit: Semaphore::new(1) })
    }

    /// Chooses tokens of a step for an audit. `None` if it is not audited: no token was chosen, two
    /// versions made it, or another audit runs.
    pub(super) fn begin(&self, stream: &RandomStream, step: u32, trace: &Trace) -> Option<AuditedStep<'_>> {
        let indices = self.choose(trace.tokens.as_ref()?, stream, step);
        let version = only_version(trace).filter(|_| !indices.is_empty())?;
        let permit = self.permit.try_acquire().ok()?;
        Some(AuditedStep { indices, version, _permit: permit })
    }

    /// Chooses each sampled token with the probability of the share. The random numbers come from a
    /// stream apart from the sampler's and, like the sampler's, depend only on session, step and
    /// token.
    fn choose(&self, tokens: &TokenTrace, stream: &RandomStream, step: u32) -> Vec<usize> {
        let is_sampled = |index: &usize| {
            tokens.logprobs.as_ref().and_then(|list| list.get(*index).copied().flatten()).is_some()
        };
        let chosen = |index: &usize| stream.uniform(AUDITS + step, *index as u32) < self.share;
        (0..tokens.response_token_ids.len()).filter(is_sampled).filter(chosen).collect()
    }
}

impl AuditedStep<'_> {
    /// The chosen tokens, as indices into the response.
    pub(super) fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Adds the log-probs of the chosen tokens to the trace, unless newer weights than the step's
    /// are in use.
    pub(super) fn record(self, logprobs: &[f32], current: PolicyVersion, trace: &mut Trace) {
        if current != self.version {
            return; // newer weights came in between
        }
        let scored = self.indices.iter().zip(logprobs);
        trace.rescored = scored
            .map(|(index, logprob)| RescoredToken { token: *index as u32, logprob: *logprob })
            .collect();
        let gaps: Vec<f64> = trace.prefill_gaps().collect();
        LogprobsRecomputed { gaps: &gaps }.emit();
    }
}

/// Added to the step number. Steps of a trajectory stay far below it, so an audit uses no number of
/// the sampler.
const AUDITS: u32 = 1 << 31;

/// The version that wrote the state and all tokens. A gap between two versions is not drift.
fn only_version(trace: &Trace) -> Option<PolicyVersion> {
    let version = trace.state_version_min?;
    let tokens = trace.tokens.as_ref()?;
    tokens.policy_versions.iter().all(|made| *made == version.0).then_some(version)
}
