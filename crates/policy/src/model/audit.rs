//! The drift audit: scores a share of a session's sampled tokens again by the prefill path, while
//! the worker serves other sessions.
//!
//! Decoding writes a state token by token and prefill writes it in chunks. A trainer computes
//! log-probs by prefill, so the difference between the two is an error of every importance ratio.
//! An audit runs the earlier steps in a session of its own, whose state decoding never wrote.

use std::sync::Arc;

use furrow_rollout::{PolicyVersion, RescoredToken, TokenTrace, Trace};
use furrow_telemetry::LogprobsRecomputed;
use furrow_wire::{PastStep, SessionOpening};
use tokio::sync::Semaphore;

use super::ModelShared;
use crate::policy::{PolicyError, Session};
use crate::response::RandomStream;

/// Which share of the tokens is scored again.
pub(super) struct DriftAudit {
    share: f64,
    /// One audit runs at a time, and a step that finds one running is not audited. So the share is
    /// an upper bound, and no session waits for the audit of another.
    permit: Semaphore,
}

impl DriftAudit {
    /// `None` for a share of 0.
    pub fn of(share: f64) -> Option<Self> {
        (share > 0.0).then(|| Self { share, permit: Semaphore::new(1) })
    }

    /// Scores some tokens of the last step and adds the results to its trace. A failure is logged
    /// and leaves the step as it is.
    pub async fn audit_step(
        &self,
        shared: &Arc<ModelShared>,
        (opening, stream): (&SessionOpening, &RandomStream),
        past: &[PastStep],
        trace: &mut Trace,
    ) {
        let Some((last, before)) = past.split_last() else { return };
        let Some(indices) = trace.tokens.as_ref().map(|tokens| self.choose(tokens, stream, last.step)) else {
            return;
        };
        let Some(version) = only_version(trace).filter(|_| !indices.is_empty()) else { return };
        let Ok(_permit) = self.permit.try_acquire() else { return };
        let logprobs = match score(shared, opening, before, last, &indices).await {
            Ok(logprobs) => logprobs,
            Err(why) => return tracing::warn!(%why, step = last.step, "a step could not be scored again"),
        };
        if shared.current_weights().version != version {
            return; // newer weights came in between
        }
        let scored = indices.iter().zip(logprobs);
        trace.rescored =
            scored.map(|(index, logprob)| RescoredToken { token: *index as u32, logprob }).collect();
        let gaps: Vec<f64> = trace.prefill_gaps().collect();
        LogprobsRecomputed { gaps: &gaps }.emit();
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

/// Added to the step number. Steps of a trajectory stay far below it, so an audit uses no number of
/// the sampler.
const AUDITS: u32 = 1 << 31;

/// The version that wrote the state and all tokens. A gap between two versions is not drift.
fn only_version(trace: &Trace) -> Option<PolicyVersion> {
    let version = trace.state_version_min?;
    let tokens = trace.tokens.as_ref()?;
    tokens.policy_versions.iter().all(|made| *made == version.0).then_some(version)
}

/// Log-probs of tokens of a step by the prefill path, in a session that runs the steps before it.
pub(super) async fn score(
    shared: &Arc<ModelShared>,
    opening: &SessionOpening,
    past: &[PastStep],
    step: &PastStep,
    indices: &[usize],
) -> Result<Vec<f32>, PolicyError> {
    let opening = SessionOpening { past_steps: past.len() as u32, ..opening.clone() };
    let mut session = shared.open(&opening, None).await?;
    for step in past {
        session.rebuild_step(step.clone()).await?;
    }
    session.score(step, indices).await
}
