//! The drift audit: a share of the tokens a session drew is scored again by the prefill path, while the worker goes on serving others.
//!
//! Decoding writes a state token by token, prefill in one go, and a trainer reads the second way: how far their log-probs lie apart is the
//! error of every importance ratio. An audit reads the steps before in a session of its own, so its state has never been decoded into.

use std::sync::Arc;

use furrow_rollout::{PolicyVersion, ScoredAgain, TokenTrace, Trace};
use furrow_telemetry::TokensScoredAgain;
use furrow_wire::{Opening, PastStep};
use tokio::sync::Semaphore;

use super::Shared;
use crate::draw::Stream;
use crate::policy::{PolicyError, Session};

/// How much is scored again.
pub(super) struct Audit {
    share: f64,
    /// One audit at a time; a step that finds it taken is not audited. So the share is an upper bound, and no session waits for another's.
    place: Semaphore,
}

impl Audit {
    /// `None` for a share of nothing.
    pub fn of(share: f64) -> Option<Self> {
        (share > 0.0).then(|| Self { share, place: Semaphore::new(1) })
    }

    /// Scores some tokens of the last step again and notes them in its trace. What goes wrong is logged: the step stands all the same.
    pub async fn look(
        &self,
        shared: &Arc<Shared>,
        (opening, stream): (&Opening, &Stream),
        past: &[PastStep],
        trace: &mut Trace,
    ) {
        let Some((last, before)) = past.split_last() else { return };
        let Some(places) = trace.tokens.as_ref().map(|tokens| self.choose(tokens, stream, last.step)) else {
            return;
        };
        let Some(version) = only_version(trace).filter(|_| !places.is_empty()) else { return };
        let Ok(_place) = self.place.try_acquire() else { return };
        let logprobs = match score(shared, opening, before, last, &places).await {
            Ok(logprobs) => logprobs,
            Err(why) => return tracing::warn!(%why, step = last.step, "a step could not be scored again"),
        };
        if shared.in_use().version != version {
            return; // newer weights came in between
        }
        let scored = places.iter().zip(logprobs);
        trace.scored_again =
            scored.map(|(place, logprob)| ScoredAgain { token: *place as u32, logprob }).collect();
        let gaps: Vec<f64> = trace.prefill_gaps().collect();
        TokensScoredAgain { gaps: &gaps }.emit();
    }

    /// Tokens that were drawn, each with the chance of the share. The numbers are of another stream than those that draw, and like them a
    /// function of the session, the step and the token.
    fn choose(&self, tokens: &TokenTrace, stream: &Stream, step: u32) -> Vec<usize> {
        let drawn = |place: &usize| {
            tokens.logprobs.as_ref().and_then(|list| list.get(*place).copied().flatten()).is_some()
        };
        let chosen = |place: &usize| stream.uniform(AUDITS + step, *place as u32) < self.share;
        (0..tokens.response_token_ids.len()).filter(drawn).filter(chosen).collect()
    }
}

/// Steps of a trajectory stay far below it, so an audit takes no number that draws.
const AUDITS: u32 = 1 << 31;

/// The version that wrote the state and made all tokens; a gap between two versions is no drift.
fn only_version(trace: &Trace) -> Option<PolicyVersion> {
    let version = trace.state_version_min?;
    let tokens = trace.tokens.as_ref()?;
    tokens.policy_versions.iter().all(|made| *made == version.0).then_some(version)
}

/// Log-probs of tokens of a step by the prefill path, in a session that is told the steps before it.
pub(super) async fn score(
    shared: &Arc<Shared>,
    opening: &Opening,
    past: &[PastStep],
    step: &PastStep,
    places: &[usize],
) -> Result<Vec<f32>, PolicyError> {
    let opening = Opening { past_steps: past.len() as u32, ..opening.clone() };
    let mut session = shared.open(&opening, None).await?;
    for step in past {
        session.recall(step.clone()).await?;
    }
    session.score(step, places).await
}
